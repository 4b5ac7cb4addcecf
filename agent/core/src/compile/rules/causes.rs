//! Namespaces to charge for a compilation of everything that a full table made necessary.
//!
//! The cause is growth: of the namespaces that use most of the table, those that use more of it than after the last
//! closing. Where nothing was closed, because the table was full only between two states, the cause is the edits of the
//! refused update.

use std::collections::{BTreeMap, BTreeSet};

use crate::budget::Combination;
use crate::ops::Table;

/// Combinations to close for a full table.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    pub(crate) combinations: BTreeSet<Combination>,
    /// Namespaces that use at least as much of the table as one of them.
    pub(crate) large: BTreeSet<String>,
    /// Elements that each namespace uses.
    pub(crate) before: BTreeMap<String, usize>,
    /// Elements that each namespace uses without the closed combinations.
    pub(crate) after: BTreeMap<String, usize>,
}

/// Causes of compilations of everything.
#[derive(Clone, Debug, Default)]
pub(super) struct Causes {
    /// Elements of each table that was full, by namespace, after its last closing.
    uses: BTreeMap<Table, BTreeMap<String, usize>>,
    /// Units compiled in this update, by namespace.
    edited: BTreeMap<String, u64>,
    /// Units compiled in the update that a table refused.
    refused: BTreeMap<String, u64>,
    /// Elements by which namespaces grew to fill a table.
    grown: BTreeMap<String, u64>,
}

impl Causes {
    /// Begins an update.
    pub(super) fn begin(&mut self) {
        self.edited.clear();
    }

    /// Records compiled units; 0 are those of ClusterNetworkPolicies alone, which nobody is charged for.
    pub(super) fn edit(&mut self, namespace: &str, units: u64) {
        if units == 0 {
            return;
        }
        *self.edited.entry(namespace.to_owned()).or_default() += units;
    }

    /// Records that a table refused the update.
    pub(super) fn refuse(&mut self) {
        self.refused = std::mem::take(&mut self.edited);
    }

    /// Records that larger tables take the refused update, which nobody is charged for.
    pub(super) fn forgive(&mut self) {
        self.refused.clear();
    }

    /// Records combinations closed for a full table. Returns the namespace that grew most, if any did.
    pub(super) fn close(&mut self, table: Table, closing: &Closing) -> Option<String> {
        let Closing { combinations, large, before, after } = closing;
        let known = self.uses.insert(table, after.clone()).unwrap_or_default();
        let grown = large.iter().filter_map(|namespace| {
            let before = before.get(namespace).copied().unwrap_or(0);
            let grown = before.saturating_sub(known.get(namespace).copied().unwrap_or(0));
            (grown > 0).then(|| (namespace.clone(), grown as u64))
        });
        let grown: BTreeMap<String, u64> = grown.collect();
        let most = most(&grown);
        if grown.is_empty() && self.grown.is_empty() {
            // Others filled the rest of the table: the namespaces that use most of it pay.
            let closed: BTreeSet<&str> = combinations.iter().map(Combination::namespace).collect();
            self.grown.extend(closed.into_iter().map(|namespace| (namespace.to_owned(), 1)));
        }
        self.grown.extend(grown);
        most
    }

    /// Takes the namespaces to charge, with their shares, and the one whose edits alone had everything compiled.
    pub(super) fn take(&mut self) -> (BTreeMap<String, u64>, Option<String>) {
        let (grown, refused) = (std::mem::take(&mut self.grown), std::mem::take(&mut self.refused));
        if grown.is_empty() {
            let editor = most(&refused);
            return (refused, editor);
        }
        (grown, None)
    }

    /// The uses after the last closings, for another compiler.
    pub(super) fn passed_on(&self) -> Self {
        Self { uses: self.uses.clone(), ..Self::default() }
    }
}

/// The namespace with the largest share.
fn most(shares: &BTreeMap<String, u64>) -> Option<String> {
    shares.iter().max_by_key(|(_, share)| **share).map(|(namespace, _)| namespace.clone())
}
