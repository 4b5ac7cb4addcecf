//! `cargo xtask demo`: enforcement of policies, from an empty cluster to the reason of a drop.

mod cluster;
mod matrix;
mod netpold;
mod story;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use netpold_testbed::{Manifests, catch_interrupts, is_root, sweep};

use crate::step;
use cluster::DemoCluster;
use story::{POLICIES, go_on};

/// Runs the demo.
///
/// # Errors
/// When a cell of a matrix differs from the oracle, or a step fails. The demo cleans up in both cases.
pub(crate) fn run(binary: Option<PathBuf>) -> Result<()> {
    ensure!(
        is_root(),
        "the demo makes network namespaces and loads eBPF programs: run `cargo xtask demo` as root"
    );
    let binary = match binary {
        Some(binary) => std::path::absolute(binary)?,
        None => netpold::build()?,
    };
    catch_interrupts()?;
    sweep();
    let start = Instant::now();
    let wrong = play(&binary)?;
    if wrong > 0 {
        bail!("{wrong} wrong answers");
    }
    step::title(&format!("done in {:.1?}, everything cleaned up", start.elapsed()));
    Ok(())
}

fn play(binary: &std::path::Path) -> Result<usize> {
    step::title("two nodes (oak: host routes, elm: a bridge), three namespaces, an outside world");
    let directory =
        tempfile::Builder::new().prefix(&format!("np-{}-demo-", std::process::id())).tempdir()?;
    let manifests = Manifests::new(directory.path())?;
    let cluster = DemoCluster::build()?;
    cluster.write(&manifests)?;
    go_on()?;

    step::title("netpold run, on each node; no policy yet");
    let mut agents = netpold::start_agents(binary, &cluster.nodes, &manifests)?;
    let mut wrong = matrix::show(binary, &manifests, &cluster)?;
    go_on()?;

    let names = POLICIES.map(|(name, _)| name).join(", ");
    step::title(&format!("policies: {names} (in deploy/example)"));
    for (name, text) in POLICIES {
        manifests.write(name, text)?;
    }
    netpold::settle(&mut agents)?;
    wrong += matrix::show(binary, &manifests, &cluster)?;
    go_on()?;

    let stage = story::DemoStage { binary, manifests: &manifests, cluster: &cluster };
    stage.cut_a_connection(&mut agents)?;
    go_on()?;
    stage.reason_of_a_drop(&agents)?;
    Ok(wrong)
}
