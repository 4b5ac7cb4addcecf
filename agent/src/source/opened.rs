//! Opening the source, at once or while the agent is at work already.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::cluster::{self, EventRecorder};
use super::{Batch, Source, SourceStatus, manifests};

/// Where the objects come from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A directory of manifests.
    Manifests(PathBuf),
    /// A cluster's API server.
    Cluster(cluster::Settings),
}

impl Origin {
    /// Where nothing is enforced yet, what is known of files before all can be read is better than
    /// nothing: nobody may ever mend one that is broken. An API server will say the rest.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        matches!(self, Self::Manifests(_))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifests(directory) => write!(f, "manifests in {}", directory.display()),
            Self::Cluster(_) => f.write_str("API server"),
        }
    }
}

/// The source, and where to tell a cluster of policies that cannot be honoured.
pub struct Opened {
    /// What is said of the objects.
    pub source: Source,
    /// Once it is open.
    pub event_recorder: Arc<OnceLock<EventRecorder>>,
    /// Where it is opened later: ends with the error if that fails.
    pub opening: Option<JoinHandle<Result<()>>>,
}

impl Opened {
    /// Opens it.
    ///
    /// # Errors
    /// It cannot be opened with these flags.
    pub async fn now(origin: &Origin) -> Result<Self> {
        let (source, told) = open(origin).await?;
        let event_recorder = Arc::new(told.map_or_else(OnceLock::new, OnceLock::from));
        Ok(Self { source, event_recorder, opening: None })
    }

    /// Waits until everything there is has been said; it is said again then.
    pub async fn complete(self) -> Self {
        Self { source: complete(self.source).await, ..self }
    }

    /// Opens it in the background: reading credentials can take as long as a program that fetches them.
    #[must_use]
    pub fn later(origin: Origin) -> Self {
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

/// Starts following the objects; a cluster is told of policies that cannot be honoured.
async fn open(origin: &Origin) -> Result<(Source, Option<EventRecorder>)> {
    Ok(match origin {
        Origin::Manifests(directory) => (manifests::watch(directory)?, None),
        Origin::Cluster(settings) => {
            let (source, event_recorder) = cluster::watch(settings.clone()).await?;
            (source, Some(event_recorder))
        }
    })
}

/// A source that is opened later: what it will say comes out of the one that is there now.
fn pipe(origin: &str, partial: bool) -> (Pipe, Source) {
    let (batches, received) = mpsc::channel(1);
    let status = SourceStatus { origin: origin.to_owned(), ..SourceStatus::default() };
    let (sender, status) = watch::channel(status);
    (Pipe { batches, status: sender }, Source { batches: received, status, partial })
}

async fn complete(mut source: Source) -> Source {
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

/// The end of a [`pipe`] that something is put into.
#[derive(Debug)]
struct Pipe {
    batches: mpsc::Sender<Batch>,
    status: watch::Sender<SourceStatus>,
}

impl Pipe {
    /// Passes on what a source says until either end is closed.
    async fn forward(self, mut source: Source) {
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
