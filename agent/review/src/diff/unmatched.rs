//! Parts of changed policies that concern pods which are not among the objects.

use std::collections::BTreeSet;

use netpold_core::cluster::Cluster;
use netpold_core::explain::peer_text;
use netpold_core::labels::NAMESPACE_NAME;
use netpold_core::model::{
    Action, ClusterPolicy, Direction, Enforcement, Peer, Pod, Policy, PortRule, Rule, Selector,
};

use super::party::list_names;

/// Most parts named.
const NAMED: usize = 20;

/// Parts of changed policies without a pod on either side of the change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UnmatchedParts {
    /// A text for each part.
    pub(super) parts: Vec<String>,
    /// Whether no pod has an address: the objects are those of a chart, and such pods may exist elsewhere.
    pub(super) is_partial: bool,
}

impl UnmatchedParts {
    /// Returns a note on these parts; `None` without any.
    pub(super) fn note(&self) -> Option<String> {
        let parts = list_names(&self.parts);
        (!parts.is_empty()).then(|| format!("without effect on the pods that exist: {parts}"))
    }
}

/// Peer of a rule: the number of the rule where the order of rules matters, its action and direction, the peer, and the
/// ports.
type Grant<'c> = (Option<usize>, Action, Direction, &'c Peer, Option<&'c [PortRule]>);

/// Finds the changed policies that select no pod, and the changed peers that no pod matches.
pub(super) fn unmatched(clusters: [&Cluster; 2]) -> UnmatchedParts {
    let is_running = |pod: &Pod| pod.template().is_none() && !pod.addresses.is_empty();
    let mut pods = clusters.iter().flat_map(|cluster| cluster.pods().values());
    let is_partial = !pods.any(|pod| is_running(pod));
    let mut parts = Vec::new();
    let keys: BTreeSet<_> = clusters.iter().flat_map(|it| it.policies().keys()).collect();
    for key in keys {
        let sides = clusters.map(|cluster| cluster.policies().get(key).map(|policy| &**policy));
        let [before, after] = sides.map(enforced);
        // Policies of namespaces that do not exist are noted as such.
        if are_same(before, after, is_same) || !is_partial && !exists(clusters, &key.namespace) {
            continue;
        }
        let name = format!("NetworkPolicy {key}");
        let subject = |policy: &Policy, pod: &Pod, _: &Cluster| {
            pod.key.namespace == key.namespace && may_select(&policy.pod_selector, pod)
        };
        let namespace = Some(key.namespace.as_str());
        changed(clusters, (&name, namespace), [before, after], subject, grants, &mut parts);
    }
    let names = clusters.iter().flat_map(|it| it.cluster_policies()).map(|policy| &policy.name);
    for name in names.collect::<BTreeSet<_>>() {
        let sides = clusters.map(|cluster| cluster.cluster_policy(name).map(|policy| &**policy));
        let [before, after] =
            sides.map(|policy| policy.filter(|it| it.enforcement == Enforcement::Enforce));
        if are_same(before, after, is_same_in_tier) {
            continue;
        }
        let name = format!("ClusterNetworkPolicy {name}");
        let subject = |policy: &ClusterPolicy, pod: &Pod, cluster: &Cluster| {
            may_be_in(cluster, &policy.subject.namespaces, &pod.key.namespace)
                && may_select(&policy.subject.pods, pod)
        };
        changed(clusters, (&name, None), [before, after], subject, cluster_grants, &mut parts);
    }
    let more = parts.len().saturating_sub(NAMED);
    parts.truncate(NAMED);
    parts.extend((more > 0).then(|| format!("{more} more parts of policies without pods")));
    UnmatchedParts { parts, is_partial }
}

/// Returns whether a namespace has an object or a pod on some side.
fn exists(clusters: [&Cluster; 2], namespace: &str) -> bool {
    clusters.into_iter().any(|cluster| {
        cluster.namespaces().contains_key(namespace) || cluster.pods_in(namespace).next().is_some()
    })
}

fn enforced(policy: Option<&Policy>) -> Option<&Policy> {
    policy.filter(|policy| policy.enforcement == Enforcement::Enforce)
}

/// Returns whether a policy of both sides, or of none, has the same content.
fn are_same<P>(before: Option<&P>, after: Option<&P>, is_same: fn(&P, &P) -> bool) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => is_same(before, after),
        (before, after) => before.is_none() && after.is_none(),
    }
}

fn is_same(one: &Policy, other: &Policy) -> bool {
    one.pod_selector == other.pod_selector
        && Direction::BOTH.iter().all(|it| one.rules(*it) == other.rules(*it))
}

fn is_same_in_tier(one: &ClusterPolicy, other: &ClusterPolicy) -> bool {
    (one.tier, one.priority, &one.subject) == (other.tier, other.priority, &other.subject)
        && Direction::BOTH.iter().all(|it| one.rules(*it) == other.rules(*it))
}

/// Adds the parts of one changed policy; `namespace` is that of a NetworkPolicy.
fn changed<'c, P>(
    clusters: [&'c Cluster; 2],
    (name, namespace): (&str, Option<&str>),
    sides: [Option<&'c P>; 2],
    is_subject: impl Fn(&P, &Pod, &Cluster) -> bool,
    grants: impl Fn(&'c P) -> BTreeSet<Grant<'c>>,
    parts: &mut Vec<String>,
) {
    let both = || clusters.into_iter().zip(sides);
    let selects = |(cluster, policy): (&Cluster, Option<&P>)| {
        let mut pods = cluster.pods().values();
        policy.is_some_and(|policy| pods.any(|pod| is_subject(policy, pod, cluster)))
    };
    if !both().any(selects) {
        parts.push(format!("{name}: it selects no pod"));
        return;
    }
    let [before, after] = sides.map(|policy| policy.map(&grants).unwrap_or_default());
    let mut named = BTreeSet::new();
    for (_, _, direction, peer, _) in before.symmetric_difference(&after) {
        if clusters.iter().any(|cluster| may_match(cluster, namespace, peer)) {
            continue;
        }
        let side = match direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        let peer = peer_text(namespace.unwrap_or_default(), peer);
        if named.insert((*direction, peer.clone())) {
            parts.push(format!("{name}: {direction} {side} {peer}: no pod matches"));
        }
    }
}

fn grants(policy: &Policy) -> BTreeSet<Grant<'_>> {
    let rules = Direction::BOTH.into_iter().flat_map(|direction| {
        let rules = policy.rules(direction).unwrap_or_default();
        rules.iter().map(move |rule| (direction, rule))
    });
    rules.flat_map(|(direction, rule)| of_rule((None, Action::Accept, direction), rule)).collect()
}

fn cluster_grants(policy: &ClusterPolicy) -> BTreeSet<Grant<'_>> {
    let rules = Direction::BOTH.into_iter().flat_map(|direction| {
        let rules = policy.rules(direction).iter().enumerate();
        rules.map(move |(number, rule)| ((Some(number), rule.action, direction), &rule.matches))
    });
    rules.flat_map(|(place, rule)| of_rule(place, rule)).collect()
}

fn of_rule(
    (number, action, direction): (Option<usize>, Action, Direction),
    rule: &Rule,
) -> impl Iterator<Item = Grant<'_>> {
    let peers = rule.peers.iter().flatten();
    peers.map(move |peer| (number, action, direction, peer, rule.ports.as_deref()))
}

/// Returns whether a peer may match a pod among the objects. Pods on the host's network, which no selector matches, count:
/// no other pod is missing. Peers that are not pods always match.
fn may_match(cluster: &Cluster, own: Option<&str>, peer: &Peer) -> bool {
    let Peer::Pods { namespaces, pods } = peer else { return true };
    cluster.pods().values().any(|pod| {
        let namespace = pod.key.namespace.as_str();
        let is_there = match namespaces {
            Some(selector) => may_be_in(cluster, selector, namespace),
            None => own == Some(namespace),
        };
        is_there && may_select(pods, pod)
    })
}

/// Returns whether a selector may match a namespace. Its other labels are unknown without a Namespace object.
fn may_be_in(cluster: &Cluster, selector: &Selector, namespace: &str) -> bool {
    let labels = cluster.namespace_labels(namespace);
    let is_known = cluster.namespaces().contains_key(namespace);
    selector.requirements.iter().all(|requirement| {
        requirement.matches(&labels) || !is_known && requirement.key() != NAMESPACE_NAME
    })
}

/// Returns whether a selector may match a pod, or the pods of a template with the labels that controllers set.
fn may_select(selector: &Selector, pod: &Pod) -> bool {
    selector
        .requirements
        .iter()
        .all(|requirement| requirement.matches(&pod.labels) || pod.is_set_later(requirement.key()))
}
