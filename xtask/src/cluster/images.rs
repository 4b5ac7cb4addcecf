//! Images on the nodes: netpold's, two of busybox, and those of the folder. No image is pulled.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::binaries::ClusterBinaries;
use super::common::{wait, write};
use super::node::{PAUSE, SOCKET};
use super::state::{ClusterFolder, NODES};
use crate::arch::Arch;
use crate::image::layout::header;
use crate::{image, step};

/// Image of the test pods.
pub(super) const BUSYBOX: &str = "localhost/netpold-cluster/busybox:1";
/// Image of the DaemonSet and the controller.
pub(super) const NETPOLD: &str = "localhost/netpold";
pub(super) const TAG: &str = "cluster";

/// Archive for `ctr images import`.
pub(super) struct ImageArchive {
    path: PathBuf,
    /// Name of the image if the archive contains only a tag.
    base: Option<&'static str>,
}

/// Builds the images, and lists the archives of the folder.
///
/// # Errors
/// The build of netpold fails, or a file cannot be written.
pub(super) fn make(
    state: &ClusterFolder,
    binaries: &ClusterBinaries,
    binary: Option<&Path>,
) -> Result<Vec<ImageArchive>> {
    let folder = state.path("images");
    std::fs::create_dir_all(&folder)?;
    let mut archives = vec![netpold(state, binary, TAG)?];
    let mut add = |name: &str, archive: Vec<u8>| {
        let path = folder.join(name);
        archives.push(ImageArchive { path: path.clone(), base: None });
        write(&path, archive)
    };
    let busybox = std::fs::read(&binaries.busybox)?;
    add(
        "pause.tar",
        archive(&[PAUSE.into()], "busybox", &busybox, &["/busybox", "sleep", "2147483647"])?,
    )?;
    add("busybox.tar", archive(&[BUSYBOX.into()], "busybox", &busybox, &["/busybox"])?)?;
    let agnhost = binaries.folder().join("agnhost");
    let names = wanted(binaries)?;
    if agnhost.is_file() && !names.is_empty() {
        add("agnhost.tar", archive(&names, "agnhost", &std::fs::read(agnhost)?, &["/agnhost"])?)?;
    }
    for entry in std::fs::read_dir(binaries.folder().join("images")).into_iter().flatten() {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "tar") {
            archives.push(ImageArchive { path, base: None });
        }
    }
    Ok(archives)
}

/// Builds an image of netpold, from the given binary or a new build.
///
/// # Errors
/// The build fails, or a file cannot be written.
pub(super) fn netpold(
    state: &ClusterFolder,
    binary: Option<&Path>,
    tag: &str,
) -> Result<ImageArchive> {
    let layout = state.path("images").join(format!("oci-{tag}"));
    image::write(binary, &layout, tag)?;
    let path = layout.with_extension("tar");
    pack_layout(&layout, &path)?;
    Ok(ImageArchive { path, base: Some(NETPOLD) })
}

/// Returns the agnhost images that Kubernetes' e2e tests use; empty if e2e.test is absent.
///
/// # Errors
/// e2e.test cannot be run.
pub(super) fn wanted(binaries: &ClusterBinaries) -> Result<Vec<String>> {
    let Some(e2e) = binaries.e2e() else { return Ok(Vec::new()) };
    let listed = Command::new(e2e).arg("--list-images").output().context("cannot run e2e.test")?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    Ok(listed.lines().filter(|name| name.contains("/agnhost:")).map(str::to_owned).collect())
}

/// Imports the archives on every node once its runtime responds.
///
/// # Errors
/// The runtime rejects an archive.
pub(super) fn import(
    state: &ClusterFolder,
    binaries: &ClusterBinaries,
    archives: &[ImageArchive],
) -> Result<()> {
    for node in NODES {
        step::note(&format!("{} images to {node}", archives.len()));
        wait("containerd", Duration::from_mins(1), || ctr(state, binaries, node, &["version"]))?;
        for archive in archives {
            let path = archive.path.display().to_string();
            let mut arguments = vec!["-n", "k8s.io", "images", "import"];
            arguments.extend(archive.base.into_iter().flat_map(|base| ["--base-name", base]));
            arguments.push(&path);
            ctr(state, binaries, node, &arguments)?;
        }
        let there = listed(state, binaries, node)?;
        for name in [PAUSE, BUSYBOX, &format!("{NETPOLD}:{TAG}")] {
            ensure!(
                there.contains(name),
                "node {node} has no image {name} after its import:\n{there}"
            );
        }
    }
    Ok(())
}

/// Returns the names of a node's images.
///
/// # Errors
/// The runtime does not respond.
pub(super) fn listed(
    state: &ClusterFolder,
    binaries: &ClusterBinaries,
    node: &str,
) -> Result<String> {
    ctr(state, binaries, node, &["-n", "k8s.io", "images", "list", "--quiet"])
}

fn ctr(
    state: &ClusterFolder,
    binaries: &ClusterBinaries,
    node: &str,
    arguments: &[&str],
) -> Result<String> {
    let mut command = state.inside(node, &binaries.ctr)?;
    let output = command.args(["--address", SOCKET]).args(arguments).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("ctr {} on {node}: {}", arguments.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn pack_layout(layout: &Path, archive: &Path) -> Result<()> {
    let packing = || format!("cannot pack {}", layout.display());
    let mut builder = tar::Builder::new(std::fs::File::create(archive).with_context(packing)?);
    builder.append_dir_all(".", layout).with_context(packing)?;
    builder.finish().with_context(packing)
}

/// Builds an image of one static program and an empty `/tmp`, in the format of `docker save`.
fn archive(names: &[String], program: &str, bytes: &[u8], entrypoint: &[&str]) -> Result<Vec<u8>> {
    let mut layer = tar::Builder::new(Vec::new());
    let mut folder = header(0o1777, 0);
    folder.set_entry_type(tar::EntryType::Directory);
    layer.append_data(&mut folder, "tmp/", std::io::empty())?;
    layer.append_data(&mut header(0o755, bytes.len() as u64), program, bytes)?;
    let layer = layer.into_inner()?;
    let digest: String = Sha256::digest(&layer).iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({
        "architecture": Arch::own().name(),
        "os": "linux",
        "config": { "Entrypoint": entrypoint, "Env": ["PATH=/"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    let manifest = json!([{ "Config": "config.json", "RepoTags": names, "Layers": ["layer.tar"] }]);
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in [
        ("config.json", serde_json::to_vec(&config)?),
        ("manifest.json", serde_json::to_vec(&manifest)?),
        ("layer.tar", layer),
    ] {
        archive.append_data(&mut header(0o644, bytes.len() as u64), name, bytes.as_slice())?;
    }
    Ok(archive.into_inner()?)
}
