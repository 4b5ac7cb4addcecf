//! One network namespace: made, entered, configured and removed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::ifaddrs::getifaddrs;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::net::if_::InterfaceFlags;
use nix::sched::{CloneFlags, setns, unshare};

/// Not `/run/netns`: the first `ip netns add` on a machine binds that directory over itself, and earlier mounts in it
/// could never be unmounted. To look inside while a test runs: `nsenter --net=/run/netpold-testbed/NAME`.
pub(crate) const DIRECTORY: &str = "/run/netpold-testbed";

/// A network namespace with a name, removed when dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
    handle: OwnedFd,
}

impl Netns {
    /// Makes a namespace named `np-<pid>-<number>-<label>`, its loopback down.
    ///
    /// # Errors
    /// Without the necessary capabilities (`CAP_SYS_ADMIN`), or when `/run` cannot be written.
    pub fn create(label: &str) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("np-{}-{number}-{label}", std::process::id());
        fs::create_dir_all(DIRECTORY).with_context(|| format!("cannot make {DIRECTORY}"))?;
        let path = Path::new(DIRECTORY).join(&name);
        File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let handle = thread::scope(|s| s.spawn(|| bind_new(&path)).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match handle {
            Ok(handle) => Ok(Self { name, handle }),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error).with_context(|| format!("cannot make network namespace {name}"))
            }
        }
    }

    /// Name, unique on this machine while the process lives.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// File of the namespace, for `nsenter --net=` and setns(2).
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }

    /// Runs a closure on a separate thread inside the namespace. A socket opened there stays in the namespace, wherever
    /// it is used afterwards.
    ///
    /// # Errors
    /// When the namespace cannot be entered. A panic of the closure propagates.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T> {
        let inside = || -> Result<T> {
            setns(&self.handle, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("cannot enter {}", self.name))?;
            Ok(body())
        };
        thread::scope(|s| s.spawn(inside).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// A command to run inside the namespace. The child enters only the network namespace: unlike with `ip netns exec`,
    /// which remounts /sys, it sees the bpffs of this process.
    ///
    /// # Errors
    /// When out of file descriptors.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        let handle = self.handle.try_clone().context("cannot duplicate a namespace handle")?;
        let mut command = Command::new(program);
        let enter = move || setns(&handle, CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
        // SAFETY: the closure only makes the setns system call, which is async-signal-safe, and
        // allocates nothing.
        unsafe { command.pre_exec(enter) };
        Ok(command)
    }

    /// Runs `ip -batch` inside the namespace: one command a line, without the word `ip`.
    ///
    /// # Errors
    /// With the output of `ip`, at the first line it refuses.
    pub fn ip(&self, batch: &str) -> Result<()> {
        self.feed("ip", &["-batch", "-"], batch)
    }

    /// Runs an nftables script inside the namespace.
    ///
    /// # Errors
    /// With the output of `nft`, which then changes nothing.
    pub fn nft(&self, rules: &str) -> Result<()> {
        self.feed("nft", &["-f", "-"], rules)
    }

    /// Runs a program inside the namespace with a text on its standard input.
    pub(crate) fn feed(&self, program: &str, arguments: &[&str], input: &str) -> Result<()> {
        let mut child = self
            .command(program)?
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!("cannot run {program} (Debian packages iproute2, nftables, iptables)")
            })?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin
                .write_all(input.as_bytes())
                .with_context(|| format!("cannot write to {program}"))?;
        }
        let output =
            child.wait_with_output().with_context(|| format!("cannot wait for {program}"))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            bail!("{program} in {} failed: {}\n{input}", self.name, message.trim());
        }
        Ok(())
    }

    /// Waits until an interface with both sides up really sends. The kernel activates its queue some time after its
    /// carrier and drops packets sent before; their retransmission takes a second.
    ///
    /// # Errors
    /// When that takes longer than a few seconds.
    pub fn wait_running(&self, interface: &str) -> Result<()> {
        // Since kernel 6.8, a query of a link completes its pending events.
        self.ip(&format!("link show dev {interface}\n"))?;
        let running = || -> bool {
            getifaddrs().into_iter().flatten().any(|i| {
                i.interface_name == interface && i.flags.contains(InterfaceFlags::IFF_RUNNING)
            })
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        while !self.run(running)? {
            if Instant::now() > deadline {
                bail!("{interface} in {} does not come up", self.name);
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Sets a value below `/proc/sys/net`, such as `ipv4/ip_forward`.
    ///
    /// # Errors
    /// When this kernel has no such setting or refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.sysctls(&[(key, value)])
    }

    /// Sets several values below `/proc/sys/net`.
    ///
    /// # Errors
    /// As [`Netns::sysctl`], at the first value.
    pub fn sysctls(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.run(|| {
            settings.iter().try_for_each(|(key, value)| {
                fs::write(Path::new("/proc/sys/net").join(key), value)
                    .with_context(|| format!("cannot set net/{key} to {value}"))
            })
        })?
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        remove(&self.path());
    }
}

/// Moves the thread, which ends afterwards, to a new namespace and pins that on `path`.
fn bind_new(path: &Path) -> Result<OwnedFd> {
    unshare(CloneFlags::CLONE_NEWNET).context("unshare(CLONE_NEWNET)")?;
    let own = Path::new("/proc/thread-self/ns/net");
    mount(Some(own), path, None::<&str>, MsFlags::MS_BIND, None::<&str>).context("bind mount")?;
    Ok(File::open(path)?.into())
}

pub(crate) fn remove(path: &Path) {
    while umount2(path, MntFlags::MNT_DETACH).is_ok() {}
    let _ = fs::remove_file(path);
}
