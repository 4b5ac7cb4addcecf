//! Namespaces to charge for a full compilation that a full table caused.
//!
//! The cause is growth: namespaces that use more of a formerly full table than when it was full, or than after the last
//! full compilation that had room. Combinations that such a compilation opens again are not growth. If nothing is known
//! of the table, or no namespace grew, the cause is the edits of the refused update.

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

/// Elements of a table that a namespace uses.
#[derive(Clone, Copy, Debug, Default)]
struct NamespaceUse {
    /// With the combinations closed for the table.
    open: usize,
    /// Without them.
    kept: usize,
}

/// Causes of full compilations.
#[derive(Clone, Debug, Default)]
pub(super) struct FullCompilationCauses {
    /// Use of each table that was full, by namespace, to compare with.
    known: BTreeMap<Table, BTreeMap<String, NamespaceUse>>,
    /// Units compiled in this update, by namespace.
    edited: BTreeMap<String, u64>,
    /// Units compiled in the update that a table refused.
    refused: BTreeMap<String, u64>,
    /// Elements by which namespaces grew to fill a table.
    grown: BTreeMap<String, u64>,
}

impl FullCompilationCauses {
    /// Begins an update.
    pub(super) fn begin(&mut self) {
        self.edited.clear();
    }

    /// Records compiled units. Units of ClusterNetworkPolicies alone count as 0, because no namespace is charged for
    /// them.
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

    /// Records that larger tables take the refused update, for which no namespace is charged.
    pub(super) fn forgive(&mut self) {
        self.refused.clear();
    }

    /// Records combinations closed for a full table. `starts_over`: none was closed before in this compilation. Returns the
    /// namespace that grew most, if it is among those that use most.
    pub(super) fn close(
        &mut self,
        table: Table,
        closing: &Closing,
        starts_over: bool,
    ) -> Option<String> {
        let Closing { large, before, after, .. } = closing;
        let of = |uses: &BTreeMap<String, usize>, name: &str| uses.get(name).copied().unwrap_or(0);
        let uses = before.iter().map(|(name, open)| {
            (name.clone(), NamespaceUse { open: *open, kept: of(after, name) })
        });
        // Nothing is known of a table that is full for the first time.
        let known = self.known.insert(table, uses.collect())?;
        let grown = before.iter().filter_map(|(name, before)| {
            let known = known.get(name).copied().unwrap_or_default();
            let grown = before.saturating_sub(if starts_over { known.open } else { known.kept });
            (grown > 0).then(|| (name.clone(), grown as u64))
        });
        let grown: BTreeMap<String, u64> = grown.collect();
        let most = most(&grown).filter(|most| large.contains(most));
        self.grown.extend(grown);
        most
    }

    /// Tables that were full.
    pub(super) fn tables(&self) -> Vec<Table> {
        self.known.keys().copied().collect()
    }

    /// Records the use of a table after a full compilation that had room. Closed combinations of a namespace count as
    /// much as they did when they were closed.
    pub(super) fn compiled(
        &mut self,
        table: Table,
        uses: &BTreeMap<String, usize>,
        is_closed: impl Fn(&str) -> bool,
    ) {
        let Some(known) = self.known.get_mut(&table) else { return };
        let before = std::mem::take(known);
        *known = uses
            .iter()
            .map(|(name, kept)| {
                let closed = before.get(name).map_or(0, |it| it.open.saturating_sub(it.kept));
                let open = kept + if is_closed(name) { closed } else { 0 };
                (name.clone(), NamespaceUse { open, kept: *kept })
            })
            .collect();
    }

    /// Takes the namespaces to charge, with their shares. If these are edits, also the namespace of nearly all of them, with
    /// its units.
    pub(super) fn take_charges(&mut self) -> (BTreeMap<String, u64>, Option<(String, u64)>) {
        let (grown, refused) = (std::mem::take(&mut self.grown), std::mem::take(&mut self.refused));
        if !grown.is_empty() {
            return (grown, None);
        }
        let all: u64 = refused.values().sum();
        let editor = most(&refused).and_then(|name| {
            let units = refused.get(&name).copied()?;
            (units >= all - all / 8).then_some((name, units))
        });
        (refused, editor)
    }

    /// The uses to compare with, for another compiler.
    pub(super) fn passed_on(&self) -> Self {
        Self { known: self.known.clone(), ..Self::default() }
    }
}

/// The namespace with the largest share.
fn most(shares: &BTreeMap<String, u64>) -> Option<String> {
    shares.iter().max_by_key(|(_, share)| **share).map(|(namespace, _)| namespace.clone())
}
