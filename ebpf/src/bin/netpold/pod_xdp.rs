//! XDP program of the pods' interfaces, in front of `netpold_egress`.

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};
use netpold_ebpf::{direction::Egress, xdp::pod::drops};

use crate::{
    tables::Maps,
    xdp::{Frame, drop_or_pass, ingress_interface},
};

/// Drops packets of a pod that its policy or the source check certainly denies.
#[xdp(frags)]
#[inline(always)]
fn netpold_sent(context: XdpContext) -> u32 {
    let Some((frame, link)) = Frame::open(&context) else { return xdp_action::XDP_PASS };
    let found = drops(&frame, link, &Maps::new(), ingress_interface(&context));
    drop_or_pass::<Egress>(&frame, link, found)
}
