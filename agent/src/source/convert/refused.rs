//! What is left of a manifest's object that cannot be decoded, as [`super::json`] has it of an API server's.

use netpold_core::cluster::ObjectKey;
use netpold_core::model::{Change, Key};

use super::json::closed;
use super::{Identity, Kind, Problem};
use crate::source::document::{Node, ReadError};

/// An object that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which one; `None`: that cannot be read.
    pub key: Option<ObjectKey>,
    /// What counts in its place, if nothing better is known: a policy that grants nothing.
    pub change: Option<Change>,
    /// What is wrong with it.
    pub error: ReadError,
    /// What is wrong with it, and what that means where `change` counts.
    pub problems: Vec<ReadError>,
    /// It may isolate pods, and nobody can tell which.
    pub may_isolate: bool,
}

/// What is left of an object that [`super::manifest`] refuses.
#[must_use]
pub fn refused(node: &Node, error: ReadError) -> Refused {
    let Some(kind) = meant(node) else {
        return Refused { key: None, change: None, error, problems: Vec::new(), may_isolate: true };
    };
    let identity = identity(node);
    let key = key(kind, &identity);
    let problem = Problem::new("", error.reason.clone());
    let (change, problems) = match &key {
        Some(_) => closed(kind, &identity, problem, |shape| Some(shape.part_of(node))),
        None => (None, vec![problem]),
    };
    let (line, may_isolate) = (error.line, kind.is_policy() && change.is_none());
    let problems = problems.into_iter().map(|problem| {
        let line = if problem.path.is_empty() { line } else { node.line_of(&problem.path) };
        ReadError::new(line, problem.to_string())
    });
    Refused { key, change, problems: problems.collect(), error, may_isolate }
}

/// The kind that an object is of, or that its author had in mind; `None`: it is no object.
fn meant(node: &Node) -> Option<Kind> {
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

fn identity(node: &Node) -> Identity {
    let text = |field: &str| node.get("metadata")?.text(field).map(str::to_owned);
    Identity { namespace: text("namespace"), name: text("name"), ..Identity::default() }
}

fn key(kind: Kind, identity: &Identity) -> Option<ObjectKey> {
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
