//! Marks: which pod sent a packet that may be translated, carried in `skb->tc_index` from its veth
//! to where the packet leaves the node or reaches a pod.
//!
//! A pod could write the field itself, since it survives the way through a veth. So a pod's packets
//! come out of `netpold_egress` with our mark or with none, and those from other veths (whose far
//! sides are in namespaces of unknown programs) out of `netpold_unmark` with none.

use aya_ebpf::{EbpfContext as _, bindings::__sk_buff, macros::classifier, programs::TcContext};
use netpold_ebpf::{
    event,
    layout::{is_mark, mark},
    packet,
    reason::Reason,
    translated,
    verdict::{Egress, find_slot},
};

use crate::{DROP, NEXT, drops, packet::Copied, tables::Maps};

/// TC egress of the node's other devices with an Ethernet header: uplinks, VXLAN, bonds.
#[classifier]
#[inline(always)]
fn netpold_node(context: TcContext) -> i32 {
    node(context.as_ptr().cast(), ETHERNET)
}

/// As [`netpold_node`], for devices whose packets begin with the IP header: tunnels, WireGuard.
#[classifier]
#[inline(always)]
fn netpold_node_ip(context: TcContext) -> i32 {
    node(context.as_ptr().cast(), NO_LINK_HEADER)
}

/// TC ingress of veths that are no endpoints.
#[classifier]
#[inline(always)]
fn netpold_unmark(context: TcContext) -> i32 {
    leave(context.as_ptr().cast(), false);
    NEXT
}

/// What a packet begins with, as the global functions take it.
const ETHERNET: u32 = 0;
const NO_LINK_HEADER: u32 = 1;

#[inline(always)]
fn node(skb: *mut __sk_buff, link: u32) -> i32 {
    if !is_mark(read(skb)) {
        return NEXT;
    }
    if netpold_translated(skb, link) < Reason::FIRST_DROP as u32 {
        // What encapsulates it is not the pod's any more.
        write(skb, 0);
        return NEXT;
    }
    DROP
}

/// A packet on its way into a pod: judged for its sender if it is marked. `None`: the pod's own
/// judgement is next.
#[inline(always)]
pub(crate) fn arrived(skb: *mut __sk_buff) -> Option<i32> {
    if !is_mark(read(skb)) {
        return None;
    }
    let reason = netpold_translated(skb, ETHERNET);
    if reason >= Reason::FIRST_DROP as u32 {
        return Some(DROP);
    }
    write(skb, 0);
    (reason == Reason::Loopback as u32).then_some(NEXT)
}

/// A packet on its way out of a pod: with this pod's mark, or with none.
#[inline(always)]
pub(crate) fn leave(skb: *mut __sk_buff, marked: bool) {
    if marked {
        netpold_mark(skb);
    } else if is_mark(read(skb)) {
        write(skb, 0);
    }
}

/// Writes the mark of the endpoint whose interface this is. A global function to the kernel, as
/// those in the crate's root.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_mark(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    let ifindex = unsafe { (*skb).ifindex };
    // An endpoint that went since it was judged: another slot's mark is worse than none.
    let found = find_slot(&Maps::new(), ifindex).map_or(0, |(slot, _)| mark(slot));
    write(skb, found);
    0
}

/// Judges a marked packet, counts and reports a drop; the number of the reason.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_translated(skb: *mut __sk_buff, link: u32) -> u32 {
    // SAFETY: the program's context.
    let (bytes, ifindex) = unsafe { (Copied::new(skb), (*skb).ifindex) };
    let header = link_header(skb, &bytes, link);
    let reason = translated::judge(&bytes, header, &Maps::new(), read(skb), ifindex).number();
    if reason >= Reason::FIRST_DROP as u32 && drops::count_one(true, reason) {
        netpold_emit_translated(skb, link, reason);
    }
    reason
}

/// Emits the event of a marked packet's drop: it is its sender's.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_emit_translated(skb: *mut __sk_buff, link: u32, reason: u32) -> u32 {
    let sender = translated::sender(&Maps::new(), read(skb));
    let endpoint = sender.map_or((0, 0), |sender| (sender.ifindex(), sender.id()));
    drops::send(reason, endpoint, |event| {
        // SAFETY: the program's context.
        let bytes = unsafe { Copied::new(skb) };
        event::describe_at::<Egress, _>(&bytes, link_header(skb, &bytes, link), event);
    })
}

/// Type and end of the link header.
#[inline(always)]
fn link_header(skb: *mut __sk_buff, bytes: &Copied, link: u32) -> Result<(u16, u32), Reason> {
    if link == NO_LINK_HEADER {
        // SAFETY: the program's context.
        return Ok((u16::from_be(unsafe { (*skb).protocol } as u16), 0));
    }
    packet::link(bytes)
}

#[inline(always)]
fn read(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context, whose fields are read whole.
    unsafe { (&raw const (*skb).tc_index).read_volatile() }
}

#[inline(always)]
fn write(skb: *mut __sk_buff, value: u32) {
    // SAFETY: a field that classifiers may write.
    unsafe { (&raw mut (*skb).tc_index).write_volatile(value) };
}
