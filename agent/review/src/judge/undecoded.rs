//! Objects that cannot be decoded, on which an answer may depend: corrected, they may have any labels, ports and
//! addresses.
//!
//! Not among them are policies, which are replaced by ones that grant nothing, and Namespaces, which hypotheses about
//! their labels replace.

use std::collections::BTreeSet;

use netpold_core::cluster::{AddressOwner, Cluster, ObjectKey};
use netpold_core::model::{Direction, Key, Peer, Pod, PortMatch, Rule, Selector};
use netpold_core::probe::{Party, Probe};
use netpold_kube::manifests::Undecoded;

/// Returns the reason for which the answer to a probe may depend on one of these objects.
pub(super) fn reason_unknown(
    cluster: &Cluster,
    all: &[Undecoded],
    probe: &Probe,
) -> Option<String> {
    let sides = [&probe.from, &probe.to];
    let found = all.iter().find(|it| {
        sides.into_iter().any(|side| match side {
            Party::Pod(key) => is_pod(cluster, it, key) && are_distinguished(cluster, sides),
            Party::Service(key) => is_behind(cluster, it, key),
            Party::Address(address) => match cluster.owner_of_address(*address) {
                AddressOwner::Service(key) => is_behind(cluster, it, &key),
                AddressOwner::Outside => may_have_address(it),
                AddressOwner::Pod(_) | AddressOwner::Node { .. } => false,
            },
        })
    })?;
    let problem = &found.problem;
    Some(format!("the answer may depend on an object that cannot be decoded: {problem}"))
}

/// Returns whether an object is a pod of a probe.
fn is_pod(cluster: &Cluster, undecoded: &Undecoded, named: &Key) -> bool {
    let Some(ObjectKey::Pod(key)) = &undecoded.key else { return false };
    match undecoded.is_template {
        true => cluster.pods().get(named).is_some_and(|pod| is_stand_in(pod, key)),
        false => key == named,
    }
}

/// Returns whether a pod is the stand-in of a template, which is `deployment.web` in manifests.
fn is_stand_in(pod: &Pod, written: &Key) -> bool {
    pod.template().is_some_and(|workload| {
        let name = format!("{}.{}", workload.kind.to_lowercase(), workload.name);
        written.name == name && written.namespace == pod.key.namespace
    })
}

/// Returns whether an object may be a Service, or one of its backends.
fn is_behind(cluster: &Cluster, undecoded: &Undecoded, service: &Key) -> bool {
    // An object without a name may be of any kind.
    let Some(key) = &undecoded.key else { return true };
    if let ObjectKey::Pod(key) | ObjectKey::EndpointSlice(key) = key {
        let mut pods = cluster.pods_in(&key.namespace);
        return key.namespace == service.namespace
            && (!undecoded.is_template || pods.any(|pod| is_stand_in(pod, key)));
    }
    matches!(key, ObjectKey::Service(key) if key == service)
}

/// Returns whether an object may have an address that no other object has.
fn may_have_address(undecoded: &Undecoded) -> bool {
    let Undecoded { key, is_template, .. } = undecoded;
    let is_of_kind = |key: &ObjectKey| {
        matches!(key, ObjectKey::Pod(_) | ObjectKey::Service(_) | ObjectKey::Node(_))
    };
    !is_template && key.as_ref().is_none_or(is_of_kind)
}

/// Returns whether policies in the namespaces of a probe's sides, or of the cluster, distinguish pods by labels or by named
/// ports. An absent pod always counts as distinguished.
fn are_distinguished(cluster: &Cluster, sides: [&Party; 2]) -> bool {
    let is_absent =
        |side: &Party| matches!(side, Party::Pod(key) if cluster.pods().get(key).is_none());
    if sides.into_iter().any(is_absent) {
        return true;
    }
    let namespaces: BTreeSet<String> = sides
        .into_iter()
        .filter_map(|side| match side {
            Party::Pod(key) | Party::Service(key) => Some(key.namespace.clone()),
            Party::Address(address) => match cluster.owner_of_address(*address) {
                AddressOwner::Pod(key) | AddressOwner::Service(key) => Some(key.namespace),
                AddressOwner::Node { .. } | AddressOwner::Outside => None,
            },
        })
        .collect();
    let names = |selector: &Selector| !selector.requirements.is_empty();
    let mut rules: Vec<&Rule> = Vec::new();
    for policy in namespaces.iter().flat_map(|namespace| cluster.policies_in(namespace)) {
        if names(&policy.pod_selector) {
            return true;
        }
        rules.extend(Direction::BOTH.into_iter().filter_map(|it| policy.rules(it)).flatten());
    }
    for policy in cluster.cluster_policies() {
        if names(&policy.subject.pods) {
            return true;
        }
        let all = Direction::BOTH.into_iter().flat_map(|it| policy.rules(it));
        rules.extend(all.map(|rule| &rule.matches));
    }
    rules.into_iter().any(|rule| {
        let mut ports = rule.ports.iter().flatten();
        let mut peers = rule.peers.iter().flatten();
        ports.any(|port| matches!(port.port, PortMatch::Named(_)))
            || peers.any(|peer| matches!(peer, Peer::Pods { pods, .. } if names(pods)))
    })
}
