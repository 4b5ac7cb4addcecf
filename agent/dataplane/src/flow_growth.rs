//! Growth of the flow tables.
//!
//! They start with a part of the size that the node may need. Once a quarter of one is in use, the next generation has
//! larger ones, and [`super::flow_migration`] migrates the flows. They never shrink.

use super::attach::Mode;
use super::generation::FlowTables;
use crate::conntrack::{Buckets, Occupancy};

/// Whether the flow tables are to grow.
#[derive(Debug)]
pub(super) struct FlowGrowth {
    buckets: Buckets,
    crowded: bool,
}

impl FlowGrowth {
    /// With clsact a migration may lose packets of some milliseconds, so the tables start at their full size.
    pub(super) fn new(buckets: Buckets, mode: Mode) -> Self {
        let buckets = match mode {
            Mode::Tcx => buckets,
            Mode::Clsact => Buckets::fixed(buckets.most),
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

    /// Whether larger tables are to replace those with `in_force` buckets.
    pub(super) fn is_due(&self, in_force: u32) -> bool {
        self.crowded && self.can(in_force)
    }

    /// Whether it matters how full tables with so many buckets are.
    pub(super) fn is_open(&self, in_force: u32) -> bool {
        self.can(in_force) && !self.crowded
    }

    /// Takes the occupancy of the tables into account.
    pub(super) fn look(&mut self, found: [Occupancy; 2]) {
        self.crowded |= found.iter().any(|table| 4 * table.used > table.ways);
    }

    /// Rules larger tables out, since this node has no room for them.
    pub(super) fn give_up(&mut self) {
        self.buckets.most = self.buckets.first;
    }

    fn can(&self, in_force: u32) -> bool {
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
            let mut growth = FlowGrowth::new(BUCKETS, Mode::Tcx);
            assert_eq!(growth.next(16), FlowTables::Pinned(16));
            growth.look(found(v4, v6));
            assert_eq!(growth.is_due(16), due, "{v4} {v6}");
            growth.look(found(0, 0));
            assert_eq!(growth.is_due(16), due, "they were too full once");
            let next = if due { FlowTables::Own(64) } else { FlowTables::Pinned(16) };
            assert_eq!(growth.next(16), next);
            assert!(!growth.is_due(64), "there is nothing larger");
            growth.give_up();
            assert!(!growth.is_due(16));
        }
    }

    #[test]
    fn nobody_looks_where_it_does_not_matter() {
        let mut growth = FlowGrowth::new(BUCKETS, Mode::Tcx);
        assert!(!growth.is_open(64), "they cannot grow");
        assert!(growth.is_open(16));
        growth.look(found(17, 0));
        assert!(!growth.is_open(16), "it is known");
    }

    #[test]
    fn tables_below_clsact_begin_large() {
        let mut growth = FlowGrowth::new(BUCKETS, Mode::Clsact);
        assert_eq!(growth.first(), FlowTables::Pinned(64));
        growth.look(found(64, 0));
        assert!(!growth.is_due(64));
    }
}
