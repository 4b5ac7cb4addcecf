// Elements from data. Text is only ever set as text.

// Characters that change the direction of text, or are not printed.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** Returns a text with hidden characters in escapes, as `netpold` prints them. */
export function shown(value) {
  return String(value).replace(HIDDEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** Makes an element: properties, listeners as `onClick`, attributes of other names, children that are texts or elements. */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") element.className = value;
    else if (key.startsWith("on") && typeof value === "function") element.addEventListener(key.slice(2).toLowerCase(), value);
    else if (key in element && !key.startsWith("aria")) element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  add(element, ...children);
  return element;
}

/** Appends texts and elements; leaves out what is absent. */
export function add(element, ...children) {
  for (const child of children.flat(3)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(shown(child)));
  }
  return element;
}

/** Replaces the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, ...children);
}

/** Replaces the children of an element. If one of them has the focus, the heading or the element itself gets it. */
export function refill(element, ...children) {
  const held = element !== document.activeElement && element.contains(document.activeElement);
  fill(element, ...children);
  if (!held) return;
  const place = element.querySelector("h2") ?? element;
  place.tabIndex = -1;
  place.focus({ preventScroll: true });
}

/** Makes a table of at most `most` rows, with a button for more. A row is a list of cells. */
export function table(caption, head, rows, { most = 200, cell = undefined } = {}) {
  const body = make("tbody");
  const whole = make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    make("table", {},
      make("caption", { class: "quiet" }, caption),
      make("thead", {}, make("tr", {}, head.map((text) => make("th", { scope: "col" }, text)))),
      body));
  const more = make("button", { class: "more" });
  let next = 0;
  const extend = () => {
    for (const row of rows.slice(next, next + most)) {
      add(body, make("tr", {}, row.map((content, index) => make("td", { class: cell?.(index) }, content))));
    }
    next = Math.min(next + most, rows.length);
    more.textContent = `Show more (${rows.length - next} left)`;
    more.hidden = next >= rows.length;
  };
  more.addEventListener("click", extend);
  extend();
  return add(whole, more);
}

/** Makes a labelled field. */
export function field(label, input) {
  return make("label", { class: "field" }, make("span", {}, label), input);
}

export const WORDS = { allow: "allowed", mixed: "denied in part", deny: "denied", audit: "on trial" };

/** Makes the word of a verdict: colour and text. */
export function verdict(word) {
  return make("span", { class: `verdict ${word}` }, WORDS[word] ?? word);
}

/** Returns a number with its noun. */
export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** Returns an age in words. */
export function ago(seconds) {
  if (seconds < 120) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}

/** Shows the reason of a failure at the top of the page; without one, hides it. */
export function report(error) {
  const place = document.getElementById("problem");
  if (error?.name === "AbortError") return;
  fill(place, error ? error.message ?? error : "");
  place.hidden = !error;
}
