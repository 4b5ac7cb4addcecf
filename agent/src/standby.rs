//! `netpold standby`: closes pods that start while no agent runs on the pin root.
//!
//! An agent holds an exclusive lock on its pin root, and the kernel releases it with the process. The standby waits for
//! a shared lock, so it runs within microseconds of the agent's end, for any reason of the end. It holds the shared
//! lock while it closes interfaces, so no agent starts in between; the agent that comes replaces the closing program
//! ([`netpold_discovery::newcomers`]). An agent that hands its node over becomes such a process, and takes the node back if
//! no agent runs for [`VACANCY`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use netpold_dataplane::attach::AttachMode;
use netpold_dataplane::bpffs::{self, PinRoot, SharedPinLock};
use netpold_dataplane::closing::HookCloser;
use netpold_dataplane::priority;
use netpold_discovery::newcomers::{BUSY, ClosingThreads, VethChange, VethWatcher};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;

use crate::cli::StandbyArgs;
use crate::logging;
use crate::memory;

/// Time that an agent may take to attach programs to a new interface. An older interface without a program was left
/// without one on purpose (`--node-devices`).
const SETTLING: Duration = Duration::from_secs(2);
/// Interval of checks of the pin root while the process depends on it.
const INTERVAL: Duration = Duration::from_millis(100);
/// Environment variable of an agent that has handed its node over.
const HANDED_OVER: &str = "NETPOLD_HANDED_OVER";
/// Time without an agent after which the one that handed the node over takes it back.
const VACANCY: Duration = Duration::from_secs(3);

/// Serves until SIGTERM, then until an agent runs again, because the pod of a replaced agent ends before the next one
/// starts. SIGINT, which the unit's `ExecStop=` sends at shutdown, ends the process at once.
///
/// # Errors
/// Netlink, signals or threads are not available.
pub fn run(args: &StandbyArgs) -> Result<()> {
    logging::start_log(args.log_format, logging::log_filter(&args.log)?)?;
    serve(&args.bpffs, None)
}

/// Returns whether this process is an agent that has handed its node over.
#[must_use]
pub fn is_handed_over() -> bool {
    std::env::var_os(HANDED_OVER).is_some()
}

/// Replaces this process by one that waits for the end of the agent that takes the node over. All descriptors close
/// with the old image, among them the lock of the pin root and the listening sockets.
///
/// # Errors
/// The kernel cannot start the binary again.
pub fn hand_over() -> Result<Infallible> {
    // A signal in the meantime stays pending until the new image receives it.
    signals().thread_block().context("cannot block signals")?;
    exec(|command| _ = command.env(HANDED_OVER, "1"))
}

/// Returns the signals that end the process.
fn signals() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT].into_iter().collect()
}

/// Waits for the end of the agent that took the node over; takes the node back if no successor starts.
///
/// # Errors
/// See [`run`].
pub fn wait_behind(bpffs: &Path) -> Result<()> {
    serve(bpffs, Some(VACANCY))
}

fn exec(prepare: impl FnOnce(&mut Command)) -> Result<Infallible> {
    let mut arguments = std::env::args_os();
    // The file on disk may have been replaced.
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    prepare(command.args(arguments));
    priority::lower();
    Err(command.exec()).context("cannot re-execute this binary")
}

fn serve(root: &Path, resume_after: Option<Duration>) -> Result<()> {
    let signals = signals();
    signals.thread_block().context("cannot block signals")?;
    let signal = SignalFd::new(&signals).context("cannot receive signals")?;
    // Set before the other threads start, which inherit the priority.
    priority::raise(BUSY);
    let vacancies = VacancyWatcher::watch(root).context("cannot start a thread")?;
    let mut standby = Standby::new(root, vacancies)?;
    let mut terminated = false;
    memory::give_back_the_start();
    loop {
        standby.wait(signal.as_fd(), terminated || resume_after.is_some());
        match arrived(&signal) {
            Some(Signal::SIGINT) => return Ok(()),
            Some(_) => terminated = true,
            None => {}
        }
        standby.take_events();
        // Where nothing is enforced, no agent is awaited.
        if terminated && (PinRoot::is_busy(root) || !bpffs::has_tables(root)) {
            return Ok(());
        }
        if !terminated && resume_after.is_some_and(|after| standby.is_vacant_for(after)) {
            tracing::warn!("no agent runs on this node: taking over again");
            // The new image inherits the signal mask.
            signals.thread_unblock().context("cannot unblock signals")?;
            exec(|command| _ = command.env_remove(HANDED_OVER))?;
        }
    }
}

/// Returns the pending signal, if any.
fn arrived(signal: &SignalFd) -> Option<Signal> {
    let mut ready = [PollFd::new(signal.as_fd(), PollFlags::POLLIN)];
    if !poll(&mut ready, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
        return None;
    }
    let number = signal.read_signal().ok().flatten()?.ssi_signo;
    Signal::try_from(number.cast_signed()).ok()
}

/// Reports each time that the pin root has no agent.
struct VacancyWatcher {
    /// Readable while no agent runs.
    reported: UnixStream,
    /// Requests the next report.
    again: Sender<()>,
}

impl VacancyWatcher {
    fn watch(root: &Path) -> io::Result<Self> {
        let (reported, mut report) = UnixStream::pair()?;
        reported.set_nonblocking(true)?;
        let (again, asked) = channel();
        let root = root.to_owned();
        std::thread::Builder::new().name("vacancy".into()).spawn(move || {
            let _ = watch(&root, &mut report, &asked);
        })?;
        Ok(Self { reported, again })
    }
}

/// Waits for the shared lock, reports it, and waits for the next request.
fn watch(root: &Path, report: &mut UnixStream, asked: &Receiver<()>) -> io::Result<()> {
    loop {
        while let Err(error) = SharedPinLock::wait(root) {
            tracing::debug!(%error, "no pin root yet");
            std::thread::sleep(INTERVAL);
        }
        report.write_all(&[1])?;
        asked.recv().map_err(io::Error::other)?;
    }
}

/// State of the standby process.
struct Standby {
    root: PathBuf,
    /// Keeps the links that cannot be pinned.
    closing: HookCloser,
    /// Each closing holds the lock.
    closers: ClosingThreads<Arc<SharedPinLock>>,
    vacancies: VacancyWatcher,
    veths: VethWatcher,
    /// Time when each veth was first seen; `None`: the veth and an agent existed when this process began.
    seen: BTreeMap<u32, Option<Instant>>,
    /// Time of the start, unless an agent ran then.
    started_alone: Option<Instant>,
    /// Time since when no agent is known to run.
    vacant: Option<Instant>,
}

impl Standby {
    fn new(root: &Path, vacancies: VacancyWatcher) -> Result<Self> {
        let veths = VethWatcher::open().context("cannot listen to link events")?;
        let started_alone = (!PinRoot::is_busy(root)).then(Instant::now);
        let closing = HookCloser::new(bpffs::links(root), AttachMode::probe());
        let closers = ClosingThreads::start(closing.clone()).context("cannot start a thread")?;
        let (root, seen) = (root.to_owned(), BTreeMap::new());
        Ok(Self { root, closing, closers, vacancies, veths, seen, started_alone, vacant: None })
    }

    /// Waits for an event.
    fn wait(&self, signal: std::os::fd::BorrowedFd<'_>, depends: bool) {
        let mut ready = [
            PollFd::new(signal, PollFlags::POLLIN),
            PollFd::new(self.veths.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.vacancies.reported.as_fd(), PollFlags::POLLIN),
        ];
        let millis = u16::try_from(INTERVAL.as_millis()).unwrap_or(u16::MAX);
        let timeout = if depends { PollTimeout::from(millis) } else { self.veths.patience() };
        // After EINTR or another error, the loop polls again.
        let _ = poll(&mut ready, timeout);
    }

    fn take_events(&mut self) {
        self.closing.lower_overdue();
        let Self { closing, seen, started_alone, .. } = self;
        let mut new = Vec::new();
        self.veths.changes(|change| match change {
            VethChange::Existing(index) => {
                seen.insert(index, *started_alone);
                new.extend(started_alone.map(|_| (index, false)));
            }
            VethChange::New(index) => {
                seen.insert(index, Some(Instant::now()));
                new.push((index, true));
            }
            VethChange::Changed(index) => closing.renamed(index),
            VethChange::Gone(index) => {
                seen.remove(&index);
                closing.forget(index);
            }
        });
        let mut byte = [0];
        if self.vacancies.reported.read(&mut byte).is_ok() {
            let now = Instant::now();
            self.vacant = Some(now);
            let young = |first: &Option<Instant>| first.is_some_and(|first| first + SETTLING > now);
            let young = self.seen.iter().filter(|(_, first)| young(first));
            let young = young.map(|(index, _)| (*index, false)).collect::<Vec<_>>();
            self.close(&young);
        } else if self.vacant.is_some() && !new.is_empty() {
            self.close(&new);
        }
    }

    /// Closes veths, new or not, without any netpold program, unless an agent runs. No agent starts before they are closed.
    fn close(&mut self, veths: &[(u32, bool)]) {
        match SharedPinLock::lock(&self.root) {
            // Without tables, nothing was ever enforced here, or netpold was uninstalled.
            Ok(Some(free)) if bpffs::has_tables(&self.root) => {
                let free = Arc::new(free);
                for (ifindex, is_new) in veths {
                    self.closers.close(*ifindex, *is_new, &free);
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => self.request_next_vacancy(),
            // Uninstalled: the next agent creates another directory with another lock.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.request_next_vacancy(),
            Err(error) => tracing::warn!(%error, "cannot lock the pin root"),
        }
    }

    /// Requests the report of the next vacancy: an agent runs, or the pin root is absent.
    fn request_next_vacancy(&mut self) {
        self.vacant = None;
        // The receiving thread outlives the sender.
        let _ = self.vacancies.again.send(());
    }

    /// Returns whether no agent has run for `long`.
    fn is_vacant_for(&mut self, long: Duration) -> bool {
        let Some(since) = self.vacant else { return false };
        if PinRoot::is_busy(&self.root) {
            self.request_next_vacancy();
            return false;
        }
        since.elapsed() >= long
    }
}
