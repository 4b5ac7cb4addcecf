//! Services with `internalTrafficPolicy: Local` or `externalTrafficPolicy: Local`: only backends of one node are chosen.

use netpold_core::cluster::{AddressOwner, Cluster};
use netpold_core::explain::{Explanation, ServiceBackend, Verdict};
use netpold_core::model::{Key, Pod};
use netpold_core::probe::Party;

use crate::doctor::Details;

/// Leaves out the backends that the traffic policy of a Service excludes, and judges by the others. Backends without a known
/// node stay.
pub(super) fn restricted(cluster: &Cluster, details: &Details, answer: Explanation) -> Explanation {
    let [service] = &answer.services[..] else { return answer };
    let Some((node, policy)) = node(cluster, details, service, &answer) else { return answer };
    let is_elsewhere = |backend: &ServiceBackend| {
        let pod = backend.pod.as_ref().and_then(|key| cluster.pods().get(key));
        pod.is_some_and(|pod| !pod.node.is_empty() && pod.node.as_str() != node)
    };
    if answer.verdict == Verdict::Unknown || !answer.backends.iter().any(is_elsewhere) {
        return answer;
    }
    let backends: Vec<ServiceBackend> =
        answer.backends.iter().filter(|it| !is_elsewhere(it)).cloned().collect();
    let left_out = answer.backends.len() - backends.len();
    let count = |verdict| backends.iter().filter(|it| it.verdict == verdict).count();
    let (allowed, all) = (count(Verdict::Allow), backends.len());
    let outcome = match (allowed, all) {
        (_, 0) => "none is ready there: nothing answers".to_owned(),
        (n, all) if n == all => "every backend there is allowed".to_owned(),
        (n, all) => format!("{n} of {all} there are allowed"),
    };
    let note = format!(
        "Service {service}: {policy} is Local, so only backends on node {node} are chosen ({left_out} left out): {outcome}"
    );
    let verdict = match (all, allowed) {
        // As without ready backends: policy denies nothing that could arrive.
        (0, _) => answer.verdict,
        (_, 0) => Verdict::Deny,
        (_, _) => Verdict::Allow,
    };
    Explanation { verdict, note: Some(note), backends, ..answer }
}

/// Returns the node of the backends that are chosen, and the name of the policy; `None`: of every node.
fn node<'a>(
    cluster: &'a Cluster,
    details: &Details,
    service: &Key,
    answer: &Explanation,
) -> Option<(&'a str, &'static str)> {
    let written = details.services.get(service)?;
    let has_cluster_address = match &answer.probe.to {
        Party::Service(_) => !written.is_headless,
        Party::Address(address) => {
            cluster.services().get(service).is_some_and(|it| it.cluster.contains(address))
        }
        Party::Pod(_) => false,
    };
    let sender = match &answer.probe.from {
        Party::Pod(key) => cluster.pods().get(key),
        Party::Address(address) => cluster.owner(*address),
        Party::Service(_) => None,
    };
    if has_cluster_address && written.is_internal_local {
        let node = |pod: &'a Pod| Some(pod.node.as_str()).filter(|node| !node.is_empty());
        return Some((node(sender?)?, "internalTrafficPolicy"));
    }
    // kube-proxy sends pods of the cluster to the backends of all nodes; load balancers know the nodes with backends.
    if let (Party::Address(client), Party::Address(to)) = (&answer.probe.from, &answer.probe.to)
        && written.keeps_client
        && cluster.whose(*client) == AddressOwner::Outside
    {
        let mut nodes = cluster.nodes().values();
        let entry = nodes.find(|node| node.addresses.contains(to))?;
        return Some((&entry.name, "externalTrafficPolicy"));
    }
    None
}
