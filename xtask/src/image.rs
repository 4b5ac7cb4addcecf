//! `cargo xtask image`: one static binary, and an OCI image layout with nothing else in it.
//!
//! The same sources and tools make the same bytes: no time of day, no order of hash maps, no owner gets
//! into the image. Labels tell the commit. No registry and no container runtime is needed; push with
//! `skopeo copy oci:target/oci:VERSION docker://…`.

mod check;
mod layout;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::setup::{self, Toolchain};
use crate::{root, step};
use layout::Contents;

/// What an image may take, unpacked.
const LARGEST: u64 = 20 << 20;

/// Processors that images are made for, with their names in Rust's targets and in OCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Arch {
    /// x86-64
    Amd64,
    /// 64-bit ARM; needs a cross compiler and a standard library for it
    Arm64,
}

impl Arch {
    fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    fn rust(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    fn oci(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }
}

/// Flags of `cargo xtask image`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Put this binary in instead of building one
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Directory to write the layout to, in place of what is there
    #[arg(long, value_name = "DIR", default_value = "target/oci")]
    output: PathBuf,
    /// Tag of the image in the layout
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
    /// Check the way to an image with the development binary, linked anew, and keep nothing
    #[arg(long)]
    dev: bool,
    /// Processor to build for
    #[arg(long, value_enum, default_value = "amd64")]
    arch: Arch,
}

/// Builds the binary and writes the image.
///
/// # Errors
/// The build fails, or the image is larger than it may be.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.dev {
        return test(&setup::run()?);
    }
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => build(options.arch)?,
    };
    let bytes = fs::read(&binary).with_context(|| format!("cannot read {}", binary.display()))?;
    ensure_static(&binary, &bytes)?;
    let output = root().join(&options.output);
    let contents = Contents { binary: &bytes, arch: options.arch.oci(), revision: &revision() };
    let size = layout::write(&output, &options.tag, &contents)?;
    let unpacked = bytes.len() as u64;
    step::note(&format!(
        "image: {}:{} for {}, {:.1} MB, {:.1} MB unpacked",
        output.display(),
        options.tag,
        options.arch.oci(),
        size as f64 / 1e6,
        unpacked as f64 / 1e6
    ));
    check::check(&output, &options.tag, options.arch)?;
    // A binary from elsewhere may be one with debugging information.
    if options.binary.is_none() {
        ensure!(unpacked < LARGEST, "the image is larger than {} MB", LARGEST >> 20);
    }
    Ok(())
}

/// A build for release takes minutes: the same with the development binary, linked anew.
///
/// # Errors
/// With what is wrong.
fn test(toolchain: &Toolchain) -> Result<()> {
    let link = ["rustc", "--locked", "--package", "netpold", "--bin", "netpold"];
    let mut command = crate::cargo(&link);
    command.args(["--", "-Ctarget-feature=+crt-static", "-Cstrip=symbols"]);
    step::show(toolchain.apply(&mut command))?;
    let binary = target().join("debug/netpold");
    let bytes = fs::read(&binary).with_context(|| format!("cannot read {}", binary.display()))?;
    ensure_static(&binary, &bytes)?;
    let arch = if cfg!(target_arch = "aarch64") { Arch::Arm64 } else { Arch::Amd64 };
    let contents = Contents { binary: &bytes, arch: arch.oci(), revision: &revision() };
    check::reproducible(&contents)?;
    let directory = tempfile::tempdir().context("no temporary directory")?;
    layout::write(directory.path(), "test", &contents)?;
    check::check(directory.path(), "test", arch)
}

/// A binary that needs nothing of the system it runs on but its kernel.
fn build(arch: Arch) -> Result<PathBuf> {
    let toolchain = setup::run()?;
    let target = arch.target();
    let build = ["build", "--locked", "--package", "netpold", "--bin", "netpold"];
    let mut command = crate::cargo(&build);
    // The flags are the target's, so that build scripts and macros stay dynamic.
    let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", target.to_uppercase().replace('-', "_"));
    command
        .args(["--profile", "image", "--target", target])
        .env(flags, format!("-Ctarget-feature=+crt-static {}", remap()))
        .env_remove("RUSTFLAGS");
    let command = toolchain.apply(&mut command);
    if arch.rust() != std::env::consts::ARCH {
        cross(command, target)?;
    }
    step::show(command)?;
    Ok(self::target().join(target).join("image/netpold"))
}

/// Debian's compiler builds the standard library from its sources, with Debian's cross compiler for C:
/// no toolchain for the other processor has to be fetched.
fn cross(command: &mut Command, target: &str) -> Result<()> {
    const RUSTC: &str = "/usr/bin/rustc";
    const SOURCES: &str = "/usr/lib/rustlib/src/rust/library/vendor";
    let gcc = format!("{}-gcc", target.replace("-unknown", ""));
    let found = Command::new(&gcc).arg("--version").output().is_ok();
    ensure!(
        found && Path::new(SOURCES).is_dir(),
        "building for {target} needs {gcc} and the sources of Rust's standard library: Debian packages \
         gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, rustc-web, rust-web-src"
    );
    let linker = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
    command
        .env(linker, &gcc)
        .env(format!("CC_{}", target.replace('-', "_")), &gcc)
        .env("RUSTC", RUSTC)
        .env("RUSTC_BOOTSTRAP", "1")
        .arg("-Zbuild-std=std,panic_unwind");
    Ok(())
}

/// Where cargo puts what it builds.
fn target() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR");
    root().join(chosen.map_or("target".into(), PathBuf::from))
}

/// Where the sources are on this machine is nobody's business, and would make another binary.
fn remap() -> String {
    let cargo = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let cargo = cargo.map(|home| format!(" --remap-path-prefix={}=cargo", home.display()));
    format!("--remap-path-prefix={}=netpold{}", root().display(), cargo.unwrap_or_default())
}

/// An image from scratch has no dynamic loader.
fn ensure_static(path: &Path, binary: &[u8]) -> Result<()> {
    ensure!(binary.starts_with(b"\x7fELF"), "{} is no ELF binary", path.display());
    let told = Command::new("readelf").args(["--program-headers", "--wide"]).arg(path).output();
    let told = told.context("cannot run readelf (Debian package binutils)")?;
    if String::from_utf8_lossy(&told.stdout).contains("INTERP") {
        bail!(
            "{} is linked dynamically, and an image from scratch holds no libraries; leave --binary \
             out, or build with -C target-feature=+crt-static and --target",
            path.display()
        );
    }
    Ok(())
}

/// The commit, where there is one.
fn revision() -> String {
    let told = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()).output();
    let told = told.ok().filter(|output| output.status.success());
    told.map_or_else(
        || "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
