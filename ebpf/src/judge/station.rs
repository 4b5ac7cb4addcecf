//! Packets in frames to another station than the one with their destination address.
//!
//! An endpoint's egress policy is about addresses, while a bridge delivers by the frame's destination. In a frame to
//! another pod's station, a packet to an allowed address (of a peer, or of the node itself) would arrive at a pod that
//! its sender may not reach. So packets of an isolated endpoint arrive only at endpoints that have their destination
//! address.

use crate::{
    endpoint::EndpointRef,
    layout::EP_CHECK_SOURCE,
    packet::{
        bytes::{Bytes, Window as _},
        family::{Family, V4, V6},
        parse,
        protocol::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6},
    },
    reason::Reason,
    tables::{Tables, find_endpoint},
};

/// Whether a packet with the proof ([`crate::judge::proof`]), or one to be judged for an endpoint, may go astray at
/// `ifindex`: whether its sender is isolated in egress. `ingress_ifindex`: the sender's veth; 0: fragments that the
/// kernel rebuilt, of an unknown sender.
#[must_use]
#[inline(always)]
pub fn may_go_astray<T: Tables>(tables: &T, ifindex: u32, ingress_ifindex: u32) -> bool {
    if ingress_ifindex == 0 || ingress_ifindex == ifindex {
        return ingress_ifindex == 0;
    }
    find_endpoint(tables, ingress_ifindex).is_some_and(|sender| sender.rows().isolates_egress())
}

/// Whether a packet that [`may_go_astray`] does: its receiver, with known addresses, does not have the destination
/// address. Multicast and link-local destinations and ARP never go astray, unreadable packets always.
///
/// # Errors
/// [`Reason::Deferred`] if the packet can only be read by copying.
#[inline(always)]
pub fn is_astray<B: Bytes, T: Tables>(bytes: &B, tables: &T, ifindex: u32) -> Result<bool, Reason> {
    let Some(receiver) = find_endpoint(tables, ifindex) else { return Ok(false) };
    if receiver.flags() & EP_CHECK_SOURCE == 0 {
        return Ok(false);
    }
    let short = if B::PLAIN { Err(Reason::Deferred) } else { Ok(true) };
    match parse::link(bytes) {
        Ok((ETHERTYPE_IPV4, offset)) => match bytes.window::<20>(offset) {
            Some(header) => Ok(is_of_another::<V4>(receiver, header.be32(16))),
            None => short,
        },
        Ok((ETHERTYPE_IPV6, offset)) => match bytes.window::<40>(offset) {
            Some(header) => Ok(is_of_another::<V6>(receiver, header.words(24))),
            None => short,
        },
        Err(Reason::Deferred) => Err(Reason::Deferred),
        Ok((ETHERTYPE_ARP, _)) => Ok(false),
        _ => Ok(true),
    }
}

#[inline(always)]
fn is_of_another<F: Family>(receiver: EndpointRef, address: F::Address) -> bool {
    !F::owns(receiver, address) && !F::is_shared(address)
}
