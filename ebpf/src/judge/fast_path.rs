//! Fast path: a packet of a known flow passes by the cached verdict of its conntrack entry, see
//! [`crate::flow::cached_verdict`].

use crate::{
    direction::PodDirection,
    flow::{cached_verdict::CachedVerdict, table::Hit},
    judge::{
        context::EndpointContext,
        lookup::{self, LookupHint},
    },
    layout::CT_REPLIED,
    packet::{
        family::Family,
        parse::has_handshake,
        parsed::Packet,
        protocol::{TCP_FIN, TCP_RST, TCP_SYN, has_ports},
        tuple::FlowTuple,
    },
    reason::Reason,
    tables::{TableFamily, Tables},
    trace::Step,
};

/// Reason why a packet passes, if its flow's entry caches one of the current policy and needs no change. Most packets
/// end here, without a read of policy.
///
/// Only the first of the flow's two buckets is searched: it contains nearly all entries.
///
/// # Errors
/// Result of the search, for the slow path.
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub(crate) fn cached_verdict<F: TableFamily, D: PodDirection, T: Tables>(
    context: &EndpointContext<'_, D, T>,
    packet: &Packet<'_, F>,
) -> Result<Reason, LookupHint> {
    let (tables, opaque) = (context.tables, context.opaque());
    let nothing = LookupHint::none(&opaque);
    if !is_usual(packet) {
        return Err(nothing);
    }
    let Some(settings) = tables.settings() else { return Err(nothing) };
    let flow = FlowTuple::<F>::new(packet.remote::<D>(), &packet.transport, D::EGRESS);
    let key = lookup::key::<F>(context.id, &flow);
    let Some((hint, hit)) =
        LookupHint::search_first_bucket::<F, T>(tables, settings, &key, &opaque)
    else {
        return Err(nothing);
    };
    let age = tables.now().wrapping_sub(hit.control.last_seen());
    if !hit.control.is_valid() || age >= settings.refresh_after {
        return Err(hint);
    }
    // SAFETY: found by this family's key.
    let judged = CachedVerdict(unsafe { tables.load(hit.cached_verdict::<F::Key>()) });
    let current = CachedVerdict::nothing(context.revision, hit.control.incarnation());
    if T::TRACED
        && let Some(reason) = judged.reason::<D>(current)
    {
        tables.record_step(Step::Cached, reason as u64, hit.control.0);
    }
    judged.reason::<D>(current).ok_or(hint)
}

/// Caches the reason why a packet passed in its flow's entry, for [`cached_verdict`]. A concurrent writer may
/// overwrite a reason, which the slow path then finds again.
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub(crate) fn cache_verdict<F: TableFamily, D: PodDirection, T: Tables>(
    context: &EndpointContext<'_, D, T>,
    packet: &Packet<'_, F>,
    hit: Hit,
    reason: Reason,
) {
    // Until a handshake is confirmed, its packets add flags to the entry. Hidden from the verifier: otherwise the
    // flags are computed also without an entry, from an uninitialized register.
    let flags = context.opaque().number(hit.control.flags());
    let settled =
        flags & CT_REPLIED != 0 || (flags & D::SEEN != 0 && !has_handshake(&packet.transport));
    if !settled || !is_usual(packet) || !lasts(reason) {
        return;
    }
    let tables = context.tables;
    let current = CachedVerdict::nothing(context.revision, hit.control.incarnation());
    // SAFETY: found by this family's key, in memory that is only ever changed by whole words.
    unsafe {
        let word = hit.cached_verdict::<F::Key>();
        let before = CachedVerdict(tables.load(word));
        let after = before.with::<D>(current, reason);
        if after != before {
            tables.store(word, after.0);
        }
    }
}

/// Whether a packet is from the middle of a flow and changes no flag. Packets of the node itself have a verdict of
/// their own.
#[inline(always)]
fn is_usual<F: Family>(packet: &Packet<'_, F>) -> bool {
    let (transport, fragment) = (&packet.transport, &packet.network.fragment);
    has_ports(transport.protocol)
        && transport.flags & (TCP_SYN | TCP_FIN | TCP_RST) == 0
        && !fragment.more
        && !fragment.is_later()
        && !packet.from_node
}

/// Whether a reason depends on the flow and on policy alone. [`Reason::Loopback`], for example, depends on the
/// interface that the packet arrived by.
#[inline(always)]
const fn lasts(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NotIsolated
            | Reason::Allowed
            | Reason::Reply
            | Reason::Translated
            | Reason::TranslatedReply
    )
}
