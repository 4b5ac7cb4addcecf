//! Veths, and whose they are.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::pod::Pod;

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
    /// A further interface of the pod. Its addresses are those of a CNI plugin's answer, if there is one, else those
    /// of [`Pod::second`] that count for the pod.
    pub second: bool,
    /// The hardware address that its frames come from; `None`: unknown.
    pub station: Option<[u8; 6]>,
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
