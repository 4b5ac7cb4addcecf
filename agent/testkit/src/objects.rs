//! Builders of the model's objects, with common values for all other fields.

use std::net::IpAddr;

use netpold_core::model::{
    Action, ClusterPolicy, ClusterRule, EndpointSlice, Enforcement, Interface, IpBlock, Key,
    Labels, NamedPort, Namespace, NamespacedPods, Node, Peer, Pod, Policy, PolicyVersion,
    PortMatch, PortRule, Protocol, Requirement, Rule, Selector, Service, ServicePort, SlicePort,
    Tier,
};
use netpold_core::probe::Probe;

/// The node of [`pod`], and of the [`World`](crate::world::World) that compiles them.
pub const NODE: &str = "here";

/// Parses an address.
#[must_use]
pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Parses addresses.
#[must_use]
pub fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

/// A probe of this protocol between two parties in text form.
#[must_use]
pub fn probe_of(protocol: &str, from: &str, to: &str, port: u16) -> Probe {
    let party = |text: &str| text.parse().expect("a party");
    let protocol = protocol.parse().expect("a protocol");
    Probe::new(party(from), party(to), protocol, Some(port)).expect("a probe")
}

/// A TCP probe between two parties in text form.
#[must_use]
pub fn probe(from: &str, to: &str, port: u16) -> Probe {
    probe_of("TCP", from, to, port)
}

/// A Service with these cluster addresses; TCP ports by name, number and node port.
#[must_use]
pub fn service(
    (namespace, name): (&str, &str),
    addresses: &[&str],
    ports: &[(&str, u16, Option<u16>)],
) -> Service {
    let port = |&(name, port, node_port): &(&str, u16, Option<u16>)| {
        let (name, protocol) = (name.to_owned(), Protocol::Tcp);
        ServicePort { name, protocol, port, node_port }
    };
    let (key, ports) = (Key::new(namespace, name), ports.iter().map(port).collect());
    let (addresses, cluster) = (ips(addresses), ips(addresses));
    let (networks, beyond) = (Vec::new(), Vec::new());
    Service { key, addresses, cluster, networks, beyond, ports, unserved: false }
}

/// Ready backends of a Service; TCP ports by the name of the Service's port and number.
#[must_use]
pub fn slice(
    (namespace, name): (&str, &str),
    service: &str,
    addresses: &[&str],
    ports: &[(&str, u16)],
) -> EndpointSlice {
    let protocol = Protocol::Tcp;
    let port = |&(name, port): &(&str, u16)| SlicePort { name: name.to_owned(), protocol, port };
    EndpointSlice {
        key: Key::new(namespace, name),
        service: service.to_owned(),
        ports: ports.iter().map(port).collect(),
        addresses: ips(addresses),
        not_ready: Vec::new(),
        terminating: Vec::new(),
    }
}

/// Labels.
#[must_use]
pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

/// A namespace with these labels and the name label.
#[must_use]
pub fn namespace(name: &str, pairs: &[(&str, &str)]) -> Namespace {
    let mut labels = labels(pairs);
    labels.insert("kubernetes.io/metadata.name".into(), name.into());
    Namespace { name: name.into(), labels, denial: None }
}

/// A node.
#[must_use]
pub fn node(name: &str, addresses: &[&str]) -> Node {
    Node { name: name.into(), addresses: ips(addresses), ..Node::default() }
}

/// A running pod on [`NODE`].
#[must_use]
pub fn pod(namespace: &str, name: &str, pairs: &[(&str, &str)], addresses: &[&str]) -> Pod {
    Pod {
        key: Key::new(namespace, name),
        uid: format!("{namespace}/{name}"),
        labels: labels(pairs),
        node: NODE.into(),
        addresses: ips(addresses),
        host_network: false,
        finished: false,
        terminating: false,
        created: 0,
        ports: Vec::new(),
        foreign_sources: false,
        secondary: Vec::new(),
        workload: None,
    }
}

/// A named container port.
#[must_use]
pub fn named(name: &str, protocol: Protocol, port: u16) -> NamedPort {
    NamedPort { name: name.into(), protocol, port }
}

/// An interface with these addresses.
#[must_use]
pub fn interface(index: u32, addresses: &[&str]) -> Interface {
    Interface { index, incarnation: 1, addresses: ips(addresses), ..Interface::default() }
}

/// A selector that requires these labels.
#[must_use]
pub fn select(pairs: &[(&str, &str)]) -> Selector {
    let equal = |(k, v): &(&str, &str)| Requirement::In((*k).into(), vec![(*v).into()]);
    Selector { requirements: pairs.iter().map(equal).collect() }
}

/// Pods as peers; without `namespaces`, pods of the policy's namespace.
#[must_use]
pub const fn pods(namespaces: Option<Selector>, pods: Selector) -> Peer {
    Peer::Pods { namespaces, pods }
}

/// An ipBlock as a peer.
#[must_use]
pub fn block(cidr: &str, except: &[&str]) -> Peer {
    let net = |text: &str| text.parse().expect("a prefix");
    Peer::Block(IpBlock { cidr: net(cidr), except: except.iter().map(|e| net(e)).collect() })
}

/// One TCP port.
#[must_use]
pub const fn tcp(port: u16) -> PortRule {
    PortRule { protocol: Protocol::Tcp, port: PortMatch::Range(port, port) }
}

/// A named port.
#[must_use]
pub fn port_name(protocol: Protocol, name: &str) -> PortRule {
    PortRule { protocol, port: PortMatch::Named(name.into()) }
}

/// A rule; `None` allows all peers, or all ports.
#[must_use]
pub const fn rule(peers: Option<Vec<Peer>>, ports: Option<Vec<PortRule>>) -> Rule {
    Rule { peers, ports }
}

/// A policy; a direction that is `None` is not isolated.
#[must_use]
pub fn policy(
    namespace: &str,
    name: &str,
    pod_selector: Selector,
    ingress: Option<Vec<Rule>>,
    egress: Option<Vec<Rule>>,
) -> Policy {
    let key = Key::new(namespace, name);
    Policy {
        key,
        pod_selector,
        ingress,
        egress,
        problems: Vec::new(),
        version: PolicyVersion::default(),
        enforcement: Enforcement::Enforce,
        denial: None,
    }
}

/// A rule of a ClusterNetworkPolicy.
#[must_use]
pub const fn cluster_rule(
    action: Action,
    peers: Vec<Peer>,
    ports: Option<Vec<PortRule>>,
) -> ClusterRule {
    ClusterRule { name: String::new(), action, matches: rule(Some(peers), ports) }
}

/// A ClusterNetworkPolicy with all pods as subject.
#[must_use]
pub fn cluster_policy(
    name: &str,
    (tier, priority): (Tier, u16),
    ingress: Vec<ClusterRule>,
    egress: Vec<ClusterRule>,
) -> ClusterPolicy {
    ClusterPolicy {
        name: name.into(),
        tier,
        priority,
        subject: NamespacedPods::default(),
        ingress,
        egress,
        problems: Vec::new(),
        version: PolicyVersion::default(),
        enforcement: Enforcement::Enforce,
        denial: None,
    }
}
