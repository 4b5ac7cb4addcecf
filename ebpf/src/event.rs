//! Description of a dropped packet.

use crate::{
    direction::PodDirection,
    layout::DropEvent,
    packet::{
        bytes::Bytes,
        family::{Family, V4, V6},
        icmp, parse,
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6},
    },
    reason::Reason,
};

/// Fills in all fields that can be read; malformed packets drop too, so some may be missing.
#[inline(always)]
pub fn describe<D: PodDirection, B: Bytes>(bytes: &B, event: &mut DropEvent) {
    describe_at::<D, B>(bytes, parse::link(bytes), event);
}

/// Fills in the fields of a packet with a parsed link header: its type and the offset of the IP header.
#[inline(always)]
pub fn describe_at<D: PodDirection, B: Bytes>(
    bytes: &B,
    link: Result<(u16, u32), Reason>,
    event: &mut DropEvent,
) {
    event.direction = u8::from(D::EGRESS);
    event.length = bytes.length();
    match link {
        Ok((ETHERTYPE_IPV4, offset)) => addresses::<D, V4, B>(bytes, offset, 4, event),
        Ok((ETHERTYPE_IPV6, offset)) => addresses::<D, V6, B>(bytes, offset, 6, event),
        _ => {}
    }
}

#[inline(always)]
fn addresses<D: PodDirection, F: Family, B: Bytes>(
    bytes: &B,
    offset: u32,
    family: u8,
    event: &mut DropEvent,
) {
    // Parsed as a quoted packet, without comparing lengths: a truncated packet has addresses too.
    let Ok(mut network) = F::network(bytes, offset, true) else { return };
    let followed = F::extensions(bytes, &mut network).is_ok();
    let (local, remote) = if D::EGRESS {
        (network.source, network.destination)
    } else {
        (network.destination, network.source)
    };
    event.family = family;
    event.protocol = network.protocol;
    event.local = F::octets(local);
    event.remote = F::octets(remote);
    let Ok(transport) = parse::transport(bytes, &network, true) else { return };
    if !followed {
        return;
    }
    (event.local_port, event.remote_port) = if icmp::is_icmp(transport.protocol) {
        (transport.destination, 0)
    } else if D::EGRESS {
        (transport.source, transport.destination)
    } else {
        (transport.destination, transport.source)
    };
}
