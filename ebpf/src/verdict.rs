//! The judgement of one packet, the same in the kernel and on the host.
//!
//! Inner functions answer `Result<_, Reason>`: `Err` is a settled verdict, to pass or to drop.
//! [`PacketEvaluator::judge`] turns either side into the one [`Verdict`].

use core::marker::PhantomData;

pub use crate::parsed::ParsedPacket;
use crate::{
    family::{Family, V4, V6},
    fast_path::LookupHint,
    icmp,
    layout::{
        CLASS_TRANSLATED, CT_EGRESS, CT_FIN_EGRESS, CT_FIN_INGRESS, CT_INGRESS, ClassId,
        ENDPOINT_PROBES, EP_CHECK_SOURCE, ROW_NOT_ISOLATED, Settings, endpoint_slot,
    },
    neighbour,
    packet::{
        self, Bytes, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Fragment, TCP, Transport, UDP,
    },
    parsed::{Packet, Quote, Quoted},
    policy::row_allows,
    reason::Reason,
    tables::{EndpointRef, Tables},
    tracking::begins,
};

/// What becomes of a packet.
#[must_use = "a verdict that nobody acts on lets everything pass"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict(Reason);

impl Verdict {
    /// Why.
    #[must_use]
    #[inline(always)]
    pub const fn reason(self) -> Reason {
        self.0
    }

    /// Why, as a number.
    #[must_use]
    #[inline(always)]
    pub const fn number(self) -> u32 {
        self.0 as u32
    }

    /// Whether the packet goes on.
    #[must_use]
    #[inline(always)]
    pub const fn passes(self) -> bool {
        !self.0.is_drop()
    }
}

/// Inner functions answer either side.
impl From<Result<Reason, Reason>> for Verdict {
    #[inline(always)]
    fn from(result: Result<Reason, Reason>) -> Self {
        let (Ok(reason) | Err(reason)) = result;
        Self(reason)
    }
}

/// Where a packet was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The host side of the veth.
    pub ifindex: u32,
    /// The interface through which the packet came to the node; 0: none, and it has a socket;
    /// [`crate::proof::UNKNOWN_INTERFACE`]: none, and nothing says that the node generated it.
    pub ingress_ifindex: u32,
}

/// By which interface a packet came: one word instead of two that are kept during a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Came(u32);

impl Came {
    const BY_NONE: Self = Self(0);
    const BY_ITS_OWN: Self = Self(1);
    const BY_ANOTHER: Self = Self(2);

    #[inline(always)]
    const fn by(hook: Hook) -> Self {
        match hook.ingress_ifindex {
            0 => Self::BY_NONE,
            same if same == hook.ifindex => Self::BY_ITS_OWN,
            _ => Self::BY_ANOTHER,
        }
    }
}

/// A direction, as the pod sees it.
pub trait Direction {
    /// Pod egress; else pod ingress.
    const EGRESS: bool;
    /// Conntrack flag: this direction was allowed by policy and seen.
    const SEEN: u16 = if Self::EGRESS { CT_EGRESS } else { CT_INGRESS };
    /// Conntrack flag of the other direction.
    const OTHER_SEEN: u16 = if Self::EGRESS { CT_INGRESS } else { CT_EGRESS };
    /// Conntrack flag: FIN seen in this direction.
    const FIN: u16 = if Self::EGRESS { CT_FIN_EGRESS } else { CT_FIN_INGRESS };
}

/// Pod ingress.
#[derive(Clone, Copy, Debug)]
pub struct Ingress;

/// Pod egress.
#[derive(Clone, Copy, Debug)]
pub struct Egress;

impl Direction for Ingress {
    const EGRESS: bool = false;
}

impl Direction for Egress {
    const EGRESS: bool = true;
}

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
    fn visit<F: Family, D: Direction, T: Tables>(
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
    fn visit<F: Family, D: Direction, T: Tables>(
        &self,
        judge: &PacketEvaluator<'_, D, T>,
        reading: &ParsedPacket<F>,
    ) -> Verdict {
        judge.judge(reading)
    }
}

/// The endpoint of an interface.
#[must_use]
#[inline(always)]
pub fn find_endpoint<T: Tables>(tables: &T, ifindex: u32) -> Option<EndpointRef> {
    find_slot(tables, ifindex).map(|(_, endpoint)| endpoint)
}

/// The endpoint of an interface, and its slot.
#[must_use]
#[inline(always)]
pub fn find_slot<T: Tables>(tables: &T, ifindex: u32) -> Option<(u32, EndpointRef)> {
    let probes = tables.settings().map_or(0, probes);
    for probe in 0..ENDPOINT_PROBES {
        let slot = endpoint_slot(ifindex, probe);
        let endpoint = tables.endpoint(slot)?;
        // The index is written last.
        let found = endpoint.ifindex();
        let endpoint = endpoint.after_load(found);
        if found == ifindex {
            return Some((slot, endpoint));
        }
        if probe + 1 == probes {
            break;
        }
    }
    None
}

/// The agent sets this field while programs run.
#[inline(always)]
fn probes(settings: &Settings) -> u32 {
    // SAFETY: a reference is readable.
    unsafe { (&raw const settings.probes).read_volatile() }
}

/// One packet's judgement at one endpoint. `rows` was read once: both directions of one moment.
#[derive(Debug)]
pub struct PacketEvaluator<'a, D, T> {
    pub(crate) tables: &'a T,
    pub(crate) endpoint: EndpointRef,
    rows: u64,
    pub(crate) revision: u32,
    check_source: bool,
    came: Came,
    noise: u64,
    direction: PhantomData<D>,
}

impl<'a, D: Direction, T: Tables> PacketEvaluator<'a, D, T> {
    /// Begins a judgement.
    ///
    /// # Errors
    /// A verdict, where the interface's packets all pass.
    #[inline(always)]
    pub fn new(tables: &'a T, hook: Hook) -> Result<Self, Verdict> {
        let endpoint = find_endpoint(tables, hook.ifindex).ok_or(Verdict(Reason::NotEndpoint))?;
        Self::at(tables, endpoint, hook)
    }

    /// As [`PacketEvaluator::new`], at an endpoint that was found already.
    ///
    /// # Errors
    /// As [`PacketEvaluator::new`].
    #[inline(always)]
    pub fn at(tables: &'a T, endpoint: EndpointRef, hook: Hook) -> Result<Self, Verdict> {
        // Before anything that policy consists of, see [`crate::cached_verdict`].
        let revision = tables.revision();
        let endpoint = endpoint.after_load(revision);
        let rows = endpoint.rows();
        let check_source = D::EGRESS && endpoint.flags() & EP_CHECK_SOURCE != 0;
        if rows == 0 && !check_source {
            return Err(Verdict(Reason::NotIsolated));
        }
        let noise = u64::from(endpoint.id());
        let direction = PhantomData;
        let came = Came::by(hook);
        Ok(Self { tables, endpoint, rows, revision, check_source, came, noise, direction })
    }

    /// The endpoint's number, read once: where it is kept anyway, to [`PacketEvaluator::forget`] by.
    #[inline(always)]
    pub(crate) const fn endpoint_id(&self) -> u32 {
        self.noise as u32
    }

    /// Row of pod ingress.
    #[inline(always)]
    pub(crate) const fn ingress_row(&self) -> u32 {
        self.rows as u32
    }

    /// Row of pod egress.
    #[inline(always)]
    pub(crate) const fn egress_row(&self) -> u32 {
        (self.rows >> 32) as u32
    }

    /// Row of this packet's direction.
    #[inline(always)]
    pub(crate) const fn row(&self) -> u32 {
        if D::EGRESS { self.egress_row() } else { self.ingress_row() }
    }

    /// Row of the opposite direction.
    #[inline(always)]
    pub(crate) const fn other_row(&self) -> u32 {
        if D::EGRESS { self.ingress_row() } else { self.egress_row() }
    }

    /// Whether this packet's direction is.
    #[inline(always)]
    pub(crate) const fn is_isolated(&self) -> bool {
        self.row() != ROW_NOT_ISOLATED
    }

    /// Whether the pod sent this and may do so in its own name alone.
    #[inline(always)]
    pub(crate) const fn checks_source(&self) -> bool {
        self.check_source
    }

    /// Whether the node itself generated the packet, see [`crate::proof`].
    #[inline(always)]
    pub(crate) fn is_from_node(&self, fragment: &Fragment) -> bool {
        if D::EGRESS || self.came != Came::BY_NONE {
            return false;
        }
        let whole = !fragment.is_later() && !fragment.more;
        whole || self.tables.settings().is_some_and(|settings| settings.netns_cookie != 0)
    }

    /// Why a packet to (or from) an address passes: what a pod sends towards a translation is to be
    /// judged again behind it.
    #[inline(always)]
    pub(crate) const fn passing(reason: Reason, class: ClassId) -> Reason {
        if D::EGRESS && class & CLASS_TRANSLATED != 0 { Reason::Translated } else { reason }
    }

    /// Why an answer passes: at an address that may be translated the node's conntrack has to say so too,
    /// unless the pod may send to anybody.
    #[inline(always)]
    pub(crate) fn answering(&self, reason: Reason, class: ClassId) -> Reason {
        let translated = class & CLASS_TRANSLATED != 0 && self.egress_row() != ROW_NOT_ISOLATED;
        if translated && self.tables.knows_courses() { Reason::Answer } else { reason }
    }

    /// Why a packet passes that is to be judged again, wherever it goes.
    #[inline(always)]
    pub(crate) fn judged_again(&self, reason: Reason) -> Reason {
        if D::EGRESS && self.row() != ROW_NOT_ISOLATED { Reason::Translated } else { reason }
    }

    /// Reads a packet and goes on, unless its headers are enough for a verdict.
    #[inline(always)]
    pub fn read<B: Bytes, N: Visitor>(&self, bytes: &B, visitor: &N) -> N::Output {
        self.read_behind(bytes, packet::link(bytes), visitor)
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
            Ok(()) => packet::transport(bytes, &network, false),
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
            self.quoted_flow::<F, B>(bytes, &network)
        } else {
            Quoted::none(Quote::Nothing)
        };
        Ok(ParsedPacket { network, transport, parse_error, quoted })
    }

    /// Whether a packet in pod ingress is for one of the pod's own addresses.
    #[inline(always)]
    pub(crate) fn receives<F: Family>(&self, reading: &ParsedPacket<F>) -> bool {
        F::owns(self.endpoint, reading.network.destination)
    }

    /// The verdict about a packet that was read, if it is a message of the link.
    #[inline(always)]
    pub fn link<F: Family, B: Bytes>(
        &self,
        bytes: &B,
        reading: &ParsedPacket<F>,
    ) -> Option<Verdict> {
        if B::PLAIN || !reading.is_of_link() {
            return None;
        }
        self.link_message(bytes, reading).map(Verdict::from)
    }

    /// Judges a packet that was read.
    #[inline(always)]
    pub fn judge<F: Family>(&self, reading: &ParsedPacket<F>) -> Verdict {
        self.ip(reading).into()
    }

    /// Whether a packet in pod ingress is for an address that the pod does not have: a bridge floods
    /// what it does not know where to send.
    #[inline(always)]
    pub(crate) fn is_flooded<F: Family>(&self, packet: &Packet<'_, F>) -> bool {
        let to = packet.network.destination;
        !D::EGRESS
            && self.endpoint.flags() & EP_CHECK_SOURCE != 0
            && !F::owns(self.endpoint, to)
            && !F::is_shared(to)
    }

    /// A packet that cannot be judged drops where its direction is isolated.
    #[inline(always)]
    fn unread(&self, reason: Reason) -> Result<Reason, Reason> {
        if self.row() == ROW_NOT_ISOLATED && reason as u8 != Reason::Deferred as u8 {
            return Ok(Reason::NotIsolated);
        }
        Err(reason)
    }

    #[inline(always)]
    fn ip<F: Family>(&self, reading: &ParsedPacket<F>) -> Result<Reason, Reason> {
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

    /// The same value, of which the kernel's verifier knows nothing: else it follows all that comes
    /// behind once for each way that led here, see [`crate::conntrack::Memory::opaque`].
    #[inline(always)]
    pub(crate) fn forget(&self, value: u16) -> u16 {
        self.tables.opaque(usize::from(value), self.noise) as u16
    }

    #[inline(always)]
    fn forget_path(&self, transport: Transport, plain: bool) -> Transport {
        // The ports of plain packets are always read in one way.
        let port = |port: u16| if plain { port } else { self.forget(port) };
        Transport {
            protocol: self.forget(transport.protocol.into()) as u8,
            flags: self.forget(transport.flags.into()) as u8,
            source: port(transport.source),
            destination: port(transport.destination),
        }
    }

    /// Fragments get their first one's ports; whole packets go straight through.
    #[inline(always)]
    fn datagram<F: Family>(&self, mut packet: Packet<'_, F>) -> Result<Reason, Reason> {
        let hint = match self.cached_verdict(&packet) {
            Ok(reason) => return Ok(reason),
            Err(hint) => hint,
        };
        // Behind the revision too.
        let remote = F::after_load(packet.remote::<D>(), self.revision);
        let class = F::class(self.tables, remote);
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
    fn whole<F: Family>(
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
                    subject.forget_path(self);
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

    /// No rule allows it and it answers nothing: the pod itself, or a drop. To the pod, only where it
    /// comes from proves that: anyone can write the pod's address as source.
    #[inline(always)]
    pub(crate) fn unanswered<F: Family>(&self, packet: &Packet<'_, F>) -> Result<Reason, Reason> {
        let loopback = if D::EGRESS {
            F::owns(self.endpoint, packet.remote::<D>())
        } else {
            self.came == Came::BY_ITS_OWN
        };
        if loopback { Ok(Reason::Loopback) } else { Err(Reason::Policy) }
    }
}
