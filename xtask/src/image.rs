//! `cargo xtask image`: an OCI image layout with one static binary and nothing else.
//!
//! Equal sources and tools must produce equal bytes (`--twice` compares two builds): the image contains no path of this
//! machine, no time of day, no order of hash maps and no owner. Its labels contain the commit. Neither a registry nor a
//! container runtime is needed; push with `skopeo copy --all oci:target/oci:VERSION docker://…`.

mod build;
mod check;
pub(crate) mod layout;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::arch::Arch;
use crate::setup::{self, Toolchain};
use crate::{root, step};
use layout::ImageContents;

/// Limit of an image's unpacked size, in bytes.
const LARGEST: usize = 28_000_000;

/// Flags of `cargo xtask image`.
#[derive(clap::Args)]
pub(crate) struct ImageOptions {
    /// Use this binary instead of building one
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Directory of the layout, which replaces an earlier one
    #[arg(long, value_name = "DIR", default_value = "target/oci")]
    output: PathBuf,
    /// Tag of the image in the layout
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
    /// Check all steps with the development binary, linked statically, and keep nothing
    #[arg(long)]
    dev: bool,
    /// Processors to build for, separated by commas; one image contains all
    #[arg(long, value_enum, value_delimiter = ',', default_value = "amd64")]
    arch: Vec<Arch>,
    /// Build again from a copy of the sources elsewhere and require the same bytes
    #[arg(long, conflicts_with_all = ["binary", "dev"])]
    twice: bool,
}

/// Builds the binary and writes the image.
///
/// # Errors
/// When the build fails, or the image is too large.
pub(crate) fn run(options: &ImageOptions) -> Result<()> {
    if options.dev {
        return test(&setup::run()?);
    }
    setup::for_image()?;
    let images: Result<Vec<ImageContents>> =
        options.arch.iter().map(|a| image(*a, options)).collect();
    let (images, output) = (images?, root().join(&options.output));
    let sizes = layout::write(&output, &options.tag, &images)?;
    for (image, size) in images.iter().zip(sizes) {
        step::note(&format!(
            "image: {}:{} for {}, {:.1} MB, {:.1} MB unpacked",
            output.display(),
            options.tag,
            image.arch.name(),
            size as f64 / 1e6,
            image.binary.len() as f64 / 1e6
        ));
    }
    for image in &images {
        check::check(&output, &options.tag, image.arch)?;
        // A given binary may contain debugging information.
        let fits = options.binary.is_some() || image.binary.len() < LARGEST;
        ensure!(fits, "the image is larger than {} MB", LARGEST / 1_000_000);
    }
    Ok(())
}

/// Builds the image for this machine's processor, from a given binary or a new one.
///
/// # Errors
/// As [`run`].
pub(crate) fn write(binary: Option<&Path>, output: &Path, tag: &str) -> Result<()> {
    run(&ImageOptions {
        binary: binary.map(Path::to_owned),
        output: output.to_owned(),
        tag: tag.to_owned(),
        dev: false,
        arch: vec![Arch::own()],
        twice: false,
    })
}

/// Returns the contents of the image for one processor.
fn image(arch: Arch, options: &ImageOptions) -> Result<ImageContents> {
    let path = match &options.binary {
        Some(binary) => binary.clone(),
        None => build::build(arch)?,
    };
    let binary = build::read(&path)?;
    if options.binary.is_none() {
        build::ensure_nameless(&binary)?;
    }
    if options.twice {
        build::again(arch, &binary)?;
    }
    Ok(ImageContents { binary, arch, revision: revision() })
}

/// Checks all steps with the development binary, linked statically: a release build takes minutes.
///
/// # Errors
/// When a check fails.
fn test(toolchain: &Toolchain) -> Result<()> {
    let link = ["rustc", "--locked", "--package", "netpold", "--bin", "netpold"];
    let mut command = crate::cargo(&link);
    command.args(["--", setup::STATIC, "-Cstrip=symbols"]);
    step::show(toolchain.apply(&mut command))?;
    let binary = build::read(&crate::target().join("debug/netpold"))?;
    let contents = ImageContents { binary, arch: Arch::own(), revision: revision() };
    check::reproducible(&contents)?;
    check::several(&contents)?;
    let directory = tempfile::tempdir().context("no temporary directory")?;
    layout::write(directory.path(), "test", std::slice::from_ref(&contents))?;
    check::check(directory.path(), "test", contents.arch)
}

/// Returns the commit of the sources, or `unknown`.
fn revision() -> String {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()).output();
    let output = output.ok().filter(|output| output.status.success());
    output.map_or_else(
        || "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
