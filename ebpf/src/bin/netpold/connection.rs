//! Reads a packet's connection in the node's conntrack: `sk_buff._nfct` and its target, which the program's context
//! does not contain.

use core::ffi::c_void;

use aya_ebpf::{bindings::__sk_buff, helpers::generated::bpf_probe_read_kernel};
use netpold_ebpf::{
    judge::connection::{Course, Tuple},
    tables::find_endpoint,
};

use crate::{maps, tables::Maps};

/// Offset of `_nfct` in `struct sk_buff`, in bytes; 0: unknown, or reads are not allowed. Set at load time, like
/// [`crate::ASKS_FOR_NAMESPACE`].
#[unsafe(no_mangle)]
static CONNECTION_OFFSET: u32 = 0;
/// Offset of `tuplehash` in `struct nf_conn`, in bytes.
#[unsafe(no_mangle)]
static TUPLES_OFFSET: u32 = 0;

/// Bits of `_nfct` that are `enum ip_conntrack_info`; the others are the address (`NFCT_PTRMASK`).
const INFO: u64 = 7;

/// Whether the node's conntrack can be read.
#[inline(always)]
pub(crate) fn is_readable() -> bool {
    // SAFETY: a constant of the loaded program.
    unsafe { (&raw const CONNECTION_OFFSET).read_volatile() != 0 }
}

/// A packet's [`Course`]; leaves the connection's tuples in the scratch. A global function, like those in the crate's
/// root.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_course(skb: *mut __sk_buff) -> u32 {
    // SAFETY: constants of the loaded program.
    let (field, tuples) = unsafe {
        ((&raw const CONNECTION_OFFSET).read_volatile(), (&raw const TUPLES_OFFSET).read_volatile())
    };
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    if field == 0 {
        return Course::UNKNOWN.0;
    }
    let mut connection = 0_u64;
    // SAFETY: a helper that reads any address: that of the packet, which has this field, and that of its connection,
    // which lives as long as the packet.
    unsafe {
        let field = skb.cast::<u8>().wrapping_add(field as usize);
        if !read_kernel((&raw mut connection).cast(), size_of::<u64>() as u32, field) {
            return Course::UNKNOWN.0;
        }
        let address = (connection & !INFO) as usize;
        if address == 0 {
            return Course::UNKNOWN.0;
        }
        let place = &raw mut (*scratch).connection;
        let from = address.wrapping_add(tuples as usize) as *const u8;
        if !read_kernel(place.cast(), size_of::<[Tuple; 2]>() as u32, from) {
            return Course::UNKNOWN.0;
        }
        Course::new(&*place, (connection & INFO) as u32).0
    }
}

/// Reads the kernel's memory; false if it cannot be read.
///
/// # Safety
/// `to` has room for `bytes` bytes.
#[inline(always)]
pub(crate) unsafe fn read_kernel(to: *mut c_void, bytes: u32, from: *const u8) -> bool {
    // SAFETY: as the caller promises.
    unsafe { bpf_probe_read_kernel(to, bytes, from.cast()) == 0 }
}

/// Whether a reply to a pod comes from a host that the pod may send to.
#[inline(always)]
pub(crate) fn is_from_allowed_host(skb: *mut __sk_buff) -> bool {
    let course = netpold_course(skb);
    netpold_is_from_allowed_host(skb, course) != 0
}

/// [`is_from_allowed_host`] by the tuples that [`netpold_course`] has left, 1 or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_is_from_allowed_host(skb: *mut __sk_buff, course: u32) -> u32 {
    let maps = Maps::new();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 1 };
    // SAFETY: the program's context.
    let Some(endpoint) = find_endpoint(&maps, unsafe { (*skb).ifindex }) else { return 1 };
    // SAFETY: this CPU's own scratch, written just before.
    let tuples = unsafe { &(*scratch).connection };
    Course(course).is_from_allowed_host(&maps, endpoint, tuples).into()
}
