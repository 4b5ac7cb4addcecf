//! `cargo xtask fuzz`: runs a fuzz target without a nightly compiler and without cargo-fuzz.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{cargo, root, step};

/// Flags of SanitizerCoverage, as cargo-fuzz sets them; libFuzzer needs them to observe a program's paths.
const INSTRUMENTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions --cfg fuzzing";
/// An explicit target, so that cargo does not instrument build scripts and procedural macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Fuzz targets that need the feature `agent`; see `agent/fuzz/Cargo.toml`.
const NEED_AGENT: [&str; 3] = ["kept", "manifests", "selectors"];

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct FuzzOptions {
    /// packets, manifests, selectors, kept, probes, delta, tables, answers or streams
    #[arg(value_name = "TARGET")]
    target: String,
    /// Duration of the run
    #[arg(long, default_value_t = 600)]
    seconds: u32,
    /// Copy some of the found inputs, small ones and long ones, into the committed corpus
    #[arg(long)]
    keep: bool,
}

/// Builds the target and runs it. New inputs go to `agent/fuzz/target/found`.
///
/// # Errors
/// When the build or an input fails; the input stays in `agent/fuzz/artifacts`.
pub(crate) fn run(options: &FuzzOptions) -> Result<()> {
    let fuzz = root().join("agent/fuzz");
    let committed = fuzz.join("corpus").join(&options.target);
    ensure!(committed.is_dir(), "{}: no such fuzz target", options.target);
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
            // No target uses the eBPF object.
            .env("NETPOLD_BPF_LINKER", "/nonexistent"),
    )?;
    Ok(fuzz.join("target").join(TARGET).join("debug").join(target))
}

/// Maximum number of inputs that one run adds to the committed corpus; every test run replays the corpus.
const KEPT: usize = 150;

/// Merges all inputs into a minimal set with the same coverage, and adds inputs of all sizes from the set to the
/// committed corpus.
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
