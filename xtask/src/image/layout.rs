//! The files of an OCI image layout: one image of one layer, for one or several processors.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use oci_spec::image::{
    ConfigBuilder, Descriptor, DescriptorBuilder, Digest, ImageConfigurationBuilder, ImageIndex,
    ImageIndexBuilder, ImageManifestBuilder, MediaType, OciLayoutBuilder, PlatformBuilder,
    RootFsBuilder,
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::arch::Arch;

/// Path of the binary in the image.
const PATH: &str = "netpold";
/// Creation time in the image's configuration.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// Contents of an image for one processor.
#[derive(Clone)]
pub(super) struct ImageContents {
    pub(super) binary: Vec<u8>,
    pub(super) arch: Arch,
    /// The commit of the sources.
    pub(super) revision: String,
}

/// Writes the layout, which replaces an earlier one: one image, or for several processors an index of images, under the
/// same tag. Returns the size of each in bytes.
pub(super) fn write(directory: &Path, tag: &str, images: &[ImageContents]) -> Result<Vec<u64>> {
    let writing = || format!("cannot write {}", directory.display());
    if directory.join("oci-layout").exists() {
        fs::remove_dir_all(directory).with_context(writing)?;
    }
    fs::create_dir_all(directory.join("blobs/sha256")).with_context(writing)?;
    let layout = ImageLayout { directory };
    let written: Result<Vec<_>> = images.iter().map(|contents| layout.image(contents)).collect();
    let (mut manifests, sizes): (Vec<Descriptor>, Vec<u64>) = written?.into_iter().unzip();
    let mut top = match manifests.len() {
        1 => manifests.remove(0),
        _ => layout.json(MediaType::ImageIndex, &index(manifests)?)?,
    };
    let name = ("org.opencontainers.image.ref.name".to_owned(), tag.to_owned());
    top.set_annotations(Some(HashMap::from([name])));
    fs::write(directory.join("index.json"), json(&index(vec![top])?)?).with_context(writing)?;
    let version = OciLayoutBuilder::default().image_layout_version("1.0.0").build()?;
    fs::write(directory.join("oci-layout"), json(&version)?).with_context(writing)?;
    Ok(sizes)
}

fn index(manifests: Vec<Descriptor>) -> Result<ImageIndex> {
    let index = ImageIndexBuilder::default()
        .schema_version(2u32)
        .media_type(MediaType::ImageIndex)
        .manifests(manifests);
    Ok(index.build()?)
}

struct ImageLayout<'a> {
    directory: &'a Path,
}

impl ImageLayout<'_> {
    /// Writes the blobs of one image; returns its manifest, and the size of all blobs in bytes.
    fn image(&self, contents: &ImageContents) -> Result<(Descriptor, u64)> {
        let archive = archive(&contents.binary)?;
        let layer = self.blob(MediaType::ImageLayerGzip, &compress(&archive)?)?;
        let config = self.config(contents, &sha256(&archive))?;
        let size = layer.size() + config.size();
        let manifest = ImageManifestBuilder::default()
            .schema_version(2u32)
            .media_type(MediaType::ImageManifest)
            .config(config)
            .layers(vec![layer])
            .build()?;
        let mut manifest = self.json(MediaType::ImageManifest, &manifest)?;
        let size = size + manifest.size();
        let platform =
            PlatformBuilder::default().os("linux").architecture(contents.arch.name()).build()?;
        manifest.set_platform(Some(platform));
        Ok((manifest, size))
    }

    fn blob(&self, kind: MediaType, bytes: &[u8]) -> Result<Descriptor> {
        let digest = sha256(bytes);
        let path = self.directory.join("blobs/sha256").join(&digest);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        let digest: Digest = format!("sha256:{digest}").parse()?;
        let size = bytes.len() as u64;
        Ok(DescriptorBuilder::default().media_type(kind).digest(digest).size(size).build()?)
    }

    fn json(&self, kind: MediaType, value: &impl Serialize) -> Result<Descriptor> {
        self.blob(kind, &json(value)?)
    }

    /// Configuration for running the image. User 0, since bpffs belongs to the node's root; the DaemonSet limits the
    /// capabilities.
    fn config(&self, contents: &ImageContents, layer: &str) -> Result<Descriptor> {
        let labels = [
            ("title", "netpold"),
            ("description", "Kubernetes NetworkPolicy enforced in eBPF at every pod's veth"),
            ("version", env!("CARGO_PKG_VERSION")),
            ("licenses", env!("CARGO_PKG_LICENSE")),
            ("source", env!("CARGO_PKG_REPOSITORY")),
            ("revision", &contents.revision),
        ];
        let labels = labels
            .map(|(name, value)| (format!("org.opencontainers.image.{name}"), value.to_owned()));
        let config = ConfigBuilder::default()
            .user("0:0")
            .entrypoint(vec![format!("/{PATH}")])
            .cmd(vec!["run".to_owned()])
            .working_dir("/")
            .labels(HashMap::from(labels))
            .build()?;
        let layers = RootFsBuilder::default()
            .typ("layers")
            .diff_ids(vec![format!("sha256:{layer}")])
            .build()?;
        let image = ImageConfigurationBuilder::default()
            .created(CREATED)
            .os("linux")
            .architecture(contents.arch.name())
            .config(config)
            .rootfs(layers)
            .build()?;
        self.json(MediaType::ImageConfig, &image)
    }
}

/// The layer: the binary, and directories for mounts (a runtime cannot make them in a root that it mounts read-only).
fn archive(binary: &[u8]) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for directory in ["proc/", "run/", "run/netpold/", "sys/", "sys/fs/", "sys/fs/bpf/"] {
        let mut header = header(0o755, 0);
        header.set_entry_type(tar::EntryType::Directory);
        archive.append_data(&mut header, directory, std::io::empty())?;
    }
    archive.append_data(&mut header(0o755, binary.len() as u64), PATH, binary)?;
    Ok(archive.into_inner()?)
}

/// Header of an archive entry that depends only on the content.
pub(crate) fn header(mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn compress(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    gzip.write_all(bytes)?;
    Ok(gzip.finish()?)
}

/// Serializes with sorted keys, since the types hold labels in hash maps.
fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(&serde_json::to_value(value)?)?)
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
