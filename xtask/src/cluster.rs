//! `cargo xtask cluster DIR`: a Kubernetes cluster of two nodes on this machine, with netpold installed.
//!
//! ```text
//! oak: network, mount, PID namespace          elm: the same
//!  ├─ etcd, kube-apiserver, …                  │
//!  ├─ containerd, kubelet, kube-proxy          ├─ containerd, kubelet, kube-proxy
//!  ├─ pods                                     ├─ pods
//!  └─ eth0 ────────────── veth ────────────────└─ eth0
//! ```
//!
//! DIR contains the release binaries of any version. The cluster uses no registry and neither the machine's container
//! runtime nor its network, and has no route out. Nodes write only to `target/cluster` and file systems of their own,
//! each in its own cgroup.

mod audit;
mod binaries;
mod common;
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

use anyhow::{Result, ensure};
use netpold_testbed::{catch_interrupts, is_root};

use crate::step;
use binaries::ClusterBinaries;
pub(crate) use init::run as run_init;
use kubectl::Kubectl;
use layout::{AddressFamily, ClusterLayout, CniPlugin, ServiceProxy};
use state::ClusterFolder;

/// Environment variable with the folder for `cargo xtask test`; CI has no such folder.
const VARIABLE: &str = "NETPOLD_KUBERNETES_DIR";

/// Arguments of `cargo xtask cluster`.
#[derive(clap::Args)]
pub(crate) struct ClusterOptions {
    /// Folder with kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy and kubectl of one
    /// release; optional: e2e.test, agnhost, images/*.tar, CNI plugins, etcd, containerd with its shim and ctr, runc,
    /// busybox (static)
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    layout: ClusterLayout,
    #[command(subcommand)]
    command: Option<ClusterCommand>,
}

/// Step to run. Without one: `Up`, all checks that need no other image, `Down`.
#[derive(clap::Subcommand)]
enum ClusterCommand {
    /// Start the cluster and install netpold; replaces a running cluster
    Up,
    /// Check that policy is enforced between pods, and that its reported status is right
    Smoke,
    /// Replace fifty pods behind a Service, under default deny, while allowed and denied clients send requests
    Rollout,
    /// Start isolated pods while the agents are replaced by others of the same image (`rollout restart`)
    Restart,
    /// Start isolated pods while the agents are killed (SIGKILL), several times
    Kill,
    /// Start isolated pods while another netpold is rolled out and rolled back (`rollout undo`)
    Upgrade {
        /// Static netpold of the other image
        #[arg(value_name = "PATH")]
        to: PathBuf,
    },
    /// Reboot the second node: state pinned in its kernel is lost, its disk is kept
    Reboot,
    /// Show netpold's requests to the API server from the audit log; fails if one was refused
    Audit,
    /// Run Kubernetes' own NetworkPolicy tests (e2e.test)
    E2e {
        /// Run only tests with a matching name
        #[arg(value_name = "REGEX", default_value = "")]
        focus: String,
    },
    /// Run kubectl as the administrator
    Kubectl {
        /// Arguments of kubectl
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<String>,
    },
    /// End the cluster, even if only partly started
    Down,
}

/// Runs the given step, or all.
///
/// # Errors
/// A step failed; the error names it.
pub(crate) fn run(options: &ClusterOptions) -> Result<()> {
    ensure!(is_root(), "a cluster in namespaces needs root: run `cargo xtask cluster` as root");
    let state = ClusterFolder::new()?;
    match &options.command {
        Some(ClusterCommand::Down) => state.down(),
        Some(ClusterCommand::Up) => {
            catch_interrupts()?;
            up(&state, &ClusterBinaries::find(&options.folder)?, &options.layout)?.keep();
            told_how(options);
            Ok(())
        }
        Some(ClusterCommand::Smoke) => smoke::run(&Kubectl::of(&state, &options.folder)?),
        Some(ClusterCommand::Rollout) => rollout::run(&Kubectl::of(&state, &options.folder)?),
        Some(ClusterCommand::Restart) => {
            replace::restart(&state, &Kubectl::of(&state, &options.folder)?)
        }
        Some(ClusterCommand::Kill) => replace::kill(&state, &Kubectl::of(&state, &options.folder)?),
        Some(ClusterCommand::Upgrade { to }) => {
            replace::upgrade(&state, &ClusterBinaries::find(&options.folder)?, to)
        }
        Some(ClusterCommand::Reboot) => {
            replace::reboot(&state, &Kubectl::of(&state, &options.folder)?)
        }
        Some(ClusterCommand::Audit) => audit::run(&state),
        Some(ClusterCommand::E2e { focus }) => {
            e2e::run(&state, &ClusterBinaries::find(&options.folder)?, focus)
        }
        Some(ClusterCommand::Kubectl { arguments }) => {
            Kubectl::of(&state, &options.folder)?.show(arguments)
        }
        None => everything(&state, options),
    }
}

/// Runs all steps for `cargo xtask test` if the environment names a folder.
///
/// # Errors
/// A step failed; the error names it.
pub(crate) fn test() -> Result<()> {
    let Some(folder) = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) else {
        step::warning(&format!(
            "SKIPPED cluster: {VARIABLE} names no folder with Kubernetes' server binaries. That is an \
             input which CI does not have; `cargo xtask cluster DIR` runs it by hand"
        ));
        return Ok(());
    };
    let layout = ClusterLayout {
        cni: CniPlugin::Ptp,
        proxy: ServiceProxy::Nftables,
        family: AddressFamily::Dual,
        binary: None,
    };
    run(&ClusterOptions { folder: folder.into(), layout, command: None })
}

fn everything(state: &ClusterFolder, options: &ClusterOptions) -> Result<()> {
    let missing = ClusterBinaries::missing(&options.folder);
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
    let binaries = ClusterBinaries::find(&options.folder)?;
    let start = Instant::now();
    let cluster = up(state, &binaries, &options.layout)?;
    let kubectl = Kubectl::of(state, &options.folder)?;
    let result = checks(state, &binaries, &kubectl);
    drop(cluster);
    result?;
    step::title(&format!("done in {:.0?}, everything cleaned up", start.elapsed()));
    Ok(())
}

/// Runs the checks that need no other image.
fn checks(state: &ClusterFolder, binaries: &ClusterBinaries, kubectl: &Kubectl) -> Result<()> {
    smoke::run(kubectl)?;
    rollout::run(kubectl)?;
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

/// Running cluster. Drop ends it.
struct RunningCluster<'a>(&'a ClusterFolder);

impl RunningCluster<'_> {
    /// Leaves the cluster running until `down`.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for RunningCluster<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.down() {
            step::failure(&format!("{error:#}"));
        }
    }
}

fn up<'a>(
    state: &'a ClusterFolder,
    binaries: &ClusterBinaries,
    layout: &ClusterLayout,
) -> Result<RunningCluster<'a>> {
    let start = Instant::now();
    state.down()?;
    step::title(&format!("Kubernetes {}", binaries.version()));
    ensure!(
        layout.proxy != ServiceProxy::Nftables || binaries.minor() >= 31,
        "kube-proxy of Kubernetes {} has no mode nftables: use --proxy iptables",
        binaries.version()
    );
    crate::setup::for_traffic()?;
    let images = images::make(state, binaries, layout.binary.as_deref())?;
    state.make()?;
    let cluster = RunningCluster(state);
    let result = begin(state, binaries, layout).and_then(|kubectl| {
        images::import(state, binaries, &images)?;
        install::run(&kubectl, binaries.minor())
    });
    if let Err(error) = result {
        show_state(state, binaries.folder());
        return Err(error);
    }
    step::note(&format!("took {:.0?}", start.elapsed()));
    Ok(cluster)
}

/// Prints the last log lines, pods and events, for the analysis of a failure.
fn show_state(state: &ClusterFolder, folder: &Path) {
    state.show_logs();
    let Ok(kubectl) = Kubectl::of(state, folder) else { return };
    for arguments in [["get", "pods", "-A", "-o", "wide"], ["get", "events", "-A", "-o", "wide"]] {
        if let Ok(told) = kubectl.run(&[&arguments[..], &["--request-timeout=5s"]].concat()) {
            anstream::println!("{}", told.trim_end());
        }
    }
}

/// Starts the nodes, their network and the control plane.
fn begin(
    state: &ClusterFolder,
    binaries: &ClusterBinaries,
    layout: &ClusterLayout,
) -> Result<Kubectl> {
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
    kubectl.wait_ready()?;
    Ok(kubectl)
}

fn told_how(options: &ClusterOptions) {
    let command = format!("cargo xtask cluster {}", options.folder.display());
    step::title("the cluster is up");
    step::note(&format!("{command} kubectl get pods -A"));
    step::note(&format!("{command} smoke"));
    step::note(&format!("{command} down"));
}
