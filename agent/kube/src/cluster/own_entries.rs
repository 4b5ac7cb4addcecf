//! Entries of this node's pods in slices: they show whether the slices are right.

use std::collections::BTreeMap;

use netpold_core::model::Key;
use netpold_slices::{PeerView, Vocabulary};

/// Maximum number of pods that are named.
const NAMED: usize = 10;

/// Own pods with another state in slices.
#[derive(Debug, Default)]
pub(super) struct OwnEntries {
    /// By the last comparison, each with a hash of both states.
    differing: BTreeMap<Key, u64>,
    /// By the last two comparisons, with the same states.
    wrong: Vec<Key>,
}

impl OwnEntries {
    /// Compares this node's pods with their entries, at a heartbeat: a difference at two heartbeats does not come from
    /// a slice that lags.
    pub(super) fn compare(&mut self, view: &PeerView, vocabulary: &Vocabulary) {
        let differing = view.own_differences(vocabulary);
        let again = differing.iter().filter(|(key, hash)| self.differing.get(key) == Some(hash));
        self.wrong = again.map(|(key, _)| key.clone()).collect();
        self.differing = differing;
    }

    /// Whether no entry is wrong.
    pub(super) const fn are_right(&self) -> bool {
        self.wrong.is_empty()
    }

    /// Returns the wrong entries, as problems.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        self.wrong
            .iter()
            .take(NAMED)
            .map(|key| format!("Pod {key} of this node differs from its entry in peer slices"))
    }
}
