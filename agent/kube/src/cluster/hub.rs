//! All kinds together: merges their updates into batches and one status.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use netpold_api::source::{KindStatus, SourceProblem, SourceStatus};
use netpold_core::cluster::ObjectKey;
use netpold_core::model::Change;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use crate::Batch;

/// Time after a batch in which changes are gathered for the next batch: in a burst, objects that belong together arrive
/// on several watches. No change waits longer, and a change after a pause does not wait.
const GATHER: Duration = Duration::from_millis(1);

/// Update of a kind.
#[derive(Debug)]
pub(super) struct Update {
    /// Index of the kind.
    pub(super) kind: usize,
    /// Changes of objects.
    pub(super) changes: Vec<Change>,
    /// Time at which the changes arrived.
    pub(super) at: Instant,
    /// Status of following the kind.
    pub(super) status: KindStatus,
    /// Whether the kind was fully listed at some time.
    pub(super) synced: bool,
    /// Problems with objects, if they changed.
    pub(super) problems: Option<Problems>,
}

/// Problems with the objects of a kind.
#[derive(Debug, Default)]
pub(super) struct Problems {
    /// Texts in the order of object names.
    pub(super) texts: Vec<String>,
    /// Number of further problems.
    pub(super) more: usize,
}

/// Merges updates of all kinds.
pub(super) struct Hub {
    updates: mpsc::Receiver<Update>,
    batches: mpsc::Sender<Batch>,
    status: watch::Sender<SourceStatus>,
    origin: String,
    kinds: Vec<Known>,
    in_sync: bool,
}

/// Last reported state of a kind.
struct Known {
    status: KindStatus,
    synced: bool,
    problems: Problems,
}

impl Hub {
    pub(super) fn new(
        origin: String,
        kinds: Vec<KindStatus>,
        updates: mpsc::Receiver<Update>,
        batches: mpsc::Sender<Batch>,
    ) -> (Self, watch::Receiver<SourceStatus>) {
        let kinds = kinds
            .into_iter()
            .map(|status| Known { status, synced: false, problems: Problems::default() })
            .collect();
        let (status, seen) = watch::channel(SourceStatus::default());
        let hub = Self { updates, batches, status, origin, kinds, in_sync: false };
        hub.status.send_replace(hub.current());
        (hub, seen)
    }

    /// Merges until every kind has ended, or the receiver of batches is closed.
    pub(super) async fn run(mut self) {
        let mut calm = tokio::time::Instant::now();
        loop {
            let first = tokio::select! {
                update = self.updates.recv() => update,
                () = self.batches.closed() => None,
            };
            let Some(first) = first else { return };
            let at = first.at;
            let mut gathered = Gathered::default();
            self.take(first, &mut gathered);
            if tokio::time::Instant::now() < calm {
                while let Ok(Some(update)) =
                    tokio::time::timeout_at(calm, self.updates.recv()).await
                {
                    self.take(update, &mut gathered);
                }
            }
            while let Ok(update) = self.updates.try_recv() {
                self.take(update, &mut gathered);
            }
            if !gathered.0.is_empty() {
                calm = tokio::time::Instant::now() + GATHER;
            }
            if self.publish(gathered, at).await.is_none() {
                return;
            }
        }
    }

    fn take(&mut self, update: Update, gathered: &mut Gathered) {
        gathered.add(update.changes);
        let Some(known) = self.kinds.get_mut(update.kind) else { return };
        known.status = update.status;
        known.synced = update.synced;
        if let Some(problems) = update.problems {
            known.problems = problems;
        }
    }

    /// Sends the gathered changes; `None` if the receiver is closed.
    async fn publish(&mut self, gathered: Gathered, at: Instant) -> Option<()> {
        let before = self.in_sync;
        self.in_sync |= self.kinds.iter().all(|known| known.synced);
        let status = self.current();
        self.status.send_if_modified(|current| {
            let modified = *current != status;
            if modified {
                report(current, &status);
                *current = status;
            }
            modified
        });
        let changes = gathered.changes();
        if changes.is_empty() && self.in_sync == before {
            return Some(());
        }
        self.batches.send(Batch { changes, in_sync: self.in_sync, at }).await.ok()
    }

    fn current(&self) -> SourceStatus {
        let problem = |text: String| SourceProblem { file: String::new(), line: 0, text };
        let errors = self.kinds.iter().filter_map(|known| known.status.error.clone());
        let objects = self.kinds.iter().flat_map(|known| &known.problems.texts).cloned();
        let mut problems: Vec<SourceProblem> = errors.chain(objects).map(problem).collect();
        let more: usize = self.kinds.iter().map(|known| known.problems.more).sum();
        if more > 0 {
            problems.push(problem(format!("{more} more problems in objects")));
        }
        SourceStatus {
            origin: self.origin.clone(),
            in_sync: self.in_sync,
            kinds: self.kinds.iter().map(|known| known.status.clone()).collect(),
            problems,
            ..SourceStatus::default()
        }
    }
}

/// Logs new problems and problems that are settled. A server without connection is one problem, regardless of the kinds
/// that report it.
fn report(before: &SourceStatus, now: &SourceStatus) {
    let missed = [before, now].map(|status| status.kinds.iter().find(|kind| kind.unreachable));
    match missed {
        [None, Some(kind)] => warn!(
            "{}; the last known state stays in force; will retry",
            kind.error.as_deref().unwrap_or_default()
        ),
        [Some(_), None] => info!("{} is reachable again", now.origin),
        _ => {}
    }
    // For kinds without connection neither the current nor the former errors are logged.
    let lost: BTreeSet<&String> = before
        .kinds
        .iter()
        .zip(&now.kinds)
        .flat_map(|(was, is)| {
            let before = was.error.iter().filter(|_| was.unreachable || is.unreachable);
            before.chain(is.error.iter().filter(|_| is.unreachable))
        })
        .collect();
    for problem in now.problems.iter().filter(|it| !before.problems.contains(it)) {
        if !lost.contains(&problem.text) {
            warn!("{problem}");
        }
    }
    for problem in before.problems.iter().filter(|it| !now.problems.contains(it)) {
        if !lost.contains(&problem.text) {
            info!("resolved: {problem}");
        }
    }
    if now.in_sync && !before.in_sync {
        let objects: usize = now.kinds.iter().map(|kind| kind.objects).sum();
        info!(objects, "every kind is in sync");
    }
}

/// Changes, at most one per object: the last.
#[derive(Default)]
struct Gathered(BTreeMap<ObjectKey, Change>);

impl Gathered {
    fn add(&mut self, changes: Vec<Change>) {
        self.0.extend(changes.into_iter().map(|change| (ObjectKey::of(&change), change)));
    }

    /// Returns the changes in the order of kinds and names.
    fn changes(self) -> Vec<Change> {
        self.0.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use netpold_core::model::Key;

    use super::*;

    #[test]
    fn of_several_changes_of_an_object_the_last_counts() {
        let mut gathered = Gathered::default();
        let gone = |name: &str| Change::PodGone(Key::new("x", name));
        let pod = Change::NamespaceGone("x".into());
        gathered.add(vec![gone("b"), gone("a"), pod.clone()]);
        gathered.add(vec![gone("b")]);
        assert_eq!(gathered.changes(), [pod, gone("a"), gone("b")]);
    }
}
