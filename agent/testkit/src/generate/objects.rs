//! Objects of a generated cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::choices::Choices;
use netpold_core::model::{
    Denial, Enforcement, IpBlock, Key, Labels, NamedPort, Namespace, Node, Peer, Pod, Policy,
    PortMatch, PortRule, Protocol, Requirement, Rule, SecondaryInterface, Selector,
};

/// The node from which generated clusters are seen.
pub const NODE: &str = "n1";
pub(super) const NAMESPACES: [&str; 3] = ["x", "y", "z"];
pub(super) const NODES: [&str; 2] = [NODE, "n2"];
const LABEL_KEYS: [&str; 3] = ["app", "tier", "env"];
const LABEL_VALUES: [&str; 3] = ["", "a", "b"];
const PORT_NAMES: [&str; 3] = ["web", "dns", "absent"];
pub(super) const PORTS: [u16; 14] =
    [0, 1, 53, 63, 64, 79, 80, 81, 127, 443, 8080, 32768, 65534, 65535];
/// Numbers of named ports; several names often share one.
pub(super) const NAMED_PORTS: [u16; 3] = [53, 80, 8080];
const PREFIXES4: [u8; 14] = [0, 1, 8, 15, 16, 17, 23, 24, 25, 28, 30, 31, 32, 32];
const PREFIXES6: [u8; 12] = [0, 1, 16, 32, 63, 64, 65, 120, 126, 127, 128, 128];

/// IPv4 addresses of pods: around the ends of a /24 and a /16, where trie levels change.
const PODS4: [[u8; 4]; 10] = [
    [10, 0, 0, 1],
    [10, 0, 0, 2],
    [10, 0, 0, 3],
    [10, 0, 0, 254],
    [10, 0, 0, 255],
    [10, 0, 1, 0],
    [10, 0, 1, 1],
    [10, 0, 255, 255],
    [10, 1, 0, 0],
    [10, 1, 0, 1],
];
const NODES4: [[u8; 4]; 2] = [[192, 168, 0, 1], [192, 168, 0, 2]];
const OTHERS4: [[u8; 4]; 6] = [
    [0, 0, 0, 0],
    [8, 8, 8, 8],
    [10, 0, 0, 77],
    [127, 255, 255, 255],
    [192, 168, 1, 0],
    [255, 255, 255, 255],
];

pub(super) fn pod4(choices: &mut Choices<'_>) -> IpAddr {
    IpAddr::from(*choices.pick(&PODS4))
}

pub(super) fn pod6(choices: &mut Choices<'_>) -> IpAddr {
    let number = choices.below(8);
    let high = if number < 6 { 0xfd00 << 112 } else { 0xfd00_u128 << 112 | 1 << 64 };
    IpAddr::V6(Ipv6Addr::from_bits(high | u128::from(number + 1)))
}

/// An address that only Services have.
pub(super) fn cluster_ip(choices: &mut Choices<'_>) -> IpAddr {
    let number = choices.below(4) as u8;
    match choices.chance(65) {
        true => IpAddr::from([10, 96, 0, number + 1]),
        false => IpAddr::V6(Ipv6Addr::from_bits(0xfd96 << 112 | u128::from(number + 1))),
    }
}

/// An address that a pod claims on a secondary network: mostly an address of such a network, else an address of another
/// object.
fn second_address(choices: &mut Choices<'_>) -> IpAddr {
    match choices.below(10) {
        0..=4 => IpAddr::from([192, 168, 77, 1 + choices.below(5) as u8]),
        5..=7 => IpAddr::V6(Ipv6Addr::from_bits(0xfd77 << 112 | u128::from(choices.below(3) + 1))),
        _ => address(choices),
    }
}

/// Interfaces on secondary networks.
fn second(choices: &mut Choices<'_>) -> Vec<SecondaryInterface> {
    if choices.chance(75) {
        return Vec::new();
    }
    choices.list(3, |choices| {
        let mut addresses = choices.list(3, second_address);
        addresses.sort();
        addresses.dedup();
        SecondaryInterface { name: "net1".to_owned(), addresses, ..SecondaryInterface::default() }
    })
}

fn node6(number: u32) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(0xfd01 << 112 | u128::from(number + 1)))
}

/// An address of either family, mostly one of the generated objects or next to it.
pub(super) fn address(choices: &mut Choices<'_>) -> IpAddr {
    match choices.below(9) {
        0..=2 => pod4(choices),
        3 | 4 => pod6(choices),
        8 => cluster_ip(choices),
        5 => IpAddr::from(*choices.pick(&NODES4)),
        6 => node6(choices.below(2)),
        _ if choices.chance(70) => IpAddr::from(*choices.pick(&OTHERS4)),
        _ => IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8 << 96 | 1)),
    }
}

fn labels(choices: &mut Choices<'_>) -> Labels {
    let mut labels = Labels::new();
    for key in LABEL_KEYS {
        if choices.chance(55) {
            labels.insert(key.to_owned(), (*choices.pick(&LABEL_VALUES)).to_owned());
        }
    }
    labels
}

pub(super) fn namespace(choices: &mut Choices<'_>, name: &str) -> Namespace {
    let mut labels = if choices.chance(70) { labels(choices) } else { Labels::new() };
    labels.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
    Namespace { name: name.to_owned(), denial: denial(labels.len() as u32), labels }
}

pub(super) fn node(choices: &mut Choices<'_>, name: &str) -> Node {
    let number = u32::from(name != NODE);
    let mut addresses = vec![IpAddr::from(NODES4[number as usize])];
    if choices.chance(60) {
        addresses.push(node6(number));
    }
    if choices.chance(10) {
        addresses.push(address(choices));
    }
    addresses.sort();
    addresses.dedup();
    let range = |text: &str| text.parse().into_iter().collect::<Vec<_>>();
    let pod_ranges = match choices.below(8) {
        0 => range("10.0.0.0/16"),
        1 => range("192.168.77.4/31"),
        _ => Vec::new(),
    };
    Node { name: name.to_owned(), addresses, labels: labels(choices), pod_ranges }
}

pub(super) fn pod(choices: &mut Choices<'_>, number: u32) -> Pod {
    let namespace = *choices.pick(&NAMESPACES);
    let node = *choices.pick(&[NODE, NODE, NODE, "n2", ""]);
    let host_network = choices.chance(8);
    let mut addresses = match (host_network, node) {
        (true, "n2") => vec![IpAddr::from(NODES4[1])],
        (true, _) => vec![IpAddr::from(NODES4[0])],
        (false, _) if choices.chance(5) => Vec::new(),
        (false, _) => vec![pod4(choices)],
    };
    if !host_network && choices.chance(50) {
        addresses.push(pod6(choices));
    }
    if !host_network && choices.chance(5) {
        addresses.push(pod4(choices));
    }
    addresses.sort();
    addresses.dedup();
    let key = Key::new(namespace, format!("p{number}"));
    Pod {
        uid: format!("uid-{key}"),
        key,
        labels: labels(choices),
        node: node.into(),
        addresses,
        host_network,
        finished: choices.chance(8),
        terminating: choices.chance(10),
        created: i64::from(choices.below(3)),
        ports: choices.list(6, named_port),
        foreign_sources: false,
        secondary: if host_network { Vec::new() } else { second(choices) },
        workload: None,
    }
}

/// A pod on [`NODE`] to which policy can apply.
pub(super) fn local_pod(choices: &mut Choices<'_>, number: u32) -> Pod {
    let pod = pod(choices, number);
    let addresses = vec![pod4(choices)];
    let node = NODE.to_owned();
    Pod { node: node.into(), addresses, host_network: false, finished: false, ..pod }
}

fn protocol(choices: &mut Choices<'_>) -> Protocol {
    *choices.pick(&[Protocol::Tcp, Protocol::Tcp, Protocol::Udp, Protocol::Sctp])
}

fn named_port(choices: &mut Choices<'_>) -> NamedPort {
    NamedPort {
        name: (*choices.pick(&PORT_NAMES[..2])).to_owned(),
        protocol: protocol(choices),
        port: *choices.pick(&NAMED_PORTS),
    }
}

pub(super) fn policy(choices: &mut Choices<'_>, number: u32) -> Policy {
    let (namespace, name) = (*choices.pick(&NAMESPACES), format!("policy{number}"));
    let pod_selector = if choices.chance(45) { Selector::default() } else { selector(choices) };
    let types = choices.below(4);
    let ingress = (types != 1).then(|| choices.list(5, rule));
    let egress = (types != 0).then(|| choices.list(5, rule));
    let problems = if choices.chance(5) { vec!["spec: made up".to_owned()] } else { Vec::new() };
    Policy {
        problems,
        enforcement: enforcement(choices),
        denial: denial(number),
        ..crate::objects::policy(namespace, &name, pod_selector, ingress, egress)
    }
}

/// Half of the objects have `netpold.io/deny: reject`, a quarter `drop`. Derived from the object's number, not from a
/// random choice.
pub(super) fn denial(number: u32) -> Option<Denial> {
    match number % 4 {
        0 => None,
        1 => Some(Denial::Drop),
        _ => Some(Denial::Reject),
    }
}

/// One policy in eight is audited.
pub(super) fn enforcement(choices: &mut Choices<'_>) -> Enforcement {
    if choices.below(8) == 7 { Enforcement::Audit } else { Enforcement::Enforce }
}

pub(super) fn selector(choices: &mut Choices<'_>) -> Selector {
    let mut requirements = choices.list(2, requirement);
    requirements.sort();
    requirements.dedup();
    Selector { requirements }
}

fn requirement(choices: &mut Choices<'_>) -> Requirement {
    let key =
        if choices.chance(6) { "kubernetes.io/metadata.name" } else { *choices.pick(&LABEL_KEYS) };
    let key = key.to_owned();
    match choices.below(7) {
        0..=2 => Requirement::In(key, values(choices)),
        3 | 4 => Requirement::NotIn(key, values(choices)),
        5 => Requirement::Exists(key),
        _ => Requirement::DoesNotExist(key),
    }
}

fn values(choices: &mut Choices<'_>) -> Vec<String> {
    let mut values = vec![(*choices.pick(&LABEL_VALUES)).to_owned()];
    if choices.chance(50) {
        values.push((*choices.pick(&["a", "b", "x", "y"])).to_owned());
    }
    values.sort();
    values.dedup();
    values
}

/// Empty lists of peers or ports stand for invalid items: they grant nothing.
fn rule(choices: &mut Choices<'_>) -> Rule {
    let peers = match choices.below(20) {
        0..=2 => None,
        3 => Some(Vec::new()),
        _ => Some(choices.list(5, peer)),
    };
    let ports = match choices.below(20) {
        0..=7 => None,
        8 => Some(Vec::new()),
        9 => Some(choices.list(24, port_rule)),
        _ => Some(choices.list(6, port_rule)),
    };
    Rule { peers, ports }
}

fn peer(choices: &mut Choices<'_>) -> Peer {
    match choices.below(5) {
        0 => Peer::Pods { namespaces: None, pods: selector(choices) },
        1 => Peer::Pods { namespaces: Some(selector(choices)), pods: Selector::default() },
        2 => Peer::Pods { namespaces: Some(selector(choices)), pods: selector(choices) },
        _ => Peer::Block(block(choices)),
    }
}

/// The prefix of this length that contains an address.
fn prefix(address: IpAddr, length: u8) -> Option<IpNet> {
    IpNet::new(address, length).ok().map(|net| net.trunc())
}

pub(super) fn block(choices: &mut Choices<'_>) -> IpBlock {
    let base = address(choices);
    // Wide blocks contain most addresses, so that exceptions of one block are in others.
    let length = if choices.chance(25) { choices.below(9) as u8 } else { length(choices, base) };
    let cidr = prefix(base, length).unwrap_or_default();
    let except = choices.list(3, |choices| {
        // Usually inside the block; exceptions outside or as wide as the block must be harmless.
        let inside = if choices.chance(80) { near(choices, &cidr) } else { address(choices) };
        let longer = self::length(choices, inside).max(if choices.chance(90) { length } else { 0 });
        prefix(inside, longer).unwrap_or_default()
    });
    IpBlock { cidr, except }
}

fn length(choices: &mut Choices<'_>, address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => *choices.pick(&PREFIXES4),
        IpAddr::V6(_) => *choices.pick(&PREFIXES6),
    }
}

/// An address in or just outside a prefix: its ends, their neighbours, or a known address.
pub(super) fn near(choices: &mut Choices<'_>, net: &IpNet) -> IpAddr {
    let (first, last) = (net.network(), net.broadcast());
    match choices.below(6) {
        0 => first,
        1 => last,
        2 => step(first, -1),
        3 => step(last, 1),
        _ => {
            // A known address inside if there is one, else an address in the first /24.
            let known = (0..4).map(|_| address(choices)).find(|a| net.contains(a));
            known.unwrap_or_else(|| step(first, i128::from(choices.below(256))))
        }
    }
}

/// The address plus `by`, wrapping around the address space.
fn step(address: IpAddr, by: i128) -> IpAddr {
    match address {
        IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from_bits(a.to_bits().wrapping_add(by as u32))),
        IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits().wrapping_add(by as u128))),
    }
}

pub(super) fn port_rule(choices: &mut Choices<'_>) -> PortRule {
    let protocol = protocol(choices);
    let port = match choices.below(8) {
        0 => PortMatch::Any,
        1..=3 => {
            let port = *choices.pick(&PORTS);
            PortMatch::Range(port, port)
        }
        4 => {
            let (a, b) = (*choices.pick(&PORTS), *choices.pick(&PORTS));
            PortMatch::Range(a.min(b), a.max(b))
        }
        _ if choices.chance(10) => PortMatch::Named(PORT_NAMES[2].to_owned()),
        _ => PortMatch::Named((*choices.pick(&PORT_NAMES[..2])).to_owned()),
    };
    PortRule { protocol, port }
}
