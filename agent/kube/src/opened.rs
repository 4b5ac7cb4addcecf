//! Opening of the source, at once or while the agent is already working.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use netpold_api::source::SourceStatus;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::cluster::{self, EventRecorder};
use crate::{Batch, ObjectStream, manifests};

/// Origin of the objects.
#[derive(Clone, Debug)]
pub enum SourceOrigin {
    /// A directory of manifests.
    Manifests(PathBuf),
    /// A cluster's API server.
    Cluster(cluster::WatchSettings),
}

impl SourceOrigin {
    /// Returns whether a partial state may be enforced if nothing is enforced yet. This holds for files, as a broken
    /// file may never be mended, but not for an API server, which delivers the rest.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        matches!(self, Self::Manifests(_))
    }
}

impl fmt::Display for SourceOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifests(directory) => write!(f, "manifests in {}", directory.display()),
            Self::Cluster(_) => f.write_str("API server"),
        }
    }
}

/// An opened source, and for a cluster the recorder of Events on policies that cannot be honoured.
pub struct OpenedSource {
    /// Source of the objects.
    pub source: ObjectStream,
    /// Recorder of Events; set once a cluster source is open.
    pub event_recorder: Arc<OnceLock<EventRecorder>>,
    /// Task that opens the source in the background; it ends with the error if that fails.
    pub opening: Option<JoinHandle<Result<()>>>,
}

impl OpenedSource {
    /// Opens the source and waits for it.
    ///
    /// # Errors
    /// The source cannot be opened with these flags.
    pub async fn now(origin: &SourceOrigin) -> Result<Self> {
        let (source, told) = open(origin).await?;
        let event_recorder = Arc::new(told.map_or_else(OnceLock::new, OnceLock::from));
        Ok(Self { source, event_recorder, opening: None })
    }

    /// Waits until the source is in sync; the returned source replays the batches received in the meantime.
    pub async fn complete(self) -> Self {
        Self { source: complete(self.source).await, ..self }
    }

    /// Opens the source in the background: a program that fetches credentials may take long.
    #[must_use]
    pub fn later(origin: SourceOrigin) -> Self {
        let (batches, source) = pipe(&origin.to_string(), origin.is_partial());
        let event_recorder = Arc::new(OnceLock::new());
        let told = Arc::clone(&event_recorder);
        let opening = tokio::spawn(async move {
            let (opened, event_recorder) = open(&origin).await?;
            if let Some(event_recorder) = event_recorder {
                let _ = told.set(event_recorder);
            }
            batches.forward(opened).await;
            Ok(())
        });
        Self { source, event_recorder, opening: Some(opening) }
    }
}

/// Starts following the objects; for a cluster also returns the recorder of Events.
async fn open(origin: &SourceOrigin) -> Result<(ObjectStream, Option<EventRecorder>)> {
    Ok(match origin {
        SourceOrigin::Manifests(directory) => (manifests::watch(directory)?, None),
        SourceOrigin::Cluster(settings) => {
            let (source, event_recorder) = cluster::watch(settings.clone()).await?;
            (source, Some(event_recorder))
        }
    })
}

/// Creates a source that receives its batches and status through the returned [`Pipe`].
fn pipe(origin: &str, partial: bool) -> (Pipe, ObjectStream) {
    let (batches, received) = mpsc::channel(1);
    let status = SourceStatus { origin: origin.to_owned(), ..SourceStatus::default() };
    let (sender, status) = watch::channel(status);
    (Pipe { batches, status: sender }, ObjectStream { batches: received, status, partial })
}

async fn complete(mut source: ObjectStream) -> ObjectStream {
    let (pipe, later) = pipe(&source.status.borrow().origin.clone(), source.partial);
    let mut said = Vec::new();
    while said.last().is_none_or(|batch: &Batch| !batch.in_sync) {
        let Some(batch) = source.batches.recv().await else { break };
        said.push(batch);
    }
    tokio::spawn(async move {
        for batch in said {
            if pipe.batches.send(batch).await.is_err() {
                return;
            }
        }
        pipe.forward(source).await;
    });
    later
}

/// The sending end of a [`pipe`].
#[derive(Debug)]
struct Pipe {
    batches: mpsc::Sender<Batch>,
    status: watch::Sender<SourceStatus>,
}

impl Pipe {
    /// Forwards a source's batches and status until either end is closed.
    async fn forward(self, mut source: ObjectStream) {
        loop {
            self.status.send_replace(source.status.borrow_and_update().clone());
            tokio::select! {
                batch = source.batches.recv() => {
                    let Some(batch) = batch else { return };
                    self.status.send_replace(source.status.borrow_and_update().clone());
                    if self.batches.send(batch).await.is_err() {
                        return;
                    }
                }
                Ok(()) = source.status.changed() => {}
            }
        }
    }
}
