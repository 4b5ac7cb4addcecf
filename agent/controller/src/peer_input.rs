//! The controller's objects, for the writer of peer slices too.

use std::time::{Duration, Instant};

use netpold_core::model::Change;
use netpold_kube::ObjectStream;
use tokio::sync::{mpsc, watch};

/// Capacity of the channel of batches.
const IN_FLIGHT: usize = 64;

/// Longest time between two inputs; a later one shows that changes wait for statuses.
const TICK: Duration = Duration::from_secs(1);

/// Changes of objects, in the order of their arrival.
#[derive(Debug)]
pub(super) struct PeerInput {
    /// Time of their arrival.
    pub(super) at: Instant,
    pub(super) changes: Vec<Change>,
    /// Whether every object is known.
    pub(super) in_sync: bool,
    /// `resourceVersion` up to which this input and the earlier ones contain all changes of pods; 0: as before.
    pub(super) version: u64,
}

/// Returns a source with the same batches, and their copies. Nothing limits the number of copies in the channel, so that
/// a slow writer of slices does not delay statuses.
pub(super) fn copied(
    source: ObjectStream,
    version: watch::Receiver<u64>,
) -> (ObjectStream, mpsc::UnboundedReceiver<PeerInput>) {
    let (batches, again) = mpsc::channel(IN_FLIGHT);
    let (copies, copied) = mpsc::unbounded_channel();
    let status = source.status.clone();
    let partial = source.partial;
    tokio::spawn(copy(source, version, batches, copies));
    (ObjectStream { batches: again, status, partial }, copied)
}

async fn copy(
    mut source: ObjectStream,
    mut version: watch::Receiver<u64>,
    batches: mpsc::Sender<netpold_kube::Batch>,
    copies: mpsc::UnboundedSender<PeerInput>,
) {
    let mut tick = tokio::time::interval(TICK);
    loop {
        let first = tokio::select! {
            batch = source.batches.recv() => match batch {
                Some(batch) => Some(batch),
                None => return,
            },
            Ok(()) = version.changed() => None,
            _ = tick.tick() => None,
        };
        // Every batch of this version is in the channel by now.
        let version = *version.borrow_and_update();
        let rest = std::iter::from_fn(|| source.batches.try_recv().ok());
        let all: Vec<_> = first.into_iter().chain(rest).collect();
        for batch in all {
            let (changes, in_sync, at) = (batch.changes.clone(), batch.in_sync, batch.at);
            let copy = PeerInput { at, changes, in_sync, version: 0 };
            if copies.send(copy).is_err() || batches.send(batch).await.is_err() {
                return;
            }
        }
        let (at, changes) = (Instant::now(), Vec::new());
        if copies.send(PeerInput { at, changes, in_sync: false, version }).is_err() {
            return;
        }
    }
}
