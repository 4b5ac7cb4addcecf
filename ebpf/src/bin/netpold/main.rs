//! netpold's eBPF programs, attached to the host side of every pod's veth.
#![no_std]
#![no_main]

mod maps;

use aya_ebpf::{helpers::bpf_jiffies64, macros::classifier, programs::TcContext};

/// TCX_NEXT, and TC_ACT_UNSPEC of a clsact filter: other programs on the hook still run.
const NEXT: i32 = -1;

/// Pod ingress: TC egress of the host side.
#[classifier]
pub fn netpold_ingress(_ctx: TcContext) -> i32 {
    NEXT
}

/// Pod egress: TC ingress of the host side.
#[classifier]
pub fn netpold_egress(_ctx: TcContext) -> i32 {
    NEXT
}

/// The kernel's jiffies, low 32 bits, for the agent (by BPF_PROG_TEST_RUN): conntrack stamps.
#[classifier]
pub fn netpold_clock(_ctx: TcContext) -> i32 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_jiffies64() as i32 }
}

/// Does nothing: what the benchmarks subtract.
#[classifier]
pub fn netpold_empty(_ctx: TcContext) -> i32 {
    NEXT
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The GPL of the two licences on offer: the kernel asks for it before GPL-only helpers.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
