//! `cargo xtask bench`: builds the benchmarks for release and runs them.

use anyhow::{Result, ensure};
use netpold_testbed::is_root;

use crate::{cargo, setup, step};

/// Sets up, builds and runs; `arguments` are those of `netpold-bench`.
///
/// # Errors
/// When a build or a measurement fails.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    ensure!(is_root(), "the benchmarks load eBPF programs: run `cargo xtask bench` as root");
    let toolchain = setup::run()?;
    let package = ["--release", "--package", "netpold-bench"];
    // The benchmarks watch the agent beside their binary.
    let agent = ["--package", "netpold"];
    step::show(toolchain.apply(cargo(&["build"]).args(package).args(agent)))?;
    let run = ["run", "--quiet"];
    step::show(toolchain.apply(cargo(&run).args(package).arg("--").args(arguments)))
}
