//! NetworkPolicies that API servers refuse, or store without unknown fields: such a policy is not in force as it is written.
//!
//! It may isolate its pods and grant nothing. Refused, it is not there; without the unknown fields it may grant everything.

use netpold_core::cluster::Cluster;
use netpold_core::explain::Explanation;
use netpold_core::model::{Change, Direction, Key, Pod, Policy, Rule};

use super::absent::is_absent;
use super::ends::pods_of_answer;

/// Start of the problems with netpold's own annotations, which API servers accept.
const ANNOTATIONS: &str = "metadata.annotations.";

/// Part of the problem of an unknown field.
const UNKNOWN_FIELD: &str = ": unknown field";

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

/// Returns the first problem of a policy because of which an API server does not take it as it is written. `is_partial`: the
/// objects are those of files; objects of API servers have a UID.
pub(crate) fn problem(policy: &Policy, is_partial: bool) -> Option<&str> {
    let is_written = is_partial || policy.version.uid.is_empty();
    let mut problems = policy.problems.iter().filter(|_| is_written).map(String::as_str);
    problems.find(|problem| !problem.starts_with(ANNOTATIONS))
}

/// Returns whether an API server may take a policy without its unknown fields.
fn may_be_pruned(policy: &Policy) -> bool {
    let mut problems = policy.problems.iter().filter(|it| !it.starts_with(ANNOTATIONS));
    problems.all(|problem| problem.contains(UNKNOWN_FIELD))
}

/// Replaces a policy by a reading of it.
fn read_as(policy: &Policy, reading: RefusedReading) -> Option<Policy> {
    let rules = match reading {
        RefusedReading::Closed => Vec::new(),
        RefusedReading::Open if may_be_pruned(policy) => vec![Rule { peers: None, ports: None }],
        RefusedReading::Open | RefusedReading::Absent => return None,
    };
    let of = |written: &Option<Vec<Rule>>| written.as_ref().map(|_| rules.clone());
    let (ingress, egress) = (of(&policy.ingress), of(&policy.egress));
    Some(Policy { ingress, egress, problems: Vec::new(), ..policy.clone() })
}

/// Replaces the refused policies of objects by a reading of them.
pub(crate) fn all_read_as(
    objects: Vec<Change>,
    is_partial: bool,
    reading: RefusedReading,
) -> Vec<Change> {
    let read = |object: Change| {
        if let Change::Policy(policy) = &object
            && problem(policy, is_partial).is_some()
        {
            return read_as(policy, reading).map(Change::Policy);
        }
        Some(object)
    };
    objects.into_iter().filter_map(read).collect()
}

/// Returns the keys of the refused policies.
pub(crate) fn refused_keys(objects: &[Change], is_partial: bool) -> Vec<Key> {
    let key = |object: &Change| {
        let Change::Policy(policy) = object else { return None };
        problem(policy, is_partial).map(|_| policy.key.clone())
    };
    objects.iter().filter_map(key).collect()
}

/// Returns the first refused policy that may select a pod of an answer.
pub(super) fn about<'c>(
    cluster: &'c Cluster,
    refused: &[Key],
    answer: &Explanation,
) -> Option<&'c Policy> {
    let [senders, receivers] = pods_of_answer(cluster, answer);
    let policies = refused.iter().filter_map(|key| cluster.policies().get(key));
    let ends = [(Direction::Egress, senders), (Direction::Ingress, receivers)];
    policies.map(|policy| &**policy).find(|policy| {
        ends.iter().any(|(direction, pods)| {
            policy.rules(*direction).is_some() && pods.iter().any(|pod| may_select(policy, pod))
        })
    })
}

/// Returns the first refused policy that may select a pod.
pub(super) fn selecting<'c>(
    cluster: &'c Cluster,
    refused: &[Key],
    pod: &Pod,
) -> Option<&'c Policy> {
    let mut policies = refused.iter().filter_map(|key| cluster.policies().get(key));
    policies.find(|policy| may_select(policy, pod)).map(|policy| &**policy)
}

/// Returns whether a policy may select a pod; labels that controllers set may have any value.
fn may_select(policy: &Policy, pod: &Pod) -> bool {
    let mut requirements = policy.pod_selector.requirements.iter();
    policy.key.namespace == pod.key.namespace
        && !pod.host_network
        && requirements.all(|it| {
            let is_unknown = is_absent(pod) && !pod.labels.contains_key(it.key());
            it.matches(&pod.labels) || pod.may_meet_later(it) || is_unknown
        })
}

/// Describes a policy on which an answer depends.
pub(super) fn depends(policy: &Policy, is_partial: bool) -> String {
    let key = &policy.key;
    let problem = problem(policy, is_partial).unwrap_or_default();
    format!(
        "the answer depends on NetworkPolicy {key}, which API servers refuse or change: {problem}"
    )
}
