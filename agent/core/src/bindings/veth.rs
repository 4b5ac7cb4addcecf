//! Veths, what CNI plugins said of them, and what they are bound to.

use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::is_subject;
use crate::model::{Bound, Interface, Key, Labels, NamedPort, Pod, Standing};

/// A veth in the node's namespace whose other side is in another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Veth {
    /// Interface index.
    pub index: u32,
    /// Number that tells a reused index from the former interface.
    pub incarnation: u64,
    /// Name in the node's namespace.
    pub name: String,
    /// Identifier of the other side's namespace.
    pub namespace: i32,
    /// Addresses that the node's own routes lead to through it, one by one.
    pub routed: Vec<IpAddr>,
    /// Global addresses of the other side, [`Veth::MAX_INSIDE`] at the most. The pod can write them.
    pub inside: Vec<IpAddr>,
    /// Hardware address of the other side. The pod can write it.
    pub station: Option<[u8; 6]>,
}

impl Veth {
    /// As many addresses inside are looked at: the pod can have any number.
    pub const MAX_INSIDE: usize = 64;
}

/// What an earlier agent had bound a veth to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// [`uid_hash`](crate::model::uid_hash) of the pod.
    pub uid_hash: u64,
    /// Hardware address of the other side.
    pub station: Option<[u8; 6]>,
}

/// What a CNI plugin reported for a pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniResult {
    /// `K8S_POD_NAMESPACE` and `K8S_POD_NAME`.
    pub pod: Key,
    /// `K8S_POD_UID`; empty if the runtime does not say it.
    pub uid: String,
    /// The pod's; sorted.
    pub addresses: Vec<IpAddr>,
    /// Names of interfaces on the node's side, the pod's veth among them.
    pub interfaces: Vec<String>,
    /// Of a further network of the pod (an attachment by another name than `eth0`): its addresses are not the pod's.
    pub further: bool,
    /// Hardware address of the pod's side of the veth.
    pub station: Option<[u8; 6]>,
    /// Labels and named ports of a pod whose manifest is on this node (a static pod).
    pub manifest: Option<(Labels, Vec<NamedPort>)>,
}

impl CniResult {
    /// Whether it is this pod's, and not that of a former one of the same name.
    #[must_use]
    pub fn is_of(&self, pod: &Pod) -> bool {
        self.pod == pod.key && (self.uid.is_empty() || self.uid == pod.uid || self.mirrors(pod))
    }

    /// The API's image of a static pod has a uid of its own.
    fn mirrors(&self, pod: &Pod) -> bool {
        pod.uid == mirrored_uid(&self.uid, &self.pod)
    }
}

/// [`Pod::uid`] of the API's image of a static pod, which the node knows by another uid. It has the
/// key in it: anybody may write the annotation that it comes from, into pods of the own namespace.
#[must_use]
pub fn mirrored_uid(uid: &str, key: &Key) -> String {
    format!("{uid}@{key}")
}

/// Whether a pod is the API's image of a static one; no other uid has that sign.
pub(super) fn is_mirrored(pod: &Pod) -> bool {
    pod.uid.contains('@')
}

/// What a binding rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Proof {
    /// The other veth of a namespace.
    Namespace,
    /// The first addresses inside, or what an earlier agent knew.
    Inside,
    /// The node's word.
    Node,
}

#[derive(Clone, Debug)]
pub(super) struct Binding {
    pub(super) bound: Bound,
    pub(super) by: Proof,
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) veth: Veth,
    /// The first addresses that were seen behind it. Empty for ever where an earlier agent had bound
    /// it: what is there now is not the first.
    pub(super) first: Vec<IpAddr>,
    pub(super) binding: Option<Binding>,
    /// Hardware address of the other side, from when the veth was bound.
    pub(super) station: Option<[u8; 6]>,
    /// [`uid_hash`](super::uid_hash) of the pod that an earlier agent had bound it to.
    pub(super) inherited: Option<Inherited>,
    /// An earlier agent's pod is nowhere to be found.
    pub(super) lost: bool,
    pub(super) told: Option<Interface>,
}

/// A pod of this node as the API has it: one that has finished counts as gone, though not for its veth.
pub(super) fn as_judged(pod: &Arc<Pod>) -> (Arc<Pod>, Standing) {
    if is_subject(pod) {
        return (Arc::clone(pod), Standing::Listed);
    }
    (Arc::new(Pod { finished: false, ..pod.as_ref().clone() }), Standing::Deleted)
}

/// The pod of a further veth, with the addresses that a CNI plugin answered for that veth; none are known without an
/// answer.
pub(super) fn with_second_addresses(pod: &mut Arc<Pod>, answered: Option<&CniResult>) {
    let known = answered.filter(|result| result.is_of(pod));
    let known = known.map_or(&[][..], |result| &result.addresses[..]);
    if pod.addresses != known {
        Arc::make_mut(pod).addresses = known.to_vec();
    }
}
