//! Veths and their owners.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::pod::Pod;

/// The host side of a veth with its peer in another network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Interface {
    /// Interface index of the host side.
    pub index: u32,
    /// Number that distinguishes a reused index from the former interface.
    pub incarnation: u64,
    /// Addresses behind the interface, sorted; used if the owner is [`InterfaceOwner::Unbound`].
    pub addresses: Vec<IpAddr>,
    /// Owner of the interface.
    #[serde(skip)]
    pub owner: InterfaceOwner,
}

/// Owner of an interface, see [`crate::bindings`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum InterfaceOwner {
    /// The local pod with one of the interface's addresses, if any.
    #[default]
    Unbound,
    /// This pod, with any addresses.
    Pod(Bound),
    /// No pod; traffic of the addresses behind the interface is allowed only with this node.
    Denied,
}

/// A pod bound to an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bound {
    /// The pod as judged. Its addresses are those from which it may send.
    pub pod: Arc<Pod>,
    /// State of the pod in the API.
    pub standing: Standing,
    /// Whether the interface is on a secondary network of the pod. Its addresses are those of a CNI result, else the
    /// accepted addresses of [`Pod::secondary`].
    pub is_secondary: bool,
    /// Hardware address from which frames must come; `None`: unknown.
    pub station: Option<[u8; 6]>,
}

/// State in the API of a pod bound to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Listed.
    Listed,
    /// No longer listed, or finished; the pod is in its last known state.
    Deleted,
    /// Not yet listed; labels and ports come from the pod's manifest on the node.
    Unlisted,
    /// Not yet listed; labels and ports are unknown.
    Unlabelled,
}
