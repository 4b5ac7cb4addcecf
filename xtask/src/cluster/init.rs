//! Init process of a node: mounts the node's file systems, starts its programs and restarts them when they exit.
//!
//! `unshare` starts the process in the node's namespaces. When it is killed, the kernel kills every process of its PID
//! namespace; the mounts and interfaces disappear with the last of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::common::write;

/// Files in a node's folder: process of init, its programs, completion of the mounts, permission to start the programs.
const PROCESS: &str = "init.json";
pub(super) const PLAN: &str = "plan.json";
pub(super) const MOUNTED: &str = "mounted";
pub(super) const GO: &str = "go";
/// Delay before the restart of a program.
const AGAIN: Duration = Duration::from_secs(1);

/// Configuration of a node's init.
#[derive(Serialize, Deserialize)]
pub(super) struct InitPlan {
    /// Name of the node, also its host name.
    pub(super) name: String,
    pub(super) programs: Vec<NodeProgram>,
}

/// Program that runs as long as the node.
#[derive(Serialize, Deserialize)]
pub(super) struct NodeProgram {
    pub(super) command: Vec<String>,
    /// `PATH`
    pub(super) path: String,
    pub(super) log: PathBuf,
}

/// Process, distinguished by its start time from a later one with the same PID.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct NodeProcess {
    pid: i32,
    /// Start time in clock ticks since boot, as in `/proc/PID/stat`.
    start: u64,
}

impl NodeProcess {
    /// Reads the init process of the node with this folder.
    ///
    /// # Errors
    /// The node was never started.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let text = fs::read_to_string(folder.join(PROCESS)).context("the node was never up")?;
        serde_json::from_str(&text).with_context(|| format!("{}/{PROCESS}", folder.display()))
    }

    pub(super) fn pid(self) -> Pid {
        Pid::from_raw(self.pid)
    }

    pub(super) fn lives(self) -> bool {
        start_of(self.pid).is_some_and(|start| start == self.start)
    }

    /// Returns this process while `/proc` is still the machine's.
    fn own() -> Result<Self> {
        let pid = fs::read_link("/proc/self").context("no /proc")?;
        let pid = pid.to_string_lossy().parse().context("/proc/self is no number")?;
        Ok(Self { pid, start: start_of(pid).context("no start in /proc/self/stat")? })
    }
}

/// Returns the start time of a process, or `None` if it has exited.
fn start_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name may contain spaces and brackets.
    let rest = stat.rsplit_once(')')?.1;
    let mut words = rest.split_whitespace();
    let state = words.next()?;
    if ["Z", "X"].contains(&state) { None } else { words.nth(18)?.parse().ok() }
}

/// Runs as process 1 of a node's namespaces until it is killed.
///
/// # Errors
/// The plan cannot be read, or a mount cannot be made.
pub(crate) fn run(folder: &Path) -> Result<()> {
    // Written first: from now on `down` finds this process.
    let own = serde_json::to_string(&NodeProcess::own()?)?;
    fs::write(folder.join(".init.new"), own)?;
    fs::rename(folder.join(".init.new"), folder.join(PROCESS))?;
    let plan: InitPlan = serde_json::from_str(&fs::read_to_string(folder.join(PLAN))?)?;
    mounts(folder, &plan.name)?;
    fs::write(folder.join(MOUNTED), "")?;
    while !folder.join(GO).exists() {
        reap(|_, _| ());
        std::thread::sleep(Duration::from_millis(20));
    }
    supervise(&plan)
}

/// Mounts the node's own file systems. No mount propagates to the machine: `unshare` made all mounts private.
fn mounts(folder: &Path, name: &str) -> Result<()> {
    special("proc", "/proc")?;
    fs::write("/proc/sys/kernel/hostname", name).context("host name")?;
    settings(folder)?;
    forwarding()?;
    // A sysfs of the node's network namespace, with the machine's cgroups mounted in it.
    let cgroups = folder.join("cgroup");
    fs::create_dir_all(&cgroups)?;
    let from = Path::new("/sys/fs/cgroup");
    at(
        "cgroup",
        mount(Some(from), &cgroups, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>),
    )?;
    special("sysfs", "/sys")?;
    at(
        "/sys/fs/cgroup",
        mount(Some(&cgroups), from, None::<&str>, MsFlags::MS_MOVE, None::<&str>),
    )?;
    special("bpf", "/sys/fs/bpf")?;
    for (own, path) in [("lib", "/var/lib"), ("log", "/var/log")] {
        let own = folder.join(own);
        fs::create_dir_all(&own)?;
        bind(&own, path)?;
    }
    special("tmpfs", "/run")?;
    for part in ["upper", "work"] {
        fs::create_dir_all(Path::new("/run/etc").join(part))?;
    }
    let layers = "lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work";
    at("/etc", mount(Some("overlay"), "/etc", Some("overlay"), MsFlags::empty(), Some(layers)))?;
    // Shared: mounts of the node propagate to containers.
    let shared = MsFlags::MS_REC | MsFlags::MS_SHARED;
    at("/", mount(None::<&str>, "/", None::<&str>, shared, None::<&str>))
}

/// Makes the machine's sysctls read-only in the node. The kubelet sets some of them; regular files are mounted over
/// these.
fn settings(folder: &Path) -> Result<()> {
    for path in ["/proc/sys/kernel", "/proc/sys/vm"] {
        bind(Path::new(path), path)?;
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        at(path, mount(None::<&str>, path, None::<&str>, flags, None::<&str>))?;
    }
    for path in [
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/vm/panic_on_oom",
        "/proc/sys/kernel/panic",
        "/proc/sys/kernel/panic_on_oops",
        "/proc/sys/kernel/keys/root_maxkeys",
        "/proc/sys/kernel/keys/root_maxbytes",
    ] {
        let own = folder.join(path.replace('/', "_"));
        let value = fs::read(path).with_context(|| path.to_owned())?;
        write(&own, value)?;
        bind(&own, path)?;
    }
    Ok(())
}

fn special(kind: &str, path: &str) -> Result<()> {
    at(path, mount(Some(kind), path, Some(kind), MsFlags::empty(), None::<&str>))
}

fn bind(from: &Path, path: &str) -> Result<()> {
    at(path, mount(Some(from), path, None::<&str>, MsFlags::MS_BIND, None::<&str>))
}

fn at(path: &str, result: nix::Result<()>) -> Result<()> {
    result.with_context(|| format!("cannot mount {path}"))
}

/// Sets forwarding in the node's network namespace.
fn forwarding() -> Result<()> {
    for (key, value) in [
        ("ipv4/ip_forward", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv6/conf/default/forwarding", "1"),
        ("ipv6/conf/default/accept_dad", "0"),
    ] {
        let path = Path::new("/proc/sys/net").join(key);
        fs::write(&path, value).with_context(|| path.display().to_string())?;
    }
    // Present only with the module br_netfilter, for Services between pods on one bridge.
    for family in ["iptables", "ip6tables"] {
        let path = format!("/proc/sys/net/bridge/bridge-nf-call-{family}");
        if Path::new(&path).exists() {
            fs::write(&path, "1").context(path)?;
        }
    }
    Ok(())
}

/// Runs the programs, and reaps orphaned processes.
fn supervise(plan: &InitPlan) -> Result<()> {
    let mut running: BTreeMap<Pid, usize> = BTreeMap::new();
    let mut due: BTreeMap<usize, Instant> =
        (0..plan.programs.len()).map(|index| (index, Instant::now())).collect();
    loop {
        let now = Instant::now();
        let ready: Vec<usize> =
            due.iter().filter(|(_, at)| **at <= now).map(|(index, _)| *index).collect();
        for index in ready {
            due.remove(&index);
            running.insert(spawn(&plan.programs[index])?, index);
        }
        reap(|pid, status| {
            if let Some(index) = running.remove(&pid) {
                due.insert(index, Instant::now() + AGAIN);
                note(&plan.programs[index], &format!("ended ({status:?}); starting it again"));
            }
        });
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn spawn(program: &NodeProgram) -> Result<Pid> {
    let log = File::options().create(true).append(true).open(&program.log)?;
    let (name, arguments) = program.command.split_first().context("a program without a name")?;
    let child = Command::new(name)
        .args(arguments)
        .env_clear()
        .env("PATH", &program.path)
        .env("HOME", "/run")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    Ok(Pid::from_raw(child.id() as i32))
}

/// Reaps every process that has exited.
fn reap(mut ended: impl FnMut(Pid, WaitStatus)) {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(status) => match status.pid() {
                Some(pid) => ended(pid, status),
                None => return,
            },
            Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

/// Appends a line to a program's log.
fn note(program: &NodeProgram, text: &str) {
    use std::io::Write;
    if let Ok(mut log) = File::options().append(true).open(&program.log) {
        let _ = writeln!(log, "=== {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::{NodeProcess, start_of};

    #[test]
    fn a_process_is_told_apart_from_a_later_one_of_its_number() {
        let Ok(own) = NodeProcess::own() else { panic!("no own process") };
        assert!(own.lives());
        let later = NodeProcess { start: own.start + 1, ..own };
        assert!(!later.lives());
        assert_eq!(start_of(0), None);
    }
}
