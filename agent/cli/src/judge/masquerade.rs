//! Clients outside of the cluster: with `externalTrafficPolicy: Cluster` a node may replace their address by its own.

use std::net::IpAddr;

use netpold_core::cluster::{AddressOwner, Cluster};
use netpold_core::explain::{Cause, Explainer, Explanation, ServiceBackend, Verdict};
use netpold_core::model::{Key, Node};
use netpold_core::probe::{Party, Probe};

use crate::doctor::Details;

/// Returns the reason for which the verdict on a client outside of the cluster depends on the entry node.
pub(super) fn depends(
    cluster: &Cluster,
    explainer: Explainer<'_>,
    details: &Details,
    answer: &Explanation,
) -> Option<String> {
    let Party::Address(client) = &answer.probe.from else { return None };
    let is_external = |key: &&Key| {
        details.services.get(*key).is_some_and(|it| it.is_external && !it.keeps_client)
    };
    let service = answer.services.iter().find(is_external)?;
    if answer.verdict == Verdict::Unknown
        || cluster.whose(*client) != AddressOwner::Outside
        || is_cluster_address(cluster, service, &answer.probe.to)
    {
        return None;
    }
    let differs = answer.backends.iter().find_map(|backend| {
        let nodes = entry_nodes(cluster, &answer.probe.to);
        if nodes.is_empty() {
            return depends_on_sender(backend)
                .then(|| "a node may be denied or allowed".to_owned());
        }
        let sources = nodes.iter().flat_map(|node| node.addresses.iter().map(|it| (*node, *it)));
        let mut verdicts = sources.filter_map(|(node, source)| {
            let verdict = verdict_from(explainer, source, backend, answer)?;
            (verdict != backend.verdict).then(|| format!("node {} would get {verdict}", node.name))
        });
        verdicts.next()
    })?;
    Some(format!(
        "externalTrafficPolicy of Service {service} is Cluster: the entry node may replace {client} by an address of its \
         own, and then the answer is another one ({differs}); externalTrafficPolicy: Local keeps the client's address"
    ))
}

/// Returns whether the receiver is a Service's `spec.clusterIPs`, which clients outside of the cluster do not reach.
fn is_cluster_address(cluster: &Cluster, service: &Key, to: &Party) -> bool {
    let Party::Address(address) = to else { return false };
    cluster.services().get(service).is_some_and(|service| service.cluster.contains(address))
}

/// Returns the nodes at which the client's packets may enter.
fn entry_nodes<'c>(cluster: &'c Cluster, to: &Party) -> Vec<&'c Node> {
    let nodes = || cluster.nodes().values();
    let is_entry = |node: &&Node| match to {
        Party::Address(address) => node.addresses.contains(address),
        Party::Service(_) | Party::Pod(_) => false,
    };
    let entry: Vec<&Node> = nodes().filter(is_entry).collect();
    if entry.is_empty() { nodes().collect() } else { entry }
}

fn verdict_from(
    explainer: Explainer<'_>,
    source: IpAddr,
    backend: &ServiceBackend,
    answer: &Explanation,
) -> Option<Verdict> {
    let to = match &backend.pod {
        Some(pod) => Party::Pod(pod.clone()),
        None => return None,
    };
    let (from, protocol, port) = (Party::Address(source), answer.probe.protocol, backend.port);
    if !backend.address.is_unspecified() && backend.address.is_ipv4() != source.is_ipv4() {
        return None;
    }
    Some(explainer.verdict(&Probe { from, to, protocol, port }).0)
}

/// Returns whether the verdict on a backend may depend on the sender's address.
fn depends_on_sender(backend: &ServiceBackend) -> bool {
    let Some(ingress) = &backend.ingress else { return false };
    match ingress.cause {
        Cause::NotIsolated | Cause::HostNetwork | Cause::Itself => false,
        Cause::Rule => ingress.allowed_by.as_ref().is_none_or(|rule| rule.peer.is_some()),
        Cause::NoRule
        | Cause::TierRule
        | Cause::OwnNode
        | Cause::Backend
        | Cause::BackendDenied => true,
    }
}
