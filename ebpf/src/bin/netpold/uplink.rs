//! XDP programs of the node's uplinks, in front of all other programs.

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};
use netpold_ebpf::{
    direction::Ingress,
    reason::Reason,
    xdp::uplink::{Scope, drops},
};

use crate::{
    tables::Maps,
    xdp::{Frame, drop_or_pass, ingress_interface},
};

/// Drops packets that begin a connection, if policy denies them.
#[xdp(frags)]
#[inline(always)]
fn netpold_uplink(context: XdpContext) -> u32 {
    judge(&context, Scope::Openings)
}

/// Drops all packets that policy denies and that have no known flow.
#[xdp(frags)]
#[inline(always)]
fn netpold_uplink_all(context: XdpContext) -> u32 {
    judge(&context, Scope::All)
}

#[inline(always)]
fn judge(context: &XdpContext, scope: Scope) -> u32 {
    let Some((frame, link)) = Frame::open(context) else { return xdp_action::XDP_PASS };
    let found = match drops(&frame, link, &Maps::new(), ingress_interface(context), scope) {
        Some(endpoint) => Some((endpoint, Reason::Policy)),
        None => None,
    };
    drop_or_pass::<Ingress>(&frame, link, found)
}
