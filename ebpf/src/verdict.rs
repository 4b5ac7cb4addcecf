//! The judgement of one packet, the same in the kernel and on the host.
//!
//! Inner functions answer `Result<_, Reason>`: `Err` is a settled verdict, to pass or to drop.
//! [`decide`] turns either side into the one [`Verdict`].

use core::marker::PhantomData;

use crate::{
    family::{Family, V4, V6},
    layout::{
        CT_EGRESS, CT_FIN_EGRESS, CT_FIN_INGRESS, CT_INGRESS, ENDPOINT_PROBES, EP_CHECK_SOURCE,
        ROW_NOT_ISOLATED, endpoint_slot,
    },
    packet::{self, Bytes, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Network, Transport},
    policy::row_allows,
    reason::Reason,
    tables::{EndpointRef, Tables},
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

    /// Whether the packet goes on.
    #[must_use]
    #[inline(always)]
    pub const fn passes(self) -> bool {
        !self.0.is_drop()
    }
}

/// Where a packet was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The host side of the veth.
    pub ifindex: u32,
    /// The interface through which the packet came to the node; 0: the node generated it.
    pub ingress_ifindex: u32,
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
    let Some(endpoint) = find_endpoint(tables, hook.ifindex) else {
        return Verdict(Reason::NotEndpoint);
    };
    let rows = endpoint.rows();
    let check_source = D::EGRESS && endpoint.flags() & EP_CHECK_SOURCE != 0;
    if rows == 0 && !check_source {
        return Verdict(Reason::NotIsolated);
    }
    let noise = u64::from(endpoint.id());
    let direction = PhantomData::<D>;
    let judge = Judge { tables, endpoint, rows, check_source, hook, noise, direction };
    match judge.frame(bytes) {
        Ok(reason) | Err(reason) => Verdict(reason),
    }
}

/// Whether every packet of an interface passes unseen: the first thing that [`decide`] asks too.
#[must_use]
#[inline(always)]
pub fn is_free<D: Direction, T: Tables>(tables: &T, ifindex: u32) -> bool {
    let Some(endpoint) = find_endpoint(tables, ifindex) else { return true };
    endpoint.rows() == 0 && !(D::EGRESS && endpoint.flags() & EP_CHECK_SOURCE != 0)
}

/// The endpoint of an interface.
#[must_use]
#[inline(always)]
pub fn find_endpoint<T: Tables>(tables: &T, ifindex: u32) -> Option<EndpointRef> {
    for probe in 0..ENDPOINT_PROBES {
        let endpoint = tables.endpoint(endpoint_slot(ifindex, probe))?;
        if endpoint.ifindex() == ifindex {
            return Some(endpoint);
        }
    }
    None
}

/// One packet's judgement at one endpoint. `rows` was read once: both directions of one moment.
pub(crate) struct Judge<'a, D, T> {
    pub(crate) tables: &'a T,
    pub(crate) endpoint: EndpointRef,
    rows: u64,
    check_source: bool,
    pub(crate) hook: Hook,
    noise: u64,
    direction: PhantomData<D>,
}

/// A packet as the endpoint sees it.
pub(crate) struct Packet<F: Family> {
    pub(crate) network: Network<F::Address>,
    pub(crate) transport: Transport,
    pub(crate) local: F::Address,
    pub(crate) remote: F::Address,
}

impl<D: Direction, T: Tables> Judge<'_, D, T> {
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

    /// Whether the node itself generated the packet.
    #[inline(always)]
    pub(crate) const fn is_from_node(&self) -> bool {
        !D::EGRESS && self.hook.ingress_ifindex == 0
    }

    #[inline(always)]
    fn frame<B: Bytes>(&self, bytes: &B) -> Result<Reason, Reason> {
        match packet::link(bytes) {
            Ok((ETHERTYPE_IPV4, _)) if !B::IPV4 => Err(Reason::Deferred),
            Ok((ETHERTYPE_IPV6, _)) if !B::IPV6 => Err(Reason::Deferred),
            Ok((ETHERTYPE_IPV4, offset)) => self.ip::<V4, B>(bytes, offset),
            Ok((ETHERTYPE_IPV6, offset)) => self.ip::<V6, B>(bytes, offset),
            Ok((ETHERTYPE_ARP, _)) => Ok(Reason::Neighbour),
            Ok(_) => self.unread(Reason::NotIp),
            Err(reason) => self.unread(reason),
        }
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
    fn ip<F: Family, B: Bytes>(&self, bytes: &B, offset: u32) -> Result<Reason, Reason> {
        let mut network = match F::network(bytes, offset, false) {
            Ok(network) => network,
            // No address to check: that is for the check of the source to drop.
            Err(reason) if self.check_source => return Err(reason),
            Err(reason) => return self.unread(reason),
        };
        let transport = match F::extensions(bytes, &mut network) {
            Ok(()) => packet::transport(bytes, &network, false),
            Err(reason) => Err(reason),
        };
        if let Ok(transport) = &transport
            && F::is_neighbour(&network, transport)
        {
            return Ok(Reason::Neighbour);
        }
        if self.check_source && !F::owns(self.endpoint, network.source) {
            return Err(Reason::SpoofedSource);
        }
        if self.rows == 0 {
            return Ok(Reason::NotIsolated);
        }
        let transport = match transport {
            Ok(transport) => transport,
            Err(reason) => return self.unread(reason),
        };
        let transport = self.forget_path(transport);
        let (local, remote) = if D::EGRESS {
            (network.source, network.destination)
        } else {
            (network.destination, network.source)
        };
        self.datagram(bytes, Packet::<F> { network, transport, local, remote })
    }

    /// The same value, of which the kernel's verifier knows nothing: else it follows all that comes
    /// behind once for each way that led here, see [`crate::conntrack::Memory::opaque`].
    #[inline(always)]
    pub(crate) fn forget(&self, value: u16) -> u16 {
        self.tables.opaque(usize::from(value), self.noise) as u16
    }

    #[inline(always)]
    fn forget_path(&self, transport: Transport) -> Transport {
        Transport {
            protocol: self.forget(transport.protocol.into()) as u8,
            flags: self.forget(transport.flags.into()) as u8,
            source: self.forget(transport.source),
            destination: self.forget(transport.destination),
        }
    }

    /// Fragments get their first one's ports; whole packets go straight through.
    #[inline(always)]
    fn datagram<F: Family, B: Bytes>(
        &self,
        bytes: &B,
        mut packet: Packet<F>,
    ) -> Result<Reason, Reason> {
        let class = F::class(self.tables, packet.remote);
        if !B::PLAIN && packet.network.fragment.is_later() {
            packet.transport = self.transport_of_first(&packet, class)?;
        }
        let reason = self.whole(bytes, &packet, class)?;
        if !B::PLAIN && packet.network.fragment.is_first() && self.row() != ROW_NOT_ISOLATED {
            self.remember_first(&packet);
        }
        Ok(reason)
    }

    /// Stateless first; only what that denies needs to be an answer.
    #[inline(always)]
    fn whole<F: Family, B: Bytes>(
        &self,
        bytes: &B,
        packet: &Packet<F>,
        class: u32,
    ) -> Result<Reason, Reason> {
        let row = self.row();
        let (allowed, reason) = if row == ROW_NOT_ISOLATED {
            (true, Reason::NotIsolated)
        } else if self.is_from_node() {
            (true, Reason::Node)
        } else {
            let protocol = self.forget(packet.transport.protocol.into()) as u8;
            let port = packet.transport.destination;
            (row_allows(self.tables, row, class, protocol, port), Reason::Allowed)
        };
        let allowed = self.forget(allowed.into()) & 1 != 0;
        match self.subject(bytes, packet, allowed)? {
            Some(subject) => self.settle(packet, &subject, class, allowed.then_some(reason)),
            None if allowed => Ok(reason),
            None => self.unanswered(packet),
        }
    }

    /// No rule allows it and it answers nothing: the pod itself, or a drop.
    #[inline(always)]
    pub(crate) fn unanswered<F: Family>(&self, packet: &Packet<F>) -> Result<Reason, Reason> {
        if F::owns(self.endpoint, packet.remote)
            || (!D::EGRESS && self.hook.ingress_ifindex == self.hook.ifindex)
        {
            return Ok(Reason::Loopback);
        }
        Err(Reason::Policy)
    }
}
