//! The judgement of one packet, the same in the kernel and on the host.
//!
//! Inner functions answer `Result<_, Reason>`: `Err` is a settled verdict, to pass or to drop.
//! [`PacketEvaluator::judge`] turns either side into the one [`Verdict`].

use crate::{
    direction::Direction,
    judge::{
        evaluator::{Hook, PacketEvaluator},
        fast_path::LookupHint,
    },
    layout::{ClassId, ROW_NOT_ISOLATED},
    packet::{
        bytes::Bytes,
        family::{Family, V4, V6},
        icmp::{self, begins},
        neighbour,
        parse::{self, Transport},
        parsed::{Packet, ParsedPacket},
        protocol::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP, UDP},
        quoted::{Quote, Quoted},
    },
    reason::Reason,
    tables::{TableFamily, Tables, policy::row_allows},
    trace::Step,
    verdict::Verdict,
};

/// Judges one packet.
#[inline(always)]
pub fn decide<D: Direction, B: Bytes, T: Tables>(bytes: &B, tables: &T, hook: Hook) -> Verdict {
    let judge = match PacketEvaluator::<D, T>::new(tables, hook) {
        Ok(judge) => judge,
        Err(verdict) => return verdict,
    };
    judge.read(bytes, &Now)
}

/// What is done with a packet once it is read.
pub trait Visitor {
    /// Whether [`ParsedPacket::look_for_route`] and [`PacketEvaluator::link`] are for later, too.
    const LATER: bool = false;
    /// What comes of it.
    type Output: From<Verdict>;
    /// Goes on with a packet.
    fn visit<F: TableFamily, D: Direction, T: Tables>(
        &self,
        judge: &PacketEvaluator<'_, D, T>,
        reading: &ParsedPacket<F>,
    ) -> Self::Output;
}

/// Judges it at once.
struct Now;

impl Visitor for Now {
    type Output = Verdict;

    #[inline(always)]
    fn visit<F: TableFamily, D: Direction, T: Tables>(
        &self,
        judge: &PacketEvaluator<'_, D, T>,
        reading: &ParsedPacket<F>,
    ) -> Verdict {
        judge.judge(reading)
    }
}

impl<D: Direction, T: Tables> PacketEvaluator<'_, D, T> {
    /// Reads a packet and goes on, unless its headers are enough for a verdict.
    #[inline(always)]
    pub fn read<B: Bytes, N: Visitor>(&self, bytes: &B, visitor: &N) -> N::Output {
        self.read_behind(bytes, parse::link(bytes), visitor)
    }

    /// As [`PacketEvaluator::read`], behind a link header that was read already.
    #[inline(always)]
    pub fn read_behind<B: Bytes, N: Visitor>(
        &self,
        bytes: &B,
        link: Result<(u16, u32), Reason>,
        visitor: &N,
    ) -> N::Output {
        if D::EGRESS
            && self.rows == 0
            && let Some(result) = self.source_alone(bytes, link)
        {
            return Verdict::from(result).into();
        }
        let result = match link {
            Ok((ETHERTYPE_IPV4, _)) if !B::IPV4 => Err(Reason::Deferred),
            Ok((ETHERTYPE_IPV6, _)) if !B::IPV6 => Err(Reason::Deferred),
            Ok((ETHERTYPE_IPV4, offset)) => match self.read_ip::<V4, B>(bytes, offset) {
                Ok(mut reading) => {
                    if !B::PLAIN && !N::LATER {
                        reading.look_for_route(bytes);
                    }
                    return visitor.visit(self, &reading);
                }
                Err(result) => result,
            },
            Ok((ETHERTYPE_IPV6, offset)) => match self.read_ip::<V6, B>(bytes, offset) {
                Ok(reading) => {
                    if !N::LATER
                        && let Some(verdict) = self.link(bytes, &reading)
                    {
                        return verdict.into();
                    }
                    return visitor.visit(self, &reading);
                }
                Err(result) => result,
            },
            Ok((ETHERTYPE_ARP, offset)) => self.arp(bytes, offset),
            Ok(_) => self.unread(Reason::NotIp),
            Err(reason) => self.unread(reason),
        };
        Verdict::from(result).into()
    }

    #[inline(always)]
    fn read_ip<F: Family, B: Bytes>(
        &self,
        bytes: &B,
        offset: u32,
    ) -> Result<ParsedPacket<F>, Result<Reason, Reason>> {
        let mut network = match F::network(bytes, offset, false) {
            Ok(network) => network,
            // No address to check: that is for the check of the source to drop.
            Err(reason) if self.check_source => return Err(Err(reason)),
            Err(reason) => return Err(self.unread(reason)),
        };
        let result = match F::extensions(bytes, &mut network) {
            Ok(()) => parse::transport(bytes, &network, false),
            Err(reason) => Err(reason),
        };
        let (transport, parse_error) = match result {
            Ok(transport) => (transport, None),
            // Nothing may be decided on half a look.
            Err(Reason::Deferred) => return Err(Err(Reason::Deferred)),
            Err(reason) => (Transport::default(), Some(reason)),
        };
        let quoted = if B::PLAIN {
            // Whoever reads SCTP in place has all judged as if it had been copied.
            Quoted::none(if B::SCTP { Quote::Nothing } else { Quote::Unread })
        } else if icmp::is_error(&transport) && !network.fragment.is_later() {
            Quoted::read::<D, B>(bytes, &network)
        } else {
            Quoted::none(Quote::Nothing)
        };
        Ok(ParsedPacket { network, transport, parse_error, quoted })
    }

    /// The verdict about a packet that was read, if it is a message of the link.
    #[inline(always)]
    pub fn link<B: Bytes>(&self, bytes: &B, reading: &ParsedPacket<V6>) -> Option<Verdict> {
        if B::PLAIN || !reading.is_of_link() {
            return None;
        }
        self.link_message(bytes, reading).map(Verdict::from)
    }

    /// Judges a packet that was read.
    #[inline(always)]
    pub fn judge<F: TableFamily>(&self, reading: &ParsedPacket<F>) -> Verdict {
        self.ip(reading).into()
    }

    #[inline(always)]
    fn ip<F: TableFamily>(&self, reading: &ParsedPacket<F>) -> Result<Reason, Reason> {
        let ParsedPacket { network, transport, parse_error, quoted } = reading;
        // A pod that may send anything may also ask for its address (DHCP) or speak on its link.
        let exempt = self.egress_row() == ROW_NOT_ISOLATED && F::is_link_scope(network.source);
        if self.check_source && !exempt && !F::owns(self.endpoint, network.source) {
            return Err(Reason::SpoofedSource);
        }
        if let Some(reason) = *parse_error {
            let hides = self.check_source && neighbour::hides_claim(network, reason);
            return if hides { Err(reason) } else { self.unread(reason) };
        }
        if self.rows == 0 {
            return Ok(Reason::NotIsolated);
        }
        let transport = self.forget_path(*transport, quoted.quote == Quote::Unread);
        // This much the compiler shall remember: plain packets are TCP and UDP.
        if quoted.quote == Quote::Unread && !(TCP..=UDP).contains(&transport.protocol) {
            return Err(Reason::Deferred);
        }
        self.datagram(Packet::<F> { network, transport, quoted })
    }

    /// Fragments get their first one's ports; whole packets go straight through.
    #[inline(always)]
    fn datagram<F: TableFamily>(&self, mut packet: Packet<'_, F>) -> Result<Reason, Reason> {
        let hint = match self.cached_verdict(&packet) {
            Ok(reason) => return Ok(reason),
            Err(hint) => hint,
        };
        // Behind the revision too.
        let remote = F::after_load(packet.remote::<D>(), self.revision);
        let class = F::class(self.tables, remote);
        if T::TRACED {
            self.tables.note(Step::Class, class.into(), 0);
        }
        if packet.network.fragment.is_later() {
            packet.transport = self.transport_of_first(&packet, class)?;
        }
        let reason = self.whole(&packet, class, hint)?;
        if packet.network.fragment.is_first() && self.row() != ROW_NOT_ISOLATED {
            self.remember_first(&packet);
        }
        Ok(reason)
    }

    /// Stateless first; only what that denies needs to be an answer.
    #[inline(always)]
    fn whole<F: TableFamily>(
        &self,
        packet: &Packet<'_, F>,
        class: ClassId,
        hint: LookupHint,
    ) -> Result<Reason, Reason> {
        let row = self.row();
        let (allowed, reason) = if row == ROW_NOT_ISOLATED {
            (true, Reason::NotIsolated)
        } else if self.is_from_node(&packet.network.fragment) {
            (!icmp::is_icmp(packet.transport.protocol) || begins(&packet.transport), Reason::Node)
        } else {
            let Transport { protocol, destination: port, .. } = packet.transport;
            (row_allows(self.tables, row, class, protocol, port), Reason::Allowed)
        };
        let allowed = self.forget(allowed.into()) & 1 != 0;
        if self.forget(self.is_flooded(packet).into()) & 1 != 0 {
            return if allowed { Ok(reason) } else { Err(Reason::Flooded) };
        }
        match self.flow_tuple(packet, allowed)? {
            Some(mut subject) => {
                let mut packet = *packet;
                if packet.quoted.quote != Quote::Unread {
                    self.forget_flow(&mut subject);
                    packet.transport = self.forget_path(packet.transport, false);
                }
                let allowed = allowed.then_some(reason);
                self.settle(&packet, &subject, class, allowed, hint)
            }
            // An error quotes what the node may have translated, and then goes where that went.
            None if allowed && icmp::is_error(&packet.transport) => Ok(self.judged_again(reason)),
            None if allowed => Ok(Self::passing(reason, class)),
            None => self.unanswered(packet),
        }
    }
}
