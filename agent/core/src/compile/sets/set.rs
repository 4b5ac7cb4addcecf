//! Sets of addresses that rules in use speak of, and their numbers. The flags of a number say what kind of
//! set it is and keep the order within a [`Membership`]: the own node first, Services' targets last.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Serialize;

use crate::model::{Key, Protocol, Selector};

/// Number of a peer set; never reused.
pub(crate) type SetId = u32;
/// Number of a named port that egress rules ask for; never reused.
pub(crate) type NameId = u32;
/// A sorted set of peer sets.
pub(crate) type Membership = Arc<[SetId]>;

/// Number of [`PeerSet::OwnNode`], so that one is first in every membership that has it.
pub(crate) const OWN_NODE: SetId = 0;
/// Set in the numbers of service targets, so that one is last in every membership that has one.
pub(crate) const TARGETS: SetId = 1 << 31;
/// Set in the numbers of groups of blocks.
pub(crate) const GROUP: SetId = 1 << 30;
/// Set besides in the numbers of service targets of cluster addresses.
pub(crate) const CLUSTER: SetId = 1 << 29;
/// The group of what no block grants anything. It is never part of a membership.
pub(crate) const NO_GROUP: SetId = GROUP;

/// Whether this is the number of a group of blocks.
pub(crate) fn is_group(id: SetId) -> bool {
    id & GROUP != 0
}

/// Whether a peer set stands for service targets.
pub(crate) fn is_targets(id: SetId) -> bool {
    id & TARGETS != 0
}

/// Whether a peer set stands for the service targets of a Service's cluster address.
pub(crate) fn is_cluster_address(id: SetId) -> bool {
    is_targets(id) && id & CLUSTER != 0
}

/// A set of addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum PeerSet {
    /// The own node's addresses.
    OwnNode,
    /// Addresses of the pods of one namespace that a selector matches.
    PodsIn(String, Selector),
    /// Addresses of the pods that the second selector matches, in the namespaces that the first
    /// matches.
    Pods(Selector, Selector),
    /// Addresses of the nodes that a selector matches, by their Node objects.
    Nodes(Selector),
    /// Addresses that blocks grant the same as this prefix, which is the first of them.
    Blocks(IpNet),
    /// Addresses of the pods that have this container port name with this number.
    Named(Protocol, String, u16),
    /// Addresses at which a local pod reaches itself.
    HairpinService(HairpinService),
    /// Addresses that lead to these backends: of a Service, or of nodes. Sorted.
    ServiceTargets(Vec<ServiceTarget>),
}

/// The addresses of a Service at which some local pod is a backend of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct HairpinService {
    /// The Service.
    pub service: Key,
    /// Whether it is about IPv6 addresses.
    pub v6: bool,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// A port of an address that is translated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ServiceTarget {
    /// Protocol of the port.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// Whether another node chooses the backend.
    pub elsewhere: bool,
    /// The sets that each backend's address belongs to, and the backend's port.
    pub backends: BTreeSet<(BTreeSet<PeerSet>, u16)>,
}

impl PeerSet {
    /// The addresses that a pod peer of a policy in `namespace` stands for.
    pub(crate) fn of_pods(namespaces: Option<&Selector>, pods: &Selector, namespace: &str) -> Self {
        match namespaces {
            None => Self::PodsIn(namespace.to_owned(), pods.clone()),
            Some(namespaces) => Self::Pods(namespaces.clone(), pods.clone()),
        }
    }
}
