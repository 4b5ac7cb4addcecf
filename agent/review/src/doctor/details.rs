//! Object fields that only doctor and explain read, not enforcement: containers' ports, targets of Services, policies
//! as written, node addresses in annotations, and policies of other APIs.

mod files;
mod manifest;
mod node;
mod pages;
mod pod;
mod service;
mod shapes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_core::model::{Key, Labels};

pub(crate) use manifest::{FileLine, PolicyManifest};
pub(crate) use node::NodeAddress;
pub(crate) use pages::{PAGES, foreign_groups, foreign_lists};
pub(super) use pod::{ContainerProgram, IgnoredPorts, Mesh, PastProxy, PodDetails};
pub(crate) use service::{
    EndpointPod, EndpointsPort, Exposure, PortReference, WrittenService, WrittenServicePort,
};

use super::foreign_kinds::{ForeignKind, ForeignPolicies};

/// Object fields that enforcement does not read.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// Namespace of objects of files that are written without one; `None`: `default`.
    pub(crate) namespace: Option<String>,
    /// Pods with any relevant field.
    pub(super) pods: BTreeMap<Key, PodDetails>,
    /// Containers of DaemonSets, and of Deployments and pods on the host's network.
    pub(super) running: Vec<RunningContainers>,
    /// Pod templates of workloads.
    pub(super) templates: Vec<WorkloadTemplate>,
    /// Services with a selector, or with hand-written endpoints.
    pub(crate) services: BTreeMap<Key, WrittenService>,
    /// `spec.externalName` of Services of that type.
    pub(crate) external_names: BTreeMap<Key, String>,
    /// `v1` Endpoints, by name of the Service.
    pub(crate) endpoints: BTreeMap<Key, Vec<EndpointsPort>>,
    /// Pods of endpoints, by Service and address.
    pub(crate) endpoint_pods: BTreeMap<(Key, IpAddr), EndpointPod>,
    /// NetworkPolicies as written.
    pub(crate) policies: BTreeMap<Key, PolicyManifest>,
    /// ClusterNetworkPolicies as written, by name.
    pub(super) cluster_policies: BTreeMap<String, PolicyManifest>,
    /// File and line of other objects, by kind and name.
    pub(super) sources: BTreeMap<(&'static str, Key), FileLine>,
    /// Namespaces with annotations that put their pods into a mesh.
    pub(super) meshed: BTreeMap<String, Mesh>,
    /// Nodes of k3s, with whether the arguments switch its policy enforcement off.
    pub(super) k3s_nodes: BTreeMap<String, bool>,
    /// Namespaces that are being deleted.
    pub(super) terminating: BTreeSet<String>,
    /// Addresses of nodes beyond their `status.addresses`, also from the status of pods, by node.
    pub(crate) nodes: BTreeMap<String, Vec<NodeAddress>>,
    /// Those of [`Self::nodes`] that are of tunnels: packets of hostNetwork pods to pods of other nodes may come from
    /// there.
    pub(crate) tunnels: BTreeMap<String, Vec<IpAddr>>,
    /// Services that the API server calls, with their ports, and the objects by which it calls them: webhook
    /// configurations, `APIService` and `CustomResourceDefinition` objects.
    pub(super) called: BTreeMap<(Key, u16), ServiceCaller>,
    /// Services with their ports to which objects lead clients, and the first such Ingress.
    pub(super) routed: BTreeMap<(Key, RoutedPort), ServiceCaller>,
    /// Policies of other APIs.
    pub(crate) foreign: BTreeMap<&'static ForeignKind, ForeignPolicies>,
}

/// Port of a Service as an Ingress gives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RoutedPort {
    Number(i32),
    Name(String),
}

/// Object by which the API server calls a Service, or which leads clients to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceCaller {
    /// Kind and name.
    pub(super) by: String,
    pub(super) source: Option<FileLine>,
}

/// Containers with the same images and commands, of one workload or of pods of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunningContainers {
    /// `DaemonSet`, `Deployment` or `Pod`
    pub(super) kind: &'static str,
    /// Key of the workload, or of the first pod.
    pub(super) key: Key,
    pub(super) containers: Vec<ContainerProgram>,
    /// Number of such pods.
    pub(super) count: usize,
}

/// Pod template of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkloadTemplate {
    /// Kind and key of the workload.
    pub(super) workload: String,
    /// Labels of the workload itself.
    pub(super) workload_labels: Labels,
    pub(super) namespace: String,
    pub(super) labels: Labels,
    pub(super) host_network: bool,
    pub(super) details: PodDetails,
}

#[cfg(test)]
mod tests;
