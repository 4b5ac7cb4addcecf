//! Sets of numbers (ports, names) as hash-consed binary tries. Equal sets have equal numbers, sets that differ in one
//! port share all but a path of sixteen nodes, and the common part of two sets is visited once.

use hashbrown::HashMap;
use netpold_ebpf::layout::PortBitmap;

/// A set; equal sets have equal numbers while in use.
pub(crate) type Trie = u32;

/// The empty set.
pub(crate) const NONE: Trie = 0;
/// The full set.
pub(crate) const ALL: Trie = 1;
/// First number of a node.
const FIRST: Trie = 2;

/// Bits of a port.
pub(crate) const PORT: u32 = 16;
/// Bits of the number of a name.
pub(crate) const NAME: u32 = 32;

/// Maximum size of the caches of unions and of differences; a full cache is emptied.
const REMEMBERED: usize = 1 << 19;
/// Minimum number of nodes before unused ones are collected.
const COLLECTED_FROM: usize = 1 << 16;

/// All tries. A node consists of two halves, the lower numbers first. The depth of a node determines its width, so a
/// node can be part of sets of ports and of sets of names.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    nodes: Vec<[Trie; 2]>,
    ids: HashMap<[Trie; 2], Trie>,
    free: Vec<Trie>,
    unions: HashMap<[Trie; 2], Trie>,
    differences: HashMap<[Trie; 2], Trie>,
    /// Number of nodes in use after the last collection.
    kept: usize,
    /// Number of visited and created nodes so far, as a deterministic measure of cost.
    pub(crate) work: u64,
}

impl Tries {
    fn node(&mut self, halves: [Trie; 2]) -> Trie {
        match halves {
            [NONE, NONE] => return NONE,
            [ALL, ALL] => return ALL,
            _ => {}
        }
        self.work += 1;
        if let Some(id) = self.ids.get(&halves) {
            return *id;
        }
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[(id - FIRST) as usize] = halves;
                id
            }
            None => {
                self.nodes.push(halves);
                self.nodes.len() as Trie - 1 + FIRST
            }
        };
        self.ids.insert(halves, id);
        id
    }

    fn halves(&self, set: Trie) -> [Trie; 2] {
        match set {
            NONE | ALL => [set; 2],
            node => self.nodes.get((node - FIRST) as usize).copied().unwrap_or_default(),
        }
    }

    /// The set of numbers from `first` to `last`, both included; numbers have `bits` bits.
    pub(crate) fn range(&mut self, bits: u32, first: u32, last: u32) -> Trie {
        if first == 0 && u64::from(last) == (1u64 << bits) - 1 {
            return ALL;
        }
        let half = 1u32 << (bits - 1);
        let low = (first < half).then(|| self.range(bits - 1, first, last.min(half - 1)));
        let high =
            (last >= half).then(|| self.range(bits - 1, first.saturating_sub(half), last - half));
        self.node([low.unwrap_or(NONE), high.unwrap_or(NONE)])
    }

    /// Union of two sets.
    pub(crate) fn union(&mut self, one: Trie, other: Trie) -> Trie {
        match (one.min(other), one.max(other)) {
            (NONE, set) => set,
            (ALL, _) => ALL,
            (a, b) if a == b => a,
            (a, b) => {
                self.work += 1;
                if let Some(known) = self.unions.get(&[a, b]) {
                    return *known;
                }
                let (of_a, of_b) = (self.halves(a), self.halves(b));
                let low = self.union(of_a[0], of_b[0]);
                let high = self.union(of_a[1], of_b[1]);
                let union = self.node([low, high]);
                if self.unions.len() >= REMEMBERED {
                    self.unions.clear();
                }
                self.unions.insert([a, b], union);
                union
            }
        }
    }

    /// Difference of two sets.
    pub(crate) fn minus(&mut self, one: Trie, other: Trie) -> Trie {
        match (one, other) {
            (NONE, _) | (_, ALL) => NONE,
            (set, NONE) => set,
            (a, b) if a == b => NONE,
            (a, b) => {
                self.work += 1;
                if let Some(known) = self.differences.get(&[a, b]) {
                    return *known;
                }
                let (of_a, of_b) = (self.halves(a), self.halves(b));
                let low = self.minus(of_a[0], of_b[0]);
                let high = self.minus(of_a[1], of_b[1]);
                let difference = self.node([low, high]);
                if self.differences.len() >= REMEMBERED {
                    self.differences.clear();
                }
                self.differences.insert([a, b], difference);
                difference
            }
        }
    }

    /// Numbers of a set with the highest of `bits` bits set, without that bit, in order.
    pub(crate) fn upper_half(&self, bits: u32, set: Trie) -> Vec<u32> {
        let mut numbers = Vec::new();
        self.numbers_below(bits - 1, self.halves(set)[1], 0, &mut numbers);
        numbers
    }

    fn numbers_below(&self, bits: u32, set: Trie, first: u32, numbers: &mut Vec<u32>) {
        match set {
            NONE => {}
            ALL => numbers.extend(first..=first + ((1u32 << bits) - 1)),
            _ if bits == 0 => {}
            node => {
                let [low, high] = self.halves(node);
                self.numbers_below(bits - 1, low, first, numbers);
                self.numbers_below(bits - 1, high, first | 1 << (bits - 1), numbers);
            }
        }
    }

    /// Whether a number of `bits` bits is in a set.
    pub(crate) fn contains(&self, bits: u32, set: Trie, number: u32) -> bool {
        let mut set = set;
        for bit in (0..bits).rev() {
            if set <= ALL {
                break;
            }
            set = self.halves(set)[(number >> bit & 1) as usize];
        }
        set == ALL
    }

    /// Lowest number of a set.
    pub(crate) fn lowest(&self, bits: u32, set: Trie) -> Option<u32> {
        let (mut set, mut lowest) = (set, 0);
        for bit in (0..bits).rev() {
            let [low, high] = self.halves(set);
            set = if low == NONE { high } else { low };
            lowest |= u32::from(low == NONE) << bit;
        }
        (set == ALL).then_some(lowest)
    }

    /// Passes the ranges of a set of ports to `visit` in order, both ends included; adjacent ranges are not merged.
    pub(crate) fn each_range(&self, set: Trie, visit: &mut impl FnMut(u16, u16)) {
        self.ranges_below(PORT, set, 0, visit);
    }

    fn ranges_below(&self, bits: u32, set: Trie, first: u32, visit: &mut impl FnMut(u16, u16)) {
        match set {
            NONE => {}
            ALL => visit(first as u16, (first + ((1u32 << bits) - 1)) as u16),
            _ if bits == 0 => {}
            node => {
                let [low, high] = self.halves(node);
                self.ranges_below(bits - 1, low, first, visit);
                self.ranges_below(bits - 1, high, first | 1 << (bits - 1), visit);
            }
        }
    }

    /// The only port of a set; `None` if the set has none or several.
    pub(crate) fn only(&self, set: Trie) -> Option<u16> {
        let mut set = set;
        let mut port = 0;
        for bit in (0..PORT).rev() {
            let half = match self.halves(set) {
                [half, NONE] => half,
                [NONE, half] => {
                    port |= 1u16 << bit;
                    half
                }
                _ => return None,
            };
            set = half;
        }
        (set == ALL).then_some(port)
    }

    /// Bitmap of a set of ports, as the packet path reads it.
    pub(crate) fn bitmap(&self, set: Trie) -> Box<PortBitmap> {
        let mut words = Box::new([0u64; 1024]);
        self.each_range(set, &mut |first, last| {
            let (from, to) = (usize::from(first >> 6), usize::from(last >> 6));
            // Ranges of a trie are powers of two: within a word, or whole words.
            if from == to {
                let bits = u64::MAX >> (63 - (last - first));
                words[from] |= bits << (first & 63);
            } else {
                words[from..=to].fill(u64::MAX);
            }
        });
        words
    }

    /// Copies a set from another collection. `known` caches the copied nodes.
    pub(crate) fn take_over(
        &mut self,
        from: &Self,
        set: Trie,
        known: &mut HashMap<Trie, Trie>,
    ) -> Trie {
        if set < FIRST {
            return set;
        }
        if let Some(known) = known.get(&set) {
            return *known;
        }
        let halves = from.halves(set).map(|half| self.take_over(from, half, known));
        let taken = self.node(halves);
        known.insert(set, taken);
        taken
    }

    /// Whether [`Tries::collect`] is due.
    pub(crate) fn is_large(&self) -> bool {
        self.nodes.len() - self.free.len() > (2 * self.kept).max(COLLECTED_FROM)
    }

    /// Frees nodes that are not part of these sets.
    pub(crate) fn collect(&mut self, sets: impl IntoIterator<Item = Trie>) {
        let mut used = vec![false; self.nodes.len()];
        let mut open: Vec<Trie> = sets.into_iter().collect();
        while let Some(set) = open.pop() {
            if let Some(used) = set.checked_sub(FIRST).and_then(|i| used.get_mut(i as usize))
                && !std::mem::replace(used, true)
            {
                open.extend(self.halves(set));
            }
        }
        self.unions = HashMap::new();
        self.differences = HashMap::new();
        let place = |id: Trie| (id - FIRST) as usize;
        self.ids.retain(|_, id| used[place(*id)]);
        self.ids.shrink_to_fit();
        self.free = (FIRST..).zip(&used).filter(|(_, used)| !**used).map(|(id, _)| id).collect();
        self.kept = self.nodes.len() - self.free.len();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    fn build(tries: &mut Tries, ranges: &[(u16, u16)]) -> Trie {
        ranges.iter().fold(NONE, |set, (first, last)| {
            let range = tries.range(PORT, (*first).into(), (*last).into());
            tries.union(set, range)
        })
    }

    proptest! {
        #[test]
        fn sets_contain_the_added_ranges(
            added in prop::collection::vec((0u16.., 0u16..3000), 0..8),
            probes in prop::collection::vec(0u16.., 32),
        ) {
            let mut tries = Tries::default();
            let added: Vec<_> = added.into_iter().map(|(f, n)| (f, f.saturating_add(n))).collect();
            let set = build(&mut tries, &added);
            let mut backwards = added.clone();
            backwards.reverse();
            prop_assert_eq!(build(&mut tries, &backwards), set, "equal sets have equal numbers");
            let bitmap = tries.bitmap(set);
            let edges = added.iter().flat_map(|(f, l)| {
                [*f, *l, f.wrapping_sub(1), l.wrapping_add(1)]
            });
            let mut ports = BTreeSet::new();
            tries.each_range(set, &mut |first, last| ports.extend(first..=last));
            for port in edges.chain(probes) {
                let expected = added.iter().any(|(f, l)| (*f..=*l).contains(&port));
                let bit = bitmap[usize::from(port >> 6)] >> (port & 63) & 1 == 1;
                prop_assert_eq!(bit, expected);
                prop_assert_eq!(tries.contains(PORT, set, port.into()), expected);
                prop_assert_eq!(ports.contains(&port), expected);
            }
            prop_assert_eq!(tries.lowest(PORT, set), ports.first().map(|port| u32::from(*port)));
            let only = ports.first().copied().filter(|_| ports.len() == 1);
            prop_assert_eq!(tries.only(set), only);
            let (even, odd): (Vec<_>, Vec<_>) =
                added.iter().copied().enumerate().partition(|(n, _)| n % 2 == 0);
            let [one, other] = [even, odd].map(|part| {
                let ranges: Vec<_> = part.into_iter().map(|(_, range)| range).collect();
                build(&mut tries, &ranges)
            });
            let left = tries.minus(one, other);
            for port in added.iter().flat_map(|(first, last)| [*first, *last]) {
                let [left, one, other] =
                    [left, one, other].map(|set| tries.contains(PORT, set, port.into()));
                prop_assert_eq!(left, one && !other, "{}", port);
            }
            let again = tries.union(left, other);
            prop_assert_eq!(again, set, "the union restores the set");
            let mut others = Tries::default();
            build(&mut others, &[(7, 70)]);
            let taken = others.take_over(&tries, set, &mut HashMap::new());
            prop_assert_eq!(others.bitmap(taken), bitmap);
        }
    }

    #[test]
    fn collection_frees_unused_nodes() {
        let mut tries = Tries::default();
        let kept = build(&mut tries, &[(80, 80), (443, 443)]);
        let bitmap = tries.bitmap(kept);
        for port in 1000..3000 {
            build(&mut tries, &[(port, port), (80, 80)]);
        }
        let before = tries.nodes.len();
        tries.collect([kept]);
        assert!(tries.kept < 40, "{} nodes kept", tries.kept);
        assert_eq!(tries.bitmap(kept), bitmap);
        assert_eq!(build(&mut tries, &[(443, 443), (80, 80)]), kept);
        build(&mut tries, &[(1000, 1000)]);
        assert_eq!(tries.nodes.len(), before, "free nodes are used again");
    }

    #[test]
    fn names_have_more_bits() {
        let mut tries = Tries::default();
        let one = tries.range(NAME, 70_000, 70_000);
        let other = tries.range(NAME, 5, 5);
        let both = tries.union(one, other);
        assert!(tries.upper_half(NAME, both).is_empty());
        let mut marked = both;
        for mark in [1 << 31, 1 << 31 | 6, 1 << 31 | 7] {
            let mark = tries.range(NAME, mark, mark);
            marked = tries.union(marked, mark);
        }
        assert_eq!(tries.upper_half(NAME, marked), [0, 6, 7]);
        for (name, expected) in [(5, true), (70_000, true), (4464, false), (0, false)] {
            assert_eq!(tries.contains(NAME, both, name), expected, "{name}");
        }
    }
}
