//! Names and labels, and the objects that are little else: Namespaces and Nodes.

use std::net::IpAddr;

use litemap::LiteMap;
use serde::{Deserialize, Serialize, Serializer};

/// Namespace and name of a namespaced object.
#[cfg_attr(test, derive(Default))]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
}

impl Key {
    /// Key of `namespace/name`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `metadata.labels`. Sorted in a vector: a pod has a few, and a tree's node has room for eleven.
pub type Labels = LiteMap<String, String>;

/// As a map, also if there are none (for which [`LiteMap`] would write a list).
pub(super) fn as_map<S: Serializer>(labels: &Labels, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(labels.iter())
}

/// A Namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Namespace {
    /// `metadata.name`
    pub name: String,
    /// `metadata.labels`; the converter adds `kubernetes.io/metadata.name` where it is missing, as
    /// the API server does.
    #[serde(serialize_with = "as_map")]
    pub labels: Labels,
}

/// A Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Node {
    /// `metadata.name`
    pub name: String,
    /// `status.addresses` of every type that is an address (InternalIP, ExternalIP).
    pub addresses: Vec<IpAddr>,
    /// `metadata.labels`
    #[serde(default, serialize_with = "as_map", skip_serializing_if = "LiteMap::is_empty")]
    pub labels: Labels,
}
