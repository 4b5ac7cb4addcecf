//! Policies that API servers refuse, or store without unknown fields: such a policy is not in force as it is written.
//!
//! A NetworkPolicy may isolate its pods and grant nothing, a ClusterNetworkPolicy deny its pods everything. Refused, a
//! policy is not there; without the unknown fields it may grant everything.

use std::fmt;

use netpold_core::cluster::Cluster;
use netpold_core::explain::Explanation;
use netpold_core::labels::NAMESPACE_NAME;
use netpold_core::model::{
    Action, Change, ClusterPolicy, ClusterRule, Direction, Key, Pod, Policy, PolicyVersion,
    Requirement, Rule,
};

use super::absent::is_absent;
use super::ends::pods_of_answer;

/// Start of the problems with netpold's own annotations, which API servers accept.
const ANNOTATIONS: &str = "metadata.annotations.";

/// Part of the problem of an unknown field.
const UNKNOWN_FIELD: &str = ": unknown field";

/// Rule for all traffic.
const EVERYTHING: Rule = Rule { peers: None, ports: None };

/// Reading of a refused policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusedReading {
    /// It isolates its pods and grants nothing.
    Closed,
    /// It is not there, or grants everything if an API server takes it without its unknown fields.
    Open,
    /// It is not there.
    Absent,
}

/// Identity of a refused policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RefusedPolicy {
    /// NetworkPolicy.
    Namespaced(Key),
    /// ClusterNetworkPolicy, by name.
    Cluster(String),
}

impl fmt::Display for RefusedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespaced(key) => write!(f, "NetworkPolicy {key}"),
            Self::Cluster(name) => write!(f, "ClusterNetworkPolicy {name}"),
        }
    }
}

impl RefusedPolicy {
    /// Returns the identity of a policy; `None` for another object.
    pub(crate) fn of_policy(object: &Change) -> Option<Self> {
        if let Change::Policy(policy) = object {
            return Some(Self::Namespaced(policy.key.clone()));
        }
        let Change::ClusterPolicy(policy) = object else { return None };
        Some(Self::Cluster(policy.name.clone()))
    }

    /// Returns whether the policy may concern pods of a namespace.
    pub(super) fn may_concern(&self, namespace: &str) -> bool {
        match self {
            Self::Namespaced(key) => key.namespace == namespace,
            Self::Cluster(_) => true,
        }
    }

    /// Returns whether the policy may decide about traffic of a pod in a direction.
    fn may_decide(&self, cluster: &Cluster, direction: Direction, pod: &Pod) -> bool {
        match self {
            Self::Namespaced(key) => cluster
                .policies()
                .get(key)
                .is_some_and(|policy| policy.rules(direction).is_some() && may_select(policy, pod)),
            Self::Cluster(name) => cluster.cluster_policy(name).is_some_and(|policy| {
                !policy.rules(direction).is_empty() && may_be_subject(cluster, policy, pod)
            }),
        }
    }

    fn problems<'c>(&self, cluster: &'c Cluster) -> &'c [String] {
        let problems = match self {
            Self::Namespaced(key) => cluster.policies().get(key).map(|it| &it.problems),
            Self::Cluster(name) => cluster.cluster_policy(name).map(|it| &it.problems),
        };
        problems.map_or(&[], Vec::as_slice)
    }
}

/// Returns the first problem of a policy because of which an API server does not take it as it is written. `is_partial`: the
/// objects are those of files; objects of API servers have a UID.
pub(crate) fn problem(object: &Change, is_partial: bool) -> Option<&str> {
    let (problems, version) = problems_of(object)?;
    let is_written = is_partial || version.uid.is_empty();
    problems_of_fields(problems).find(|_| is_written)
}

/// Returns the problems of a policy, and its version; `None` for another object.
fn problems_of(object: &Change) -> Option<(&[String], &PolicyVersion)> {
    if let Change::Policy(policy) = object {
        return Some((&policy.problems, &policy.version));
    }
    let Change::ClusterPolicy(policy) = object else { return None };
    Some((&policy.problems, &policy.version))
}

/// Returns the problems with fields that API servers check.
fn problems_of_fields(problems: &[String]) -> impl Iterator<Item = &str> {
    let problems = problems.iter().map(String::as_str);
    problems.filter(|problem| !problem.starts_with(ANNOTATIONS))
}

/// Returns whether an API server may take a policy without its unknown fields.
fn may_be_pruned(problems: &[String]) -> bool {
    problems_of_fields(problems).all(|problem| problem.contains(UNKNOWN_FIELD))
}

/// Replaces a policy by a reading of it.
fn read_as(object: Change, reading: RefusedReading) -> Option<Change> {
    let Some((problems, _)) = problems_of(&object) else { return Some(object) };
    let is_open = match reading {
        RefusedReading::Closed => false,
        RefusedReading::Open if may_be_pruned(problems) => true,
        RefusedReading::Open | RefusedReading::Absent => return None,
    };
    let rules = if is_open { vec![EVERYTHING] } else { Vec::new() };
    let action = if is_open { Action::Accept } else { Action::Deny };
    let of = |written: &Option<Vec<Rule>>| written.as_ref().map(|_| rules.clone());
    let of_cluster = |written: &[ClusterRule]| {
        let first = written.iter().take(1);
        let rule = |_| ClusterRule { name: String::new(), action, matches: EVERYTHING };
        first.map(rule).collect()
    };
    if let Change::Policy(policy) = object {
        let (ingress, egress) = (of(&policy.ingress), of(&policy.egress));
        return Some(Change::Policy(Policy { ingress, egress, problems: Vec::new(), ..policy }));
    }
    let Change::ClusterPolicy(policy) = object else { return Some(object) };
    let (ingress, egress) = (of_cluster(&policy.ingress), of_cluster(&policy.egress));
    let policy = ClusterPolicy { ingress, egress, problems: Vec::new(), ..policy };
    Some(Change::ClusterPolicy(policy))
}

/// Replaces the refused policies of objects by a reading of them.
pub(crate) fn all_read_as(
    objects: Vec<Change>,
    is_partial: bool,
    reading: RefusedReading,
) -> Vec<Change> {
    let read = |object: Change| match problem(&object, is_partial) {
        Some(_) => read_as(object, reading),
        None => Some(object),
    };
    objects.into_iter().filter_map(read).collect()
}

/// Returns the refused policies.
pub(crate) fn all_refused(objects: &[Change], is_partial: bool) -> Vec<RefusedPolicy> {
    let refused = objects.iter().filter(|object| problem(object, is_partial).is_some());
    refused.filter_map(RefusedPolicy::of_policy).collect()
}

/// Returns the first refused policy that may select a pod of an answer.
pub(super) fn about<'c>(
    cluster: &Cluster,
    refused: &'c [RefusedPolicy],
    answer: &Explanation,
) -> Option<&'c RefusedPolicy> {
    let [senders, receivers] = pods_of_answer(cluster, answer);
    let ends = [(Direction::Egress, senders), (Direction::Ingress, receivers)];
    refused.iter().find(|policy| {
        let mut ends = ends.iter();
        ends.any(|(direction, pods)| {
            pods.iter().any(|pod| policy.may_decide(cluster, *direction, pod))
        })
    })
}

/// Returns the first refused policy that may select a pod.
pub(super) fn selecting<'c>(
    cluster: &Cluster,
    refused: &'c [RefusedPolicy],
    pod: &Pod,
) -> Option<&'c RefusedPolicy> {
    refused.iter().find(|policy| match policy {
        RefusedPolicy::Namespaced(key) => {
            cluster.policies().get(key).is_some_and(|policy| may_select(policy, pod))
        }
        RefusedPolicy::Cluster(_) => {
            Direction::BOTH.iter().any(|direction| policy.may_decide(cluster, *direction, pod))
        }
    })
}

/// Returns whether a policy may select a pod; labels that controllers set may have any value.
fn may_select(policy: &Policy, pod: &Pod) -> bool {
    let mut requirements = policy.pod_selector.requirements.iter();
    policy.key.namespace == pod.key.namespace
        && !pod.host_network
        && requirements.all(|it| may_match(pod, it))
}

/// Returns whether a pod may be a subject of a policy; a Namespace that is not among the objects may have any labels.
fn may_be_subject(cluster: &Cluster, policy: &ClusterPolicy, pod: &Pod) -> bool {
    let namespace = &pod.key.namespace;
    let is_absent = !cluster.namespaces().contains_key(namespace);
    let labels = cluster.namespace_labels(namespace);
    let mut namespaces = policy.subject.namespaces.requirements.iter();
    let mut pods = policy.subject.pods.requirements.iter();
    !pod.host_network
        && namespaces.all(|it| it.matches(&labels) || is_absent && it.key() != NAMESPACE_NAME)
        && pods.all(|it| may_match(pod, it))
}

/// Returns whether the labels of a pod may meet a requirement.
fn may_match(pod: &Pod, requirement: &Requirement) -> bool {
    let is_unknown = is_absent(pod) && !pod.labels.contains_key(requirement.key());
    requirement.matches(&pod.labels) || pod.may_meet_later(requirement) || is_unknown
}

/// Describes a policy on which an answer depends.
pub(super) fn reason_unknown(cluster: &Cluster, policy: &RefusedPolicy) -> String {
    let problem = problems_of_fields(policy.problems(cluster)).next().unwrap_or_default();
    format!("the answer depends on {policy}, which API servers refuse or change: {problem}")
}
