//! Resources of a cluster on this machine, and their removal, regardless of the process that started the cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::common::write;
use super::init;
use crate::step;

/// Names of the nodes. The control plane runs on the first.
pub(super) const NODES: [&str; 2] = ["oak", "elm"];
/// Number of lines of each log to print after a failure.
const LAST_LINES: usize = 4;
/// Timeout for the end of a process or cgroup.
const GRACE: Duration = Duration::from_secs(30);
const CGROUPS: &str = "/sys/fs/cgroup";

/// Folder of the cluster: `target/cluster`.
pub(super) struct ClusterFolder {
    folder: PathBuf,
}

impl ClusterFolder {
    /// Returns the state of this source tree.
    ///
    /// # Errors
    /// The absolute path cannot be determined.
    pub(super) fn new() -> Result<Self> {
        Ok(Self { folder: std::path::absolute(crate::root().join("target/cluster"))? })
    }

    /// Returns a path in the folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the folder of a node.
    pub(super) fn node(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the path of a program's log on a node. Logs are kept until the next cluster.
    pub(super) fn log(&self, node: &str, program: &str) -> PathBuf {
        self.folder.join("logs").join(format!("{node}-{program}.log"))
    }

    /// Creates the folders, and a cgroup for each node.
    ///
    /// # Errors
    /// A folder or cgroup cannot be created.
    pub(super) fn make(&self) -> Result<()> {
        let logs = self.path("logs");
        if logs.exists() {
            fs::remove_dir_all(&logs)?;
        }
        fs::create_dir_all(&logs)?;
        for node in NODES {
            for hierarchy in hierarchies()? {
                let folder = hierarchy.join(self.cgroup(node).trim_start_matches('/'));
                fs::create_dir_all(&folder)
                    .with_context(|| format!("cannot make {}", folder.display()))?;
                delegate(&hierarchy, &folder)?;
            }
        }
        Ok(())
    }

    /// Returns a node's cgroup, relative to the root of each hierarchy. Its name contains the path of this source tree.
    pub(super) fn cgroup(&self, node: &str) -> String {
        format!("{}/{node}", self.cgroups())
    }

    fn cgroups(&self) -> String {
        let name = self.folder.to_string_lossy();
        let name: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        format!("/netpold{}", name.join("-"))
    }

    /// Returns the PID on this machine of a node's init.
    ///
    /// # Errors
    /// The node is not running.
    pub(super) fn init(&self, node: &str) -> Result<Pid> {
        let process = init::NodeProcess::read(&self.node(node))?;
        ensure!(process.lives(), "node {node} is not up");
        Ok(process.pid())
    }

    /// Lets a node start its programs.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(super) fn go(&self, node: &str) -> Result<()> {
        write(&self.node(node).join(init::GO), "")
    }

    /// Returns a command that runs inside a node: in its network, mount, PID, UTS and IPC namespaces.
    ///
    /// # Errors
    /// The node is not running.
    pub(super) fn inside(&self, node: &str, program: &Path) -> Result<Command> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.init(node)?));
        command.args(["--net", "--mount", "--pid", "--uts", "--ipc", "--"]).arg(program);
        Ok(command)
    }

    /// Ends every process of a node. Its folder stays, with its disk and its plan.
    ///
    /// # Errors
    /// A process does not end, or a file cannot be removed.
    pub(super) fn halt(&self, node: &str) -> Result<()> {
        let folder = self.node(node);
        end(init::NodeProcess::read(&folder)?)?;
        for name in [init::GO, init::MOUNTED] {
            fs::remove_file(folder.join(name)).with_context(|| format!("{node}: {name}"))?;
        }
        Ok(())
    }

    /// Ends every process of the cluster and removes all its resources except the logs. Does nothing without a cluster.
    ///
    /// # Errors
    /// A process does not end, or a resource cannot be removed.
    pub(super) fn down(&self) -> Result<()> {
        let mut any = false;
        for node in NODES {
            let folder = self.node(node);
            if let Ok(process) = init::NodeProcess::read(&folder)
                && process.lives()
            {
                any = true;
                step::note(&format!("ending node {node}"));
                end(process)?;
            }
            if folder.exists() {
                fs::remove_dir_all(&folder)
                    .with_context(|| format!("cannot remove {}", folder.display()))?;
            }
        }
        for hierarchy in hierarchies()? {
            remove_cgroup(&hierarchy.join(self.cgroups().trim_start_matches('/')))?;
        }
        for name in ["control", "deploy", "images"] {
            let folder = self.path(name);
            if folder.exists() {
                fs::remove_dir_all(&folder)?;
            }
        }
        if any {
            step::note(&format!("logs are kept in {}", self.path("logs").display()));
        }
        Ok(())
    }

    /// Prints the last lines of every log, for the analysis of a failure.
    pub(super) fn show_logs(&self) {
        let Ok(entries) = fs::read_dir(self.path("logs")) else { return };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let log = fs::read(&path).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).into_owned();
            let lines: Vec<&str> = log.lines().collect();
            step::note(&format!("{}:", path.display()));
            for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
                step::note(&format!("  {}", line.chars().take(300).collect::<String>()));
            }
        }
    }
}

/// Kills the init of a PID namespace, and with it every process, mount and interface of the node.
fn end(process: init::NodeProcess) -> Result<()> {
    kill(process.pid(), Signal::SIGKILL)
        .with_context(|| format!("cannot end {}", process.pid()))?;
    let deadline = Instant::now() + GRACE;
    while process.lives() {
        if Instant::now() > deadline {
            bail!("process {} does not end", process.pid());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Returns the mounted cgroup hierarchies: the one of version 2, or all of version 1.
fn hierarchies() -> Result<Vec<PathBuf>> {
    let top = PathBuf::from(CGROUPS);
    if top.join("cgroup.controllers").exists() {
        return Ok(vec![top]);
    }
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind) = (words.next()?, words.next()?);
        // Next to those of version 1 there may be one of version 2 without controllers.
        (["cgroup", "cgroup2"].contains(&kind) && path.starts_with(CGROUPS))
            .then(|| PathBuf::from(path))
    });
    let found: Vec<PathBuf> = mounts.collect();
    ensure!(!found.is_empty(), "no cgroups below {CGROUPS}");
    Ok(found)
}

/// With version 2, enables the kubelet's controllers for the children of each cgroup from the root to a node's.
fn delegate(top: &Path, folder: &Path) -> Result<()> {
    if !top.join("cgroup.controllers").exists() {
        return Ok(());
    }
    let mut groups: Vec<&Path> =
        folder.ancestors().take_while(|group| group.starts_with(top)).collect();
    // Parents come before children.
    groups.reverse();
    for group in groups {
        for controller in ["cpu", "cpuset", "memory", "pids", "hugetlb", "io"] {
            let file = group.join("cgroup.subtree_control");
            let there = fs::read_to_string(group.join("cgroup.controllers"))?;
            if there.split_whitespace().any(|name| name == controller) {
                fs::write(&file, format!("+{controller}"))
                    .with_context(|| format!("{} +{controller}", file.display()))?;
            }
        }
    }
    Ok(())
}

/// Removes a cgroup, its children first. A cgroup stays busy for a moment while its processes end.
fn remove_cgroup(folder: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path())?;
        }
    }
    let deadline = Instant::now() + GRACE;
    while let Err(error) = fs::remove_dir(folder) {
        if Instant::now() > deadline {
            return Err(error).with_context(|| format!("cannot remove {}", folder.display()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
