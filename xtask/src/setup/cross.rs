//! What building for another processor needs: its standard library, a C compiler that links for it,
//! and an emulator to see the result run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{packages, toolchain};
use crate::arch::Arch;
use crate::step;

const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Runs a static arm64 program, and is one file itself.
const EMULATOR: &str = "qemu-aarch64-static";
/// Programs, and Debian's packages that have them; the compiler's C library is one more.
const PROGRAMS: [(&str, &str); 3] = [
    (LINKER, "gcc-aarch64-linux-gnu"),
    (LINKER, "libc6-dev-arm64-cross"),
    (EMULATOR, "qemu-user-static"),
];

/// Installs what is missing to build for 64-bit ARM with glibc, and gives the linker.
///
/// # Errors
/// Naming what could not be had, or that it is another processor.
pub(super) fn install(arch: Arch) -> Result<&'static str> {
    let target = arch.target();
    ensure!(arch == Arch::Arm64, "this machine can build for itself and arm64, not for {target}");
    packages::install_programs(&PROGRAMS).with_context(|| format!("building for {target}"))?;
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
