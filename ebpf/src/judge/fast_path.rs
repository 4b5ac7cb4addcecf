//! The fast path: a packet of a known flow passes on the verdict that its conntrack entry caches, see
//! [`crate::flow::cached_verdict`].

use crate::{
    direction::Direction,
    flow::{
        cached_verdict::CachedVerdict,
        control::Control,
        key,
        table::{self, Hit},
    },
    judge::evaluator::PacketEvaluator,
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

/// What [`PacketEvaluator::cached_verdict`] found in the first of a flow's two buckets.
#[derive(Clone, Copy)]
pub(crate) struct LookupHint {
    /// Not 0 if it did look. Hidden from the verifier, which else would follow all that comes behind
    /// once more.
    pub(crate) done: u16,
    /// The hash of the flow's key, if so.
    pub(crate) hash: u64,
    /// As [`table::search`] answers.
    pub(crate) found: (usize, Control),
}

impl<D: Direction, T: Tables> PacketEvaluator<'_, D, T> {
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
    pub(crate) fn cached_verdict<F: TableFamily>(
        &self,
        packet: &Packet<'_, F>,
    ) -> Result<Reason, LookupHint> {
        let nothing = LookupHint { done: self.forget(0), hash: 0, found: (0, Control(0)) };
        if !self.is_usual(packet) {
            return Err(nothing);
        }
        let Some(settings) = self.tables.settings() else { return Err(nothing) };
        let own = FlowTuple::<F>::new(packet.remote::<D>(), &packet.transport, D::EGRESS);
        let key = self.key::<F>(&own);
        let hash = key::hash(settings, &key);
        let index = key::first(hash, F::mask(settings));
        let Some(bucket) = F::bucket(self.tables, index) else { return Err(nothing) };
        // SAFETY: a whole bucket of this family's table.
        let found = unsafe { table::search(self.tables, &key, hash, bucket) };
        let hint = LookupHint { done: self.forget(1), hash, found };
        // SAFETY: as above.
        let hit = unsafe { Hit::at::<F::Key>(bucket, found) };
        let age = self.tables.now().wrapping_sub(hit.control.seen());
        if !hit.control.is_valid() || age >= settings.refresh_after {
            return Err(hint);
        }
        // SAFETY: found by this family's key.
        let judged = CachedVerdict(unsafe { self.tables.load(hit.cached_verdict::<F::Key>()) });
        let current = CachedVerdict::nothing(self.revision, hit.control.incarnation());
        if T::TRACED
            && let Some(reason) = judged.reason::<D>(current)
        {
            self.tables.note(Step::Cached, reason as u64, hit.control.0);
        }
        judged.reason::<D>(current).ok_or(hint)
    }

    /// Leaves in a flow's entry why a packet passed, for [`PacketEvaluator::cached_verdict`]. Whoever writes at the same
    /// time overwrites a reason that will be found out again.
    #[inline(always)]
    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "a way's words are read and written under one promise"
    )]
    pub(crate) fn remember<F: TableFamily>(
        &self,
        packet: &Packet<'_, F>,
        hit: Hit,
        reason: Reason,
    ) {
        // Until a connection's opening is confirmed its packets have flags to add. Hidden, since they
        // would else be computed where there is no entry, of a register that nobody wrote.
        let flags = self.forget(hit.control.flags());
        let settled =
            flags & CT_REPLIED != 0 || (flags & D::SEEN != 0 && !has_handshake(&packet.transport));
        if !settled || !self.is_usual(packet) || !lasts(reason) {
            return;
        }
        let current = CachedVerdict::nothing(self.revision, hit.control.incarnation());
        // SAFETY: found by this family's key, in memory that is only ever changed by whole words.
        unsafe {
            let word = hit.cached_verdict::<F::Key>();
            let before = CachedVerdict(self.tables.load(word));
            let after = before.with::<D>(current, reason);
            if after != before {
                self.tables.store(word, after.0);
            }
        }
    }

    /// Whether a packet is one of those in a flow's middle, which change nothing. What the node sends
    /// itself has a verdict of its own.
    #[inline(always)]
    fn is_usual<F: Family>(&self, packet: &Packet<'_, F>) -> bool {
        let transport = &packet.transport;
        matches!(transport.protocol, TCP | UDP | SCTP)
            && transport.flags & (TCP_SYN | TCP_FIN | TCP_RST) == 0
            && !packet.network.fragment.more
            && !packet.network.fragment.is_later()
            && !self.is_from_node(&packet.network.fragment)
    }
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
