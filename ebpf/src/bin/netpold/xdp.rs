//! What the XDP programs have in common: the frame they read, and what becomes of it.

use core::arch::asm;

use aya_ebpf::{bindings::xdp_action, programs::XdpContext};
use netpold_ebpf::{
    direction::Direction,
    endpoint::EndpointRef,
    event,
    packet::{bytes::Bytes, parse},
    reason::Reason,
};

use crate::{drops, packet::InPlace, watches_only};

/// Type of what is behind the link header, and where that begins.
pub(crate) type Link = Result<(u16, u32), Reason>;

/// A frame's first piece, read in place. Whatever is unusual goes on to the pod's hook.
pub(crate) struct Frame {
    data: usize,
    end: usize,
}

/// Drops a frame for a reason at an endpoint, if there is one, else lets it go on.
#[inline(always)]
pub(crate) fn settle<D: Direction>(
    frame: &Frame,
    link: Link,
    found: Option<(EndpointRef, Reason)>,
) -> u32 {
    match found {
        Some((endpoint, reason)) if !watches_only() => {
            report::<D>(frame, link, endpoint, reason as u32);
            xdp_action::XDP_DROP
        }
        _ => xdp_action::XDP_PASS,
    }
}

/// The interface that a frame came in by.
#[inline(always)]
pub(crate) fn came_by(context: &XdpContext) -> u32 {
    // SAFETY: the program's context.
    unsafe { (*context.ctx).ingress_ifindex }
}

/// Counts a drop as the pod's hook would have, and tells of it as often.
#[inline(always)]
fn report<D: Direction>(frame: &Frame, link: Link, endpoint: EndpointRef, reason: u32) {
    if drops::count_one(D::EGRESS, reason, endpoint.ifindex()) {
        let _ = drops::send(reason, (endpoint.ifindex(), endpoint.id()), |event| {
            // The offset as a constant, also where the compiler makes this a function of its own.
            event::describe_at::<D, _>(frame, link.map(|(kind, _)| (kind, ETHERNET)), event);
        });
    }
}

/// Length of an Ethernet header without tags.
const ETHERNET: u32 = 14;

impl Frame {
    /// The frame and its link header; nothing if that cannot be read.
    #[inline(always)]
    pub(crate) fn open(context: &XdpContext) -> Option<(Self, Link)> {
        let frame = Self { data: context.data(), end: context.data_end() };
        let (kind, offset) = parse::link(&frame).ok()?;
        Some((frame.without_tags(offset), Ok((kind, ETHERNET))))
    }

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
    const SCTP: bool = true;
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
