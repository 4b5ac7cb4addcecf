//! Detection of changed files in the directory, and of the time to read them.
//!
//! Changes are detected by comparing stamps, not by notifications: notifications may be lost, and a symlink's target
//! changes without one. Notifications only show whether a writer has finished.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind, RenameMode};

use super::content;
use super::store::FileUpdate;
use super::tree::{is_manifest, tree};
use crate::watched::Stamp;

/// Time during which a new file may be incomplete, and a missing one may be in the process of replacement by an editor.
const PATIENCE: Duration = Duration::from_millis(100);
/// Time since the last write during which a file counts as being written: half of it may be valid and have another
/// meaning than the whole (`from:` cut off after its `-` is everyone).
const WRITER_PATIENCE: Duration = Duration::from_secs(10);
/// Largest file that is read, in bytes: 10,000 pods in `kubectl`'s format.
const MAX_SIZE: u64 = 64 << 20;
/// Age of a change below which its notification may not have arrived yet.
const YOUNG: Duration = Duration::from_millis(50);

/// State of a file's writer, by notifications.
#[derive(Clone, Copy, Debug)]
enum WriterState {
    /// The file has just appeared; a link appears without any writer.
    Came { at: Instant },
    /// The file was written to and is still open.
    AtWork { last: Instant },
    /// The file was closed, or appeared complete.
    Done,
}

impl WriterState {
    fn is_at_work(self, now: Instant) -> bool {
        match self {
            Self::Came { at } => now.duration_since(at) < PATIENCE,
            Self::AtWork { last } => now.duration_since(last) < WRITER_PATIENCE,
            Self::Done => false,
        }
    }
}

/// Result of a scan.
pub(super) struct ScanResult {
    /// Changes of files since the scan before.
    pub(super) updates: Vec<(String, FileUpdate)>,
    /// Whether some file is not settled: scan again soon.
    pub(super) unsettled: bool,
}

/// State of the directory at the last scan.
pub(super) struct Scanner {
    directory: PathBuf,
    /// Whether subdirectories belong to the directory; files in them are not watched.
    pub(super) is_deep: bool,
    /// Namespace of objects that name none.
    namespace: String,
    /// Device and inode of the directory that was read last.
    identity: Option<(u64, u64)>,
    seen: BTreeMap<String, Stamp>,
    /// Unreadable files, by the error's text: read again only when the error or the stamp changes.
    failed: HashMap<String, String>,
    writers: HashMap<String, WriterState>,
    away: HashMap<String, Instant>,
    first: bool,
}

impl Scanner {
    pub(super) fn new(directory: &Path, namespace: &str) -> Self {
        Self {
            directory: directory.to_owned(),
            is_deep: false,
            namespace: namespace.to_owned(),
            identity: None,
            seen: BTreeMap::new(),
            failed: HashMap::new(),
            writers: HashMap::new(),
            away: HashMap::new(),
            first: true,
        }
    }

    /// Records a notification. Returns whether it requires a scan.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "an enum of another crate, open to further variants"
    )]
    pub(super) fn record_event(&mut self, event: &notify::Event, now: Instant) -> bool {
        let writer = match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(RenameMode::To | RenameMode::Both)) => {
                WriterState::Done
            }
            EventKind::Access(_) => return false,
            EventKind::Create(CreateKind::File) => WriterState::Came { at: now },
            EventKind::Modify(ModifyKind::Data(_)) => WriterState::AtWork { last: now },
            _ => return true,
        };
        for name in event.paths.iter().filter_map(|path| path.file_name()?.to_str()) {
            if is_manifest(name) {
                self.writers.insert(name.to_owned(), writer);
            }
        }
        true
    }

    /// Compares the directory with its former state.
    ///
    /// # Errors
    /// The directory itself cannot be read, or an empty directory has replaced the one that held the files (an
    /// unmounted volume); no file counts as removed then.
    pub(super) fn scan(&mut self, now: Instant) -> io::Result<ScanResult> {
        let identity = Stamp::of(&fs::metadata(&self.directory)?).file;
        let listing = self.list()?;
        let held_something = !self.seen.is_empty() || !self.failed.is_empty();
        if listing.is_empty() && held_something && identity != self.identity {
            return Err(io::Error::other("replaced by another, empty directory"));
        }
        self.identity = identity;
        let mut found = ScanResult { updates: Vec::new(), unsettled: false };
        for (name, metadata) in &listing {
            self.away.remove(name);
            match metadata {
                Ok(metadata) => self.compare(name, metadata, now, &mut found),
                Err(e) => self.fail(name, e, &mut found),
            }
        }
        self.miss(&listing, now, &mut found);
        self.first = false;
        Ok(found)
    }

    /// Lists manifests by name, in subdirectories by path; symlinks to files are followed.
    fn list(&self) -> io::Result<BTreeMap<String, io::Result<Metadata>>> {
        let mut listing = BTreeMap::new();
        for name in tree(&self.directory, self.is_deep)?.files {
            let path = self.directory.join(&name);
            let Some(name) = name.to_str() else { continue };
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    // A file was removed after it was listed; a dangling symlink stays an error, since its target may
                    // have vanished with a volume.
                    if fs::symlink_metadata(&path).is_ok_and(|m| m.is_symlink()) {
                        let error = io::Error::new(e.kind(), "a dangling symlink");
                        listing.insert(name.to_owned(), Err(error));
                    }
                }
                metadata => {
                    listing.insert(name.to_owned(), metadata);
                }
            }
        }
        Ok(listing)
    }

    fn compare(&mut self, name: &str, metadata: &Metadata, now: Instant, found: &mut ScanResult) {
        let stamp = Stamp::of(metadata);
        // Two writes within one tick of the clock have the same stamp, so a notification counts too.
        let noted = self.writers.contains_key(name) || self.failed.contains_key(name);
        if self.seen.get(name) == Some(&stamp) && !noted {
            return;
        }
        let writer = self.writers.get(name).copied();
        let at_work = match writer {
            Some(writer) => writer.is_at_work(now),
            None => !self.first && age(metadata) < YOUNG,
        };
        // Most writers truncate a file first.
        let emptied = metadata.len() == 0 && self.seen.get(name).is_some_and(|s| s.size > 0);
        if at_work || (emptied && age(metadata) < PATIENCE) {
            // A notification will report the end of an active writer.
            found.unsettled |= !matches!(writer, Some(WriterState::AtWork { .. }));
            return;
        }
        match self.read(name) {
            Ok((read_stamp, bytes)) => {
                self.writers.remove(name);
                self.failed.remove(name);
                // If the file changed meanwhile, the next scan finds another stamp and reads again.
                self.seen.insert(name.to_owned(), read_stamp);
                let update = if bytes.trim_ascii().is_empty() {
                    FileUpdate::Empty
                } else {
                    FileUpdate::Read(content::read(name, &bytes, &self.namespace))
                };
                found.updates.push((name.to_owned(), update));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => found.unsettled = true,
            Err(e) => self.fail(name, &e, found),
        }
    }

    /// Reads a regular file. Neither opening nor reading blocks: a symlink may lead to any file (`/proc/kmsg` is a
    /// regular file), and may change between two calls.
    fn read(&self, name: &str) -> io::Result<(Stamp, Vec<u8>)> {
        let path = self.directory.join(name);
        let check = |metadata: &Metadata| match metadata.len() {
            _ if !metadata.is_file() => Err(io::Error::other("not a regular file")),
            0..=MAX_SIZE => Ok(()),
            _ => Err(too_large()),
        };
        // Opening some devices has side effects.
        check(&fs::metadata(&path)?)?;
        let file = open(&path)?;
        let metadata = file.metadata()?;
        check(&metadata)?;
        let mut bytes = Vec::new();
        if file.take(MAX_SIZE + 1).read_to_end(&mut bytes)? as u64 > MAX_SIZE {
            return Err(too_large());
        }
        Ok((Stamp::of(&metadata), bytes))
    }

    fn fail(&mut self, name: &str, error: &io::Error, found: &mut ScanResult) {
        let reason = format!("cannot be read: {error}");
        if self.failed.get(name) != Some(&reason) {
            self.failed.insert(name.to_owned(), reason.clone());
            found.updates.push((name.to_owned(), FileUpdate::Unreadable(reason)));
        }
    }

    /// Handles missing files: removed at once if renamed, else after a moment, since editors move a file away before
    /// they write the new one.
    fn miss(
        &mut self,
        listing: &BTreeMap<String, io::Result<Metadata>>,
        now: Instant,
        found: &mut ScanResult,
    ) {
        let known = self.seen.keys().chain(self.failed.keys());
        let missing: Vec<String> = known.filter(|n| !listing.contains_key(*n)).cloned().collect();
        for name in missing {
            let since = *self.away.entry(name.clone()).or_insert(now);
            let former = self.seen.get(&name).and_then(|stamp| stamp.file);
            let is_same = |stamp: &Stamp| former.is_some() && stamp.file == former;
            let renamed = || self.seen.iter().any(|(n, stamp)| *n != name && is_same(stamp));
            if now.duration_since(since) < PATIENCE && !renamed() {
                found.unsettled = true;
                continue;
            }
            self.away.remove(&name);
            self.seen.remove(&name);
            self.failed.remove(&name);
            self.writers.remove(&name);
            if found.updates.iter().all(|(n, _)| *n != name) {
                found.updates.push((name, FileUpdate::Gone));
            }
        }
    }
}

#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;

    use nix::fcntl::OFlag;

    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    File::options().read(true).custom_flags(flags.bits()).open(path)
}

#[cfg(not(unix))]
fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

fn too_large() -> io::Error {
    io::Error::other(format!("larger than {} MiB; split it into several files", MAX_SIZE >> 20))
}

/// Returns the time since a file was modified; the maximum if the clock yields none.
fn age(metadata: &Metadata) -> Duration {
    let modified = metadata.modified().ok();
    modified.and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or(Duration::MAX)
}
