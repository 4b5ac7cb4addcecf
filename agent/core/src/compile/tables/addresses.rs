//! The tables that lead from an address to its class: the IPv4 trie and both IPv6 tables.

use netpold_ebpf::layout::ClassId;

use crate::compile::sets::partition::AddressPartition;
use crate::compile::tables::ipv4_trie::Ipv4Trie;
use crate::ops::Op;
use crate::prefix::{Family, Prefix, PrefixMap};

/// The addresses of one prefix (those that no longer prefix of the update holds) change class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub(crate) prefix: Prefix,
    pub(crate) from: ClassId,
    pub(crate) to: ClassId,
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

    /// What has to move for the touched prefixes to be as `partition` says.
    pub(crate) fn moves(&self, partition: &AddressPartition, touched: &[Prefix]) -> Vec<Move> {
        let moves = touched.iter().filter_map(|prefix| {
            let (entry, parent) = (partition.entries.get(*prefix), partition.parent_class(*prefix));
            let to = entry.map_or(parent, |entry| entry.class.unwrap_or(0));
            let stays = entry.is_some() && to != parent;
            let installed = self.prefixes.get(*prefix).copied();
            let holder = || self.prefixes.parent(*prefix).copied().unwrap_or(0);
            let from = installed.unwrap_or_else(holder);
            let concerns = installed.is_some() || stays;
            let same = installed.is_some() == stays && from == to;
            (concerns && !same).then_some(Move { prefix: *prefix, from, to, stays })
        });
        moves.collect()
    }

    /// Writes classes and then removes prefixes. New prefixes come longest first, so that none ever
    /// covers addresses that a longer one is still to take; they go shortest first, for the same
    /// reason.
    pub(crate) fn write(
        &mut self,
        mut set: Vec<(Prefix, ClassId)>,
        mut gone: Vec<Prefix>,
        ops: &mut Vec<Op>,
    ) {
        set.sort_by_key(|(prefix, _)| (std::cmp::Reverse(prefix.len), *prefix));
        gone.sort_by_key(|prefix| (prefix.len, *prefix));
        let mut changed = Vec::new();
        for (prefix, class) in set {
            if self.prefixes.insert(prefix, class) == Some(class) {
                continue;
            }
            match prefix.family {
                Family::V4 => changed.push(prefix),
                Family::V6 if prefix.is_host() => ops.push(Op::Host6(prefix.v6(), class)),
                Family::V6 => ops.push(Op::Cidr6(prefix.net6(), class)),
            }
        }
        let (hosts, cidrs) = self.prefixes.count(Family::V6);
        self.ipv6_peak = (self.ipv6_peak.0.max(hosts), self.ipv6_peak.1.max(cidrs));
        for prefix in &gone {
            if self.prefixes.remove(*prefix).is_none() {
                continue;
            }
            match prefix.family {
                Family::V4 => changed.push(*prefix),
                Family::V6 if prefix.is_host() => ops.push(Op::Host6Gone(prefix.v6())),
                Family::V6 => ops.push(Op::Cidr6Gone(prefix.net6())),
            }
        }
        self.ipv4_trie.repaint(&self.prefixes, &changed, ops);
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
