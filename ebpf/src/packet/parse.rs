//! Parsing of headers into [`Network`] and [`Transport`], the input of policy and conntrack.
//!
//! Written once, over [`Bytes`]: packet memory or a copying helper in the kernel, a slice on the host. With
//! [`Bytes::PLAIN`] unusual packets (tags, extension headers, fragments) end in [`Reason::Deferred`], which keeps the
//! hot program short; the same code without it judges those.

pub use crate::packet::network::{Fragment, Network};
use crate::{
    packet::{
        bytes::{Bytes, Window as _, short},
        protocol::{ICMP, ICMPV6, SCTP, TCP, TCP_ACK, TCP_RST, TCP_SYN, UDP, has_ports},
    },
    reason::Reason,
};

const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
/// Number of VLAN tags that are skipped (one 802.1ad, one 802.1Q).
const MAX_TAGS: usize = 2;
/// Number of IPv6 extension headers that are followed.
const MAX_EXTENSIONS: usize = 8;
/// Room for options in an IPv4 header, in bytes.
const MAX_OPTION_BYTES: u32 = 40;
/// IPv4 options: loose and strict source route.
const LOOSE_ROUTE: u8 = 131;
const STRICT_ROUTE: u8 = 137;
/// Results of [`ipv4_option`] that are not lengths.
const LAST_OPTION: u32 = 0;
const ROUTE_OPTION: u32 = u32::MAX;
/// Largest length that an IP header can state; a longer packet (GSO) states 0.
const MAX_STATED_LENGTH: u32 = 0xffff;

/// SCTP chunks that open and end an association (RFC 9260 section 3.2).
const SCTP_INIT: u8 = 1;
const SCTP_INIT_ACK: u8 = 2;
const SCTP_ABORT: u8 = 6;
const SCTP_SHUTDOWN_COMPLETE: u8 = 14;

/// Ethernet header and inline VLAN tags: the type of the payload, and its offset.
///
/// # Errors
/// [`Reason::TooManyHeaders`] for more tags, of which the kernel strips any number (`__netif_receive_skb_core`).
/// [`Reason::Truncated`], or [`Reason::Deferred`].
#[inline(always)]
pub fn link<B: Bytes>(bytes: &B) -> Result<(u16, u32), Reason> {
    // A type in any case: otherwise the compiler keeps one that is not initialized where the packet ends.
    let header = bytes.window::<14>(0);
    let (mut ethertype, mut offset) = header.map_or((0, 0), |header| (header.be16(12), 14));
    for _ in 0..MAX_TAGS {
        if !is_tag(ethertype) {
            break;
        }
        if !B::TAGS {
            return Err(Reason::Deferred);
        }
        let Some(tag) = bytes.window::<4>(offset) else {
            offset = 0;
            break;
        };
        ethertype = tag.be16(2);
        offset += 4;
    }
    if offset == 0 {
        Err(short::<B>())
    } else if is_tag(ethertype) {
        Err(Reason::TooManyHeaders)
    } else {
        Ok((ethertype, offset))
    }
}

/// Source hardware address of a frame, first octet highest.
///
/// # Errors
/// [`Reason::Truncated`], or [`Reason::Deferred`].
#[inline(always)]
pub(crate) fn station<B: Bytes>(bytes: &B) -> Result<u64, Reason> {
    let header = bytes.window::<14>(0).ok_or(short::<B>())?;
    // Read as 16-bit parts: the address is aligned to these only.
    let [high, middle, low] = [6, 8, 10].map(|at| u64::from(header.be16(at)));
    Ok(high << 32 | middle << 16 | low)
}

/// Whether a type is that of a VLAN tag, as in the kernel's `eth_type_vlan`.
#[inline(always)]
const fn is_tag(ethertype: u16) -> bool {
    matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ)
}

/// Reads the IPv4 header at an offset. `quoted`: inside an ICMP error, which truncates the packet.
///
/// # Errors
/// [`Reason::Truncated`], [`Reason::Malformed`], or [`Reason::Deferred`].
#[inline(always)]
pub fn ipv4<B: Bytes>(bytes: &B, offset: u32, quoted: bool) -> Result<Network<u32>, Reason> {
    let header = bytes.window::<20>(offset).ok_or(short::<B>())?;
    let first = header.byte(0);
    let header_length = u32::from(first & 0xf) * 4;
    if first >> 4 != 4 || header_length < 20 {
        return Err(Reason::Malformed);
    }
    if B::PLAIN && header_length != 20 {
        return Err(Reason::Deferred);
    }
    let stated = u32::from(header.be16(2));
    let end = end_of(bytes, offset, stated, header_length, stated == 0, quoted)?;
    let part = header.be16(6);
    let fragment = if !B::PLAIN {
        Fragment {
            ident: u32::from(header.be16(4)),
            next: header.byte(9),
            offset: part & 0x1fff,
            more: part & 0x2000 != 0,
        }
    } else if part.trailing_zeros() >= 14 {
        Fragment::default()
    } else {
        return Err(Reason::Deferred);
    };
    Ok(Network {
        source: header.be32(12),
        destination: header.be32(16),
        protocol: header.byte(9),
        hop_limit: if B::PLAIN { 0 } else { header.byte(8) },
        start: offset,
        payload: offset + header_length,
        end,
        fragment,
    })
}

/// Reads the IPv6 header at an offset, without extension headers; addresses as words in memory order.
///
/// # Errors
/// As [`ipv4`].
#[inline(always)]
pub fn ipv6<B: Bytes>(bytes: &B, offset: u32, quoted: bool) -> Result<Network<[u64; 2]>, Reason> {
    let header = bytes.window::<40>(offset).ok_or(short::<B>())?;
    if header.byte(0) >> 4 != 6 {
        return Err(Reason::Malformed);
    }
    let stated = u32::from(header.be16(4));
    let end = end_of(bytes, offset, 40 + stated, 40, stated == 0, quoted)?;
    Ok(Network {
        source: header.words(8),
        destination: header.words(24),
        protocol: header.byte(6),
        hop_limit: if B::PLAIN { 0 } else { header.byte(7) },
        start: offset,
        payload: offset + 40,
        end,
        fragment: Fragment::default(),
    })
}

/// End of a packet by the length in its header: within the frame, past its own header. A packet longer than the field
/// (BIG TCP, RFC 2675) states 0 and fills the frame.
#[inline(always)]
fn end_of<B: Bytes>(
    bytes: &B,
    offset: u32,
    stated: u32,
    header: u32,
    zero: bool,
    quoted: bool,
) -> Result<u32, Reason> {
    let length = bytes.length();
    if quoted || (zero && length > MAX_STATED_LENGTH) {
        return Ok(bytes.opaque(length));
    }
    if stated < header {
        return Err(Reason::Malformed);
    }
    if offset + stated > length {
        return Err(Reason::Truncated);
    }
    Ok(bytes.opaque(offset + stated))
}

/// Whether IPv4 options between two offsets name a source route (RFC 791), by which the packet is forwarded from its
/// destination. Also true for options of invalid length, which the kernel rejects too.
#[inline(always)]
pub fn has_route<B: Bytes>(bytes: &B, at: u32, end: u32) -> bool {
    has_route_by(at, end, |at| ipv4_option(bytes, at))
}

/// [`has_route`] by a function that reads an option as [`ipv4_option`] does.
#[inline(always)]
pub fn has_route_by(mut at: u32, end: u32, read: impl Fn(u32) -> u32) -> bool {
    for _ in 0..MAX_OPTION_BYTES {
        if at >= end {
            break;
        }
        match read(at) {
            LAST_OPTION => break,
            ROUTE_OPTION => return true,
            length => at = at.wrapping_add(length),
        }
    }
    false
}

/// Length of the IPv4 option at an offset; [`LAST_OPTION`], or [`ROUTE_OPTION`] for a source route and for an invalid
/// length.
#[must_use]
#[inline(always)]
pub fn ipv4_option<B: Bytes>(bytes: &B, at: u32) -> u32 {
    // The last option may have one byte.
    let kind = bytes.window::<1>(at).map_or(LOOSE_ROUTE, |option| option.byte(0));
    let length = match kind {
        0 => return LAST_OPTION,
        1 => return 1,
        LOOSE_ROUTE | STRICT_ROUTE => return ROUTE_OPTION,
        _ => bytes.window::<2>(at).map_or(0, |option| option.byte(1)),
    };
    if length < 2 { ROUTE_OPTION } else { length.into() }
}

/// Whether a next header number is an extension header that the parser follows.
#[must_use]
#[inline(always)]
pub const fn is_extension(protocol: u8) -> bool {
    matches!(protocol, 0 | 43 | 44 | 51 | 60)
}

/// Whether a next header number is an IP header: IPv4 or IPv6 in IPv6 (RFC 2473).
#[inline(always)]
const fn is_ip(protocol: u8) -> bool {
    matches!(protocol, 4 | 41)
}

/// Follows IPv6 extension headers: hop-by-hop, routing, fragment, authentication, destination options (RFC 8200 section
/// 4). Headers after a later fragment's Fragment header are not read.
///
/// # Errors
/// As [`ipv4`], and [`Reason::TooManyHeaders`]. [`Reason::Malformed`] also for nested fragments, and for a routing
/// header with segments left: the packet is forwarded from its destination to an address that no program judged. And
/// for one directly before an IP header: at the last segment the kernel unpacks the inner packet, which no program
/// judged (RFC 8986 section 4.13, RFC 6554 section 4.2).
#[inline(always)]
pub fn extensions<B: Bytes>(bytes: &B, network: &mut Network<[u64; 2]>) -> Result<(), Reason> {
    if !is_extension(network.protocol) {
        return Ok(());
    }
    if B::PLAIN {
        return Err(Reason::Deferred);
    }
    bytes.follow(network).unwrap_or_else(|| follow(bytes, network, |count| count + 1))
}

/// Follows the extension headers of a packet whose next header is one. `next` adds 1.
///
/// # Errors
/// As [`extensions`].
#[inline(always)]
pub fn follow<B: Bytes>(
    bytes: &B,
    network: &mut Network<[u64; 2]>,
    next: impl Fn(usize) -> usize,
) -> Result<(), Reason> {
    let mut count = 0;
    while count < MAX_EXTENSIONS {
        let header = bytes.window::<8>(network.payload).ok_or(Reason::Truncated)?;
        let length = match network.protocol {
            43 if header.byte(3) != 0 || is_ip(header.byte(0)) => return Err(Reason::Malformed),
            44 if network.fragment.is_first() => return Err(Reason::Malformed),
            44 => {
                let part = header.be16(2);
                network.fragment = Fragment {
                    ident: header.be32(4),
                    next: header.byte(0),
                    offset: part >> 3,
                    more: part & 1 != 0,
                };
                8
            }
            51 => (u32::from(header.byte(1)) + 2) * 4,
            _ => (u32::from(header.byte(1)) + 1) * 8,
        };
        network.protocol = header.byte(0);
        let payload = network.payload + length;
        if payload > network.end {
            return Err(Reason::Truncated);
        }
        network.payload = bytes.opaque(payload);
        if network.fragment.is_later() || !is_extension(network.protocol) {
            network.protocol = bytes.opaque(network.protocol.into()) as u8;
            return Ok(());
        }
        count = next(count);
    }
    Err(Reason::TooManyHeaders)
}

/// Fields of the transport header, as used by rows and conntrack keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transport {
    /// Protocol number.
    pub protocol: u8,
    /// TCP flags; for SCTP the flags that correspond to its first chunk; else 0.
    pub flags: u8,
    /// Source port; for ICMP the identifier of an echo, timestamp or extended echo; else 0.
    pub source: u16,
    /// Destination port; for ICMP type << 8 | code; else 0.
    pub destination: u16,
}

/// Reads the transport header. `quoted`: only its first 8 bytes are guaranteed (RFC 792).
///
/// # Errors
/// [`Reason::Truncated`], [`Reason::TinyFragment`], or [`Reason::Deferred`].
#[inline(always)]
pub fn transport<B: Bytes, A>(
    bytes: &B,
    network: &Network<A>,
    quoted: bool,
) -> Result<Transport, Reason> {
    let mut transport = Transport { protocol: network.protocol, ..Transport::default() };
    if network.fragment.is_later() {
        // Reassembly at an offset of 8 bytes would overwrite the flags by which the first fragment was judged (RFC
        // 1858), and likewise SCTP's first chunk.
        let overlaps = matches!(network.protocol, TCP | SCTP) && network.fragment.offset == 1;
        return if overlaps { Err(Reason::TinyFragment) } else { Ok(transport) };
    }
    match network.protocol {
        SCTP if !B::SCTP => return Err(Reason::Deferred),
        protocol if B::PLAIN && !has_ports(protocol) => {
            return Err(Reason::Deferred);
        }
        TCP if !quoted => {
            let header = header::<20, B, A>(bytes, network)?;
            transport.flags = header.byte(13);
            transport.source = header.be16(0);
            transport.destination = header.be16(2);
        }
        SCTP if !quoted => {
            let header = header::<16, B, A>(bytes, network)?;
            transport.flags = match header.byte(12) {
                SCTP_INIT => TCP_SYN,
                SCTP_INIT_ACK => TCP_SYN | TCP_ACK,
                SCTP_ABORT | SCTP_SHUTDOWN_COMPLETE => TCP_ACK | TCP_RST,
                _ => TCP_ACK,
            };
            transport.source = header.be16(0);
            transport.destination = header.be16(2);
        }
        TCP | UDP | SCTP => {
            let header = header::<8, B, A>(bytes, network)?;
            transport.source = header.be16(0);
            transport.destination = header.be16(2);
        }
        ICMP | ICMPV6 => {
            let header = header::<8, B, A>(bytes, network)?;
            transport.destination = header.be16(0);
            transport.source = header.be16(4);
        }
        _ => {}
    }
    Ok(transport)
}

/// The first `N` bytes of the payload, which must exist.
#[inline(always)]
fn header<const N: usize, B: Bytes, A>(
    bytes: &B,
    network: &Network<A>,
) -> Result<B::Window, Reason> {
    if network.payload + N as u32 > network.end {
        return Err(if network.fragment.is_first() {
            Reason::TinyFragment
        } else {
            Reason::Truncated
        });
    }
    bytes.window::<N>(network.payload).ok_or(short::<B>())
}

/// Whether packets of the protocol show if a flow begins or is in its middle.
#[inline(always)]
pub(crate) const fn has_handshake(transport: &Transport) -> bool {
    matches!(transport.protocol, TCP | SCTP)
}

/// Whether a packet begins a connection, and so is never a reply.
#[inline(always)]
pub(crate) const fn is_opening(transport: &Transport) -> bool {
    transport.flags & (TCP_SYN | TCP_ACK) == TCP_SYN
}
