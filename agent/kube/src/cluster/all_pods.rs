//! The watch of all pods that replaces slices.

use netpold_api::source::KindStatus;
use netpold_core::model::Change;
use tokio::task::JoinHandle;

use super::hub::{KindUpdate, Problems};
use crate::gathered::GatheredChanges;

/// Starts a follower of all pods with this number.
pub(super) type StartPods = Box<dyn Fn(usize) -> JoinHandle<()> + Send>;

/// Follower of all pods; ends on drop.
pub(super) struct AllPods {
    number: usize,
    task: JoinHandle<()>,
    /// `resourceVersion` up to which its changes were passed on.
    version: u64,
    status: KindStatus,
    problems: Problems,
    /// Changes that wait until slices replace this watch, or until that fails, with their version; `None`: none wait.
    waiting: Option<(GatheredChanges, u64)>,
}

impl Drop for AllPods {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AllPods {
    /// Starts a follower with a number of its own.
    pub(super) fn start(number: usize, start: &StartPods) -> Self {
        Self {
            number,
            task: start(number),
            version: 0,
            status: KindStatus::default(),
            problems: Problems::default(),
            waiting: None,
        }
    }

    /// Whether an update is of this follower; one that has been ended may have sent updates before.
    pub(super) const fn has_number(&self, number: usize) -> bool {
        self.number == number
    }

    /// Takes in an update; returns its changes, unless they wait.
    pub(super) fn apply_update(&mut self, update: KindUpdate) -> Vec<Change> {
        self.status = update.status;
        if let Some(problems) = update.problems {
            self.problems = problems;
        }
        if let Some((waiting, version)) = &mut self.waiting {
            waiting.add(update.changes);
            *version = update.version.max(*version);
            return Vec::new();
        }
        self.version = self.version.max(update.version);
        update.changes
    }

    /// Holds the next changes; returns the version of the earlier ones.
    pub(super) fn hold_changes(&mut self) -> u64 {
        self.waiting.get_or_insert_default();
        self.version
    }

    /// Whether changes wait.
    pub(super) const fn is_held(&self) -> bool {
        self.waiting.is_some()
    }

    /// Ends the wait; returns the changes that waited.
    pub(super) fn release_changes(&mut self) -> Vec<Change> {
        let Some((changes, version)) = self.waiting.take() else { return Vec::new() };
        self.version = self.version.max(version);
        changes.changes()
    }

    /// Adds its state to that of this node's pods.
    pub(super) fn report(&self, status: &mut KindStatus, problems: &mut Problems) {
        status.error = status.error.take().or_else(|| self.status.error.clone());
        status.undecoded += self.status.undecoded;
        problems.texts.extend(self.problems.texts.iter().cloned());
        problems.more += self.problems.more;
    }
}
