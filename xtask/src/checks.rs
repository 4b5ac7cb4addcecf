//! `cargo xtask test`: all checks of CI.

use std::process::{Command, Stdio};

use anyhow::{Result, bail, ensure};
use netpold_testbed::is_root;

use crate::setup::{self, CrateProgram, SHEAR, TYPOS, Toolchain};
use crate::step;
use crate::{cargo, cluster};

/// Runs all checks, also after a failure, so that one run reports all failures.
///
/// # Errors
/// The names of failed checks.
pub(crate) fn run(filter: Option<&str>) -> Result<()> {
    let toolchain = setup::run()?;
    if !is_root() {
        step::warning("not root: the tests in network namespaces will be SKIPPED");
    }
    if let Err(error) = setup::for_traffic() {
        step::warning(&format!("the tests of Services with real traffic will FAIL: {error:#}"));
    }
    if let Err(error) = setup::for_completion() {
        step::warning(&format!(
            "the tests of completion in zsh and fish will be SKIPPED: {error:#}"
        ));
    }
    if let Err(error) = setup::for_page() {
        step::warning(&format!("the tests of the page in a browser will be SKIPPED: {error:#}"));
    }
    if let Err(error) = setup::for_tests() {
        step::warning(&format!("the tests against an API server will be SKIPPED: {error:#}"));
    }
    if let Err(error) = setup::for_deploy() {
        step::warning(&format!("some tests of deploy/ will be SKIPPED: {error:#}"));
    }
    let mut failed = Vec::new();
    let mut check = |name: &'static str, result: Result<()>| {
        if let Err(error) = result {
            step::failure(&format!("{error:#}"));
            failed.push(name);
        }
    };
    if filter.is_none() {
        check("format", step::show(&mut cargo(&["fmt", "--all", "--check"])));
        check("clippy", clippy(&toolchain));
        check("documentation", documentation(&toolchain));
        check("unused dependencies", with(&SHEAR, &[]));
        check("spelling", with(&TYPOS, &["--config", ".config/typos.toml"]));
        check("licences and advisories", deny());
        check("cluster", cluster::test());
    }
    // Last, so that the runner's summary ends the output.
    check("tests", tests(&toolchain, filter));
    if failed.is_empty() {
        return Ok(());
    }
    bail!("failed: {}", failed.join(", "))
}

/// Runs the checks that take at most a few minutes after a change; needs the programs of `cargo xtask setup`.
///
/// # Errors
/// The first check that fails.
pub(crate) fn quick() -> Result<()> {
    let toolchain = setup::run()?;
    step::show(&mut cargo(&["fmt", "--all", "--check"]))?;
    clippy(&toolchain)?;
    let tests = ["nextest", "run", "--workspace", "--locked", "--profile", "quick"];
    ensure!(installed("nextest"), "cargo-nextest is not installed: `cargo install cargo-nextest`");
    step::show(toolchain.apply(&mut cargo(&tests)))
}

fn clippy(toolchain: &Toolchain) -> Result<()> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    step::show(toolchain.apply(&mut cargo(&arguments)))
}

/// Builds the documentation, including private items; fails on rustdoc warnings such as broken links.
fn documentation(toolchain: &Toolchain) -> Result<()> {
    let arguments = ["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"];
    step::show(toolchain.apply(&mut cargo(&arguments)).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Runs a program of `cargo xtask setup` over the sources; skips a program that is not installed, since building one
/// takes minutes.
fn with(program: &CrateProgram, arguments: &[&str]) -> Result<()> {
    let Some(path) = program.find() else {
        step::warning(&format!("SKIPPED: {} is not installed (cargo xtask setup)", program.name));
        return Ok(());
    };
    step::show(Command::new(path).args(arguments).current_dir(crate::root()))
}

fn deny() -> Result<()> {
    if !installed("deny") {
        step::warning("SKIPPED licences and advisories: cargo-deny is not installed");
        return Ok(());
    }
    let check = ["deny", "--config", ".config/deny.toml", "check"];
    step::show(cargo(&check).args(["licenses", "bans", "sources"]))?;
    // The advisories need a download, which fails offline.
    let advisories = cargo(&check).arg("advisories").output()?;
    let output = String::from_utf8_lossy(&advisories.stderr);
    if output.contains("failed to fetch advisory database") {
        step::warning("SKIPPED advisories: their database cannot be downloaded");
        return Ok(());
    }
    ensure!(advisories.status.success(), "advisories:\n{output}");
    Ok(())
}

fn tests(toolchain: &Toolchain, filter: Option<&str>) -> Result<()> {
    let run = |arguments: &[&str]| step::show(toolchain.apply(&mut cargo(arguments)));
    if filter.is_none() {
        // The upgrade tests need this agent, and a build would count against their time limit.
        let agent = ["build", "-p", "netpold", "--bin", "netpold-other-layout"];
        run(&[&agent[..], &["--features", "other-layout", "--locked"]].concat())?;
    }
    let nextest = installed("nextest");
    match filter {
        Some(name) if nextest => {
            let filter = format!("test({name}) | binary(~{name})");
            run(&["nextest", "run", "--workspace", "--locked", "-E", &filter])
        }
        Some(name) => run(&["test", "--workspace", "--locked", "--", name]),
        None if nextest => {
            // nextest runs no documentation tests.
            let documentation = run(&["test", "--workspace", "--locked", "--doc", "--quiet"]);
            // Tests with nodes and servers spend more than half of their time waiting: with two threads a processor, 30 % of
            // its time is idle; with three, 4 %.
            let threads = std::thread::available_parallelism().map_or(2, usize::from) * 3;
            let threads = format!("--test-threads={threads}");
            run(&["nextest", "run", "--workspace", "--locked", &threads]).and(documentation)
        }
        None => run(&["test", "--workspace", "--locked", "--no-fail-fast"]),
    }
}

/// Whether cargo has a subcommand.
fn installed(subcommand: &str) -> bool {
    Command::new(format!("cargo-{subcommand}"))
        .args([subcommand, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
