//! Services with `internalTrafficPolicy: Local` or `externalTrafficPolicy: Local`: only backends of one node are chosen.

use netpold_client::details::Details;
use netpold_core::cluster::{AddressOwner, Cluster};
use netpold_core::explain::{Explainer, Explanation, ServiceBackend, Verdict};
use netpold_core::model::{Key, Pod, ServicePort};
use netpold_core::probe::{Party, Probe};

/// Leaves out the backends that the traffic policy of a Service excludes, and judges by the others; if none of them is
/// ready, by the terminating ones of the node. Backends without a known node stay.
pub(super) fn restricted(
    cluster: &Cluster,
    explainer: Explainer<'_>,
    details: &Details,
    answer: Explanation,
) -> Explanation {
    let [service] = &answer.services[..] else { return answer };
    let Some((node, policy)) = node(cluster, details, service, &answer) else { return answer };
    let is_elsewhere = |backend: &ServiceBackend| {
        let pod = backend.pod.as_ref().and_then(|key| cluster.pods().get(key));
        pod.is_some_and(|pod| !pod.node.is_empty() && pod.node.as_str() != node)
    };
    if answer.verdict == Verdict::Unknown || !answer.backends.iter().any(is_elsewhere) {
        return answer;
    }
    let mut backends: Vec<ServiceBackend> =
        answer.backends.iter().filter(|it| !is_elsewhere(it)).cloned().collect();
    let left_out = answer.backends.len() - backends.len();
    let has_ready = !backends.is_empty();
    if !has_ready {
        backends = terminating(cluster, explainer, service, node, &answer.probe);
    }
    let count = |verdict| backends.iter().filter(|it| it.verdict == verdict).count();
    let (allowed, all) = (count(Verdict::Allow), backends.len());
    let outcome = match (allowed, all) {
        (_, 0) => "none is ready there: nothing answers".to_owned(),
        (n, all) if !has_ready => {
            format!(
                "none is ready there, and {n} of {all} terminating ones that still serve are allowed"
            )
        }
        (n, all) if n == all => "every backend there is allowed".to_owned(),
        (n, all) => format!("{n} of {all} there are allowed"),
    };
    let note = format!(
        "Service {service}: {policy} is Local, so only backends on node {node} are chosen ({left_out} left out): {outcome}"
    );
    if all == 0 {
        return unanswered(answer, note);
    }
    let verdict = if allowed == 0 { Verdict::Deny } else { Verdict::Allow };
    Explanation { verdict, note: Some(note), backends, ..answer }
}

/// Answers for a node without a backend: unknown, unless policy denies those of other nodes, too.
fn unanswered(answer: Explanation, note: String) -> Explanation {
    let answer = Explanation { egress: None, unanswered: true, ..answer };
    if answer.verdict == Verdict::Deny {
        let note = Some(format!("{note} now; those of other nodes are denied"));
        return Explanation { note, ..answer };
    }
    let reason = Some(format!("{note}, and no policy decides"));
    Explanation { verdict: Verdict::Unknown, reason, note: None, backends: Vec::new(), ..answer }
}

/// Judges the terminating backends of a Service that still serve on a node.
fn terminating(
    cluster: &Cluster,
    explainer: Explainer<'_>,
    service: &Key,
    node: &str,
    probe: &Probe,
) -> Vec<ServiceBackend> {
    let Some(at) = cluster.services().get(service) else { return Vec::new() };
    let is_of_service = match &probe.to {
        Party::Address(address) => at.addresses.contains(address),
        Party::Service(_) | Party::Pod(_) => true,
    };
    let is_asked = |port: &&ServicePort| {
        let number = if is_of_service { Some(port.port) } else { port.node_port };
        port.protocol.number() == probe.protocol.0 && number == Some(probe.port)
    };
    let mut found = Vec::new();
    for port in at.ports.iter().filter(is_asked) {
        for slice in cluster.slices_of(service) {
            for of_slice in slice.ports.iter().filter(|it| it.is_behind(port)) {
                found.extend(slice.serving().map(|address| (address, of_slice.port)));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    let here = found.into_iter().filter_map(|(address, port)| {
        let pod = cluster.owner(address).filter(|pod| pod.node.as_str() == node)?;
        let of_backend = Probe { to: Party::Address(address), port, ..probe.clone() };
        let Explanation { verdict, egress, ingress, .. } = explainer.explain(&of_backend);
        Some(ServiceBackend { address, port, pod: Some(pod.key.clone()), verdict, egress, ingress })
    });
    here.collect()
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
        && cluster.owner_of_address(*client) == AddressOwner::Outside
    {
        let mut nodes = cluster.nodes().values();
        let entry = nodes.find(|node| node.addresses.contains(to))?;
        return Some((&entry.name, "externalTrafficPolicy"));
    }
    None
}
