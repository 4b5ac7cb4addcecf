//! The last good state after a boot: in force until the source has reported its objects.

use std::collections::BTreeSet;

use netpold_core::cluster::ObjectKey;
use netpold_core::model::Change;

use crate::Batch;

/// Objects of the last good state that the source has not mentioned yet.
#[derive(Debug, Default)]
pub struct Restored {
    gone: Vec<Change>,
    /// Whether the source has reported an object.
    something_given: bool,
}

impl Restored {
    /// Starts with all objects unmentioned.
    #[must_use]
    pub fn new(objects: &[Change]) -> Self {
        Self { gone: objects.iter().map(Change::gone).collect(), something_given: false }
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
        let named: BTreeSet<ObjectKey> = batch.changes.iter().map(ObjectKey::of).collect();
        self.gone.retain(|gone| !named.contains(&ObjectKey::of(gone)));
        if batch.in_sync && self.something_given {
            batch.changes.append(&mut self.gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use netpold_core::model::{Labels, Namespace};

    use super::*;

    #[test]
    fn what_a_source_does_not_name_goes_once_it_is_in_sync() {
        let objects: Vec<Change> = ["a", "b", "c"]
            .map(|name| {
                Change::Namespace(Namespace {
                    name: name.into(),
                    labels: Labels::default(),
                    denial: None,
                })
            })
            .into();
        let mut restored = Restored::new(&objects);
        let batch = |changes: &[Change], in_sync| Batch {
            changes: changes.to_vec(),
            in_sync,
            at: Instant::now(),
        };
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
        assert_eq!(rest.changes, [objects[1].clone(), objects[2].gone()]);
        assert!(!restored.is_in_force());
    }
}
