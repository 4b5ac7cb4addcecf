//! The fast path: a packet of a known flow passes on the verdict that its conntrack entry caches, see
//! [`crate::flow::cached_verdict`].

use crate::{
    direction::Direction,
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
        protocol::{SCTP, TCP, TCP_FIN, TCP_RST, TCP_SYN, UDP},
        tuple::FlowTuple,
    },
    reason::Reason,
    tables::{TableFamily, Tables},
    trace::Step,
};

/// Why a packet passes, where its flow's entry remembers that of the current policy and would be
/// left as it is. This is what most packets meet, and all that they read of the tables.
///
/// The entry is looked for in the first of its two places, where nearly all are.
///
/// # Errors
/// What was found there.
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub(crate) fn cached_verdict<F: TableFamily, D: Direction, T: Tables>(
    context: &EndpointContext<'_, D, T>,
    packet: &Packet<'_, F>,
) -> Result<Reason, LookupHint> {
    let (tables, opaque) = (context.tables, context.opaque());
    let nothing = LookupHint::none(&opaque);
    if !is_usual(context, packet) {
        return Err(nothing);
    }
    let Some(settings) = tables.settings() else { return Err(nothing) };
    let flow = FlowTuple::<F>::new(packet.remote::<D>(), &packet.transport, D::EGRESS);
    let key = lookup::key::<F>(context.id, &flow);
    let Some((hint, hit)) = LookupHint::look::<F, T>(tables, settings, &key, &opaque) else {
        return Err(nothing);
    };
    let age = tables.now().wrapping_sub(hit.control.seen());
    if !hit.control.is_valid() || age >= settings.refresh_after {
        return Err(hint);
    }
    // SAFETY: found by this family's key.
    let judged = CachedVerdict(unsafe { tables.load(hit.cached_verdict::<F::Key>()) });
    let current = CachedVerdict::nothing(context.revision, hit.control.incarnation());
    if T::TRACED
        && let Some(reason) = judged.reason::<D>(current)
    {
        tables.note(Step::Cached, reason as u64, hit.control.0);
    }
    judged.reason::<D>(current).ok_or(hint)
}

/// Leaves in a flow's entry why a packet passed, for [`cached_verdict`]. Whoever writes at the same
/// time overwrites a reason that will be found out again.
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub(crate) fn remember<F: TableFamily, D: Direction, T: Tables>(
    context: &EndpointContext<'_, D, T>,
    packet: &Packet<'_, F>,
    hit: Hit,
    reason: Reason,
) {
    // Until a connection's opening is confirmed its packets have flags to add. Hidden, since they
    // would else be computed where there is no entry, of a register that nobody wrote.
    let flags = context.opaque().number(hit.control.flags());
    let settled =
        flags & CT_REPLIED != 0 || (flags & D::SEEN != 0 && !has_handshake(&packet.transport));
    if !settled || !is_usual(context, packet) || !lasts(reason) {
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

/// Whether a packet is one of those in a flow's middle, which change nothing. What the node sends
/// itself has a verdict of its own.
#[inline(always)]
fn is_usual<F: Family, D: Direction, T: Tables>(
    context: &EndpointContext<'_, D, T>,
    packet: &Packet<'_, F>,
) -> bool {
    let (transport, fragment) = (&packet.transport, &packet.network.fragment);
    matches!(transport.protocol, TCP | UDP | SCTP)
        && transport.flags & (TCP_SYN | TCP_FIN | TCP_RST) == 0
        && !fragment.more
        && !fragment.is_later()
        && !context.is_from_node(fragment)
}

/// Whether a reason is one that depends on the flow and on policy alone. That a packet is the pod's
/// own come back depends on the interface it came by.
#[inline(always)]
const fn lasts(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NotIsolated | Reason::Allowed | Reason::Reply | Reason::Translated | Reason::Answer
    )
}
