//! Partial checksums, which are written after the packet was judged.
//!
//! A packet with a partial checksum (`CHECKSUM_PARTIAL`) carries two offsets: the start of the summed bytes, and the
//! place of the 16-bit sum after that start. The sending card completes the sum, or the kernel does for a card that
//! cannot. A packet socket may choose both offsets (`PACKET_VNET_HDR`) and, by the summed bytes, the value that is
//! written: into a port, an address or a type.
//!
//! So a packet passes only if the sum is written into its own checksum field, or after all bytes that a judgement
//! reads, as for a packet in a pod's own tunnel. A packet that a card cuts into segments (`gso_size`) keeps its
//! headers: the kernel derives the offsets from the judged headers (`inet_gso_segment`), regardless of the socket's
//! offsets.

use crate::{
    packet::{
        bytes::Bytes,
        family::{Family, V4, V6},
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMP, ICMPV6, SCTP, TCP, UDP},
    },
    reason::Reason,
};

/// Offset of the checksum in a header of TCP, UDP or SCTP, and in an ICMP or ICMPv6 message.
pub const TCP_FIELD: u32 = 16;
/// See [`TCP_FIELD`].
pub const UDP_FIELD: u32 = 6;
const SCTP_FIELD: u32 = 8;
const ICMP_FIELD: u32 = 2;

/// Whether a partial checksum leaves all judged bytes unchanged. `start`: offset of the summed bytes in the frame;
/// `field`: offset of the sum after that start; `link`: as [`crate::packet::parse::link`] returns it.
#[inline(always)]
pub fn is_harmless<B: Bytes>(
    bytes: &B,
    link: Result<(u16, u32), Reason>,
    start: u32,
    field: u32,
) -> bool {
    match link {
        Ok((ETHERTYPE_IPV4, offset)) => is_harmless_in::<V4, B>(bytes, offset, start, field),
        Ok((ETHERTYPE_IPV6, offset)) => is_harmless_in::<V6, B>(bytes, offset, start, field),
        Ok(_) | Err(_) => false,
    }
}

#[inline(always)]
fn is_harmless_in<F: Family, B: Bytes>(bytes: &B, offset: u32, start: u32, field: u32) -> bool {
    let Ok(mut network) = F::network(bytes, offset, false) else { return false };
    if F::extensions(bytes, &mut network).is_err() {
        return false;
    }
    // The kernel sets no partial checksum on fragments.
    if network.fragment.more || network.fragment.is_later() {
        return false;
    }
    // Offset of the checksum field, and number of bytes that a judgement may read.
    let (own, judged) = match network.protocol {
        TCP => (TCP_FIELD, 20),
        UDP => (UDP_FIELD, 8),
        SCTP => (SCTP_FIELD, 16),
        ICMP | ICMPV6 => (ICMP_FIELD, u32::MAX),
        // Protocols without ports.
        _ => (0, 0),
    };
    let Some(into) = start.checked_sub(network.payload) else { return false };
    let is_own = into == 0 && field == own;
    // A start before the frame is a large number.
    is_own || start < bytes.length() && into + field >= judged
}
