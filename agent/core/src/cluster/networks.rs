//! Address ranges of secondary networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Private addresses (RFC 1918, RFC 4193) and the shared address space of carrier-grade NAT (RFC 6598), which some
/// clouds assign to pods.
pub const PRIVATE_RANGES: [IpNet; 5] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12)),
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7)),
];

/// Blocks in which addresses of secondary networks, from annotations of pods, are accepted. The default is
/// [`PRIVATE_RANGES`], so that an annotation cannot claim an address of the Internet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondaryNetworks(pub Vec<IpNet>);

impl Default for SecondaryNetworks {
    fn default() -> Self {
        Self(PRIVATE_RANGES.to_vec())
    }
}

impl SecondaryNetworks {
    /// Whether an address is in one of the blocks.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|block| block.contains(&address))
    }
}
