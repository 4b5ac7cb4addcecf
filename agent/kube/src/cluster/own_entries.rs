//! Entries of this node's pods in slices: they show whether the slices are right.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netpold_core::model::{Change, Key};
use netpold_slices::{PeerView, Vocabulary};

/// Maximum number of pods that are named.
const NAMED: usize = 10;
/// Time after which a difference counts even if slices have no newer version than the pod. The controller renews slices
/// only if they lack no change for more than 20 s.
const LATE: Duration = Duration::from_secs(30);

/// Own pods with another state in slices.
#[derive(Debug, Default)]
pub(super) struct OwnEntries {
    /// `resourceVersion` up to which the last change of each own pod was made.
    versions: BTreeMap<Key, u64>,
    /// By the last comparison.
    differing: BTreeMap<Key, EntryDifference>,
    /// By the last two comparisons, with the same states.
    wrong: Vec<Key>,
}

/// Difference between a pod and its entry.
#[derive(Clone, Copy, Debug)]
struct EntryDifference {
    /// Hash of both states.
    hash: u64,
    /// Time of the first comparison with these states.
    since: Instant,
    /// Whether slices have all changes up to the pod's state.
    is_due: bool,
}

impl OwnEntries {
    /// Takes in changes of own pods, and the `resourceVersion` up to which they were made.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many changes, the ones this is about"
    )]
    pub(super) fn apply_changes(&mut self, changes: &[Change], version: u64) {
        for change in changes {
            match change {
                Change::Pod(pod) => drop(self.versions.insert(pod.key.clone(), version)),
                Change::PodGone(key) => drop(self.versions.remove(key)),
                _ => {}
            }
        }
    }

    /// Compares this node's pods with their entries, at a heartbeat with the `resourceVersion` of pods in slices. An entry
    /// is wrong if it differs at two heartbeats although slices have the pod's last change; the watch of own pods may be
    /// behind at one heartbeat.
    pub(super) fn compare(
        &mut self,
        view: &PeerView,
        vocabulary: &Vocabulary,
        version: u64,
        now: Instant,
    ) {
        let before = std::mem::take(&mut self.differing);
        self.wrong.clear();
        for (key, hash) in view.own_differences(vocabulary) {
            let before = before.get(&key).filter(|before| before.hash == hash);
            let since = before.map_or(now, |before| before.since);
            let is_late = now.saturating_duration_since(since) >= LATE;
            if is_late || before.is_some_and(|before| before.is_due) {
                self.wrong.push(key.clone());
            }
            let is_due = self.versions.get(&key).is_none_or(|own| *own <= version);
            self.differing.insert(key, EntryDifference { hash, since, is_due });
        }
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

#[cfg(test)]
mod tests {
    use netpold_core::model::Pod;
    use netpold_testkit::objects;

    use super::*;

    const BEAT: Duration = Duration::from_secs(3);

    fn own(app: &str) -> Pod {
        let pod = objects::pod("x", "own", &[("app", app)], &["10.0.0.1"]);
        Pod { node: "n1".into(), ..pod }
    }

    /// World of one own pod with the label "b", changed at version 10, and "a" in slices.
    fn world(now: Instant) -> (OwnEntries, PeerView, Vocabulary, Instant) {
        let (mut view, mut entries) = (PeerView::new("n1".into()), OwnEntries::default());
        let label_keys = ["app".to_owned()].into();
        let vocabulary = Vocabulary { label_keys, ..Vocabulary::default() };
        view.take_slice(0, 1, vocabulary.reduce(&own("a")).into_iter().collect());
        let changes = [Change::Pod(own("b"))];
        entries.apply_changes(&changes, 10);
        let [change] = changes;
        view.take_own(change);
        (entries, view, vocabulary, now)
    }

    #[test]
    fn an_entry_that_slices_do_not_claim_to_have_is_late_and_not_wrong() {
        let (mut entries, view, vocabulary, start) = world(Instant::now());
        for beat in 0..7 {
            entries.compare(&view, &vocabulary, 9, start + beat * BEAT);
            assert!(entries.are_right(), "heartbeat {beat}");
        }
        entries.compare(&view, &vocabulary, 9, start + LATE);
        assert!(!entries.are_right(), "the controller should have ended the heartbeats");
    }

    #[test]
    fn an_entry_that_slices_claim_to_have_is_wrong_at_the_second_heartbeat() {
        let (mut entries, mut view, vocabulary, start) = world(Instant::now());
        entries.compare(&view, &vocabulary, 10, start);
        assert!(entries.are_right(), "the watch of own pods may be behind");
        entries.compare(&view, &vocabulary, 10, start + BEAT);
        assert_eq!(entries.problems().count(), 1);
        view.take_own(Change::Pod(own("a")));
        entries.compare(&view, &vocabulary, 10, start + 2 * BEAT);
        assert!(entries.are_right());
    }
}
