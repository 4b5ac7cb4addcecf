//! Blocks of further networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Private addresses (RFC 1918, RFC 4193), and addresses behind a carrier's translation (RFC 6598), which clouds give to
/// pods.
pub const PRIVATE_RANGES: [IpNet; 5] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7)),
];

/// Blocks in which addresses of further networks count. The default is [`PRIVATE_RANGES`]: an annotation of a pod must
/// not claim an address of the Internet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondNetworks(pub Vec<IpNet>);

impl Default for SecondNetworks {
    fn default() -> Self {
        Self(PRIVATE_RANGES.to_vec())
    }
}

impl SecondNetworks {
    /// Whether an address counts.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|block| block.contains(&address))
    }
}
