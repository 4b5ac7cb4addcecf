//! Verdicts on link messages (ARP, neighbour discovery) and on source addresses.

use crate::{
    direction::PodDirection,
    endpoint::EndpointRef,
    packet::{
        bytes::{Bytes, Window as _, short},
        family::{Family as _, V4, V6},
        neighbour::{NeighbourDiscovery, arp_claim, discovery, is_claim},
        parse::{self, is_extension},
        parsed::ParsedPacket,
        protocol::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMPV6},
    },
    reason::Reason,
};

/// Checks a frame's source hardware address, if the endpoint's is known: a bridge learns from it which frames to
/// deliver to the port.
///
/// # Errors
/// [`Reason::SpoofedSource`], or [`Reason::Deferred`].
#[inline(always)]
pub(crate) fn station<B: Bytes>(bytes: &B, sender: EndpointRef) -> Result<(), Reason> {
    let own = sender.station();
    if own != 0 && own != parse::station(bytes)? { Err(Reason::SpoofedSource) } else { Ok(()) }
}

/// Judges ARP: the exact form, and claims of the pod. `sender`: the endpoint, if it may only use its own addresses.
///
/// # Errors
/// A drop, or [`Reason::Deferred`].
#[inline(always)]
pub(crate) fn arp<B: Bytes>(
    bytes: &B,
    offset: u32,
    sender: Option<EndpointRef>,
    isolated: bool,
) -> Result<Reason, Reason> {
    if !isolated && sender.is_none() {
        return Ok(Reason::Neighbour);
    }
    let claim = arp_claim(bytes, offset)?;
    if let Some(sender) = sender {
        let own = sender.station();
        if !V4::owns(sender, claim.address) || own != 0 && own != claim.station {
            return Err(Reason::SpoofedSource);
        }
    }
    Ok(Reason::Neighbour)
}

/// Verdict on a packet of a pod that no policy selects: only its claims of addresses count. `None`: its payload may
/// contain a claim, or shows whether the packet needs a source. Unreadable packets may claim any address.
#[inline(always)]
pub(crate) fn source_alone<B: Bytes>(
    bytes: &B,
    link: Result<(u16, u32), Reason>,
    sender: EndpointRef,
) -> Option<Result<Reason, Reason>> {
    let own = match link {
        Ok((ETHERTYPE_IPV4, offset)) => {
            let Some(header) = bytes.window::<20>(offset) else {
                return Some(Err(short::<B>()));
            };
            let source = header.be32(12);
            if V4::is_unspecified(source) {
                return if B::PLAIN { Some(Err(Reason::Deferred)) } else { None };
            }
            V4::owns(sender, source)
        }
        Ok((ETHERTYPE_IPV6, offset)) => {
            let Some(header) = bytes.window::<40>(offset) else {
                return Some(Err(short::<B>()));
            };
            let (source, next) = (header.words(8), header.byte(6));
            let nobody = V6::is_unspecified(source);
            let own = nobody || V6::owns(sender, source) || V6::is_link_local(source);
            if own && (next == ICMPV6 || is_extension(next)) {
                return payload_alone(bytes, offset, next, source);
            }
            own && !nobody
        }
        Ok((ETHERTYPE_ARP, offset)) => return Some(arp(bytes, offset, Some(sender), false)),
        Ok(_) => return Some(Err(Reason::NotIp)),
        Err(reason) => return Some(Err(reason)),
    };
    Some(if own { Ok(Reason::NotIsolated) } else { Err(Reason::SpoofedSource) })
}

/// Verdict on a link message; `None` for any other packet. `sender`: as for [`arp`].
#[inline(always)]
pub(crate) fn message<D: PodDirection, B: Bytes>(
    bytes: &B,
    parsed: &ParsedPacket<V6>,
    sender: Option<EndpointRef>,
    isolated: bool,
) -> Option<Result<Reason, Reason>> {
    match discovery(bytes, &parsed.network, &parsed.transport, sender, D::EGRESS) {
        NeighbourDiscovery::No => None,
        NeighbourDiscovery::Claim => Some(Err(Reason::SpoofedSource)),
        // The exit shows whether the receiver is a neighbour.
        NeighbourDiscovery::Single if D::EGRESS && isolated => Some(Ok(Reason::Translated)),
        NeighbourDiscovery::OnLink | NeighbourDiscovery::Single => Some(Ok(Reason::Neighbour)),
    }
}

/// Verdict on a packet with a payload that may claim an address, if the fast path can decide it.
#[inline(always)]
fn payload_alone<B: Bytes>(
    bytes: &B,
    offset: u32,
    next: u8,
    source: [u64; 2],
) -> Option<Result<Reason, Reason>> {
    if !B::PLAIN {
        return None;
    }
    let kind = bytes.window::<1>(offset + 40).map(|message| message.byte(0));
    let usual = next == ICMPV6
        && !V6::is_unspecified(source)
        && kind.is_some_and(|kind| !is_claim(kind, source));
    Some(if usual { Ok(Reason::NotIsolated) } else { Err(Reason::Deferred) })
}
