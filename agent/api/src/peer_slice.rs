//! Pods as peers of policies, in slices: `PeerSlice` of `netpold.io/v1alpha1`.
//!
//! The controller writes these objects, agents follow them in place of the pods of other nodes. Three kinds of objects
//! share the type, so that one watch delivers them in the order of their writes: slices with pods (`peers-0`, …), the
//! [`INDEX`] and the [`HEARTBEAT`]. An agent that received a heartbeat has received every earlier write.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use netpold_core::model::{Labels, NamedPort, SecondaryInterface};
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};

use crate::crd::{API_VERSION, GROUP, VERSION, used_metadata};
use crate::resource;

/// Name of the object with the vocabulary.
pub const INDEX: &str = "index";
/// Name of the object that the controller renews.
pub const HEARTBEAT: &str = "heartbeat";
/// Beginning of the names of slices with pods; the slice's number follows.
pub const SLICE_PREFIX: &str = "peers-";

/// Pods as peers of policies, or information about all slices.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct PeerSlice {
    /// Metadata with the name.
    #[serde(deserialize_with = "used_metadata")]
    pub metadata: ObjectMeta,
    /// Content.
    #[serde(default)]
    pub spec: PeerSliceSpec,
}

/// With `apiVersion` and `kind`, which the server requires in a body.
impl Serialize for PeerSlice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("PeerSlice", 4)?;
        object.serialize_field("apiVersion", API_VERSION)?;
        object.serialize_field("kind", <Self as k8s_openapi::Resource>::KIND)?;
        object.serialize_field("metadata", &self.metadata)?;
        object.serialize_field("spec", &self.spec)?;
        object.end()
    }
}

/// Content of a [`PeerSlice`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerSliceSpec {
    /// Distinct `metadata.namespace` of the pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Distinct label sets of the pods, reduced to the vocabulary.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Labels>,
    /// Distinct lists of named ports of the pods, reduced to the vocabulary.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Vec<NamedPort>>,
    /// Distinct `spec.nodeName` of hostNetwork pods and of pods with claims; other pods have none here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// The pods in binary form, as base64; `netpold_slices::encode` describes the form.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pods: String,
    /// Claims of pods to addresses on further networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<PeerClaims>,
    /// Of the object [`INDEX`]: the names to which all slices are reduced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<PeerVocabulary>,
    /// Of the object [`HEARTBEAT`]: the state of the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<PeerHeartbeat>,
}

/// Claims of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerClaims {
    /// Index of the pod in the slice.
    pub pod: u32,
    /// The interfaces.
    pub interfaces: Vec<SecondaryInterface>,
}

/// Names by which policies distinguish pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerVocabulary {
    /// Label keys in pod selectors of peers, sorted.
    pub label_keys: BTreeSet<String>,
    /// Names of ports in egress rules, sorted.
    pub port_names: BTreeSet<String>,
    /// Namespaces whose policies have names that wait, since the namespace's former names take up its room, sorted.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub crowded_namespaces: BTreeSet<String>,
    /// Label keys that slices get at present or next, if that takes long, sorted.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub coming_label_keys: BTreeSet<String>,
    /// Names of ports likewise.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub coming_port_names: BTreeSet<String>,
}

/// Sign of life of the controller, while every change of a pod is in the slices a bounded time after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerHeartbeat {
    /// Number that changes with each renewal.
    pub number: i64,
    /// `resourceVersion` up to which changes of pods are in the slices; 0: unknown.
    pub pods_version: u64,
}

resource!(
    PeerSlice,
    k8s_openapi::ClusterResourceScope,
    "PeerSlice",
    API_VERSION,
    GROUP,
    VERSION,
    "peerslices"
);
