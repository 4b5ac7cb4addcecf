//! Which files of the directory changed, and when it is time to read them.
//!
//! What is read is decided by comparing stamps, not by what a notification says: notifications may
//! be lost, and a symlink's target changes without one. They tell only whether a writer is done.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::fcntl::OFlag;
use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind, RenameMode};

use super::content;
use super::store::Update;
use crate::watched::Stamp;

/// How long a file may be new, or away while an editor replaces it, before what is there is taken
/// for what is meant.
const PATIENCE: Duration = Duration::from_millis(100);
/// The same for a file that is being written, from the last write on: half of it may well parse, and
/// say something else than the whole (`from:` cut off after its `-` is everyone).
const WRITER_PATIENCE: Duration = Duration::from_secs(10);
/// Size of a file, in bytes, beyond which it is not read: 10,000 pods as `kubectl` writes them.
const MAX_SIZE: u64 = 64 << 20;
/// How young a change may be whose notification has perhaps not arrived yet.
const YOUNG: Duration = Duration::from_millis(50);

/// What notifications say of a file's writer.
#[derive(Clone, Copy, Debug)]
enum Writer {
    /// The file has just come; a link does so without a writer that will be done.
    Came { at: Instant },
    /// It was written to and is still open.
    AtWork { last: Instant },
    /// It was closed, or came whole.
    Done,
}

impl Writer {
    fn is_at_work(self, now: Instant) -> bool {
        match self {
            Self::Came { at } => now.duration_since(at) < PATIENCE,
            Self::AtWork { last } => now.duration_since(last) < WRITER_PATIENCE,
            Self::Done => false,
        }
    }
}

/// What a scan found.
pub(super) struct Found {
    /// What became of files since the scan before.
    pub(super) updates: Vec<(String, Update)>,
    /// Something is not settled: scan again soon.
    pub(super) unsettled: bool,
}

/// The directory as it was at the last scan.
pub(super) struct Scanner {
    directory: PathBuf,
    /// Of objects that name none.
    namespace: String,
    /// Device and inode of the directory that was read last.
    identity: Option<(u64, u64)>,
    seen: BTreeMap<String, Stamp>,
    /// Unreadable files, by the error's text: read again only when that, or the stamp, changes.
    failed: HashMap<String, String>,
    writers: HashMap<String, Writer>,
    away: HashMap<String, Instant>,
    first: bool,
}

impl Scanner {
    pub(super) fn new(directory: &Path, namespace: &str) -> Self {
        Self {
            directory: directory.to_owned(),
            namespace: namespace.to_owned(),
            identity: None,
            seen: BTreeMap::new(),
            failed: HashMap::new(),
            writers: HashMap::new(),
            away: HashMap::new(),
            first: true,
        }
    }

    /// Take note of a notification. Returns whether it calls for a scan.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "an enum of another crate, open to further variants"
    )]
    pub(super) fn note(&mut self, event: &notify::Event, now: Instant) -> bool {
        let writer = match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(RenameMode::To | RenameMode::Both)) => {
                Writer::Done
            }
            EventKind::Access(_) => return false,
            EventKind::Create(CreateKind::File) => Writer::Came { at: now },
            EventKind::Modify(ModifyKind::Data(_)) => Writer::AtWork { last: now },
            _ => return true,
        };
        for name in event.paths.iter().filter_map(|path| path.file_name()?.to_str()) {
            if is_manifest(name) {
                self.writers.insert(name.to_owned(), writer);
            }
        }
        true
    }

    /// Compare the directory with what it was.
    ///
    /// # Errors
    /// The directory itself cannot be read, or it is an empty one in the place of the one that held
    /// the files (a volume was unmounted); nothing is concluded about the files then.
    pub(super) fn scan(&mut self, now: Instant) -> io::Result<Found> {
        let directory = fs::metadata(&self.directory)?;
        let identity = Some((directory.dev(), directory.ino()));
        let listing = self.list()?;
        let held_something = !self.seen.is_empty() || !self.failed.is_empty();
        if listing.is_empty() && held_something && identity != self.identity {
            return Err(io::Error::other("another, empty directory has taken its place"));
        }
        self.identity = identity;
        let mut found = Found { updates: Vec::new(), unsettled: false };
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

    /// Manifests by name, symlinks followed.
    fn list(&self) -> io::Result<BTreeMap<String, io::Result<Metadata>>> {
        let mut listing = BTreeMap::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if !is_manifest(name) {
                continue;
            }
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    // A file was removed since it was listed; what a symlink led to has perhaps
                    // gone with its volume, and nobody removed the symlink.
                    if fs::symlink_metadata(&path).is_ok_and(|m| m.is_symlink()) {
                        let error = io::Error::new(e.kind(), "a symlink that leads nowhere");
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

    fn compare(&mut self, name: &str, metadata: &Metadata, now: Instant, found: &mut Found) {
        let stamp = Stamp::of(metadata);
        // Two writes within one tick of the clock leave one stamp: a notification counts too.
        let noted = self.writers.contains_key(name) || self.failed.contains_key(name);
        if self.seen.get(name) == Some(&stamp) && !noted {
            return;
        }
        let writer = self.writers.get(name).copied();
        let at_work = match writer {
            Some(writer) => writer.is_at_work(now),
            None => !self.first && age(metadata) < YOUNG,
        };
        // Most writers empty a file first.
        let emptied = metadata.len() == 0 && self.seen.get(name).is_some_and(|s| s.size > 0);
        if at_work || (emptied && age(metadata) < PATIENCE) {
            // The end of a writer at work will be told.
            found.unsettled |= !matches!(writer, Some(Writer::AtWork { .. }));
            return;
        }
        match self.read(name) {
            Ok((read_stamp, bytes)) => {
                self.writers.remove(name);
                self.failed.remove(name);
                // If it changed in between, the next scan sees another stamp and reads again.
                self.seen.insert(name.to_owned(), read_stamp);
                let update = if bytes.trim_ascii().is_empty() {
                    Update::Empty
                } else {
                    Update::Read(content::read(name, &bytes, &self.namespace))
                };
                found.updates.push((name.to_owned(), update));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => found.unsettled = true,
            Err(e) => self.fail(name, &e, found),
        }
    }

    /// A regular file's content. Nothing that is opened or read here waits: what a symlink leads to
    /// may be anything (`/proc/kmsg` is a regular file), and may change between two looks.
    fn read(&self, name: &str) -> io::Result<(Stamp, Vec<u8>)> {
        let path = self.directory.join(name);
        let check = |metadata: &Metadata| match metadata.len() {
            _ if !metadata.is_file() => Err(io::Error::other("not a regular file")),
            0..=MAX_SIZE => Ok(()),
            _ => Err(too_large()),
        };
        // Some devices act when they are opened.
        check(&fs::metadata(&path)?)?;
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
        let metadata = file.metadata()?;
        check(&metadata)?;
        let mut bytes = Vec::new();
        if file.take(MAX_SIZE + 1).read_to_end(&mut bytes)? as u64 > MAX_SIZE {
            return Err(too_large());
        }
        Ok((Stamp::of(&metadata), bytes))
    }

    fn fail(&mut self, name: &str, error: &io::Error, found: &mut Found) {
        let reason = format!("cannot be read: {error}");
        if self.failed.get(name) != Some(&reason) {
            self.failed.insert(name.to_owned(), reason.clone());
            found.updates.push((name.to_owned(), Update::Unreadable(reason)));
        }
    }

    /// Files that are no longer there: gone at once if renamed, else after a moment, as editors
    /// move a file away before they write the new one.
    fn miss(
        &mut self,
        listing: &BTreeMap<String, io::Result<Metadata>>,
        now: Instant,
        found: &mut Found,
    ) {
        let known = self.seen.keys().chain(self.failed.keys());
        let missing: Vec<String> = known.filter(|n| !listing.contains_key(*n)).cloned().collect();
        for name in missing {
            let since = *self.away.entry(name.clone()).or_insert(now);
            let former = self.seen.get(&name).map(|stamp| stamp.file);
            let renamed = || self.seen.iter().any(|(n, s)| *n != name && Some(s.file) == former);
            if now.duration_since(since) < PATIENCE && !renamed() {
                found.unsettled = true;
                continue;
            }
            self.away.remove(&name);
            self.seen.remove(&name);
            self.failed.remove(&name);
            self.writers.remove(&name);
            if found.updates.iter().all(|(n, _)| *n != name) {
                found.updates.push((name, Update::Gone));
            }
        }
    }
}

fn too_large() -> io::Error {
    io::Error::other(format!("larger than {} MiB; split it into several files", MAX_SIZE >> 20))
}

/// `*.yaml`, `*.yml` and `*.json`, not hidden.
fn is_manifest(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|e| e.to_str());
    !name.starts_with('.') && matches!(extension, Some("yaml" | "yml" | "json"))
}

/// How long ago a file was modified; for ever, if the clock cannot say.
fn age(metadata: &Metadata) -> Duration {
    let modified = metadata.modified().ok();
    modified.and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or(Duration::MAX)
}
