//! Manifests of this node's static pods, the only source of their labels during an outage of the API server.
//!
//! The kubelet runs the pods of its manifest directory on its own, and appends the node's name to theirs. The directory
//! provides labels and ports for CNI results that exist, matched by the pod's name; a manifest alone is not proof that
//! the pod exists.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use netpold_core::bindings::CniResult;
use netpold_core::model::{Change, Key, Labels, NamedPort};
use tracing::debug;

use crate::manifests::read_text;
use crate::watched::Stamp;

/// Maximum number of bytes read of a manifest; no manifest is larger.
const MAX_BYTES: u64 = 1 << 20;

type ManifestFiles = BTreeMap<PathBuf, (Stamp, Vec<(Key, Labels, Vec<NamedPort>)>)>;

/// The kubelet's manifest directory, which need not exist.
#[derive(Debug)]
pub struct StaticPods {
    directory: PathBuf,
    node: String,
    files: ManifestFiles,
}

impl StaticPods {
    /// Creates the manifests of the node of this name.
    #[must_use]
    pub fn new(directory: PathBuf, node: String) -> Self {
        Self { directory, node, files: ManifestFiles::new() }
    }

    /// Adds labels and ports from the manifests to the results for static pods.
    pub fn complete(&mut self, results: &mut [CniResult]) {
        if let Err(error) = self.scan() {
            debug!("--static-pods {}: {error}", self.directory.display());
            self.files.clear();
        }
        let pods = self.files.values().flat_map(|(_, pods)| pods);
        let pods: BTreeMap<&Key, _> =
            pods.map(|(key, labels, ports)| (key, (labels, ports))).collect();
        for result in results {
            let manifest = pods.get(&result.pod);
            result.manifest = manifest.map(|(labels, ports)| ((*labels).clone(), (*ports).clone()));
        }
    }

    fn scan(&mut self) -> io::Result<()> {
        let mut files = ManifestFiles::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            // The kubelet skips hidden files, too.
            let hidden = path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
            let Some(stamp) = stamp(&path).filter(|_| !hidden) else { continue };
            let known = self.files.remove(&path).filter(|(known, _)| *known == stamp);
            let content = match known {
                Some((_, pods)) => pods,
                None => self.read(&path),
            };
            files.insert(path, (stamp, content));
        }
        self.files = files;
        Ok(())
    }

    /// Returns the pods in a file; none if it cannot be read: their labels stay unknown.
    fn read(&self, path: &Path) -> Vec<(Key, Labels, Vec<NamedPort>)> {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
        let found = read.map_err(|error| error.to_string()).and_then(|_| {
            read_text(&path.to_string_lossy(), &bytes).map_err(|error| error.to_string())
        });
        let (changes, _) = found.unwrap_or_else(|error| {
            debug!("{}: {error}; no labels from it", path.display());
            Default::default()
        });
        let pods = changes
            .into_iter()
            .filter_map(|change| if let Change::Pod(pod) = change { Some(pod) } else { None });
        pods.map(|pod| {
            let name = format!("{}-{}", pod.key.name, self.node);
            (Key::new(pod.key.namespace, name), pod.labels, pod.ports)
        })
        .collect()
    }
}

/// Returns a file's stamp; `None` for anything else.
fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    metadata.is_file().then(|| Stamp::of(&metadata))
}
