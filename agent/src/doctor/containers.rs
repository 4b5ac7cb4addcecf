//! What of manifests netpold itself does not read, and doctor does: the ports that containers list, those that
//! Services lead to, and the images of DaemonSets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use netpold_core::model::{Key, Protocol};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::source::convert::protocol;
use crate::source::decode::decode;
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
    /// Every Service that selects pods.
    pub(super) services: BTreeMap<Key, Service>,
}

/// Where a Service leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Service {
    /// `spec.selector`, not empty.
    pub(super) selector: BTreeMap<String, String>,
    /// `spec.ports`
    pub(super) ports: Vec<TargetPort>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TargetPort {
    /// `port`
    pub(super) port: i32,
    /// `protocol`; absent: TCP
    pub(super) protocol: Protocol,
    /// `targetPort`; absent: `port`
    pub(super) target: Target,
}

/// A port of containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Its name.
    Name(String),
    /// Its number.
    Number(u16),
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
    pub fn of_text(text: &[u8]) -> Result<Self> {
        let mut containers = Self::default();
        containers.add(&String::from_utf8_lossy(text))?;
        Ok(containers)
    }

    /// Adds those of a text.
    fn add(&mut self, text: &str) -> Result<(), document::ReadError> {
        for document in document::parse(text)? {
            if let Some(Value::List(items)) = document.get("items").map(|items| &items.value) {
                let kind = document.text("kind").and_then(|kind| kind.strip_suffix("List"));
                items.iter().for_each(|item| self.node(item, kind));
            } else {
                self.node(&document, None);
            }
        }
        Ok(())
    }

    /// What is no object of these kinds has nothing to tell.
    fn node(&mut self, node: &Node, kind: Option<&str>) {
        match node.text("kind").or(kind) {
            Some("Pod" | "DaemonSet") => {
                if let Ok(object) = decode::<Object>(node) {
                    self.object(object, kind);
                }
            }
            Some("Service") => {
                if let Ok(service) = decode::<api::Service>(node) {
                    self.service(service);
                }
            }
            Some(_) | None => {}
        }
    }

    /// Those of a page of a list, as the API server writes it; the token of the next page.
    ///
    /// # Errors
    /// It is no list.
    pub fn add_page(&mut self, json: &str) -> Result<Option<String>> {
        let list: List<Object> = list(json)?;
        let kind = list.kind.strip_suffix("List");
        list.items.into_iter().flatten().for_each(|object| self.object(object, kind));
        Ok(list.metadata.next)
    }

    /// The same of a list of Services.
    ///
    /// # Errors
    /// It is none.
    pub fn add_services(&mut self, json: &str) -> Result<Option<String>> {
        let list: List<api::Service> = list(json)?;
        list.items.into_iter().flatten().for_each(|service| self.service(service));
        Ok(list.metadata.next)
    }

    fn service(&mut self, service: api::Service) {
        let (metadata, spec) = (service.metadata, service.spec.unwrap_or_default());
        let selector = spec.selector.unwrap_or_default();
        // An ExternalName Service leads to no pod, whatever it selects.
        let (Some(name), false) = (metadata.name, selector.is_empty()) else { return };
        if spec.type_.as_deref() == Some("ExternalName") {
            return;
        }
        let ports = spec.ports.into_iter().flatten().filter_map(target).collect();
        let namespace = metadata.namespace.unwrap_or_else(|| "default".to_owned());
        self.services.insert(Key { namespace, name }, Service { selector, ports });
    }

    /// `kind`: where the object itself does not say it.
    fn object(&mut self, object: Object, kind: Option<&str>) {
        let Object { kind: own, metadata, spec } = object;
        let namespace = metadata.namespace.unwrap_or_else(|| "default".to_owned());
        let key = Key { namespace, name: metadata.name };
        match own.as_deref().or(kind) {
            Some("Pod") => {
                let containers = spec.containers.into_iter().chain(spec.init_containers).flatten();
                let ports = containers.filter_map(|container| container.ports).flatten();
                let ports: BTreeSet<_> = ports.filter_map(Port::number).collect();
                if !ports.is_empty() {
                    self.ports.insert(key, ports);
                }
            }
            Some("DaemonSet") => {
                let containers = spec.template.into_iter().filter_map(|it| it.spec.containers);
                let images = containers.flatten().filter_map(|container| container.image);
                self.daemon_sets.push((key, images.collect()));
            }
            Some(_) | None => {}
        }
    }
}

/// Where a Service's port leads; `None` if it cannot be one.
fn target(port: api::ServicePort) -> Option<TargetPort> {
    let target = match port.target_port {
        None => Target::Number(u16::try_from(port.port).ok()?),
        Some(IntOrString::Int(number)) => Target::Number(u16::try_from(number).ok()?),
        Some(IntOrString::String(name)) => Target::Name(name),
    };
    Some(TargetPort { port: port.port, protocol: protocol(port.protocol.as_deref())?, target })
}

fn list<T: DeserializeOwned>(json: &str) -> Result<List<T>> {
    serde_json::from_str(json).context("the list is not understood")
}

#[derive(Deserialize)]
struct List<T> {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: Metadata,
    items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    kind: Option<String>,
    metadata: Metadata,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    namespace: Option<String>,
    name: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// Of a pod, or of a DaemonSet.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
    template: Option<Template>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Template {
    spec: TemplateSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TemplateSpec {
    containers: Option<Vec<Container>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Container {
    image: Option<String>,
    ports: Option<Vec<Port>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    protocol: Option<String>,
    container_port: i64,
}

impl Port {
    fn number(self) -> Option<(Protocol, u16)> {
        Some((protocol(self.protocol.as_deref())?, u16::try_from(self.container_port).ok()?))
    }
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

    #[test]
    fn services_that_select_pods() {
        let mut containers = Containers::default();
        let text = "
kind: Service
metadata: {name: a, namespace: x}
spec: {selector: {app: a}, ports: [{port: 80}, {port: 53, targetPort: dns, protocol: UDP}, {port: 81, targetPort: 8081}]}
---
{kind: Service, metadata: {name: no-selector, namespace: x}, spec: {ports: [{port: 80}]}}
---
{kind: Service, metadata: {name: odd, namespace: x}, spec: {selector: {app: a}, ports: [{port: 80, targetPort: 70000}]}}
---
{kind: Service, metadata: {name: outside, namespace: x}, spec: {type: ExternalName, selector: {app: a}}}
";
        containers.add(text).unwrap();
        let port = |port, protocol, target| TargetPort { port, protocol, target };
        let ports = vec![
            port(80, Protocol::Tcp, Target::Number(80)),
            port(53, Protocol::Udp, Target::Name("dns".to_owned())),
            port(81, Protocol::Tcp, Target::Number(8081)),
        ];
        assert_eq!(containers.services.len(), 2, "{containers:?}");
        assert_eq!(containers.services[&Key::new("x", "a")].ports, ports);
        assert_eq!(containers.services[&Key::new("x", "odd")].ports, []);
        let page = r#"{"kind":"ServiceList","metadata":{},"items":[{"metadata":{"name":"b","namespace":"x"},
            "spec":{"selector":{"app":"b"},"ports":[{"port":443,"targetPort":"https"}]}}]}"#;
        containers.add_services(page).unwrap();
        let target = Target::Name("https".to_owned());
        assert_eq!(containers.services[&Key::new("x", "b")].ports[0].target, target);
    }

    #[test]
    fn pages_of_the_api_server() {
        // What is nested deep beside them harms nothing.
        let fields = format!("{}1{}", "{\"f:a\":".repeat(500), "}".repeat(500));
        let pod = format!(
            r#"{{"metadata":{{"name":"a","namespace":"x","managedFields":[{fields}]}},
               "spec":{{"containers":[{{"name":"c","ports":[{{"containerPort":80}}]}}]}}}}"#
        );
        let page = |next: &str, items: &str| {
            format!(r#"{{"kind":"PodList","metadata":{{"continue":"{next}"}},"items":{items}}}"#)
        };
        let mut containers = Containers::default();
        let next = containers.add_page(&page("more", &format!("[{pod}]"))).unwrap();
        assert_eq!(next.as_deref(), Some("more"));
        let ports = BTreeSet::from([(Protocol::Tcp, 80)]);
        assert_eq!(containers.ports, BTreeMap::from([(Key::new("x", "a"), ports)]));
        assert_eq!(containers.add_page(&page("", "null")).unwrap().as_deref(), Some(""));
        containers.add_page("[]").unwrap_err();
    }
}
