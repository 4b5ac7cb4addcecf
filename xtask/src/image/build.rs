//! The binary: optimized for size, static, and the same wherever it is built.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::arch::Arch;
use crate::setup::{self, Toolchain};
use crate::{root, step, target};

/// Builds a binary that depends only on the kernel of its system.
///
/// # Errors
/// When the build fails, or a tool for it is missing.
pub(super) fn build(arch: Arch) -> Result<PathBuf> {
    build_in(root(), &target(), arch, &setup::run()?)
}

/// Builds again, from a copy of the sources at another place without earlier artifacts, and compares.
///
/// # Errors
/// When the build fails, or its result differs.
pub(super) fn again(arch: Arch, first: &[u8]) -> Result<()> {
    let elsewhere = tempfile::tempdir().context("no temporary directory")?;
    let sources = elsewhere.path().join("another/place");
    copy_sources(&sources)?;
    let built = build_in(&sources, &elsewhere.path().join("target"), arch, &setup::run()?)?;
    let second = read(&built)?;
    ensure!(
        second == first,
        "the same sources make another binary elsewhere ({} and {} bytes)",
        first.len(),
        second.len()
    );
    step::note("built at another path: the same, byte for byte");
    Ok(())
}

/// Ensures that a binary contains no path of this machine.
///
/// # Errors
/// When the binary contains one; names the first.
pub(super) fn ensure_nameless(binary: &[u8]) -> Result<()> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let places = [Some(root().to_owned()), Some(target()), cargo_home(), home];
    for place in places.into_iter().flatten().filter(|place| place.components().count() > 1) {
        let bytes = [place.as_os_str().as_encoded_bytes(), b"/"].concat();
        let found = binary.windows(bytes.len()).any(|window| window == bytes);
        ensure!(!found, "{} is in the binary", place.display());
    }
    Ok(())
}

/// Reads a binary; fails unless it is static.
///
/// # Errors
/// When the file cannot be read, or the binary is not static.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure_static(path, &bytes)?;
    Ok(bytes)
}

/// Ensures that a binary is static: an image from scratch has no dynamic loader.
fn ensure_static(path: &Path, binary: &[u8]) -> Result<()> {
    ensure!(binary.starts_with(b"\x7fELF"), "{} is no ELF binary", path.display());
    let output = Command::new("readelf").args(["--program-headers", "--wide"]).arg(path).output();
    let output = output.context("cannot run readelf (Debian package binutils)")?;
    if String::from_utf8_lossy(&output.stdout).contains("INTERP") {
        bail!(
            "{} is linked dynamically, and an image from scratch holds no libraries; leave --binary \
             out, or build with -C target-feature=+crt-static and --target",
            path.display()
        );
    }
    Ok(())
}

fn build_in(sources: &Path, into: &Path, arch: Arch, toolchain: &Toolchain) -> Result<PathBuf> {
    let build = ["build", "--locked", "--package", "netpold", "--bin", "netpold"];
    let mut command = crate::cargo(&build);
    command
        .current_dir(sources)
        .args(["--profile", "image", "--target-dir"])
        .arg(into)
        // With an explicit target, the flags do not apply to build scripts and macros, which stay dynamic.
        .env("CARGO_ENCODED_RUSTFLAGS", flags(sources, into).join("\u{1f}"));
    setup::build_for(arch, &mut command)?;
    step::show(toolchain.apply(&mut command))?;
    Ok(into.join(arch.target()).join("image/netpold"))
}

/// Flags for a static binary without paths of this machine, which would differ between builds.
fn flags(sources: &Path, into: &Path) -> Vec<String> {
    let mut flags = vec![setup::STATIC.to_owned()];
    let mut rename = |path: &Path, name: &str| {
        flags.push(format!("--remap-path-prefix={}={name}", path.display()));
    };
    rename(sources, "netpold");
    if let Some(home) = cargo_home() {
        rename(&home, "cargo");
    }
    if !into.starts_with(sources) {
        rename(into, "netpold/target");
    }
    flags
}

fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")))
}

/// Copies the files that git tracks or would add, without ignored ones.
fn copy_sources(to: &Path) -> Result<()> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run git, which tells what belongs to the sources")?;
    ensure!(listed.status.success(), "git does not tell what belongs to the sources");
    for name in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        let (from, to) = (root().join(name), to.join(name));
        if !from.is_file() {
            continue;
        }
        fs::create_dir_all(to.parent().unwrap_or(&to))?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}
