//! Addresses that may be those of a pod's own node, which the pod always reaches, and which always reaches the pod.

use std::net::{IpAddr, Ipv4Addr};

use netpold_core::cluster::{AddressOwner, Cluster, PRIVATE_RANGES};
use netpold_core::explain::{Cause, Explanation, Judgement, Verdict};
use netpold_core::model::{Direction, Pod};

/// The metadata service of clouds, at a link-local address that is not the node's.
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// Returns the reason for which a denied probe may be allowed: each judgement that denies it is about an address that
/// may be the own node's.
pub(super) fn reason_unknown(cluster: &Cluster, answer: &Explanation) -> Option<String> {
    if answer.verdict != Verdict::Deny || !answer.services.is_empty() {
        return None;
    }
    let judgements = [&answer.egress, &answer.ingress].into_iter().flatten();
    let mut denying = judgements.filter(|judgement| judgement.verdict == Verdict::Deny);
    let first = reason(cluster, denying.next()?)?;
    denying.all(|judgement| reason(cluster, judgement).is_some()).then_some(first)
}

fn reason(cluster: &Cluster, judgement: &Judgement) -> Option<String> {
    // Tiers are evaluated for packets to the own node, and none for packets from there.
    let is_exempt = judgement.direction == Direction::Ingress || judgement.cause == Cause::NoRule;
    let remote = judgement.remote;
    let pod = cluster.pods().get(&judgement.pod).filter(|_| is_exempt)?;
    let always = "a pod and its own node always reach each other";
    let whose = cluster.owner_of_address(remote);
    if let AddressOwner::Node { name } = &whose
        && pod.node.is_empty()
    {
        return Some(format!("{} may run on node {name}, and {always}", pod.title()));
    }
    if judgement.remote_pod.is_some() || whose != AddressOwner::Outside {
        return None;
    }
    if is_link_local(remote) {
        return Some(format!(
            "{remote} is a link-local address, maybe of the node of pod {}: {always}",
            pod.key
        ));
    }
    is_of_unknown_node(cluster, pod, remote).then(|| {
        format!(
            "Node {} is not among the objects: {remote} may be its address, and {always}",
            pod.node
        )
    })
}

/// Returns whether no object gives the addresses of the node that a pod is on.
pub(crate) fn lacks_own_node(cluster: &Cluster, pod: &Pod) -> bool {
    !pod.node.is_empty() && !cluster.has_addresses_of_node(&pod.node)
}

/// Returns whether an address is link-local, as those of node-local services are; the metadata service of clouds is not.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local() && address != METADATA,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn is_of_unknown_node(cluster: &Cluster, pod: &Pod, address: IpAddr) -> bool {
    lacks_own_node(cluster, pod)
        && !cluster.is_pod_address(address)
        && PRIVATE_RANGES.iter().any(|range| range.contains(&address))
}
