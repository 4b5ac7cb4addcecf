//! One process of the control plane: start, signals, and end with its owner.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::child::log_end;
use crate::netns::Netns;

/// Time between the signal to end and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);
/// Limit for an answer of a server, for busy machines too.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);
/// Pause between two attempts of a wait.
pub(super) const INTERVAL: Duration = Duration::from_millis(50);

/// A process with a log. The process also ends with the thread that started it, so a killed test leaves no process
/// behind.
#[derive(Debug)]
pub(super) struct Process {
    binary: PathBuf,
    netns: Option<Arc<Netns>>,
    arguments: Vec<OsString>,
    log: PathBuf,
    child: Child,
}

impl Process {
    pub(super) fn new<A: Into<OsString>>(
        binary: &Path,
        netns: Option<Arc<Netns>>,
        arguments: Vec<A>,
        log: PathBuf,
    ) -> Result<Self> {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let child = spawn(binary, netns.as_deref(), &arguments, &log)?;
        Ok(Self { binary: binary.to_owned(), netns, arguments, log, child })
    }

    pub(super) fn restart(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL);
        self.child = spawn(&self.binary, self.netns.as_deref(), &self.arguments, &self.log)?;
        Ok(())
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    /// Sends a signal and waits for the end.
    pub(super) fn end(&mut self, signal: Signal) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            // The process id may belong to another process by now.
            return;
        }
        self.signal(signal);
        let deadline = Instant::now() + GRACE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn still_runs(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended ({status}):\n{}", self.binary.display(), self.log_end());
        }
        Ok(())
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(super) fn log_end(&self) -> String {
        log_end(&self.log())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end(Signal::SIGKILL);
    }
}

fn spawn(
    binary: &Path,
    netns: Option<&Netns>,
    arguments: &[OsString],
    log: &Path,
) -> Result<Child> {
    let die_with_parent = || prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from);
    let log = File::options().create(true).append(true).open(log)?;
    let mut command = match netns {
        Some(netns) => netns.command(binary)?,
        None => Command::new(binary),
    };
    // SAFETY: the closure only makes the prctl system call, which is async-signal-safe.
    unsafe { command.pre_exec(die_with_parent) };
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot run {}", binary.display()))
}
