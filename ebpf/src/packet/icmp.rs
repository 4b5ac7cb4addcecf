//! ICMP and ICMPv6: echo and errors.

use crate::packet::{
    parse::{Network, Transport, is_opening},
    protocol::{ICMP, ICMPV6},
};

/// Part of an echo, timestamp (RFC 792) or extended echo (RFC 8335) exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Echo {
    None,
    Request,
    Reply,
}

/// Whether a protocol number is ICMP or ICMPv6.
#[inline(always)]
pub(crate) const fn is_icmp(protocol: u8) -> bool {
    matches!(protocol, ICMP | ICMPV6)
}

/// Types of timestamp and extended echo requests; the reply's type is one higher.
const TIMESTAMP: u16 = 13;
const EXTENDED: u16 = 42;
const EXTENDED6: u16 = 160;

/// Part of an echo, timestamp or extended echo exchange that a packet is.
#[inline(always)]
pub(crate) const fn echo(transport: &Transport) -> Echo {
    match (transport.protocol, transport.destination >> 8) {
        (ICMP, 8 | TIMESTAMP | EXTENDED) | (ICMPV6, 128 | EXTENDED6) => Echo::Request,
        (ICMP, 0 | 14 | 43) | (ICMPV6, 129 | 161) => Echo::Reply,
        _ => Echo::None,
    }
}

/// Value in place of the remote port in the key of an ICMP flow, by the type of one of its messages. Each kind of
/// exchange has its own identifiers. 0 for echo, and for messages of no exchange.
#[must_use]
#[inline(always)]
pub const fn exchange_type(protocol: u8, message: u8) -> u16 {
    match (protocol, message) {
        (ICMP, 13 | 14) => TIMESTAMP,
        (ICMP, 42 | 43) => EXTENDED,
        (ICMPV6, 160 | 161) => EXTENDED6,
        _ => 0,
    }
}

/// Whether a packet is an error that quotes another: unreachable, source quench, time exceeded, parameter problem; too
/// big for IPv6. Redirects are excluded: they would change a pod's routes.
#[inline(always)]
pub(crate) const fn is_error(transport: &Transport) -> bool {
    matches!(
        (transport.protocol, transport.destination >> 8),
        (ICMP, 3 | 4 | 11 | 12) | (ICMPV6, 1..=4)
    )
}

/// Whether a packet begins a flow, regardless of earlier packets.
#[inline(always)]
pub(crate) const fn begins(transport: &Transport) -> bool {
    is_opening(transport) || matches!(echo(transport), Echo::Request)
}

/// Types of neighbour solicitation and advertisement (RFC 4861).
pub(crate) const SOLICITATION: u8 = 135;
pub(crate) const ADVERTISEMENT: u8 = 136;
/// Length of a solicitation or an advertisement with one option.
const LONGEST: u32 = 32;

/// Whether a packet is an ICMPv6 solicitation or advertisement that no router has forwarded.
#[inline(always)]
pub(crate) fn is_solicitation(network: &Network<[u64; 2]>, transport: &Transport) -> bool {
    let kind = (transport.destination >> 8) as u8;
    network.protocol == ICMPV6
        && network.hop_limit == 255
        && network.payload == network.start + 40
        && network.end.wrapping_sub(network.payload) <= LONGEST
        && matches!(kind, SOLICITATION | ADVERTISEMENT)
}
