//! What building for another processor needs: its standard library, a C compiler that links for it,
//! and an emulator to see the result run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{packages, toolchain};
use crate::arch::Arch;
use crate::step;

/// Debian's packages: compiler, C library, emulator.
const PACKAGES: [&str; 3] = ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user-static"];
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Runs a static arm64 program, and is one file itself.
const EMULATOR: &str = "qemu-aarch64-static";

/// Installs what is missing to build for 64-bit ARM with glibc, and gives the linker.
///
/// # Errors
/// Naming what could not be had, or that it is another processor.
pub(super) fn install(arch: Arch) -> Result<&'static str> {
    let target = arch.target();
    ensure!(arch == Arch::Arm64, "this machine can build for itself and arm64, not for {target}");
    let there = |program: &str| toolchain::on_path(program).is_some();
    if !(there(LINKER) && there(EMULATOR)) {
        if !(packages::have_apt() && packages::root()) {
            bail!(
                "building for {target} needs {LINKER}, its C library and {EMULATOR}: as root on \
                 Debian they are installed ({})",
                PACKAGES.join(", ")
            );
        }
        packages::update();
        packages::install(&PACKAGES)?;
    }
    if !has_library(target) {
        step::quiet(Command::new("rustup").args(["target", "add", target]))
            .with_context(|| format!("no standard library of Rust for {target}"))?;
    }
    Ok(LINKER)
}

/// The emulator, where there is one.
pub(crate) fn emulator() -> Option<PathBuf> {
    toolchain::on_path(EMULATOR)
}

/// Whether the compiler has the target's standard library.
fn has_library(target: &str) -> bool {
    let told =
        Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    told.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}
