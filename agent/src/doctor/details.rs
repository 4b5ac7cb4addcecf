//! Fields of objects that netpold itself does not read, and doctor and explain do: the ports that containers list,
//! where Services lead, policies as they were written, addresses that node agents note, and policies of other APIs.

mod files;
mod manifest;
mod node;
mod pages;
mod pod;
mod service;
mod shapes;

use std::collections::BTreeMap;

use netpold_core::model::{Key, Labels};

pub(crate) use manifest::{Manifest, Source};
pub(crate) use node::NodeAddress;
pub(crate) use pages::{PAGES, foreign_groups, foreign_lists};
pub(super) use pod::{Container, Mesh, PodDetails};
pub(super) use service::{Backend, Service, Target, TargetPort};

use super::foreign_kinds::{ForeignKind, ForeignPolicies};

/// What there is to know of objects beyond what policy reads of them.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// Pods that have anything of interest.
    pub(super) pods: BTreeMap<Key, PodDetails>,
    /// Containers of DaemonSets, and of pods on the host's network.
    pub(super) running: Vec<Running>,
    /// Pods that workloads have or may have at another time.
    pub(super) templates: Vec<Template>,
    /// Services that lead to pods, or to endpoints that somebody wrote.
    pub(super) services: BTreeMap<Key, Service>,
    /// `spec.externalName` of Services of that type.
    pub(crate) external_names: BTreeMap<Key, String>,
    /// `v1` Endpoints, by the name of their Service.
    pub(super) endpoints: BTreeMap<Key, Vec<Backend>>,
    /// NetworkPolicies as they were written.
    pub(crate) policies: BTreeMap<Key, Manifest>,
    /// ClusterNetworkPolicies as they were written; they have no namespace.
    pub(super) cluster_policies: BTreeMap<String, Manifest>,
    /// Files and lines of other objects, by kind and name.
    pub(super) sources: BTreeMap<(&'static str, Key), Source>,
    /// Namespaces whose annotations put pods into a mesh.
    pub(super) meshed: BTreeMap<String, Mesh>,
    /// Addresses of nodes that their `status.addresses` lack, by node.
    pub(crate) nodes: BTreeMap<String, Vec<NodeAddress>>,
    /// Policies of other APIs.
    pub(crate) foreign: BTreeMap<&'static ForeignKind, ForeignPolicies>,
}

/// Containers with the same images and commands, of one DaemonSet or of pods of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Running {
    /// `DaemonSet` or `Pod`
    pub(super) kind: &'static str,
    /// Of pods: of the first.
    pub(super) key: Key,
    pub(super) containers: Vec<Container>,
    /// How many there are.
    pub(super) count: usize,
}

/// A workload's pod template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    pub(super) namespace: String,
    pub(super) labels: Labels,
    pub(super) host_network: bool,
    pub(super) details: PodDetails,
}

#[cfg(test)]
mod tests;
