//! One packet's evaluation at one endpoint: what every step of it reads.

use core::marker::PhantomData;

use crate::{
    direction::Direction,
    endpoint::EndpointRef,
    layout::{CLASS_TRANSLATED, ClassId, EP_CHECK_SOURCE, ROW_NOT_ISOLATED},
    packet::{
        family::Family,
        parse::{Fragment, Transport},
        parsed::{Packet, ParsedPacket},
        tuple::FlowTuple,
    },
    reason::Reason,
    tables::{TableFamily, Tables, find_endpoint},
    trace::Step,
    verdict::Verdict,
};

/// Where a packet was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The host side of the veth.
    pub ifindex: u32,
    /// The interface through which the packet came to the node; 0: none, and it has a socket;
    /// [`crate::judge::proof::UNKNOWN_INTERFACE`]: none, and nothing says that the node generated it.
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

/// One packet's judgement at one endpoint. `rows` was read once: both directions of one moment.
#[derive(Debug)]
pub struct PacketEvaluator<'a, D, T> {
    pub(crate) tables: &'a T,
    pub(crate) endpoint: EndpointRef,
    pub(crate) rows: u64,
    pub(crate) revision: u32,
    pub(crate) check_source: bool,
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
        // Before anything that policy consists of, see [`crate::flow::cached_verdict`].
        let revision = tables.revision();
        let endpoint = endpoint.after_load(revision);
        let rows = endpoint.rows();
        let check_source = D::EGRESS && endpoint.flags() & EP_CHECK_SOURCE != 0;
        if rows == 0 && !check_source {
            return Err(Verdict(Reason::NotIsolated));
        }
        let noise = u64::from(endpoint.id());
        if T::TRACED {
            tables.note(Step::Endpoint, noise | u64::from(revision) << 32, rows);
        }
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

    /// Whether the node itself generated the packet, see [`crate::judge::proof`].
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

    /// Whether a packet in pod ingress is for one of the pod's own addresses.
    #[inline(always)]
    pub(crate) fn receives<F: Family>(&self, reading: &ParsedPacket<F>) -> bool {
        F::owns(self.endpoint, reading.network.destination)
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
    pub(crate) fn unread(&self, reason: Reason) -> Result<Reason, Reason> {
        if self.row() == ROW_NOT_ISOLATED && reason as u8 != Reason::Deferred as u8 {
            return Ok(Reason::NotIsolated);
        }
        Err(reason)
    }

    /// The same value, of which the kernel's verifier knows nothing: else it follows all that comes
    /// behind once for each way that led here, see [`crate::flow::memory::Memory::opaque`].
    #[inline(always)]
    pub(crate) fn forget(&self, value: u16) -> u16 {
        self.tables.opaque(usize::from(value), self.noise) as u16
    }

    #[inline(always)]
    pub(crate) fn forget_path(&self, transport: Transport, plain: bool) -> Transport {
        // The ports of plain packets are always read in one way.
        let port = |port: u16| if plain { port } else { self.forget(port) };
        Transport {
            protocol: self.forget(transport.protocol.into()) as u8,
            flags: self.forget(transport.flags.into()) as u8,
            source: port(transport.source),
            destination: port(transport.destination),
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

    /// A flow's key.
    #[inline(always)]
    pub(crate) fn key<F: TableFamily>(&self, subject: &FlowTuple<F>) -> F::Key {
        let FlowTuple { remote, protocol, local_port, remote_port } = *subject;
        F::key(self.endpoint_id(), remote, local_port, remote_port, protocol)
    }

    /// As [`PacketEvaluator::forget`], for a flow.
    #[inline(always)]
    pub(crate) fn forget_flow<F: Family>(&self, flow: &mut FlowTuple<F>) {
        flow.protocol = self.forget(flow.protocol.into()) as u8;
        flow.local_port = self.forget(flow.local_port);
        flow.remote_port = self.forget(flow.remote_port);
    }
}
