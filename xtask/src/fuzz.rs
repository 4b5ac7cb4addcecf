//! `cargo xtask fuzz`: runs a fuzz target without a nightly compiler and without cargo-fuzz.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{cargo, root, step};

/// What makes libFuzzer see the ways a program takes (SanitizerCoverage, as cargo-fuzz has it).
const INSTRUMENTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions --cfg fuzzing";
/// With a target named, build scripts and macros are not instrumented.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Targets that need more than netpold's core; see `agent/fuzz/Cargo.toml`.
const NEED_AGENT: [&str; 3] = ["kept", "manifests", "selectors"];

/// Options of the chore.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// packets, manifests, selectors, kept, probes, delta or tables
    #[arg(value_name = "TARGET")]
    target: String,
    /// How long
    #[arg(long, default_value_t = 600)]
    seconds: u32,
    /// Put some of the inputs found, small ones and long ones, into the committed corpus
    #[arg(long)]
    keep: bool,
}

/// Builds the target and runs it. What it finds goes to `agent/fuzz/target/found`.
///
/// # Errors
/// When it does not build, or an input fails: that is left in `agent/fuzz/artifacts`.
pub(crate) fn run(options: &Options) -> Result<()> {
    let fuzz = root().join("agent/fuzz");
    let committed = fuzz.join("corpus").join(&options.target);
    ensure!(committed.is_dir(), "{}: there is no such target", options.target);
    let binary = build(&fuzz, &options.target)?;
    let found = fuzz.join("target/found").join(&options.target);
    fs::create_dir_all(&found).with_context(|| format!("cannot make {}", found.display()))?;
    fs::create_dir_all(fuzz.join("artifacts"))?;
    let mut run = Command::new(&binary);
    run.arg(format!("-max_total_time={}", options.seconds))
        .args(["-timeout=30", "-max_len=2048", "-print_final_stats=1"])
        .arg(format!("-artifact_prefix=artifacts/{}-", options.target))
        .args([&found, &committed])
        .current_dir(&fuzz);
    step::show(&mut run)?;
    if options.keep {
        keep(&binary, &found, &committed)?;
    }
    Ok(())
}

fn build(fuzz: &Path, target: &str) -> Result<PathBuf> {
    let features = if NEED_AGENT.contains(&target) { "agent" } else { "" };
    step::show(
        cargo(&["build", "--target", TARGET, "--bin", target, "--features", features])
            .current_dir(fuzz)
            .env("RUSTFLAGS", INSTRUMENTED)
            // No target looks at the eBPF object.
            .env("NETPOLD_BPF_LINKER", "/nonexistent"),
    )?;
    Ok(fuzz.join("target").join(TARGET).join("debug").join(target))
}

/// Inputs of the committed corpus at the most: it is replayed in every test run.
const KEPT: usize = 150;

/// Adds to the committed corpus inputs of all sizes, of those that cover what all inputs cover.
fn keep(binary: &Path, found: &Path, committed: &Path) -> Result<()> {
    let merged = tempfile::tempdir()?;
    step::quiet(Command::new(binary).arg("-merge=1").arg(merged.path()).args([committed, found]))?;
    let mut inputs = Vec::new();
    for entry in fs::read_dir(merged.path())? {
        let entry = entry?;
        inputs.push((entry.metadata()?.len(), entry.file_name()));
    }
    inputs.sort();
    let step_by = inputs.len().div_ceil(KEPT).max(1);
    let kept = inputs.iter().step_by(step_by);
    step::note(&format!("keeping {} of {} inputs", kept.len(), inputs.len()));
    for (_, name) in kept {
        fs::copy(merged.path().join(name), committed.join(name))?;
    }
    Ok(())
}
