//! The program that drops every packet, and the coordination of its attachment.
//!
//! A guard (`netpold_discovery::newcomers`) closes the hooks of a new veth: by a barrier at once, then by the program.
//! The engine's programs replace the closing program atomically. If the agent ends in between, the veth stays closed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use netpold_core::lock::lock;
use netpold_core::model::Direction;

use super::barrier::Barriers;
use super::bpffs::remove_if_there;
use super::clsact::Clsact;
use super::front;
use super::hook::{AttachMode, Hook};
use crate::bpf::sys;

/// Pin name of the closing program, in the folder of the links.
const CLOSED: &str = "closed";
/// Longest wait for another process to pin its link, or to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval of checks during that wait.
const AGAIN: Duration = Duration::from_millis(1);

/// The program that drops every packet. One program per pin root: a TCX hook refuses a program that it already has, so
/// only one of two guards closes a hook.
#[derive(Debug)]
pub struct DropProgram {
    program: OwnedFd,
    /// Identifier of the program.
    pub id: u32,
}

impl DropProgram {
    /// Opens the pinned program from the folder of links, or loads and pins it. Without a pin (a read-only bpffs), only
    /// this process uses the program.
    ///
    /// # Errors
    /// The kernel rejects the program.
    fn open(links: &Path) -> io::Result<Self> {
        let path = links.join(CLOSED);
        let program = match sys::obj_get(&path) {
            Ok(program) => program,
            Err(_) => {
                let program = front::closed()?;
                match sys::obj_pin(program.as_fd(), &path) {
                    // Another process was first.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        sys::obj_get(&path)?
                    }
                    _ => program,
                }
            }
        };
        let id = sys::program_id(program.as_fd())?;
        Ok(Self { program, id })
    }
}

impl AsFd for DropProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// Claims on hooks by guards and by the engine.
#[derive(Debug, Default)]
pub struct HookClaims {
    state: Mutex<ClaimState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ClaimState {
    /// Hooks that a guard is closing now.
    closing: BTreeSet<Hook>,
    /// Hooks that the engine has claimed; guards do not touch them.
    taken: BTreeMap<Hook, EngineClaim>,
    /// Links that could not be pinned.
    unpinned: BTreeMap<Hook, OwnedFd>,
}

/// State of a hook that the engine has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EngineClaim {
    /// The engine is attaching or detaching.
    Held,
    /// The engine's program is attached.
    Judged,
    /// The index now belongs to a new interface that a guard tried to close; the hook is closed once the engine
    /// releases it.
    Wanted,
}

impl HookClaims {
    /// Claims a hook for the engine: waits until no guard is closing it, and keeps guards away from then on. Returns a
    /// guard's link that could not be pinned.
    pub(super) fn claim_for_engine(&self, hook: Hook) -> Option<OwnedFd> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_closing = |state: &mut ClaimState| state.closing.contains(&hook);
        let waited = self.changed.wait_while(state, is_closing);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.taken.entry(hook).or_insert(EngineClaim::Held);
        state.unpinned.remove(&hook)
    }

    /// Releases a hook for guards. Returns whether a guard tried to close the hook meanwhile.
    fn release(&self, hook: Hook) -> bool {
        lock(&self.state).taken.remove(&hook) == Some(EngineClaim::Wanted)
    }

    /// Records that the engine's program is attached, so that no guard needs to close the hook.
    pub(super) fn record_attached(&self, hook: Hook) {
        lock(&self.state).taken.insert(hook, EngineClaim::Judged);
    }

    /// Calls `act` unless the engine has claimed the hook. The engine cannot claim the hook during the call.
    fn unless_taken(&self, hook: Hook, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let state = lock(&self.state);
        if state.taken.contains_key(&hook) { Ok(()) } else { act() }
    }

    /// Calls `act` unless a guard is closing the hook. No guard can begin during the call.
    fn unless_closing(&self, hook: Hook, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let state = lock(&self.state);
        if state.closing.contains(&hook) { Ok(()) } else { act() }
    }

    /// Claims a hook for a guard; returns whether the guard may close it, and must call [`HookClaims::end`] then.
    /// `is_new`: a claim of the engine belongs to a former interface with this index.
    fn begin(&self, hook: Hook, is_new: bool) -> bool {
        let mut state = lock(&self.state);
        if let Some(taken) = state.taken.get_mut(&hook) {
            if is_new && *taken == EngineClaim::Held {
                *taken = EngineClaim::Wanted;
            }
            return false;
        }
        !state.unpinned.contains_key(&hook) && state.closing.insert(hook)
    }

    /// Ends a guard's claim; keeps a link that could not be pinned.
    fn end(&self, hook: Hook, unpinned: Option<OwnedFd>) {
        let mut state = lock(&self.state);
        state.closing.remove(&hook);
        state.unpinned.extend(unpinned.map(|link| (hook, link)));
        self.changed.notify_all();
    }

    /// Forgets an interface that is gone, since a later one may have its index.
    fn forget(&self, ifindex: u32) {
        let mut state = lock(&self.state);
        for direction in Direction::BOTH {
            let hook = Hook { ifindex, direction };
            state.taken.remove(&hook);
            state.unpinned.remove(&hook);
        }
    }
}

/// Closes hooks.
#[derive(Clone, Debug)]
pub struct HookCloser {
    /// Folder of the links' pins.
    links: PathBuf,
    /// Mode of attachment.
    mode: AttachMode,
    /// The program, once it is loaded.
    program: Arc<OnceLock<DropProgram>>,
    /// Claims, shared with the engine's attacher.
    pub(super) claims: Arc<HookClaims>,
    /// Barriers, which are removed once a program is attached.
    pub(super) barriers: Arc<Barriers>,
}

impl HookCloser {
    /// Creates a closer for the pin root with this folder of links, in the network namespace of the calling thread.
    #[must_use]
    pub fn new(links: PathBuf, mode: AttachMode) -> Self {
        let barriers = Arc::new(Barriers::find());
        Self { links, mode, program: Arc::default(), claims: Arc::default(), barriers }
    }

    /// The closing program. Errors may be temporary, like a lack of memory.
    ///
    /// # Errors
    /// The kernel rejects the program.
    pub fn program(&self) -> io::Result<&DropProgram> {
        if self.program.get().is_none() {
            let loaded = DropProgram::open(&self.links)?;
            let _ = self.program.set(loaded);
        }
        self.program.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Whether the program is pinned. Before the first call of [`HookCloser::program`], only an earlier process can have
    /// pinned it.
    #[must_use]
    pub fn was_pinned(&self) -> bool {
        self.links.join(CLOSED).exists()
    }

    /// Whether the program with this identifier is the closing program.
    #[must_use]
    pub fn is_by(&self, program: u32) -> bool {
        self.program().is_ok_and(|closed| closed.id == program)
    }

    /// Forgets an interface that is gone, since a later one may have its index or name.
    pub fn forget(&self, ifindex: u32) {
        self.claims.forget(ifindex);
        for direction in Direction::BOTH {
            self.barriers.lower(Hook { ifindex, direction });
        }
    }

    /// The hooks with a barrier.
    #[must_use]
    pub fn barred_hooks(&self) -> BTreeSet<Hook> {
        self.barriers.hooks()
    }

    /// Removes the pin of a link that is attached nowhere. Compares the pin's inode, because a guard may have replaced
    /// the pin by that of a new interface's link.
    pub(super) fn remove_pin(&self, hook: Hook, path: &Path, inode: u64) -> io::Result<()> {
        self.claims.unless_closing(hook, || match fs::metadata(path) {
            Ok(found) if found.ino() == inode => remove_if_there(path),
            _ => Ok(()),
        })
    }

    /// Raises barriers, which drop every packet at once, at an interface's hooks without a program. They stay until a
    /// program is attached; [`HookCloser::close`] must follow.
    ///
    /// `is_new`: the interface has just appeared, so a pinned link belongs to a former interface with this index. With
    /// clsact only new interfaces get barriers: a query for the filters of any other interface waits for the RTNL lock,
    /// as [`HookCloser::close`] does.
    pub fn bar(&self, ifindex: u32, is_new: bool) {
        if self.mode == AttachMode::Clsact && !is_new {
            return;
        }
        // A pod receives packets before it sends any.
        for direction in [Direction::Ingress, Direction::Egress] {
            let hook = Hook { ifindex, direction };
            // A query of the pinned link would wait for the RTNL lock.
            let is_judged = || !is_new && self.links.join(hook.file_name()).exists();
            let raise = || if is_judged() { Ok(()) } else { self.barriers.raise(hook) };
            if let Err(error) = self.claims.unless_taken(hook, raise) {
                tracing::debug!(%error, ifindex, "no barrier: the interface is closed by TC alone");
            }
        }
    }

    /// Removes the barriers that could not be removed before.
    pub fn lower_overdue(&self) {
        self.barriers.lower_overdue();
    }

    /// Renews the barriers of an interface with a possibly changed name: from kernel 6.16 on, a rename removes
    /// barriers.
    pub fn renamed(&self, ifindex: u32) {
        for direction in Direction::BOTH {
            let hook = Hook { ifindex, direction };
            if let Err(error) = self.barriers.rename(hook) {
                tracing::debug!(%error, ifindex, "no barrier: the interface is closed by TC alone");
            }
        }
    }

    /// Releases a hook that the engine has claimed. Closes the hook if it belongs to a new interface now.
    pub(super) fn release(&self, hook: Hook) {
        if self.claims.release(hook) {
            self.bar(hook.ifindex, true);
            self.close(hook, true);
        }
    }

    /// Attaches the closing program at a hook without a program of netpold. `is_new`: if the engine has claimed the
    /// hook of a former interface with this index, [`HookCloser::release`] closes the hook later.
    pub fn close(&self, hook: Hook, is_new: bool) {
        if !self.claims.begin(hook, is_new) {
            return;
        }
        let closed = match self.mode {
            AttachMode::Tcx => self.close_tcx(hook),
            AttachMode::Clsact => self.close_clsact(hook).map(|()| None),
        };
        if closed.is_ok() {
            self.barriers.lower(hook);
        }
        let unpinned = closed.unwrap_or_else(|error| {
            // ENODEV: the interface is gone.
            if error.raw_os_error() != Some(libc::ENODEV) {
                tracing::warn!(
                    %error, ifindex = hook.ifindex, direction = %hook.direction,
                    "cannot close a new interface until its pod is known"
                );
            }
            None
        });
        self.claims.end(hook, unpinned);
    }

    /// Closes a TCX hook; returns the link if it could not be pinned.
    ///
    /// Another process may have attached its link without having pinned it; the hook would open if that process ended.
    /// So this function waits until a pinned link is attached, or attaches its own once the other link is gone.
    fn close_tcx(&self, hook: Hook) -> io::Result<Option<OwnedFd>> {
        let path = self.links.join(hook.file_name());
        let end = Instant::now() + PATIENCE;
        loop {
            if is_closed(hook, &path)? {
                return Ok(None);
            }
            let program = self.program()?.as_fd();
            let failure = match sys::tcx_link_create(program, hook.ifindex, hook.tcx_type()) {
                Err(error) => error,
                Ok(link) => match sys::obj_pin(link.as_fd(), &path) {
                    Ok(()) => return Ok(None),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => error,
                    Err(error) => {
                        tracing::warn!(
                            %error, ifindex = hook.ifindex,
                            "new interface is closed only while this process runs: its link is not pinned"
                        );
                        return Ok(Some(link));
                    }
                },
            };
            if failure.kind() != io::ErrorKind::AlreadyExists || Instant::now() > end {
                return Err(failure);
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn close_clsact(&self, hook: Hook) -> io::Result<()> {
        let mut filters = Clsact::open()?;
        if filters.is_attached(hook)? {
            Ok(())
        } else {
            filters.attach(self.program()?.as_fd(), hook)
        }
    }
}

/// Whether the pinned link of a hook is attached to the hook. Removes the pin of a former interface with this index.
fn is_closed(hook: Hook, path: &Path) -> io::Result<bool> {
    // A promotion moves the new link's pin first, then detaches the former link. Queries of links wait for the RTNL
    // lock of the detachment, so a detached link is a former interface's only if the pin still leads to it in a second
    // query.
    let mut former = None;
    while let Ok(link) = sys::obj_get(path) {
        let found = sys::tcx_info(link.as_fd())?;
        if hook.has(found) {
            return Ok(true);
        }
        if former.replace(found) == Some(found) {
            remove_if_there(path)?;
            break;
        }
    }
    Ok(false)
}
