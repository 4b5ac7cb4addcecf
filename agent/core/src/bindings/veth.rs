//! Veths, CNI results and bindings.

use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::is_subject;
use crate::model::{Bound, Interface, Key, Labels, NamedPort, Pod, Standing};

/// A veth in the node's namespace with its peer in another namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Veth {
    /// Interface index.
    pub index: u32,
    /// Number that distinguishes a reused index from the former interface.
    pub incarnation: u64,
    /// Name in the node's namespace.
    pub name: String,
    /// Namespace identifier (nsid) of the peer.
    pub namespace: i32,
    /// Addresses with a host route of their own (/32 or /128) through the veth.
    pub routed: Vec<IpAddr>,
    /// Global addresses of the peer, at most [`Veth::MAX_INSIDE`]. The pod can write them.
    pub inside: Vec<IpAddr>,
    /// Hardware address of the peer. The pod can write it.
    pub station: Option<[u8; 6]>,
}

impl Veth {
    /// Maximum number of addresses read inside: the pod can have any number.
    pub const MAX_INSIDE: usize = 64;
}

/// Binding of a veth by an earlier agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// [`uid_hash`](crate::model::uid_hash) of the pod.
    pub uid_hash: u64,
    /// Hardware address of the peer, as fixed at binding.
    pub station: Option<[u8; 6]>,
}

/// Result of a CNI plugin for a pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniResult {
    /// `K8S_POD_NAMESPACE` and `K8S_POD_NAME`.
    pub pod: Key,
    /// `K8S_POD_UID`; empty if the runtime does not pass it.
    pub uid: String,
    /// Addresses of the pod; sorted.
    pub addresses: Vec<IpAddr>,
    /// Names of interfaces on the node, the pod's veth among them.
    pub interfaces: Vec<String>,
    /// Result for a secondary network of the pod (attachment name other than `eth0`); its addresses are not pod
    /// addresses.
    pub further: bool,
    /// Hardware address of the veth's peer in the pod.
    pub station: Option<[u8; 6]>,
    /// Labels and named ports from the manifest on this node, for a static pod.
    pub manifest: Option<(Labels, Vec<NamedPort>)>,
}

impl CniResult {
    /// Whether the result is about this pod, and not about an older one of the same name.
    #[must_use]
    pub fn is_of(&self, pod: &Pod) -> bool {
        self.pod == pod.key && (self.uid.is_empty() || self.uid == pod.uid || self.mirrors(pod))
    }

    /// Whether the pod is the API's mirror of this static pod; a mirror has a uid of its own.
    fn mirrors(&self, pod: &Pod) -> bool {
        pod.uid == mirrored_uid(&self.uid, &self.pod)
    }
}

/// [`Pod::uid`] for the API's mirror of a static pod, which the node knows by another uid. Includes the key, because
/// users can write the mirror annotation into pods of their own namespaces.
#[must_use]
pub fn mirrored_uid(uid: &str, key: &Key) -> String {
    format!("{uid}@{key}")
}

/// Whether a pod is the API's mirror of a static one; no other uid contains `@`.
pub(super) fn is_mirrored(pod: &Pod) -> bool {
    pod.uid.contains('@')
}

/// Evidence for a binding, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Proof {
    /// Another veth in the same namespace is bound to the pod.
    Namespace,
    /// The first addresses inside, or an earlier agent's binding.
    Inside,
    /// A CNI result or a host route.
    Node,
}

#[derive(Clone, Debug)]
pub(super) struct Binding {
    pub(super) bound: Bound,
    pub(super) by: Proof,
}

#[derive(Clone, Debug)]
pub(super) struct HeldVeth {
    pub(super) veth: Veth,
    /// First addresses seen inside. Empty forever if an earlier agent had bound the veth: later addresses are not
    /// evidence.
    pub(super) first: Vec<IpAddr>,
    pub(super) binding: Option<Binding>,
    /// Hardware address of the peer, as fixed at binding.
    pub(super) station: Option<[u8; 6]>,
    /// Binding of an earlier agent, not yet restored.
    pub(super) inherited: Option<Inherited>,
    /// The pod of the earlier agent's binding was not found.
    pub(super) lost: bool,
    pub(super) told: Option<Interface>,
}

/// A pod of this node as judged: a finished pod counts as deleted, but keeps its veth.
pub(super) fn as_judged(pod: &Arc<Pod>) -> (Arc<Pod>, Standing) {
    if is_subject(pod) {
        return (Arc::clone(pod), Standing::Listed);
    }
    (Arc::new(Pod { finished: false, ..pod.as_ref().clone() }), Standing::Deleted)
}

/// The pod of a further veth, with the addresses that a CNI plugin answered for that veth; none are known without an
/// answer.
pub(super) fn with_secondary_addresses(pod: &mut Arc<Pod>, answered: Option<&CniResult>) {
    let known = answered.filter(|result| result.is_of(pod));
    let known = known.map_or(&[][..], |result| &result.addresses[..]);
    if pod.addresses != known {
        Arc::make_mut(pod).addresses = known.to_vec();
    }
}
