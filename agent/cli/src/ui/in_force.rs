//! Policies in force: the cluster's policies, the nodes' reports of their generations, and the status of the agents.

use std::collections::BTreeMap;

use anyhow::Result;
use netpold_api::crd::NodePolicyStatus;
use netpold_api::status::Status;
use netpold_core::cluster::is_subject;
use netpold_core::model::{Direction, Enforcement, Selector};
use serde::Deserialize;
use serde_json::{Value, json};

use super::world::{Source, World};
use crate::live;
use crate::status;

/// Path of the nodes' reports.
const REPORTS: &str = "/apis/netpold.io/v1alpha1/nodepolicystatuses";
/// Most policies in an answer; the others are counted.
const POLICIES: usize = 2000;

/// A page of reports.
#[derive(Deserialize)]
struct Page {
    items: Vec<NodePolicyStatus>,
    #[serde(default)]
    metadata: PageMetadata,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

/// Reports of a policy by node.
type Reports = BTreeMap<(String, String), Vec<Value>>;

/// Lists the policies with what is in force of them. Blocks.
///
/// # Errors
/// A document cannot be converted to JSON. Reports that cannot be read are problems in the answer.
pub(super) fn document(source: &Source, world: &World) -> Result<Value> {
    let (mut reports, mut problems, mut agents) = (Reports::new(), Vec::new(), Value::Null);
    if source.is_live() {
        match read_reports(source) {
            Ok(read) => reports = read,
            Err(error) => problems.push(format!("reports of the nodes: {error:#}")),
        }
        match live::ask::<Status>(&source.cluster, &["status", "-o", "json"]) {
            Ok(all) => {
                let unanswered = all.unanswered();
                agents = serde_json::to_value(status::merge(all.answers, unanswered))?;
            }
            Err(error) => problems.push(format!("agents: {error:#}")),
        }
    }
    let all = policies(world);
    let left_out = all.len().saturating_sub(POLICIES);
    let policies: Vec<Value> = all
        .into_iter()
        .take(POLICIES)
        .map(|(key, mut policy)| {
            policy["nodes"] = reports.remove(&key).unwrap_or_default().into();
            policy
        })
        .collect();
    Ok(
        json!({ "policies": policies, "left_out": left_out, "agents": agents, "problems": problems }),
    )
}

fn read_reports(source: &Source) -> Result<Reports> {
    let mut reports = Reports::new();
    live::block_on(live::pages(&source.cluster, REPORTS, |json| {
        let page: Page = serde_json::from_str(json)?;
        for report in page.items {
            let node = report.metadata.name.unwrap_or_default();
            for policy in report.status.into_iter().flat_map(|status| status.policies) {
                let on_node = json!({
                    "node": node,
                    "generation": policy.observed_generation,
                    "enforced": policy.enforced,
                    "pods": policy.pods,
                    "message": policy.message,
                });
                reports.entry((policy.namespace, policy.name)).or_default().push(on_node);
            }
        }
        Ok(page.metadata.next)
    }))?;
    Ok(reports)
}

/// Returns the policies by namespace and name; a ClusterNetworkPolicy has no namespace.
fn policies(world: &World) -> Vec<((String, String), Value)> {
    let cluster = &world.cluster;
    let policy = |kind,
                  enforcement: Enforcement,
                  generation,
                  directions: Vec<Direction>,
                  pods: usize| {
        json!({
            "kind": kind, "enforcement": enforcement, "generation": generation, "directions": directions, "pods": pods,
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
        let pods = pods.count();
        let directions = Direction::BOTH.into_iter().filter(|d| !it.rules(*d).is_empty()).collect();
        let mut value =
            policy("ClusterNetworkPolicy", it.enforcement, it.version.generation, directions, pods);
        value["name"] = it.name.clone().into();
        value["tier"] = it.tier.to_string().into();
        value["problems"] = it.problems.clone().into();
        all.push(((String::new(), it.name.clone()), value));
    }
    for it in cluster.policies().values() {
        let key = &it.key;
        let pods = selected(world, &key.namespace, &it.pod_selector);
        let directions = Direction::BOTH.into_iter().filter(|d| it.rules(*d).is_some()).collect();
        let mut value =
            policy("NetworkPolicy", it.enforcement, it.version.generation, directions, pods);
        value["namespace"] = key.namespace.clone().into();
        value["name"] = key.name.clone().into();
        value["problems"] = cluster.problems_of(it).collect::<Vec<_>>().into();
        all.push(((key.namespace.clone(), key.name.clone()), value));
    }
    all
}

fn selected(world: &World, namespace: &str, selector: &Selector) -> usize {
    let pods = world.cluster.pods_in(namespace);
    pods.filter(|pod| is_subject(pod) && selector.matches(&pod.labels)).count()
}
