//! The tables that map an address to its class: the IPv4 trie and both IPv6 tables.

use std::cmp::Reverse;

use netpold_ebpf::layout::ClassId;

use crate::compile::sets::partition::{AddressPartition, SettledPrefix};
use crate::compile::tables::ipv4_trie::{Changed, Ipv4Trie};
use crate::ops::Op;
use crate::prefix::{EnclosingEntry, IpFamily, Prefix, PrefixMap};

/// A change of class for the addresses of one prefix, without those in longer prefixes of the update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassMove {
    pub(crate) prefix: Prefix,
    pub(crate) from: ClassId,
    pub(crate) to: ClassId,
    /// Their class while rows flip: the old, the new or a temporary one.
    pub(crate) between: ClassId,
    /// Whether the tables contain the prefix after the move.
    pub(crate) stays: bool,
}

/// The tables that map addresses to classes, as installed.
#[derive(Debug)]
pub(crate) struct AddressTables {
    prefixes: PrefixMap<ClassId>,
    pub(crate) ipv4_trie: Ipv4Trie,
    /// Peak number of IPv6 addresses and prefixes.
    pub(crate) ipv6_peak: (u32, u32),
}

impl AddressTables {
    pub(crate) fn new() -> Self {
        Self { prefixes: PrefixMap::new(), ipv4_trie: Ipv4Trie::new(), ipv6_peak: (0, 0) }
    }

    /// Moves that bring the settled prefixes to the state of `partition`.
    pub(crate) fn moves(
        &self,
        partition: &AddressPartition,
        settled: &[SettledPrefix],
    ) -> Vec<ClassMove> {
        let (mut parents, mut holders) = (EnclosingEntry::new(), EnclosingEntry::new());
        let moves = settled.iter().filter_map(|SettledPrefix { prefix, class }| {
            let parent = parents.find(&partition.entries, *prefix, |entry| Some(entry.class));
            let parent = parent.flatten().unwrap_or(0);
            let to = class.unwrap_or(parent);
            let stays = class.is_some() && to != parent;
            let installed = self.prefixes.get(*prefix).copied();
            let from = installed.unwrap_or_else(|| {
                holders.find(&self.prefixes, *prefix, |class| Some(*class)).unwrap_or(0)
            });
            let concerns = installed.is_some() || stays;
            let same = installed.is_some() == stays && from == to;
            (concerns && !same).then_some(ClassMove {
                prefix: *prefix,
                from,
                to,
                between: to,
                stays,
            })
        });
        moves.collect()
    }

    /// Writes classes, then removes prefixes; both are given in order. New prefixes are written longest first, so that
    /// none covers addresses of a longer one still to come. Ended prefixes are removed shortest first, for the same
    /// reason.
    pub(crate) fn write(
        &mut self,
        set: impl Iterator<Item = (Prefix, ClassId)> + Clone,
        gone: impl DoubleEndedIterator<Item = Prefix> + Clone,
        ops: &mut Vec<Op>,
    ) {
        let mut changed = Changed::default();
        // Single addresses are the longest prefixes and usually the most: they keep their order.
        for (prefix, class) in set.clone().filter(|(prefix, _)| prefix.is_host()) {
            self.set(prefix, class, &mut changed, ops);
        }
        let mut others: Vec<_> = set.filter(|(prefix, _)| !prefix.is_host()).collect();
        others.sort_by_key(|(prefix, _)| Reverse(prefix.len));
        for (prefix, class) in others {
            self.set(prefix, class, &mut changed, ops);
        }
        let (hosts, cidrs) = self.prefixes.count(IpFamily::V6);
        self.ipv6_peak = (self.ipv6_peak.0.max(hosts), self.ipv6_peak.1.max(cidrs));
        let mut others: Vec<_> = gone.clone().filter(|prefix| !prefix.is_host()).collect();
        others.sort_by_key(|prefix| prefix.len);
        for prefix in others {
            self.remove(prefix, &mut changed, ops);
        }
        // Removing from the end is fastest for the map.
        for prefix in gone.rev().filter(|prefix| prefix.is_host()) {
            self.remove(prefix, &mut changed, ops);
        }
        self.ipv4_trie.repaint(&self.prefixes, changed, ops);
    }

    fn set(&mut self, prefix: Prefix, class: ClassId, changed: &mut Changed, ops: &mut Vec<Op>) {
        if self.prefixes.insert(prefix, class) == Some(class) {
            return;
        }
        match prefix.family {
            IpFamily::V4 => changed.add(prefix),
            IpFamily::V6 if prefix.is_host() => ops.push(Op::Host6(prefix.v6(), class)),
            IpFamily::V6 => ops.push(Op::Block6(prefix.net6(), class)),
        }
    }

    fn remove(&mut self, prefix: Prefix, changed: &mut Changed, ops: &mut Vec<Op>) {
        if self.prefixes.remove(prefix).is_none() {
            return;
        }
        match prefix.family {
            IpFamily::V4 => changed.add(prefix),
            IpFamily::V6 if prefix.is_host() => ops.push(Op::Host6Gone(prefix.v6())),
            IpFamily::V6 => ops.push(Op::Block6Gone(prefix.net6())),
        }
    }

    /// Installed class of exactly this prefix.
    pub(crate) fn class_of(&self, prefix: Prefix) -> Option<ClassId> {
        self.prefixes.get(prefix).copied()
    }

    /// Installed prefixes of a family with their classes.
    pub(crate) fn entries(&self, family: IpFamily) -> impl Iterator<Item = (Prefix, ClassId)> {
        let whole = Prefix { family, bits: 0, len: 0 };
        self.prefixes.under(whole).map(|(prefix, class)| (prefix, *class))
    }

    /// Number of IPv6 addresses and prefixes.
    pub(crate) fn ipv6_count(&self) -> (u32, u32) {
        self.prefixes.count(IpFamily::V6)
    }
}
