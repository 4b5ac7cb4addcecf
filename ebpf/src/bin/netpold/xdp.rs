//! Shared code of the XDP programs: reading a frame, and acting on the verdict.

use core::arch::asm;

use aya_ebpf::{bindings::xdp_action, programs::XdpContext};
use netpold_ebpf::{
    direction::PodDirection,
    endpoint::EndpointRef,
    event,
    layout::{STANDS_ASIDE, WATCH_ONLY},
    packet::{bytes::Bytes, parse},
    reason::Reason,
};

use crate::{drops, handover_flags, packet::InPlace, tables::hide};

/// Type of the payload after the link header, and its offset.
pub(crate) type Link = Result<(u16, u32), Reason>;

/// First buffer of a frame, read in place. Unusual frames pass on to the pod's hook.
pub(crate) struct Frame {
    data: usize,
    end: usize,
}

/// Drops a frame for the reason found at an endpoint; passes it on if none was found, or if other programs judge.
#[inline(always)]
pub(crate) fn drop_or_pass<D: PodDirection>(
    frame: &Frame,
    link: Link,
    found: Option<(EndpointRef, Reason)>,
) -> u32 {
    match found {
        Some((endpoint, reason)) if handover_flags() & (WATCH_ONLY | STANDS_ASIDE) == 0 => {
            // Hidden from the compiler too, which would omit the mask of the counter's index otherwise.
            report::<D>(frame, link, endpoint, frame.opaque(reason as u32));
            xdp_action::XDP_DROP
        }
        _ => xdp_action::XDP_PASS,
    }
}

/// Interface that a frame arrived at.
#[inline(always)]
pub(crate) fn ingress_interface(context: &XdpContext) -> u32 {
    // SAFETY: the program's context.
    unsafe { (*context.ctx).ingress_ifindex }
}

/// Counts a drop and emits its event, at the same rate as the pod's hook.
#[inline(always)]
fn report<D: PodDirection>(frame: &Frame, link: Link, endpoint: EndpointRef, reason: u32) {
    if drops::count_one(D::EGRESS, reason, endpoint.ifindex()) {
        let _ = drops::send(reason, (endpoint.ifindex(), endpoint.id()), |event| {
            // A constant offset, also where the compiler makes this a separate function.
            event::describe_at::<D, _>(frame, link.map(|(kind, _)| (kind, ETHERNET)), event);
        });
    }
}

/// Length of an Ethernet header without tags.
const ETHERNET: u32 = 14;

impl Frame {
    /// The frame and its link header; `None` if that cannot be parsed.
    #[inline(always)]
    pub(crate) fn open(context: &XdpContext) -> Option<(Self, Link)> {
        let frame = Self { data: context.data(), end: context.data_end() };
        let (kind, offset) = parse::link(&frame).ok()?;
        Some((frame.without_tags(offset), Ok((kind, ETHERNET))))
    }

    /// Moves the start of the frame so that its IP header is at the same offset as without tags: the verifier checks
    /// only constant offsets against the end. Their length is hidden, so that the verifier follows the judgement once
    /// and not for each number of tags.
    #[inline(always)]
    fn without_tags(self, offset: u32) -> Self {
        let tags = self.opaque(offset - ETHERNET) & (4 | 8);
        let mut data = self.data + tags as usize;
        // SAFETY: no operation; it keeps the compiler from merging both additions.
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

    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        hide(number as usize, u64::from(self.length())) as u32
    }
}
