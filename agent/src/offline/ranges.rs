//! Where the addresses of pods come from that have none yet.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netpold_core::cluster::Cluster;
use netpold_core::model::{Direction, Peer};

/// Private use (RFC 1918), and what is shared behind a carrier's translation (RFC 6598), from which clouds give
/// addresses to pods.
const V4: [(Ipv4Addr, u8); 4] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
];
/// Global unicast, and unique local addresses (RFC 4193).
const V6: [(Ipv6Addr, u8); 2] = [
    (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
];

/// The ranges that pods' addresses may be of: the `given` ones, else private addresses of the families that the
/// objects have; of IPv4 where they have no addresses, unless policies name blocks of IPv6 alone.
#[must_use]
pub fn ranges(given: &[IpNet], clusters: &[&Cluster]) -> Vec<IpNet> {
    if !given.is_empty() {
        return given.iter().map(IpNet::trunc).collect();
    }
    let (mut v4, mut v6) = (false, false);
    for cluster in clusters {
        let pods = cluster.pods().values().flat_map(|pod| pod.addresses.clone());
        let nodes = cluster.nodes().values().flat_map(|node| node.addresses.clone());
        let services = cluster.services().values().flat_map(|service| service.addresses.clone());
        for address in pods.chain(nodes).chain(services) {
            v4 |= address.is_ipv4();
            v6 |= address.is_ipv6();
        }
    }
    if !v4 && !v6 {
        let blocks = || clusters.iter().flat_map(|cluster| blocks(cluster));
        v6 = blocks().any(|block| block.addr().is_ipv6()) && blocks().all(|b| b.addr().is_ipv6());
        v4 = !v6;
    }
    let v4 = V4.into_iter().filter(|_| v4);
    let v4 = v4.map(|(address, length)| IpNet::V4(Ipv4Net::new_assert(address, length)));
    let v6 = V6.into_iter().filter(|_| v6);
    let v6 = v6.map(|(address, length)| IpNet::V6(Ipv6Net::new_assert(address, length)));
    v4.chain(v6).collect()
}

fn blocks(cluster: &Cluster) -> impl Iterator<Item = IpNet> {
    let policies = cluster.policies().values();
    let rules = policies
        .flat_map(|policy| Direction::BOTH.into_iter().filter_map(move |d| policy.rules(d)));
    let peers = rules.flatten().flat_map(|rule| rule.peers.iter().flatten());
    peers.filter_map(|peer| if let Peer::Block(block) = peer { Some(block.cidr) } else { None })
}
