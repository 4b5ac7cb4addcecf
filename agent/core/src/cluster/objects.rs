//! Objects from changes, or shared from another cluster without a copy.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::budget::Weight;
use crate::cluster::policies::Policies;
use crate::cluster::state::Cluster;
use crate::model::{
    Change, ClusterPolicy, EndpointSlice, Interface, Key, Namespace, Node, Pod, Policy, Service,
};

/// Key of the object that a change concerns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKey {
    /// A Namespace by name.
    Namespace(String),
    /// A Node by name.
    Node(String),
    /// A Pod.
    Pod(Key),
    /// A NetworkPolicy.
    Policy(Key),
    /// A ClusterNetworkPolicy by name.
    ClusterPolicy(String),
    /// A Service.
    Service(Key),
    /// An EndpointSlice.
    EndpointSlice(Key),
    /// A veth by interface index.
    Interface(u32),
    /// The addresses of this node's interfaces.
    OwnAddresses,
}

impl ObjectKey {
    /// The object that a change concerns.
    #[must_use]
    pub fn of(change: &Change) -> Self {
        match change {
            Change::Namespace(Namespace { name, .. }) | Change::NamespaceGone(name) => {
                Self::Namespace(name.clone())
            }
            Change::Node(Node { name, .. }) | Change::NodeGone(name) => Self::Node(name.clone()),
            Change::Pod(Pod { key, .. }) | Change::PodGone(key) => Self::Pod(key.clone()),
            Change::Policy(Policy { key, .. }) | Change::PolicyGone(key) => {
                Self::Policy(key.clone())
            }
            Change::ClusterPolicy(ClusterPolicy { name, .. }) | Change::ClusterPolicyGone(name) => {
                Self::ClusterPolicy(name.clone())
            }
            Change::Service(Service { key, .. }) | Change::ServiceGone(key) => {
                Self::Service(key.clone())
            }
            Change::EndpointSlice(EndpointSlice { key, .. }) | Change::EndpointSliceGone(key) => {
                Self::EndpointSlice(key.clone())
            }
            Change::Interface(Interface { index, .. }) | Change::InterfaceGone(index) => {
                Self::Interface(*index)
            }
            Change::OwnAddresses(_) => Self::OwnAddresses,
        }
    }

    /// The change that removes the object; for the node's addresses, an empty list.
    #[must_use]
    pub fn removal(self) -> Change {
        match self {
            Self::Namespace(name) => Change::NamespaceGone(name),
            Self::Node(name) => Change::NodeGone(name),
            Self::Pod(key) => Change::PodGone(key),
            Self::Policy(key) => Change::PolicyGone(key),
            Self::ClusterPolicy(name) => Change::ClusterPolicyGone(name),
            Self::Service(key) => Change::ServiceGone(key),
            Self::EndpointSlice(key) => Change::EndpointSliceGone(key),
            Self::Interface(index) => Change::InterfaceGone(index),
            Self::OwnAddresses => Change::OwnAddresses(Vec::new()),
        }
    }
}

/// Kind as in the API and key: `Pod namespace/name`.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(name) => write!(f, "Namespace {name}"),
            Self::Node(name) => write!(f, "Node {name}"),
            Self::Pod(key) => write!(f, "Pod {key}"),
            Self::Policy(key) => write!(f, "NetworkPolicy {key}"),
            Self::ClusterPolicy(name) => write!(f, "ClusterNetworkPolicy {name}"),
            Self::Service(key) => write!(f, "Service {key}"),
            Self::EndpointSlice(key) => write!(f, "EndpointSlice {key}"),
            Self::Interface(index) => write!(f, "interface {index}"),
            Self::OwnAddresses => f.write_str("the own addresses"),
        }
    }
}

/// State of an object; `None` if it does not exist.
#[derive(Debug)]
pub(crate) enum Object {
    Namespace(String, Option<Namespace>),
    Node(String, Option<Node>),
    Pod(Key, Option<Arc<Pod>>),
    Policy(Key, Option<(Arc<Policy>, Weight)>),
    ClusterPolicy(String, Option<Arc<ClusterPolicy>>),
    Service(Key, Option<Arc<Service>>),
    EndpointSlice(Key, Option<Arc<EndpointSlice>>),
    Interface(u32, Option<Interface>),
    OwnAddresses(Vec<IpAddr>),
}

impl Object {
    /// The object of a change; `None` for a policy equal to the known one, whose weight is not computed again.
    pub(super) fn unless_known(change: Change, known: &Policies) -> Option<Self> {
        Some(match change {
            Change::Namespace(new) => Self::Namespace(new.name.clone(), Some(new)),
            Change::NamespaceGone(name) => Self::Namespace(name, None),
            Change::Node(new) => Self::Node(new.name.clone(), Some(new)),
            Change::NodeGone(name) => Self::Node(name, None),
            Change::Pod(new) => Self::Pod(new.key.clone(), Some(Arc::new(new))),
            Change::PodGone(key) => Self::Pod(key, None),
            Change::Policy(new) => Self::Policy(new.key.clone(), Some(known.weighed(new)?)),
            Change::PolicyGone(key) => Self::Policy(key, None),
            Change::ClusterPolicy(new) => {
                Self::ClusterPolicy(new.name.clone(), Some(Arc::new(new)))
            }
            Change::ClusterPolicyGone(name) => Self::ClusterPolicy(name, None),
            Change::Service(new) => Self::Service(new.key.clone(), Some(Arc::new(new))),
            Change::ServiceGone(key) => Self::Service(key, None),
            Change::EndpointSlice(new) => Self::EndpointSlice(new.key.clone(), Some(Arc::new(new))),
            Change::EndpointSliceGone(key) => Self::EndpointSlice(key, None),
            Change::Interface(new) => Self::Interface(new.index, Some(new)),
            Change::InterfaceGone(index) => Self::Interface(index, None),
            Change::OwnAddresses(addresses) => Self::OwnAddresses(addresses),
        })
    }

    /// State of an object in a cluster.
    pub(crate) fn now(key: ObjectKey, cluster: &Cluster) -> Self {
        match key {
            ObjectKey::Namespace(name) => {
                let namespace = cluster.namespaces().get(&name).cloned();
                Self::Namespace(name, namespace)
            }
            ObjectKey::Node(name) => {
                let node = cluster.nodes().get(&name).cloned();
                Self::Node(name, node)
            }
            ObjectKey::Pod(key) => {
                let pod = cluster.pods().get(&key).cloned();
                Self::Pod(key, pod)
            }
            ObjectKey::Policy(key) => {
                let policy = cluster.policies().get(&key).cloned();
                let policy = policy.zip(cluster.policies.weight(&key).cloned());
                Self::Policy(key, policy)
            }
            ObjectKey::ClusterPolicy(name) => {
                let policy = cluster.cluster_policy(&name).cloned();
                Self::ClusterPolicy(name, policy)
            }
            ObjectKey::Service(key) => {
                let service = cluster.translation.service(&key);
                Self::Service(key, service)
            }
            ObjectKey::EndpointSlice(key) => {
                let slice = cluster.slices().get(&key).cloned();
                Self::EndpointSlice(key, slice)
            }
            ObjectKey::Interface(index) => {
                let interface = cluster.interfaces().get(&index).cloned();
                Self::Interface(index, interface)
            }
            ObjectKey::OwnAddresses => {
                Self::OwnAddresses(cluster.nodes.found().iter().copied().collect())
            }
        }
    }

    /// Every object of a cluster.
    pub(crate) fn all(cluster: &Cluster) -> impl Iterator<Item = Self> {
        let namespaces = cluster.namespaces().keys().cloned().map(ObjectKey::Namespace);
        let nodes = cluster.nodes().keys().cloned().map(ObjectKey::Node);
        let policies = cluster.policies().keys().cloned().map(ObjectKey::Policy);
        let of_cluster = cluster.cluster_policies();
        let of_cluster = of_cluster.map(|policy| ObjectKey::ClusterPolicy(policy.name.clone()));
        let services = cluster.translation.all_services().cloned().map(ObjectKey::Service);
        let slices = cluster.slices().keys().cloned().map(ObjectKey::EndpointSlice);
        let interfaces = cluster.interfaces().keys().copied().map(ObjectKey::Interface);
        let few = namespaces.chain(nodes).chain(policies).chain(services).chain(slices);
        let few = few.chain(of_cluster).chain(interfaces).chain([ObjectKey::OwnAddresses]);
        // Without keys in between: pods are by far the most objects.
        let pods = cluster.pods().values();
        let pods = pods.map(|pod| Self::Pod(pod.key.clone(), Some(pod.clone())));
        few.map(|key| Self::now(key, cluster)).chain(pods)
    }
}
