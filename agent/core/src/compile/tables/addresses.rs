//! The tables that lead from an address to its class: the IPv4 trie and both IPv6 tables.

use std::cmp::Reverse;

use netpold_ebpf::layout::ClassId;

use crate::compile::sets::partition::{AddressPartition, Settled};
use crate::compile::tables::ipv4_trie::{Changed, Ipv4Trie};
use crate::ops::Op;
use crate::prefix::{Around, Family, Prefix, PrefixMap};

/// The addresses of one prefix (those that no longer prefix of the update holds) change class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub(crate) prefix: Prefix,
    pub(crate) from: ClassId,
    pub(crate) to: ClassId,
    /// Their class while rows flip: what it was, what it will be, or a temporary one.
    pub(crate) between: ClassId,
    /// Whether the tables hold the prefix at the end.
    pub(crate) stays: bool,
}

/// The tables that map addresses to classes, as installed.
#[derive(Debug)]
pub(crate) struct AddressTables {
    prefixes: PrefixMap<ClassId>,
    pub(crate) ipv4_trie: Ipv4Trie,
    /// Most IPv6 addresses and prefixes held at once.
    pub(crate) ipv6_peak: (u32, u32),
}

impl AddressTables {
    pub(crate) fn new() -> Self {
        Self { prefixes: PrefixMap::new(), ipv4_trie: Ipv4Trie::new(), ipv6_peak: (0, 0) }
    }

    /// What has to move for the prefixes that were looked at to be as `partition` says.
    pub(crate) fn moves(&self, partition: &AddressPartition, settled: &[Settled]) -> Vec<Move> {
        let (mut parents, mut holders) = (Around::new(), Around::new());
        let moves = settled.iter().filter_map(|Settled { prefix, class }| {
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
            (concerns && !same).then_some(Move { prefix: *prefix, from, to, between: to, stays })
        });
        moves.collect()
    }

    /// Writes classes and then removes prefixes, both given in order. New prefixes come longest first, so that none
    /// ever covers addresses that a longer one is still to take; they go shortest first, for the same
    /// reason.
    pub(crate) fn write(
        &mut self,
        set: impl Iterator<Item = (Prefix, ClassId)> + Clone,
        gone: impl DoubleEndedIterator<Item = Prefix> + Clone,
        ops: &mut Vec<Op>,
    ) {
        let mut changed = Changed::default();
        // Single addresses, which are the longest, are mostly all: they stay in their order.
        for (prefix, class) in set.clone().filter(|(prefix, _)| prefix.is_host()) {
            self.set(prefix, class, &mut changed, ops);
        }
        let mut others: Vec<_> = set.filter(|(prefix, _)| !prefix.is_host()).collect();
        others.sort_by_key(|(prefix, _)| Reverse(prefix.len));
        for (prefix, class) in others {
            self.set(prefix, class, &mut changed, ops);
        }
        let (hosts, cidrs) = self.prefixes.count(Family::V6);
        self.ipv6_peak = (self.ipv6_peak.0.max(hosts), self.ipv6_peak.1.max(cidrs));
        let mut others: Vec<_> = gone.clone().filter(|prefix| !prefix.is_host()).collect();
        others.sort_by_key(|prefix| prefix.len);
        for prefix in others {
            self.remove(prefix, &mut changed, ops);
        }
        // The last first: that is the fastest for the map.
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
            Family::V4 => changed.add(prefix),
            Family::V6 if prefix.is_host() => ops.push(Op::Host6(prefix.v6(), class)),
            Family::V6 => ops.push(Op::Cidr6(prefix.net6(), class)),
        }
    }

    fn remove(&mut self, prefix: Prefix, changed: &mut Changed, ops: &mut Vec<Op>) {
        if self.prefixes.remove(prefix).is_none() {
            return;
        }
        match prefix.family {
            Family::V4 => changed.add(prefix),
            Family::V6 if prefix.is_host() => ops.push(Op::Host6Gone(prefix.v6())),
            Family::V6 => ops.push(Op::Cidr6Gone(prefix.net6())),
        }
    }

    /// The class that is installed for exactly this prefix.
    pub(crate) fn class_of(&self, prefix: Prefix) -> Option<ClassId> {
        self.prefixes.get(prefix).copied()
    }

    /// What is installed of a family.
    pub(crate) fn entries(&self, family: Family) -> impl Iterator<Item = (Prefix, ClassId)> {
        let whole = Prefix { family, bits: 0, len: 0 };
        self.prefixes.under(whole).map(|(prefix, class)| (prefix, *class))
    }

    /// Number of IPv6 addresses and prefixes.
    pub(crate) fn ipv6_count(&self) -> (u32, u32) {
        self.prefixes.count(Family::V6)
    }
}
