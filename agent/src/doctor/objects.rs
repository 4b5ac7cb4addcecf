//! What may be wrong with a cluster's objects though the API server took them.

use std::collections::BTreeMap;

use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::model::{
    ClusterPolicy, Direction, Key, Labels, Pod, Policy, Rule, Selector, Tier,
};

use super::containers::Containers;
use super::enforcers;
use super::finding::{Check, Findings, Report, Severity};
use super::{dns, ports, selectors, services};

const NOT_UNDERSTOOD: Check = Check {
    name: "not-understood",
    severity: Severity::Error,
    problem: "a part of a policy is not understood: what it should allow is denied",
    fix: "correct the field; `kubectl explain networkpolicy.spec` has its form",
};
const OVER_BUDGET: Check = Check {
    name: "over-budget",
    severity: Severity::Error,
    problem: "a policy is too large and allows nothing",
    fix: "split it, or use labels and wider blocks instead of lists (deploy/limits.md)",
};
const EQUAL_PRIORITY: Check = Check {
    name: "equal-priority",
    severity: Severity::Warning,
    problem: "ClusterNetworkPolicies of one tier have the same priority: they are asked in the order \
              of their names",
    fix: "give each a priority of its own: spec.priority, 0 (first) to 1000",
};
const NO_AGENT: Check = Check {
    name: "no-agent",
    severity: Severity::Error,
    problem: "a node has no agent: no policy is enforced for its pods",
    fix: "see why the DaemonSet has no pod there: `kubectl -n netpold-system describe ds netpold`; its \
          tolerations and the node's taints",
};
const NO_PODS: &str = "there is no Pod among the objects: policies, rules and ports cannot be held \
                       against pods";

/// Label of the agents' pods, and its value.
const AGENT: (&str, &str) = ("app.kubernetes.io/name", "netpold");

/// Pods that policies cannot tell apart, but for their ports.
pub(super) struct Group<'c> {
    pub(super) namespace: &'c str,
    pub(super) labels: &'c Labels,
    pub(super) namespace_labels: std::borrow::Cow<'c, Labels>,
    pub(super) pods: Vec<&'c Pod>,
}

/// A cluster, with its pods in groups.
pub(super) struct Objects<'c> {
    pub(super) cluster: &'c Cluster,
    pub(super) containers: &'c Containers,
    pub(super) groups: Vec<Group<'c>>,
}

/// A rule of a policy, and where it stands.
pub(super) struct Place<'p> {
    /// `NetworkPolicy shop/web`
    pub(super) policy: &'p str,
    /// The policy's namespace; none of a ClusterNetworkPolicy.
    pub(super) namespace: Option<&'p str>,
    pub(super) direction: Direction,
    pub(super) number: usize,
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: spec.{}[{}]", self.policy, self.direction, self.number)
    }
}

/// Looks at a cluster's objects.
#[must_use]
pub fn examine(cluster: &Cluster, containers: &Containers) -> Report {
    let mut found = Findings::default();
    let objects = Objects { cluster, containers, groups: groups(cluster) };
    for policy in cluster.policies().values() {
        objects.policy(policy, &mut found);
    }
    for policy in cluster.cluster_policies() {
        objects.cluster_policy(policy, &mut found);
    }
    equal_priorities(cluster, &mut found);
    if objects.groups.is_empty() {
        found.unknown(NO_PODS);
    } else {
        dns::examine(&objects, &mut found);
        services::examine(&objects, &mut found);
    }
    agents(cluster, &mut found);
    for (key, images) in &containers.daemon_sets {
        enforcers::daemon_set(key, images, &mut found);
    }
    found.report()
}

/// Namespace and labels.
type GroupKey<'c> = (&'c str, Vec<(&'c String, &'c String)>);

fn groups(cluster: &Cluster) -> Vec<Group<'_>> {
    let mut groups: BTreeMap<GroupKey<'_>, Group<'_>> = BTreeMap::new();
    for pod in cluster.pods().values().filter(|pod| is_subject(pod)) {
        let namespace = pod.key.namespace.as_str();
        let group = groups.entry((namespace, pod.labels.iter().collect()));
        let group = group.or_insert_with(|| Group {
            namespace,
            labels: &pod.labels,
            namespace_labels: cluster.namespace_labels(namespace),
            pods: Vec::new(),
        });
        group.pods.push(pod);
    }
    groups.into_values().collect()
}

impl Group<'_> {
    /// Whether a peer or a subject is these pods; `own` is the policy's namespace, `namespaces` its
    /// selector of others.
    pub(super) fn is_in(
        &self,
        own: Option<&str>,
        namespaces: Option<&Selector>,
        pods: &Selector,
    ) -> bool {
        let namespace = match namespaces {
            Some(selector) => selector.matches(&self.namespace_labels),
            None => own == Some(self.namespace),
        };
        namespace && pods.matches(self.labels)
    }
}

impl Objects<'_> {
    /// The groups that a selector is.
    pub(super) fn select(
        &self,
        own: Option<&str>,
        namespaces: Option<&Selector>,
        pods: &Selector,
    ) -> Vec<&Group<'_>> {
        self.groups.iter().filter(|group| group.is_in(own, namespaces, pods)).collect()
    }

    fn policy(&self, policy: &Policy, found: &mut Findings) {
        let name = format!("NetworkPolicy {}", policy.key);
        understood(&name, &policy.problems, found);
        if let Some(excess) = self.cluster.excess(&policy.key) {
            found.add(&OVER_BUDGET, format!("{name}: {excess}"));
        }
        if self.groups.is_empty() {
            return;
        }
        let namespace = policy.key.namespace.as_str();
        let subject = self.select(Some(namespace), None, &policy.pod_selector);
        if subject.is_empty() {
            let is_empty = !self.groups.iter().any(|group| group.namespace == namespace);
            selectors::nothing_selected(&name, (!is_empty).then_some(&policy.pod_selector), found);
        }
        for direction in Direction::BOTH {
            let rules = policy.rules(direction).unwrap_or_default();
            for (number, rule) in rules.iter().enumerate() {
                let namespace = Some(namespace);
                let place = Place { policy: &name, namespace, direction, number };
                self.rule(&place, rule, &subject, found);
            }
        }
    }

    fn cluster_policy(&self, policy: &ClusterPolicy, found: &mut Findings) {
        let name = format!("ClusterNetworkPolicy {}", policy.name);
        understood(&name, &policy.problems, found);
        if self.groups.is_empty() {
            return;
        }
        let selector = &policy.subject;
        let subject = self.select(None, Some(&selector.namespaces), &selector.pods);
        if subject.is_empty() {
            selectors::nothing_selected(&name, Some(&selector.pods), found);
        }
        for direction in Direction::BOTH {
            for (number, rule) in policy.rules(direction).iter().enumerate() {
                let place = Place { policy: &name, namespace: None, direction, number };
                self.rule(&place, &rule.matches, &subject, found);
            }
        }
    }

    fn rule(&self, place: &Place<'_>, rule: &Rule, subject: &[&Group<'_>], found: &mut Findings) {
        selectors::peers(self, place, rule, found);
        ports::examine(self, place, rule, subject, found);
    }
}

fn understood(policy: &str, problems: &[String], found: &mut Findings) {
    for problem in problems {
        found.add(&NOT_UNDERSTOOD, format!("{policy}: {problem}"));
    }
}

fn equal_priorities(cluster: &Cluster, found: &mut Findings) {
    let mut equal: BTreeMap<(Tier, u16), Vec<&str>> = BTreeMap::new();
    for policy in cluster.cluster_policies() {
        equal.entry((policy.tier, policy.priority)).or_default().push(&policy.name);
    }
    for ((tier, priority), mut names) in equal.into_iter().filter(|(_, names)| names.len() > 1) {
        names.sort_unstable();
        found.add(&EQUAL_PRIORITY, format!("{tier} {priority}: {}", names.join(", ")));
    }
}

/// Nodes without an agent, if any has one: manifests need not hold the agents' pods.
fn agents(cluster: &Cluster, found: &mut Findings) {
    let (label, value) = AGENT;
    let is_agent = |pod: &&Pod| {
        !pod.finished && !pod.node.is_empty() && pod.labels.get(label).is_some_and(|it| it == value)
    };
    let pods = cluster.pods().values().map(|pod| &**pod).filter(is_agent);
    let agents: std::collections::BTreeSet<&str> = pods.map(|pod| pod.node.as_str()).collect();
    if agents.is_empty() {
        return;
    }
    for node in cluster.nodes().keys().filter(|node| !agents.contains(node.as_str())) {
        found.add(&NO_AGENT, format!("Node {node}"));
    }
}

/// Pods by namespace and labels, for people.
pub(super) fn pods_text(group: &Group<'_>) -> String {
    let first = group.pods.first().map(|pod| &pod.key);
    match (first, group.pods.len()) {
        (Some(Key { namespace, name }), 1) => format!("Pod {namespace}/{name}"),
        (Some(Key { namespace, name }), count) => {
            format!("Pod {namespace}/{name} and {} like it", count - 1)
        }
        (None, _) => String::new(),
    }
}
