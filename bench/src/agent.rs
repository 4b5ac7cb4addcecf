//! The agent as a process of its own, at a node of the testbed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use netpold_testbed::cluster::TestCluster;
use netpold_testbed::{Agent, AgentOptions};

/// The agent's binary, built beside this one.
///
/// # Errors
/// There is none.
pub(crate) fn binary() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let binary = own.parent().unwrap_or(Path::new("/")).join("netpold");
    ensure!(
        binary.is_file(),
        "no agent at {}: build it with `cargo build --release --package netpold`, or run \
         `cargo xtask bench`",
        binary.display()
    );
    Ok(binary)
}

/// Starts an agent at the first node of a cluster, and waits until it enforces the cluster's objects.
///
/// # Errors
/// There is no binary, or it cannot be run.
pub(crate) fn start(cluster: &mut TestCluster) -> Result<()> {
    cluster.write();
    let options = AgentOptions {
        binary: binary()?,
        manifests: cluster.manifests.directory().to_owned(),
        arguments: cluster.arguments.clone(),
    };
    let agent = Agent::start(&cluster.nodes[0], options)?;
    cluster.agents.push(agent);
    cluster.enforce();
    Ok(())
}

/// Packets dropped by the programs, with or without an event.
///
/// # Errors
/// The agent does not answer.
pub(crate) fn drops(agent: &Agent) -> Result<u64> {
    let status = agent.status()?;
    let counts = status["drops"].as_array().context("a status without drops")?.iter();
    Ok(counts.filter_map(|count| count["packets"].as_u64()).sum())
}
