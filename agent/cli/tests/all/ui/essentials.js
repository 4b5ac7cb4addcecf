// Finds visible controls without a name, texts without contrast, tables without caption or headers.
const problems = [];
const visible = (it) => it.getClientRects().length > 0;
const parse = (color) => color.match(/[\d.]+/g).map(Number);
const luminance = ([r, g, b]) => {
  const part = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
};
const background = (it) => {
  for (let at = it; at; at = at.parentElement) {
    const color = parse(getComputedStyle(at).backgroundColor);
    if (color.length === 3 || color[3] > 0.8) return color;
  }
  return [255, 255, 255];
};
const controls = [...document.querySelectorAll("button, input, select, textarea, canvas, [role=region], [role=tabpanel]")].filter(visible);
for (const it of controls) {
  const labelled = it.getAttribute("aria-labelledby");
  const name = it.getAttribute("aria-label") || it.labels?.[0]?.textContent || (labelled && document.getElementById(labelled)?.textContent)
    || (it.tagName === "BUTTON" && it.textContent);
  if (!name?.trim()) problems.push(`no name: ${it.outerHTML.slice(0, 120)}`);
}
for (const it of [...document.querySelectorAll("table")].filter(visible)) {
  if (!it.caption?.textContent || !it.querySelector("th[scope=col]")) problems.push(`table: ${it.outerHTML.slice(0, 120)}`);
}
let texts = 0;
for (const it of [...document.querySelectorAll("body *")].filter(visible)) {
  const own = [...it.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.textContent.trim());
  if (!own || it.tagName === "OPTION") continue;
  texts += 1;
  const [one, other] = [luminance(parse(getComputedStyle(it).color)), luminance(background(it))].sort((a, b) => b - a);
  const contrast = (one + 0.05) / (other + 0.05);
  if (contrast < 4.5) problems.push(`contrast ${contrast.toFixed(2)}: ${it.outerHTML.slice(0, 120)}`);
}
if (document.documentElement.lang !== "en") problems.push("no language");
return { problems, texts, controls: controls.length };
