//! The programs of the node's uplinks: XDP, in front of everything else.

use core::arch::asm;

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};
use netpold_ebpf::{
    event,
    packet::{self, Bytes},
    reason::Reason,
    tables::EndpointRef,
    uplink::{Scope, drops},
    verdict::Ingress,
};

use crate::{drops, packet::InPlace, tables::Maps};

/// Drops what begins a connection that policy denies.
#[xdp(frags)]
#[inline(always)]
fn netpold_uplink(context: XdpContext) -> u32 {
    judge(&context, Scope::Openings)
}

/// Drops all that policy denies and that belongs to no known flow.
#[xdp(frags)]
#[inline(always)]
fn netpold_uplink_all(context: XdpContext) -> u32 {
    judge(&context, Scope::All)
}

#[inline(always)]
fn judge(context: &XdpContext, scope: Scope) -> u32 {
    let frame = Frame { data: context.data(), end: context.data_end() };
    let Ok((kind, offset)) = packet::link(&frame) else { return xdp_action::XDP_PASS };
    let frame = frame.without_tags(offset);
    // SAFETY: the program's context.
    let from = unsafe { (*context.ctx).ingress_ifindex };
    let Some(endpoint) = drops(&frame, Ok((kind, ETHERNET)), &Maps::new(), from, scope) else {
        return xdp_action::XDP_PASS;
    };
    report(&frame, kind, endpoint);
    xdp_action::XDP_DROP
}

/// Counts a drop as the pod's hook would have, and tells of it as often.
#[inline(always)]
fn report(frame: &Frame, kind: u16, endpoint: EndpointRef) {
    let reason = Reason::Policy as u32;
    if drops::count_one(false, reason) {
        let _ = drops::send(reason, (endpoint.ifindex(), endpoint.id()), |event| {
            event::describe_at::<Ingress, _>(frame, Ok((kind, ETHERNET)), event);
        });
    }
}

/// A frame's first piece, read in place. Whatever is unusual goes on to the pod's hook.
struct Frame {
    data: usize,
    end: usize,
}

/// Length of an Ethernet header without tags.
const ETHERNET: u32 = 14;

impl Frame {
    /// The frame from so far on that its IP header is where it is in one without tags: the verifier
    /// compares offsets with the end only where they are constants.
    #[inline(always)]
    fn without_tags(self, offset: u32) -> Self {
        let mut data = self.data + (offset - ETHERNET) as usize;
        // SAFETY: nothing is done; the compiler shall not put both additions together.
        unsafe { asm!("{data} += 0", data = inout(reg) data, options(pure, nomem, nostack)) };
        Self { data, end: self.end }
    }
}

impl Bytes for Frame {
    const PLAIN: bool = true;
    const TAGS: bool = true;
    type Window = InPlace;

    #[inline(always)]
    fn length(&self) -> u32 {
        (self.end - self.data) as u32
    }

    #[inline(always)]
    fn window<const N: usize>(&self, offset: u32) -> Option<InPlace> {
        InPlace::new::<N>(self.data + offset as usize, self.end)
    }
}
