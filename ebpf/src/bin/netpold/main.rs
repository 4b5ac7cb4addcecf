//! netpold's eBPF programs, attached to the host side of every pod's veth.
//!
//! Each packet is judged in place by a short program; what needs more (fragments, extension
//! headers, tags, ICMP errors, headers outside the linear part) is judged by the same code over
//! copied bytes, in a function of its own.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch, core_intrinsics)]
#![expect(internal_features, reason = "atomic_cxchg is the only way to BPF_CMPXCHG")]

mod drops;
mod maps;
mod packet;
mod tables;

use aya_ebpf::{
    EbpfContext as _, bindings::__sk_buff, helpers::bpf_jiffies64, macros::classifier,
    programs::TcContext,
};
use netpold_ebpf::{
    packet::Bytes,
    reason::Reason,
    verdict::{Direction, Egress, Hook, Ingress, decide, is_free},
};

use crate::{
    packet::{Copied, Direct},
    tables::Maps,
};

/// TCX_NEXT, and TC_ACT_UNSPEC of a clsact filter: other programs on the hook still run.
const NEXT: i32 = -1;
/// TCX_DROP, TC_ACT_SHOT.
const DROP: i32 = 2;

/// Pod ingress: TC egress of the host side.
#[classifier]
#[inline(always)]
fn netpold_ingress(context: TcContext) -> i32 {
    judge::<Ingress>(
        context.as_ptr().cast(),
        netpold_ingress_quick,
        netpold_ingress4,
        netpold_ingress6,
    )
}

/// Pod egress: TC ingress of the host side.
#[classifier]
#[inline(always)]
fn netpold_egress(context: TcContext) -> i32 {
    judge::<Egress>(context.as_ptr().cast(), netpold_egress_quick, netpold_egress4, netpold_egress6)
}

/// The kernel's jiffies, low 32 bits, for the agent (by BPF_PROG_TEST_RUN): conntrack stamps.
#[classifier]
#[inline(always)]
fn netpold_clock(_context: TcContext) -> i32 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_jiffies64() as i32 }
}

/// Does nothing: what the benchmarks subtract.
#[classifier]
#[inline(always)]
fn netpold_empty(_context: TcContext) -> i32 {
    NEXT
}

/// A look at a packet: a global function to the kernel (5.6), verified by itself, and with a stack
/// frame that the others do not add to. The answer is a [`Reason`]'s number.
type Look = extern "C" fn(*mut __sk_buff) -> u32;

/// The quick look, then the thorough one where that was not enough; and the one place where a
/// verdict becomes an action.
#[inline(always)]
fn judge<D: Direction>(skb: *mut __sk_buff, quick: Look, ipv4: Look, ipv6: Look) -> i32 {
    // SAFETY: the program's context.
    if is_free::<D, _>(&Maps::new(), unsafe { (*skb).ifindex }) {
        return NEXT;
    }
    let mut reason = quick(skb);
    if reason == Reason::Deferred as u32 {
        reason = ipv4(skb);
    }
    if reason == Reason::Deferred as u32 {
        reason = ipv6(skb);
    }
    if reason < Reason::FIRST_DROP as u32 {
        return NEXT;
    }
    drops::report::<D>(skb, reason);
    DROP
}

/// The quick look at pod ingress.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_ingress_quick(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    verdict::<Ingress, _>(skb, &unsafe { Direct::new(skb) })
}

/// The quick look at pod egress.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_egress_quick(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    verdict::<Egress, _>(skb, &unsafe { Direct::new(skb) })
}

/// The thorough look at pod ingress, all but IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_ingress4(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    verdict::<Ingress, _>(skb, &unsafe { Copied::<true, false>::new(skb) })
}

/// The thorough look at pod ingress of IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_ingress6(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    verdict::<Ingress, _>(skb, &unsafe { Copied::<false, true>::new(skb) })
}

/// The thorough look at pod egress, all but IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_egress4(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    verdict::<Egress, _>(skb, &unsafe { Copied::<true, false>::new(skb) })
}

/// The thorough look at pod egress of IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_egress6(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    verdict::<Egress, _>(skb, &unsafe { Copied::<false, true>::new(skb) })
}

#[inline(always)]
fn verdict<D: Direction, B: Bytes>(skb: *mut __sk_buff, bytes: &B) -> u32 {
    // SAFETY: the program's context.
    let hook = unsafe { Hook { ifindex: (*skb).ifindex, ingress_ifindex: (*skb).ingress_ifindex } };
    decide::<D, B, Maps>(bytes, &Maps::new(), hook).reason() as u32
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The GPL of the two licences on offer: the kernel asks for it before GPL-only helpers.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
