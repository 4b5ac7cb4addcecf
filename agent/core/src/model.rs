//! The objects that policy is made of, reduced to what NetworkPolicy reads of them.
//!
//! Whether a field was absent or empty is decided where objects are converted (the agent's
//! `source/convert.rs`), so that here every value has one meaning.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
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
fn as_map<S: Serializer>(labels: &Labels, serializer: S) -> Result<S::Ok, S::Error> {
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

/// A Pod.
#[cfg_attr(test, derive(Default))]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pod {
    /// `metadata.namespace` and `metadata.name`
    pub key: Key,
    /// `metadata.uid`; from files without one, a name derived from the key.
    pub uid: String,
    /// `metadata.labels`
    #[serde(serialize_with = "as_map")]
    pub labels: Labels,
    /// `spec.nodeName`; empty: not scheduled.
    pub node: String,
    /// `status.podIPs`, else `status.podIP`; sorted, without duplicates.
    pub addresses: Vec<IpAddr>,
    /// `spec.hostNetwork`: the pod is its node, it is not selected and no peer.
    pub host_network: bool,
    /// `status.phase` is Succeeded or Failed: ignored, its address may belong to another pod.
    pub finished: bool,
    /// `metadata.deletionTimestamp` is set. Such a pod still counts; it only yields its address to
    /// another pod that claims it.
    pub terminating: bool,
    /// `metadata.creationTimestamp`, seconds since the epoch; 0 where absent. Of two pods that
    /// claim one address, the one that is not terminating, then the younger, then the greater key
    /// has it.
    pub created: i64,
    /// `spec.containers[].ports[]` that have a name, and those of `initContainers` that are
    /// sidecars (`restartPolicy: Always`).
    pub ports: Vec<NamedPort>,
    /// Annotation `netpold.io/check-source` is `off`: the pod asks to send from addresses that are not
    /// its own. Whoever may write the pod may write that, so it counts only in namespaces that
    /// [`crate::options::SourceExempt`] names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign_sources: bool,
}

/// A container port with a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamedPort {
    /// `name`
    pub name: String,
    /// `protocol`; absent: TCP
    pub protocol: Protocol,
    /// `containerPort`
    pub port: u16,
}

/// A protocol that has ports in the NetworkPolicy API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// IP protocol 6
    Tcp,
    /// IP protocol 17
    Udp,
    /// IP protocol 132
    Sctp,
}

impl Protocol {
    /// IP protocol number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// As the pod sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Into the pod; the remote side is the source.
    Ingress,
    /// Out of the pod; the remote side is the destination.
    Egress,
}

impl Direction {
    /// Both, in the order of the API.
    pub const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];

    /// The direction of the answers.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Ingress => Self::Egress,
            Self::Egress => Self::Ingress,
        }
    }
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        })
    }
}

/// A NetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Policy {
    /// `metadata.namespace` and `metadata.name`
    pub key: Key,
    /// `spec.podSelector`
    pub pod_selector: Selector,
    /// `Some` if the policy isolates ingress (`policyTypes`, given or defaulted); the rules it then
    /// grants, in the order of `spec.ingress`.
    pub ingress: Option<Vec<Rule>>,
    /// `Some` if the policy isolates egress.
    pub egress: Option<Vec<Rule>>,
    /// What could not be understood, as `spec.ingress[0].ports[1]: endPort …`, empty if all was.
    /// The parts concerned grant nothing; a `podSelector` that cannot be understood selects every
    /// pod of the namespace.
    pub problems: Vec<String>,
    /// Which state of the object this is.
    #[serde(default)]
    pub version: PolicyVersion,
    /// Annotation `netpold.io/enforcement`.
    #[serde(default, skip_serializing_if = "Enforcement::is_enforce")]
    pub enforcement: Enforcement,
}

/// Whether a policy decides, or only says what it would have decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// It decides.
    #[default]
    Enforce,
    /// For the verdict it is absent; what it would have denied is recorded.
    Audit,
}

impl Enforcement {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
    fn is_enforce(&self) -> bool {
        *self == Self::Enforce
    }
}

/// Which state of a NetworkPolicy is meant, to say of it that it is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PolicyVersion {
    /// `metadata.uid`; empty: from a file without one.
    pub uid: String,
    /// `metadata.generation`, which the API server counts up with each change of the spec; 0 where absent.
    pub generation: i64,
}

impl Policy {
    /// The rules of a direction, `None` if the policy does not isolate it.
    #[must_use]
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// A ClusterNetworkPolicy (`policy.networking.k8s.io/v1alpha2`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClusterPolicy {
    /// `metadata.name`
    pub name: String,
    /// `spec.tier`
    pub tier: Tier,
    /// `spec.priority`, 0 to 1000: the lowest is asked first; of equal ones the first by name.
    pub priority: u16,
    /// `spec.subject`: the pods that it is about, hostNetwork pods never.
    pub subject: NamespacedPods,
    /// `spec.ingress`; the first rule that matches decides. Their peers are never blocks or nodes.
    pub ingress: Vec<ClusterRule>,
    /// `spec.egress`
    pub egress: Vec<ClusterRule>,
    /// What could not be understood, as `spec.egress[0].to[1]: …`, empty if all was. An Accept rule
    /// with such a part matches nothing, a Deny or Pass rule denies everything; a `subject` that cannot
    /// be understood is every pod, and its Accept and Pass rules match nothing.
    pub problems: Vec<String>,
    /// Which state of the object this is.
    #[serde(default)]
    pub version: PolicyVersion,
    /// Annotation `netpold.io/enforcement`.
    #[serde(default, skip_serializing_if = "Enforcement::is_enforce")]
    pub enforcement: Enforcement,
}

impl ClusterPolicy {
    /// The rules of a direction; none: the policy says nothing of it.
    #[must_use]
    pub fn rules(&self, direction: Direction) -> &[ClusterRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// `spec.tier`, in the order of evaluation; NetworkPolicy stands between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// Before NetworkPolicy.
    Admin,
    /// After NetworkPolicy, for pods that no NetworkPolicy isolates in the direction.
    Baseline,
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Admin => "Admin",
            Self::Baseline => "Baseline",
        })
    }
}

/// Pods of namespaces: `spec.subject.namespaces` (every pod) or `spec.subject.pods`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamespacedPods {
    /// `namespaces`, or `pods.namespaceSelector`
    pub namespaces: Selector,
    /// `pods.podSelector`
    pub pods: Selector,
}

/// One item of a ClusterNetworkPolicy's `spec.ingress` or `spec.egress`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClusterRule {
    /// `name`; empty where absent.
    pub name: String,
    /// `action`
    pub action: Action,
    /// `from` or `to`, and `protocols`. A named port names no protocol in this API, so it is there for
    /// each of the three.
    pub matches: Rule,
}

/// `action`
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Action {
    /// Allowed, and nothing else is asked.
    Accept,
    /// Denied, and nothing else is asked.
    Deny,
    /// The rest of the tier is not asked; the next tier is.
    Pass,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Accept => "Accept",
            Self::Deny => "Deny",
            Self::Pass => "Pass",
        })
    }
}

/// One item of `spec.ingress` or `spec.egress`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rule {
    /// `from` or `to`; `None` (absent or empty in the API): everyone.
    pub peers: Option<Vec<Peer>>,
    /// `ports`; `None` (absent or empty in the API): every protocol and port.
    pub ports: Option<Vec<PortRule>>,
}

/// One item of `from` or `to`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Peer {
    /// `podSelector` and `namespaceSelector`, at least one given.
    Pods {
        /// `namespaceSelector`; `None`: the policy's own namespace.
        namespaces: Option<Selector>,
        /// `podSelector`; absent in the API with a `namespaceSelector`: the empty selector.
        pods: Selector,
    },
    /// `ipBlock`, and each item of a ClusterNetworkPolicy's `networks`.
    Block(IpBlock),
    /// `nodes` of a ClusterNetworkPolicy: what the `status.addresses` of these nodes say.
    Nodes(Selector),
}

/// `ipBlock`
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IpBlock {
    /// `cidr`, host bits masked off.
    pub cidr: IpNet,
    /// `except`, host bits masked off; cuts this block only.
    pub except: Vec<IpNet>,
}

impl IpBlock {
    /// Whether the block holds an address: in `cidr` and in no `except`.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.cidr.contains(&address) && !self.except.iter().any(|e| e.contains(&address))
    }
}

/// One item of `ports`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortRule {
    /// `protocol`; absent in the API: TCP
    pub protocol: Protocol,
    /// `port` and `endPort`
    pub port: PortMatch,
}

/// `port` and `endPort`
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PortMatch {
    /// `port` absent: every port of the protocol.
    Any,
    /// A number, or a number with `endPort`: both ends included.
    Range(u16, u16),
    /// A name: resolved on the selected pod for ingress, on each destination pod for egress, where
    /// the protocol matches too; every number of that name.
    Named(String),
}

/// A LabelSelector: all requirements hold. Empty: everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Selector {
    /// `matchLabels` (as [`Requirement::In`] with one value) and `matchExpressions`; sorted, without
    /// duplicates.
    pub requirements: Vec<Requirement>,
}

/// One requirement of a LabelSelector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Requirement {
    /// `In`: the key is present with one of the values (sorted, without duplicates).
    In(String, Vec<String>),
    /// `NotIn`: the key is absent, or present with none of the values.
    NotIn(String, Vec<String>),
    /// `Exists`
    Exists(String),
    /// `DoesNotExist`
    DoesNotExist(String),
}

/// A Service, as far as packets to its addresses are concerned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Service {
    /// `metadata.namespace` and `metadata.name`
    pub key: Key,
    /// Addresses that a node translates: `spec.clusterIPs`, `spec.externalIPs` and
    /// `status.loadBalancer.ingress[].ip` whose `ipMode` is not Proxy; sorted, without duplicates.
    /// A headless Service has none.
    pub addresses: Vec<IpAddr>,
    /// Those of `addresses` that are `spec.clusterIPs`: never a node's own, whichever interface
    /// has them. Sorted, without duplicates.
    #[serde(default)]
    pub cluster: Vec<IpAddr>,
    /// `spec.ports`
    pub ports: Vec<ServicePort>,
    /// The label `service.kubernetes.io/service-proxy-name` or `service.kubernetes.io/headless` is
    /// set: the nodes' proxy does not serve the Service, so it counts for nothing.
    #[serde(default)]
    pub unserved: bool,
}

/// One item of a Service's `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServicePort {
    /// `name`, which the ports of its EndpointSlices carry; empty where absent.
    pub name: String,
    /// `protocol`; absent: TCP
    pub protocol: Protocol,
    /// `port`
    pub port: u16,
    /// `nodePort`: the port at every node's addresses.
    pub node_port: Option<u16>,
}

/// An EndpointSlice: some of the backends of a Service, with the ports they really listen on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EndpointSlice {
    /// `metadata.namespace` and `metadata.name`
    pub key: Key,
    /// The label `kubernetes.io/service-name`; a slice without it is no Service's.
    pub service: String,
    /// `ports` that have a number, by the name of the Service's port.
    pub ports: Vec<SlicePort>,
    /// `endpoints[].addresses`, ready or not: a connection goes on while its backend is not ready.
    /// Sorted, without duplicates.
    pub addresses: Vec<IpAddr>,
    /// Those of `addresses` that new connections are not led to: neither ready nor terminating and
    /// still serving. Sorted, without duplicates.
    #[serde(default)]
    pub not_ready: Vec<IpAddr>,
}

/// One item of an EndpointSlice's `ports`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlicePort {
    /// `name`; empty where absent.
    pub name: String,
    /// `protocol`; absent: TCP
    pub protocol: Protocol,
    /// `port`
    pub port: u16,
}

/// A change of one object: what a source yields and what the cluster state takes in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Change {
    /// A Namespace now is this.
    Namespace(Namespace),
    /// A Namespace is gone.
    NamespaceGone(String),
    /// A Node now is this.
    Node(Node),
    /// A Node is gone.
    NodeGone(String),
    /// A Pod now is this.
    Pod(Pod),
    /// A Pod is gone.
    PodGone(Key),
    /// A NetworkPolicy now is this.
    Policy(Policy),
    /// A NetworkPolicy is gone.
    PolicyGone(Key),
    /// A ClusterNetworkPolicy now is this.
    ClusterPolicy(ClusterPolicy),
    /// A ClusterNetworkPolicy is gone.
    ClusterPolicyGone(String),
    /// A Service now is this.
    Service(Service),
    /// A Service is gone.
    ServiceGone(Key),
    /// An EndpointSlice now is this.
    EndpointSlice(EndpointSlice),
    /// An EndpointSlice is gone.
    EndpointSliceGone(Key),
    /// A veth in the node's namespace now is this.
    Interface(Interface),
    /// A veth, by interface index, is gone.
    InterfaceGone(u32),
    /// The addresses that the own node's interfaces have now, all of them, sorted.
    OwnAddresses(Vec<IpAddr>),
}

impl Change {
    /// Whether an object of the cluster now is this: nothing that is gone, nothing of the node's own.
    #[must_use]
    pub fn is_object(&self) -> bool {
        matches!(
            self,
            Self::Namespace(_)
                | Self::Node(_)
                | Self::Pod(_)
                | Self::Policy(_)
                | Self::ClusterPolicy(_)
                | Self::Service(_)
                | Self::EndpointSlice(_)
        )
    }

    /// The change that takes away the object that this one names.
    #[must_use]
    pub fn gone(&self) -> Self {
        match self {
            Self::Namespace(namespace) => Self::NamespaceGone(namespace.name.clone()),
            Self::Node(node) => Self::NodeGone(node.name.clone()),
            Self::Pod(pod) => Self::PodGone(pod.key.clone()),
            Self::Policy(policy) => Self::PolicyGone(policy.key.clone()),
            Self::ClusterPolicy(policy) => Self::ClusterPolicyGone(policy.name.clone()),
            Self::Service(service) => Self::ServiceGone(service.key.clone()),
            Self::EndpointSlice(slice) => Self::EndpointSliceGone(slice.key.clone()),
            Self::Interface(interface) => Self::InterfaceGone(interface.index),
            Self::NamespaceGone(_)
            | Self::NodeGone(_)
            | Self::PodGone(_)
            | Self::PolicyGone(_)
            | Self::ClusterPolicyGone(_)
            | Self::ServiceGone(_)
            | Self::EndpointSliceGone(_)
            | Self::InterfaceGone(_)
            | Self::OwnAddresses(_) => self.clone(),
        }
    }
}

/// The host side of a veth whose other side is in another network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Interface {
    /// Interface index of the host side.
    pub index: u32,
    /// Number that tells a reused index from the former interface.
    pub incarnation: u64,
    /// Addresses behind it, sorted, for an [`Owner::Unbound`] one.
    pub addresses: Vec<IpAddr>,
    /// Whose it is.
    #[serde(skip)]
    pub owner: Owner,
}

/// Whose an interface is; [`crate::bindings`] decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The local pod that has one of the interface's addresses, if any.
    #[default]
    Unbound,
    /// This pod, whatever addresses it uses.
    Pod(Bound),
    /// No pod; only the node reaches what is behind it, and is reached by it.
    Denied,
}

/// The pod that an interface is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bound {
    /// As it is to be judged. Its addresses are those that it may send from.
    pub pod: Arc<Pod>,
    /// What the API says of it.
    pub standing: Standing,
    /// A further interface of the pod: none of its addresses is known.
    pub second: bool,
}

/// What the API says of a pod that an interface is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It lists the pod.
    Listed,
    /// It lists the pod no more, or says that it has finished: the pod is what was known last.
    Deleted,
    /// It has not listed the pod; labels and ports are those of its manifest on the node.
    Unlisted,
    /// It has not listed the pod, and nothing tells its labels and ports.
    Unlabelled,
}

/// FNV-1a, 64 bits: stable across builds, unlike the standard hasher.
pub(crate) fn uid_hash(uid: &str) -> u64 {
    uid.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
