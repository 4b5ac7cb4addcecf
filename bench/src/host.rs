//! The machine: private namespaces, and the kernel's accounting of this process.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity, unshare};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Leaves the network and mount namespaces of the machine: everything created later is private and ends with the
/// process. Must be called before any thread is started.
///
/// # Errors
/// Missing `CAP_SYS_ADMIN`.
pub(crate) fn seclude() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
        .context("cannot make namespaces: run as root")?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("cannot make the mounts private")?;
    Ok(())
}

/// Mounts a BPF file system.
///
/// # Errors
/// Missing `CAP_SYS_ADMIN`.
pub(crate) fn mount_bpffs(at: &Path) -> Result<()> {
    mount(Some("bpf"), at, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
        .context("cannot mount a bpffs")
}

/// The machine of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Model name of the processor.
    pub(crate) cpu: String,
    /// Logical processors.
    pub(crate) cpus: usize,
    /// Kernel release.
    pub(crate) kernel: String,
    /// Seconds since the epoch.
    pub(crate) at: u64,
}

impl Machine {
    /// Describes this machine at the present time.
    pub(crate) fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            cpu: model.map_or_else(|| "unknown".into(), |(_, name)| name.trim().into()),
            cpus: std::thread::available_parallelism().map_or(1, Into::into),
            kernel: kernel.trim().into(),
            at: at.map_or(0, |since| since.as_secs()),
        }
    }
}

/// Resident anonymous memory of this process (without mapped tables), in bytes.
pub(crate) fn own_memory() -> Result<u64> {
    let status =
        fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = kib.and_then(|text| text.trim().split(' ').next()).context("no RssAnon")?;
    Ok(kib.parse::<u64>().context("RssAnon is not a number")? * 1024)
}

/// Kernel memory in bytes of each BPF map that a process (a number, or `self`) has open, by map identifier.
pub(crate) fn map_memory(process: &str) -> Result<BTreeMap<u32, u64>> {
    let mut maps = BTreeMap::new();
    let folder = format!("/proc/{process}/fdinfo");
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {folder}"))? {
        let Ok(info) = fs::read_to_string(entry?.path()) else { continue };
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse::<u64>().ok())
        };
        if let (Some(id), Some(bytes)) = (field("map_id:"), field("memlock:")) {
            maps.insert(id as u32, bytes);
        }
    }
    Ok(maps)
}

/// Runs `ip` once per line in the process's network namespace.
///
/// # Errors
/// `ip` is missing or fails on a line.
pub(crate) fn ip(lines: &[&str]) -> Result<()> {
    for line in lines {
        let arguments = line.split(' ');
        let output = std::process::Command::new("ip")
            .args(arguments)
            .output()
            .context("cannot run ip (Debian package iproute2)")?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "ip {line}: {}", said.trim());
    }
    Ok(())
}

/// `ETHTOOL_SGRO`
const SET_GRO: u32 = 0x2c;

/// `struct ethtool_value`
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Turns generic receive offload on.
///
/// # Errors
/// There is no such interface, or the kernel refuses.
pub(crate) fn enable_gro(interface: &str) -> Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").context("cannot open a socket")?;
    let mut value = EthtoolValue { command: SET_GRO, data: 1 };
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    anyhow::ensure!(interface.len() < request.ifr_name.len(), "{interface} is too long a name");
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the name is terminated and the value matches the command; both outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    nix::errno::Errno::result(result)
        .with_context(|| format!("cannot turn on GRO at {interface}"))?;
    Ok(())
}

/// Lets this thread run before all threads without real-time priority, so that other work on the machine delays it less.
///
/// # Errors
/// Missing `CAP_SYS_NICE`.
pub(crate) fn run_first() -> Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the priority outlives the call.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    nix::errno::Errno::result(result).context("cannot have real-time priority")?;
    Ok(())
}

/// Keeps this thread on one processor until dropped.
pub(crate) struct OneCpu(CpuSet);

impl OneCpu {
    /// Pins the thread to its present processor.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn pin() -> Result<Self> {
        let this = Pid::from_raw(0);
        let before = sched_getaffinity(this).context("cannot ask for the processors")?;
        let mut one = CpuSet::new();
        one.set(sched_getcpu()?)?;
        sched_setaffinity(this, &one).context("cannot stay on one processor")?;
        Ok(Self(before))
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        let _ = sched_setaffinity(Pid::from_raw(0), &self.0);
    }
}

/// Index of an interface in the process's network namespace.
///
/// # Errors
/// There is no such interface.
pub(crate) fn ifindex(name: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(name).with_context(|| format!("no interface {name}"))
}

/// Writes a file; creates its folder.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
