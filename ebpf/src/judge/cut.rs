//! Connections that a change of policy cuts: both ends receive a reset at once.
//!
//! A denied TCP segment of an established flow of the table shows that policy has changed. Its sender receives the
//! answer of [`crate::judge::reject`]. The segment itself is forwarded as a reset without data ([`as_reset`]), through
//! the translation and along the path of its flow: its sequence number is the one that the receiver expects, unless
//! segments were lost or the segment is a repetition or a keepalive.
//!
//! Then one of the ends still exists, and its next segment is answered by a reset of the other end's host. That reset
//! is forwarded too. So a flow carries at most two more segments after policy has cut it, of 64 bits each besides its
//! ports and flags, and no forged segment resets anything that it could not have reset before.
//!
//! The two are flags of the flow's entry that last as long as the entry. A denied packet changes nothing else there: if
//! it ended or shortened an entry, the next packet of the other side would begin a new one, with that side as the
//! initiator, and the cut connection would continue as replies.
//!
//! A segment to an address that the node translates is not forwarded. The reset would be translated by the node's
//! conntrack, perhaps to a backend that policy never allowed.

use crate::{
    direction::PodDirection,
    endpoint::EndpointRef,
    flow::control::Control,
    judge::{
        lookup::{self, LookupHint},
        opaque::Opaque,
        reject::ends,
    },
    layout::{CLASS_TRANSLATED, CT_CUT, CT_CUT_RESET, CT_REPLIED},
    packet::{
        bytes::Bytes,
        protocol::TCP,
        rejection::{Denied, Rejection, RejectionFamily, as_reset},
        tuple::FlowTuple,
    },
    tables::{TableFamily, Tables},
};

/// The reset forwarded in place of a denied packet with a proved source, and the change of its flow's entry; `None`:
/// the packet belongs to no established TCP flow, the flow has had its resets, or the limit of answers is used up.
/// `take_token`: takes an answer from that limit for a denied segment that is itself a reset; any other segment's
/// answer has already taken one.
#[inline(always)]
pub fn forwarded_reset<D: PodDirection, F: TableFamily + RejectionFamily, B: Bytes, T: Tables>(
    bytes: &B,
    tables: &T,
    endpoint: EndpointRef,
    denied: &Denied<F::Address>,
    take_token: impl FnOnce() -> bool,
) -> Option<Denied<F::Address>> {
    let onward = as_reset(bytes, denied)?;
    let Rejection::Reset { ports: [to, from], .. } = onward.rejection else { return None };
    let (_, remote) = ends::<D, F>(denied);
    let [local_port, remote_port] = if D::EGRESS { [from, to] } else { [to, from] };
    let flow = FlowTuple::<F> { remote, protocol: TCP, local_port, remote_port };
    if D::EGRESS && F::class(tables, remote) & CLASS_TRANSLATED != 0 {
        return None;
    }
    let is_reset = matches!(denied.rejection, Rejection::Nothing);
    may_forward(tables, endpoint, &flow, is_reset, take_token).then_some(onward)
}

/// Whether a segment of a flow may be forwarded as a reset; sets the flag in the flow's entry if so. A concurrent
/// change of the flag comes from another segment.
#[inline(always)]
fn may_forward<F: TableFamily, T: Tables>(
    tables: &T,
    endpoint: EndpointRef,
    flow: &FlowTuple<F>,
    is_reset: bool,
    take_token: impl FnOnce() -> bool,
) -> bool {
    let Some(settings) = tables.settings() else { return false };
    let key = lookup::key(endpoint.id(), flow);
    let hint = LookupHint::none(&Opaque::new(tables, u64::from(endpoint.id())));
    let hash = hint.hash::<F>(settings, &key);
    let Ok(hit) = hint.find::<F, T>(tables, settings, &key, hash) else { return false };
    let control = hit.control;
    let flags = control.flags();
    if !control.is_valid()
        || flags & CT_REPLIED == 0
        || control.is_closed()
        || control.is_expired(tables, TCP, settings, tables.now())
    {
        return false;
    }
    let flag = if is_reset { CT_CUT_RESET } else { CT_CUT };
    // The limit is checked before the flag is set: a reset beyond the limit leaves the flag to a later one.
    if flags & flag != 0 || is_reset && !take_token() {
        return false;
    }
    let after = Control::new(control.last_seen(), control.incarnation(), flags | flag);
    // SAFETY: found in the table just now.
    unsafe { tables.swap(hit.way, control.0, after.0) == control.0 }
}
