//! Addresses of nodes at a `hostPort`: a CNI plugin may translate such packets to the container's port.

use netpold_client::details::Details;
use netpold_core::cluster::{AddressOwner, Cluster};
use netpold_core::explain::{Explainer, Explanation, Verdict};
use netpold_core::probe::{Party, Probe};

/// Returns the reason for which the verdict on traffic to a node's address depends on the translation of a `hostPort`.
pub(super) fn reason_unknown(
    cluster: &Cluster,
    explainer: Explainer<'_>,
    details: &Details,
    answer: &Explanation,
) -> Option<String> {
    let Probe { to: Party::Address(address), port, protocol, .. } = answer.probe else {
        return None;
    };
    let AddressOwner::Node { name } = cluster.owner_of_address(address) else { return None };
    let of_port = protocol.transport()?;
    let pods = cluster
        .pods()
        .values()
        .filter(|pod| !pod.finished && !pod.host_network && pod.node.as_str() == name);
    let mut translated = pods.filter_map(|pod| {
        let target = details.host_port(&pod.key, (of_port, port))?;
        let to = Party::Pod(pod.key.clone());
        let verdict = explainer.verdict(&Probe { to, port: target, ..answer.probe.clone() }).0;
        (verdict != answer.verdict && verdict != Verdict::Unknown).then_some((pod, target, verdict))
    });
    let (pod, target, verdict) = translated.next()?;
    Some(format!(
        "port {port} of node {name} is a hostPort of pod {}: translated to its port {target}, the answer is {verdict}; ask for \
         the pod",
        pod.key
    ))
}
