//! Restarts, kills and upgrades of agents, and the reboot of a node, while isolated pods start.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill as send};
use nix::unistd::Pid;

use super::binaries::ClusterBinaries;
use super::common::wait;
use super::images::{self, NETPOLD};
use super::kubectl::Kubectl;
use super::layout::ClusterLayout;
use super::state::{ClusterFolder, NODES};
use super::{network, node, starts};
use crate::step;

/// Number of kills of each agent. The kubelet's restart delay grows each time.
const KILLS: usize = 3;
const PATIENCE: Duration = Duration::from_mins(5);
/// Tag of the other image.
const OTHER: &str = "other";

/// Restarts the agents with the same image.
///
/// # Errors
/// An isolated pod sent or received a packet, or the agents do not become ready.
pub(super) fn restart(state: &ClusterFolder, kubectl: &Kubectl) -> Result<()> {
    step::title("restart: the agents are replaced while isolated pods start");
    let outcome = starts::during(state, kubectl, || {
        in_netpold(kubectl, &["rollout", "restart", "daemonset/netpold"])?;
        rolled_out(kubectl)
    });
    outcome?.require_nothing()
}

/// Kills the agents of both nodes [`KILLS`] times, each time after they are ready again.
///
/// # Errors
/// An isolated pod sent or received a packet, or the agents do not become ready.
pub(super) fn kill(state: &ClusterFolder, kubectl: &Kubectl) -> Result<()> {
    step::title(&format!("kill: SIGKILL to both agents, {KILLS} times, while isolated pods start"));
    let outcome = starts::during(state, kubectl, || {
        for _ in 0..KILLS {
            for name in NODES {
                let agent = agent(state, name)?;
                send(agent, Signal::SIGKILL).context("the agent cannot be killed")?;
            }
            // The kubelet has noticed the exit by then.
            std::thread::sleep(Duration::from_secs(5));
            rolled_out(kubectl)?;
        }
        Ok(())
    });
    outcome?.require_nothing()
}

/// Rolls out another image, and rolls it back.
///
/// # Errors
/// An isolated pod sent or received a packet, or the agents do not become ready.
pub(super) fn upgrade(state: &ClusterFolder, binaries: &ClusterBinaries, to: &Path) -> Result<()> {
    step::title(&format!("upgrade: to {} and back while isolated pods start", to.display()));
    let kubectl = Kubectl::of(state, binaries.folder())?;
    images::import(state, binaries, &[images::netpold(state, Some(to), OTHER)?])?;
    let image = format!("{NETPOLD}:{OTHER}");
    for command in [
        &["set", "image", "daemonset/netpold", &format!("*={image}")][..],
        &["rollout", "undo", "daemonset/netpold"],
    ] {
        let outcome = starts::during(state, &kubectl, || {
            in_netpold(&kubectl, command)?;
            rolled_out(&kubectl)
        });
        step::note(&command.join(" "));
        outcome?.require_nothing()?;
    }
    Ok(())
}

/// Ends the second node's processes, network and mounts, and starts the node again with its disk and its pods. Packets
/// that pass before the DaemonSet's agent runs are only reported: no other component keeps the node closed from boot on
/// (deploy/README.md).
///
/// # Errors
/// The node does not join again, or policy is not in force afterwards.
pub(super) fn reboot(state: &ClusterFolder, kubectl: &Kubectl) -> Result<()> {
    let name = NODES[1];
    step::title(&format!("reboot: node {name}, with isolated pods on it"));
    let layout = ClusterLayout::of(state)?;
    let outcome = starts::while_second_reboots(state, kubectl, || {
        let start = Instant::now();
        state.halt(name)?;
        node::start(state, name)?;
        network::unlink(state);
        network::link(state, &layout)?;
        state.go(name)?;
        // Until the kubelet has checked it, the agent from before the reboot counts as ready.
        wait("an agent after the boot", PATIENCE, || agent(state, name))?;
        kubectl.wait_ready()?;
        rolled_out(kubectl)?;
        step::note(&format!("{name} is back after {:.0?}", start.elapsed()));
        Ok(())
    })?;
    step::note(&format!("at the boot, until the agent runs: {}", outcome.line()));
    starts::during(state, kubectl, || Ok(()))?.require_nothing()
}

fn rolled_out(kubectl: &Kubectl) -> Result<()> {
    wait("the agents", PATIENCE, || {
        in_netpold(kubectl, &["rollout", "status", "daemonset/netpold", "--timeout=5s"])
    })
}

fn in_netpold(kubectl: &Kubectl, arguments: &[&str]) -> Result<()> {
    kubectl.run(&[arguments, &["-n", "netpold-system"]].concat()).map(drop)
}

/// Returns the PID on this machine of a node's agent.
fn agent(state: &ClusterFolder, node: &str) -> Result<Pid> {
    let cgroup = format!("{}/", state.cgroup(node));
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let read = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let command = read("cmdline");
        let runs = command.split('\0').nth(1) == Some("run") && read("comm").trim() == "netpold";
        if runs && read("cgroup").contains(&cgroup) {
            found.push(Pid::from_raw(number));
        }
    }
    ensure!(found.len() == 1, "{} agents run on {node}", found.len());
    Ok(found[0])
}
