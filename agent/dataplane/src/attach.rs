//! Attachment of the programs: at the two hooks of pods' interfaces, and of the node's other devices.
//!
//! With TCX (kernel 6.6) an attachment is a link, pinned as `<ifindex>-<direction>`. It stays when the agent ends, and
//! its program is replaced atomically. Without TCX it is a filter with netpold's priority and handle below the
//! interface's clsact qdisc, which stays with the interface and is replaced atomically too. Either way netpold's
//! program comes first and passes on allowed packets (`TCX_NEXT`, `TC_ACT_UNSPEC`), so that other programs run as
//! before. [`Attacher::attached`] finds programs that were attached in front later, and [`Attacher::put_first`]
//! restores the order.
//!
//! Directions are the pod's: pod egress is the TC ingress of the host side. Interfaces are addressed by index, in the
//! network namespace of the calling thread.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::bpffs::remove_if_there;
use super::closing::HookCloser;
use super::clsact::Clsact;
use super::front::Relay;
pub use super::hook::{AttachMode, Attached, Hook};
use crate::bpf::sys;

/// Part of the pin name of a link that runs in front of another; without a dot, which bpffs refuses.
const WATCHING: &str = "-before-";
/// End of the pin name of a link on its way to the front, see [`Attacher::put_first`].
const FIRST: &str = "-first";

/// Failure to make, change or remove an attachment.
#[derive(Debug, thiserror::Error)]
#[error("{operation} at {subject}: {cause}")]
pub struct AttachError {
    operation: &'static str,
    subject: String,
    cause: io::Error,
}

impl AttachError {
    /// Whether the interface does not exist (any more): no need to enforce or repair.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.cause.raw_os_error() == Some(libc::ENODEV)
    }
}

/// Attaches, replaces, finds and detaches programs. The pins and filters are its state.
#[derive(Debug)]
pub struct Attacher {
    backend: AttachBackend,
    closing: HookCloser,
    /// Random, because process identifiers repeat in containers.
    process: u64,
}

#[derive(Debug)]
enum AttachBackend {
    Tcx {
        links: PathBuf,
        /// Links that are kept open, so that they stay if their pins are removed.
        held: BTreeMap<Hook, OwnedFd>,
    },
    Clsact(Clsact),
}

impl Attacher {
    /// An attacher that pins links in `links`, a directory on a bpffs that is made if missing
    /// (unused with [`AttachMode::Clsact`]).
    ///
    /// # Errors
    /// The directory or a netlink socket cannot be made.
    pub fn new(links: &Path, mode: AttachMode) -> Result<Self, AttachError> {
        let failed = |operation, cause| AttachError {
            operation,
            subject: links.display().to_string(),
            cause,
        };
        let backend = match mode {
            AttachMode::Tcx => {
                fs::create_dir_all(links)
                    .map_err(|e| failed("creating the directory of links", e))?;
                detach_all(links, |name| name.ends_with(FIRST))
                    .map_err(|e| failed("detaching links of an agent that ended", e))?;
                AttachBackend::Tcx { links: links.to_owned(), held: BTreeMap::new() }
            }
            AttachMode::Clsact => {
                AttachBackend::Clsact(Clsact::open().map_err(|e| failed("opening netlink", e))?)
            }
        };
        let process = RandomState::new().hash_one(());
        Ok(Self { backend, closing: HookCloser::new(links.to_owned(), mode), process })
    }

    /// Handle for a guard, which closes interfaces before this attacher attaches to them.
    #[must_use]
    pub fn closing(&self) -> &HookCloser {
        &self.closing
    }

    /// Releases the hook of an interface that is removed or unwanted. If a guard has closed the hook meanwhile, the
    /// hook stays closed: it belongs to a new interface with the same index. Afterwards the guard may close the hook
    /// again.
    ///
    /// # Errors
    /// As [`Attacher::detach`].
    pub fn release_hook(&mut self, hook: Hook) -> Result<(), AttachError> {
        self.claim_hook(hook);
        let is_closed = match &self.backend {
            AttachBackend::Tcx { links, .. } => open(&links.join(hook.file_name()))
                .ok()
                .flatten()
                .and_then(|link| sys::tcx_info(link.as_fd()).ok())
                .is_some_and(|info| self.is_closed(info.program)),
            AttachBackend::Clsact(_) => false,
        };
        // A barrier there belongs to a new interface: the guard lowers it.
        let left = if is_closed { Ok(()) } else { self.remove(hook) };
        self.closing.release(hook);
        left
    }

    /// Whether a program, by its identifier, is the one that closes interfaces.
    #[must_use]
    pub fn is_closed(&self, program: u32) -> bool {
        self.closing.is_by(program)
    }

    /// Closes a hook: all packets there drop.
    ///
    /// # Errors
    /// As [`Attacher::attach`].
    pub fn close(&mut self, hook: Hook) -> Result<(), AttachError> {
        let closing = self.closing.clone();
        let program = closing.program().map_err(at("closing", hook))?;
        self.attach(program.as_fd(), hook)
    }

    /// Takes a hook from the guard, with the link if the guard has closed it.
    fn claim_hook(&mut self, hook: Hook) {
        let unpinned = self.closing.claims.claim_for_engine(hook);
        if let (Some(link), AttachBackend::Tcx { held, .. }) = (unpinned, &mut self.backend) {
            held.entry(hook).or_insert(link);
        }
    }

    /// Opens a hook that a guard has closed, if its veth does not lead to another namespace (any more); returns whether
    /// the hook is open.
    ///
    /// # Errors
    /// As [`Attacher::detach`].
    pub fn reopen(
        &mut self,
        hook: Hook,
        leads_away: impl Fn() -> bool,
    ) -> Result<bool, AttachError> {
        // From here on, no guard closes the hook.
        self.claim_hook(hook);
        let opened = if leads_away() { Ok(false) } else { self.detach(hook).map(|()| true) };
        self.closing.release(hook);
        // The peer may have moved to another namespace since, while no guard could close the hook.
        if matches!(opened, Ok(true)) && leads_away() {
            self.closing.close(hook, false);
            return Ok(false);
        }
        opened
    }

    /// Returns the mode of attachment.
    #[must_use]
    pub fn mode(&self) -> AttachMode {
        match self.backend {
            AttachBackend::Tcx { .. } => AttachMode::Tcx,
            AttachBackend::Clsact(_) => AttachMode::Clsact,
        }
    }

    /// Attaches `program` at a hook: replaces netpold's program there atomically, so that one of the two runs on every
    /// packet, or adds the program.
    ///
    /// # Errors
    /// The kernel refuses; the former program stays. [`AttachError::is_gone`]: no such interface.
    pub fn attach(&mut self, program: BorrowedFd<'_>, hook: Hook) -> Result<(), AttachError> {
        self.claim_hook(hook);
        let attached = match &mut self.backend {
            AttachBackend::Tcx { links, held } => attach_tcx(links, held, program, hook),
            AttachBackend::Clsact(clsact) => clsact.attach(program, hook),
        };
        // A link without a pin judges packets, too.
        let is_held =
            matches!(&self.backend, AttachBackend::Tcx { held, .. } if held.contains_key(&hook));
        if attached.is_ok() || is_held {
            self.closing.claims.record_attached(hook);
            self.closing.barriers.lower(hook);
        }
        let attached = attached.map_err(at("attaching", hook));
        // The guard handles the next interface with this index.
        if attached.as_ref().is_err_and(AttachError::is_gone) {
            self.closing.release(hook);
        }
        attached
    }

    /// Moves `program`, which is attached there, in front of all others. Meanwhile a relay to it runs in front, so that
    /// no packet passes unjudged; a few are judged twice.
    ///
    /// # Errors
    /// The kernel refuses; [`AttachError::is_gone`]: no such interface.
    pub fn put_first(&mut self, program: BorrowedFd<'_>, hook: Hook) -> Result<(), AttachError> {
        self.claim_hook(hook);
        match &mut self.backend {
            AttachBackend::Tcx { links, held } => put_first_tcx(links, held, program, hook),
            AttachBackend::Clsact(clsact) => clsact.put_first(program, hook),
        }
        .map_err(at("moving to the front", hook))
    }

    /// Runs `program` in front of the attached one until [`Attacher::stop_watching`], even if this process ends
    /// earlier. Returns whether `program` runs (false with clsact).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn attach_in_front(
        &self,
        program: BorrowedFd<'_>,
        hook: Hook,
    ) -> Result<bool, AttachError> {
        let Some(watcher) = self.watcher(hook) else { return Ok(false) };
        sys::tcx_link_create(program, hook.ifindex, hook.tcx_type())
            .and_then(|link| sys::obj_pin(link.as_fd(), &watcher))
            .map(|()| true)
            .map_err(at("watching", hook))
    }

    /// Replaces the attached program by the one that [`Attacher::attach_in_front`] put in front of it. (A hook takes a program
    /// only once, so the other link cannot be updated to it.)
    ///
    /// The pin moves first: at each moment the hook's pin is that of a link in force. If the process ends in between,
    /// the former link ends too, and the guard of the next process finds the hook occupied.
    ///
    /// # Errors
    /// The kernel refuses; both stay attached.
    pub fn promote(&mut self, hook: Hook) -> Result<(), AttachError> {
        self.claim_hook(hook);
        let watcher = self.watcher(hook);
        let (AttachBackend::Tcx { links, held }, Some(watcher)) = (&mut self.backend, watcher)
        else {
            return Ok(());
        };
        let path = links.join(hook.file_name());
        let mut promote = || match open(&watcher)? {
            Some(link) => promote_tcx(&path, &watcher, held, link, hook),
            None => Ok(()),
        };
        promote().map_err(at("promoting", hook))
    }

    /// Returns the pin path of a link that this process runs in front of another; `None` with clsact.
    fn watcher(&self, hook: Hook) -> Option<PathBuf> {
        let AttachBackend::Tcx { links, .. } = &self.backend else { return None };
        Some(links.join(format!("{}{WATCHING}{:016x}", hook.file_name(), self.process)))
    }

    /// Ends the watching that [`Attacher::attach_in_front`] began, in this process or in an earlier one.
    ///
    /// # Errors
    /// The pins cannot be listed or removed.
    pub fn stop_watching(&self) -> io::Result<()> {
        let AttachBackend::Tcx { links, .. } = &self.backend else { return Ok(()) };
        detach_all(links, |name| name.contains(WATCHING))
    }

    /// Removes netpold's program from a hook. A missing program or interface is not an error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn detach(&mut self, hook: Hook) -> Result<(), AttachError> {
        self.claim_hook(hook);
        self.remove(hook)?;
        self.closing.barriers.lower(hook);
        Ok(())
    }

    /// Removes netpold's program from a claimed hook; a barrier stays.
    fn remove(&mut self, hook: Hook) -> Result<(), AttachError> {
        match &mut self.backend {
            AttachBackend::Tcx { links, held } => detach_tcx(&links.join(hook.file_name()))
                .and_then(|()| {
                    held.remove(&hook).map_or(Ok(()), |link| sys::link_detach(link.as_fd()))
                }),
            AttachBackend::Clsact(clsact) => clsact.detach(hook),
        }
        .map_err(at("detaching", hook))
    }

    /// All attachments, sorted; removes pins of interfaces that are gone.
    ///
    /// # Errors
    /// The pins or the filters cannot be listed.
    pub fn attached(&mut self) -> Result<Vec<Attached>, AttachError> {
        self.closing.lower_overdue();
        let mut attached = match &mut self.backend {
            AttachBackend::Tcx { links, held } => list_tcx(links, held, &self.closing),
            AttachBackend::Clsact(clsact) => clsact.attached(),
        }
        .map_err(|cause| AttachError {
            operation: "listing attachments",
            subject: self.mode().to_string(),
            cause,
        })?;
        attached.sort_unstable();
        Ok(attached)
    }

    /// Detaches from every hook that is not wanted; returns their number.
    ///
    /// # Errors
    /// The first failure; the others are tried nevertheless.
    pub fn retain(&mut self, wanted: impl Fn(&Attached) -> bool) -> Result<usize, AttachError> {
        let attached = self.attached()?;
        let unwanted: Vec<Hook> =
            attached.iter().filter(|found| !wanted(found)).map(|found| found.hook).collect();
        let mut result = Ok(unwanted.len());
        for hook in unwanted {
            if let Err(error) = self.detach(hook) {
                result = result.and(Err(error));
            }
            self.closing.release(hook);
        }
        result
    }
}

fn at(operation: &'static str, hook: Hook) -> impl FnOnce(io::Error) -> AttachError {
    move |cause| AttachError {
        operation,
        subject: format!("interface {} ({})", hook.ifindex, hook.direction),
        cause,
    }
}

fn attach_tcx(
    links: &Path,
    held: &mut BTreeMap<Hook, OwnedFd>,
    program: BorrowedFd<'_>,
    hook: Hook,
) -> io::Result<()> {
    let path = links.join(hook.file_name());
    let pinned = open(&path)?;
    let is_pinned = pinned.is_some();
    if let Some(link) = pinned.or_else(|| held.remove(&hook)) {
        let info = sys::tcx_info(link.as_fd())?;
        if hook.has(info) {
            let updated = sys::link_update(link.as_fd(), program);
            // The interface no longer exists; another may have its index.
            if !matches!(&updated, Err(error) if error.raw_os_error() == Some(libc::ENOLINK)) {
                let pin = || if is_pinned { Ok(()) } else { pin(&link, &path) };
                let result = updated.and_then(|()| pin());
                held.insert(hook, link);
                return result;
            }
        }
        // The pin belongs to a former interface with this index.
        held.remove(&hook);
        detach_tcx(&path)?;
    }
    let link = sys::tcx_link_create(program, hook.ifindex, hook.tcx_type())?;
    let result = pin(&link, &path);
    // Without a pin the program runs only as long as this agent, which is better than no program.
    held.insert(hook, link);
    result
}

/// The kernel cannot move a link, and takes no program twice at a hook: a relay's link in front takes the place of the
/// former link, and then the program.
///
/// If the agent ends before the second step, the relay drops all packets. The next agent detaches it or replaces its
/// program.
fn put_first_tcx(
    links: &Path,
    held: &mut BTreeMap<Hook, OwnedFd>,
    program: BorrowedFd<'_>,
    hook: Hook,
) -> io::Result<()> {
    let path = links.join(hook.file_name());
    let first = links.join(format!("{}{FIRST}", hook.file_name()));
    let relay = Relay::to(program)?;
    let front = sys::tcx_link_create(relay.as_fd(), hook.ifindex, hook.tcx_type())?;
    sys::obj_pin(front.as_fd(), &first)?;
    let promoted = front.try_clone().and_then(|link| promote_tcx(&path, &first, held, link, hook));
    if promoted.is_err() {
        detach_tcx(&first)?;
        return promoted;
    }
    sys::link_update(front.as_fd(), program)
}

/// Moves the pin of a link in front to that of the hook's link, then detaches the former link.
fn promote_tcx(
    path: &Path,
    front: &Path,
    held: &mut BTreeMap<Hook, OwnedFd>,
    link: OwnedFd,
    hook: Hook,
) -> io::Result<()> {
    let pinned = open(path)?;
    fs::rename(front, path)?;
    let former = [pinned, held.insert(hook, link)];
    former.iter().flatten().try_for_each(|former| sys::link_detach(former.as_fd()))
}

fn pin(link: &OwnedFd, path: &Path) -> io::Result<()> {
    sys::obj_pin(link.as_fd(), path).map_err(|error| {
        let text = format!("attached, but not pinned, so it ends with the agent: {error}");
        io::Error::new(error.kind(), text)
    })
}

fn detach_tcx(path: &Path) -> io::Result<()> {
    let Some(link) = open(path)? else { return Ok(()) };
    // Removing the pin detaches too, but with a delay.
    sys::link_detach(link.as_fd())?;
    remove_if_there(path)
}

/// Detaches the links with such pin names.
fn detach_all(links: &Path, is_one: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(links)? {
        let entry = entry?;
        if is_one(&entry.file_name().to_string_lossy()) {
            detach_tcx(&entry.path())?;
        }
    }
    Ok(())
}

fn list_tcx(
    links: &Path,
    held: &mut BTreeMap<Hook, OwnedFd>,
    closing: &HookCloser,
) -> io::Result<Vec<Attached>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(links)? {
        let entry = entry?;
        let Some(hook) = entry.file_name().to_str().and_then(Hook::from_file_name) else {
            continue;
        };
        let path = entry.path();
        let Ok(pin) = fs::metadata(&path) else { continue };
        let Some(link) = open(&path)? else { continue };
        let info = sys::tcx_info(link.as_fd())?;
        if hook.has(info) {
            let programs = match sys::programs(hook.ifindex, hook.tcx_type()) {
                // The interface is gone.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Vec::new(),
                programs => programs?,
            };
            let ahead = programs.into_iter().take_while(|id| *id != info.program).collect();
            found.push(Attached { hook, program: info.program, ahead });
        } else {
            held.remove(&hook);
            closing.remove_pin(hook, &path, pin.ino())?;
        }
    }
    Ok(found)
}

fn open(path: &Path) -> io::Result<Option<OwnedFd>> {
    match sys::obj_get(path) {
        Ok(link) => Ok(Some(link)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
