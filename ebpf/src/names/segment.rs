//! TCP segments between a pod and a resolver.

use crate::{
    direction::PodDirection,
    endpoint::EndpointRef,
    layout::EP_CHECK_SOURCE,
    names::work::Work,
    packet::{
        bytes::{Bytes, Window as _},
        family::{Family, V4, V6, mapped},
        parse,
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP},
    },
};

/// Reads the TCP segment in a packet to the working memory (RFC 9293 section 3.1); false for all other packets. Of a
/// fragment, only its addresses are certain, and of the first one its ports and flags.
#[inline(always)]
pub fn parse_segment<D: PodDirection, B: Bytes>(
    bytes: &B,
    work: Work,
    endpoint: EndpointRef,
) -> bool {
    work.set_asker(u64::from(endpoint.id()) << 32);
    match parse::link(bytes) {
        Ok((ETHERTYPE_IPV4, offset)) => {
            parse_family::<D, V4, B>(bytes, work, (endpoint, offset)).is_some()
        }
        Ok((ETHERTYPE_IPV6, offset)) => {
            parse_family::<D, V6, B>(bytes, work, (endpoint, offset)).is_some()
        }
        _ => false,
    }
}

#[inline(always)]
fn parse_family<D: PodDirection, F: Family, B: Bytes>(
    bytes: &B,
    work: Work,
    (endpoint, offset): (EndpointRef, u32),
) -> Option<()> {
    let mut network = F::network(bytes, offset, false).ok()?;
    F::extensions(bytes, &mut network).ok()?;
    if network.protocol != TCP {
        return None;
    }
    let (own, remote) = if D::EGRESS {
        (network.source, network.destination)
    } else {
        (network.destination, network.source)
    };
    // A bridge floods frames to unknown stations, also those of another pod.
    let is_checked = endpoint.flags() & EP_CHECK_SOURCE != 0;
    if !D::EGRESS && is_checked && !F::owns(endpoint, own) {
        return None;
    }
    work.set_own(mapped::<F>(own));
    work.set_resolver(mapped::<F>(remote));
    let is_whole = !network.fragment.more && !network.fragment.is_later();
    work.set_is_whole(is_whole.into());
    if network.fragment.is_later() {
        work.set_flags(0);
        return Some(());
    }
    let header = bytes.window::<20>(network.payload)?;
    let (source, destination) = (header.be16(0), header.be16(2));
    let (port, remote_port) = if D::EGRESS { (source, destination) } else { (destination, source) };
    work.set_asker(work.asker() | u64::from(port));
    work.set_remote_port(remote_port.into());
    work.set_sequence(header.be32(4));
    work.set_acknowledged(header.be32(8));
    work.set_flags(header.byte(13).into());
    let size = u32::from(header.byte(12) >> 4) * 4;
    let offset = network.payload + size;
    work.set_segment_at(offset);
    work.set_segment_end(network.end);
    // The header of a fragment may continue in the next one.
    (!is_whole || size >= 20 && offset <= network.end).then_some(())
}
