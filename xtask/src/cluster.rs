//! `cargo xtask cluster DIR`: a real Kubernetes of two nodes on this machine, with netpold in it.
//!
//! ```text
//! oak: network, mount, PID namespace          elm: the same
//!  ├─ etcd, kube-apiserver, …                  │
//!  ├─ containerd, kubelet, kube-proxy          ├─ containerd, kubelet, kube-proxy
//!  ├─ pods                                     ├─ pods
//!  └─ eth0 ────────────── veth ────────────────└─ eth0
//! ```
//!
//! DIR holds the released binaries of any version. No registry, no container runtime of the machine
//! and no network of it is used, and nothing in there has a way out. All that a node writes is in
//! `target/cluster`, in file systems of its own, and in a cgroup of its own.

mod audit;
mod binaries;
mod control;
mod e2e;
mod images;
mod init;
mod install;
mod kubectl;
mod layout;
mod network;
mod node;
mod replace;
mod rollout;
mod smoke;
mod starts;
mod state;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use netpold_testbed::{catch_interrupts, interrupted, is_root};

use crate::step;
use binaries::Binaries;
pub(crate) use init::run as run_init;
use kubectl::Kubectl;
use layout::{Cni, Family, Layout, Proxy};
use state::State;

/// Names the folder for `cargo xtask test`, which CI does not have.
const VARIABLE: &str = "NETPOLD_KUBERNETES_DIR";

/// Arguments of `cargo xtask cluster`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Folder with kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy and
    /// kubectl of one release; used if there: e2e.test, agnhost, images/*.tar, CNI plugins, etcd,
    /// containerd with its shim and ctr, runc, busybox (static)
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    layout: Layout,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What is to be done; all of it, one after the other, if nothing is named.
#[derive(clap::Subcommand)]
enum Command {
    /// Start the cluster and install netpold; ends the one that was there
    Up,
    /// Check that policy is enforced between pods, and what says so
    Smoke,
    /// Replace fifty pods behind a Service, under default deny, while allowed and denied clients ask
    Rollout,
    /// Start isolated pods while the agents are replaced by others of the same image (`rollout restart`)
    Restart,
    /// Start isolated pods while the agents are killed (SIGKILL), several times
    Kill,
    /// Start isolated pods while another netpold is rolled out, and the former one again (`rollout undo`)
    Upgrade {
        /// Static netpold of the other image
        #[arg(value_name = "PATH")]
        to: PathBuf,
    },
    /// Reboot the second node: what is pinned in its kernel is gone, its disk is not
    Reboot,
    /// Show what netpold has asked the API server, by the audit log; fails where it was refused
    Audit,
    /// Run Kubernetes' own NetworkPolicy tests (e2e.test)
    E2e {
        /// Of these tests those whose names match
        #[arg(value_name = "REGEX", default_value = "")]
        focus: String,
    },
    /// Run kubectl as the administrator
    Kubectl {
        /// Arguments of kubectl
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<String>,
    },
    /// End the cluster, also one that was left half started
    Down,
}

/// Runs what was asked for.
///
/// # Errors
/// Naming the step that failed.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(is_root(), "a cluster in namespaces needs root: run `cargo xtask cluster` as root");
    let state = State::new()?;
    match &options.command {
        Some(Command::Down) => state.down(),
        Some(Command::Up) => {
            catch_interrupts()?;
            up(&state, &Binaries::find(&options.folder)?, &options.layout)?.keep();
            told_how(options);
            Ok(())
        }
        Some(Command::Smoke) => smoke::run(&Kubectl::of(&state, &options.folder)?),
        Some(Command::Rollout) => rollout::run(&state, &Kubectl::of(&state, &options.folder)?),
        Some(Command::Restart) => replace::restart(&state, &Kubectl::of(&state, &options.folder)?),
        Some(Command::Kill) => replace::kill(&state, &Kubectl::of(&state, &options.folder)?),
        Some(Command::Upgrade { to }) => {
            replace::upgrade(&state, &Binaries::find(&options.folder)?, to)
        }
        Some(Command::Reboot) => replace::reboot(&state, &Kubectl::of(&state, &options.folder)?),
        Some(Command::Audit) => audit::run(&state),
        Some(Command::E2e { focus }) => e2e::run(&state, &Binaries::find(&options.folder)?, focus),
        Some(Command::Kubectl { arguments }) => {
            Kubectl::of(&state, &options.folder)?.show(arguments)
        }
        None => everything(&state, options),
    }
}

/// For `cargo xtask test`: everything, if a folder was named.
///
/// # Errors
/// Naming the step that failed.
pub(crate) fn test() -> Result<()> {
    let Some(folder) = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) else {
        step::warning(&format!(
            "SKIPPED cluster: {VARIABLE} names no folder with Kubernetes' server binaries. That is an \
             input which CI does not have; `cargo xtask cluster DIR` runs it by hand"
        ));
        return Ok(());
    };
    let layout =
        Layout { cni: Cni::Ptp, proxy: Proxy::Nftables, family: Family::Dual, binary: None };
    run(&Options { folder: folder.into(), layout, command: None })
}

fn everything(state: &State, options: &Options) -> Result<()> {
    let missing = Binaries::missing(&options.folder);
    if !missing.is_empty() {
        step::warning(&format!(
            "SKIPPED cluster: {} has no {}. They are in the archive kubernetes-server-linux-{}.tar.gz \
             of a release",
            options.folder.display(),
            missing.join(", "),
            crate::arch::Arch::own().name()
        ));
        return Ok(());
    }
    catch_interrupts()?;
    let binaries = Binaries::find(&options.folder)?;
    let start = Instant::now();
    let cluster = up(state, &binaries, &options.layout)?;
    let kubectl = Kubectl::of(state, &options.folder)?;
    let result = checks(state, &binaries, &kubectl);
    drop(cluster);
    result?;
    step::title(&format!("done in {:.0?}, everything cleaned up", start.elapsed()));
    Ok(())
}

/// Everything that needs no other image.
fn checks(state: &State, binaries: &Binaries, kubectl: &Kubectl) -> Result<()> {
    smoke::run(kubectl)?;
    rollout::run(state, kubectl)?;
    replace::restart(state, kubectl)?;
    replace::kill(state, kubectl)?;
    replace::reboot(state, kubectl)?;
    if binaries.e2e().is_some() {
        e2e::run(state, binaries, "")?;
    } else {
        step::warning(&format!("SKIPPED e2e: no e2e.test in {}", binaries.folder().display()));
    }
    audit::run(state)
}

/// Ends what it began when dropped.
struct Cluster<'a>(&'a State);

impl Cluster<'_> {
    /// It stays until `down`.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.down() {
            step::failure(&format!("{error:#}"));
        }
    }
}

fn up<'a>(state: &'a State, binaries: &Binaries, layout: &Layout) -> Result<Cluster<'a>> {
    let start = Instant::now();
    state.down()?;
    step::title(&format!("Kubernetes {}", binaries.version()));
    ensure!(
        layout.proxy != Proxy::Nftables || binaries.minor() >= 31,
        "kube-proxy of Kubernetes {} has no mode nftables: use --proxy iptables",
        binaries.version()
    );
    crate::setup::for_traffic()?;
    let images = images::make(state, binaries, layout.binary.as_deref())?;
    state.make()?;
    let cluster = Cluster(state);
    let result = begin(state, binaries, layout).and_then(|kubectl| {
        images::import(state, binaries, &images)?;
        install::run(state, &kubectl, binaries.minor())
    });
    if let Err(error) = result {
        show_state(state, binaries.folder());
        return Err(error);
    }
    step::note(&format!("took {:.0?}", start.elapsed()));
    Ok(cluster)
}

/// For people who look for the cause of a failure.
fn show_state(state: &State, folder: &Path) {
    state.show_logs();
    let Ok(kubectl) = Kubectl::of(state, folder) else { return };
    for arguments in [["get", "pods", "-A", "-o", "wide"], ["get", "events", "-A", "-o", "wide"]] {
        if let Ok(told) = kubectl.run(&[&arguments[..], &["--request-timeout=5s"]].concat()) {
            anstream::println!("{}", told.trim_end());
        }
    }
}

/// Nodes, network, control plane.
fn begin(state: &State, binaries: &Binaries, layout: &Layout) -> Result<Kubectl> {
    step::title("two nodes in namespaces of this machine");
    layout.save(state)?;
    let control = control::prepare(state, binaries, layout)?;
    for (index, name) in state::NODES.into_iter().enumerate() {
        let mut programs = if index == 0 { control.programs() } else { Vec::new() };
        programs.extend(node::programs(state, binaries, layout, index)?);
        node::plan(state, name, programs)?;
        node::start(state, name)?;
    }
    network::link(state, layout)?;
    for name in state::NODES {
        state.go(name)?;
    }
    let kubectl = Kubectl::of(state, binaries.folder())?;
    control::wait_ready(&kubectl)?;
    Ok(kubectl)
}

fn told_how(options: &Options) {
    let command = format!("cargo xtask cluster {}", options.folder.display());
    step::title("the cluster is up");
    step::note(&format!("{command} kubectl get pods -A"));
    step::note(&format!("{command} smoke"));
    step::note(&format!("{command} down"));
}

/// Waits for something, looking several times a second.
///
/// # Errors
/// When it has not come true in time, with the last answer, or after an interrupt.
fn wait<T>(
    what: &str,
    patience: std::time::Duration,
    mut look: impl FnMut() -> Result<T>,
) -> Result<T> {
    let start = Instant::now();
    let mut told = start;
    loop {
        ensure!(!interrupted(), "interrupted");
        match look() {
            Ok(found) => return Ok(found),
            Err(error) if start.elapsed() > patience => {
                return Err(error).with_context(|| format!("{what}: not within {patience:?}"));
            }
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(200)),
        }
        if told.elapsed().as_secs() >= 20 {
            told = Instant::now();
            step::note(&format!("{what}: still waiting after {:.0?}", start.elapsed()));
        }
    }
}

/// Writes a file, with the folders above it.
fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let writing = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(writing)?;
    }
    std::fs::write(path, content).with_context(writing)
}
