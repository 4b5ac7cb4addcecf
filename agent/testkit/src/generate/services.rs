//! Services and EndpointSlices of a generated cluster: few, so that they share addresses, backends and ports.

use std::net::IpAddr;

use ipnet::IpNet;

use super::choices::Choices;
use super::objects::{self, NAMED_PORTS, NAMESPACES, cluster_ip};
use netpold_core::model::{EndpointSlice, Key, Protocol, Service, ServicePort, SlicePort};

const NAMES: [&str; 3] = ["s0", "s1", "s2"];
const PORT_NAMES: [&str; 3] = ["", "web", "dns"];
/// Ports of Services; backends usually listen on other ports.
const PORTS: [u16; 5] = [53, 80, 81, 443, 65535];
const NODE_PORTS: [u16; 3] = [80, 30000, 32767];
/// Ports of backends that no pod has named.
const TARGETS: [u16; 3] = [1, 81, 443];

/// A network in place of addresses beyond the budget.
fn network(choices: &mut Choices<'_>) -> IpNet {
    let len = *choices.pick(&[8, 16]);
    IpNet::new(objects::address(choices), len).map_or_else(|_| IpNet::default(), |net| net.trunc())
}

pub(super) fn service(choices: &mut Choices<'_>) -> Service {
    let key = Key::new(*choices.pick(&NAMESPACES), *choices.pick(&NAMES));
    // Headless Services have no address, others one or two and sometimes external ones.
    let mut addresses = match choices.below(8) {
        0 => Vec::new(),
        1..=4 => vec![cluster_ip(choices)],
        _ => vec![cluster_ip(choices), cluster_ip(choices)],
    };
    let mut cluster = addresses.clone();
    cluster.sort();
    cluster.dedup();
    if !addresses.is_empty() && choices.chance(25) {
        addresses.push(objects::address(choices));
    }
    addresses.sort();
    addresses.dedup();
    let has_node_ports = !addresses.is_empty() && choices.chance(40);
    let mut ports = choices.list(3, |choices| ServicePort {
        name: (*choices.pick(&PORT_NAMES)).to_owned(),
        protocol: protocol(choices),
        port: *choices.pick(&PORTS),
        node_port: has_node_ports.then(|| *choices.pick(&NODE_PORTS)),
    });
    ports.sort();
    ports.dedup();
    let unserved = choices.chance(12);
    let mut networks = match choices.below(8) {
        0 => choices.list(3, network),
        _ => Vec::new(),
    };
    networks.sort();
    networks.dedup();
    Service { key, addresses, cluster, networks, beyond: Vec::new(), ports, unserved }
}

/// A slice, usually of one of these Services and with their ports.
pub(super) fn slice(choices: &mut Choices<'_>, number: u32, services: &[Service]) -> EndpointSlice {
    let mut key = Key::new(*choices.pick(&NAMESPACES), format!("slice{number}"));
    let mut service = if choices.chance(50) { "" } else { *choices.pick(&NAMES) }.to_owned();
    let mut ports = choices.list(4, |choices| SlicePort {
        name: (*choices.pick(&PORT_NAMES)).to_owned(),
        protocol: protocol(choices),
        port: target(choices),
    });
    if !services.is_empty() && choices.chance(85) {
        let of = choices.pick(services);
        key.namespace.clone_from(&of.key.namespace);
        service.clone_from(&of.key.name);
        ports = of
            .ports
            .iter()
            .filter_map(|port| {
                let (name, protocol) = (port.name.clone(), port.protocol);
                choices.chance(85).then(|| SlicePort { name, protocol, port: target(choices) })
            })
            .collect();
    }
    ports.sort();
    ports.dedup();
    let addresses = backends(choices);
    let mut not_ready = addresses.clone();
    not_ready.retain(|_| choices.chance(20));
    let mut terminating = addresses.clone();
    terminating.retain(|_| choices.chance(20));
    EndpointSlice { key, service, ports, addresses, not_ready, terminating }
}

/// Port on which backends listen.
fn target(choices: &mut Choices<'_>) -> u16 {
    match choices.chance(70) {
        true => *choices.pick(&NAMED_PORTS),
        false => *choices.pick(&TARGETS),
    }
}

/// Backends of one family: usually pods.
fn backends(choices: &mut Choices<'_>) -> Vec<IpAddr> {
    let v6 = choices.chance(35);
    let mut addresses = choices.list(4, |choices| match (v6, choices.below(10)) {
        (false, 0..8) => objects::pod4(choices),
        (true, 0..8) => objects::pod6(choices),
        _ => objects::address(choices),
    });
    addresses.retain(|address| address.is_ipv6() == v6);
    addresses.sort();
    addresses.dedup();
    addresses
}

fn protocol(choices: &mut Choices<'_>) -> Protocol {
    *choices.pick(&[Protocol::Tcp, Protocol::Tcp, Protocol::Tcp, Protocol::Udp, Protocol::Sctp])
}
