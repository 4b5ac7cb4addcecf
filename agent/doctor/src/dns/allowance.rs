//! Classification of rules as rules for DNS, by ports and blocks.

use std::net::IpAddr;

use netpold_core::model::{Direction, Peer, PortMatch, PortRule, Protocol, Rule};

use crate::blocks::has_no_address;

const PORT: u16 = 53;
/// Port of name server pods that may not bind 53: OpenShift.
const OTHER_PORT: u16 = 5353;
/// Name servers outside of pods: node-local caches (Kubernetes' and Kubespray's), and those of clouds: AWS, GCP and
/// OpenStack, Azure, Alibaba, IBM, Oracle, Tencent, Hetzner.
const RESOLVERS: [&str; 19] = [
    "169.254.20.10",
    "169.254.25.10",
    "169.254.169.253",
    "169.254.169.254",
    "168.63.129.16",
    "100.100.2.136",
    "100.100.2.138",
    "161.26.0.10",
    "161.26.0.11",
    "166.8.0.10",
    "183.60.83.19",
    "183.60.82.98",
    "185.12.64.1",
    "185.12.64.2",
    "67.207.67.2",
    "67.207.67.3",
    "fd00:ec2::253",
    "fd20:ce::254",
    "fd00::10",
];
/// Shortest prefixes, IPv4 and IPv6, of a block meant for such a server.
const NARROW: [u8; 2] = [16, 64];

/// Returns whether a rule has a peer that a pod may look up by name: blocks of up to 4 addresses and unusable blocks do
/// not count.
pub(super) fn may_need_names(rule: &Rule) -> bool {
    let has_name = |peer: &Peer| match peer {
        Peer::Block(block) => {
            let single = block.cidr.prefix_len() + 2 >= block.cidr.max_prefix_len();
            !single && !has_no_address(block.cidr, Direction::Egress)
        }
        Peer::Pods { .. } | Peer::Nodes(_) | Peer::Domain(_) => true,
    };
    rule.peers.as_ref().is_none_or(|peers| peers.iter().any(has_name))
}

/// Returns whether a rule may allow DNS to some peer; a named port may be that of DNS.
pub(super) fn may_be_dns(rule: &Rule) -> bool {
    let ports = rule.ports.as_ref().is_none_or(|ports| {
        ports.iter().any(|port| is_explicit(port) || port.port == PortMatch::Any && is_udp(port))
    });
    let is_somebody = |peers: &Vec<Peer>| !peers.is_empty();
    ports && rule.peers.as_ref().is_none_or(is_somebody)
}

/// Returns whether the rule's port is explicit and may be a name server's.
pub(crate) fn is_explicit(port: &PortRule) -> bool {
    is_udp(port)
        && match &port.port {
            PortMatch::Any => false,
            PortMatch::Named(_) => true,
            PortMatch::Range(first, last) => {
                [PORT, OTHER_PORT].iter().any(|port| (first..=last).contains(&port))
            }
        }
}

fn is_udp(port: &PortRule) -> bool {
    port.protocol == Protocol::Udp
}

/// Returns whether a rule allows DNS to a name server outside of pods.
pub(super) fn is_resolver(rule: &Rule) -> bool {
    let ports = rule.ports.as_ref().is_none_or(|ports| ports.iter().any(is_explicit));
    let is_resolver = |peer: &Peer| {
        let Peer::Block(block) = peer else { return false };
        let narrow = NARROW[usize::from(block.cidr.addr().is_ipv6())];
        let addresses = RESOLVERS.iter().filter_map(|text| text.parse::<IpAddr>().ok());
        block.cidr.prefix_len() >= narrow && addresses.into_iter().any(|it| block.contains(it))
    };
    ports && rule.peers.iter().flatten().any(is_resolver)
}
