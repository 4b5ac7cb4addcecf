//! Blocks of further networks.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Blocks in which addresses of further networks count. The default is the private ranges (RFC 1918, RFC 4193,
/// RFC 6598): an annotation of a pod must not claim an address of the Internet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondNetworks(pub Vec<IpNet>);

impl Default for SecondNetworks {
    fn default() -> Self {
        let v4 = [
            ([10, 0, 0, 0], 8),
            ([172, 16, 0, 0], 12),
            ([192, 168, 0, 0], 16),
            ([100, 64, 0, 0], 10),
        ];
        let v4 = v4.map(|(address, length)| Ipv4Net::new_assert(address.into(), length).into());
        let v6 = Ipv6Net::new_assert(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7).into();
        Self(v4.into_iter().chain([v6]).collect())
    }
}

impl SecondNetworks {
    /// Whether an address counts.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|block| block.contains(&address))
    }
}
