//! A directory of Kubernetes objects, as `netpold run --manifests` reads it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::node::TestNode;
use crate::pod::TestPod;

/// A directory of manifests. Files appear whole: written under a temporary name and renamed.
#[derive(Clone, Debug)]
pub struct Manifests {
    directory: PathBuf,
}

impl Manifests {
    /// Opens a directory; makes it if absent.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn new(directory: impl Into<PathBuf>) -> Result<Self> {
        let directory = directory.into();
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(Self { directory })
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes the Namespaces (see [`namespace`]), Nodes and Pods of the cluster, as `cluster.json`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_cluster<'a>(
        &self,
        namespaces: &[Value],
        nodes: impl IntoIterator<Item = &'a TestNode>,
        pods: impl IntoIterator<Item = &'a TestPod>,
    ) -> Result<()> {
        let mut items = namespaces.to_vec();
        items.extend(nodes.into_iter().map(TestNode::manifest));
        items.extend(pods.into_iter().map(TestPod::manifest));
        self.write_objects("cluster.json", &items)
    }

    /// Writes objects as one `List`, into a file with the suffix `.json`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_objects(&self, file: &str, items: &[Value]) -> Result<()> {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        self.write(file, &serde_json::to_string_pretty(&list)?)
    }

    /// Writes a file of any text, such as `policies.yaml`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.directory.join(file);
        let beside = self.directory.join(format!(".{file}.tmp"));
        fs::write(&beside, text)
            .and_then(|()| fs::rename(&beside, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes a file.
    ///
    /// # Errors
    /// When the file does not exist.
    pub fn remove(&self, file: &str) -> Result<()> {
        let path = self.directory.join(file);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
    }
}

/// A Namespace object with labels.
#[must_use]
pub fn namespace(name: &str, labels: &[(&str, &str)]) -> Value {
    let mut all = serde_json::Map::new();
    all.insert("kubernetes.io/metadata.name".into(), name.into());
    all.extend(labels.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))));
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": all } })
}

/// The marker of a number in a node's status: an agent that lists it has processed the whole state written together
/// with it. The marker is a pod that never has an address, so it affects no verdict.
#[must_use]
pub fn marker(node: &str, number: u32) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": MARKERS,
            "name": format!("{node}-{number}"),
            "uid": format!("{node}-{number}"),
        },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": "Pending" },
    })
}

/// Namespace of the pods made by [`marker`].
pub(crate) const MARKERS: &str = "netpold-marker";
