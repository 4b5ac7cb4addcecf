//! Slices to write, in the order of their turns.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use netpold_slices::SliceNumber;

/// Slice to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DueSlice {
    /// Time of the first change of a pod that it lacks; `None`: names alone changed.
    pub(super) since: Option<Instant>,
    /// Time of the write.
    pub(super) at: Instant,
    /// `resourceVersion` of pods up to which the API server's state of it is complete.
    pub(super) version: u64,
    /// Whether it lacks names.
    pub(super) lacks_names: bool,
    /// Slices to which pods moved, which have to be written first.
    pub(super) after: BTreeSet<SliceNumber>,
    /// Slices that are being written with pods that moved to this one.
    pub(super) behind: BTreeSet<SliceNumber>,
}

impl DueSlice {
    pub(super) const fn new(at: Instant, version: u64) -> Self {
        Self {
            since: None,
            at,
            version,
            lacks_names: false,
            after: BTreeSet::new(),
            behind: BTreeSet::new(),
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.since = [self.since, other.since].into_iter().flatten().min();
        self.at = self.at.max(other.at);
        self.version = self.version.min(other.version);
        self.lacks_names |= other.lacks_names;
        self.after.extend(other.after);
        self.behind.extend(other.behind);
    }

    fn waits(&self) -> bool {
        !self.after.is_empty() || !self.behind.is_empty()
    }
}

/// All slices to write. After a change of names these can be all slices of a cluster, so no write looks at each of them.
#[derive(Debug, Default)]
pub(super) struct DueSlices {
    all: BTreeMap<SliceNumber, DueSlice>,
    /// Slices with changed pods, by the time of the first change.
    changed: BTreeSet<(Instant, SliceNumber)>,
    /// Slices of which names alone changed.
    renamed: BTreeSet<SliceNumber>,
    /// Slices that wait for others.
    waiting: BTreeSet<SliceNumber>,
    /// Number of slices that lack names.
    lacking: usize,
}

impl DueSlices {
    /// Changes the entry of a slice; `new` makes it if there is none.
    pub(super) fn change(
        &mut self,
        number: SliceNumber,
        new: impl FnOnce() -> DueSlice,
        change: impl FnOnce(&mut DueSlice),
    ) {
        let mut due = self.remove(number).unwrap_or_else(new);
        change(&mut due);
        self.insert(number, due);
    }

    /// Changes all entries.
    pub(super) fn change_all(&mut self, change: impl Fn(&mut DueSlice)) {
        for (number, mut due) in std::mem::take(self).all {
            change(&mut due);
            self.insert(number, due);
        }
    }

    /// Takes in the end of a write of a slice; `before`: slices that waited for it.
    pub(super) fn end_write(&mut self, number: SliceNumber, before: &BTreeSet<SliceNumber>) {
        let all = &mut self.all;
        self.waiting.retain(|waiting| {
            let Some(due) = all.get_mut(waiting) else { return false };
            due.behind.remove(&number);
            if before.contains(waiting) {
                due.after.remove(&number);
            }
            due.waits()
        });
    }

    fn insert(&mut self, number: SliceNumber, due: DueSlice) {
        match due.since {
            Some(since) => self.changed.insert((since, number)),
            None => self.renamed.insert(number),
        };
        if due.waits() {
            self.waiting.insert(number);
        }
        self.lacking += usize::from(due.lacks_names);
        self.all.insert(number, due);
    }

    /// Removes the entry of a slice.
    pub(super) fn remove(&mut self, number: SliceNumber) -> Option<DueSlice> {
        let due = self.all.remove(&number)?;
        match due.since {
            Some(since) => self.changed.remove(&(since, number)),
            None => self.renamed.remove(&number),
        };
        self.waiting.remove(&number);
        self.lacking -= usize::from(due.lacks_names);
        Some(due)
    }

    /// Returns the next slice to write: with changed pods, the oldest change first, or if `renamed_first`, one of which names
    /// alone changed.
    pub(super) fn next(
        &self,
        now: Instant,
        renamed_first: bool,
        is_free: impl Fn(SliceNumber) -> bool,
    ) -> Option<SliceNumber> {
        let is_ready = |number: &SliceNumber| {
            let is_due = |due: &DueSlice| due.at <= now && !due.waits();
            self.all.get(number).is_some_and(is_due) && is_free(*number)
        };
        let changed = || self.changed.iter().map(|(_, number)| *number).find(&is_ready);
        let renamed = || self.renamed.iter().copied().find(&is_ready);
        if renamed_first { renamed().or_else(changed) } else { changed().or_else(renamed) }
    }

    /// Returns the slices that wait for the write of a slice.
    pub(super) fn waiting_for(&self, number: SliceNumber) -> BTreeSet<SliceNumber> {
        let waits = |waiting: &&SliceNumber| {
            self.all.get(waiting).is_some_and(|due| due.after.contains(&number))
        };
        self.waiting.iter().filter(waits).copied().collect()
    }

    /// Returns the time of the oldest change of a pod.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.changed.first().map(|(since, _)| *since)
    }

    /// Whether a slice lacks names.
    pub(super) const fn lack_names(&self) -> bool {
        self.lacking > 0
    }

    /// Returns the entries.
    pub(super) fn values(&self) -> impl Iterator<Item = &DueSlice> {
        self.all.values()
    }

    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
