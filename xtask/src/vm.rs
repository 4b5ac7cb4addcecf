//! `cargo xtask vm-test`: the programs and real traffic on other kernels than this machine's.
//!
//! Debian's kernel packages are fetched into the user's cache (nothing is installed) and booted in
//! qemu, emulated (TCG), with an initramfs that holds the test binaries and what they need.
//! With `--arch` they are those of another processor, which everything in it is built for.

mod apt;
mod archive;
mod console;
mod guest;
mod kernel;
mod modules;
mod qemu;
mod userland;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::arch::Arch;
use crate::{setup, step};
use console::{Ended, Report};
use guest::{Binaries, Guest};
use kernel::{Kernel, WANTED};
use qemu::Qemu;
use userland::Userland;

/// Options of the chore.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only kernels whose version begins like this, such as 6.1
    #[arg(long, value_name = "VERSION")]
    kernel: Vec<String>,
    /// Only tests with real traffic whose name has this in it, such as `netkit::`
    #[arg(long, value_name = "NAME")]
    traffic: Vec<String>,
    /// Processor that is emulated and built for
    #[arg(long, value_enum, default_value_t = Arch::own())]
    arch: Arch,
    /// Look for newer packages than those in the cache
    #[arg(long)]
    update: bool,
    /// Print the guests' whole output
    #[arg(long)]
    verbose: bool,
}

/// Boots every kernel that is to be had and runs the guest's steps in it.
///
/// # Errors
/// When something cannot be fetched or built, or a step failed on a kernel.
pub(crate) fn run(options: &Options) -> Result<()> {
    let start = Instant::now();
    let toolchain = setup::run()?;
    let arch = options.arch;
    let qemu = Qemu::find(&cache(Arch::own())?, arch)?;
    let cache = cache(arch)?;
    let userland = Userland::fetch(&cache, arch)?;
    let binaries = Binaries::build(&toolchain, arch)?;
    let mut rows = Vec::new();
    for wanted in &WANTED {
        let chosen = |kernel: &Kernel| {
            options.kernel.is_empty()
                || options.kernel.iter().any(|v| kernel.release.starts_with(v.as_str()))
        };
        let kernel = Kernel::fetch(wanted, &cache, arch, options.update)
            .with_context(|| format!("no kernel of Debian {}", wanted.suite))?;
        if !chosen(&kernel) {
            continue;
        }
        step::title(&format!(
            "Linux {} (Debian {}, {})",
            kernel.release,
            wanted.suite,
            arch.name()
        ));
        let guest = Guest::new(&kernel, &userland, &binaries, &options.traffic)?;
        let report = console::boot(&qemu, &kernel, &guest, options.verbose)?;
        rows.push(tell(&kernel, &guest, &report));
    }
    ensure!(!rows.is_empty(), "no kernel of that version; there are those of {}", suites());
    let failed = rows.iter().filter(|failed| **failed).count();
    step::title(&format!("{} kernels in {:.0?}", rows.len(), start.elapsed()));
    if failed > 0 {
        bail!("{failed} of {} kernels failed", rows.len());
    }
    Ok(())
}

/// Says how each step ended; whether any failed.
fn tell(kernel: &Kernel, guest: &Guest, report: &Report) -> bool {
    let mut failed = false;
    for expected in guest.steps() {
        let line = match report.steps.iter().find(|s| s.name == expected.name) {
            Some(step) if step.passed() => {
                format!("pass  {:8} {:>4} s  {}", step.name, step.seconds, step.summary())
            }
            Some(step) => {
                failed = true;
                anstream::println!("{}", step.output.join("\n"));
                format!("FAIL  {:8} {:>4} s  status {}", step.name, step.seconds, step.status)
            }
            None => {
                failed = true;
                format!("FAIL  {:8} did not end", expected.name)
            }
        };
        step::note(&line);
    }
    for note in &report.notes {
        step::note(&format!("note  {note}"));
    }
    if let Ended::Badly(reason) = &report.ended {
        failed = true;
        step::failure(&format!("Linux {}: {reason}", kernel.release));
        anstream::println!("{}", report.tail.join("\n"));
    }
    step::note(&format!("booted in {:.0?}, {:.0?} in all", report.booted, report.took));
    failed
}

fn suites() -> String {
    WANTED.map(|wanted| wanted.suite).join(", ")
}

/// Packages and what is unpacked from them: another processor's in a folder of their own.
fn cache(arch: Arch) -> Result<PathBuf> {
    let folder = setup::user_cache().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let mut cache = folder.join("netpold/vm");
    if !arch.is_own() {
        cache.push(arch.name());
    }
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    Ok(cache)
}

/// A package of the machine's own Debian, unpacked in the user's cache: nothing is installed, so
/// that no service starts.
///
/// # Errors
/// There is no apt, or it cannot be fetched.
pub(crate) fn unpacked(package: &str) -> Result<PathBuf> {
    ensure!(setup::on_path("apt-get").is_some(), "no apt here to fetch the package {package} with");
    apt::unpacked(&cache(Arch::own())?, package)
}

/// Runs a command and returns what it printed.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// How long a guest may take until its first step.
const BOOT: Duration = Duration::from_mins(10);
