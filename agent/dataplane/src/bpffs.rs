//! The pin root, where maps and links outlive the agent, and its lock.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netpold_ebpf::layout::LAYOUT_VERSION;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

/// Failure of the pin root; each message contains the remedy.
#[derive(Debug, thiserror::Error)]
pub enum BpffsError {
    /// The directory could not be created.
    #[error("--bpffs {}: cannot create the directory: {cause}", path.display())]
    Create {
        /// The directory.
        path: PathBuf,
        /// Cause.
        cause: io::Error,
    },
    /// The directory is not on a bpffs, and mounting one failed.
    #[error(
        "--bpffs {}: not on a BPF file system, and mounting one there failed: {errno}. Run as root \
         with CAP_SYS_ADMIN, or mount it beforehand: mount -t bpf bpf {}; in Kubernetes install with \
         agent.mountBpffs=true",
        path.display(), path.display()
    )]
    Mount {
        /// The directory.
        path: PathBuf,
        /// Cause.
        errno: Errno,
    },
    /// The pins are in use by another agent.
    #[error(
        "--bpffs {}: another netpold agent is running on this pin root; nothing was changed. Stop it first, or use \
         another --bpffs for this one",
        path.display()
    )]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// Locking failed for another reason.
    #[error("--bpffs {}: cannot lock the directory: {errno}", path.display())]
    Lock {
        /// The directory.
        path: PathBuf,
        /// Cause.
        errno: Errno,
    },
}

/// Folder of tables that larger ones replaced, until their flows are migrated.
const OUTGROWN: &str = "outgrown";
/// Directory below the root, created by an agent that ends when another one requests the root. The other agent removes
/// it.
const GIVES_WAY: &str = "gives-way";
/// Directory of an agent that ends only for its successor, see [`GIVES_WAY`].
const HANDS_OVER: &str = "hands-over";
/// Time for such an agent to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for a standby to finish closing interfaces.
const STANDBY_PATIENCE: Duration = Duration::from_secs(5);
/// Interval between attempts to lock.
const INTERVAL: Duration = Duration::from_millis(10);

/// Agents that a new agent may take the pin root from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakesFrom {
    /// Only an agent that gives way to any other.
    GivesWay,
    /// Also the predecessor: an agent that hands over.
    Predecessor,
}

impl TakesFrom {
    fn directories(self) -> &'static [&'static str] {
        match self {
            Self::GivesWay => &[GIVES_WAY],
            Self::Predecessor => &[GIVES_WAY, HANDS_OVER],
        }
    }
}

/// A pin root that this process owns until the value is dropped.
#[derive(Debug)]
pub struct PinRoot {
    root: PathBuf,
    versioned: PathBuf,
    lock: Flock<File>,
}

/// Folder of map pins, without ownership of the pin root.
#[derive(Clone, Debug)]
pub struct MapPins(PathBuf);

impl MapPins {
    /// Pin of a map.
    #[must_use]
    pub fn map(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl PinRoot {
    /// Ensures that `root` is on a bpffs (mounts one if necessary), locks it against other agents and creates the
    /// folder of this layout version.
    ///
    /// # Errors
    /// See [`BpffsError`]; pins stay as they are in any case.
    pub fn open(root: &Path) -> Result<Self, BpffsError> {
        Self::take_over(root, TakesFrom::GivesWay)
    }

    /// Opens a pin root as [`PinRoot::open`] does, also one that its agent hands over.
    ///
    /// # Errors
    /// See [`BpffsError`].
    pub fn take_over(root: &Path, from: TakesFrom) -> Result<Self, BpffsError> {
        ensure_bpffs(root)?;
        let asks = || from.directories().iter().any(|name| fs::remove_dir(root.join(name)).is_ok());
        let lock = match lock(root) {
            Err(BpffsError::Busy { .. }) if asks() => {
                lock_until(root, Instant::now() + PATIENCE, || true)?
            }
            Err(BpffsError::Busy { .. }) => lock_from_standby(root)?,
            lock => lock?,
        };
        // Directories of an agent that was killed.
        for name in TakesFrom::Predecessor.directories() {
            let _ = fs::remove_dir(root.join(name));
        }
        let versioned = root.join(format!("v{LAYOUT_VERSION}"));
        create(&versioned)?;
        create(&links(root))?;
        Ok(Self { root: root.to_owned(), versioned, lock })
    }

    /// Whether a running agent offers the pin root to another one.
    #[must_use]
    pub fn is_kept_for_another(root: &Path, from: TakesFrom) -> bool {
        from.directories().iter().any(|name| root.join(name).is_dir()) && Self::is_busy(root)
    }

    /// Whether an agent is running on a pin root.
    #[must_use]
    pub fn is_busy(root: &Path) -> bool {
        SharedPinLock::lock(root).is_ok_and(|free| free.is_none())
    }

    /// Whether maps are pinned, so an agent enforced policy here before.
    #[must_use]
    pub fn has_tables(&self) -> bool {
        has_tables(&self.root)
    }

    /// Restores the pin root if bpffs was unmounted, or the directory was removed. The former pins are not restored.
    ///
    /// # Errors
    /// See [`BpffsError`].
    pub fn restore(&mut self) -> Result<(), BpffsError> {
        if is_bpffs(&self.versioned) && self.links().is_dir() {
            return Ok(());
        }
        ensure_bpffs(&self.root)?;
        if !is_same(&self.lock, &self.root) {
            self.lock = lock_from_standby(&self.root)?;
        }
        create(&self.versioned)?;
        create(&self.links())
    }

    /// Directory given by `--bpffs`.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Folder of the maps of this layout version.
    #[must_use]
    pub fn maps(&self) -> MapPins {
        MapPins(self.versioned.clone())
    }

    /// Pin of a map of this layout version.
    #[must_use]
    pub fn map(&self, name: &str) -> PathBuf {
        self.maps().map(name)
    }

    /// Folder of the links: the same for every layout version, so that an upgrade replaces the program of a link
    /// instead of adding a second one.
    #[must_use]
    pub fn links(&self) -> PathBuf {
        links(&self.root)
    }

    /// Creates an empty folder for tables that larger ones replace.
    ///
    /// # Errors
    /// Error of bpffs.
    pub(super) fn outgrown(&self) -> io::Result<MapPins> {
        let folder = self.root.join(OUTGROWN);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir(&folder)?,
        }
        Ok(MapPins(folder))
    }

    /// Folders of tables with flows that are not in this layout version's tables, sorted by name: of other layout
    /// versions, and outgrown ones.
    #[must_use]
    pub fn other_tables(&self) -> Vec<PathBuf> {
        let mut others = self.folders();
        others.retain(|path| *path != self.versioned);
        others.sort();
        others
    }

    /// Removes [`PinRoot::other_tables`], once they are unused. Returns the folders that could not be removed.
    #[must_use]
    pub fn remove_other_tables(&self) -> Vec<(PathBuf, io::Error)> {
        let others = self.other_tables().into_iter();
        others.filter_map(|path| fs::remove_dir_all(&path).err().map(|e| (path, e))).collect()
    }

    /// Removes all pins of netpold; returns the number of maps and links. Removes the root, too, if it has no other
    /// content. The root directory of a bpffs stays: it contains files of the kernel.
    ///
    /// # Errors
    /// The first pin that could not be removed.
    pub fn remove_all(&self) -> io::Result<usize> {
        let mut removed = 0;
        for path in self.folders().into_iter().chain([self.links()]) {
            removed += fs::read_dir(&path)?.count();
            fs::remove_dir_all(&path)?;
        }
        // A directory that is not empty, or a mount point, is not netpold's alone.
        let _ = fs::remove_dir(&self.root);
        Ok(removed)
    }

    /// Folders of maps.
    fn folders(&self) -> Vec<PathBuf> {
        folders(&self.root)
    }
}

/// Folders of maps below a pin root: of layout versions (`v1` and so on), and of outgrown tables.
fn folders(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let has_maps = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name == OUTGROWN || name.strip_prefix('v').is_some_and(|it| it.parse::<u32>().is_ok())
    };
    entries.map(|entry| entry.path()).filter(has_maps).collect()
}

/// Whether maps are pinned below a pin root.
#[must_use]
pub fn has_tables(root: &Path) -> bool {
    let has_entries =
        |folder: PathBuf| fs::read_dir(folder).is_ok_and(|mut it| it.next().is_some());
    folders(root).into_iter().any(has_entries)
}

/// Folder of the pinned links below a pin root.
#[must_use]
pub fn links(root: &Path) -> PathBuf {
    root.join("links")
}

/// Removes a pin, if it exists.
pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn create(path: &Path) -> Result<(), BpffsError> {
    fs::create_dir_all(path).map_err(|cause| BpffsError::Create { path: path.to_owned(), cause })
}

/// Mounts a bpffs if the nearest existing ancestor is not on one, as on some nodes: at `/sys/fs/bpf` if the root lies
/// there (sysfs allows no folders), else at the root itself.
fn ensure_bpffs(root: &Path) -> Result<(), BpffsError> {
    if is_bpffs(nearest_existing(root)) {
        return create(root);
    }
    let standard = Path::new("/sys/fs/bpf");
    let target = if root.starts_with(standard) { standard } else { root };
    if target == root {
        create(root)?;
    }
    mount(Some("bpf"), target, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
        .map_err(|errno| BpffsError::Mount { path: target.to_owned(), errno })?;
    create(root)
}

fn nearest_existing(path: &Path) -> &Path {
    path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"))
}

/// Whether a path is on a BPF file system.
#[must_use]
pub fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|s| s.filesystem_type() == BPF_FS_MAGIC)
}

/// Whether an open directory is still the one at a path.
fn is_same(open: &File, path: &Path) -> bool {
    let identity = |data: fs::Metadata| (data.dev(), data.ino());
    match (open.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(path)) => identity(open) == identity(path),
        _ => false,
    }
}

/// Offer of a pin root to the next agent that wants it.
#[derive(Clone, Debug)]
pub struct PinRootOffer(PathBuf);

impl PinRootOffer {
    /// Offers a pin root to another agent.
    ///
    /// # Errors
    /// The directory of the offer cannot be made.
    pub fn new(root: &Path, to: TakesFrom) -> Result<Self, BpffsError> {
        let directory = root.join(match to {
            TakesFrom::GivesWay => GIVES_WAY,
            TakesFrom::Predecessor => HANDS_OVER,
        });
        create(&directory)?;
        Ok(Self(directory))
    }

    /// Whether another agent has taken the offer.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        !self.0.is_dir()
    }
}

/// Waits for the lock of an agent that ends, or of a standby, as long as `goes_on` is true.
fn lock_until(
    root: &Path,
    deadline: Instant,
    goes_on: impl Fn() -> bool,
) -> Result<Flock<File>, BpffsError> {
    loop {
        match lock(root) {
            Err(BpffsError::Busy { .. }) if Instant::now() < deadline && goes_on() => {
                std::thread::sleep(INTERVAL);
            }
            lock => return lock,
        }
    }
}

/// Waits for a standby, which holds a shared lock while it closes interfaces.
fn lock_from_standby(root: &Path) -> Result<Flock<File>, BpffsError> {
    lock_until(root, Instant::now() + STANDBY_PATIENCE, || !PinRoot::is_busy(root))
}

/// Shared lock on a pin root, which keeps agents from opening it.
#[derive(Debug)]
pub struct SharedPinLock(#[expect(dead_code, reason = "held for its lock")] Flock<File>);

impl SharedPinLock {
    /// Locks a pin root against agents; `None` if one runs.
    ///
    /// # Errors
    /// The directory is missing, or cannot be locked.
    pub fn lock(root: &Path) -> io::Result<Option<Self>> {
        match Flock::lock(File::open(root)?, FlockArg::LockSharedNonblock) {
            Ok(lock) => Ok(Some(Self(lock))),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    /// Waits until no agent owns a pin root.
    ///
    /// # Errors
    /// The directory is missing, or cannot be locked.
    pub fn wait(root: &Path) -> io::Result<()> {
        let locked = Flock::lock(File::open(root)?, FlockArg::LockShared);
        locked.map(drop).map_err(|(_, errno)| errno.into())
    }
}

/// Locks the directory, since bpffs holds no regular files. The kernel releases the lock when the process ends, in any
/// way.
fn lock(root: &Path) -> Result<Flock<File>, BpffsError> {
    let directory =
        File::open(root).map_err(|cause| BpffsError::Create { path: root.to_owned(), cause })?;
    Flock::lock(directory, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        let path = root.to_owned();
        if errno == Errno::EWOULDBLOCK {
            BpffsError::Busy { path }
        } else {
            BpffsError::Lock { path, errno }
        }
    })
}
