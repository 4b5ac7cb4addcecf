//! Tools for building for another processor: its standard library, a C compiler that links for it, and an emulator to
//! run the result.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{packages, toolchain};
use crate::arch::Arch;
use crate::step;

const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Emulator of static arm64 programs, itself a single file.
const EMULATOR: &str = "qemu-aarch64-static";
/// Programs and their packages in Debian; the compiler's C library is one more package.
const PROGRAMS: [(&str, &str); 3] = [
    (LINKER, "gcc-aarch64-linux-gnu"),
    (LINKER, "libc6-dev-arm64-cross"),
    (EMULATOR, "qemu-user-static"),
];

/// Installs missing tools for building for 64-bit ARM with glibc, and returns the linker.
///
/// # Errors
/// When a tool cannot be installed, or the processor is another one.
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

/// Path of the emulator, if installed.
pub(crate) fn emulator() -> Option<PathBuf> {
    toolchain::on_path(EMULATOR)
}

/// Whether the compiler has the target's standard library.
fn has_library(target: &str) -> bool {
    let told =
        Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    told.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}
