//! Address ranges of pods that have no address yet.

use std::net::Ipv6Addr;

use ipnet::{IpNet, Ipv6Net};
use netpold_core::cluster::{Cluster, PRIVATE_RANGES};
use netpold_core::model::{Direction, Peer};

/// Global unicast addresses of IPv6 (RFC 4291, 2.4), which pods may have beside [`PRIVATE_RANGES`].
const GLOBAL: IpNet = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3));

/// Returns the possible ranges of pods' addresses: the `given` ones, else private ranges (for IPv6 also global unicast)
/// of the address families of the objects. Without any address: IPv4, unless policies name blocks of IPv6 alone.
#[must_use]
pub fn ranges(given: &[IpNet], clusters: &[&Cluster]) -> Vec<IpNet> {
    if !given.is_empty() {
        return given.iter().map(IpNet::trunc).collect();
    }
    let (mut v4, mut v6) = (false, false);
    for cluster in clusters {
        let pods = cluster.pods().values().flat_map(|pod| &pod.addresses);
        let nodes = cluster.nodes().values().flat_map(|node| &node.addresses);
        let services = cluster.services().values().flat_map(|service| &service.addresses);
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
    let is_wanted = |range: &IpNet| if range.addr().is_ipv4() { v4 } else { v6 };
    [GLOBAL].into_iter().chain(PRIVATE_RANGES).filter(is_wanted).collect()
}

fn blocks(cluster: &Cluster) -> impl Iterator<Item = IpNet> {
    let policies = cluster.policies().values();
    let rules = policies
        .flat_map(|policy| Direction::BOTH.into_iter().filter_map(move |d| policy.rules(d)));
    let peers = rules.flatten().flat_map(|rule| rule.peers.iter().flatten());
    peers.filter_map(|peer| if let Peer::Block(block) = peer { Some(block.cidr) } else { None })
}
