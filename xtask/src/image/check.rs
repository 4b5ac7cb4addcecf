//! What must be true of an image, asked of tools that did not write it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Arch, layout};
use crate::step;

/// Looks at an image: that skopeo takes it for one and finds every digest right, what it says of
/// itself, that there is one file in it, and that this runs with nothing else around it.
///
/// # Errors
/// With what is wrong.
pub(super) fn check(directory: &Path, tag: &str, arch: Arch) -> Result<()> {
    let image = format!("oci:{}:{tag}", directory.display());
    let said: Value = serde_json::from_str(&skopeo(&["inspect", "--config", &image])?)?;
    ensure!(said["architecture"] == arch.oci() && said["os"] == "linux", "platform: {said}");
    let config = &said["config"];
    ensure!(config["Entrypoint"] == serde_json::json!(["/netpold"]), "entrypoint: {config}");
    ensure!(config["User"] == "0:0", "user: {config}");
    for label in ["title", "version", "licenses", "source", "revision"] {
        let value = &config["Labels"][format!("org.opencontainers.image.{label}")];
        ensure!(value.as_str().is_some_and(|text| !text.is_empty()), "label {label}: {config}");
    }
    let unpacked = tempfile::tempdir().context("no temporary directory")?;
    // Copying reads every blob and compares it with its digest.
    let copy = unpacked.path().join("copy");
    skopeo(&["copy", "--quiet", &image, &format!("dir:{}", copy.display())])?;
    let manifest: Value = serde_json::from_slice(&fs::read(copy.join("manifest.json"))?)?;
    let layers = manifest["layers"].as_array().map_or(&[][..], Vec::as_slice);
    ensure!(layers.len() == 1, "one layer: {manifest}");
    let digest = layers[0]["digest"].as_str().unwrap_or_default().trim_start_matches("sha256:");
    let root = unpacked.path().join("root");
    fs::create_dir(&root)?;
    ran(Command::new("tar").arg("-xzf").arg(copy.join(digest)).arg("-C").arg(&root))?;
    runs(&root, arch)
}

/// The binary says its version where there is nothing but itself.
fn runs(root: &Path, arch: Arch) -> Result<()> {
    if arch.rust() != std::env::consts::ARCH || !netpold_testbed::is_root() {
        step::warning("SKIPPED running the image's binary: needs root, and a machine of its kind");
        return Ok(());
    }
    let said = ran(Command::new("chroot").arg(root).args(["/netpold", "--version"]))?;
    let expected = concat!("netpold ", env!("CARGO_PKG_VERSION"));
    ensure!(said.trim() == expected, "netpold --version says {said:?}");
    Ok(())
}

/// The same binary makes the same image, whenever and in whatever order.
pub(super) fn reproducible(contents: &layout::Contents<'_>) -> Result<()> {
    let directory = tempfile::tempdir().context("no temporary directory")?;
    let index = |name: &str| -> Result<Vec<u8>> {
        let path = directory.path().join(name);
        layout::write(&path, "test", contents)?;
        Ok(fs::read(path.join("index.json"))?)
    };
    // The index holds the digest of everything else.
    let first = index("first")?;
    for other in 0..8 {
        ensure!(index(&format!("{other}"))? == first, "the same contents make another image");
    }
    Ok(())
}

fn skopeo(arguments: &[&str]) -> Result<String> {
    ran(Command::new("skopeo").arg("--insecure-policy").args(arguments))
}

fn ran(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
