//! The program of the pods' interfaces: XDP, in front of `netpold_egress`.

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};
use netpold_ebpf::{direction::Egress, xdp::pod::drops};

use crate::{
    tables::Maps,
    xdp::{Frame, came_by, settle},
};

/// Drops what a pod sends and may not.
#[xdp(frags)]
#[inline(always)]
fn netpold_sent(context: XdpContext) -> u32 {
    let Some((frame, link)) = Frame::open(&context) else { return xdp_action::XDP_PASS };
    let found = drops(&frame, link, &Maps::new(), came_by(&context));
    settle::<Egress>(&frame, link, found)
}
