//! Element numbers of a table: lowest free number first, reused only after a grace period.

use std::collections::BTreeSet;

/// Allocator of one table's element numbers. It ignores the table's capacity: an update runs to its end and is then
/// refused as a whole if [`SlotAllocator::needed`] exceeds the capacity.
#[derive(Debug)]
pub(crate) struct SlotAllocator {
    next: u32,
    free: BTreeSet<u32>,
    /// First numbers of free pairs, which are never split.
    free_pairs: BTreeSet<u32>,
    quarantine: Vec<u32>,
    quarantined_pairs: Vec<u32>,
}

impl SlotAllocator {
    /// Creates an allocator that begins at `reserved`.
    pub(crate) fn new(reserved: u32) -> Self {
        Self {
            next: reserved,
            free: BTreeSet::new(),
            free_pairs: BTreeSet::new(),
            quarantine: Vec::new(),
            quarantined_pairs: Vec::new(),
        }
    }

    /// The lowest free number.
    pub(crate) fn allocate(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// The lowest free pair of numbers: returns the even one; the next number is the other.
    pub(crate) fn take_pair(&mut self) -> u32 {
        self.free_pairs.pop_first().unwrap_or_else(|| {
            if self.next % 2 == 1 {
                self.free.insert(self.next);
                self.next += 1;
            }
            self.next += 2;
            self.next - 2
        })
    }

    /// Returns a pair, see [`SlotAllocator::retire`].
    pub(crate) fn retire_pair(&mut self, first: u32) {
        self.quarantined_pairs.push(first);
    }

    /// Returns a number; packets may still read its element.
    pub(crate) fn retire(&mut self, id: u32) {
        self.quarantine.push(id);
    }

    /// Makes retired numbers available: no packet reads their elements any more.
    pub(crate) fn grace_passed(&mut self) {
        self.free.extend(self.quarantine.drain(..));
        self.free_pairs.extend(self.quarantined_pairs.drain(..));
    }

    /// Elements the table must have for the numbers handed out so far.
    pub(crate) fn needed(&self) -> u32 {
        self.next
    }

    /// Elements in use, including reserved and quarantined ones.
    pub(crate) fn used(&self) -> u32 {
        self.next - self.free.len() as u32 - 2 * self.free_pairs.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_even_and_stay_pairs() {
        let mut slots = SlotAllocator::new(1);
        assert_eq!(
            [slots.take_pair(), slots.allocate(), slots.allocate(), slots.take_pair()],
            [2, 1, 4, 6]
        );
        assert_eq!((slots.allocate(), slots.needed(), slots.used()), (5, 8, 8));
        slots.retire_pair(2);
        assert_eq!((slots.take_pair(), slots.used()), (8, 10), "packets may still read it");
        slots.grace_passed();
        assert_eq!(slots.used(), 8);
        assert_eq!(slots.allocate(), 10, "half a pair is not given");
        assert_eq!((slots.take_pair(), slots.used()), (2, 11));
    }
}
