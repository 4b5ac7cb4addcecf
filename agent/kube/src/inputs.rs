//! Input of the engine: a source, completed by CNI results and by the last good state.

use std::path::Path;
use std::time::Instant;

use netpold_api::source::SourceStatus;
use netpold_core::bindings::CniResult;
use netpold_core::model::Change;
use tokio::sync::watch;

use crate::cni_results::CniAddresses;
use crate::restored::RestoredObjects;
use crate::state;
use crate::{Batch, ObjectStream};

/// Reason for which an agent that took over does not begin to enforce.
const NOTHING_GIVEN: &str = "the manifests directory holds no object; an earlier agent's enforcement stays until it \
                             does (`netpold uninstall` removes it)";

/// A source, completed as the module describes.
#[derive(Debug)]
pub struct Inputs {
    source: ObjectStream,
    results: watch::Receiver<Vec<CniResult>>,
    pods: CniAddresses,
    /// Objects of the last good state that the source has not mentioned yet.
    restored: RestoredObjects,
    /// Whether an earlier agent's state is in force.
    inherited: bool,
    /// Whether the source has reported no object so far.
    is_empty_so_far: bool,
    /// Whether the source is in sync, possibly without any object.
    is_in_sync: bool,
    /// Whether the known state may be enforced.
    usable: bool,
}

/// Changes for the engine that belong together.
#[derive(Debug)]
pub struct Input {
    /// Changes of objects.
    pub changes: Vec<Change>,
    /// All CNI results, if they changed.
    pub results: Option<Vec<CniResult>>,
    /// Time at which the first of the changes was noticed.
    pub at: Instant,
}

impl Inputs {
    /// Creates the inputs for the node of this name. `inherited`: an earlier agent's state is in force.
    #[must_use]
    pub fn new(
        source: ObjectStream,
        results: watch::Receiver<Vec<CniResult>>,
        node: String,
        inherited: bool,
    ) -> Self {
        Self {
            source,
            results,
            pods: CniAddresses::new(node),
            restored: RestoredObjects::default(),
            inherited,
            is_empty_so_far: true,
            is_in_sync: false,
            usable: false,
        }
    }

    /// Returns the state known at the start: the CNI results, and, unless an earlier agent's state is in force, the
    /// last good state in place of the objects that the source has yet to report.
    pub fn first(&mut self, state: &Path, node: &str) -> Input {
        let mut changes = Vec::new();
        if !self.inherited {
            changes = last_good_objects(state, node, "starting without it");
            self.restored = RestoredObjects::new(&changes, !self.source.partial);
            if self.restored.is_in_force() {
                tracing::info!(
                    objects = changes.len(),
                    "enforcing the last good state until the source is in sync"
                );
                // Nothing else is in force, so the last good state is enforced before the source's first batch.
                self.usable = true;
            }
            self.pods.restored(&changes);
        }
        let mut input = self.take_results();
        changes.append(&mut input.changes);
        Input { changes, ..input }
    }

    /// Waits for the next input; `None` once the source has ended. Cancel safe: no input is lost.
    pub async fn next(&mut self) -> Option<Input> {
        tokio::select! {
            batch = self.source.batches.recv() => batch.map(|batch| self.apply_batch(batch)),
            Ok(()) = self.results.changed() => Some(self.take_results()),
        }
    }

    /// Returns an input that is ready, without waiting.
    pub fn try_next(&mut self) -> Option<Input> {
        if self.results.has_changed().is_ok_and(|changed| changed) {
            return Some(self.take_results());
        }
        let batch = self.source.batches.try_recv().ok()?;
        Some(self.apply_batch(batch))
    }

    fn apply_batch(&mut self, mut batch: Batch) -> Input {
        self.restored.complete(&mut batch);
        self.pods.complete(&mut batch.changes);
        // A file that was never readable keeps the source from being in sync. If an earlier agent's state is enforced,
        // that stays; if nothing is enforced, a partial state is better. A source without any object never means that
        // there are no policies: the volume may not be mounted yet.
        self.is_empty_so_far &= batch.changes.is_empty();
        // A cluster's state is not enforced in parts: the API server delivers the rest soon.
        let early = !self.inherited && self.source.partial;
        self.usable |= early || (batch.in_sync && !self.is_empty_so_far);
        self.is_in_sync = batch.in_sync;
        Input { changes: batch.changes, results: None, at: batch.at }
    }

    fn take_results(&mut self) -> Input {
        let results = self.results.borrow_and_update().clone();
        let changes = self.pods.set_results(results.clone());
        Input { changes, results: Some(results), at: Instant::now() }
    }

    /// Returns whether the known state may be enforced.
    #[must_use]
    pub fn are_usable(&self) -> bool {
        self.usable
    }

    /// Returns the reason for which nothing is enforced although the source is in sync.
    #[must_use]
    pub fn held(&self) -> Option<String> {
        (self.is_in_sync && !self.usable).then(|| NOTHING_GIVEN.to_owned())
    }

    /// Returns whether the last good state is in force, at least in part.
    #[must_use]
    pub fn are_restored(&self) -> bool {
        self.restored.is_in_force()
    }

    /// Returns the current status of the source.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<SourceStatus> {
        self.source.status.clone()
    }
}

/// Reads the objects of the last good state; if that fails, logs the error with the `outcome` and returns none.
#[must_use]
pub fn last_good_objects(state: &Path, node: &str, outcome: &str) -> Vec<Change> {
    let objects = state::read(state, node).unwrap_or_else(|error| {
        tracing::warn!("{error}; {outcome}");
        None
    });
    objects.unwrap_or_default()
}
