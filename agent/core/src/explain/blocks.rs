//! The address space, split along the blocks that policies name.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The blocks that policies name, and the whole address space of each family. Policies cannot distinguish two
/// addresses with the same longest block.
#[derive(Clone, Debug)]
pub struct Blocks(BTreeSet<IpNet>);

impl Blocks {
    /// Collects the blocks, host bits masked off.
    #[must_use]
    pub fn new(named: impl IntoIterator<Item = IpNet>) -> Self {
        let whole = [
            IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
            IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
        ];
        Self(named.into_iter().map(|net| net.trunc()).chain(whole).collect())
    }

    /// Returns every block, shorter ones before longer ones within them.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        self.0.iter().copied()
    }

    /// Returns the longest block that contains an address.
    #[must_use]
    pub fn around(&self, address: IpAddr) -> IpNet {
        let mut block = IpNet::from(address);
        while !self.0.contains(&block) {
            // The set contains the whole address space, so the loop ends there.
            let Some(wider) = block.supernet() else { break };
            block = wider;
        }
        block
    }

    /// Returns the parts of a block that longer blocks cover.
    #[must_use]
    pub fn within(&self, block: IpNet) -> Vec<IpNet> {
        let longer = self.iter().filter(|net| *net != block && block.contains(net));
        IpNet::aggregate(&longer.collect())
    }

    /// Returns an address of a block, outside of longer blocks, for which `is_known` is false.
    #[must_use]
    pub fn sample(&self, block: IpNet, is_known: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let inner = self.within(block);
        let mut address = block.network();
        while block.contains(&address) {
            let last = match inner.iter().find(|net| net.contains(&address)) {
                Some(net) => net.broadcast(),
                None if is_known(address) => address,
                None => return Some(address),
            };
            address = next(last)?;
        }
        None
    }
}

fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => {
            address.to_bits().checked_add(1).map(|bits| Ipv4Addr::from_bits(bits).into())
        }
        IpAddr::V6(address) => {
            address.to_bits().checked_add(1).map(|bits| Ipv6Addr::from_bits(bits).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_in_its_longest_block() {
        let blocks = Blocks::new(["10.0.0.0/8", "10.1.0.0/16", "10.1.0.7/32"].map(net));
        for (address, block) in [
            ("10.1.0.7", "10.1.0.7/32"),
            ("10.1.0.8", "10.1.0.0/16"),
            ("10.2.0.0", "10.0.0.0/8"),
            ("11.0.0.0", "0.0.0.0/0"),
            ("fd00::1", "::/0"),
        ] {
            assert_eq!(blocks.around(ip(address)), net(block));
        }
    }

    #[test]
    fn samples_avoid_inner_blocks_and_what_is_known() {
        let blocks =
            Blocks::new(["10.0.0.0/8", "10.0.0.0/16", "10.1.0.0/31", "10.1.0.2/32"].map(net));
        let known = [ip("10.1.0.3"), ip("10.1.0.2")];
        let is_known = |address| known.contains(&address);
        assert_eq!(blocks.sample(net("10.0.0.0/8"), is_known), Some(ip("10.1.0.4")));
        assert_eq!(blocks.sample(net("10.1.0.2/32"), is_known), None);
        let halves = Blocks::new(["0.0.0.0/1", "128.0.0.0/1"].map(net));
        assert_eq!(halves.sample(net("0.0.0.0/0"), |_| false), None);
        assert_eq!(halves.sample(net("128.0.0.0/1"), |_| false), Some(ip("128.0.0.0")));
    }
}
