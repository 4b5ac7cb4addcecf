//! Policies in force: the cluster's policies, the nodes' reports of their generations, and the status of the agents.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use netpold_api::crd::{NodePolicyStatus, PolicyOnNode};
use netpold_api::status::AgentStatus;
use netpold_api::unix_time::unix_time;
use netpold_client::live;
use netpold_core::cluster::is_subject;
use netpold_core::model::{Direction, Enforcement, Pod, Selector};
use serde::Deserialize;
use serde_json::{Value, json};

use super::snapshot::{ObjectSnapshot, ObjectSource};
use crate::status;

/// Path of the nodes' reports.
const REPORTS: &str = "/apis/netpold.io/v1alpha1/nodepolicystatuses";
/// Most policies in an answer; the others are counted.
const POLICIES: usize = 2000;
/// Age at which a report proves nothing any more, in seconds: agents renew it every 40 to 60 seconds.
const OLD: i64 = 120;

/// A page of reports.
#[derive(Deserialize)]
struct ReportPage {
    items: Vec<NodePolicyStatus>,
    #[serde(default)]
    metadata: ReportPageMetadata,
}

#[derive(Default, Deserialize)]
struct ReportPageMetadata {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

/// Reports of the nodes.
#[derive(Default)]
struct NodeReports {
    /// State of each policy by node, by namespace and name.
    of_policies: BTreeMap<(String, String), BTreeMap<String, PolicyOnNode>>,
    of_nodes: BTreeMap<String, NodeReportSummary>,
}

/// Report of a node, without its policies.
#[derive(Default)]
struct NodeReportSummary {
    /// Age in seconds; absent without a time.
    age: Option<i64>,
    in_sync: bool,
    omitted: i32,
}

impl NodeReportSummary {
    /// Returns the reason for which the report proves nothing.
    fn doubt(&self) -> Option<String> {
        match self.age {
            None => Some("its report has no time".to_owned()),
            Some(age) if age > OLD => Some(format!("its report is {age} s old")),
            Some(_) if !self.in_sync => Some("it is not in sync".to_owned()),
            Some(_) => None,
        }
    }
}

impl NodeReports {
    fn add(&mut self, report: NodePolicyStatus, now: i64) {
        let node = report.metadata.name.unwrap_or_default();
        let Some(status) = report.status else { return };
        let age = status.renew_time.map(|time| now - time.0.as_second());
        let (in_sync, omitted) = (status.in_sync, status.policies_omitted);
        self.of_nodes.insert(node.clone(), NodeReportSummary { age, in_sync, omitted });
        for policy in status.policies {
            let key = (policy.namespace.clone(), policy.name.clone());
            self.of_policies.entry(key).or_default().insert(node.clone(), policy);
        }
    }

    /// Returns the state of a policy on the nodes of its pods, and on others that report it.
    fn take_states(
        &mut self,
        key: &(String, String),
        nodes: &BTreeSet<&str>,
        generation: i64,
    ) -> Vec<Value> {
        let mut states = self.of_policies.remove(key).unwrap_or_default();
        let others: Vec<String> =
            states.keys().filter(|node| !nodes.contains(node.as_str())).cloned().collect();
        let all = nodes.iter().map(|node| (*node).to_owned()).chain(others);
        let all = all.map(|node| {
            let state = states.remove(&node);
            let report = self.of_nodes.get(&node);
            let reason = match (report, &state) {
                (None, _) => Some("no report".to_owned()),
                (Some(report), Some(state)) => report.doubt().or_else(|| reason_not_in_force(state, generation)),
                (Some(report), None) => Some(report.doubt().unwrap_or_else(|| {
                    let omits = report.omitted > 0;
                    if omits { "its report omits policies" } else { "not in its report" }.to_owned()
                })),
            };
            let observed = state.map(|state| state.observed_generation);
            json!({ "node": node, "generation": observed, "in_force": reason.is_none(), "reason": reason })
        });
        all.collect()
    }

    /// Returns a problem of each node whose report omits policies or proves nothing.
    fn problems(&self) -> impl Iterator<Item = String> {
        self.of_nodes.iter().flat_map(|(node, report)| {
            let omitted = report.omitted;
            let omits =
                (omitted > 0).then(|| format!("node {node}: its report omits {omitted} policies"));
            omits.into_iter().chain(report.doubt().map(|doubt| format!("node {node}: {doubt}")))
        })
    }
}

/// Returns the reason for which a policy is not in force on a node that reports it.
fn reason_not_in_force(state: &PolicyOnNode, generation: i64) -> Option<String> {
    if state.observed_generation != generation {
        return Some(format!("generation {}", state.observed_generation));
    }
    let reason = if state.message.is_empty() { "not enforced" } else { &state.message };
    (!state.enforced).then(|| reason.to_owned())
}

/// Lists the policies with what is in force of them. Blocks.
///
/// # Errors
/// A document cannot be converted to JSON. Reports that cannot be read are problems in the answer.
pub(super) fn document(source: &ObjectSource, world: &ObjectSnapshot) -> Result<Value> {
    let (mut reports, mut problems, mut agents) = (NodeReports::default(), Vec::new(), Value::Null);
    if source.is_live() {
        match read_reports(source) {
            Ok(read) => reports = read,
            Err(error) => problems.push(format!("reports of the nodes: {error:#}")),
        }
        match live::request_all::<AgentStatus>(&source.cluster, &["status", "-o", "json"]) {
            Ok(all) => {
                let unanswered = all.unanswered();
                agents = serde_json::to_value(status::merge(all.answers, unanswered))?;
            }
            Err(error) => problems.push(format!("agents: {error:#}")),
        }
    }
    problems.extend(reports.problems());
    let all = policies(world);
    let left_out = all.len().saturating_sub(POLICIES);
    let policies: Vec<Value> = all
        .into_iter()
        .take(POLICIES)
        .map(|PolicyEntry { key, nodes, generation, mut policy }| {
            policy["nodes"] = reports.take_states(&key, &nodes, generation).into();
            policy
        })
        .collect();
    Ok(
        json!({ "policies": policies, "left_out": left_out, "agents": agents, "problems": problems }),
    )
}

fn read_reports(source: &ObjectSource) -> Result<NodeReports> {
    let mut reports = NodeReports::default();
    let now = i64::try_from(unix_time().as_secs()).unwrap_or(i64::MAX);
    live::block_on(live::pages(&source.cluster, REPORTS, |json| {
        let page: ReportPage = serde_json::from_str(json)?;
        page.items.into_iter().for_each(|report| reports.add(report, now));
        Ok(page.metadata.next)
    }))?;
    Ok(reports)
}

/// A policy of the answer.
struct PolicyEntry<'w> {
    /// Namespace and name; a ClusterNetworkPolicy has no namespace.
    key: (String, String),
    /// Nodes of the selected pods.
    nodes: BTreeSet<&'w str>,
    generation: i64,
    policy: Value,
}

/// Returns the policies, ClusterNetworkPolicies first.
fn policies(world: &ObjectSnapshot) -> Vec<PolicyEntry<'_>> {
    let cluster = world.cluster();
    let policy = |kind: &str,
                  enforcement: Enforcement,
                  generation: i64,
                  directions: Vec<Direction>,
                  pods: &[&Pod]| {
        json!({
            "kind": kind, "enforcement": enforcement, "generation": generation, "directions": directions,
            "pods": pods.len(),
        })
    };
    let mut all = Vec::new();
    for it in cluster.cluster_policies() {
        let mut namespaces: BTreeMap<&str, bool> = BTreeMap::new();
        let pods = cluster.pods().values().filter(|pod| {
            let namespace = pod.key.namespace.as_str();
            let selects = || it.subject.namespaces.matches(&cluster.namespace_labels(namespace));
            is_subject(pod)
                && *namespaces.entry(namespace).or_insert_with(selects)
                && it.subject.pods.matches(&pod.labels)
        });
        let pods: Vec<&Pod> = pods.map(|pod| &**pod).collect();
        let directions = Direction::BOTH.into_iter().filter(|d| !it.rules(*d).is_empty()).collect();
        let generation = it.version.generation;
        let mut policy =
            policy("ClusterNetworkPolicy", it.enforcement, generation, directions, &pods);
        policy["name"] = it.name.clone().into();
        policy["tier"] = it.tier.to_string().into();
        policy["problems"] = it.problems.clone().into();
        let key = (String::new(), it.name.clone());
        all.push(PolicyEntry { key, nodes: nodes_of(&pods), generation, policy });
    }
    for it in cluster.policies().values() {
        let key = &it.key;
        let pods = selected(world, &key.namespace, &it.pod_selector);
        let directions = Direction::BOTH.into_iter().filter(|d| it.rules(*d).is_some()).collect();
        let generation = it.version.generation;
        let mut policy = policy("NetworkPolicy", it.enforcement, generation, directions, &pods);
        policy["namespace"] = key.namespace.clone().into();
        policy["name"] = key.name.clone().into();
        policy["problems"] = cluster.problems_of(it).collect::<Vec<_>>().into();
        let key = (key.namespace.clone(), key.name.clone());
        all.push(PolicyEntry { key, nodes: nodes_of(&pods), generation, policy });
    }
    all
}

/// Returns the nodes of pods; a pod that is not scheduled has none.
fn nodes_of<'w>(pods: &[&'w Pod]) -> BTreeSet<&'w str> {
    pods.iter().map(|pod| &*pod.node).filter(|node| !node.is_empty()).collect()
}

fn selected<'w>(world: &'w ObjectSnapshot, namespace: &str, selector: &Selector) -> Vec<&'w Pod> {
    let pods = world.cluster().pods_in(namespace).map(|pod| &**pod);
    pods.filter(|pod| is_subject(pod) && selector.matches(&pod.labels)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2027-01-15T08:00:00Z
    const NOW: i64 = 1_800_000_000;
    const NEW: &str = "2027-01-15T07:59:10Z";

    fn report(
        node: &str,
        time: &str,
        in_sync: bool,
        omitted: i32,
        generation: Option<i64>,
    ) -> NodePolicyStatus {
        let policies: Vec<Value> = generation
            .map(|it| json!({ "namespace": "shop", "name": "web", "uid": "1", "observedGeneration": it, "pods": 1, "enforced": true }))
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "metadata": { "name": node },
            "status": { "renewTime": time, "inSync": in_sync, "policiesOmitted": omitted, "policies": policies },
        }))
        .unwrap()
    }

    #[test]
    fn a_policy_is_in_force_on_nodes_with_a_new_report_of_its_generation() {
        let mut reports = NodeReports::default();
        for report in [
            report("current", NEW, true, 0, Some(3)),
            report("behind", NEW, true, 0, Some(2)),
            report("old", "2027-01-15T07:57:59Z", true, 0, Some(3)),
            report("unsure", NEW, false, 0, Some(3)),
            report("omits", NEW, true, 7, None),
            report("without", NEW, true, 0, None),
        ] {
            reports.add(report, NOW);
        }
        let problems: Vec<String> = reports.problems().collect();
        assert_eq!(
            problems,
            [
                "node old: its report is 121 s old",
                "node omits: its report omits 7 policies",
                "node unsure: it is not in sync"
            ]
        );
        let nodes =
            BTreeSet::from(["behind", "current", "missing", "old", "omits", "unsure", "without"]);
        let key = ("shop".to_owned(), "web".to_owned());
        let states = reports.take_states(&key, &nodes, 3);
        let states: Vec<(&str, Option<&str>)> =
            states.iter().map(|it| (it["node"].as_str().unwrap(), it["reason"].as_str())).collect();
        assert_eq!(
            states,
            [
                ("behind", Some("generation 2")),
                ("current", None),
                ("missing", Some("no report")),
                ("old", Some("its report is 121 s old")),
                ("omits", Some("its report omits policies")),
                ("unsure", Some("it is not in sync")),
                ("without", Some("not in its report")),
            ]
        );
    }
}
