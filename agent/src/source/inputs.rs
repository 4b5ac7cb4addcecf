//! All that is said about objects: a source, completed by CNI results and by the last good state.

use std::path::Path;
use std::time::Instant;

use netpold_core::bindings::CniResult;
use netpold_core::model::Change;
use tokio::sync::watch;

use super::cni_results::PodAddresses;
use super::restored::Restored;
use super::{Batch, Source, SourceStatus};
use crate::state;

/// Why an agent that took over does not begin.
const NOTHING_GIVEN: &str = "the manifests directory holds no object; what an earlier agent enforced \
                             stays until it does (`netpold uninstall` takes it off the node)";

/// See the module.
#[derive(Debug)]
pub struct Inputs {
    source: Source,
    results: watch::Receiver<Vec<CniResult>>,
    pods: PodAddresses,
    /// Of the last good state: what the source has not spoken of.
    restored: Restored,
    /// An earlier agent's state is in force.
    inherited: bool,
    /// The source has not named a single object.
    nothing_given: bool,
    /// The source has said all there is, which may be nothing.
    all_said: bool,
    /// What is known may be enforced.
    usable: bool,
}

/// Changes for the engine that belong together.
#[derive(Debug)]
pub struct Input {
    /// What changed.
    pub changes: Vec<Change>,
    /// All CNI results, where they are what changed.
    pub results: Option<Vec<CniResult>>,
    /// When the first of the changes was noticed.
    pub at: Instant,
}

impl Inputs {
    /// Of a node, by its name. `inherited`: an earlier agent's state is in force.
    #[must_use]
    pub fn new(
        source: Source,
        results: watch::Receiver<Vec<CniResult>>,
        node: String,
        inherited: bool,
    ) -> Self {
        Self {
            source,
            results,
            pods: PodAddresses::new(node),
            restored: Restored::default(),
            inherited,
            nothing_given: true,
            all_said: false,
            usable: false,
        }
    }

    /// What is known at the start: the last good state, in the place of the objects that the source has yet to
    /// name, unless an earlier agent's is in force; and the CNI results.
    pub fn first(&mut self, state: &Path, node: &str) -> Input {
        let mut changes = Vec::new();
        if !self.inherited {
            changes = kept(state, node, "begins without it");
            self.restored = Restored::new(&changes);
            if self.restored.is_in_force() {
                tracing::info!(
                    objects = changes.len(),
                    "the last good state is enforced until the source is in sync"
                );
                // Nothing else is in force, so this is enforced before the source has said a word.
                self.usable = true;
            }
            self.pods.restored(&changes);
        }
        let mut input = self.take_results();
        changes.append(&mut input.changes);
        Input { changes, ..input }
    }

    /// Waits for what comes next; `None`: the source has ended. Nothing is lost where this is given up.
    pub async fn next(&mut self) -> Option<Input> {
        tokio::select! {
            batch = self.source.batches.recv() => batch.map(|batch| self.take(batch)),
            Ok(()) = self.results.changed() => Some(self.take_results()),
        }
    }

    /// What has come in the meantime.
    pub fn try_next(&mut self) -> Option<Input> {
        if self.results.has_changed().is_ok_and(|changed| changed) {
            return Some(self.take_results());
        }
        let batch = self.source.batches.try_recv().ok()?;
        Some(self.take(batch))
    }

    fn take(&mut self, mut batch: Batch) -> Input {
        self.restored.complete(&mut batch);
        self.pods.complete(&mut batch.changes);
        // A file that never was readable keeps the source from being in sync. Where an earlier agent
        // enforces something, that stays; where nothing is enforced, what is known is better. No
        // object at all never means that there are no policies: the volume may not be mounted yet.
        self.nothing_given &= batch.changes.is_empty();
        // A cluster is not enforced in parts: its API server will have the rest in a moment.
        let early = !self.inherited && self.source.partial;
        self.usable |= early || (batch.in_sync && !self.nothing_given);
        self.all_said = batch.in_sync;
        Input { changes: batch.changes, results: None, at: batch.at }
    }

    fn take_results(&mut self) -> Input {
        let results = self.results.borrow_and_update().clone();
        let changes = self.pods.results_are(results.clone());
        Input { changes, results: Some(results), at: Instant::now() }
    }

    /// Whether what is known may be enforced.
    #[must_use]
    pub fn are_usable(&self) -> bool {
        self.usable
    }

    /// Why nothing is enforced although the source has said all there is.
    #[must_use]
    pub fn held(&self) -> Option<String> {
        (self.all_said && !self.usable).then(|| NOTHING_GIVEN.to_owned())
    }

    /// Whether the last good state is in force, in part at least.
    #[must_use]
    pub fn are_restored(&self) -> bool {
        self.restored.is_in_force()
    }

    /// How the source is, at any time.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<SourceStatus> {
        self.source.status.clone()
    }
}

/// The objects of the last good state; none where it cannot be read, which is logged with the `outcome`.
#[must_use]
pub fn kept(state: &Path, node: &str, outcome: &str) -> Vec<Change> {
    let objects = state::read(state, node).unwrap_or_else(|error| {
        tracing::warn!("{error}; {outcome}");
        None
    });
    objects.unwrap_or_default()
}
