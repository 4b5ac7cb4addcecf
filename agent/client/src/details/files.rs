//! Details of objects in files.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::api::discovery::v1 as discovery;
use netpold_core::model::Key;
use netpold_kube::convert::DEFAULT_NAMESPACE;
use netpold_kube::decode::decode;
use netpold_kube::document::{Document, DocumentNode, Documents, Value};
use netpold_kube::manifests::complete;

use super::fields::{Details, ServiceCaller};
use super::foreign_kinds::ForeignKind;
use super::manifest::{FileLine, PolicyManifest, RawPolicy};
use super::pod::{injected, key};
use super::service::of_api;
use super::shapes::{RawIngress, RawNamedObject, RawObject, RawServiceCaller};
use crate::offline::{self, Recursive};

impl Details {
    /// Reads the details of the objects of `--manifests`, see [`Details::add`]. Objects without a namespace belong to
    /// `namespace`.
    ///
    /// # Errors
    /// As [`Details::add`].
    pub fn read(path: &Path, namespace: &str, depth: Recursive) -> Result<Self> {
        let mut details = Self::within(namespace);
        details.add("--manifests", path, depth)?;
        Ok(details)
    }

    /// Adds the details of objects in a directory, in one file, or on standard input (`-`), which `option` reads.
    ///
    /// # Errors
    /// The directory or the one file cannot be read.
    pub fn add(&mut self, option: &'static str, path: &Path, depth: Recursive) -> Result<()> {
        if offline::is_standard_input(path) {
            self.add_text(offline::STANDARD_INPUT, &offline::standard_input(option)?);
            return Ok(());
        }
        let is_one = !path.is_dir();
        for file in offline::files(path, depth)? {
            match offline::content(&file) {
                Ok(text) => self.add_text(&offline::name_within(path, &file), &text),
                Err(error) if is_one => return Err(error),
                // The reader of policies reports it.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Adds the details of objects in YAML or JSON, document by document, like the reader of policies, which reports
    /// unreadable documents and repeated keys.
    pub fn add_text(&mut self, file: &str, text: &[u8]) {
        let file: Arc<str> = file.into();
        let mut documents = Documents::new(text);
        while let Some(document) = documents.next(&mut |_, item| Some(item)) {
            if let Ok(Document { node, .. }) = document {
                self.add_node_of(&file, node, None);
            }
        }
    }

    /// Adds a node of a document. `inherited`: version and kind of a list, for items without their own.
    fn add_node_of(
        &mut self,
        file: &Arc<str>,
        node: DocumentNode,
        inherited: Option<(&str, &str)>,
    ) {
        let (version, kind) = inherited.unwrap_or_default();
        let version = node.text("apiVersion").unwrap_or(version).to_owned();
        let kind = node.text("kind").unwrap_or(kind).to_owned();
        if node.get("items").is_some() && kind.ends_with("List") {
            let kind = kind.trim_end_matches("List");
            let inherited = (!kind.is_empty()).then_some((version.as_str(), kind));
            let Value::Map(entries) = node.value else { return };
            let items = entries.into_iter().find(|entry| entry.key == "items");
            let Some(Value::List(items)) = items.map(|items| items.node.value) else { return };
            items.into_iter().for_each(|item| self.add_node_of(file, item, inherited));
            return;
        }
        self.add_object(file, node, &version, &kind);
    }

    /// Adds an object; other kinds are ignored.
    fn add_object(&mut self, file: &Arc<str>, mut node: DocumentNode, version: &str, kind: &str) {
        complete(&mut node, self.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE));
        let source = FileLine { file: Arc::clone(file), line: node.line };
        let group = version.split_once('/').map_or("", |(group, _)| group);
        if let Some(foreign) = ForeignKind::of(group, kind) {
            let metadata = decode::<RawNamedObject>(&node).unwrap_or_default().metadata;
            self.add_foreign(foreign, &metadata, Some(source));
            return;
        }
        match (version, kind) {
            ("v1", "Service") => {
                if let Ok(service) = decode::<api::Service>(&node) {
                    let key = of_api(&service.metadata);
                    self.sources.insert(("Service", key), source);
                    self.add_service(service);
                }
            }
            ("v1", "Endpoints") => {
                if let Ok(endpoints) = decode::<api::Endpoints>(&node) {
                    self.add_endpoints(endpoints);
                }
            }
            ("discovery.k8s.io/v1", "EndpointSlice") => {
                if let Ok(slice) = decode::<discovery::EndpointSlice>(&node) {
                    self.add_endpoint_slice(slice);
                }
            }
            ("networking.k8s.io/v1", "NetworkPolicy")
            | ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy") => {
                self.add_policy_node(file, node, kind);
            }
            ("networking.k8s.io/v1", "Ingress") => {
                if let Ok(ingress) = decode::<RawIngress>(&node) {
                    self.add_ingress(ingress, &source);
                }
            }
            _ if CALLERS.contains(&(group, kind)) => {
                if let Ok(caller) = decode::<RawServiceCaller>(&node) {
                    self.add_caller(kind, caller, Some(source));
                }
            }
            _ => self.add_plain(&node, source, kind),
        }
    }

    fn add_ingress(&mut self, ingress: RawIngress, source: &FileLine) {
        let own = key(&ingress.metadata);
        for service in ingress.services() {
            let key = Key::new(own.namespace.clone(), service.name.clone());
            let by = format!("Ingress {own}");
            let Some(port) = service.port() else { continue };
            let caller = || ServiceCaller { by, source: Some(source.clone()) };
            self.routed.entry((key, port)).or_insert_with(caller);
        }
    }

    /// Adds the Services that the API server calls because of an object.
    pub(super) fn add_caller(
        &mut self,
        kind: &str,
        caller: RawServiceCaller,
        source: Option<FileLine>,
    ) {
        let by = format!("{kind} {}", caller.metadata.name);
        for service in caller.services() {
            let key = Key::new(service.namespace, service.name);
            let called = ServiceCaller { by: by.clone(), source: source.clone() };
            self.called.entry((key, service.port.unwrap_or(443))).or_insert(called);
        }
    }

    fn add_plain(&mut self, node: &DocumentNode, source: FileLine, kind: &str) {
        let Some(kind) = PLAIN.iter().find(|it| **it == kind) else { return };
        let Ok(object) = decode::<RawObject>(node) else { return };
        self.sources.insert((kind, key(&object.metadata)), source);
        self.add_plain_object(kind, object);
    }

    /// Adds a Pod, a workload, a Node or a Namespace.
    pub(super) fn add_plain_object(&mut self, kind: &str, object: RawObject) {
        match kind {
            "Pod" => self.add_pod(object),
            "Node" => self.add_node(&object),
            "Namespace" => {
                if object.status.phase.as_deref() == Some("Terminating") {
                    self.terminating.insert(object.metadata.name.clone());
                }
                if let Some(mesh) = injected(&object.metadata) {
                    self.meshed.insert(object.metadata.name, mesh);
                }
            }
            kind => self.add_workload(kind, object),
        }
    }

    fn add_policy_node(&mut self, file: &Arc<str>, node: DocumentNode, kind: &str) {
        let spec = decode::<RawPolicy>(&node).unwrap_or_default().spec;
        let Some(metadata) = node.get("metadata") else { return };
        let field = |field: &str| metadata.text(field).unwrap_or_default();
        let key = Key::new(field("namespace"), field("name"));
        let manifest = PolicyManifest::new(spec, Some((Arc::clone(file), node)));
        if kind == "NetworkPolicy" {
            self.policies.insert(key, manifest);
        } else {
            self.cluster_policies.insert(key.name, manifest);
        }
    }
}

/// Kinds with the shape of [`RawServiceCaller`], by group.
const CALLERS: [(&str, &str); 4] = [
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
    ("apiregistration.k8s.io", "APIService"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
];

/// Kinds with the shape of [`RawObject`].
const PLAIN: [&str; 13] = [
    "Pod",
    "Node",
    "Namespace",
    "DaemonSet",
    "Deployment",
    "StatefulSet",
    "ReplicaSet",
    "ReplicationController",
    "CloneSet",
    "Rollout",
    "DeploymentConfig",
    "Job",
    "CronJob",
];
