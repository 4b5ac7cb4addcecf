//! Reads how a packet's checksum is to be completed: `ip_summed`, `csum_start` and `csum_offset` of `struct sk_buff`,
//! which the program's context does not contain. The rule is in [`netpold_ebpf::judge::checksum`].
//!
//! Also reads whether a packet is a GRO list (`SKB_GSO_FRAGLIST`): whole packets after the first one, each with its own
//! headers. A pod can join packets and rewrite the first one's headers. Only these headers are judged. Where the kernel
//! splits the list, it copies (not in all versions) their addresses and ports to the other packets, and nothing else.
//! So a pod must not send a list.
//!
//! From kernel 6.2 on `bpf_cast_to_kern_ctx` turns the context into a pointer to the packet itself, for reads in
//! place. Before that, a copying helper reads the fields.

use core::arch::asm;

use aya_ebpf::bindings::__sk_buff;
use netpold_ebpf::{
    judge::checksum::{TCP_FIELD, UDP_FIELD, is_harmless},
    packet::{
        bytes::{Bytes, Window as _},
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, TCP, UDP},
    },
};

use crate::{
    connection::read_kernel,
    mark,
    packet::{Copied, FollowedBytes, LinearBytes},
};

/// Access to the fields of `struct sk_buff`, set at load time like [`crate::ASKS_FOR_NAMESPACE`]: the method; byte and
/// bit offset of `ip_summed`; byte offsets of `csum_start` (followed by `csum_offset`), `head` and `data`.
#[unsafe(no_mangle)]
static CHECKSUM: [u32; 6] = [0; 6];

/// Access to the type of a GSO packet, by the method of [`CHECKSUM`]: byte offset of `end` in `struct sk_buff`; number
/// of the type `struct skb_shared_info`, and the byte offset of `gso_type` in it.
#[unsafe(no_mangle)]
static CUT: [u32; 3] = [0; 3];

/// Method of [`CHECKSUM`]: in place, where the call in [`kernel_packet`] is that of the kernel's function.
const IN_PLACE: u32 = 1;
/// Method of [`CHECKSUM`]: by a copying helper.
const COPIED: u32 = 2;
/// Value `CHECKSUM_PARTIAL` of `ip_summed`.
const PARTIAL: u32 = 3;
/// Bit `SKB_GSO_FRAGLIST` of `gso_type`.
const LIST: u32 = 1 << 18;

/// A word of [`CUT`].
#[inline(always)]
fn gso_access(word: usize) -> u32 {
    // SAFETY: a constant of the loaded program.
    unsafe { (&raw const CUT).cast::<u32>().add(word).read_volatile() }
}

/// A word of [`CHECKSUM`].
#[inline(always)]
fn checksum_access(word: usize) -> u32 {
    // SAFETY: a constant of the loaded program.
    unsafe { (&raw const CHECKSUM).cast::<u32>().add(word).read_volatile() }
}

/// Place of a partial checksum, in bytes: start of the sum from the frame's start, and offset of the sum after that
/// start.
#[derive(Clone, Copy)]
struct ChecksumPlace {
    start: u32,
    field: u32,
}

impl ChecksumPlace {
    #[inline(always)]
    fn new(place: u32, head: u64, data: u64) -> Self {
        Self { start: (place & 0xffff).wrapping_sub((data - head) as u32), field: place >> 16 }
    }
}

/// Whether the kernel leaves all judged bytes unchanged: by a pending checksum, and where it segments the packet.
/// `link`: as in [`mark::link_header`].
#[inline(always)]
pub(crate) fn keeps_judged_bytes(skb: *mut __sk_buff, link: u32) -> bool {
    // SAFETY: the program's context.
    if unsafe { (*skb).gso_size } != 0 && netpold_is_gro_list(skb) != 0 {
        return false;
    }
    match checksum_access(0) {
        IN_PLACE => match read_in_place(skb) {
            Some(place) => is_usual(skb, place) || is_harmless_at(skb, link, place),
            None => true,
        },
        COPIED => netpold_keeps_judged_bytes(skb, link) != 0,
        _ => true,
    }
}

#[inline(always)]
fn is_harmless_at(skb: *mut __sk_buff, link: u32, place: ChecksumPlace) -> bool {
    netpold_is_harmless_checksum(skb, link, place.start, place.field) != 0
}

/// Whether the sum is the checksum of TCP or UDP, without options or extension headers.
#[inline(always)]
fn is_usual(skb: *mut __sk_buff, place: ChecksumPlace) -> bool {
    // SAFETY: the program's context.
    let bytes = unsafe { LinearBytes::<true>::new(skb) };
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

/// Pointer to the kernel's `struct sk_buff`.
#[inline(always)]
fn kernel_packet(skb: *mut __sk_buff) -> *const u8 {
    let packet: *const u8;
    // SAFETY: the agent patches the number of `bpf_cast_to_kern_ctx` into the call, which takes the context; with any
    // other method this call is not reached.
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

/// Whether a GSO packet is a list, 1 or 0; 1 as well if its type cannot be read. A global function, like those in the
/// crate's root.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_is_gro_list(skb: *mut __sk_buff) -> u32 {
    let kind = match checksum_access(0) {
        IN_PLACE => Some(read_kind(skb)),
        COPIED => copy_kind(skb),
        _ => Some(0),
    };
    kind.is_none_or(|kind| kind & LIST != 0).into()
}

/// `gso_type` of a packet, in place.
#[inline(always)]
fn read_kind(skb: *mut __sk_buff) -> u32 {
    let packet = kernel_packet(skb);
    // SAFETY: fields of the packet; `head + end` is the address of its `struct skb_shared_info`.
    unsafe {
        let end = packet.add(gso_access(0) as usize).cast::<u32>().read_volatile();
        let head = packet.add(checksum_access(4) as usize).cast::<u64>().read_volatile();
        let shared = kernel_type(head + u64::from(end), gso_access(1));
        shared.add(gso_access(2) as usize).cast::<u32>().read_volatile()
    }
}

/// `gso_type` of a packet, by a copying helper.
#[inline(always)]
fn copy_kind(skb: *mut __sk_buff) -> Option<u32> {
    let (mut head, mut end, mut kind) = (0_u64, 0_u32, 0_u32);
    let from = |offset: u32| skb.cast::<u8>().wrapping_add(offset as usize);
    // SAFETY: a helper that reads any address: those of [`read_kind`].
    let read = unsafe {
        read_kernel((&raw mut head).cast(), 8, from(checksum_access(4)))
            && read_kernel((&raw mut end).cast(), 4, from(gso_access(0)))
            && read_kernel(
                (&raw mut kind).cast(),
                4,
                (head + u64::from(end) + u64::from(gso_access(2))) as *const u8,
            )
    };
    read.then_some(kind)
}

/// Pointer to a kernel's type at an address; reads of other memory yield zeroes.
#[inline(always)]
fn kernel_type(address: u64, number: u32) -> *const u8 {
    let pointer: *const u8;
    // SAFETY: the agent patches the number of `bpf_rdonly_cast` into the call, as in [`kernel_packet`].
    unsafe {
        asm!(
            "call 1852797698",
            inout("r1") address => _,
            inout("r2") u64::from(number) => _,
            lateout("r0") pointer,
            lateout("r3") _, lateout("r4") _, lateout("r5") _,
            options(nostack),
        );
    }
    pointer
}

/// Place of the checksum, if it is partial.
#[inline(always)]
fn read_in_place(skb: *mut __sk_buff) -> Option<ChecksumPlace> {
    let packet = kernel_packet(skb);
    // SAFETY: fields of the packet, at constant offsets: the verifier rejects others.
    unsafe {
        let summed = u32::from(packet.add(checksum_access(1) as usize).read_volatile());
        if summed >> checksum_access(2) & 3 != PARTIAL {
            return None;
        }
        let place = packet.add(checksum_access(3) as usize).cast::<u32>().read_volatile();
        let head = packet.add(checksum_access(4) as usize).cast::<u64>().read_volatile();
        let data = packet.add(checksum_access(5) as usize).cast::<u64>().read_volatile();
        Some(ChecksumPlace::new(place, head, data))
    }
}

/// [`keeps_judged_bytes`] by a copying helper, 1 or 0. A global function, like those in the crate's root.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_keeps_judged_bytes(skb: *mut __sk_buff, link: u32) -> u32 {
    let (mut summed, mut place, mut ends) = (0_u8, 0_u32, [0_u64; 2]);
    let from = |word: usize| skb.cast::<u8>().wrapping_add(checksum_access(word) as usize);
    // SAFETY: a helper that reads any address: that of the packet, which has these fields.
    let read = unsafe {
        read_kernel((&raw mut summed).cast(), 1, from(1))
            && read_kernel((&raw mut place).cast(), 4, from(3))
            && read_kernel((&raw mut ends[0]).cast(), 8, from(4))
            && read_kernel((&raw mut ends[1]).cast(), 8, from(5))
    };
    let partial = u32::from(summed) >> checksum_access(2) & 3 == PARTIAL;
    let harmless = read
        && (!partial || is_harmless_at(skb, link, ChecksumPlace::new(place, ends[0], ends[1])));
    u32::from(harmless)
}

/// [`is_harmless`], 1 or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_is_harmless_checksum(
    skb: *mut __sk_buff,
    link: u32,
    start: u32,
    field: u32,
) -> u32 {
    // SAFETY: the program's context.
    let bytes = unsafe { FollowedBytes::new(skb, Copied::new(skb)) };
    is_harmless(&bytes, mark::link_header(skb, &bytes, link), start, field).into()
}
