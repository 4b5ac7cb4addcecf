//! Types of [`Details`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_core::model::{Key, Labels, Protocol};

use super::foreign_kinds::{ForeignKind, ForeignPolicies};
use super::manifest::{FileLine, PolicyManifest};

/// Object fields that enforcement does not read.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// Namespace of objects of files that are written without one; `None`: `default`.
    pub namespace: Option<String>,
    /// Pods with any relevant field.
    pub pods: BTreeMap<Key, PodDetails>,
    /// Containers of DaemonSets, and of Deployments and pods on the host's network.
    pub running: Vec<RunningContainers>,
    /// Pod templates of workloads.
    pub templates: Vec<WorkloadTemplate>,
    /// Services with a selector, or with hand-written endpoints.
    pub services: BTreeMap<Key, WrittenService>,
    /// `spec.externalName` of Services of that type.
    pub external_names: BTreeMap<Key, String>,
    /// `v1` Endpoints, by name of the Service.
    pub endpoints: BTreeMap<Key, Vec<EndpointsPort>>,
    /// Pods of endpoints, by Service and address.
    pub endpoint_pods: BTreeMap<(Key, IpAddr), EndpointPod>,
    /// NetworkPolicies as written.
    pub policies: BTreeMap<Key, PolicyManifest>,
    /// ClusterNetworkPolicies as written, by name.
    pub cluster_policies: BTreeMap<String, PolicyManifest>,
    /// File and line of other objects, by kind and name.
    pub sources: BTreeMap<(&'static str, Key), FileLine>,
    /// Namespaces with annotations that put their pods into a mesh.
    pub meshed: BTreeMap<String, Mesh>,
    /// Nodes of k3s, with whether the arguments switch its policy enforcement off.
    pub k3s_nodes: BTreeMap<String, bool>,
    /// Namespaces that are being deleted.
    pub terminating: BTreeSet<String>,
    /// Addresses of nodes beyond their `status.addresses`, also from the status of pods, by node.
    pub nodes: BTreeMap<String, Vec<NodeAddress>>,
    /// Those of [`Self::nodes`] that are of tunnels: packets of hostNetwork pods to pods of other nodes may come from
    /// there.
    pub tunnels: BTreeMap<String, Vec<IpAddr>>,
    /// Services that the API server calls, with their ports, and the objects by which it calls them: webhook
    /// configurations, `APIService` and `CustomResourceDefinition` objects.
    pub called: BTreeMap<(Key, u16), ServiceCaller>,
    /// Services with their ports to which objects lead clients, and the first such Ingress.
    pub routed: BTreeMap<(Key, RoutedPort), ServiceCaller>,
    /// Policies of other APIs.
    pub foreign: BTreeMap<&'static ForeignKind, ForeignPolicies>,
}

/// Port of a Service as an Ingress gives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoutedPort {
    /// Its number.
    Number(i32),
    /// Its name.
    Name(String),
}

/// Object by which the API server calls a Service, or which leads clients to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCaller {
    /// Kind and name.
    pub by: String,
    /// File and line of the object; `None` for one of the API server.
    pub source: Option<FileLine>,
}

/// Containers with the same images and commands, of one workload or of pods of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainers {
    /// `DaemonSet`, `Deployment` or `Pod`
    pub kind: &'static str,
    /// Key of the workload, or of the first pod.
    pub key: Key,
    /// The containers of one pod.
    pub containers: Vec<ContainerProgram>,
    /// Number of such pods.
    pub count: usize,
}

/// Pod template of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadTemplate {
    /// Kind and key of the workload.
    pub workload: String,
    /// Labels of the workload itself.
    pub workload_labels: Labels,
    /// Namespace of the workload and its pods.
    pub namespace: String,
    /// Labels of the pods.
    pub labels: Labels,
    /// Whether the pods are on the host's network.
    pub host_network: bool,
    /// Other fields of the pods.
    pub details: PodDetails,
}

/// Fields of a pod that enforcement does not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDetails {
    /// Every `containerPort`; empty means unknown, since containers need not list ports.
    pub ports: BTreeSet<(Protocol, u16)>,
    /// Mesh, from containers or annotations.
    pub mesh: Option<Mesh>,
    /// Whether an annotation keeps an injector's proxy out.
    pub no_mesh: bool,
    /// Ports whose packets the mesh's proxy does not take, at this pod and at its peers.
    pub past_proxy: PastProxy,
    /// Whether `dnsPolicy` is `Default` or `None`: the pod does not ask the cluster's name server.
    pub own_dns: bool,
    /// Whether `automountServiceAccountToken` is false: the pod does not talk to the API server.
    pub no_token: bool,
    /// Whether `serviceAccountName` is another than `default`.
    pub own_account: bool,
    /// Whether the annotation `k8s.v1.cni.cncf.io/networks` requests secondary networks.
    pub requests_networks: bool,
    /// Every `hostPort`, with its `containerPort`.
    pub host_ports: BTreeMap<(Protocol, u16), u16>,
}

/// TCP ports whose packets pass a mesh's proxy by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PastProxy {
    /// Ports of the pod.
    pub inbound: IgnoredPorts,
    /// Ports of its peers.
    pub outbound: IgnoredPorts,
}

/// Ranges of ports: the first and the last port of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoredPorts(pub(super) Vec<(u16, u16)>);

impl IgnoredPorts {
    /// Returns whether one of the ranges contains all of these ports.
    #[must_use]
    pub fn contain(&self, first: u16, last: u16) -> bool {
        self.0.iter().any(|(from, to)| *from <= first && last <= *to)
    }
}

/// Membership of a pod in a service mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mesh {
    /// Istio's ambient mode, by the node's ztunnel.
    Ambient,
    /// Istio's sidecar that also speaks HBONE.
    IstioHbone,
    /// Istio's sidecar.
    Istio,
    /// Linkerd's proxy.
    Linkerd,
}

/// Container, by the fields that identify its program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerProgram {
    /// Name; empty if absent.
    pub name: String,
    /// Image; empty if absent.
    pub image: String,
    /// `command` and `args`.
    pub words: Vec<String>,
    /// Names of environment variables.
    pub variables: Vec<String>,
}

/// Selector and ports of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenService {
    /// `spec.selector`; empty if the endpoints are not made from a selector.
    pub selector: BTreeMap<String, String>,
    /// `spec.ports`
    pub ports: Vec<WrittenServicePort>,
    /// Whether a label marks the Service as the cluster's name server.
    pub is_dns: bool,
    /// Whether `spec.clusterIP` is `None`: clients connect to the endpoints themselves.
    pub is_headless: bool,
    /// Whether clients outside of the cluster reach the Service: `spec.type` is `NodePort` or `LoadBalancer`, or there
    /// are `spec.externalIPs`.
    pub is_external: bool,
    /// Way of these clients.
    pub exposure: Exposure,
    /// Whether `spec.externalTrafficPolicy` is `Local`: nodes keep the addresses of those clients.
    pub keeps_client: bool,
    /// Whether `spec.internalTrafficPolicy` is `Local`: clients at a cluster address reach backends of their node only.
    pub is_internal_local: bool,
}

/// Way of clients outside of the cluster to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// There is none, or none that the Service names.
    None,
    /// By ports of the nodes alone.
    NodePort,
    /// By an address of the Service at the nodes: a load balancer's, or one of `spec.externalIPs`.
    Balanced,
    /// By a load balancer that sends to the pods themselves.
    Direct,
}

impl Exposure {
    /// Returns whether clients outside reach the Service by nodes.
    #[must_use]
    pub const fn is_by_nodes(self) -> bool {
        matches!(self, Self::NodePort | Self::Balanced)
    }
}

/// Port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenServicePort {
    /// `name`; empty if absent
    pub name: String,
    /// `port`
    pub port: i32,
    /// `protocol`; absent: TCP
    pub protocol: Protocol,
    /// `targetPort`; absent: `port`
    pub target: PortReference,
    /// `nodePort`; absent if the API server has not chosen one
    pub node_port: Option<u16>,
}

/// Port of containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortReference {
    /// Port name.
    Name(String),
    /// Port number.
    Number(u16),
}

/// Addresses and a port, of `v1` Endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointsPort {
    /// Ready addresses.
    pub addresses: Vec<IpAddr>,
    /// Name of the Service's port, protocol and number.
    pub port: (String, Protocol, u16),
}

/// Pod and node of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPod {
    /// `targetRef`
    pub pod: Key,
    /// `nodeName`; empty if absent.
    pub node: String,
}

/// Address of a node, and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// The address.
    pub address: IpAddr,
    /// Device or use, such as `Calico's IP-in-IP tunnel, tunl0`.
    pub use_: String,
}
