// The page: tabs, and what they share.

import { ask } from "./ask.js";
import { count, fill, report } from "./build.js";
import { MapTab } from "./map_tab.js";
import { LiveTab } from "./live_tab.js";
import { WhatIfTab } from "./what_if_tab.js";
import { InForceTab } from "./in_force_tab.js";

const byId = (id) => document.getElementById(id);
const shared = { map: null, views: {} };
const views = {
  map: new MapTab(byId("map"), shared),
  live: new LiveTab(byId("live"), shared),
  "what-if": new WhatIfTab(byId("what-if"), shared),
  "in-force": new InForceTab(byId("in-force"), shared),
};
shared.views = views;

const tabs = [...byId("tabs").children];

function select(tab) {
  for (const other of tabs) {
    const selected = other === tab;
    other.setAttribute("aria-selected", selected);
    other.tabIndex = selected ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !selected;
  }
  views[tab.getAttribute("aria-controls")].show();
}
shared.open = (name) => select(byId(`tab-${name}`));

byId("tabs").addEventListener("click", (event) => {
  if (tabs.includes(event.target)) select(event.target);
});
byId("tabs").addEventListener("keydown", (event) => {
  const at = tabs.indexOf(document.activeElement);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  const tab = tabs[(next + tabs.length) % tabs.length];
  tab.focus();
  select(tab);
});

async function load(fresh) {
  const map = await ask("map", { fresh });
  const workloads = map.nodes.filter((node) => node.kind === "workload").length;
  shared.map = map;
  fill(byId("source"), [
    map.source, count(workloads, "workload"), count(map.pods, "pod"), count(map.policies, "policy", "policies"),
  ].join(" · "));
  for (const view of Object.values(views)) view.load(map);
}

byId("reload").addEventListener("click", async () => {
  byId("reload").disabled = true;
  report(null);
  await load(true).catch(report);
  byId("reload").disabled = false;
});

await load(false).catch(report);
document.documentElement.dataset.ready = "true";
