//! Conntrack entries: creation, refresh and use by packets.
//!
//! An entry records the initiator: the direction of the first packet that policy allowed. Replies pass for as long as
//! policy allows that direction, regardless of the policy of their own. So every allowed packet of an endpoint with any
//! isolation refreshes its flow's entry. If only flows with replies that could be dropped at the moment were recorded,
//! a server's replies would later look like flows that the pod began, and outlive the policy that denies its client.

use crate::{
    direction::PodDirection,
    flow::table::{Flow, Hit},
    judge::{
        context::EndpointContext,
        fast_path,
        lookup::{self, LookupHint},
        transition::{
            UNCHANGED, closing_changes, confirmation_flags, is_always_reply, may_begin, reply_flags,
        },
    },
    layout::{
        CLASS_SERVICE, CT_NODE, CT_REPLIED, CT_STREAM, CT_SYN, ClassId, ROW_NOT_ISOLATED, Settings,
    },
    packet::{
        icmp::{self, Echo, begins},
        parse::{has_handshake, is_opening},
        parsed::Packet,
        protocol::{TCP_FIN, TCP_RST, UDP},
        quoted::Quote,
        tuple::FlowTuple,
    },
    reason::Reason,
    tables::{TableFamily, Tables},
    trace::Step,
};

/// Flow to look up for a packet; `None` if the flow table does not affect the verdict.
///
/// # Errors
/// [`Reason::Deferred`] for ICMP errors on the fast path.
#[inline(always)]
pub(crate) fn flow_tuple<F: TableFamily, D: PodDirection, T: Tables>(
    context: &EndpointContext<'_, D, T>,
    packet: &Packet<'_, F>,
    allowed: bool,
) -> Result<Option<FlowTuple<F>>, Reason> {
    let transport = &packet.transport;
    let own = FlowTuple::new(packet.remote::<D>(), transport, D::EGRESS);
    if icmp::is_icmp(transport.protocol) {
        let policy = &context.policy;
        // Of a message, the verifier knows its type.
        let own = context.opaque().flow(&own);
        return match icmp::echo(transport) {
            Echo::Request => Ok(allowed.then_some(own)),
            Echo::Reply => Ok(Some(own)),
            Echo::None if !icmp::is_error(transport) => Ok(None),
            // The node may still translate the pod's own errors, so these need their flow.
            Echo::None if allowed && !(D::EGRESS && policy.is_isolated()) => Ok(None),
            Echo::None => match packet.quoted.quote {
                Quote::Unread => Err(Reason::Deferred),
                Quote::Nothing => Ok(None),
                Quote::Flow => Ok(Some(packet.quoted.flow)),
            },
        };
    }
    Ok((allowed || !is_opening(transport)).then_some(own))
}

/// A packet and its flow, for the lookup of the flow's entry.
pub(crate) struct FlowTracker<'a, F: TableFamily, D, T> {
    pub(crate) context: &'a EndpointContext<'a, D, T>,
    pub(crate) packet: &'a Packet<'a, F>,
    /// Flow that the packet belongs to, or that an ICMP error quotes.
    pub(crate) flow: &'a FlowTuple<F>,
    /// Class of the packet's remote address.
    pub(crate) class: ClassId,
    /// Reason why policy allows the packet, if it does.
    pub(crate) allowed: Option<Reason>,
}

impl<F: TableFamily, D: PodDirection, T: Tables> FlowTracker<'_, F, D, T> {
    /// Verdict by the flow table: an allowed packet creates or refreshes its entry, any other needs an entry that
    /// makes it a reply or a related error.
    #[inline(always)]
    pub(crate) fn judge_by_flow(&self, hint: LookupHint) -> Result<Reason, Reason> {
        let tables = self.context.tables;
        let settings = tables.settings().ok_or(Reason::NoTable)?;
        let key = lookup::key(self.context.id, self.flow);
        let hash = hint.hash::<F>(settings, &key);
        let hit = hint.find::<F, T>(tables, settings, &key, hash)?;
        let hit = hit.control.is_valid().then_some(hit);
        let reason = self.judge_by_entry(key, hash, hit, settings)?;
        if let Some(hit) = hit {
            fast_path::cache_verdict(self.context, self.packet, hit, reason);
        }
        Ok(reason)
    }

    /// Verdict by the flow's entry, if there is one.
    #[inline(always)]
    #[expect(clippy::wildcard_enum_match_arm, reason = "of all reasons, a reply goes on")]
    fn judge_by_entry(
        &self,
        key: F::Key,
        hash: u64,
        hit: Option<Hit>,
        settings: &Settings,
    ) -> Result<Reason, Reason> {
        let Self { context, packet, class, allowed, .. } = *self;
        let (tables, policy) = (context.tables, &context.policy);
        let protocol = self.flow.protocol;
        let now = tables.now();
        let live = hit.filter(|hit| !tables.is_expired(hit.control, protocol, settings, now));
        if T::TRACED {
            let found = u64::from(hit.is_some()) + u64::from(live.is_some());
            tables.record_step(Step::Flow, found, hit.map_or(0, |hit| hit.control.0));
        }
        if D::EGRESS && icmp::is_error(&packet.transport) {
            return self.judge_sent_error(live);
        }
        let Some(found) = live else {
            let Some(reason) = allowed else { return context.denied_unless_loopback(packet) };
            if reason as u8 == Reason::Node as u8 && is_always_reply(&packet.transport) {
                return context.denied_unless_loopback(packet);
            }
            self.create_entry(key, hash, hit, now)?;
            return Ok(policy.passing_reason(reason, class));
        };
        let add = match allowed {
            Some(_) => self.refreshing_flags(found, now),
            None => match self.judge_reply(found)? {
                Reason::Reply => reply_flags(&packet.transport),
                other => return Ok(other),
            },
        };
        if add != UNCHANGED {
            self.touch(found, add, settings, now);
        }
        let Some(reason) = allowed else { return Ok(policy.reply_reason(Reason::Reply, class)) };
        // A reply goes back through the translation of its flow: its destination, an address of the node, may represent
        // any client that the policy of the other direction has admitted.
        let flags = found.control.flags();
        let answers = D::EGRESS && flags & D::SEEN == 0 && !begins(&packet.transport);
        Ok(if answers {
            policy.reply_reason(reason, class)
        } else {
            policy.passing_reason(reason, class)
        })
    }

    /// Flags of a new entry begun by the packet.
    #[inline(always)]
    fn initial_flags(&self) -> u16 {
        let packet = self.packet;
        let node = if packet.from_node { CT_NODE } else { 0 };
        let syn = if is_opening(&packet.transport) { CT_SYN } else { 0 };
        D::SEEN | node | syn
    }

    /// Creates the entry of an allowed packet without a live one.
    ///
    /// # Errors
    /// [`Reason::ConntrackFull`] if there is no room and the replies would be dropped.
    #[inline(always)]
    fn create_entry(
        &self,
        key: F::Key,
        hash: u64,
        expired: Option<Hit>,
        now: u32,
    ) -> Result<(), Reason> {
        let Self { context, packet, class, .. } = *self;
        // A Service never begins a flow. With a flow begun from a forged Service address, the pod's packets to the
        // Service would pass as replies, to any backend that the node chooses.
        if !D::EGRESS && class & CLASS_SERVICE != 0 {
            return Ok(());
        }
        if !may_begin(&packet.transport, packet.from_node) {
            return Ok(());
        }
        let (tables, seen) = (context.tables, self.initial_flags());
        if let Some(hit) = expired {
            // SAFETY: found in the table just now. If another writer is faster, its entry stays.
            unsafe { Flow::<F::Key>::restart(tables, hit, seen, now) };
            return Ok(());
        }
        let inserted = F::insert(tables, key, hash, seen).or_else(|_| {
            tables.make_room(F::IS_V6, context.id, hash);
            F::insert(tables, key, hash, seen)
        });
        match inserted {
            Err(_) if context.policy.rows().opposite::<D>() != ROW_NOT_ISOLATED => {
                Err(Reason::ConntrackFull)
            }
            _ => Ok(()),
        }
    }

    /// Flags that an allowed packet adds to its live entry, or [`UNCHANGED`].
    #[inline(always)]
    fn refreshing_flags(&self, hit: Hit, now: u32) -> u16 {
        let transport = &self.packet.transport;
        let flags = hit.control.flags();
        let begun = flags & D::SEEN != 0;
        let seen = self.initial_flags();
        if is_opening(transport) && (!begun || hit.control.is_closing()) {
            // SAFETY: found in the table just now.
            unsafe { Flow::<F::Key>::restart(self.context.tables, hit, seen, now) };
            return UNCHANGED;
        }
        if !begun && self.was_cut(flags) {
            // Not refreshed either, so the entry expires after its idle time.
            return UNCHANGED;
        }
        match icmp::echo(transport) {
            Echo::Request => seen,
            Echo::None if begun => seen & CT_NODE | confirmation_flags(flags, transport),
            Echo::Reply | Echo::None => reply_flags(transport),
        }
    }

    /// Updates a live entry by a packet of its flow.
    #[inline(always)]
    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "a way's words are read and written under one promise"
    )]
    fn touch(&self, hit: Hit, add: u16, settings: &Settings, now: u32) {
        let (tables, transport) = (self.context.tables, &self.packet.transport);
        let mut changes = closing_changes::<D>(transport).and(add);
        let (flags, after) = (hit.control.flags(), settings.refresh_after);
        if transport.protocol == UDP && flags & (CT_REPLIED | CT_STREAM) == CT_REPLIED {
            // As `stream_ts` in the kernel's conntrack: the stamp stays until the flow counts as a stream.
            if hit.control.age(now) <= 2 * after {
                return;
            }
            changes = changes.and(CT_STREAM);
        }
        // SAFETY: found in the table just now, by this family's key.
        unsafe {
            if transport.flags & (TCP_FIN | TCP_RST) != 0 {
                // Clears the cached verdict: the slow path judges the next packet, regardless of its flags.
                tables.store(hit.cached_verdict::<F::Key>(), 0);
            }
            Flow::<F::Key>::touch(tables, hit, changes, now, after);
        }
    }

    /// Whether a packet without a handshake belongs to a flow that the other side began and policy has cut since.
    /// Later packets of the pod must not turn it into a flow that the pod began.
    #[inline(always)]
    fn was_cut(&self, flags: u16) -> bool {
        let transport = &self.packet.transport;
        if has_handshake(transport) || icmp::is_icmp(transport.protocol) {
            return false;
        }
        let own = FlowTuple::<F>::new(self.packet.remote::<D>(), transport, D::EGRESS);
        !self.context.policy.still_allows(flags & (CT_NODE | D::OTHER_SEEN), self.class, &own)
    }

    /// An ICMP error of the pod passes if policy allows the flow that it quotes. The node translates an error like its
    /// flow, so it is judged again after the translation, unless the other side began the flow: then it goes back to an
    /// initiator that policy has admitted. The error goes to the sender of the quoted packet, so both have the same
    /// class.
    #[inline(always)]
    fn judge_sent_error(&self, live: Option<Hit>) -> Result<Reason, Reason> {
        let (policy, class) = (&self.context.policy, self.class);
        let flags = live.map_or(0, |hit| hit.control.flags());
        if policy.still_allows(flags & (D::OTHER_SEEN | CT_NODE), class, self.flow) {
            return Ok(policy.reply_reason(Reason::Related, class));
        }
        if let Some(reason) = self.allowed {
            return Ok(policy.rejudged_reason(reason));
        }
        if policy.still_allows(flags, class, self.flow) {
            return Ok(policy.passing_reason(Reason::Related, class));
        }
        self.context.denied_unless_loopback(self.packet)
    }

    /// Judges a packet that policy does not allow but that has a live entry: it passes as a reply of a flow that
    /// policy allows now, or as an ICMP error to the pod about such a flow.
    ///
    /// # Errors
    /// Reason of the drop.
    #[inline(always)]
    fn judge_reply(&self, hit: Hit) -> Result<Reason, Reason> {
        let Self { context, packet, flow, class, .. } = *self;
        let policy = &context.policy;
        let flags = hit.control.flags();
        if icmp::is_error(&packet.transport) {
            let class = F::class(context.tables, flow.remote);
            if !policy.still_allows(flags, class, flow) {
                return context.denied_unless_loopback(packet);
            }
            // If the pod was the responder of the quoted flow, the initiator sent this error.
            let begun = flags & D::SEEN == 0;
            return Ok(if begun {
                policy.reply_reason(Reason::Related, class)
            } else {
                Reason::Related
            });
        }
        // The node's own packets are in ingress, so the replies to them are in egress.
        let node = if D::EGRESS { CT_NODE } else { 0 };
        if !policy.still_allows(flags & (D::OTHER_SEEN | node), class, flow) {
            return context.denied_unless_loopback(packet);
        }
        Ok(Reason::Reply)
    }
}
