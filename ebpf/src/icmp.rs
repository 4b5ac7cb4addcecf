//! ICMP and ICMPv6: echo, and the flow an error is about.

use crate::{
    family::Family,
    packet::{self, Bytes, ICMP, ICMPV6, Network, Transport},
    parsed::{Quote, Quoted},
    tables::Tables,
    tracking::FlowTuple,
    verdict::{Direction, PacketEvaluator},
};

/// Bytes of an ICMP error before the packet it quotes (RFC 792, RFC 4443).
const ERROR_HEADER: u32 = 8;

/// Part of an echo exchange, or of its kin: timestamps (RFC 792), extended echo (RFC 8335).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Echo {
    None,
    Request,
    Reply,
}

/// Whether a protocol number is one of the two ICMPs.
#[inline(always)]
pub(crate) const fn is_icmp(protocol: u8) -> bool {
    matches!(protocol, ICMP | ICMPV6)
}

/// Types of timestamps and of extended echo: the request's; the reply's is the next.
const TIMESTAMP: u16 = 13;
const EXTENDED: u16 = 42;
const EXTENDED6: u16 = 160;

/// Which part of an echo exchange a packet is.
#[inline(always)]
pub(crate) const fn echo(transport: &Transport) -> Echo {
    match (transport.protocol, transport.destination >> 8) {
        (ICMP, 8 | TIMESTAMP | EXTENDED) | (ICMPV6, 128 | EXTENDED6) => Echo::Request,
        (ICMP, 0 | 14 | 43) | (ICMPV6, 129 | 161) => Echo::Reply,
        _ => Echo::None,
    }
}

/// What an ICMP flow has for the other side's port, by the type of one of its messages: each kind of
/// exchange has identifiers of its own. 0 for echo, and for what is none.
#[must_use]
#[inline(always)]
pub const fn kind(protocol: u8, message: u8) -> u16 {
    match (protocol, message) {
        (ICMP, 13 | 14) => TIMESTAMP,
        (ICMP, 42 | 43) => EXTENDED,
        (ICMPV6, 160 | 161) => EXTENDED6,
        _ => 0,
    }
}

/// An error that quotes the packet it is about: unreachable, source quench, time exceeded,
/// parameter problem; too big for IPv6. Not redirects, which would steer a pod's routes.
#[inline(always)]
pub(crate) const fn is_error(transport: &Transport) -> bool {
    matches!(
        (transport.protocol, transport.destination >> 8),
        (ICMP, 3 | 4 | 11 | 12) | (ICMPV6, 1..=4)
    )
}

impl<D: Direction, T: Tables> PacketEvaluator<'_, D, T> {
    /// The flow that an ICMP error quotes. Any router may send one to the pod, so the quoted packet
    /// must be one that the pod sent. The pod's own errors go to who sent the quoted packet, and
    /// to nobody else: they could carry anything.
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "a step of the evaluator, as the others")]
    pub(crate) fn quoted_flow<F: Family, B: Bytes>(
        &self,
        bytes: &B,
        error: &Network<F::Address>,
    ) -> Quoted<F> {
        let Ok(mut quoted) = F::network(bytes, error.payload + ERROR_HEADER, true) else {
            return Quoted::none(Quote::Nothing);
        };
        if F::extensions(bytes, &mut quoted).is_err() || quoted.fragment.is_later() {
            return Quoted::none(Quote::Nothing);
        }
        let Ok(transport) = packet::transport(bytes, &quoted, true) else {
            return Quoted::none(Quote::Nothing);
        };
        // What comes to the pod quotes what the pod sent, and the other way round.
        let (own, local, remote) = if D::EGRESS {
            (error.source, quoted.destination, quoted.source)
        } else {
            (error.destination, quoted.source, quoted.destination)
        };
        if !F::same(local, own) || (D::EGRESS && !F::same(remote, error.destination)) {
            return Quoted::none(Quote::Nothing);
        }
        let flow = FlowTuple::new(remote, &transport, !D::EGRESS);
        Quoted { quote: Quote::Flow, flow }
    }
}
