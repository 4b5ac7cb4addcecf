//! Address prefixes of both families, and a map of them with longest-prefix match.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    V4,
    V6,
}

/// A prefix: the address's bits from the top of `bits`, zero after `len`. The order puts a prefix
/// before everything it holds, and keeps what it holds together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Prefix {
    pub(crate) family: Family,
    pub(crate) bits: u128,
    pub(crate) len: u8,
}

impl Prefix {
    /// The prefix of one address.
    pub(crate) fn host(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => {
                Self { family: Family::V4, bits: u128::from(v4.to_bits()) << 96, len: 32 }
            }
            IpAddr::V6(v6) => Self { family: Family::V6, bits: v6.to_bits(), len: 128 },
        }
    }

    /// The prefix of a CIDR, host bits masked off.
    pub(crate) fn net(net: IpNet) -> Self {
        Self::host(net.addr()).truncate(net.prefix_len())
    }

    /// Whether this is a single address.
    pub(crate) fn is_host(self) -> bool {
        self.len == self.width()
    }

    fn width(self) -> u8 {
        match self.family {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    /// The prefix of this length that holds this one.
    pub(crate) fn truncate(self, len: u8) -> Self {
        Self { bits: self.bits & mask(len), len, ..self }
    }

    /// The highest address's bits.
    pub(crate) fn last(self) -> u128 {
        self.bits | !mask(self.len)
    }

    /// An IPv4 prefix's address.
    pub(crate) fn v4(self) -> u32 {
        (self.bits >> 96) as u32
    }

    /// An IPv6 prefix's address.
    pub(crate) fn v6(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.bits)
    }

    /// An IPv6 prefix.
    pub(crate) fn net6(self) -> Ipv6Net {
        Ipv6Net::new_assert(self.v6(), self.len)
    }

    /// As others name it.
    pub(crate) fn to_net(self) -> IpNet {
        match self.family {
            Family::V4 => {
                IpNet::new_assert(std::net::Ipv4Addr::from_bits(self.v4()).into(), self.len)
            }
            Family::V6 => IpNet::V6(self.net6()),
        }
    }
}

/// The upper `len` bits.
fn mask(len: u8) -> u128 {
    if len == 0 { 0 } else { u128::MAX << (128 - u32::from(len)) }
}

/// A map of prefixes.
#[derive(Clone, Debug)]
pub(crate) struct PrefixMap<T> {
    map: BTreeMap<Prefix, T>,
    /// Entries by family and length: lookups skip the lengths that do not occur.
    lengths: [[u32; 129]; 2],
}

impl<T> PrefixMap<T> {
    pub(crate) fn new() -> Self {
        Self { map: BTreeMap::new(), lengths: [[0; 129]; 2] }
    }

    pub(crate) fn get(&self, prefix: Prefix) -> Option<&T> {
        self.map.get(&prefix)
    }

    pub(crate) fn get_mut(&mut self, prefix: Prefix) -> Option<&mut T> {
        self.map.get_mut(&prefix)
    }

    pub(crate) fn entry(&mut self, prefix: Prefix) -> &mut T
    where
        T: Default,
    {
        let lengths = &mut self.lengths[prefix.family as usize];
        self.map.entry(prefix).or_insert_with(|| {
            lengths[usize::from(prefix.len)] += 1;
            T::default()
        })
    }

    pub(crate) fn insert(&mut self, prefix: Prefix, value: T) -> Option<T> {
        let old = self.map.insert(prefix, value);
        if old.is_none() {
            self.lengths[prefix.family as usize][usize::from(prefix.len)] += 1;
        }
        old
    }

    pub(crate) fn remove(&mut self, prefix: Prefix) -> Option<T> {
        let old = self.map.remove(&prefix);
        if old.is_some() {
            self.lengths[prefix.family as usize][usize::from(prefix.len)] -= 1;
        }
        old
    }

    /// Entries that hold `prefix` and are at most `len` long, longest first.
    pub(crate) fn ancestors(&self, prefix: Prefix, len: u8) -> impl Iterator<Item = (Prefix, &T)> {
        let lengths = &self.lengths[prefix.family as usize];
        (0..=len.min(prefix.len)).rev().filter(|l| lengths[usize::from(*l)] != 0).filter_map(
            move |len| {
                let holder = prefix.truncate(len);
                self.map.get(&holder).map(|value| (holder, value))
            },
        )
    }

    /// The longest entry that holds `prefix`, itself included.
    pub(crate) fn longest(&self, prefix: Prefix) -> Option<&T> {
        self.ancestors(prefix, prefix.len).next().map(|(_, value)| value)
    }

    /// The longest entry that holds `prefix` and is not itself.
    pub(crate) fn parent(&self, prefix: Prefix) -> Option<&T> {
        let len = prefix.len.checked_sub(1)?;
        self.ancestors(prefix, len).next().map(|(_, value)| value)
    }

    /// Entries that `prefix` holds, itself included, each before what it holds.
    pub(crate) fn under(&self, prefix: Prefix) -> impl Iterator<Item = (Prefix, &T)> {
        let end = Prefix { bits: prefix.last(), len: 128, ..prefix };
        self.map.range(prefix..=end).map(|(p, value)| (*p, value))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Prefix, &T)> {
        self.map.iter().map(|(prefix, value)| (*prefix, value))
    }

    /// Number of entries of a family, single addresses and others.
    pub(crate) fn count(&self, family: Family) -> (u32, u32) {
        let lengths = &self.lengths[family as usize];
        let hosts = match family {
            Family::V4 => lengths[32],
            Family::V6 => lengths[128],
        };
        (hosts, lengths.iter().sum::<u32>() - hosts)
    }
}
