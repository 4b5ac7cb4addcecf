//! Requirements on an image, checked with independent tools.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::layout;
use crate::arch::Arch;
use crate::{setup, step};

/// A pod that only one other may reach.
const CLUSTER: &str = r"
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}},
 status: {podIPs: [{ip: 10.0.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: other, namespace: shop, labels: {app: other}},
 status: {podIPs: [{ip: 10.0.0.2}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}},
 status: {podIPs: [{ip: 10.0.0.3}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: db, namespace: shop},
 spec: {podSelector: {matchLabels: {app: db}},
        ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}}
";

/// Checks that skopeo accepts an image and its digests, that its configuration is complete, that it has one layer, and
/// that the binary runs without other files.
///
/// # Errors
/// When a check fails.
pub(super) fn check(directory: &Path, tag: &str, arch: Arch) -> Result<()> {
    let image = format!("oci:{}:{tag}", directory.display());
    let skopeo = |arguments: &[&str]| skopeo(arch, arguments);
    let said: Value = serde_json::from_str(&skopeo(&["inspect", "--config", &image])?)?;
    ensure!(said["architecture"] == arch.name() && said["os"] == "linux", "platform: {said}");
    let config = &said["config"];
    ensure!(config["Entrypoint"] == serde_json::json!(["/netpold"]), "entrypoint: {config}");
    ensure!(config["User"] == "0:0", "user: {config}");
    for label in ["title", "version", "licenses", "source", "revision"] {
        let value = &config["Labels"][format!("org.opencontainers.image.{label}")];
        ensure!(value.as_str().is_some_and(|text| !text.is_empty()), "label {label}: {config}");
    }
    let unpacked = tempfile::tempdir().context("no temporary directory")?;
    // The copy reads every blob and compares it with its digest.
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

/// Checks the binary's version and its answers about a policy, in a root without other files.
fn runs(root: &Path, arch: Arch) -> Result<()> {
    let foreign = !arch.is_own();
    if !netpold_testbed::is_root() {
        step::warning("SKIPPED running the image's binary: needs root");
        return Ok(());
    }
    let mut chroot = vec!["chroot".into(), root.as_os_str().to_owned()];
    if foreign {
        let Some(emulator) = setup::emulator() else {
            step::warning("SKIPPED running the image's binary: needs qemu-user-static");
            return Ok(());
        };
        fs::copy(emulator, root.join("emulator")).context("cannot copy the emulator")?;
        chroot.push("/emulator".into());
    }
    let netpold = |arguments: &[&str]| {
        let mut command = Command::new(&chroot[0]);
        command.args(&chroot[1..]).arg("/netpold").args(arguments);
        command
    };
    let said = ran(&mut netpold(&["--version"]))?;
    let expected = concat!("netpold ", env!("CARGO_PKG_VERSION"));
    ensure!(said.trim() == expected, "netpold --version says {said:?}");
    fs::create_dir(root.join("manifests"))?;
    fs::write(root.join("manifests/all.yaml"), CLUSTER)?;
    for (from, status) in [("shop/web", 0), ("shop/other", 1)] {
        let pair = ["--from", from, "--to", "shop/db", "--port", "5432"];
        let told = netpold(&["explain", "--manifests", "/manifests"]).args(pair).output()?;
        let text = String::from_utf8_lossy(&told.stdout);
        ensure!(told.status.code() == Some(status), "netpold explain {pair:?}: {text}");
    }
    Ok(())
}

/// Checks that the same binary gives the same image, at any time and in any order.
pub(super) fn reproducible(contents: &layout::ImageContents) -> Result<()> {
    let directory = tempfile::tempdir().context("no temporary directory")?;
    let index = |name: &str| -> Result<Vec<u8>> {
        let path = directory.path().join(name);
        layout::write(&path, "test", std::slice::from_ref(contents))?;
        Ok(fs::read(path.join("index.json"))?)
    };
    // The index contains the digest of everything else.
    let first = index("first")?;
    for other in 0..8 {
        ensure!(index(&format!("{other}"))? == first, "the same contents make another image");
    }
    Ok(())
}

/// Checks that an image for several processors contains each of them under the one tag.
pub(super) fn several(contents: &layout::ImageContents) -> Result<()> {
    let directory = tempfile::tempdir().context("no temporary directory")?;
    let images = [Arch::Amd64, Arch::Arm64].map(|arch| layout::ImageContents {
        binary: [&contents.binary[..], arch.name().as_bytes()].concat(),
        arch,
        revision: contents.revision.clone(),
    });
    layout::write(directory.path(), "test", &images)?;
    let image = format!("oci:{}:test", directory.path().display());
    let mut layers = Vec::new();
    for arch in [Arch::Amd64, Arch::Arm64] {
        let config: Value = serde_json::from_str(&skopeo(arch, &["inspect", "--config", &image])?)?;
        ensure!(config["architecture"] == arch.name(), "platform: {config}");
        let copy = directory.path().join(arch.name());
        skopeo(arch, &["copy", "--quiet", &image, &format!("dir:{}", copy.display())])?;
        let manifest: Value = serde_json::from_slice(&fs::read(copy.join("manifest.json"))?)?;
        layers.push(manifest["layers"].clone());
    }
    ensure!(layers[0] != layers[1], "both processors get one binary: {layers:?}");
    Ok(())
}

fn skopeo(arch: Arch, arguments: &[&str]) -> Result<String> {
    let options = ["--insecure-policy", "--override-os=linux", "--override-arch", arch.name()];
    ran(Command::new("skopeo").args(options).args(arguments))
}

fn ran(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use netpold_testbed::skip;

    use super::*;

    /// Contents with any bytes in place of a binary.
    fn contents() -> layout::ImageContents {
        layout::ImageContents {
            binary: (0..10_000_u32).flat_map(u32::to_le_bytes).collect(),
            arch: Arch::own(),
            revision: "0123456789abcdef0123456789abcdef01234567".to_owned(),
        }
    }

    /// The time of day, the owner of files and the order of hash maps leave no trace in the image.
    #[test]
    fn equal_contents_make_the_same_bytes() {
        reproducible(&contents()).unwrap();
        let mut other = contents();
        other.binary[0] = 1;
        let directory = tempfile::tempdir().unwrap();
        let index = |name: &str, contents: &layout::ImageContents| {
            let path = directory.path().join(name);
            layout::write(&path, "test", std::slice::from_ref(contents)).unwrap();
            fs::read(path.join("index.json")).unwrap()
        };
        assert_ne!(index("one", &contents()), index("other", &other), "the index holds the digest");
    }

    #[test]
    fn one_tag_has_the_images_of_several_processors() {
        if Command::new("skopeo").arg("--version").output().is_err() {
            let test = "one_tag_has_the_images_of_several_processors";
            return skip(test, "needs skopeo (`cargo xtask setup`)");
        }
        several(&contents()).unwrap();
    }
}
