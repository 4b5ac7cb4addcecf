//! Result of compiling the cluster's state.

use std::collections::BTreeSet;

use crate::cluster::{Cluster, Dirty};
use crate::compile::consumption;
use crate::compile::image::TableImage;
use crate::compile::rules::{LateCombination, Rules};
use crate::compile::sets::Sets;
use crate::compile::tables::{DesiredTables, TableSet};
use crate::compile::update::Update;
use crate::model::{Direction, Key};
use crate::ops::{Capacity, Op, Table, TableUse};
use crate::options::Options;

/// Reason for a refused update.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// A table is too small. Nothing was written; further updates fail until
    /// [`Compiler::recompile`](crate::compile::Compiler::recompile).
    #[error("{table}: {needed} needed, {capacity} available")]
    Full {
        /// The first table that is too small.
        table: Table,
        /// Elements needed.
        needed: u32,
        /// Elements available.
        capacity: u32,
    },
}

/// Sets, rules and tables as of the last update, whether or not the kernel has room for them.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) sets: Sets,
    pub(super) rules: Rules,
    pub(super) tables: TableSet,
}

impl Compiled {
    /// Empty sets, rules and tables.
    pub(super) fn new(options: &Options) -> Self {
        Self { sets: Sets::new(), rules: Rules::default(), tables: TableSet::new(options) }
    }

    /// Drops all contents. Endpoints keep their numbers, and closed combinations stay closed.
    pub(super) fn forget(&mut self) {
        self.sets = Sets::new();
        self.rules.forget();
        self.tables.forget();
    }

    /// Compiles dirty state, regardless of capacity; returns the operations in order.
    pub(super) fn update(
        &mut self,
        cluster: &Cluster,
        options: &Options,
        dirty: &Dirty,
    ) -> Vec<Op> {
        let Self { sets, rules, tables } = self;
        Update { cluster, options, sets, rules, tables }.run(dirty)
    }

    /// Frees retired elements: no packet reads them any more.
    pub(super) fn grace_passed(&mut self) {
        self.sets.classes.slots.grace_passed();
        self.tables.grace_passed();
    }

    /// Error for the first table that is too small.
    pub(super) fn overflow(&self, capacity: &Capacity) -> Option<CompileError> {
        Table::ALL.into_iter().find_map(|table| {
            let (_, needed) = self.tables.elements(table, &self.sets.classes);
            let capacity = capacity.capacity_of(table);
            (needed > capacity).then_some(CompileError::Full { table, needed, capacity })
        })
    }

    /// Closes combinations of policies until this many elements of a full table are free; false if none uses it.
    pub(super) fn leave_out(&mut self, table: Table, excess: u32) -> bool {
        let all = (&self.rules, &self.sets, &self.tables);
        let closing = consumption::choose(all, table, excess as usize);
        self.rules.limits.leave_out(table, closing)
    }

    /// Closes combinations of policies until an eighth of a table is free. False if it is free already, or if policies
    /// of namespaces use less than half of the table: closing them would hardly help.
    pub(super) fn keep_reserve(&mut self, table: Table, capacity: u32) -> bool {
        let used = self.used(table);
        let excess = used.saturating_sub(capacity - capacity / 8);
        if excess == 0 || table == Table::Names {
            return false;
        }
        let all = (&self.rules, &self.sets, &self.tables);
        let closing = consumption::choose(all, table, excess as usize);
        let uses: usize = closing.before.values().sum();
        uses >= capacity as usize / 2 && self.rules.limits.leave_out(table, closing)
    }

    /// Records the use of tables that were full, by namespace, after a full compilation.
    pub(super) fn compare_later(&mut self) {
        for table in self.rules.limits.compared() {
            let all = (&self.rules, &self.sets, &self.tables);
            let uses = consumption::choose(all, table, 0).before;
            self.rules.limits.compiled(table, &uses);
        }
    }

    fn used(&self, table: Table) -> u32 {
        self.tables.elements(table, &self.sets.classes).0
    }

    /// Ends an update that fits into the tables.
    pub(super) fn settled(&mut self) {
        let Self { sets, rules, tables } = self;
        rules.limits.settled(|table| tables.elements(table, &sets.classes).0);
    }

    /// Whether a table for which combinations are closed is less full than after closing them.
    pub(super) fn has_room_again(&self) -> bool {
        self.rules.limits.has_room_again(|table| self.used(table))
    }

    /// Used and available elements of every table.
    pub(super) fn fill(&self, capacity: &Capacity) -> Vec<TableUse> {
        self.tables.fill(&self.sets.classes, capacity)
    }

    /// Desired contents of the tables.
    pub(super) fn image(&self) -> TableImage {
        TableImage::new(&self.sets, &self.rules.tries, &self.tables.endpoints.live)
    }

    /// Desired contents of the tables, element by element.
    pub(super) fn desired(&self) -> DesiredTables<'_> {
        DesiredTables { tables: &self.tables, tries: &self.rules.tries }
    }

    /// Work done so far: prefixes, classes by row and nodes of port sets.
    pub(super) fn work(&self) -> u64 {
        self.rules.work() + self.sets.groups.work
    }

    /// Closed combinations of policies with their direction and the reason.
    pub(super) fn closed(&self) -> impl Iterator<Item = (&[Key], Direction, String)> {
        let late: BTreeSet<_> = self.tables.endpoints.late().filter(|it| it.is_closed).collect();
        let late = late.into_iter();
        let late = late
            .map(|it| (&it.of.policies[..], it.of.direction, LateCombination::REASON.to_owned()));
        self.rules.closed().chain(late)
    }
}
