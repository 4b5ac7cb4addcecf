// What if: objects as YAML, judged against the cluster while they are typed. Nothing is applied.

import { ask } from "./ask.js";
import { add, count, field, fill, make, report, table } from "./build.js";

const PAUSE = 250;
const MISSING = 200;
const PRESETS = ["default-deny", "sandbox", "tenant", "dns", "metadata"];

const few = (names) => (names.length > 4 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", "));

export class WhatIfTab {
  constructor(place, shared) {
    // The server judges the newest text of each page.
    const page = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16)).join("-");
    Object.assign(this, { shared, page });
    this.text = make("textarea", {
      id: "yaml", spellcheck: false, autocapitalize: "off", "aria-describedby": "what-if-hint",
      placeholder: "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n…",
      onInput: () => this.later(),
      onKeydown: (event) => this.key(event),
    });
    const file = make("input", { type: "file", accept: ".yaml,.yml,.json", onChange: (event) => this.open(event.target.files[0]) });
    this.preset = make("select", {}, PRESETS.map((name) => make("option", {}, name)));
    this.namespace = make("input", { autocomplete: "off", size: 12 });
    this.enforce = make("input", { type: "checkbox" });
    this.remove = make("input", { type: "checkbox", onChange: () => this.judge() });
    this.live = make("input", { type: "checkbox", onChange: () => this.judge() });
    this.liveLabel = make("label", { class: "toggle" }, this.live, "open connections, too");
    this.learn = make("button", { onClick: () => this.propose() }, "Proposal of learn");
    this.state = make("p", { class: "quiet", role: "status" }, "Write, open or paste objects: the answer follows.");
    this.result = make("div", { class: "result", tabIndex: 0, role: "region", "aria-label": "Effect of the change" });
    this.copied = make("span", { class: "quiet", role: "status" });
    add(place,
      make("div", { class: "bar" },
        field("File", file), field("Preset", this.preset), field("Namespace", this.namespace),
        make("label", { class: "toggle" }, this.enforce, "enforced"),
        make("button", { onClick: () => this.begin() }, "Insert preset"), this.learn,
        make("span", { class: "space" }),
        make("button", { onClick: () => this.copy() }, "Copy"), make("button", { onClick: () => this.save() }, "Save"), this.copied),
      make("div", { class: "split even" },
        make("div", { class: "editor" },
          make("label", { for: "yaml", htmlFor: "yaml" }, "Objects to apply, as YAML or JSON"), this.text,
          make("p", { id: "what-if-hint", class: "quiet" }, "Nothing is applied from this page: copy or save the text and use kubectl."),
          make("div", { class: "bar" }, make("label", { class: "toggle" }, this.remove, "delete them instead"), this.liveLabel)),
        make("div", { class: "effect" }, this.state, this.result)));
  }

  load(map) {
    this.liveLabel.hidden = this.learn.hidden = !map.live;
    this.namespace.value ||= map.namespace;
    if (this.text.value.trim()) this.judge();
  }

  show() {}

  key(event) {
    // Tab leaves the field; two spaces indent by Ctrl-].
    if (event.ctrlKey && event.key === "]") {
      event.preventDefault();
      this.text.setRangeText("  ", this.text.selectionStart, this.text.selectionEnd, "end");
      this.later();
    }
  }

  set(text) {
    this.text.value = text;
    this.judge();
  }

  async open(file) {
    if (file) this.set(await file.text());
  }

  async begin() {
    report(null);
    try {
      const { yaml, warning } = await ask("preset", { preset: this.preset.value, namespace: this.namespace.value.trim(), enforce: this.enforce.checked });
      this.set(yaml);
      report(warning);
    } catch (error) {
      report(error);
    }
  }

  async propose() {
    report(null);
    fill(this.state, "Asking the agents for recorded flows…");
    try {
      const answer = await ask("learn", { namespace: this.namespace.value.trim() });
      this.set(answer.yaml);
      const silent = Object.keys(answer.unanswered);
      const { unwatched, denied } = answer;
      const missing = [
        silent.length && `No answer from ${silent.join(", ")}: flows of their pods are missing.`,
        unwatched.length && `Flows of ${count(unwatched.length, "pod")} are not recorded, because no policy selects them.`,
        denied.length && `Denied so far, and allowed by no rule of the proposal: ${few(denied)}.`,
      ].filter(Boolean);
      if (missing.length) report(missing.join(" "));
    } catch (error) {
      fill(this.state, "");
      report(error);
    }
  }

  async copy() {
    await navigator.clipboard.writeText(this.text.value).then(() => fill(this.copied, "copied"), report);
  }

  save() {
    const url = URL.createObjectURL(new Blob([this.text.value], { type: "application/yaml" }));
    make("a", { href: url, download: "policies.yaml" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  later() {
    this.outdate();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.judge(), PAUSE);
  }

  /** Marks the shown answer as one to an earlier text. */
  outdate() {
    const has = this.result.childElementCount > 0;
    fill(this.state, has ? "Judging… The answer below is of an earlier text." : "Judging…");
    this.result.classList.toggle("stale", has);
    this.result.setAttribute("aria-busy", "true");
  }

  /** Shows the answer to the present text. */
  finish(state, ...children) {
    fill(this.state, state);
    this.result.classList.remove("stale");
    this.result.removeAttribute("aria-busy");
    fill(this.result, ...children);
  }

  async judge() {
    clearTimeout(this.timer);
    this.abort?.abort();
    const abort = new AbortController();
    this.abort = abort;
    if (!this.text.value.trim()) {
      this.finish("Write, open or paste objects: the answer follows.");
      return;
    }
    this.outdate();
    const begun = performance.now();
    try {
      const question = { yaml: this.text.value, delete: this.remove.checked, live: this.live.checked, page: this.page };
      const answer = await ask("what-if", question, abort.signal);
      if (this.abort !== abort) return;
      this.showAnswer(answer, performance.now() - begun);
    } catch (error) {
      if (this.abort !== abort || error.name === "AbortError") return;
      // 409: a newer question replaced this one; it was of an earlier text, and this one is still the present text.
      if (error.status === 409) this.later();
      else this.finish("", make("p", { class: "bad" }, error.message));
    }
  }

  showAnswer(answer, time) {
    const turned = (list, text) => list.map((it) => make("li", { class: text === "open" ? "bad" : "" },
      make("strong", {}, it.workload), text === "open" ? `: no policy isolates its ${it.directions.join(" and ")} any more` : `: ${it.policies.join(", ")} isolates its ${it.directions.join(" and ")}`,
      it.some && " (some pods)"));
    const rows = answer.lines.map((line) => [
      few(line.from), few(line.to), line.loses && make("span", { class: "verdict deny" }, line.loses),
      line.gains && make("span", { class: "verdict allow" }, line.gains), line.some ? "some pods or addresses" : ""]);
    const missing = answer.not_compared.map((it) => make("li", {}, it.workload
      ? `${it.workload}: ${it.reason}, ${it.isolated.length ? `${it.isolated.join(" and ")} isolated by ${it.policies.join(", ")}` : "open: no policy isolates it"}`
      : it.reason));
    const groups = (list, word) => list.length > 0 && table(`Open connections ${word}`, ["From", "To", "Port", "Connections"],
      list.map((it) => [it.from, it.to, `${it.protocol} ${it.port || ""}`, it.connections.length]));
    const nothing = !answer.cut && !answer.opened && !answer.open.length && !answer.isolated.length;
    this.finish(`${count(answer.objects, "object")} judged in ${Math.round(time)} ms`,
      make("p", { class: "sum" },
        make("span", { class: `big ${answer.cut ? "deny" : ""}` }, answer.cut.toLocaleString("en")), answer.cut === 1 ? " pair cut" : " pairs cut",
        make("span", { class: `big ${answer.opened ? "allow" : ""}` }, answer.opened.toLocaleString("en")), answer.opened === 1 ? " pair opened" : " pairs opened"),
      answer.problems.length > 0 && [make("h3", {}, "Problems"), make("ul", { class: "rows problems" }, answer.problems.map((it) => make("li", {}, it)))],
      nothing && make("p", {}, answer.compared ? "No connection is cut or opened." : "Nothing was compared: no pod and no pod template is in both."),
      (answer.open.length > 0 || answer.isolated.length > 0) && [make("h3", {}, "Isolation"),
        make("ul", { class: "rows" }, turned(answer.open, "open"), turned(answer.isolated, "isolated"))],
      rows.length > 0 && table("Connections", ["From", "To", "Loses", "Gains", "Extent"], rows),
      answer.left_out > 0 && make("p", { class: "note" }, `${count(answer.left_out, "further change")} ${answer.left_out === 1 ? "is" : "are"} not listed.`),
      answer.live && [
        make("h3", {}, "Open connections"),
        make("p", {}, `${count(answer.live.open, "connection")} judged, ${count(answer.live.cut.reduce((sum, it) => sum + it.connections.length, 0), "connection")} cut.`),
        groups(answer.live.cut, "that are cut"), groups(answer.live.unsure, "that depend on a backend"),
        answer.live.problems.length > 0 && make("ul", { class: "rows problems" }, answer.live.problems.map((it) => make("li", {}, it)))],
      answer.notes.length > 0 && [make("h3", {}, "Notes"), make("ul", { class: "rows" }, answer.notes.map((it) => make("li", {}, it)))],
      missing.length > 0 && [make("h3", {}, `Not compared (${missing.length.toLocaleString("en")})`), make("ul", { class: "rows" }, missing.slice(0, MISSING),
        missing.length > MISSING && make("li", { class: "note" }, `${(missing.length - MISSING).toLocaleString("en")} more are not listed.`))]);
  }
}
