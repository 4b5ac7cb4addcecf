//! The last good state after a boot: in force until the source has reported its objects.

use std::time::{Duration, Instant};

use netpold_core::cluster::ObjectKey;
use netpold_core::model::Change;

use crate::Batch;
use crate::gathered::GatheredChanges;

/// Longest time for which the source's changes wait: a kind that the server refuses must not stop all others.
const HOLD: Duration = Duration::from_mins(2);

/// Objects of the last good state that the source has not mentioned yet.
#[derive(Debug, Default)]
pub struct RestoredObjects {
    gone: Vec<Change>,
    /// Whether the source's changes wait until it is in sync: its policies and labels must not be mixed with former ones.
    holds: bool,
    held: GatheredChanges,
    /// Time of the first change that waits.
    since: Option<Instant>,
    /// Whether the source has reported an object.
    something_given: bool,
}

impl RestoredObjects {
    /// Starts with all objects unmentioned. `holds`: the source will be in sync, so its changes wait until it is.
    #[must_use]
    pub fn new(objects: &[Change], holds: bool) -> Self {
        Self { gone: objects.iter().map(Change::removal).collect(), holds, ..Self::default() }
    }

    /// Returns whether the state still is in force, at least in part.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Completes a batch: once the source is in sync, unmentioned objects are removed. A source that has reported no
    /// object at all removes nothing.
    pub fn complete(&mut self, batch: &mut Batch) {
        self.something_given |= !batch.changes.is_empty();
        if self.gone.is_empty() {
            return;
        }
        let since = *self.since.get_or_insert(batch.at);
        self.holds &= !batch.in_sync && batch.at.saturating_duration_since(since) < HOLD;
        self.held.add(batch.changes.drain(..));
        if self.holds {
            return;
        }
        let all = std::mem::take(&mut self.held);
        self.gone.retain(|gone| !all.0.contains_key(&ObjectKey::of(gone)));
        batch.changes = all.changes();
        if batch.in_sync && self.something_given {
            batch.changes.append(&mut self.gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use netpold_core::model::{Labels, Namespace};

    use super::*;

    fn objects() -> [Change; 3] {
        ["a", "b", "c"].map(|name| {
            Change::Namespace(Namespace {
                name: name.into(),
                labels: Labels::default(),
                denial: None,
            })
        })
    }

    fn batch(changes: &[Change], in_sync: bool) -> Batch {
        Batch { changes: changes.to_vec(), in_sync, at: Instant::now() }
    }

    #[test]
    fn a_state_is_replaced_as_a_whole() {
        let objects = objects();
        let mut restored = RestoredObjects::new(&objects[1..], true);
        for part in &objects[..2] {
            let mut part = batch(std::slice::from_ref(part), false);
            restored.complete(&mut part);
            assert!(part.changes.is_empty() && restored.is_in_force());
        }
        let mut rest = batch(&[], true);
        restored.complete(&mut rest);
        assert_eq!(rest.changes, [objects[0].clone(), objects[1].clone(), objects[2].removal()]);
        assert!(!restored.is_in_force());
        let mut later = batch(&objects[2..], true);
        restored.complete(&mut later);
        assert_eq!(later.changes, objects[2..]);
    }

    #[test]
    fn a_kind_that_is_never_listed_does_not_stop_the_others() {
        let objects = objects();
        let mut restored = RestoredObjects::new(&objects, true);
        let mut first = batch(&objects[..1], false);
        let at = first.at;
        restored.complete(&mut first);
        assert_eq!(first.changes, []);
        let mut late = Batch { at: at + HOLD, ..batch(&objects[1..2], false) };
        restored.complete(&mut late);
        assert_eq!((&late.changes[..], restored.is_in_force()), (&objects[..2], true));
    }

    #[test]
    fn what_a_source_does_not_name_goes_once_it_is_in_sync() {
        let objects = objects();
        let mut restored = RestoredObjects::new(&objects, false);
        let mut nothing = batch(&[], true);
        restored.complete(&mut nothing);
        assert!(
            nothing.changes.is_empty() && restored.is_in_force(),
            "nothing at all is no answer"
        );
        let mut part = batch(&objects[..1], false);
        restored.complete(&mut part);
        assert_eq!(part.changes, objects[..1], "it is not in sync yet");
        let mut rest = batch(&objects[1..2], true);
        restored.complete(&mut rest);
        assert_eq!(rest.changes, [objects[1].clone(), objects[2].removal()]);
        assert!(!restored.is_in_force());
    }
}
