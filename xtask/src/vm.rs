//! `cargo xtask vm-test`: the programs and real traffic on kernels other than this machine's.
//!
//! Debian's kernel packages are fetched into the user's cache (not installed) and booted in qemu, emulated (TCG), with
//! an initramfs of the test binaries and their dependencies. With `--arch`, kernel and binaries are those of another
//! processor.

mod apt;
mod archive;
mod console;
mod guest;
mod kernel;
mod modules;
mod qemu;
mod userland;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::arch::Arch;
use crate::{setup, step};
use console::{GuestEnd, GuestReport};
use guest::{Guest, TestBinaries};
use kernel::{UnpackedKernel, WANTED};
use qemu::Qemu;
use userland::Userland;

/// Options of `cargo xtask vm-test`.
#[derive(clap::Args)]
pub(crate) struct VmOptions {
    /// Only kernels with this prefix of the version, such as 6.1
    #[arg(long, value_name = "VERSION")]
    kernel: Vec<String>,
    /// Only tests with real traffic with this in their names, such as `netkit::`
    #[arg(long, value_name = "NAME")]
    traffic: Vec<String>,
    /// Processor to emulate and build for
    #[arg(long, value_enum, default_value_t = Arch::own())]
    arch: Arch,
    /// Look for newer packages than those in the cache
    #[arg(long)]
    update: bool,
    /// Print the guests' whole output
    #[arg(long)]
    verbose: bool,
}

/// Boots every available kernel and runs the guest's steps in it.
///
/// # Errors
/// When a download or build fails, or a step failed on a kernel.
pub(crate) fn run(options: &VmOptions) -> Result<()> {
    let start = Instant::now();
    let toolchain = setup::run()?;
    let arch = options.arch;
    let qemu = Qemu::find(&cache(Arch::own())?, arch)?;
    let cache = cache(arch)?;
    let userland = Userland::fetch(&cache, arch)?;
    let binaries = TestBinaries::build(&toolchain, arch)?;
    let mut rows = Vec::new();
    for wanted in &WANTED {
        let chosen = |kernel: &UnpackedKernel| {
            options.kernel.is_empty()
                || options.kernel.iter().any(|v| kernel.release.starts_with(v.as_str()))
        };
        let kernel = UnpackedKernel::fetch(wanted, &cache, arch, options.update)
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

/// Prints the results of the steps; returns whether any failed.
fn tell(kernel: &UnpackedKernel, guest: &Guest, report: &GuestReport) -> bool {
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
    if let GuestEnd::Badly(reason) = &report.ended {
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

/// Folder of packages and their unpacked files, separate for another processor.
fn cache(arch: Arch) -> Result<PathBuf> {
    let folder = setup::user_cache().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let mut cache = folder.join("netpold/vm");
    if !arch.is_own() {
        cache.push(arch.name());
    }
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    Ok(cache)
}

/// A package of the machine's own Debian, unpacked in the user's cache; not installed, so that no service starts.
///
/// # Errors
/// When there is no apt, or the package cannot be fetched.
pub(crate) fn unpacked(package: &str) -> Result<PathBuf> {
    ensure!(setup::on_path("apt-get").is_some(), "no apt here to fetch the package {package} with");
    apt::unpacked(&cache(Arch::own())?, package)
}
