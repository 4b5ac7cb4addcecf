//! A netpold agent as a process in a node's namespace.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::mount::{MntFlags, umount2};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::child::{KillOnDrop, log_end};
use crate::host::Host;
use crate::http::exchange;
use crate::manifests::MARKERS;

/// Options of an [`Agent`].
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The `netpold` binary.
    pub binary: PathBuf,
    /// `--manifests`; empty: no such flag, the further arguments name a cluster.
    pub manifests: PathBuf,
    /// Further arguments of `netpold run`.
    pub arguments: Vec<String>,
}

/// The agent of a node, with pin root, control socket and log in a directory of their own. Dropping it ends the process
/// and removes all pins. The process also ends with the thread that started it, so a killed test leaves no agent
/// behind.
#[derive(Debug)]
pub struct Agent {
    options: AgentOptions,
    node: String,
    directory: PathBuf,
    prepare: fn(&mut Command),
    child: Child,
}

/// Interval between two checks of a condition.
const INTERVAL: Duration = Duration::from_millis(20);
/// Time for the control socket to answer.
const ANSWERED: Duration = Duration::from_secs(5);
/// Time for the process to end on the signal of [`Agent::end`], before SIGKILL.
pub const GRACE: Duration = Duration::from_secs(3);

/// Environment variable with the factor by which this machine is slower than others: an emulated one takes a minute to
/// verify the programs.
pub const SLOWNESS: &str = "NETPOLD_TEST_SLOWNESS";

/// Factor of [`SLOWNESS`], 1 if unset.
#[must_use]
pub fn slowness() -> u32 {
    std::env::var(SLOWNESS).ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

impl Agent {
    /// Starts `netpold run` in the node's namespace.
    ///
    /// # Errors
    /// When the binary cannot be run.
    pub fn start(node: &Host, options: AgentOptions) -> Result<Self> {
        Self::start_prepared(node, options, |_| ())
    }

    /// [`Agent::start`] with `prepare` applied to every command that starts a process, restarts included.
    ///
    /// # Errors
    /// When the binary cannot be run.
    pub fn start_prepared(
        node: &Host,
        options: AgentOptions,
        prepare: fn(&mut Command),
    ) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("np-{}-{number}-{}", std::process::id(), node.name());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(directory.join("bpf"))
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let spawned = spawn(node, &options, &directory, prepare);
        if spawned.is_err() {
            clean(&directory);
        }
        Ok(Self { node: node.name().into(), child: spawned?, options, directory, prepare })
    }

    /// Starts the agent again over its pins, after ending the process if it still runs.
    ///
    /// # Errors
    /// When the binary cannot be run.
    pub fn restart(&mut self, node: &Host) -> Result<()> {
        self.end(Signal::SIGTERM);
        self.child = spawn(node, &self.options, &self.directory, self.prepare)?;
        Ok(())
    }

    /// Starts a successor over the same pin root, alongside the running process; returns the former process.
    ///
    /// # Errors
    /// When the binary cannot be run.
    pub fn succeed(&mut self, node: &Host) -> Result<KillOnDrop> {
        let successor = spawn(node, &self.options, &self.directory, self.prepare)?;
        Ok(KillOnDrop(std::mem::replace(&mut self.child, successor)))
    }

    /// Makes a process from before [`Agent::succeed`] the agent again; returns its successor.
    pub fn reinstate(&mut self, former: KillOnDrop) -> KillOnDrop {
        let mut former = former;
        std::mem::swap(&mut self.child, &mut former.0);
        former
    }

    /// Starts `netpold standby` for the agent's pin root.
    ///
    /// # Errors
    /// When the binary cannot be run.
    pub fn standby(&self, node: &Host) -> Result<KillOnDrop> {
        let log = self.directory.join("standby.log");
        let log = File::options().create(true).append(true).open(log)?;
        let mut command = node.command(&self.options.binary)?;
        (self.prepare)(&mut command);
        // SAFETY: the closure only makes the prctl system call, which is async-signal-safe.
        unsafe { command.pre_exec(die_with_parent) };
        without_twins(&mut command).arg("standby").arg("--bpffs").arg(self.bpffs());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn();
        child
            .map(KillOnDrop)
            .with_context(|| format!("cannot run {}", self.options.binary.display()))
    }

    /// Sets the binary for later calls of [`Agent::restart`].
    pub fn set_binary(&mut self, binary: impl Into<PathBuf>) {
        self.options.binary = binary.into();
    }

    /// Sets the further arguments for later calls of [`Agent::restart`].
    pub fn set_arguments(&mut self, arguments: &[&str]) {
        self.options.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    }

    /// Sets the manifests for later calls of [`Agent::restart`]; empty: none.
    pub fn set_manifests(&mut self, directory: impl Into<PathBuf>) {
        self.options.manifests = directory.into();
    }

    /// Sends a signal and waits for the process to end; the pins stay.
    pub fn end(&mut self, signal: Signal) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            // The process id may belong to another process by now.
            return;
        }
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(INTERVAL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Name of the agent's node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Pin root (`--bpffs`).
    #[must_use]
    pub fn bpffs(&self) -> PathBuf {
        self.directory.join("bpf")
    }

    /// Directory of the last good state, which is its file `last` (`--state`).
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    /// Control socket (`--socket`).
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// Log of all processes so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// A command of netpold with this agent's control socket.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.options.binary);
        without_twins(&mut command).args(arguments).arg("--socket").arg(self.socket());
        command
    }

    /// Answer of the control socket, the output of `netpold status -o json`. A run of that command would take a hundredth
    /// of a second of processor time, in every round of every wait.
    ///
    /// # Errors
    /// When the agent does not answer, as during its start.
    pub fn status(&self) -> Result<Value> {
        let answer = || -> Result<Value> {
            let stream = UnixStream::connect(self.socket())?;
            stream.set_read_timeout(Some(ANSWERED))?;
            let (code, answer) =
                exchange(stream, ("POST", "/status"), ("application/json", "null"))?;
            ensure!(code == 200, "{code} {answer}");
            Ok(serde_json::from_str(&answer)?)
        };
        answer().with_context(|| format!("no status of {}", self.node))
    }

    /// Waits until the agent's status fulfils a condition, and returns that status.
    ///
    /// # Errors
    /// When the agent ends or the time is over, with the end of its log.
    pub fn wait_for(
        &mut self,
        what: &str,
        timeout: Duration,
        mut condition: impl FnMut(&Value) -> bool,
    ) -> Result<Value> {
        let timeout = timeout * slowness();
        let deadline = Instant::now() + timeout;
        loop {
            if crate::interrupted() {
                bail!("interrupted");
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the agent of {} ended ({status}):\n{}", self.node, self.log_end());
            }
            let answer = self.status();
            match answer {
                Ok(status) if condition(&status) => return Ok(status),
                _ if Instant::now() < deadline => std::thread::sleep(INTERVAL),
                Ok(last) => bail!(
                    "the agent of {} is not {what} after {timeout:?}: {last}\n{}",
                    self.node,
                    self.log_end()
                ),
                Err(e) => bail!(
                    "the agent of {} is not {what} after {timeout:?}: {e:#}\n{}",
                    self.node,
                    self.log_end()
                ),
            }
        }
    }

    /// Waits until the agent is in sync and enforces its desired revision.
    ///
    /// # Errors
    /// As [`Agent::wait_for`].
    pub fn wait_enforced(&mut self, timeout: Duration) -> Result<Value> {
        self.wait_for("in sync and enforcing", timeout, Self::enforces)
    }

    /// Waits until the agent enforces the state written together with the [`marker`](crate::marker) of that number, at
    /// exactly these interfaces: pods by `namespace/name`, with the index of the host side of their veth.
    ///
    /// # Errors
    /// As [`Agent::wait_for`].
    pub fn wait_marker(
        &mut self,
        number: u32,
        pods: &BTreeMap<String, u32>,
        timeout: Duration,
    ) -> Result<Value> {
        let marker = format!("{MARKERS}/{}-{number}", self.node);
        self.wait_for(&format!("at state {number} with {pods:?}"), timeout, |status| {
            let endpoints = status["endpoints"].as_array().map_or(&[][..], Vec::as_slice);
            // If a pod has several interfaces, the first.
            let here = endpoints.iter().rev().map(|e| (pod_name(e), e["ifindex"].as_u64()));
            let wanted = pods.iter().map(|(name, index)| (name.clone(), Some(u64::from(*index))));
            let wanted: BTreeMap<_, _> = wanted.chain([(marker.clone(), None)]).collect();
            Self::enforces(status) && here.collect::<BTreeMap<_, _>>() == wanted
        })
    }

    /// Whether a status is that of an agent with no work left: the agent is in sync, enforces the desired revision, and
    /// every interface it found has its program.
    #[must_use]
    pub fn enforces(status: &Value) -> bool {
        let revision = &status["revision"];
        let judged = |e: &Value| e["interface"].is_null() || !e["hook"].is_null();
        status["in_sync"] == true
            && !revision["desired"].is_null()
            && revision["desired"] == revision["enforced"]
            && status["endpoints"].as_array().is_some_and(|all| all.iter().all(judged))
    }

    fn log_end(&self) -> String {
        log_end(&self.log())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end(Signal::SIGTERM);
        clean(&self.directory);
    }
}

/// Lets the process end with the thread that started it.
fn die_with_parent() -> std::io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGTERM).map_err(std::io::Error::from)
}

fn spawn(
    node: &Host,
    options: &AgentOptions,
    directory: &Path,
    prepare: fn(&mut Command),
) -> Result<Child> {
    let log = File::options().create(true).append(true).open(directory.join("log"))?;
    let mut command = node.command(&options.binary)?;
    // SAFETY: the closure only makes the prctl system call, which is async-signal-safe.
    unsafe { command.pre_exec(die_with_parent) };
    prepare(&mut command);
    without_twins(&mut command).args(["run", "--node-name", node.name()]);
    if !options.manifests.as_os_str().is_empty() {
        command.arg("--manifests").arg(&options.manifests);
    }
    command
        .arg("--bpffs")
        .arg(directory.join("bpf"))
        .arg("--socket")
        .arg(directory.join("control.sock"))
        .arg("--state")
        .arg(directory.join("state/last"))
        .args(&options.arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot run {}", options.binary.display()))
}

/// Removes the environment twins of netpold's flags except those of the log: values that the user set for another agent
/// must not reach this one.
pub fn without_twins(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("NETPOLD_") && !text.starts_with("NETPOLD_LOG") {
            command.env_remove(&name);
        }
    }
    command
}

/// `namespace/name` of an endpoint in a status.
fn pod_name(endpoint: &Value) -> String {
    let part = |name| endpoint["pod"][name].as_str().unwrap_or_default();
    format!("{}/{}", part("namespace"), part("name"))
}

/// Removes the directory, whether the agent mounted its pin root or only wrote to it.
pub(crate) fn clean(directory: &Path) {
    for mounted in ["bpf", "state"] {
        while umount2(&directory.join(mounted), MntFlags::MNT_DETACH).is_ok() {}
    }
    let _ = fs::remove_dir_all(directory);
}
