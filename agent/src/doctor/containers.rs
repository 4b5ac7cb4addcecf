//! What of manifests netpold itself does not read, and doctor does: the ports that containers list, and
//! the images of DaemonSets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use netpold_core::model::{Key, Protocol};

use crate::source::document::{self, Node, Value};

/// Endings of the files that are read, as `--manifests` does.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// What pods' containers are, beyond what policy reads of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Containers {
    /// Every `containerPort` of each pod that lists any.
    pub(super) ports: BTreeMap<Key, BTreeSet<(Protocol, u16)>>,
    /// Each DaemonSet, with the images of its containers.
    pub(super) daemon_sets: Vec<(Key, Vec<String>)>,
}

impl Containers {
    /// Those of a directory's objects.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(directory: &Path) -> Result<Self> {
        let mut containers = Self::default();
        let shown = directory.display();
        let entries = fs::read_dir(directory).with_context(|| shown.to_string())?;
        for entry in entries {
            let path = entry.with_context(|| shown.to_string())?.path();
            let hidden =
                path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
            let ending = path.extension().and_then(|ending| ending.to_str());
            if hidden || !ending.is_some_and(|ending| ENDINGS.contains(&ending)) {
                continue;
            }
            let shown = path.display();
            let text = fs::read_to_string(&path).with_context(|| shown.to_string())?;
            containers.add(&text).map_err(|error| anyhow!("{shown}: {error}"))?;
        }
        Ok(containers)
    }

    /// Those of the objects in a text, YAML or JSON.
    ///
    /// # Errors
    /// It is neither.
    pub fn add(&mut self, text: &str) -> Result<(), document::ReadError> {
        for document in document::parse(text)? {
            if let Some(Value::List(items)) = document.get("items").map(|items| &items.value) {
                let kind = document.text("kind").and_then(|kind| kind.strip_suffix("List"));
                items.iter().for_each(|item| self.object(item, kind));
            } else {
                self.object(&document, None);
            }
        }
        Ok(())
    }

    /// `kind`: where the object itself does not say it.
    fn object(&mut self, object: &Node, kind: Option<&str>) {
        let Some(key) = key(object) else { return };
        match object.text("kind").or(kind) {
            Some("Pod") => {
                let ports: BTreeSet<_> = containers(object.get("spec"))
                    .flat_map(|container| list(container.get("ports")))
                    .filter_map(port)
                    .collect();
                if !ports.is_empty() {
                    self.ports.insert(key, ports);
                }
            }
            Some("DaemonSet") => {
                let template = object.get("spec").and_then(|spec| spec.get("template"));
                let spec = template.and_then(|template| template.get("spec"));
                let images = containers(spec).filter_map(|container| container.text("image"));
                self.daemon_sets.push((key, images.map(str::to_owned).collect()));
            }
            Some(_) | None => {}
        }
    }
}

/// An object without namespace is in `default`.
fn key(object: &Node) -> Option<Key> {
    let metadata = object.get("metadata")?;
    let namespace = metadata.text("namespace").unwrap_or("default");
    Some(Key::new(namespace, metadata.text("name")?))
}

fn containers(spec: Option<&Node>) -> impl Iterator<Item = &Node> {
    let fields = ["containers", "initContainers"].into_iter();
    fields.flat_map(move |field| list(spec.and_then(|spec| spec.get(field))))
}

fn list(node: Option<&Node>) -> &[Node] {
    match node.map(|node| &node.value) {
        Some(Value::List(items)) => items,
        Some(
            Value::Null
            | Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Text(_)
            | Value::Map(_),
        )
        | None => &[],
    }
}

fn port(port: &Node) -> Option<(Protocol, u16)> {
    let protocol = match port.text("protocol") {
        None | Some("TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(_) => return None,
    };
    let Value::Int(number) = port.get("containerPort")?.value else { return None };
    Some((protocol, u16::try_from(number).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_images() {
        let mut containers = Containers::default();
        let text = "
kind: Pod
metadata: {name: a, namespace: x}
spec:
  containers:
  - {name: one, ports: [{containerPort: 80}, {containerPort: 53, protocol: UDP}]}
  - {name: two}
  initContainers: [{name: side, ports: [{name: s, containerPort: 90, protocol: SCTP}]}]
---
{kind: Pod, metadata: {name: none, namespace: x}, spec: {containers: [{name: one}]}}
---
kind: DaemonSetList
items:
- metadata: {name: kindnet, namespace: kube-system}
  spec: {template: {spec: {containers: [{image: docker.io/kindest/kindnetd:v1}, {name: no-image}]}}}
---
{kind: Pod, metadata: 3, spec: [], items: 4}
---
{kind: Pod, metadata: {name: odd}, spec: {containers: [{ports: [7, {containerPort: 70000}, {containerPort: x}]}, 8]}}
";
        containers.add(text).unwrap();
        let ports =
            BTreeSet::from([(Protocol::Tcp, 80), (Protocol::Udp, 53), (Protocol::Sctp, 90)]);
        assert_eq!(containers.ports, BTreeMap::from([(Key::new("x", "a"), ports)]));
        let image = "docker.io/kindest/kindnetd:v1".to_owned();
        assert_eq!(containers.daemon_sets, [(Key::new("kube-system", "kindnet"), vec![image])]);
    }
}
