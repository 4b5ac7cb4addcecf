//! Where a packet's checksum is written after the packet was judged.
//!
//! A packet that its sender's kernel has summed up in part (`CHECKSUM_PARTIAL`) carries two numbers: where the sum
//! begins, and where in what follows its 16 bits go. The card that sends the packet completes it, or the kernel for
//! one that cannot. A packet socket may choose both (`PACKET_VNET_HDR`), and with the bytes that are summed up what is
//! written: a port, an address, a type.
//!
//! So it passes where the sum is the packet's own, or is written behind all that a judgement reads, as that of a packet
//! in a tunnel of the pod's own. What a card cuts into segments (`gso_size`) keeps its headers: the kernel derives those
//! from the headers that were judged (`inet_gso_segment`), whatever the socket said.

use crate::{
    packet::{
        bytes::Bytes,
        family::{Family, V4, V6},
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP, ICMPV6, SCTP, TCP, UDP},
    },
    reason::Reason,
};

/// Offset of the checksum in a header of TCP, of UDP, of SCTP, and in a message of ICMP or ICMPv6.
pub const TCP_FIELD: u32 = 16;
/// See [`TCP_FIELD`].
pub const UDP_FIELD: u32 = 6;
const SCTP_FIELD: u32 = 8;
const ICMP_FIELD: u32 = 2;

/// Whether a checksum of which `start` says where it begins, in bytes from the frame's, and `field` where behind
/// that it is written, changes nothing that its packet is judged by. `link`: as [`crate::packet::parse::link`] answers.
#[inline(always)]
pub fn is_harmless<B: Bytes>(
    bytes: &B,
    link: Result<(u16, u32), Reason>,
    start: u32,
    field: u32,
) -> bool {
    match link {
        Ok((ETHERTYPE_IPV4, offset)) => is_of::<V4, B>(bytes, offset, start, field),
        Ok((ETHERTYPE_IPV6, offset)) => is_of::<V6, B>(bytes, offset, start, field),
        Ok(_) | Err(_) => false,
    }
}

#[inline(always)]
fn is_of<F: Family, B: Bytes>(bytes: &B, offset: u32, start: u32, field: u32) -> bool {
    let Ok(mut network) = F::network(bytes, offset, false) else { return false };
    if F::extensions(bytes, &mut network).is_err() {
        return false;
    }
    // Nobody sums up a part.
    if network.fragment.more || network.fragment.is_later() {
        return false;
    }
    // The checksum's own place, and how much of the message a judgement may read.
    let (own, judged) = match network.protocol {
        TCP => (TCP_FIELD, 20),
        UDP => (UDP_FIELD, 8),
        SCTP => (SCTP_FIELD, 16),
        ICMP | ICMPV6 => (ICMP_FIELD, u32::MAX),
        // Without ports.
        _ => (0, 0),
    };
    let Some(into) = start.checked_sub(network.payload) else { return false };
    let is_own = into == 0 && field == own;
    // A start in front of the frame is a large number.
    is_own || start < bytes.length() && into + field >= judged
}
