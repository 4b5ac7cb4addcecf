//! When a packet makes, refreshes or uses a conntrack entry.
//!
//! An entry remembers who began: the direction of the first packet that policy allowed. Answers
//! pass for as long as that direction is allowed, whatever their own direction's policy says. So
//! every allowed packet of an endpoint with any isolation refreshes its flow's entry: were only
//! the flows recorded whose answers could be dropped at the moment, a server's answers would later
//! look like flows that the pod began, and outlive the policy that denies its client.
use crate::{
    direction::Direction,
    flow::{
        key,
        table::{self, Flow, Hit, Marks},
    },
    judge::{evaluator::PacketEvaluator, fast_path::LookupHint},
    layout::{
        CLASS_SERVICE, CT_BUSY, CT_EGRESS, CT_INGRESS, CT_NODE, CT_REPLIED, CT_RST, CT_RST_SENT,
        CT_STREAM, CT_SYN, CT_SYN_ACK, ClassId, ROW_NOT_ISOLATED, Settings,
    },
    packet::{
        icmp::{self, Echo, begins},
        parse::{Transport, has_handshake, is_opening},
        parsed::Packet,
        protocol::{TCP_ACK, TCP_FIN, TCP_PSH, TCP_RST, TCP_SYN, UDP},
        quoted::Quote,
        tuple::FlowTuple,
    },
    reason::Reason,
    tables::{TableFamily, Tables, policy::row_allows},
    trace::Step,
};

/// Whether a packet may become a new entry in its direction. In the middle of a connection that
/// began before its pod was isolated, the lower port is taken for the server's, unless the node sent it.
/// A wrong guess cuts the connection, or lets a denied client's go on that was open before and whose
/// server has the higher port.
#[inline(always)]
const fn may_begin(transport: &Transport, of_node: bool) -> bool {
    if !has_handshake(transport) {
        return !matches!(icmp::echo(transport), Echo::Reply);
    }
    is_opening(transport)
        || (transport.flags & (TCP_SYN | TCP_RST) == 0
            && (of_node || transport.destination < transport.source))
}

/// A packet that the node sends only as an answer. Whoever asked may have forged the pod's address: then
/// the pod has no such flow.
#[inline(always)]
const fn only_answers(transport: &Transport) -> bool {
    let flags = transport.flags;
    flags & TCP_RST != 0 || flags & (TCP_SYN | TCP_ACK) == TCP_SYN | TCP_ACK
}

/// What an answer makes of its flow: the second packet of a handshake proves nothing of who sent the
/// first, and one that refuses establishes nothing.
#[inline(always)]
const fn answering(transport: &Transport) -> u16 {
    match transport.flags & (TCP_SYN | TCP_RST) {
        0 => CT_REPLIED,
        TCP_SYN => CT_SYN_ACK,
        _ => 0,
    }
}

/// What a further packet of the side that began makes of its flow.
#[inline(always)]
const fn confirming(flags: u16, transport: &Transport) -> u16 {
    let ends = transport.flags & (TCP_SYN | TCP_RST) != 0;
    if flags & CT_SYN_ACK != 0 && !ends { CT_REPLIED } else { 0 }
}

/// Instead of flags that a packet adds to its entry: the entry is left as it is.
const LEAVE: u16 = CT_BUSY;

/// Flags that a packet leaves in its entry however it came to pass. What ends a flow can be forged, so
/// what shows that it goes on takes that back: after an RST any packet, after a FIN data of the side that
/// is said to have sent it (PSH tells data from acknowledgements without a look behind the header).
#[inline(always)]
const fn closing<D: Direction>(transport: &Transport) -> Marks {
    if transport.flags & TCP_RST != 0 {
        return Marks::new(if D::EGRESS { CT_RST_SENT } else { CT_RST }, 0);
    }
    let fin = if transport.flags & TCP_FIN != 0 { D::FIN } else { 0 };
    let data = transport.flags & (TCP_SYN | TCP_PSH) == TCP_PSH;
    Marks::new(fin, CT_RST | CT_RST_SENT | if data { D::FIN } else { 0 })
}

impl<D: Direction, T: Tables> PacketEvaluator<'_, D, T> {
    /// The flow to look up for a packet; `None` where the flow table has no say.
    ///
    /// # Errors
    /// [`Reason::Deferred`] for ICMP errors on the fast path.
    #[inline(always)]
    pub(crate) fn flow_tuple<F: TableFamily>(
        &self,
        packet: &Packet<'_, F>,
        allowed: bool,
    ) -> Result<Option<FlowTuple<F>>, Reason> {
        let transport = &packet.transport;
        let own = FlowTuple::new(packet.remote::<D>(), transport, D::EGRESS);
        if icmp::is_icmp(transport.protocol) {
            return match icmp::echo(transport) {
                Echo::Request => Ok(allowed.then_some(own)),
                Echo::Reply => Ok(Some(own)),
                Echo::None if !icmp::is_error(transport) => Ok(None),
                // The pod's own errors may be translated after this place.
                Echo::None if allowed && !(D::EGRESS && self.row() != ROW_NOT_ISOLATED) => Ok(None),
                Echo::None => match packet.quoted.quote {
                    Quote::Unread => Err(Reason::Deferred),
                    Quote::Nothing => Ok(None),
                    Quote::Flow => Ok(Some(packet.quoted.flow)),
                },
            };
        }
        Ok((allowed || !is_opening(transport)).then_some(own))
    }

    /// The verdict by the flow table: an allowed packet makes or refreshes its entry, another
    /// passes if its entry says so.
    #[inline(always)]
    pub(crate) fn settle<F: TableFamily>(
        &self,
        packet: &Packet<'_, F>,
        subject: &FlowTuple<F>,
        class: ClassId,
        allowed: Option<Reason>,
        hint: LookupHint,
    ) -> Result<Reason, Reason> {
        let settings = self.tables.settings().ok_or(Reason::NoTable)?;
        let key = self.key::<F>(subject);
        let hash = match hint.done {
            0 => key::hash(settings, &key),
            _ => hint.hash,
        };
        let hit = self.find::<F>(settings, &key, hash, hint)?;
        let hit = hit.control.is_valid().then_some(hit);
        let entry = (key, hash, hit);
        let reason = self.settle_entry(packet, subject, class, allowed, entry, settings)?;
        if let Some(hit) = hit {
            self.remember(packet, hit, reason);
        }
        Ok(reason)
    }

    /// As [`PacketEvaluator::settle`], with what the flow table has.
    #[inline(always)]
    #[expect(clippy::wildcard_enum_match_arm, reason = "of all reasons, a reply goes on")]
    fn settle_entry<F: TableFamily>(
        &self,
        packet: &Packet<'_, F>,
        subject: &FlowTuple<F>,
        class: ClassId,
        allowed: Option<Reason>,
        (key, hash, hit): (F::Key, u64, Option<Hit>),
        settings: &Settings,
    ) -> Result<Reason, Reason> {
        let protocol = subject.protocol;
        let now = self.tables.now();
        let live = hit.filter(|hit| !hit.control.is_expired(self.tables, protocol, settings, now));
        if T::TRACED {
            let found = u64::from(hit.is_some()) + u64::from(live.is_some());
            self.tables.note(Step::Flow, found, hit.map_or(0, |hit| hit.control.0));
        }
        if D::EGRESS && icmp::is_error(&packet.transport) {
            return self.sent_error(packet, subject, class, allowed, live);
        }
        let Some(found) = live else {
            let Some(reason) = allowed else { return self.unanswered(packet) };
            if reason as u8 == Reason::Node as u8 && only_answers(&packet.transport) {
                return self.unanswered(packet);
            }
            self.begin(key, hash, hit, packet, class, now)?;
            return Ok(Self::passing(reason, class));
        };
        let add = match allowed {
            Some(_) => self.refresh::<F>(found, packet, class, now),
            None => match self.answer(packet, subject, class, found)? {
                Reason::Reply => answering(&packet.transport),
                other => return Ok(other),
            },
        };
        if add != LEAVE {
            self.touch::<F>(found, &packet.transport, add, settings, now);
        }
        let Some(reason) = allowed else { return Ok(self.answering(Reason::Reply, class)) };
        // An answer goes back through the translation that its flow came by: the node's address that
        // it goes to may stand for any client, whom the other side's policy has admitted.
        let flags = found.control.flags();
        let answers = D::EGRESS && flags & D::SEEN == 0 && !begins(&packet.transport);
        Ok(if answers { self.answering(reason, class) } else { Self::passing(reason, class) })
    }

    /// The flow's entry, expired or not; its control word is not valid where there is none. The second
    /// bucket is read only where the first has none.
    ///
    /// # Errors
    /// [`Reason::NoTable`].
    #[inline(always)]
    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "a way's words are read and written under one promise"
    )]
    fn find<F: TableFamily>(
        &self,
        settings: &Settings,
        key: &F::Key,
        hash: u64,
        hint: LookupHint,
    ) -> Result<Hit, Reason> {
        let index = key::first(hash, F::mask(settings));
        let bucket = F::bucket(self.tables, index).ok_or(Reason::NoTable)?;
        // SAFETY: a whole bucket of this family's table.
        let hit = unsafe {
            let found = match hint.done {
                0 => table::search(self.tables, key, hash, bucket),
                _ => hint.found,
            };
            Hit::at::<F::Key>(bucket, found)
        };
        if hit.control.is_valid() {
            return Ok(hit);
        }
        let index = key::second(hash, F::mask(settings));
        let bucket = F::bucket(self.tables, index).ok_or(Reason::NoTable)?;
        // SAFETY: as above.
        Ok(unsafe { Hit::at::<F::Key>(bucket, table::search(self.tables, key, hash, bucket)) })
    }

    /// Flags of an entry that a packet of this direction begins.
    #[inline(always)]
    fn seen<F: TableFamily>(&self, packet: &Packet<'_, F>) -> u16 {
        let node = if self.is_from_node(&packet.network.fragment) { CT_NODE } else { 0 };
        let syn = if is_opening(&packet.transport) { CT_SYN } else { 0 };
        D::SEEN | node | syn
    }

    /// Whether policy allows now what a flow sends in a direction that its entry records.
    #[inline(always)]
    fn still_allows<F: TableFamily>(
        &self,
        flags: u16,
        class: ClassId,
        subject: &FlowTuple<F>,
    ) -> bool {
        let allows = |row: u32, port: u16| {
            row == ROW_NOT_ISOLATED || row_allows(self.tables, row, class, subject.protocol, port)
        };
        flags & CT_NODE != 0
            || (flags & CT_INGRESS != 0 && allows(self.ingress_row(), subject.local_port))
            || (flags & CT_EGRESS != 0 && allows(self.egress_row(), subject.remote_port))
    }

    /// An allowed packet without a live entry.
    ///
    /// # Errors
    /// [`Reason::ConntrackFull`] if there is no room and the answers would be dropped.
    #[inline(always)]
    fn begin<F: TableFamily>(
        &self,
        key: F::Key,
        hash: u64,
        expired: Option<Hit>,
        packet: &Packet<'_, F>,
        class: ClassId,
        now: u32,
    ) -> Result<(), Reason> {
        // A Service only answers. Whoever sends in its name would have the pod's packets to it pass as
        // answers, wherever the node leads them.
        if !D::EGRESS && class & CLASS_SERVICE != 0 {
            return Ok(());
        }
        if !may_begin(&packet.transport, self.is_from_node(&packet.network.fragment)) {
            return Ok(());
        }
        let seen = self.seen(packet);
        if let Some(hit) = expired {
            // SAFETY: found in the table just now. Who loses the race leaves it to the winner.
            unsafe { Flow::<F::Key>::restart(self.tables, hit, seen, now) };
            return Ok(());
        }
        let inserted = F::insert(self.tables, key, hash, seen).or_else(|_| {
            self.tables.make_room(F::IS_V6, self.endpoint_id(), hash);
            F::insert(self.tables, key, hash, seen)
        });
        match inserted {
            Err(_) if self.other_row() != ROW_NOT_ISOLATED => Err(Reason::ConntrackFull),
            _ => Ok(()),
        }
    }

    /// An allowed packet meets its live entry: the flags that it adds, or [`LEAVE`].
    #[inline(always)]
    fn refresh<F: TableFamily>(
        &self,
        hit: Hit,
        packet: &Packet<'_, F>,
        class: ClassId,
        now: u32,
    ) -> u16 {
        let transport = &packet.transport;
        let flags = hit.control.flags();
        let begun = flags & D::SEEN != 0;
        let seen = self.seen(packet);
        if is_opening(transport) && (!begun || hit.control.is_closing()) {
            // SAFETY: found in the table just now.
            unsafe { Flow::<F::Key>::restart(self.tables, hit, seen, now) };
            return LEAVE;
        }
        if !begun && self.was_cut(flags, packet, class) {
            // Not refreshed either, so it is over when its idle time is.
            return LEAVE;
        }
        match icmp::echo(transport) {
            Echo::Request => seen,
            Echo::None if begun => seen & CT_NODE | confirming(flags, transport),
            Echo::Reply | Echo::None => answering(transport),
        }
    }

    /// Marks a live entry with what a packet of its flow says.
    #[inline(always)]
    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "a way's words are read and written under one promise"
    )]
    fn touch<F: TableFamily>(
        &self,
        hit: Hit,
        transport: &Transport,
        add: u16,
        settings: &Settings,
        now: u32,
    ) {
        let mut marks = closing::<D>(transport).and(add);
        let (flags, after) = (hit.control.flags(), settings.refresh_after);
        if transport.protocol == UDP && flags & (CT_REPLIED | CT_STREAM) == CT_REPLIED {
            // As the kernel's conntrack has it (`stream_ts`): until then the stamp stays.
            if hit.control.age(now) <= 2 * after {
                return;
            }
            marks = marks.and(CT_STREAM);
        }
        // SAFETY: found in the table just now, by this family's key.
        unsafe {
            if transport.flags & (TCP_FIN | TCP_RST) != 0 {
                // The next packet is to be looked at, whatever it says.
                self.tables.store(hit.cached_verdict::<F::Key>(), 0);
            }
            Flow::<F::Key>::touch(self.tables, hit, marks, now, after);
        }
    }

    /// Whether a packet without a handshake belongs to a flow that the other side began and policy
    /// has cut since. What the pod still sends there must not make it a flow of the pod's own.
    #[inline(always)]
    fn was_cut<F: TableFamily>(&self, flags: u16, packet: &Packet<'_, F>, class: ClassId) -> bool {
        let transport = &packet.transport;
        if has_handshake(transport) || icmp::is_icmp(transport.protocol) {
            return false;
        }
        let own = FlowTuple::<F>::new(packet.remote::<D>(), transport, D::EGRESS);
        !self.still_allows(flags & (CT_NODE | D::OTHER_SEEN), class, &own)
    }

    /// An ICMP error of the pod passes if it is about a flow that policy allows now. The node translates
    /// an error as the flow that it quotes, so it is judged again after that, unless the flow was begun
    /// by the other side: then the error goes back to whoever policy has admitted. It goes to who sent
    /// what it quotes, so `class` is that of both.
    #[inline(always)]
    fn sent_error<F: TableFamily>(
        &self,
        packet: &Packet<'_, F>,
        subject: &FlowTuple<F>,
        class: ClassId,
        allowed: Option<Reason>,
        live: Option<Hit>,
    ) -> Result<Reason, Reason> {
        let flags = live.map_or(0, |hit| hit.control.flags());
        if self.still_allows(flags & (D::OTHER_SEEN | CT_NODE), class, subject) {
            return Ok(self.answering(Reason::Related, class));
        }
        if let Some(reason) = allowed {
            return Ok(self.judged_again(reason));
        }
        if self.still_allows(flags, class, subject) {
            return Ok(Self::passing(Reason::Related, class));
        }
        self.unanswered(packet)
    }

    /// A packet that policy does not allow meets a live entry: it passes if it answers a flow that
    /// policy allows now, or if it is an ICMP error about one that comes to the pod.
    ///
    /// # Errors
    /// The reason to drop it.
    #[inline(always)]
    fn answer<F: TableFamily>(
        &self,
        packet: &Packet<'_, F>,
        subject: &FlowTuple<F>,
        class: ClassId,
        hit: Hit,
    ) -> Result<Reason, Reason> {
        let flags = hit.control.flags();
        if icmp::is_error(&packet.transport) {
            let class = F::class(self.tables, subject.remote);
            if !self.still_allows(flags, class, subject) {
                return self.unanswered(packet);
            }
            // About what the pod has answered it comes from whoever has begun that.
            let begun = flags & D::SEEN == 0;
            return Ok(if begun {
                self.answering(Reason::Related, class)
            } else {
                Reason::Related
            });
        }
        // The node's own packets are in ingress, so their answers are in egress.
        let node = if D::EGRESS { CT_NODE } else { 0 };
        if !self.still_allows(flags & (D::OTHER_SEEN | node), class, subject) {
            return self.unanswered(packet);
        }
        Ok(Reason::Reply)
    }
}
