//! Sources of cluster state, behind one interface that yields changes and "in sync".
//!
//! A source sends [`Batch`]es over a channel and publishes a [`SourceStatus`]. Batches carry the difference to the
//! state reported before: unchanged objects are absent, and the changes of one batch belong together.

pub mod cluster;
pub mod cni_results;
pub mod convert;
pub mod decode;
pub mod document;
mod gathered;
pub mod inputs;
pub mod manifests;
pub mod opened;
pub mod pause;
pub mod restored;
pub mod state;
mod watched;

use std::time::Instant;

use netpold_api::source::SourceStatus;
use netpold_core::model::Change;
use tokio::sync::{mpsc, watch};

/// Changes that belong together.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Changes in the order of kinds and names, at most one per object.
    pub changes: Vec<Change>,
    /// Whether this batch and the earlier ones contain every object. Until then an object that no batch mentioned may
    /// exist, and the state installed in the kernel must stay.
    pub in_sync: bool,
    /// Time at which the source noticed the first of the changes.
    pub at: Instant,
}

/// A running source; it ends when `batches` is dropped.
#[derive(Debug)]
pub struct ObjectStream {
    /// Batches of changes; closed when the source ends.
    pub batches: mpsc::Receiver<Batch>,
    /// Current status of the source.
    pub status: watch::Receiver<SourceStatus>,
    /// Whether the state before `in_sync` may be enforced if nothing is enforced yet.
    pub partial: bool,
}
