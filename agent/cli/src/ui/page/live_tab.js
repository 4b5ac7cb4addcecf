// Live: denials and new flows of all agents as they happen, with the filter words of `netpold observe`.

import { follow } from "./ask.js";
import { add, count, field, fill, make, report, verdict } from "./build.js";

const KEPT = 500;
const PROBLEMS = 50;

export class LiveTab {
  constructor(place, shared) {
    Object.assign(this, { shared, place, received: 0, lost: 0, waiting: [] });
    const input = (name, hint) => make("input", { name, placeholder: hint, autocomplete: "off" });
    const choice = (name, options) => make("select", { name }, options.map(([value, text]) => make("option", { value }, text)));
    this.form = make("form", { class: "bar", onSubmit: (event) => {
      event.preventDefault();
      this.start();
    } },
      field("Verdict", choice("verdict", [["deny,audit", "denied and on trial"], ["deny", "denied"], ["audit", "on trial"], ["deny,audit,allow", "all, new flows too"]])),
      field("Namespace", input("namespace", "shop")), field("Pod", input("pod", "web-*")), field("Peer", input("peer", "pod, svc/…, CIDR")),
      field("Direction", choice("direction", [["", "both"], ["ingress", "ingress"], ["egress", "egress"]])),
      field("Port", input("port", "80,443")), field("Protocol", input("protocol", "TCP")), field("Reason", input("reason", "policy")),
      field("Since", input("since", "10m")),
      make("button", { class: "primary" }, "Follow"),
      make("button", { type: "button", onClick: () => this.stop() }, "Stop"));
    this.state = make("p", { class: "quiet", role: "status" }, "Not following.");
    this.body = make("tbody");
    this.problems = make("ul", { class: "rows problems" });
    this.table = make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Events, newest first" }, make("table", {},
      make("caption", { class: "quiet" }, `Newest first; the last ${KEPT} are kept`),
      make("thead", {}, make("tr", {}, ["Time", "Node", "Verdict", "Pod", "Direction", "Peer", "Port", "Why"].map((text) => make("th", { scope: "col" }, text)))),
      this.body));
  }

  load(map) {
    const running = this.abort;
    this.stop();
    fill(this.place, map.live
      ? [this.form, this.state, this.problems, this.table]
      : make("p", { class: "empty" }, "Manifests have no agents: with a cluster, denials and new flows appear here as they happen."));
    if (running && map.live) this.start();
  }

  show() {
    if (this.shared.map?.live && !this.abort && !this.received) this.start();
  }

  stop() {
    this.abort?.abort();
    this.abort = null;
    fill(this.state, `Not following. ${count(this.received, "event")} received.`);
  }

  async start() {
    this.stop();
    report(null);
    [this.received, this.lost] = [0, 0];
    fill(this.body);
    fill(this.problems);
    const abort = new AbortController();
    this.abort = abort;
    fill(this.state, "Asking the agents…");
    try {
      await follow("follow", { words: Object.fromEntries(new FormData(this.form)) }, (event) => this.take(event), abort.signal);
    } catch (error) {
      if (this.abort === abort) report(error);
    }
    if (this.abort === abort) this.stop();
  }

  take(event) {
    if (event.revision !== undefined) {
      this.revision = event.revision;
      fill(this.state, "Following.");
    } else if (event.problem) {
      const listed = this.problems.children.length;
      if (listed <= PROBLEMS) add(this.problems, make("li", {}, listed < PROBLEMS ? event.problem : "Further problems are not listed."));
    } else if (event.line.type === "lost") {
      const { kernel, flows, slow, unattributed } = event.line;
      this.lost += (kernel ?? 0) + (flows ?? 0) + (slow ?? 0) + (unattributed ?? 0);
    } else {
      this.received += 1;
      this.waiting.push(event);
      if (this.waiting.length > KEPT) this.waiting.shift();
      this.shared.views.map.observe(this.revision, event.from, event.to, event.line.verdict);
    }
    this.frame ??= requestAnimationFrame(() => this.flush());
  }

  flush() {
    this.frame = null;
    const rows = this.waiting.splice(0).map(({ line, why }) => make("tr", {}, [
      line.time.slice(11, 23), line.node, verdict(line.verdict), line.pod ? name(line.pod) : line.interface ?? "unknown", line.direction,
      peer(line), `${line.protocol ?? ""} ${line.port ?? ""}`, why || line.reason,
    ].map((cell, index) => make("td", { class: index === 0 ? "number" : "" }, cell))));
    this.body.prepend(...rows.reverse());
    while (this.body.children.length > KEPT) this.body.lastChild.remove();
    if (this.abort) fill(this.state, `Following. ${count(this.received, "event")} received${this.lost ? `, ${this.lost} not shown one by one` : ""}.`);
  }
}

const name = (key) => `${key.namespace}/${key.name}`;

function peer({ peer: whose, remote }) {
  if (!whose || whose.kind === "outside") return remote ?? "unknown";
  if (whose.kind === "node") return `node/${whose.name}`;
  return `${whose.kind === "service" ? "svc/" : ""}${name(whose)}`;
}
