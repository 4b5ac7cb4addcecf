//! Changes of objects.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::model::cluster_policy::ClusterPolicy;
use crate::model::interface::Interface;
use crate::model::object::{Key, Namespace, Node};
use crate::model::pod::Pod;
use crate::model::policy::Policy;
use crate::model::service::{EndpointSlice, Service};

/// A change of one object, from a source to the cluster state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Change {
    /// Sets a Namespace.
    Namespace(Namespace),
    /// Removes a Namespace.
    NamespaceGone(String),
    /// Sets a Node.
    Node(Node),
    /// Removes a Node.
    NodeGone(String),
    /// Sets a Pod.
    Pod(Pod),
    /// Removes a Pod.
    PodGone(Key),
    /// Sets a NetworkPolicy.
    Policy(Policy),
    /// Removes a NetworkPolicy.
    PolicyGone(Key),
    /// Sets a ClusterNetworkPolicy.
    ClusterPolicy(ClusterPolicy),
    /// Removes a ClusterNetworkPolicy.
    ClusterPolicyGone(String),
    /// Sets a Service.
    Service(Service),
    /// Removes a Service.
    ServiceGone(Key),
    /// Sets an EndpointSlice.
    EndpointSlice(EndpointSlice),
    /// Removes an EndpointSlice.
    EndpointSliceGone(Key),
    /// Sets a veth in the node's namespace.
    Interface(Interface),
    /// Removes a veth, by interface index.
    InterfaceGone(u32),
    /// Sets all addresses of this node's interfaces; sorted.
    OwnAddresses(Vec<IpAddr>),
}

impl Change {
    /// Whether the change sets an object of the API: neither a removal nor state of the node.
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

    /// The change that removes the object of this one.
    #[must_use]
    pub fn removal(&self) -> Self {
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
