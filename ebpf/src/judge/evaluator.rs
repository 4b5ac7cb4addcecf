//! Judgement of one packet at its endpoint, step by step.
//!
//! Inner functions return `Result<_, Reason>`: `Err` is a settled verdict, to pass or to drop.
//! [`PacketEvaluator::judge`] turns either side into the one [`PacketVerdict`].

use crate::{
    direction::PodDirection,
    endpoint::{EndpointRef, Rows},
    judge::{
        context::EndpointContext,
        fast_path, fragment,
        hook::PacketHook,
        link,
        lookup::LookupHint,
        policy::EndpointPolicy,
        track::{FlowTracker, flow_tuple},
    },
    layout::{ClassId, EP_CHECK_SOURCE},
    packet::{
        bytes::Bytes,
        family::{Family, V4, V6, mapped},
        icmp::{self, begins},
        parse,
        parse::{Transport, is_opening},
        parsed::{Packet, ParsedPacket},
        protocol::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP, UDP},
        quoted::{Quote, Quoted},
    },
    reason::Reason,
    tables::{Opening, TableFamily, Tables, find_endpoint},
    trace::Step,
    verdict::PacketVerdict,
};

/// Continuation of a judgement after the packet is parsed.
pub trait Visitor {
    /// Whether a later step also runs [`ParsedPacket::look_for_route`] and [`PacketEvaluator::judge_link_message`].
    const CHECKS_LATER: bool = false;
    /// Result of the continuation.
    type Output: From<PacketVerdict>;
    /// Continues with a parsed packet.
    fn visit<F: TableFamily, D: PodDirection, T: Tables>(
        &self,
        judge: &PacketEvaluator<'_, D, T>,
        parsed: &ParsedPacket<F>,
    ) -> Self::Output;
}

/// Rows of a judgement.
#[derive(Clone, Copy, Debug)]
pub struct JudgingRows {
    /// [`Tables::revision`], read before the rows and all other parts of policy, see
    /// [`crate::flow::cached_verdict`].
    pub revision: u32,
    /// The rows of both directions.
    pub rows: Rows,
}

impl JudgingRows {
    /// The rows in force at an endpoint.
    #[must_use]
    #[inline(always)]
    pub fn in_force<T: Tables>(tables: &T, endpoint: EndpointRef) -> Self {
        let revision = tables.revision();
        Self { revision, rows: endpoint.after_load(revision).rows() }
    }
}

/// Judgement of one packet at one endpoint.
#[derive(Debug)]
pub struct PacketEvaluator<'a, D, T> {
    context: EndpointContext<'a, D, T>,
    /// Whether the pod sent the packet, and may only use its own addresses.
    checks_source: bool,
}

impl<'a, D: PodDirection, T: Tables> PacketEvaluator<'a, D, T> {
    /// Begins a judgement.
    ///
    /// # Errors
    /// A settled verdict, if all packets of the interface pass.
    #[inline(always)]
    pub fn new(tables: &'a T, hook: PacketHook) -> Result<Self, PacketVerdict> {
        let endpoint =
            find_endpoint(tables, hook.ifindex).ok_or(PacketVerdict(Reason::NotEndpoint))?;
        Self::at(tables, endpoint, hook)
    }

    /// Begins a judgement at a known endpoint.
    ///
    /// # Errors
    /// As [`PacketEvaluator::new`].
    #[inline(always)]
    pub fn at(
        tables: &'a T,
        endpoint: EndpointRef,
        hook: PacketHook,
    ) -> Result<Self, PacketVerdict> {
        let rows = JudgingRows::in_force(tables, endpoint);
        Self::by_rows(tables, endpoint, hook, rows)
    }

    /// Begins a judgement at an endpoint by rows that were read before.
    ///
    /// # Errors
    /// As [`PacketEvaluator::new`].
    #[inline(always)]
    pub fn by_rows(
        tables: &'a T,
        endpoint: EndpointRef,
        hook: PacketHook,
        rows: JudgingRows,
    ) -> Result<Self, PacketVerdict> {
        let judge = Self::untraced(tables, endpoint, hook, rows)?;
        if T::TRACED {
            let context = &judge.context;
            let endpoint = u64::from(context.id) | u64::from(context.revision) << 32;
            tables.record_step(Step::Endpoint, endpoint, context.policy.rows().0);
        }
        Ok(judge)
    }

    /// Begins a judgement for parsing only: another evaluator judges the packet and adds the endpoint to the trace.
    ///
    /// # Errors
    /// As [`PacketEvaluator::new`].
    #[inline(always)]
    pub fn for_parsing(tables: &'a T, hook: PacketHook) -> Result<Self, PacketVerdict> {
        let endpoint =
            find_endpoint(tables, hook.ifindex).ok_or(PacketVerdict(Reason::NotEndpoint))?;
        Self::untraced(tables, endpoint, hook, JudgingRows::in_force(tables, endpoint))
    }

    #[inline(always)]
    fn untraced(
        tables: &'a T,
        endpoint: EndpointRef,
        hook: PacketHook,
        JudgingRows { revision, rows }: JudgingRows,
    ) -> Result<Self, PacketVerdict> {
        let endpoint = endpoint.after_load(revision);
        let checks_source = D::EGRESS && endpoint.flags() & EP_CHECK_SOURCE != 0;
        if rows.isolates_none() && !checks_source {
            return Err(PacketVerdict(Reason::NotIsolated));
        }
        let policy = EndpointPolicy::new(tables, rows);
        let context = EndpointContext::new(endpoint, policy, tables, revision, hook);
        Ok(Self { context, checks_source })
    }

    /// Context of the judgement: the endpoint, and the packet's arrival.
    #[must_use]
    #[inline(always)]
    pub const fn context(&self) -> &EndpointContext<'a, D, T> {
        &self.context
    }

    /// The endpoint, if it may only use its own addresses.
    #[inline(always)]
    fn sender(&self) -> Option<EndpointRef> {
        self.checks_source.then_some(self.context.endpoint)
    }

    /// Parses a packet and continues with `visitor`, unless its headers are enough for a verdict.
    #[inline(always)]
    pub fn parse<B: Bytes, N: Visitor>(&self, bytes: &B, visitor: &N) -> N::Output {
        if let Some(sender) = self.sender()
            && let Err(reason) = link::station(bytes, sender)
        {
            return PacketVerdict::from(Err(reason)).into();
        }
        self.parse_after_link(bytes, parse::link(bytes), visitor)
    }

    /// Parses a packet after its parsed link header and continues with `visitor`, see [`PacketEvaluator::parse`].
    #[inline(always)]
    pub fn parse_after_link<B: Bytes, N: Visitor>(
        &self,
        bytes: &B,
        link: Result<(u16, u32), Reason>,
        visitor: &N,
    ) -> N::Output {
        let policy = &self.context.policy;
        if D::EGRESS
            && policy.rows().isolates_none()
            && let Some(result) = link::source_alone(bytes, link, self.context.endpoint)
        {
            return PacketVerdict::from(result).into();
        }
        let result = match link {
            Ok((ETHERTYPE_IPV4, _)) if !B::IPV4 => Err(Reason::Deferred),
            Ok((ETHERTYPE_IPV6, _)) if !B::IPV6 => Err(Reason::Deferred),
            Ok((ETHERTYPE_IPV4, offset)) => match self.parse_ip::<V4, B>(bytes, offset) {
                Ok(mut parsed) => {
                    if !B::PLAIN && !N::CHECKS_LATER {
                        parsed.look_for_route(bytes);
                    }
                    return visitor.visit(self, &parsed);
                }
                Err(result) => result,
            },
            Ok((ETHERTYPE_IPV6, offset)) => match self.parse_ip::<V6, B>(bytes, offset) {
                Ok(parsed) => {
                    if !N::CHECKS_LATER
                        && let Some(verdict) = self.judge_link_message(bytes, &parsed)
                    {
                        return verdict.into();
                    }
                    return visitor.visit(self, &parsed);
                }
                Err(result) => result,
            },
            Ok((ETHERTYPE_ARP, offset)) => {
                link::arp(bytes, offset, self.sender(), policy.is_isolated())
            }
            Ok(_) => self.unparsed(Reason::NotIp),
            Err(reason) => self.unparsed(reason),
        };
        PacketVerdict::from(result).into()
    }

    /// Verdict on a packet that cannot be parsed: it drops where sources are checked, since it may have any source,
    /// and where the direction is isolated.
    #[inline(always)]
    const fn unparsed(&self, reason: Reason) -> Result<Reason, Reason> {
        if self.checks_source { Err(reason) } else { self.context.policy.unparsed(reason) }
    }

    #[inline(always)]
    fn parse_ip<F: Family, B: Bytes>(
        &self,
        bytes: &B,
        offset: u32,
    ) -> Result<ParsedPacket<F>, Result<Reason, Reason>> {
        let mut network = match F::network(bytes, offset, false) {
            Ok(network) => network,
            Err(reason) => return Err(self.unparsed(reason)),
        };
        let result = match F::extensions(bytes, &mut network) {
            Ok(()) => parse::transport(bytes, &network, false),
            Err(reason) => Err(reason),
        };
        let (transport, parse_error) = match result {
            Ok(transport) => (transport, None),
            // A packet that is parsed in part must not get a verdict.
            Err(Reason::Deferred) => return Err(Err(Reason::Deferred)),
            Err(reason) => (Transport::default(), Some(reason)),
        };
        let quoted = if B::PLAIN {
            // A reader of SCTP in place (XDP) is judged like a copying one: the plain case is TCP and UDP only.
            Quoted::none(if B::SCTP { Quote::Nothing } else { Quote::Unread })
        } else if icmp::is_error(&transport) && !network.fragment.is_later() {
            Quoted::read::<D, B>(bytes, &network)
        } else {
            Quoted::none(Quote::Nothing)
        };
        Ok(ParsedPacket { network, transport, parse_error, quoted })
    }

    /// Verdict on a parsed packet, if it is a message of the link.
    #[inline(always)]
    pub fn judge_link_message<B: Bytes>(
        &self,
        bytes: &B,
        parsed: &ParsedPacket<V6>,
    ) -> Option<PacketVerdict> {
        if B::PLAIN || !parsed.is_of_link() {
            return None;
        }
        let isolated = self.context.policy.is_isolated();
        link::message::<D, B>(bytes, parsed, self.sender(), isolated).map(PacketVerdict::from)
    }

    /// Judges a parsed packet.
    #[inline(always)]
    pub fn judge<F: TableFamily>(&self, parsed: &ParsedPacket<F>) -> PacketVerdict {
        self.judge_ip(parsed).into()
    }

    #[inline(always)]
    fn judge_ip<F: TableFamily>(&self, parsed: &ParsedPacket<F>) -> Result<Reason, Reason> {
        let ParsedPacket { network, transport, parse_error, quoted } = parsed;
        let policy = &self.context.policy;
        // A pod without egress policy may also request its address (DHCP) and send on its link.
        let exempt = !policy.rows().isolates_egress() && F::is_link_local(network.source);
        if self.checks_source && !exempt && !F::owns(self.context.endpoint, network.source) {
            if policy.rows().isolates_egress() || !F::is_unspecified(network.source) {
                return Err(Reason::SpoofedSource);
            }
            if quoted.quote == Quote::Unread {
                return Err(Reason::Deferred);
            }
            if !F::needs_no_source(network, transport) {
                return Err(Reason::SpoofedSource);
            }
        }
        if let Some(reason) = *parse_error {
            // IPv4 packets claim no address: ARP does. IPv6 packets may (neighbour discovery).
            return if F::IS_V6 { self.unparsed(reason) } else { policy.unparsed(reason) };
        }
        if policy.rows().isolates_none() {
            return Ok(Reason::NotIsolated);
        }
        let plain = quoted.quote == Quote::Unread;
        let transport = self.context.opaque().transport(*transport, plain);
        // Bounds for the compiler: plain packets are TCP and UDP.
        if plain && !(TCP..=UDP).contains(&transport.protocol) {
            return Err(Reason::Deferred);
        }
        let from_node = self.context.is_from_node(&network.fragment);
        let known = plain || D::EGRESS;
        let from_node = if known { from_node } else { self.context.opaque().flag(from_node) };
        self.judge_datagram(Packet::<F> { network, transport, quoted, from_node })
    }

    /// Judges a datagram: later fragments get the ports of their first one, whole packets are judged directly.
    #[inline(always)]
    fn judge_datagram<F: TableFamily>(&self, mut packet: Packet<'_, F>) -> Result<Reason, Reason> {
        let context = &self.context;
        let hint = match fast_path::cached_verdict(context, &packet) {
            Ok(reason) => return Ok(reason),
            Err(hint) => hint,
        };
        let class = context.class(&packet);
        if T::TRACED {
            context.tables.record_step(Step::Class, class.into(), 0);
        }
        if packet.network.fragment.is_later() {
            packet.transport = fragment::transport_of_first(context, &packet, class)?;
        }
        let is_recorded = packet.network.fragment.is_first() && context.policy.is_isolated();
        let is_recorded = !packet.is_plain() && context.opaque().flag(is_recorded);
        let reason = self.judge_transport(&packet, class, hint)?;
        if is_recorded {
            fragment::remember_first(context, &packet);
        }
        Ok(reason)
    }

    /// Whether rules with domain names allow the first packet of a flow that the pod's row denies: the opening of a TCP
    /// connection, or a datagram without an entry.
    #[inline(always)]
    fn opens_by_name<F: TableFamily>(
        &self,
        packet: &Packet<'_, F>,
        class: ClassId,
        hint: &LookupHint,
    ) -> bool {
        let EndpointContext { tables, id, policy, .. } = &self.context;
        if !policy.rows().has_names() {
            return false;
        }
        let is_first = packet.transport.protocol == UDP && hint.is_absent();
        if !is_first && !is_opening(&packet.transport) {
            return false;
        }
        let Transport { protocol, destination: port, .. } = packet.transport;
        let opening = Opening {
            endpoint: *id,
            row: policy.rows().egress(),
            address: mapped::<F>(packet.network.destination),
            class,
            protocol,
            port,
        };
        tables.opens_by_name(&opening)
    }

    /// Judges a packet with ports: the stateless verdict first; a packet that it denies has to be a reply.
    #[inline(always)]
    fn judge_transport<F: TableFamily>(
        &self,
        packet: &Packet<'_, F>,
        class: ClassId,
        hint: LookupHint,
    ) -> Result<Reason, Reason> {
        let (context, policy) = (&self.context, &self.context.policy);
        let opaque = context.opaque();
        let (allowed, reason) = if !policy.is_isolated() {
            (true, Reason::NotIsolated)
        } else if packet.from_node {
            (!icmp::is_icmp(packet.transport.protocol) || begins(&packet.transport), Reason::Node)
        } else {
            (policy.allows(class, &packet.transport), Reason::Allowed)
        };
        let allowed = allowed || D::EGRESS && self.opens_by_name(packet, class, &hint);
        let (allowed, reason) = (opaque.flag(allowed), opaque.reason(reason));
        let context = &context.hidden();
        let policy = &context.policy;
        if opaque.flag(context.is_flooded(packet)) {
            return if allowed { Ok(reason) } else { Err(Reason::Flooded) };
        }
        match flow_tuple(context, packet, allowed)? {
            Some(mut flow) => {
                let mut packet = *packet;
                if !packet.is_plain() {
                    flow = opaque.flow(&flow);
                    packet.transport = opaque.transport(packet.transport, false);
                }
                let (packet, flow) = (&packet, &flow);
                let allowed = allowed.then_some(reason);
                FlowTracker { context, packet, flow, class, allowed }.judge_by_flow(hint)
            }
            // If the node has translated the quoted flow, it translates the error in the same way.
            None if allowed && icmp::is_error(&packet.transport) => {
                Ok(policy.rejudged_reason(reason))
            }
            None if allowed => Ok(policy.passing_reason(reason, class)),
            None => context.denied_unless_loopback(packet),
        }
    }
}
