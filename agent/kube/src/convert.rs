//! Conversion of Kubernetes objects to netpold's model: the only module that names Kubernetes types.
//!
//! It decides the meaning of absent and of empty fields, as the API defines them, and the values that are refused;
//! after it every value has one meaning.

mod cluster_policy;
mod converted;
mod fields;
mod json;
mod metadata;
mod networks;
mod object;
mod pod;
mod policy;
mod port;
mod problem;
mod refused;
mod selector;
mod service;
mod workload;

use netpold_core::model::Change;

pub use self::converted::{Converted, Kind};
pub use self::json::{ObjectIdentity, Read, read};
pub use self::metadata::DEFAULT_NAMESPACE;
use self::object::object;
pub use self::port::protocol;
pub use self::problem::{FieldProblem, Unknown};
pub use self::refused::{UndecodableObject, refused};
pub use self::service::SERVICE_NAME_LABEL;
pub(crate) use self::workload::is_workload;
pub use self::workload::{ConvertedTemplate, template};
use crate::document::{DocumentNode, ReadError};

/// Kinds of `networking.k8s.io` besides NetworkPolicy; any other kind is a misspelling.
const NETWORKING_KINDS: [&str; 4] = ["Ingress", "IngressClass", "IPAddress", "ServiceCIDR"];

/// Kinds of `policy.networking.k8s.io` besides ClusterNetworkPolicy: its predecessors.
const POLICY_NETWORKING_KINDS: [&str; 2] = ["AdminNetworkPolicy", "BaselineAdminNetworkPolicy"];

/// Content of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manifest {
    /// An object that policies depend on.
    Object(Box<Converted>),
    /// An object of another kind, by `apiVersion` and `kind`.
    Other(String, String),
}

/// Converts a manifest's object.
///
/// # Errors
/// The document is not a Kubernetes object, or a value has the wrong type.
pub fn manifest(node: &DocumentNode) -> Result<Manifest, ReadError> {
    let needed = |field: &str| {
        node.text(field).ok_or_else(|| {
            ReadError::new(node.line, format!("not a Kubernetes object: no `{field}`"))
        })
    };
    let (kind, version) = (needed("kind")?, needed("apiVersion")?);
    let kind = match (version, kind) {
        ("networking.k8s.io/v1", "NetworkPolicy") => Kind::NetworkPolicy,
        ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy") => Kind::ClusterNetworkPolicy,
        ("v1", "Namespace") => Kind::Namespace,
        ("v1", "Node") => Kind::Node,
        ("v1", "Pod") => Kind::Pod,
        ("v1", "Service") => Kind::Service,
        ("discovery.k8s.io/v1", "EndpointSlice") => Kind::EndpointSlice,
        _ => return other(node, version, kind),
    };
    let used = kind.shape().part_of(node);
    let unknown = fields::unknown(kind, node);
    let mut converted = object(kind, &used, &unknown).map_err(|mismatch| mismatch.at(node))?;
    if let Change::Pod(pod) = &mut converted.change {
        pod.workload = workload::owner(node, &pod.labels).map(Box::new);
    }
    if !kind.is_policy() {
        converted.problems.extend(fields::unknown_metadata(node).into_iter().map(|u| u.problem));
    }
    Ok(Manifest::Object(Box::new(converted)))
}

/// Ignores objects of other kinds, unless they can only be one of the kinds above with a misspelled name or version.
fn other(node: &DocumentNode, version: &str, kind: &str) -> Result<Manifest, ReadError> {
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let expected = match kind {
        "NetworkPolicy" if !group.contains('.') || group.ends_with("k8s.io") => {
            "networking.k8s.io/v1"
        }
        "ClusterNetworkPolicy" if !group.contains('.') || group.ends_with("k8s.io") => {
            "policy.networking.k8s.io/v1alpha2"
        }
        "Namespace" | "Node" | "Pod" | "Service" if group.is_empty() => "v1",
        "EndpointSlice" if group.is_empty() || group == "discovery.k8s.io" => "discovery.k8s.io/v1",
        _ if group == "networking.k8s.io" && !NETWORKING_KINDS.contains(&kind) => {
            let reason = format!("kind: {version} has no {kind}, but NetworkPolicy");
            return Err(ReadError::new(node.line_of("kind"), reason));
        }
        _ if group == "policy.networking.k8s.io" && !POLICY_NETWORKING_KINDS.contains(&kind) => {
            let reason = format!("kind: {version} has no {kind}, but ClusterNetworkPolicy");
            return Err(ReadError::new(node.line_of("kind"), reason));
        }
        _ => return Ok(Manifest::Other(version.to_owned(), kind.to_owned())),
    };
    let reason = format!("apiVersion: {kind} is read as {expected}, not {version}");
    Err(ReadError::new(node.line_of("apiVersion"), reason))
}

#[cfg(test)]
mod tests;
