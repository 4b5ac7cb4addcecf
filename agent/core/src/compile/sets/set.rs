//! Sets of addresses that rules in use speak of, and their numbers. The flags of a number say what kind of
//! set it is and keep the order within a [`Signature`]: the own node first, Services' targets last.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use serde::Serialize;

use crate::model::{Key, Protocol, Selector};

/// Number of an atom; never reused.
pub(crate) type AtomId = u32;
/// Number of a named port that egress rules ask for; never reused.
pub(crate) type NameId = u32;
/// A sorted set of atoms.
pub(crate) type Signature = Arc<[AtomId]>;

/// Number of [`Atom::OwnNode`], so that one is first in every signature that has it.
pub(crate) const OWN_NODE: AtomId = 0;
/// Set in the numbers of frontends, so that one is last in every signature that has one.
pub(crate) const FRONTENDS: AtomId = 1 << 31;
/// Set in the numbers of groups of blocks.
pub(crate) const GROUP: AtomId = 1 << 30;
/// Set besides in the numbers of frontends of cluster addresses.
pub(crate) const CLUSTER: AtomId = 1 << 29;
/// The group of what no block grants anything. It is never part of a signature.
pub(crate) const NO_GROUP: AtomId = GROUP;

/// Whether this is the number of a group of blocks.
pub(crate) fn is_group(id: AtomId) -> bool {
    id & GROUP != 0
}

/// Whether an atom stands for frontends.
pub(crate) fn is_frontends(id: AtomId) -> bool {
    id & FRONTENDS != 0
}

/// Whether an atom stands for the frontends of a Service's cluster address.
pub(crate) fn is_cluster_address(id: AtomId) -> bool {
    is_frontends(id) && id & CLUSTER != 0
}

/// A set of addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Atom {
    /// The own node's addresses.
    OwnNode,
    /// Addresses of the pods of one namespace that a selector matches.
    PodsIn(String, Selector),
    /// Addresses of the pods that the second selector matches, in the namespaces that the first
    /// matches.
    Pods(Selector, Selector),
    /// Addresses that blocks grant the same as this prefix, which is the first of them.
    Blocks(IpNet),
    /// Addresses of the pods that have this container port name with this number.
    Named(Protocol, String, u16),
    /// Addresses at which a local pod reaches itself.
    Serves(Serves),
    /// Addresses that lead to these backends: of a Service, or of nodes. Sorted.
    Frontends(Vec<Frontend>),
}

/// The addresses of a Service at which some local pod is a backend of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Serves {
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
pub struct Frontend {
    /// Protocol of the port.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// Whether another node chooses the backend.
    pub elsewhere: bool,
    /// The sets that each backend's address belongs to, and the backend's port.
    pub backends: BTreeSet<(BTreeSet<Atom>, u16)>,
}

impl Atom {
    /// The addresses that a pod peer of a policy in `namespace` stands for.
    pub(crate) fn of_pods(namespaces: Option<&Selector>, pods: &Selector, namespace: &str) -> Self {
        match namespaces {
            None => Self::PodsIn(namespace.to_owned(), pods.clone()),
            Some(namespaces) => Self::Pods(namespaces.clone(), pods.clone()),
        }
    }
}
