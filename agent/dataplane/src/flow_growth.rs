//! Growth of the flow tables.
//!
//! The IPv4 and the IPv6 table start with a part of the size that the node may need. Once a quarter of either table is
//! in use, the next generation has larger tables, and [`super::flow_migration`] migrates the flows. Tables never
//! shrink.

use super::attach::AttachMode;
use super::generation::FlowTables;
use crate::conntrack::{Buckets, Occupancy};

/// Decides whether the flow tables grow.
#[derive(Debug)]
pub(super) struct FlowGrowth {
    buckets: Buckets,
    /// Whether more than a quarter of a table was once in use.
    crowded: bool,
}

impl FlowGrowth {
    /// With clsact, a migration may drop packets for some milliseconds, so the tables start at their full size.
    pub(super) fn new(buckets: Buckets, mode: AttachMode) -> Self {
        let buckets = match mode {
            AttachMode::Tcx => buckets,
            AttachMode::Clsact => Buckets::fixed(buckets.most),
        };
        Self { buckets, crowded: false }
    }

    /// Tables of the first generation.
    pub(super) fn first(&self) -> FlowTables {
        FlowTables::Pinned(self.buckets.first)
    }

    /// Tables of the next generation, which replace those with `in_force` buckets.
    pub(super) fn next(&self, in_force: u32) -> FlowTables {
        if self.is_due(in_force) { FlowTables::Own(self.buckets.most) } else { self.first() }
    }

    /// Whether larger tables must replace those with `in_force` buckets.
    pub(super) fn is_due(&self, in_force: u32) -> bool {
        self.crowded && self.can_grow(in_force)
    }

    /// Whether the occupancy of tables with `in_force` buckets decides about growth.
    pub(super) fn needs_occupancy(&self, in_force: u32) -> bool {
        self.can_grow(in_force) && !self.crowded
    }

    /// Records the occupancy of the two tables.
    pub(super) fn record_occupancy(&mut self, found: [Occupancy; 2]) {
        self.crowded |= found.iter().any(|table| 4 * table.used > table.ways);
    }

    /// Rules out larger tables, because the node has no memory for them.
    pub(super) fn give_up(&mut self) {
        self.buckets.most = self.buckets.first;
    }

    fn can_grow(&self, in_force: u32) -> bool {
        in_force < self.buckets.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKETS: Buckets = Buckets { first: 16, most: 64 };

    fn found(v4: usize, v6: usize) -> [Occupancy; 2] {
        [v4, v6].map(|used| Occupancy { used, ways: 64 })
    }

    #[test]
    fn tables_grow_once_a_quarter_of_one_is_in_use() {
        for (v4, v6, due) in [(16, 16, false), (17, 0, true), (0, 17, true)] {
            let mut growth = FlowGrowth::new(BUCKETS, AttachMode::Tcx);
            assert_eq!(growth.next(16), FlowTables::Pinned(16));
            growth.record_occupancy(found(v4, v6));
            assert_eq!(growth.is_due(16), due, "{v4} {v6}");
            growth.record_occupancy(found(0, 0));
            assert_eq!(growth.is_due(16), due, "the occupancy of the past decides");
            let next = if due { FlowTables::Own(64) } else { FlowTables::Pinned(16) };
            assert_eq!(growth.next(16), next);
            assert!(!growth.is_due(64), "no larger size exists");
            growth.give_up();
            assert!(!growth.is_due(16));
        }
    }

    #[test]
    fn occupancy_is_needed_only_while_undecided() {
        let mut growth = FlowGrowth::new(BUCKETS, AttachMode::Tcx);
        assert!(!growth.needs_occupancy(64), "the largest tables cannot grow");
        assert!(growth.needs_occupancy(16));
        growth.record_occupancy(found(17, 0));
        assert!(!growth.needs_occupancy(16), "growth is decided");
    }

    #[test]
    fn tables_with_clsact_start_large() {
        let mut growth = FlowGrowth::new(BUCKETS, AttachMode::Clsact);
        assert_eq!(growth.first(), FlowTables::Pinned(64));
        growth.record_occupancy(found(64, 0));
        assert!(!growth.is_due(64));
    }
}
