//! Asks the kernel how a packet's checksum is to be completed: `ip_summed`, `csum_start` and `csum_offset` of
//! `struct sk_buff`, which no field of the program's context shows. The rule is in [`netpold_ebpf::judge::checksum`].
//!
//! From kernel 6.2 on `bpf_cast_to_kern_ctx` makes of the context the packet itself, whose fields are read in place.
//! Before, a copying helper reads them.

use core::{arch::asm, ffi::c_void};

use aya_ebpf::{bindings::__sk_buff, helpers::generated::bpf_probe_read_kernel};
use netpold_ebpf::{
    judge::checksum::{TCP_FIELD, UDP_FIELD, is_harmless},
    packet::{
        bytes::{Bytes, Window as _},
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP, UDP},
    },
};

use crate::{
    mark,
    packet::{Copied, Direct},
};

/// How the fields are read, and where `struct sk_buff` has them. Set when the programs are loaded, as
/// [`crate::ASKS_FOR_NAMESPACE`]: the way; byte and bit of `ip_summed`; bytes of `csum_start` with `csum_offset` behind
/// it, of `head`, of `data`.
#[unsafe(no_mangle)]
static CHECKSUM: [u32; 6] = [0; 6];

/// [`CHECKSUM`]: the call of [`kernel_packet`] is that of the kernel's function.
const IN_PLACE: u32 = 1;
/// [`CHECKSUM`]: by a copying helper.
const COPIED: u32 = 2;
/// `CHECKSUM_PARTIAL` of `ip_summed`.
const PARTIAL: u32 = 3;

/// A word of [`CHECKSUM`].
#[inline(always)]
fn known(word: usize) -> u32 {
    // SAFETY: a constant of the loaded program.
    unsafe { (&raw const CHECKSUM).cast::<u32>().add(word).read_volatile() }
}

/// Where a checksum goes, in bytes: from the frame's start to where the sum begins, and on from there.
#[derive(Clone, Copy)]
struct Place {
    start: u32,
    field: u32,
}

impl Place {
    #[inline(always)]
    fn new(place: u32, head: u64, data: u64) -> Self {
        Self { start: (place & 0xffff).wrapping_sub((data - head) as u32), field: place >> 16 }
    }
}

/// Whether what is still to be written into a packet changes nothing that it is judged by. `link`: as
/// [`mark::link_header`] takes it.
#[inline(always)]
pub(crate) fn is_settled(skb: *mut __sk_buff, link: u32) -> bool {
    match known(0) {
        IN_PLACE => match read_in_place(skb) {
            Some(place) => is_usual(skb, place) || judge(skb, link, place),
            None => true,
        },
        COPIED => netpold_settled(skb, link) != 0,
        _ => true,
    }
}

#[inline(always)]
fn judge(skb: *mut __sk_buff, link: u32, place: Place) -> bool {
    netpold_harmless(skb, link, place.start, place.field) != 0
}

/// Whether it is the checksum of TCP or UDP without anything unusual in front of it.
#[inline(always)]
fn is_usual(skb: *mut __sk_buff, place: Place) -> bool {
    // SAFETY: the program's context.
    let bytes = unsafe { Direct::<true>::new(skb) };
    let Some(header) = bytes.window::<34>(0) else { return false };
    let (start, protocol) = match header.be16(12) {
        ETHERTYPE_IPV4 if header.byte(14) == 0x45 && header.be16(20).trailing_zeros() >= 14 => {
            (34, header.byte(23))
        }
        ETHERTYPE_IPV6 => (54, header.byte(20)),
        _ => return false,
    };
    place.start == start
        && (place.field == TCP_FIELD && protocol == TCP
            || place.field == UDP_FIELD && protocol == UDP)
}

/// The kernel's own packet.
#[inline(always)]
fn kernel_packet(skb: *mut __sk_buff) -> *const u8 {
    let packet: *const u8;
    // SAFETY: the agent makes the number that of `bpf_cast_to_kern_ctx`, which takes the context; else the way is
    // another, and this call is not reached.
    unsafe {
        asm!(
            "call 1852797697",
            inout("r1") skb => _,
            lateout("r0") packet,
            lateout("r2") _, lateout("r3") _, lateout("r4") _, lateout("r5") _,
            options(nostack),
        );
    }
    packet
}

/// Where the checksum goes, if it is to be completed.
#[inline(always)]
fn read_in_place(skb: *mut __sk_buff) -> Option<Place> {
    let packet = kernel_packet(skb);
    // SAFETY: fields of the packet, at constant offsets: the verifier refuses others.
    unsafe {
        let summed = u32::from(packet.add(known(1) as usize).read_volatile());
        if summed >> known(2) & 3 != PARTIAL {
            return None;
        }
        let place = packet.add(known(3) as usize).cast::<u32>().read_volatile();
        let head = packet.add(known(4) as usize).cast::<u64>().read_volatile();
        let data = packet.add(known(5) as usize).cast::<u64>().read_volatile();
        Some(Place::new(place, head, data))
    }
}

/// [`is_settled`] by a copying helper, 1 or 0. A global function to the kernel, as those in the crate's root.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_settled(skb: *mut __sk_buff, link: u32) -> u32 {
    let (mut summed, mut place, mut ends) = (0_u8, 0_u32, [0_u64; 2]);
    let from = |word: usize| skb.cast::<u8>().wrapping_add(known(word) as usize);
    // SAFETY: a helper that reads any address: the packet's, which has these fields.
    let read = unsafe {
        fetch((&raw mut summed).cast(), 1, from(1))
            && fetch((&raw mut place).cast(), 4, from(3))
            && fetch((&raw mut ends[0]).cast(), 8, from(4))
            && fetch((&raw mut ends[1]).cast(), 8, from(5))
    };
    let partial = u32::from(summed) >> known(2) & 3 == PARTIAL;
    let settled = read && (!partial || judge(skb, link, Place::new(place, ends[0], ends[1])));
    u32::from(settled)
}

/// # Safety
/// `to` has room for so many bytes.
#[inline(always)]
unsafe fn fetch(to: *mut c_void, bytes: u32, from: *const u8) -> bool {
    // SAFETY: as the caller promises.
    unsafe { bpf_probe_read_kernel(to, bytes, from.cast()) == 0 }
}

/// [`is_harmless`], 1 or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_harmless(skb: *mut __sk_buff, link: u32, start: u32, field: u32) -> u32 {
    // SAFETY: the program's context.
    let bytes = unsafe { Copied::new(skb) };
    is_harmless(&bytes, mark::link_header(skb, &bytes, link), start, field).into()
}
