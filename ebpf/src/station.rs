//! Packets in frames to another station than the one whose address they have.
//!
//! An endpoint's egress policy is about addresses, and a bridge delivers by the frame's station: in a frame
//! to another pod's, a packet to an address that its sender may reach (an allowed peer's, the node's own)
//! would arrive at whom it may not. So what an isolated endpoint sends arrives at endpoints that have
//! the address alone.

use crate::{
    family::{Family, V4, V6},
    layout::{EP_CHECK_SOURCE, ROW_NOT_ISOLATED},
    packet::{self, Bytes, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Window as _},
    tables::{EndpointRef, Tables},
    verdict::find_endpoint,
};

/// Whether a packet with the proof ([`crate::proof`]), or one that has to be judged for an endpoint, goes
/// astray at `ifindex`: its sender is isolated in egress, and its receiver, whose addresses are known,
/// does not have the address that it is for. Addresses of many and of the link are everybody's.
/// `ingress_ifindex`: the sender's veth; 0: parts that the kernel made anew, and whose nobody knows.
#[must_use]
#[inline(always)]
pub fn is_astray<B: Bytes, T: Tables>(
    bytes: &B,
    tables: &T,
    ifindex: u32,
    ingress_ifindex: u32,
) -> bool {
    if ingress_ifindex == ifindex {
        return false;
    }
    if ingress_ifindex != 0 {
        let Some(sender) = find_endpoint(tables, ingress_ifindex) else { return false };
        if (sender.rows() >> 32) as u32 == ROW_NOT_ISOLATED {
            return false;
        }
    }
    let Some(receiver) = find_endpoint(tables, ifindex) else { return false };
    if receiver.flags() & EP_CHECK_SOURCE == 0 {
        return false;
    }
    match packet::link(bytes) {
        Ok((ETHERTYPE_IPV4, offset)) => {
            let header = bytes.window::<20>(offset);
            header.is_some_and(|header| is_of_another::<V4>(receiver, header.be32(16)))
        }
        Ok((ETHERTYPE_IPV6, offset)) => {
            let header = bytes.window::<40>(offset);
            header.is_some_and(|header| is_of_another::<V6>(receiver, header.words(24)))
        }
        _ => false,
    }
}

#[inline(always)]
fn is_of_another<F: Family>(receiver: EndpointRef, address: F::Address) -> bool {
    !F::owns(receiver, address) && !F::is_shared(address)
}
