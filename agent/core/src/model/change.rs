//! What a source yields.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::model::cluster_policy::ClusterPolicy;
use crate::model::interface::Interface;
use crate::model::object::{Key, Namespace, Node};
use crate::model::pod::Pod;
use crate::model::policy::Policy;
use crate::model::service::{EndpointSlice, Service};

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
