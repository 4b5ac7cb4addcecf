//! External addresses of Services: with `externalTrafficPolicy: Cluster` a node may replace the client's address by its own.
//! kube-proxy does so for every client of these addresses and of node ports, pods included.

use std::fmt;
use std::net::IpAddr;

use netpold_client::details::Details;
use netpold_core::cluster::{AddressOwner, Cluster};
use netpold_core::explain::{Cause, Explainer, Explanation, ServiceBackend, Verdict};
use netpold_core::model::{Key, Node, Pod};
use netpold_core::probe::{Party, Probe};

/// Returns the reason for which the verdict on a client of a Service's external address depends on the entry node.
pub(super) fn reason_unknown(
    cluster: &Cluster,
    explainer: Explainer<'_>,
    details: &Details,
    answer: &Explanation,
) -> Option<String> {
    let client = Client::translated_client(cluster, &answer.probe)?;
    let is_external = |key: &&Key| {
        details.services.get(*key).is_some_and(|it| it.is_external && !it.keeps_client)
    };
    let service = answer.services.iter().find(is_external)?;
    if answer.verdict == Verdict::Unknown || is_cluster_address(cluster, service, &answer.probe.to)
    {
        return None;
    }
    // A sender that may not send reaches no node, except to a node's address that its rules allow.
    let may_send = |backend: &ServiceBackend| {
        [&answer.egress, &backend.egress]
            .into_iter()
            .any(|egress| egress.as_ref().is_none_or(|egress| egress.verdict == Verdict::Allow))
    };
    let differs = answer.backends.iter().filter(|it| may_send(it)).find_map(|backend| {
        let nodes = entry_nodes(cluster, client, &answer.probe.to);
        if nodes.is_empty() {
            return depends_on_sender(backend)
                .then(|| "a node may be denied or allowed".to_owned());
        }
        let sources = nodes.iter().flat_map(|node| node.addresses.iter().map(|it| (*node, *it)));
        let mut verdicts = sources.filter_map(|(node, source)| {
            let verdict = verdict_from(explainer, source, backend, answer)?;
            (verdict != admitted(backend))
                .then(|| format!("node {} would get {verdict}", node.name))
        });
        verdicts.next()
    })?;
    Some(format!(
        "externalTrafficPolicy of Service {service} is Cluster: the entry node may replace {client} by an address of its \
         own, and then the answer is another one ({differs}); externalTrafficPolicy: Local keeps the client's address"
    ))
}

/// Client of a Service.
#[derive(Clone, Copy)]
enum Client<'p> {
    /// An address outside of the cluster.
    Outside(&'p IpAddr),
    /// A pod; on the host's network it has its node's address anyway.
    Pod(&'p Pod),
}

impl<'p> Client<'p> {
    /// Returns the client whose packets may get another address. A pod reaches a Service by name at a cluster address.
    fn translated_client(cluster: &'p Cluster, probe: &'p Probe) -> Option<Self> {
        let pod = match &probe.from {
            Party::Pod(key) => cluster.pods().get(key)?,
            Party::Address(address) => match cluster.owner_of_address(*address) {
                AddressOwner::Outside => return Some(Self::Outside(address)),
                AddressOwner::Pod(_) => cluster.owner(*address)?,
                AddressOwner::Service(_) | AddressOwner::Node { .. } => return None,
            },
            Party::Service(_) => return None,
        };
        let is_external = !pod.host_network && matches!(probe.to, Party::Address(_));
        is_external.then_some(Self::Pod(pod))
    }
}

impl fmt::Display for Client<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outside(address) => address.fmt(f),
            Self::Pod(pod) => write!(f, "the address of {}", pod.key),
        }
    }
}

/// Returns the verdict at a backend.
fn admitted(backend: &ServiceBackend) -> Verdict {
    backend.ingress.as_ref().map_or(Verdict::Allow, |ingress| ingress.verdict)
}

/// Returns whether the receiver is a Service's `spec.clusterIPs`, which clients outside of the cluster do not reach.
fn is_cluster_address(cluster: &Cluster, service: &Key, to: &Party) -> bool {
    let Party::Address(address) = to else { return false };
    cluster.services().get(service).is_some_and(|service| service.cluster.contains(address))
}

/// Returns the nodes at which the client's packets may enter: the node of the receiver's address, else a pod's own node.
fn entry_nodes<'c>(cluster: &'c Cluster, client: Client<'_>, to: &Party) -> Vec<&'c Node> {
    let nodes = || cluster.nodes().values();
    let is_entry = |node: &&Node| match to {
        Party::Address(address) => node.addresses.contains(address),
        Party::Service(_) | Party::Pod(_) => false,
    };
    let entry: Vec<&Node> = nodes().filter(is_entry).collect();
    match client {
        _ if !entry.is_empty() => entry,
        Client::Pod(pod) if !pod.node.is_empty() => {
            cluster.nodes().get(pod.node.as_str()).into_iter().collect()
        }
        Client::Pod(_) | Client::Outside(_) => nodes().collect(),
    }
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
