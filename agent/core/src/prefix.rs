//! Address prefixes of both families, and a map with longest-prefix match.

mod pages;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

use pages::Pages;

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum IpFamily {
    V4,
    V6,
}

impl IpFamily {
    /// The prefix of a single address, given as a number.
    fn host(self, number: u128) -> Prefix {
        match self {
            Self::V4 => Prefix { family: self, bits: number << 96, len: 32 },
            Self::V6 => Prefix { family: self, bits: number, len: 128 },
        }
    }
}

/// A prefix: address bits aligned to the top of `bits`, zero after `len`. Sorts before all prefixes it contains, which
/// follow without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Prefix {
    pub(crate) family: IpFamily,
    pub(crate) bits: u128,
    pub(crate) len: u8,
}

impl Prefix {
    /// The prefix of a single address.
    pub(crate) fn host(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => {
                Self { family: IpFamily::V4, bits: u128::from(v4.to_bits()) << 96, len: 32 }
            }
            IpAddr::V6(v6) => Self { family: IpFamily::V6, bits: v6.to_bits(), len: 128 },
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
            IpFamily::V4 => 32,
            IpFamily::V6 => 128,
        }
    }

    /// The address as a number.
    fn number(self) -> u128 {
        self.bits >> (128 - u32::from(self.width()))
    }

    /// The enclosing prefix of this length.
    pub(crate) fn truncate(self, len: u8) -> Self {
        Self { bits: self.bits & mask(len), len, ..self }
    }

    /// Whether another prefix is equal to this one or contained in it.
    pub(crate) fn contains(self, other: Self) -> bool {
        self.family == other.family && self.len <= other.len && other.truncate(self.len) == self
    }

    /// Bits of the highest address.
    pub(crate) fn last(self) -> u128 {
        self.bits | !mask(self.len)
    }

    /// Address of an IPv4 prefix.
    pub(crate) fn v4(self) -> u32 {
        (self.bits >> 96) as u32
    }

    /// Address of an IPv6 prefix.
    pub(crate) fn v6(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.bits)
    }

    /// IPv6 prefix as [`Ipv6Net`].
    pub(crate) fn net6(self) -> Ipv6Net {
        Ipv6Net::new_assert(self.v6(), self.len)
    }

    /// The prefix as [`IpNet`].
    pub(crate) fn to_net(self) -> IpNet {
        match self.family {
            IpFamily::V4 => {
                IpNet::new_assert(std::net::Ipv4Addr::from_bits(self.v4()).into(), self.len)
            }
            IpFamily::V6 => IpNet::V6(self.net6()),
        }
    }
}

/// The upper `len` bits.
fn mask(len: u8) -> u128 {
    if len == 0 { 0 } else { u128::MAX << (128 - u32::from(len)) }
}

/// Key of an IPv4 prefix in a word, with the order of [`Prefix`].
fn key4(prefix: Prefix) -> u64 {
    u64::from(prefix.v4()) << 8 | u64::from(prefix.len)
}

fn prefix4(key: u64) -> Prefix {
    Prefix { family: IpFamily::V4, bits: u128::from(key >> 8) << 96, len: key as u8 }
}

/// Key of an IPv6 prefix, with the order of [`Prefix`].
type PrefixKey6 = (u128, u8);

fn key6(prefix: Prefix) -> PrefixKey6 {
    (prefix.bits, prefix.len)
}

fn prefix6((bits, len): PrefixKey6) -> Prefix {
    Prefix { family: IpFamily::V6, bits, len }
}

/// A map of prefixes. Families are separate for smaller keys. Single addresses are separate from other prefixes,
/// because they are many: a lookup reads few cache lines.
#[derive(Clone, Debug)]
pub(crate) struct PrefixMap<T> {
    four: BTreeMap<u64, T>,
    six: BTreeMap<PrefixKey6, T>,
    hosts: [Pages<T>; 2],
    lengths: [Lengths; 2],
}

/// Number of entries of a family by length: lookups skip lengths that do not occur.
#[derive(Clone, Debug)]
struct Lengths {
    /// On the heap, because maps are moved as parts of other values.
    count: Box<[u32; 129]>,
    /// Bit set of the lengths below 128 that occur.
    there: u128,
}

impl Lengths {
    fn none() -> Self {
        Self { count: Box::new([0; 129]), there: 0 }
    }

    fn add(&mut self, len: u8) {
        self.count[usize::from(len)] += 1;
        self.there |= bit(len);
    }

    fn remove(&mut self, len: u8) {
        let count = &mut self.count[usize::from(len)];
        *count -= 1;
        if *count == 0 {
            self.there &= !bit(len);
        }
    }

    /// Lengths that occur and are at most `len`, longest first.
    fn down_from(&self, len: u8) -> impl Iterator<Item = u8> + use<> {
        let longest = (len == 128 && self.count[128] != 0).then_some(128);
        let mut left = self.there & (bit(len).wrapping_sub(1) | bit(len));
        longest.into_iter().chain(std::iter::from_fn(move || {
            let len = left.checked_ilog2()? as u8;
            left &= !bit(len);
            Some(len)
        }))
    }
}

/// Bit of a length; 0 for length 128.
fn bit(len: u8) -> u128 {
    1u128.checked_shl(u32::from(len)).unwrap_or(0)
}

impl<T> Default for PrefixMap<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> PrefixMap<T> {
    pub(crate) fn new() -> Self {
        Self {
            four: BTreeMap::new(),
            six: BTreeMap::new(),
            hosts: [Pages::new(), Pages::new()],
            lengths: [Lengths::none(), Lengths::none()],
        }
    }

    pub(crate) fn get(&self, prefix: Prefix) -> Option<&T> {
        match prefix.family {
            family if prefix.is_host() => self.hosts[family as usize].get(prefix.number()),
            IpFamily::V4 => self.four.get(&key4(prefix)),
            IpFamily::V6 => self.six.get(&key6(prefix)),
        }
    }

    pub(crate) fn get_mut(&mut self, prefix: Prefix) -> Option<&mut T> {
        match prefix.family {
            family if prefix.is_host() => self.hosts[family as usize].get_mut(prefix.number()),
            IpFamily::V4 => self.four.get_mut(&key4(prefix)),
            IpFamily::V6 => self.six.get_mut(&key6(prefix)),
        }
    }

    pub(crate) fn entry(&mut self, prefix: Prefix) -> &mut T
    where
        T: Default,
    {
        let lengths = &mut self.lengths[prefix.family as usize];
        let new = || {
            lengths.add(prefix.len);
            T::default()
        };
        match prefix.family {
            family if prefix.is_host() => self.hosts[family as usize].entry(prefix.number(), new),
            IpFamily::V4 => self.four.entry(key4(prefix)).or_insert_with(new),
            IpFamily::V6 => self.six.entry(key6(prefix)).or_insert_with(new),
        }
    }

    pub(crate) fn insert(&mut self, prefix: Prefix, value: T) -> Option<T> {
        if let Some(known) = self.get_mut(prefix) {
            return Some(std::mem::replace(known, value));
        }
        self.lengths[prefix.family as usize].add(prefix.len);
        match prefix.family {
            family if prefix.is_host() => {
                self.hosts[family as usize].entry(prefix.number(), || value);
                None
            }
            IpFamily::V4 => self.four.insert(key4(prefix), value),
            IpFamily::V6 => self.six.insert(key6(prefix), value),
        }
    }

    pub(crate) fn remove(&mut self, prefix: Prefix) -> Option<T> {
        let old = match prefix.family {
            family if prefix.is_host() => self.hosts[family as usize].remove(prefix.number()),
            IpFamily::V4 => self.four.remove(&key4(prefix)),
            IpFamily::V6 => self.six.remove(&key6(prefix)),
        };
        if old.is_some() {
            self.lengths[prefix.family as usize].remove(prefix.len);
        }
        old
    }

    /// Entries of at most `len` bits that contain `prefix`, longest first.
    pub(crate) fn ancestors(&self, prefix: Prefix, len: u8) -> impl Iterator<Item = (Prefix, &T)> {
        let lengths = &self.lengths[prefix.family as usize];
        lengths.down_from(len.min(prefix.len)).filter_map(move |len| {
            let holder = prefix.truncate(len);
            self.get(holder).map(|value| (holder, value))
        })
    }

    /// The longest entry that contains or equals `prefix`.
    pub(crate) fn longest(&self, prefix: Prefix) -> Option<&T> {
        self.ancestors(prefix, prefix.len).next().map(|(_, value)| value)
    }

    /// The longest entry that contains `prefix` and does not equal it.
    pub(crate) fn parent(&self, prefix: Prefix) -> Option<&T> {
        let len = prefix.len.checked_sub(1)?;
        self.ancestors(prefix, len).next().map(|(_, value)| value)
    }

    /// The longest proper enclosing prefix with a length that occurs.
    fn holder(&self, prefix: Prefix) -> Option<Prefix> {
        let lengths = &self.lengths[prefix.family as usize];
        Some(prefix.truncate(lengths.down_from(prefix.len.checked_sub(1)?).next()?))
    }

    /// Entries contained in or equal to `prefix`, each before those that it contains.
    pub(crate) fn under(&self, prefix: Prefix) -> impl Iterator<Item = (Prefix, &T)> {
        let end = Prefix { bits: prefix.last(), len: 128, ..prefix };
        let (four, six) = match prefix.family {
            IpFamily::V4 => (Some(self.four.range(key4(prefix)..=key4(end))), None),
            IpFamily::V6 => (None, Some(self.six.range(key6(prefix)..=key6(end)))),
        };
        let four = four.into_iter().flatten().map(|(key, value)| (prefix4(*key), value));
        let six = six.into_iter().flatten().map(|(key, value)| (prefix6(*key), value));
        let hosts = self.hosts[prefix.family as usize].range(prefix.number(), end.number());
        let hosts = hosts.map(move |(number, value)| (prefix.family.host(number), value));
        let (mut others, mut hosts) = (four.chain(six).peekable(), hosts.peekable());
        std::iter::from_fn(move || match (others.peek(), hosts.peek()) {
            (Some((other, _)), Some((host, _))) if other > host => hosts.next(),
            (None, _) => hosts.next(),
            (Some(_), _) => others.next(),
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Prefix, &T)> {
        let all = [IpFamily::V4, IpFamily::V6].map(|family| Prefix { family, bits: 0, len: 0 });
        all.into_iter().flat_map(|all| self.under(all))
    }

    /// Number of single addresses and of other prefixes of a family.
    pub(crate) fn count(&self, family: IpFamily) -> (u32, u32) {
        let count = &self.lengths[family as usize].count;
        let hosts = match family {
            IpFamily::V4 => count[32],
            IpFamily::V6 => count[128],
        };
        (hosts, count.iter().sum::<u32>() - hosts)
    }
}

/// Cached result of a search through the enclosing entries of a prefix. Neighbours mostly have the same ones.
#[derive(Debug)]
pub(crate) struct EnclosingEntry<R> {
    known: Option<(Prefix, Option<R>)>,
}

impl<R: Copy> EnclosingEntry<R> {
    pub(crate) fn new() -> Self {
        Self { known: None }
    }

    /// The first `Some` that `select` returns for entries that properly contain `prefix`, longest first. Entries that
    /// contain one of the prefixes must not change between calls.
    pub(crate) fn find<T>(
        &mut self,
        map: &PrefixMap<T>,
        prefix: Prefix,
        select: impl Fn(&T) -> Option<R>,
    ) -> Option<R> {
        let holder = map.holder(prefix)?;
        if let Some((_, found)) = self.known.filter(|(known, _)| *known == holder) {
            return found;
        }
        let found = map.ancestors(holder, holder.len).find_map(|(_, value)| select(value));
        self.known = Some((holder, found));
        found
    }
}

#[cfg(test)]
mod tests {
    use prefix_trie::joint::JointPrefixMap;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_lengths_that_occur_are_looked_up() {
        let mut lengths = Lengths::none();
        for len in [0, 24, 32, 32, 127, 128] {
            lengths.add(len);
        }
        let from = |lengths: &Lengths, len| lengths.down_from(len).collect::<Vec<_>>();
        assert_eq!(from(&lengths, 128), [128, 127, 32, 24, 0]);
        assert_eq!(from(&lengths, 127), [127, 32, 24, 0]);
        assert_eq!(from(&lengths, 31), [24, 0]);
        assert_eq!(from(&lengths, 0), [0]);
        lengths.remove(32);
        lengths.remove(128);
        lengths.remove(0);
        assert_eq!(from(&lengths, 128), [127, 32, 24]);
    }

    #[test]
    fn keys_keep_prefixes_and_their_order() {
        let nets = ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/32", "10.0.0.1/32", "255.255.255.255/32"]
            .map(|net| Prefix::net(net.parse().unwrap()));
        assert!(nets.is_sorted_by_key(|prefix| key4(*prefix)));
        let nets6 = ["::/0", "fd00::/8", "fd00::/128", "fd00::1/128"]
            .map(|net| Prefix::net(net.parse().unwrap()));
        assert!(nets6.is_sorted_by_key(|prefix| key6(*prefix)));
        assert!(nets.iter().all(|prefix| prefix4(key4(*prefix)) == *prefix));
        assert!(nets6.iter().all(|prefix| prefix6(key6(*prefix)) == *prefix));
    }
    /// Prefixes in a small part of each family's addresses, so that many contain others.
    fn nets() -> impl Strategy<Value = IpNet> {
        let masked = |address: IpAddr, len| IpNet::new(address, len).unwrap().trunc();
        let v4 = (0..=u16::MAX, 0..=32u8).prop_map(move |(bits, len)| {
            masked(IpAddr::from([10, 0, (bits >> 14) as u8, bits as u8]), len)
        });
        let v6 = (0..=u16::MAX, 0..=128u8).prop_map(move |(bits, len)| {
            masked(Ipv6Addr::from_bits(0xfd << 120 | u128::from(bits)).into(), len)
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        /// The map and `prefix-trie` agree after any insertions and removals.
        #[test]
        fn the_map_is_as_the_reference(
            edits in prop::collection::vec((nets(), any::<bool>(), any::<u8>()), 1..60),
            asked in prop::collection::vec(nets(), 40),
        ) {
            let (mut map, mut reference) = (PrefixMap::default(), JointPrefixMap::<IpNet, u8>::new());
            for (net, is_there, value) in &edits {
                let (old, expected) = if *is_there {
                    (map.insert(Prefix::net(*net), *value), reference.insert(*net, *value))
                } else {
                    (map.remove(Prefix::net(*net)), reference.remove(net))
                };
                prop_assert_eq!(old, expected);
            }
            for net in edits.iter().map(|(net, ..)| net).chain(&asked) {
                let prefix = Prefix::net(*net);
                prop_assert_eq!(map.longest(prefix), reference.get_lpm(net).map(|(_, value)| value));
                let above = net.supernet().and_then(|net| reference.get_lpm(&net));
                prop_assert_eq!(map.parent(prefix), above.map(|(_, value)| value));
                let under: Vec<_> = map.under(prefix).map(|(prefix, value)| (prefix, *value)).collect();
                let expected = reference.children(net).map(|(net, value)| (Prefix::net(net), *value));
                prop_assert_eq!(under, expected.collect::<Vec<_>>());
            }
        }
    }
}
