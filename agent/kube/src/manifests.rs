//! Kubernetes objects from the files of one directory: `*.yaml`, `*.yml` and `*.json`, not hidden, without
//! subdirectories, symlinks followed (so a mounted ConfigMap works).
//!
//! A problem with one object or document does not affect the rest of its file. An object that cannot be decoded keeps
//! its last good version; without one, a policy isolates the pods that it selects and grants nothing, and any other
//! object counts as absent. While a document or a file cannot be read, every object that it may have held stays. A
//! document that was never readable keeps the source from being in sync, because it may isolate any pod.

mod complete;
mod content;
mod packed;
mod scan;
mod store;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc as events;
use std::time::{Duration, Instant};

use netpold_api::source::{SourceProblem, SourceStatus};
use netpold_core::model::Change;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

pub use self::complete::complete;
pub use self::content::{Undecoded, is_repetition};
use self::scan::Scanner;
use self::store::FileStore;
pub use self::tree::{Tree, is_manifest, tree};
use crate::convert::DEFAULT_NAMESPACE;
use crate::document::ReadError;
use crate::watched::WatchedDirectory;
use crate::{Batch, ObjectStream};

/// Changes within this time after the first form one batch.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// Pause before the next scan if a file is unsettled.
const SOON: Duration = Duration::from_millis(20);
/// Shortest time between scans without a notification.
const RESCAN: Duration = Duration::from_millis(100);
/// Scans without a notification take at most 1/`RESCAN_SHARE` of the time.
const RESCAN_SHARE: u32 = 100;
/// Longest time between scans.
const RESCAN_MAX: Duration = Duration::from_secs(2);

/// Error of a directory that cannot be read.
#[derive(Debug, Error)]
#[error("--manifests {}: {error}{}", .directory.display(), hint(.error))]
pub struct ManifestsError {
    directory: PathBuf,
    #[source]
    error: io::Error,
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "an enum of another crate, open to further variants"
)]
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; create it, or name the directory that holds the manifests",
        io::ErrorKind::NotADirectory => "; name the directory, not a file in it",
        io::ErrorKind::PermissionDenied => "; netpold must be able to list and read it",
        _ => "",
    }
}

/// Reads a directory once.
///
/// # Errors
/// The directory cannot be read. Unreadable files are reported among the problems.
pub fn read_once(directory: &Path) -> Result<(Vec<Change>, SourceStatus), ManifestsError> {
    let mut state = DirectoryState::new(directory, DEFAULT_NAMESPACE);
    let changes = state.scan().map_err(|error| state.failure(error))?.changes;
    let status = state.status(None);
    Ok((changes, status))
}

/// Objects for a review, with the pods of pod templates.
#[derive(Debug, Default)]
pub struct Review {
    /// The objects.
    pub objects: Vec<Change>,
    /// Problems with objects, and with parts of them.
    pub problems: Vec<SourceProblem>,
    /// Objects among the problems that count as absent, and pod templates without their labels and ports.
    pub undecoded: Vec<Undecoded>,
    /// Documents and files that cannot be read, which may hold any object; they are among the problems, too, unless
    /// these are too many to be named.
    pub unread: Vec<SourceProblem>,
}

/// Reads a directory once for a review, and if `is_deep` with its subdirectories. Objects without a namespace get
/// `namespace`.
///
/// # Errors
/// As [`read_once`], or a subdirectory cannot be read.
pub fn review_once(
    directory: &Path,
    namespace: &str,
    is_deep: bool,
) -> Result<Review, ManifestsError> {
    let mut state = DirectoryState::new(directory, namespace);
    state.scanner.is_deep = is_deep;
    let mut objects = state.scan().map_err(|error| state.failure(error))?.changes;
    objects.extend(state.store.templates());
    let (problems, store) = (state.status(None).problems, &state.store);
    Ok(Review { objects, problems, undecoded: store.undecoded(), unread: store.unread() })
}

/// Reads one file's text, for tests and fuzzing; returns its objects, and the problems with its parts.
///
/// # Errors
/// A document is not YAML, or not an object: it might isolate any pod.
pub fn read_text(name: &str, bytes: &[u8]) -> Result<(Vec<Change>, Vec<SourceProblem>), ReadError> {
    let mut content = content::read(name, bytes, DEFAULT_NAMESPACE);
    if let Some(error) = content.unread.first() {
        return Err(error.clone());
    }
    content.replace_undecoded(name, None, false);
    let problems = content.problems(name).collect();
    let objects = content.objects.into_values().filter_map(|object| object.change.unpacked());
    Ok((objects.collect(), problems))
}

/// Reads one file's text for a review, each document independently. Objects without a namespace get `namespace`.
#[must_use]
pub fn review_text(name: &str, bytes: &[u8], namespace: &str) -> Review {
    let mut content = content::read(name, bytes, namespace);
    content.replace_undecoded(name, None, false);
    let problems = content.problems(name).collect();
    let unread = content.unread_documents(name).collect();
    let objects = content.objects.into_values().chain(content.templates.into_values());
    let objects = objects.filter_map(|object| object.change.unpacked()).collect();
    Review { objects, problems, undecoded: content.undecoded, unread }
}

/// Reads a directory and keeps watching it. The first batch contains every object.
///
/// # Errors
/// The directory cannot be read now. If it vanishes later, its objects stay in effect.
pub fn watch(directory: &Path) -> Result<ObjectStream, ManifestsError> {
    let mut state = DirectoryState::new(directory, DEFAULT_NAMESPACE);
    let (sender, events) = events::channel();
    let watched = WatchedDirectory::new(directory, sender);
    let at = Instant::now();
    let changes = state.scan().map_err(|error| state.failure(error))?.changes;
    let status = state.status(None);
    report(&SourceStatus::default(), &status);
    let in_sync = status.in_sync;
    let (status_sender, status) = watch::channel(status);
    let (batch_sender, batches) = mpsc::channel(64);
    let _ = batch_sender.try_send(Batch { changes, in_sync, at });
    let follower = DirectoryFollower {
        state,
        watched,
        events,
        batches: batch_sender,
        status: status_sender,
        failing: false,
    };
    let thread = std::thread::Builder::new().name("manifests".into());
    let started = thread.spawn(move || follower.run());
    started.map_err(|error| ManifestsError { directory: directory.to_owned(), error })?;
    Ok(ObjectStream { batches, status, partial: true })
}

/// The directory and its known objects.
struct DirectoryState {
    directory: PathBuf,
    scanner: Scanner,
    store: FileStore,
    /// Whether every object was known at some time. A bad file that appears later changes nothing, so it does not reset
    /// this.
    in_sync: bool,
}

impl DirectoryState {
    fn new(directory: &Path, namespace: &str) -> Self {
        Self {
            directory: directory.to_owned(),
            scanner: Scanner::new(directory, namespace),
            store: FileStore::default(),
            in_sync: false,
        }
    }

    fn scan(&mut self) -> io::Result<ScanOutcome> {
        let found = self.scanner.scan(Instant::now())?;
        let touched = !found.updates.is_empty();
        let changes = self.store.apply(found.updates);
        self.in_sync |= self.store.complete();
        Ok(ScanOutcome { changes, touched, unsettled: found.unsettled })
    }

    fn failure(&self, error: io::Error) -> ManifestsError {
        ManifestsError { directory: self.directory.clone(), error }
    }

    fn status(&self, failure: Option<&str>) -> SourceStatus {
        let (files, mut problems) = self.store.report();
        if let Some(text) = failure {
            problems
                .insert(0, SourceProblem { file: String::new(), line: 0, text: text.to_owned() });
        }
        let origin = format!("manifests in {}", self.directory.display());
        SourceStatus { origin, in_sync: self.in_sync, files, problems, ..SourceStatus::default() }
    }
}

/// Result of a scan.
struct ScanOutcome {
    changes: Vec<Change>,
    /// Whether the state of some file changed.
    touched: bool,
    /// Whether another scan must follow soon.
    unsettled: bool,
}

/// State of the thread that follows a directory.
struct DirectoryFollower {
    state: DirectoryState,
    watched: WatchedDirectory,
    events: events::Receiver<notify::Result<notify::Event>>,
    batches: mpsc::Sender<Batch>,
    status: watch::Sender<SourceStatus>,
    failing: bool,
}

impl DirectoryFollower {
    fn run(mut self) {
        let mut wait = SOON;
        while !self.batches.is_closed() {
            let at = self.wait(wait);
            self.watched.renew();
            let began = Instant::now();
            let Some(unsettled) = self.scan_and_send(at) else { return };
            let quiet = (began.elapsed() * RESCAN_SHARE).clamp(RESCAN, RESCAN_MAX);
            wait = if unsettled { SOON } else { quiet };
        }
    }

    /// Waits for a notification that requires a scan, and briefly for further ones; returns the time of the first.
    fn wait(&mut self, longest: Duration) -> Instant {
        let mut until = Instant::now() + longest;
        let mut first = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(event) = self.events.recv_timeout(left) else {
                return first.unwrap_or_else(Instant::now);
            };
            let now = Instant::now();
            let calls = event.map_or(true, |event| {
                self.watched.handle_event(&event);
                self.state.scanner.record_event(&event, now)
            });
            if calls && first.is_none() {
                first = Some(now);
                until = until.min(now + DEBOUNCE);
            }
        }
    }

    /// Scans, and sends the changes. Returns whether a file is unsettled; `None` if the receiver is closed.
    fn scan_and_send(&mut self, at: Instant) -> Option<bool> {
        let outcome = match self.state.scan() {
            Ok(outcome) => outcome,
            Err(error) => {
                self.watched.forget();
                let text =
                    format!("{}; its last good content stays in effect", self.state.failure(error));
                self.publish(Some(&text));
                self.failing = true;
                return Some(false);
            }
        };
        if !outcome.touched && !self.failing {
            return Some(outcome.unsettled);
        }
        self.failing = false;
        let (in_sync_before, in_sync) = self.publish(None);
        if !outcome.changes.is_empty() || in_sync != in_sync_before {
            let batch = Batch { changes: outcome.changes, in_sync, at };
            self.batches.blocking_send(batch).ok()?;
        }
        Some(outcome.unsettled)
    }

    /// Updates the status; returns whether it was in sync before, and is now.
    fn publish(&mut self, failure: Option<&str>) -> (bool, bool) {
        let status = self.state.status(failure);
        let (before, now) = (self.status.borrow().in_sync, status.in_sync);
        self.status.send_if_modified(|current| {
            let modified = *current != status;
            if modified {
                report(current, &status);
                *current = status;
            }
            modified
        });
        (before, now)
    }
}

/// Logs new problems and problems that are settled.
fn report(before: &SourceStatus, now: &SourceStatus) {
    for problem in now.problems.iter().filter(|p| !before.problems.contains(p)) {
        warn!("{problem}");
    }
    for problem in before.problems.iter().filter(|p| !now.problems.contains(p)) {
        info!("resolved: {problem}");
    }
}

#[cfg(test)]
mod tests;
