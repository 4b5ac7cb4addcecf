// In force: policies with nodes and generations, agents, and the findings of doctor.

import { ask } from "./ask.js";
import { add, count, fill, make, table } from "./build.js";

const SEVERITIES = { error: "deny", warning: "audit", info: "info" };

export class InForceTab {
  constructor(place, shared) {
    Object.assign(this, { shared, loaded: 0 });
    this.policies = make("div", {}, make("p", { class: "quiet" }, "Reading…"));
    this.doctor = make("div", {}, make("p", { class: "quiet" }, "Reading…"));
    add(place, make("div", { class: "columns" },
      make("div", {}, make("h2", {}, "Policies"), this.policies),
      make("div", {}, make("h2", {}, "Findings"), this.doctor)));
  }

  load(map) {
    if (this.loaded && this.loaded !== map.revision && !document.getElementById("in-force").hidden) this.show();
  }

  show() {
    const { map } = this.shared;
    if (!map || this.loaded === map.revision) return;
    this.loaded = map.revision;
    // An answer of an earlier reading is not shown beside the present one.
    const ifPresent = (show) => (answer) => map === this.shared.map && show(answer);
    const failed = (place) => ifPresent((error) => fill(place, make("p", { class: "bad" }, error.message)));
    ask("in-force").then(ifPresent((answer) => this.showPolicies(answer, map.live))).catch(failed(this.policies));
    ask("doctor").then(ifPresent((answer) => this.showFindings(answer))).catch(failed(this.doctor));
  }

  showPolicies({ policies, left_out, agents, problems }, live) {
    const rows = policies.map((it) => {
      const behind = it.nodes.filter((node) => !node.in_force);
      const more = behind.length > 3 ? ` and ${behind.length - 3} more` : "";
      const force = live && [`${it.nodes.length - behind.length} of ${count(it.nodes.length, "node")}`, behind.length > 0 && make("span", { class: "bad" },
        ` not known on ${behind.slice(0, 3).map((node) => `${node.node} (${node.reason})`).join(", ")}${more}`)];
      return [
        it.namespace ? `${it.namespace}/${it.name}` : make("span", {}, it.name, make("span", { class: "quiet" }, ` ${it.tier} tier`)),
        it.directions.join(", "), it.enforcement === "audit" ? make("span", { class: "verdict audit" }, "on trial") : "enforced",
        count(it.pods, "pod"), ...(live ? [it.generation || "", force] : []),
        it.problems.length > 0 && make("span", { class: "bad" }, it.problems.join("; "))];
    });
    const head = ["Policy", "Directions", "Mode", "Selects", ...(live ? ["Generation", "In force on"] : []), "Problems"];
    fill(this.policies,
      problems.map((text) => make("p", { class: "note" }, text)),
      rows.length ? table(count(rows.length, "policy", "policies"), head, rows) : make("p", { class: "empty" }, "No policies: nothing is denied."),
      left_out > 0 && make("p", { class: "note" }, `${count(left_out, "further policy", "further policies")} not listed.`),
      !live && make("p", { class: "quiet" }, "Manifests have no nodes to report generations."),
      agents && this.agents(agents));
  }

  agents({ nodes, unanswered }) {
    const rows = nodes.map((it) => {
      const judged = it.endpoints.filter((endpoint) => endpoint.hook).length;
      const state = !it.in_sync ? "not in sync" : it.revision.desired === it.revision.enforced ? "enforced" : "behind";
      const drops = it.drops.reduce((sum, drop) => sum + drop.packets, 0);
      return [it.node, it.version, state, `${judged} of ${it.endpoints.length}`, drops.toLocaleString("en"), it.problems.join("; ")];
    });
    rows.push(...Object.entries(unanswered).map(([node, why]) => [node, "", "no answer", "", "", why]));
    return table(count(rows.length, "agent"), ["Node", "Version", "State", "Pods enforced", "Drops", "Problems"], rows);
  }

  showFindings({ findings, unknown }) {
    fill(this.doctor,
      findings.map((it) => make("article", { class: `finding ${SEVERITIES[it.severity]}` },
        make("h3", {}, make("span", { class: `verdict ${SEVERITIES[it.severity]}` }, it.severity), " ", it.problem),
        make("ul", { class: "rows" }, it.places.slice(0, 10).map((text) => make("li", {}, text)), it.count > 10 && make("li", { class: "quiet" }, `and ${it.count - 10} more`)),
        make("p", {}, make("strong", {}, "Fix: "), it.fix))),
      !findings.length && make("p", { class: "empty" }, "Nothing found."),
      unknown.length > 0 && [make("h3", {}, "Could not be checked"), make("ul", { class: "rows" }, unknown.map((text) => make("li", {}, text)))]);
  }
}
