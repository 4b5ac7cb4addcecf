//! Names and labels, and objects with little else: Namespaces and Nodes.

use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ipnet::IpNet;
use litemap::LiteMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::denial::Denial;

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

/// `metadata.labels`, sorted in a vector: a pod has only a few, and a tree node would have room for eleven. Clones
/// share memory until one of them changes, so the pods of a ReplicaSet store their labels once.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Arc<LiteMap<String, String>>);

impl Labels {
    /// No labels.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Deref for Labels {
    type Target = LiteMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Labels {
    fn deref_mut(&mut self) -> &mut Self::Target {
        Arc::make_mut(&mut self.0)
    }
}

impl FromIterator<(String, String)> for Labels {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(labels: I) -> Self {
        Self(Arc::new(labels.into_iter().collect()))
    }
}

/// Serialized as a map, even if empty (an empty [`LiteMap`] would be a list).
impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        LiteMap::deserialize(deserializer).map(|labels| Self(Arc::new(labels)))
    }
}

/// A Namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Namespace {
    /// `metadata.name`
    pub name: String,
    /// `metadata.labels`; the converter adds `kubernetes.io/metadata.name` where it is missing, as
    /// the API server does.
    pub labels: Labels,
    /// Annotation `netpold.io/deny`, for the policies without one; `None` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denial: Option<Denial>,
}

/// A Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Node {
    /// `metadata.name`
    pub name: String,
    /// `status.addresses` of every type with an address (InternalIP, ExternalIP).
    pub addresses: Vec<IpAddr>,
    /// `metadata.labels`
    #[serde(default, skip_serializing_if = "no_labels")]
    pub labels: Labels,
    /// `spec.podCIDRs`, else `spec.podCIDR`: where pods of the node have their addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_ranges: Vec<IpNet>,
}

fn no_labels(labels: &Labels) -> bool {
    labels.is_empty()
}
