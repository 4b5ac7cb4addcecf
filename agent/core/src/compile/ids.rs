//! Element numbers of a table: handed out lowest first, reused only after a grace period.

use std::collections::BTreeSet;

/// Allocator of one table's element numbers. It does not know the table's capacity: an update runs
/// to its end and is then refused as a whole if [`Ids::needed`] exceeds it.
#[derive(Debug)]
pub(crate) struct Ids {
    next: u32,
    free: BTreeSet<u32>,
    quarantine: Vec<u32>,
}

impl Ids {
    /// An allocator whose first number is `reserved`.
    pub(crate) fn new(reserved: u32) -> Self {
        Self { next: reserved, free: BTreeSet::new(), quarantine: Vec::new() }
    }

    /// The lowest free number.
    pub(crate) fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Gives a number back; packets may still be reading its element.
    pub(crate) fn retire(&mut self, id: u32) {
        self.quarantine.push(id);
    }

    /// No packet reads retired elements any more.
    pub(crate) fn grace_passed(&mut self) {
        self.free.extend(self.quarantine.drain(..));
    }

    /// Elements the table must have for the numbers handed out so far.
    pub(crate) fn needed(&self) -> u32 {
        self.next
    }

    /// Elements in use, reserved and quarantined ones included.
    pub(crate) fn used(&self) -> u32 {
        self.next - self.free.len() as u32
    }
}
