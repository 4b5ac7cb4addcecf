//! Objects as one cluster has them, for another: shared, not copied.

use std::net::IpAddr;
use std::sync::Arc;

use crate::budget::Weight;
use crate::model::{
    Change, ClusterPolicy, EndpointSlice, Interface, Key, Namespace, Node, Pod, Policy, Service,
};

/// Which object a change is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// The addresses of the own node's interfaces.
    OwnAddresses,
}

impl ObjectKey {
    /// What a change is about.
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
}

/// An object as it is now; `None`: there is none.
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
    /// What a change says.
    pub(super) fn of(change: Change, weigh: impl FnOnce(&Policy) -> Weight) -> Self {
        match change {
            Change::Namespace(new) => Self::Namespace(new.name.clone(), Some(new)),
            Change::NamespaceGone(name) => Self::Namespace(name, None),
            Change::Node(new) => Self::Node(new.name.clone(), Some(new)),
            Change::NodeGone(name) => Self::Node(name, None),
            Change::Pod(new) => Self::Pod(new.key.clone(), Some(Arc::new(new))),
            Change::PodGone(key) => Self::Pod(key, None),
            Change::Policy(new) => {
                let weight = weigh(&new);
                Self::Policy(new.key.clone(), Some((Arc::new(new), weight)))
            }
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
        }
    }
}
