//! TCP segments between a pod and a resolver.

use crate::{
    direction::Direction,
    names::conversation::mapped,
    packet::{
        bytes::{Bytes, Window as _},
        family::{Family, V4, V6},
        parse,
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP},
    },
};

/// A TCP segment, or the first fragment of one (RFC 9293 section 3.1).
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The pod's address, as [`NameEntry::address`](crate::layout::NameEntry::address).
    pub own: [u64; 2],
    /// The other side's address, likewise.
    pub remote: [u64; 2],
    /// The pod's port.
    pub port: u16,
    /// The other side's port.
    pub remote_port: u16,
    /// Sequence number of the first byte, or of the SYN.
    pub sequence: u32,
    /// Acknowledged sequence number.
    pub acknowledged: u32,
    /// Header flags.
    pub flags: u8,
    /// Offset of the data in the frame.
    pub offset: u32,
    /// Length of the data.
    pub length: u32,
    /// Whether the packet is no fragment.
    pub is_whole: bool,
}

/// The TCP segment in a packet; `None` for all other packets, and for later fragments.
#[inline(always)]
pub fn segment<D: Direction, B: Bytes>(bytes: &B) -> Option<Segment> {
    match parse::link(bytes).ok()? {
        (ETHERTYPE_IPV4, offset) => read::<D, V4, B>(bytes, offset),
        (ETHERTYPE_IPV6, offset) => read::<D, V6, B>(bytes, offset),
        _ => None,
    }
}

#[inline(always)]
fn read<D: Direction, F: Family, B: Bytes>(bytes: &B, offset: u32) -> Option<Segment> {
    let mut network = F::network(bytes, offset, false).ok()?;
    F::extensions(bytes, &mut network).ok()?;
    if network.protocol != TCP || network.fragment.is_later() {
        return None;
    }
    let header = bytes.window::<20>(network.payload)?;
    let (source, destination) = (header.be16(0), header.be16(2));
    let (own, port, remote, remote_port) = if D::EGRESS {
        (network.source, source, network.destination, destination)
    } else {
        (network.destination, destination, network.source, source)
    };
    let (sequence, acknowledged) = (header.be32(4), header.be32(8));
    let (size, flags) = (u32::from(header.byte(12) >> 4) * 4, header.byte(13));
    let offset = network.payload + size;
    (size >= 20 && offset <= network.end).then(|| Segment {
        own: mapped::<F>(own),
        remote: mapped::<F>(remote),
        port,
        remote_port,
        sequence,
        acknowledged,
        flags,
        offset,
        length: network.end - offset,
        is_whole: !network.fragment.more,
    })
}
