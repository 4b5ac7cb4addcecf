//! Readable parts of a manifest's object that cannot be decoded, as in [`super::json`] for an API server's object.

use netpold_core::cluster::ObjectKey;
use netpold_core::model::{Change, Key};

use super::converted::Kind;
use super::json::{ObjectIdentity, closed};
use super::problem::FieldProblem;
use crate::document::{DocumentNode, ReadError};

/// An object that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndecodableObject {
    /// Key of the object; `None` if it cannot be read.
    pub key: Option<ObjectKey>,
    /// Replacement if no earlier version is known: a policy that grants nothing.
    pub change: Option<Change>,
    /// Error of the object.
    pub error: ReadError,
    /// Problems to report if `change` takes effect, with the consequence.
    pub problems: Vec<ReadError>,
    /// Whether the object may isolate unknown pods.
    pub may_isolate: bool,
}

/// Returns the readable parts of an object that [`super::manifest`] refuses.
#[must_use]
pub fn refused(node: &DocumentNode, error: ReadError) -> UndecodableObject {
    let Some(kind) = meant(node) else {
        return UndecodableObject {
            key: None,
            change: None,
            error,
            problems: Vec::new(),
            may_isolate: true,
        };
    };
    let identity = identity(node);
    let key = key(kind, &identity);
    let problem = FieldProblem::new("", error.reason.clone());
    let (change, problems) = match &key {
        Some(_) => closed(kind, &identity, problem, |shape| Some(shape.part_of(node))),
        None => (None, vec![problem]),
    };
    let (line, may_isolate) = (error.line, kind.is_policy() && change.is_none());
    let problems = problems.into_iter().map(|problem| {
        let line = if problem.path.is_empty() { line } else { node.line_of(&problem.path) };
        ReadError::new(line, problem.to_string())
    });
    UndecodableObject { key, change, problems: problems.collect(), error, may_isolate }
}

/// Returns the kind of an object, or the kind that its author most likely intended; `None` if it is not an object.
fn meant(node: &DocumentNode) -> Option<Kind> {
    let (version, kind) = (node.text("apiVersion")?, node.text("kind")?);
    Some(match (kind, version.split_once('/').map(|(group, _)| group)) {
        ("Namespace", _) => Kind::Namespace,
        ("Node", _) => Kind::Node,
        ("Pod", _) => Kind::Pod,
        ("Service", _) => Kind::Service,
        ("EndpointSlice", _) => Kind::EndpointSlice,
        ("ClusterNetworkPolicy", _) | (_, Some("policy.networking.k8s.io")) => {
            Kind::ClusterNetworkPolicy
        }
        _ => Kind::NetworkPolicy,
    })
}

fn identity(node: &DocumentNode) -> ObjectIdentity {
    let text = |field: &str| node.get("metadata")?.text(field).map(str::to_owned);
    ObjectIdentity { namespace: text("namespace"), name: text("name"), ..ObjectIdentity::default() }
}

fn key(kind: Kind, identity: &ObjectIdentity) -> Option<ObjectKey> {
    let name = identity.name.clone().filter(|name| !name.is_empty())?;
    let named = |name| identity.namespace.clone().map(|namespace| Key::new(namespace, name));
    Some(match kind {
        Kind::Namespace => ObjectKey::Namespace(name),
        Kind::Node => ObjectKey::Node(name),
        Kind::ClusterNetworkPolicy => ObjectKey::ClusterPolicy(name),
        Kind::Pod => ObjectKey::Pod(named(name)?),
        Kind::Service => ObjectKey::Service(named(name)?),
        Kind::EndpointSlice => ObjectKey::EndpointSlice(named(name)?),
        Kind::NetworkPolicy => ObjectKey::Policy(named(name)?),
    })
}
