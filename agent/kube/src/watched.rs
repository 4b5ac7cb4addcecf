//! Changes in a directory: notifications, and stamps of files.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tracing::warn;

/// Stamp of a file that changes with its content: identity, size and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Device and inode; `None` where files have no such identity.
    pub(crate) file: Option<(u64, u64)>,
    pub(crate) size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    #[cfg(unix)]
    pub(crate) fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;

        Self {
            file: Some((metadata.dev(), metadata.ino())),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Returns a stamp without an identity: the replacement of a directory, or of a file by one of equal size and
    /// times, is not noticed.
    #[cfg(not(unix))]
    pub(crate) fn of(metadata: &Metadata) -> Self {
        use std::io;
        use std::time::{SystemTime, UNIX_EPOCH};

        let since_epoch = |time: io::Result<SystemTime>| {
            let since = time.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let since = since.unwrap_or_default();
            (since.as_secs() as i64, i64::from(since.subsec_nanos()))
        };
        Self {
            file: None,
            size: metadata.len(),
            modified: since_epoch(metadata.modified()),
            changed: since_epoch(metadata.created()),
        }
    }
}

/// Notifications about a directory that may vanish and return.
pub(crate) struct WatchedDirectory {
    directory: PathBuf,
    sender: Sender<notify::Result<notify::Event>>,
    watcher: Option<(RecommendedWatcher, Option<(u64, u64)>)>,
    complained: bool,
}

impl WatchedDirectory {
    pub(crate) fn new(directory: &Path, sender: Sender<notify::Result<notify::Event>>) -> Self {
        let directory = directory.to_owned();
        let mut watched = Self { directory, sender, watcher: None, complained: false };
        watched.renew();
        watched
    }

    /// Ends the watch if an event removes or moves the directory, even if another one takes its path (and inode
    /// number).
    pub(crate) fn handle_event(&mut self, event: &notify::Event) {
        use notify::event::{EventKind, ModifyKind};
        let away =
            matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
        if away && event.paths.contains(&self.directory) {
            self.watcher = None;
        }
    }

    /// Ends the watch of a directory that cannot be read: a later one at the path is another directory.
    pub(crate) fn forget(&mut self) {
        self.watcher = None;
    }

    /// Watches the current directory at the path. Without notifications the scans must find all changes.
    pub(crate) fn renew(&mut self) {
        let Ok(found) = fs::metadata(&self.directory) else { return };
        let identity = Stamp::of(&found).file;
        if self.watcher.as_ref().is_some_and(|(_, watched)| *watched == identity) {
            return;
        }
        let sender = self.sender.clone();
        let watcher = notify::recommended_watcher(move |event| {
            let _ = sender.send(event);
        });
        let watcher = watcher.and_then(|mut watcher| {
            watcher.watch(&self.directory, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        match watcher {
            Ok(watcher) => self.watcher = Some((watcher, identity)),
            Err(e) if !self.complained => {
                self.complained = true;
                warn!("no change notifications ({e}); polling files instead");
            }
            Err(_) => {}
        }
    }
}
