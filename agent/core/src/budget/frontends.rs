//! Limits on the addresses of Services, besides their cluster addresses.
//!
//! Addresses within the limit each have an entry in the tables. Packets to the others must be judged again after the
//! translation like packets to any address of a Service, so these addresses count as whole networks: a few entries
//! without a grant of their own.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::Service;

/// Addresses of all Services of a namespace with an entry of their own, besides cluster addresses.
pub const NAMESPACE_FRONTENDS: usize = 1024;
/// Networks of the smaller size up to which a Service has these.
const SMALL_NETWORKS: usize = 256;
/// Prefix length of the networks of addresses beyond the limit. In the IPv4 trie, such a network needs no block.
const SMALL: u8 = 16;
/// Prefix length if there are too many of these networks.
const LARGE: u8 = 8;

/// Returns the addresses of a Service besides its cluster addresses.
pub(crate) fn external(service: &Service) -> impl Iterator<Item = IpAddr> + '_ {
    let is_external = |address: &IpAddr| !service.cluster.contains(address);
    service.addresses.iter().copied().filter(is_external)
}

/// Returns the network of an address beyond the limit.
pub(crate) fn network(address: IpAddr) -> IpNet {
    enclosing(address, SMALL)
}

/// Whether a Service may have an address that counts as one of its networks. True for each such address, and for few
/// others.
pub(crate) fn may_have(service: &Service, address: IpAddr) -> bool {
    match service.beyond.is_empty() {
        true => service.networks.iter().any(|network| network.contains(&address)),
        false => service.beyond.binary_search(&number(address)).is_ok(),
    }
}

/// An IPv4 address, or a digest of an IPv6 address.
fn number(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => address.to_bits(),
        // FNV-1a
        IpAddr::V6(address) => address.octets().iter().fold(0x811c_9dc5, |digest, byte| {
            (digest ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        }),
    }
}

fn enclosing(address: IpAddr, len: u8) -> IpNet {
    IpNet::new(address, len).map_or_else(|_| address.into(), |net| net.trunc())
}

/// Returns the networks of this length with addresses of a Service; at least `enough` of them if there are as many.
fn networks(service: &Service, len: u8, enough: usize) -> BTreeSet<IpNet> {
    let mut networks = BTreeSet::new();
    for address in external(service) {
        networks.insert(enclosing(address, len));
        if networks.len() == enough {
            break;
        }
    }
    networks
}

/// The Service as it is kept in memory: one with more addresses than a namespace may have, besides its cluster
/// addresses, has networks in their place.
pub(super) fn kept_service(mut service: Service) -> Service {
    if external(&service).count() <= NAMESPACE_FRONTENDS {
        return service;
    }
    let mut kept = networks(&service, SMALL, SMALL_NETWORKS + 1);
    if kept.len() > SMALL_NETWORKS {
        kept = networks(&service, LARGE, usize::MAX);
    }
    let is_known = service.networks.is_empty() || !service.beyond.is_empty();
    kept.extend(std::mem::take(&mut service.networks));
    let numbers: Vec<u32> = external(&service).map(number).collect();
    service.beyond.extend(numbers);
    service.beyond.sort_unstable();
    service.beyond.dedup();
    service.beyond.shrink_to_fit();
    if !is_known {
        service.beyond.clear();
    }
    service.networks = kept.into_iter().collect();
    service.addresses.retain(|address| service.cluster.contains(address));
    service
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::model::Key;

    /// A Service with a cluster address and this many others, `apart` from each other.
    fn service(others: u32, apart: u32) -> Service {
        let others = (0..others).map(|n| Ipv4Addr::from_bits(0x1400_0000 + n * apart).into());
        let cluster: Vec<IpAddr> = vec!["10.96.0.1".parse().unwrap()];
        Service {
            key: Key::new("a", "s"),
            addresses: cluster.iter().copied().chain(others).collect(),
            cluster,
            networks: Vec::new(),
            beyond: Vec::new(),
            ports: Vec::new(),
            unserved: false,
        }
    }

    #[test]
    fn a_service_with_too_many_addresses_keeps_networks() {
        let limit = NAMESPACE_FRONTENDS as u32;
        assert_eq!(kept_service(service(limit, 1)), service(limit, 1));
        let kept = kept_service(service(limit + 1, 256));
        assert_eq!(kept.addresses, kept.cluster);
        let networks =
            |nets: &[&str]| -> Vec<IpNet> { nets.iter().map(|net| net.parse().unwrap()).collect() };
        let small = ["20.0.0.0/16", "20.1.0.0/16", "20.2.0.0/16", "20.3.0.0/16", "20.4.0.0/16"];
        assert_eq!(kept.networks, networks(&small));
        assert_eq!(kept_service(kept.clone()), kept);
        assert_eq!(kept.beyond.len(), limit as usize + 1);
        for (address, is_had) in [("20.0.1.0", true), ("20.0.0.1", false), ("21.0.0.0", false)] {
            assert_eq!(may_have(&kept, address.parse().unwrap()), is_had, "{address}");
        }
        let unknown = Service { beyond: Vec::new(), ..kept };
        assert!(may_have(&unknown, "20.0.0.1".parse().unwrap()));
        let kept = kept_service(service(limit + 1, 1 << 16));
        let large = ["20.0.0.0/8", "21.0.0.0/8", "22.0.0.0/8", "23.0.0.0/8", "24.0.0.0/8"];
        assert_eq!(kept.networks, networks(&large));
    }
}
