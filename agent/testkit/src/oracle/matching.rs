//! Matching of selectors, blocks and ports.

use std::net::IpAddr;

use ipnet::IpNet;

use netpold_core::model::{IpBlock, Labels, Pod, PortMatch, PortRule, Requirement, Selector};

/// Matches a LabelSelector: "The requirements are ANDed"; an empty one matches everything.
pub(super) fn selects(selector: &Selector, labels: &Labels) -> bool {
    for requirement in &selector.requirements {
        let holds = match requirement {
            Requirement::In(key, values) => {
                labels.iter().any(|(k, v)| k == key && values.iter().any(|value| value == v))
            }
            Requirement::NotIn(key, values) => {
                labels.iter().all(|(k, v)| k != key || values.iter().all(|value| value != v))
            }
            Requirement::Exists(key) => labels.iter().any(|(k, _)| k == key),
            Requirement::DoesNotExist(key) => labels.iter().all(|(k, _)| k != key),
        };
        if !holds {
            return false;
        }
    }
    true
}

/// Whether an address is in the block's `cidr` and in none of its `except`.
pub(super) fn block_holds(block: &IpBlock, address: IpAddr) -> bool {
    if !prefix_holds(&block.cidr, address) {
        return false;
    }
    for except in &block.except {
        if prefix_holds(except, address) {
            return false;
        }
    }
    true
}

/// Compares bit by bit, from the most significant one.
fn prefix_holds(prefix: &IpNet, address: IpAddr) -> bool {
    let (network, address) = match (prefix.addr(), address) {
        (IpAddr::V4(n), IpAddr::V4(a)) => {
            (u128::from(n.to_bits()) << 96, u128::from(a.to_bits()) << 96)
        }
        (IpAddr::V6(n), IpAddr::V6(a)) => (n.to_bits(), a.to_bits()),
        _ => return false,
    };
    for bit in 0..prefix.prefix_len() {
        let mask = 1 << (127 - bit);
        if network & mask != address & mask {
            return false;
        }
    }
    true
}

/// Whether a port item matches. A named port is a container port of `pod`, the receiver, with this name and protocol.
pub(super) fn port_matches(item: &PortRule, pod: Option<&Pod>, protocol: u8, port: u16) -> bool {
    if item.protocol.number() != protocol {
        return false;
    }
    match &item.port {
        PortMatch::Any => true,
        PortMatch::Range(first, last) => *first <= port && port <= *last,
        PortMatch::Named(name) => pod.is_some_and(|pod| {
            pod.ports.iter().any(|container_port| {
                container_port.name == *name
                    && container_port.protocol == item.protocol
                    && container_port.port == port
            })
        }),
    }
}
