//! Sets of addresses in the rules in use, and their numbers. Flag bits of a number encode the kind of set and the order
//! within a [`Membership`]: this node first, service targets last.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Serialize;

use crate::model::{Key, Protocol, Selector};

/// Number of a peer set; never reused.
pub(crate) type SetId = u32;
/// Number of a named port in egress rules; never reused.
pub(crate) type NameId = u32;
/// A sorted set of peer sets.
pub(crate) type Membership = Arc<[SetId]>;

/// Number of [`PeerSet::OwnNode`]; sorts first in a membership.
pub(crate) const OWN_NODE: SetId = 0;
/// Flag of service targets; sorts last in a membership.
pub(crate) const TARGETS: SetId = 1 << 31;
/// Flag of block groups.
pub(crate) const GROUP: SetId = 1 << 30;
/// Additional flag of service targets of cluster addresses.
pub(crate) const CLUSTER: SetId = 1 << 29;
/// The group of addresses without a grant by an ipBlock. Never part of a membership.
pub(crate) const NO_GROUP: SetId = GROUP;

/// Whether the number is that of a block group.
pub(crate) fn is_group(id: SetId) -> bool {
    id & GROUP != 0
}

/// Whether the number is that of service targets.
pub(crate) fn is_targets(id: SetId) -> bool {
    id & TARGETS != 0
}

/// Whether the number is that of service targets of a cluster address.
pub(crate) fn is_cluster_address(id: SetId) -> bool {
    is_targets(id) && id & CLUSTER != 0
}

/// A set of addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum PeerSet {
    /// This node's addresses.
    OwnNode,
    /// Addresses of the pods of one namespace that match a selector.
    PodsIn(String, Selector),
    /// Addresses of the pods that match the second selector, in the namespaces that match the first.
    Pods(Selector, Selector),
    /// Addresses of Node objects that match a selector.
    Nodes(Selector),
    /// Addresses with the same grants by ipBlocks; the prefix is the first one with these grants.
    Blocks(IpNet),
    /// Addresses of the pods with a container port of this name and number.
    Named(Protocol, String, u16),
    /// Service addresses at which a local pod reaches itself.
    HairpinService(HairpinService),
    /// Service or node addresses with these targets, sorted.
    ServiceTargets(Vec<ServiceTarget>),
}

/// The addresses, in one family, of a Service port that has a local pod of the Service's namespace as backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct HairpinService {
    /// The Service.
    pub service: Key,
    /// IPv6 addresses if true, else IPv4.
    pub v6: bool,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// A port of a translated address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ServiceTarget {
    /// Protocol of the port.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// Whether another node chooses the backend.
    pub elsewhere: bool,
    /// Membership of each backend's address, and the backend's port.
    pub backends: BTreeSet<(BTreeSet<PeerSet>, u16)>,
}

impl PeerSet {
    /// The peer set of a pod peer in a policy of `namespace`.
    pub(crate) fn of_pods(namespaces: Option<&Selector>, pods: &Selector, namespace: &str) -> Self {
        match namespaces {
            None => Self::PodsIn(namespace.to_owned(), pods.clone()),
            Some(namespaces) => Self::Pods(namespaces.clone(), pods.clone()),
        }
    }
}
