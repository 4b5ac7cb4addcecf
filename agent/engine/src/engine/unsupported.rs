//! Policies that this node cannot honour in full, for Kubernetes Events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::compile::Compiler;
use netpold_core::model::{ClusterPolicy, Key, Pod, Policy};

use netpold_core::turns::in_turns;

/// Number of nodes that report a policy: more would repeat it, fewer might all be down.
const SPEAKERS: usize = 3;
/// Maximum number of policies examined: for each, the engine waits for a walk over the namespace's pods. Namespaces
/// have equal shares, at least one policy each.
const LOOKED_AT: usize = 100;

/// Returns policies with ineffective parts, with their uids and the reasons: a part was not understood, or the policy
/// exceeds its budget or the tables. A policy counts if it selects a pod of this node and the node is one of the first
/// [`SPEAKERS`] by name with a selected pod; a policy closed on this node alone always counts. The key of a
/// ClusterNetworkPolicy has no namespace.
#[must_use]
pub fn unsupported_policies(compiler: &Compiler) -> BTreeMap<Key, (String, Vec<String>)> {
    let cluster = compiler.cluster();
    let with_uid = |(key, reasons): (Key, Vec<String>)| {
        let version = match key.namespace.as_str() {
            "" => cluster.cluster_policy(&key.name).map(|policy| &policy.version),
            _ => cluster.policies().get(&key).map(|policy| &policy.version),
        };
        let uid = version?.uid.clone();
        Some((key, (uid, reasons)))
    };
    unsupported(compiler).into_iter().filter_map(with_uid).collect()
}

fn unsupported(compiler: &Compiler) -> BTreeMap<Key, Vec<String>> {
    let mut all = not_understood(compiler.cluster());
    all.extend(cluster_policies(compiler.cluster()));
    let namespace = |policies: &[Key]| policies.first().map(|it| it.namespace.clone());
    for (policies, direction, reason) in shares(compiler.closed(), |(it, ..)| namespace(it)) {
        for policy in policies {
            let reasons = all.entry(policy.clone()).or_default();
            reasons.push(format!("spec.{direction}: closed: {reason}"));
        }
    }
    all
}

/// Returns the number of policies that grant nothing because they, alone or together with others that isolate the same
/// pods, exceed a limit.
pub(super) fn closed(compiler: &Compiler) -> u64 {
    let cluster = compiler.cluster();
    let over = cluster.policies().keys().filter(|key| cluster.excess(key).is_some());
    let together = compiler.closed().flat_map(|(policies, ..)| policies);
    over.chain(together).collect::<BTreeSet<_>>().len() as u64
}

fn not_understood(cluster: &Cluster) -> BTreeMap<Key, Vec<String>> {
    let own = cluster.node_name();
    let policies = cluster.policies().values();
    let mut troubled = policies.filter(|p| cluster.problems_of(p).next().is_some()).peekable();
    if troubled.peek().is_none() {
        return BTreeMap::new();
    }
    let here: Vec<&Arc<Pod>> = cluster.pods().values().filter(|pod| pod.node == own).collect();
    let troubled = troubled.filter(|policy| here.iter().any(|pod| selects(policy, pod)));
    shares(troubled, |policy| Some(policy.key.namespace.clone()))
        .filter(|policy| {
            let pods = cluster.pods_in(&policy.key.namespace);
            let nodes: BTreeSet<&str> =
                pods.filter(|pod| selects(policy, pod)).map(|pod| pod.node.as_str()).collect();
            nodes.into_iter().filter(|node| !node.is_empty()).take(SPEAKERS).any(|n| n == own)
        })
        .map(|policy| {
            let problems = cluster.problems_of(policy).map(str::to_owned).collect();
            (policy.key.clone(), problems)
        })
        .collect()
}

/// Returns the ClusterNetworkPolicies with parts that were not understood and that this node reports.
fn cluster_policies(cluster: &Cluster) -> BTreeMap<Key, Vec<String>> {
    let own = cluster.node_name();
    let mut troubled =
        cluster.cluster_policies().filter(|policy| !policy.problems.is_empty()).peekable();
    if troubled.peek().is_none() {
        return BTreeMap::new();
    }
    let here: Vec<&Arc<Pod>> = cluster.pods().values().filter(|pod| pod.node == own).collect();
    troubled
        .filter(|policy| {
            let is_under = |pod: &&Arc<Pod>| is_under(cluster, policy, pod);
            // The cheap check first: on most nodes, other nodes precede this one.
            let before = cluster.pods().values().filter(|pod| *pod.node < *own).filter(is_under);
            here.iter().any(is_under) && !has_speakers(before.map(|pod| pod.node.as_str()))
        })
        .take(LOOKED_AT)
        .map(|policy| (Key::new("", &policy.name), policy.problems.clone()))
        .collect()
}

/// Limits policies to [`LOOKED_AT`]: the first of each namespace, then the others in turns while there is room.
fn shares<T>(
    all: impl Iterator<Item = T>,
    namespace: impl Fn(&T) -> Option<String>,
) -> impl Iterator<Item = T> {
    let all: Vec<T> = all.collect();
    let namespaces = all.iter().map(&namespace).collect::<BTreeSet<_>>().len();
    in_turns(all, namespace).into_iter().take(LOOKED_AT.max(namespaces))
}

/// Returns whether enough nodes report.
fn has_speakers<'n>(nodes: impl Iterator<Item = &'n str>) -> bool {
    let mut speakers = BTreeSet::new();
    nodes.filter(|node| !node.is_empty()).any(|node| {
        speakers.insert(node);
        speakers.len() >= SPEAKERS
    })
}

fn is_under(cluster: &Cluster, policy: &ClusterPolicy, pod: &Pod) -> bool {
    is_subject(pod)
        && policy.subject.pods.matches(&pod.labels)
        && policy.subject.namespaces.matches(&cluster.namespace_labels(&pod.key.namespace))
}

fn selects(policy: &Policy, pod: &Pod) -> bool {
    policy.key.namespace == pod.key.namespace
        && is_subject(pod)
        && policy.pod_selector.matches(&pod.labels)
}

#[cfg(test)]
mod tests {
    use netpold_core::model::{Change, Enforcement, NamespacedPods, PolicyVersion, Selector, Tier};
    use netpold_core::options::Options;
    use netpold_testkit::objects;

    use super::*;

    fn pod(namespace: &str, node: &str) -> Change {
        let pod = objects::pod(namespace, node, &[], &[]);
        Change::Pod(Pod { uid: node.to_owned(), node: node.into(), ..pod })
    }

    fn policy(namespace: &str, problems: &[&str]) -> Change {
        Change::Policy(Policy {
            key: Key::new(namespace, "p"),
            pod_selector: Selector::default(),
            ingress: Some(Vec::new()),
            egress: None,
            problems: problems.iter().map(|p| (*p).to_owned()).collect(),
            version: PolicyVersion::default(),
            enforcement: Enforcement::Enforce,
            denial: None,
        })
    }

    #[test]
    fn three_nodes_speak_up_about_a_policy_that_selects_pods_of_theirs() {
        let speaks = |node: &str| {
            let mut compiler = Compiler::new(Options { node: node.into(), ..Options::default() });
            let pods = ["", "n1", "n2", "n3", "n4"].map(|node| pod("x", node));
            let policies = [policy("x", &["bad"]), policy("good", &[]), policy("empty", &["bad"])];
            let pods = pods.into_iter().chain([pod("good", "n1")]);
            pods.chain(policies).for_each(|change| compiler.ingest(change));
            let policies: Vec<String> =
                not_understood(compiler.cluster()).into_keys().map(|key| key.to_string()).collect();
            policies
        };
        for node in ["n1", "n2", "n3"] {
            assert_eq!(speaks(node), ["x/p"], "{node}");
        }
        assert!(speaks("n4").is_empty(), "three have spoken");
        assert!(speaks("n5").is_empty(), "no pod there");
    }

    /// More policies of one tenant than are examined, before the other tenant's in the order of names.
    #[test]
    fn a_crowd_of_broken_policies_hides_nobody_elses() {
        let mut compiler = Compiler::new(Options { node: "n1".into(), ..Options::default() });
        let mut crowd = Vec::new();
        for number in 0..3 * LOOKED_AT {
            let Change::Policy(mut it) = policy("crowd", &["bad"]) else { unreachable!() };
            it.key.name = format!("p{number:03}");
            crowd.push(Change::Policy(it));
        }
        let pods = ["crowd", "shop"].map(|namespace| pod(namespace, "n1"));
        let all = pods.into_iter().chain(crowd).chain([policy("shop", &["bad"])]);
        all.for_each(|change| compiler.ingest(change));
        let named = not_understood(compiler.cluster());
        assert!(named.contains_key(&Key::new("shop", "p")), "{} are named", named.len());
        assert_eq!(named.len(), LOOKED_AT);
    }

    #[test]
    fn three_nodes_speak_up_about_a_cluster_network_policy() {
        let policy = |name: &str, namespace: &str, problems: &[&str]| {
            Change::ClusterPolicy(ClusterPolicy {
                name: name.into(),
                tier: Tier::Admin,
                priority: 1,
                subject: NamespacedPods {
                    namespaces: objects::select(&[("kubernetes.io/metadata.name", namespace)]),
                    pods: Selector::default(),
                },
                ingress: Vec::new(),
                egress: Vec::new(),
                problems: problems.iter().map(|p| (*p).to_owned()).collect(),
                version: PolicyVersion::default(),
                enforcement: Enforcement::Enforce,
                denial: None,
            })
        };
        let speaks = |node: &str| {
            let mut compiler = Compiler::new(Options { node: node.into(), ..Options::default() });
            let pods = ["", "n1", "n2", "n3", "n4"].map(|node| pod("x", node));
            let others = ["n5", "n6"].map(|node| pod("y", node));
            let policies = [
                policy("bad", "x", &["bad"]),
                policy("good", "x", &[]),
                policy("no", "z", &["bad"]),
            ];
            pods.into_iter().chain(others).chain(policies).for_each(|it| compiler.ingest(it));
            unsupported(&compiler)
        };
        let said = BTreeMap::from([(Key::new("", "bad"), vec!["bad".to_owned()])]);
        for node in ["n1", "n2", "n3"] {
            assert_eq!(speaks(node), said, "{node}");
        }
        assert!(speaks("n4").is_empty(), "three have spoken");
        assert!(speaks("n5").is_empty(), "no pod there");
    }
}
