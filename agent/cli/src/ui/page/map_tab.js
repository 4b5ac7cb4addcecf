// Map: workloads, pairs that rules name, open flows and live denials; the same as a table.

import { ask } from "./ask.js";
import { WORDS, add, ago, count, field, fill, make, refill, report, table, verdict } from "./build.js";
import { MapCanvas } from "./canvas.js";

const FOLD_ABOVE = 200;
const LISTED = 30;
const OBSERVED = 5000;
const STATES = { open: "open", isolated: "isolated", some: "some pods isolated", trial: "on trial only", tiers: "ClusterNetworkPolicies decide" };

/** The toggles under which a verdict is shown. */
const TOGGLES = { allow: ["allow"], audit: ["audit"], mixed: ["allow", "deny"], deny: ["deny"] };

/** Returns the state of a workload in a direction: rules of ClusterNetworkPolicies come before its isolation, or after. */
const stateOf = (node, direction) => (node[`${direction}_tiers`] ? "tiers" : node[direction]);

export class MapTab {
  constructor(place, shared) {
    Object.assign(this, { shared, observed: new Map(), flows: new Map(), folded: new Set(), rules: null, notes: {}, asked: 0, every: [], shownEdges: [] });
    this.filters = { allow: true, audit: true, deny: true };
    const toggle = (word, text) => make("label", { class: `toggle ${word}` },
      make("input", { type: "checkbox", checked: true, onChange: (event) => {
        this.filters[word] = event.target.checked;
        this.update();
      } }), text);
    this.search = make("input", { type: "search", placeholder: "Workload or namespace", onInput: () => this.find() });
    this.flowButton = make("button", { hidden: true, onClick: () => this.loadFlows() }, "Show open flows");
    this.foldButton = make("button", { onClick: () => this.foldAll() });
    this.tableButton = make("button", { "aria-pressed": "false", onClick: () => this.showTable() }, "As a table");
    this.canvas = make("canvas", { tabIndex: 0, role: "img" });
    this.tip = make("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.left = make("p", { class: "note", hidden: true });
    this.list = make("div", { class: "table-view", hidden: true });
    this.details = make("aside", { "aria-live": "polite", "aria-label": "Details" });
    const legend = make("p", { class: "legend", "aria-hidden": "true" },
      make("span", { class: "square full" }), "isolated ", make("span", { class: "square" }), "open ",
      make("span", { class: "square half" }), "in part ", make("span", { class: "square tiers" }), "ClusterNetworkPolicies decide ", make("span", { class: "square trial" }), "on trial; above: ingress, below: egress");
    add(place,
      make("div", { class: "bar" }, field("Find", this.search), toggle("allow", "allowed"), toggle("deny", "denied"),
        toggle("audit", "on trial"), this.flowButton, this.foldButton,
        make("button", { onClick: () => this.view.fit() }, "Fit"), this.tableButton),
      make("div", { class: "split" },
        make("div", { class: "stage" }, this.canvas, this.tip, legend, this.left, this.list), this.details));
    this.view = new MapCanvas(this.canvas, this.tip, (found) => this.pick(found));
  }

  load(map) {
    const begun = performance.now();
    this.map = map;
    this.nodes = map.nodes;
    for (const node of this.nodes) node.states = { ingress: stateOf(node, "ingress"), egress: stateOf(node, "egress") };
    this.flows.clear();
    this.observed.clear();
    this.rules = null;
    this.flowButton.hidden = !map.live;
    this.folded = new Set();
    if (this.nodes.length > FOLD_ABOVE) this.foldAll(true);
    this.view.painted = () => {
      this.view.painted = null;
      document.documentElement.dataset.drawn = Math.round(performance.now());
      document.documentElement.dataset.drawing = Math.round(performance.now() - begun);
    };
    this.view.select(null);
    this.update(false);
    this.notes = {};
    this.note("map", map.left_out && `up to ${count(map.left_out, "pair")} that broad rules name are not on the map`);
    this.overview();
  }

  show() {
    this.view.resize();
  }

  /** Shows a note of a source beside those of the others; without a text, removes it. */
  note(source, text) {
    this.notes[source] = text;
    const texts = Object.values(this.notes).filter(Boolean);
    fill(this.left, texts.join("; "));
    this.left.hidden = !texts.length;
  }

  /** Begins a question about the map; returns whether its answer is still wanted. */
  begin() {
    const { map } = this;
    this.asked += 1;
    const number = this.asked;
    return () => map === this.map && number === this.asked;
  }

  /** Returns the edges: pairs of rules, then flows and events that no rule names. */
  edges() {
    const { map } = this;
    const edges = map.edges.map(([from, to, word, ports, trial, some]) => {
      const text = word === "deny" ? "denied at every port" : map.texts[word === "audit" ? trial : ports];
      return { from, to, verdict: word, label: text + (some ? " (some pods)" : "") };
    });
    const known = new Set(edges.map((edge) => `${edge.from} ${edge.to}`));
    for (const [key, flows] of this.flows) {
      if (known.has(key)) continue;
      const [from, to] = key.split(" ").map(Number);
      edges.push({ from, to, verdict: "allow", label: count(flows, "open flow") });
    }
    for (const [key, seen] of this.observed) {
      const [from, to, word] = key.split(" ");
      edges.push({ from: Number(from), to: Number(to), verdict: word, label: `${count(seen, "event")} seen`, seen });
    }
    return edges;
  }

  update(keep = true) {
    if (!this.map) return;
    this.every = this.edges();
    this.shownEdges = this.every.filter((edge) => TOGGLES[edge.verdict].some((word) => this.filters[word]));
    this.view.show(this.nodes, this.shownEdges, this.folded, { keep });
    const words = { allow: 0, audit: 0, mixed: 0, deny: 0 };
    for (const edge of this.shownEdges) words[edge.verdict] += 1;
    this.canvas.setAttribute("aria-label", `Map of ${count(this.nodes.length, "party", "parties")} and ` +
      `${count(this.shownEdges.length, "pair")}: ${words.allow} allowed, ${words.deny} denied, ${words.mixed} denied in part, ${words.audit} on trial. ` +
      "Arrow keys move it, plus and minus zoom. The button As a table shows the same as a table.");
    this.foldButton.textContent = this.folded.size ? "Unfold all" : "Fold namespaces";
    if (!this.list.hidden) this.fillTable();
  }

  foldAll(initial = false) {
    if (this.folded.size && !initial) this.folded = new Set();
    else this.folded = new Set(this.nodes.map((node) => `${node.kind === "workload" ? "" : "\u0000"}${node.group}`));
    if (!initial) this.update(false);
  }

  showTable() {
    this.list.hidden = !this.list.hidden;
    this.tableButton.setAttribute("aria-pressed", !this.list.hidden);
    if (!this.list.hidden) this.fillTable();
  }

  fillTable() {
    const wanted = this.search.value.trim().toLowerCase();
    const has = (index) => this.nodes[index].title.toLowerCase().includes(wanted);
    const edges = this.shownEdges.filter((edge) => !wanted || has(edge.from) || has(edge.to));
    const rows = edges.map((edge) => [
      this.link(edge.from), this.link(edge.to), verdict(edge.verdict),
      make("button", { class: "link", onClick: () => this.pickPair(edge.from, edge.to) }, edge.label),
    ]);
    const hidden = this.every.length - this.shownEdges.length;
    const nodes = this.nodes.map((node, index) => [node, index]).filter(([, index]) => !wanted || has(index));
    const state = (node, direction) => (node.kind === "workload" ? STATES[node.states[direction]] : "");
    refill(this.list,
      table(`${count(rows.length, "pair")} that rules or flows name${hidden ? `; the toggles hide ${count(hidden, "pair")}` : ""}`, ["From", "To", "Verdict", "Ports"], rows),
      table(count(nodes.length, "party", "parties"), ["Name", "Pods", "Ingress", "Egress"], nodes.map(([node, index]) => [
        this.link(index), node.pods || "", state(node, "ingress"), state(node, "egress"),
      ])));
  }

  find() {
    if (!this.list.hidden) this.fillTable();
    const wanted = this.search.value.trim().toLowerCase();
    if (wanted.length < 2) return;
    const index = this.nodes.findIndex((node) => node.title.toLowerCase().includes(wanted));
    if (index >= 0) this.pickNode(index);
  }

  link(index) {
    return make("button", { class: "link", onClick: () => this.pickNode(index) }, this.nodes[index].title);
  }

  pick(found) {
    if (!found) {
      this.view.select(null);
      this.overview();
    } else if (found.group) {
      if (found.group.folded || found.open) this.unfold(found.group.key, !found.group.folded);
      else {
        this.view.select(null);
        this.overview();
      }
    } else if (found.node !== undefined) this.pickNode(found.node, false);
    else if (found.pairs.size === 1) this.pickPair(found.edges[0].members[0].from, found.edges[0].members[0].to);
    else this.pickMany(found.edges);
  }

  unfold(key, fold = false) {
    if (fold) this.folded.add(key);
    else this.folded.delete(key);
    this.view.select(null);
    this.update();
  }

  overview() {
    this.asked += 1;
    const of = (word) => this.every.filter((edge) => edge.verdict === word).length;
    const workloads = this.nodes.map((node, index) => ({ node, index })).filter(({ node }) => node.kind === "workload");
    const having = (state) => workloads.filter(({ node: { states } }) => states.ingress === state || states.egress === state);
    const [open, tiers] = [having("open"), having("tiers")];
    const row = (state) => ({ node: { states }, index }) => [this.link(index), make("span", { class: "quiet" },
      states.ingress === state && states.egress === state ? " both ways" : states.ingress === state ? " ingress" : " egress")];
    refill(this.details, make("h2", {}, "Overview"),
      make("dl", {},
        Object.keys(WORDS).filter((word) => word !== "mixed" || of(word)).map((word) => [make("dt", {}, verdict(word)), make("dd", {}, count(of(word), "pair"))])),
      make("p", { class: "quiet" }, "Drawn are the pairs that some rule names. A rule about everyone names no pair; details of a workload list it."),
      this.section(`Open in a direction (${open.length})`, open.length ? open.map(row("open"))
        : [["None: policies select every workload both ways."]]),
      tiers.length > 0 && this.section(`ClusterNetworkPolicies decide (${tiers.length})`, tiers.map(row("tiers"))));
  }

  section(title, rows) {
    const list = make("ul", { class: "rows" });
    const more = make("button", { class: "more" });
    let next = 0;
    const extend = () => {
      for (const row of rows.slice(next, next + LISTED)) add(list, make("li", {}, row));
      next += LISTED;
      more.textContent = `Show more (${rows.length - next} left)`;
      more.hidden = next >= rows.length;
    };
    more.addEventListener("click", extend);
    extend();
    return [make("h3", {}, title), list, more];
  }

  pickMany(edges) {
    this.asked += 1;
    this.view.selectPairs(edges.flatMap((edge) => edge.members));
    const title = (cell, index) => make("bdi", {}, cell.group.folded ? cell.group.name : this.nodes[index].title);
    const { a, b, members: [first] } = edges[0];
    refill(this.details, make("h2", {}, title(a, first.from), " → ", title(b, first.to)),
      edges.map((edge) => this.section(`${count(edge.members.length, "pair")} ${WORDS[edge.verdict]}`, edge.members.map((it) => [
        this.link(it.from), " → ", this.link(it.to), " ",
        make("button", { class: "link", onClick: () => this.pickPair(it.from, it.to) }, it.label)]))));
  }

  async pickNode(index, reveal = true) {
    const node = this.nodes[index];
    const group = this.view.layout.cells[index]?.group;
    if (group?.folded) this.unfold(group.key);
    this.view.select({ node: index });
    if (reveal) this.view.reveal(index);
    const isWanted = this.begin();
    let answer = null;
    try {
      answer = await ask("workload", { revision: this.map.revision, id: index });
    } catch (error) {
      if (isWanted()) report(error);
      return;
    }
    if (!isWanted()) return;
    const policies = (list) => (list.length
      ? make("ul", { class: "rows" }, list.map((it) => make("li", {}, it.policy, " ",
        make("span", { class: "quiet" }, `${count(it.rules, "rule")}${it.enforcement === "audit" ? ", on trial" : ""}`))))
      : make("p", { class: "quiet" }, "No policy."));
    const side = (word, state, alone, everyone, list) => [
      make("h3", {}, word, " ", make("span", { class: `state ${state}` }, STATES[state])), policies(list),
      state === "tiers" && make("p", { class: "quiet" }, `By NetworkPolicies alone: ${STATES[alone]}. Explain a pair for the verdict.`),
      everyone && make("p", {}, word === "Ingress" ? "A rule allows it from everyone." : "A rule allows it to everyone.")];
    const pairs = (own, other) => this.every.filter((edge) => edge[own] === index).sort((a, b) => (a.verdict < b.verdict ? -1 : a.verdict > b.verdict ? 1 : 0)).map((edge) => [
      verdict(edge.verdict), " ", this.link(edge[other]), " ",
      make("button", { class: "link quiet", onClick: () => this.pickPair(edge.from, edge.to) }, edge.label)]);
    const [reach, reached] = [pairs("to", "from"), pairs("from", "to")];
    refill(this.details, make("h2", {}, answer.title),
      node.kind === "workload" && [
        answer.host_network && make("p", {}, "On its node's network: no policy selects it."),
        side("Ingress", node.states.ingress, node.ingress, node.from_everyone, answer.ingress),
        side("Egress", node.states.egress, node.egress, node.to_everyone, answer.egress)],
      reach.length > 0 && this.section(`Senders that rules name (${reach.length})`, reach),
      reached.length > 0 && this.section(`Receivers that rules name (${reached.length})`, reached),
      node.kind === "workload" && this.section(count(answer.count, "pod"), answer.pods.map((pod) => [pod.pod, make("span", { class: "quiet" },
        pod.template ? " template" : ` ${[pod.node, ...pod.addresses].filter(Boolean).join(" · ")}`)])));
  }

  async pickPair(from, to, kind = {}) {
    for (const index of [from, to]) {
      const group = this.view.layout.cells[index]?.group;
      if (group?.folded) this.unfold(group.key);
    }
    this.view.selectPairs([{ from, to }]);
    const isWanted = this.begin();
    let answer;
    try {
      answer = await ask("edge", { revision: this.map.revision, from, to, ...kind });
    } catch (error) {
      if (isWanted()) refill(this.details, make("h2", {}, this.link(from), " → ", this.link(to)), make("p", {}, error.message));
      return;
    }
    if (!isWanted()) return;
    const { explanation } = answer;
    const port = make("input", { type: "number", min: 1, max: 65535, value: answer.port || "", required: true });
    const protocol = make("select", {}, ["TCP", "UDP", "SCTP", "ICMP"].map((name) => make("option", { selected: name === answer.protocol }, name)));
    const again = (event) => {
      event.preventDefault();
      this.pickPair(from, to, protocol.value === "ICMP" ? { protocol: "ICMP" } : { protocol: protocol.value, port: Number(port.value) });
    };
    const flows = this.flows.get(`${from} ${to}`);
    const usage = make("div");
    refill(this.details,
      make("h2", {}, this.link(from), " → ", this.link(to)),
      make("p", {}, verdict(explanation.verdict ?? "unknown"), ` at ${answer.protocol} ${answer.port || ""}`),
      make("form", { class: "ask", onSubmit: again }, field("Protocol", protocol), field("Port", port), make("button", {}, "Explain")),
      answer.allowed && make("p", {}, make("strong", {}, "Allowed: "), answer.allowed),
      answer.allowed === "" && make("p", {}, "No port is allowed."),
      answer.on_trial && make("p", {}, make("strong", {}, "Denied if trials were enforced: "), answer.on_trial),
      answer.some && make("p", { class: "quiet" }, "Some pods are treated otherwise."),
      flows && make("p", {}, count(flows, "open flow")),
      explanation.error && make("p", {}, explanation.error),
      make("h3", {}, "Why"),
      make("ol", { class: "why" }, explanation.lines?.map((line) => make("li", { class: line.startsWith("  ") ? "deep" : "" }, line.trim()))),
      usage);
    if (this.map.live) this.showUse(usage, explanation);
  }

  /** Shows the last use of the rules that allow a pair. */
  async showUse(place, explanation) {
    this.rules ??= ask("rules").catch((error) => ({ error }));
    const answer = await this.rules;
    if (answer.error) {
      fill(place, make("p", { class: "quiet" }, `Use of rules: ${answer.error.message}`));
      return;
    }
    const allowing = [explanation.egress, explanation.ingress].map((it) => it?.allowed_by).filter(Boolean);
    const rows = allowing.map(({ policy, direction, index }) => {
      const used = answer.rules.find((it) => it.namespace === policy.namespace && it.name === policy.name && it.direction === direction && it.index === index);
      const text = !used ? "not watched" : used.last_used ? `${count(used.flows, "flow")}, last ${ago(answer.as_of - used.last_used)}` : "never used";
      return [`${policy.namespace}/${policy.name} ${direction}[${index}]: `, text];
    });
    fill(place, rows.length > 0 && this.section("Use of the rules", rows));
  }

  async loadFlows() {
    report(null);
    const { map } = this;
    try {
      const answer = await ask("flows", { revision: map.revision });
      if (map !== this.map || answer.revision !== map.revision) return;
      this.flows = new Map(answer.flows.map(([from, to, flows]) => [`${from} ${to}`, flows]));
      const silent = Object.keys(answer.unanswered);
      const notes = [answer.unplaced && `${count(answer.unplaced, "flow")} have no place on the map`,
        answer.left_out && `${count(answer.left_out, "flow")} were only counted`,
        silent.length && `no answer from ${silent.join(", ")}`].filter(Boolean);
      this.note("flows", notes.join("; "));
      this.update();
    } catch (error) {
      if (map === this.map) report(error);
    }
  }

  /** Adds an event of the stream to the map. */
  observe(revision, from, to, word) {
    if (!this.map || revision !== this.map.revision || from === null || to === null || word === "allow") return;
    const key = `${from} ${to} ${word}`;
    const isNew = !this.observed.has(key);
    if (isNew && this.observed.size >= OBSERVED) {
      this.note("events", "events of further pairs are not on the map");
      return;
    }
    this.observed.set(key, (this.observed.get(key) ?? 0) + 1);
    if (isNew) {
      clearTimeout(this.soon);
      this.soon = setTimeout(() => this.update(), 300);
    }
  }
}
