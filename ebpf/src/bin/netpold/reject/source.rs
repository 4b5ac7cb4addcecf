//! Proof of the source of a denied packet in pod ingress, which is the destination of its answer: by the proof of the
//! sender's program or by the node's routes, see [`netpold_ebpf::judge::reject`].

use aya_ebpf::{bindings::__sk_buff, helpers::generated::bpf_fib_lookup};
use netpold_ebpf::{
    judge::{
        connection::Tracked,
        reject::{self, LocalFamily, SourceProof},
    },
    packet::{
        family::{V4, V6},
        rejection::{Denied, Ends},
    },
};

use crate::{maps::Scratch, mark, tables::Maps};

/// Address families of `struct bpf_fib_lookup`.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// Whether the source of a packet in pod ingress is proved.
#[inline(always)]
pub(super) fn is_source_proven<F: Routed>(
    skb: *mut __sk_buff,
    maps: &Maps,
    scratch: *mut Scratch,
    denied: &Denied<F::Address>,
) -> bool {
    // SAFETY: the program's context.
    let by = unsafe { (*skb).ingress_ifindex };
    let marks = (mark::read_mark(skb), mark::read_tc_index(skb));
    let destination = denied.network.destination;
    if by == 0 {
        return false;
    }
    // SAFETY: this CPU's own scratch.
    let (original, known) =
        unsafe { (&*F::original_ends(scratch), (*scratch).has_original_ends != 0) };
    let source = if known { original.addresses[0] } else { denied.network.source };
    match reject::source_proof::<F, _>(maps, by, marks, source) {
        SourceProof::Proven => true,
        SourceProof::Unproven => false,
        SourceProof::Routed => {
            // SAFETY: this CPU's own scratch.
            let route = unsafe { &mut (*scratch).route };
            F::write_route(route, by, destination, source);
            is_routed_by(skb, route, by)
        }
    }
}

/// An IP version, for the search of routes.
pub(super) trait Routed: LocalFamily + Tracked {
    /// Place of a packet's ends before its translation.
    fn original_ends(scratch: *mut Scratch) -> *mut Ends<Self::Address>;
    /// Writes `struct bpf_fib_lookup` for a packet from one address to another, received by an interface.
    fn write_route(route: &mut [u32; 16], by: u32, from: Self::Address, to: Self::Address);
}

impl Routed for V4 {
    #[inline(always)]
    fn original_ends(scratch: *mut Scratch) -> *mut Ends<u32> {
        // SAFETY: a field of the scratch.
        unsafe { &raw mut (*scratch).original_ends4 }
    }

    #[inline(always)]
    fn write_route(route: &mut [u32; 16], by: u32, from: u32, to: u32) {
        *route = [0; 16];
        route[0] = u32::from_ne_bytes([AF_INET, 0, 0, 0]);
        route[2] = by;
        route[4] = from.to_be();
        route[8] = to.to_be();
    }
}

impl Routed for V6 {
    #[inline(always)]
    fn original_ends(scratch: *mut Scratch) -> *mut Ends<[u64; 2]> {
        // SAFETY: a field of the scratch.
        unsafe { &raw mut (*scratch).original_ends6 }
    }

    #[inline(always)]
    fn write_route(route: &mut [u32; 16], by: u32, from: [u64; 2], to: [u64; 2]) {
        *route = [0; 16];
        route[0] = u32::from_ne_bytes([AF_INET6, 0, 0, 0]);
        route[2] = by;
        for (at, words) in [(4, from), (8, to)] {
            for (place, word) in words.into_iter().enumerate() {
                let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
                route[at + 2 * place] = u32::from_ne_bytes([a, b, c, d]);
                route[at + 2 * place + 1] = u32::from_ne_bytes([e, f, g, h]);
            }
        }
    }
}

/// Whether the node routes packets to the destination in `route` out of an interface.
#[inline(always)]
fn is_routed_by(skb: *mut __sk_buff, route: &mut [u32; 16], by: u32) -> bool {
    /// `BPF_FIB_LKUP_RET_NO_NEIGH`, and of a packet that is too long: a route was found.
    const FOUND: [i64; 2] = [7, 8];
    let size = size_of::<[u32; 16]>() as i32;
    // SAFETY: the program's context, and a structure of that size.
    let result = unsafe { bpf_fib_lookup(skb.cast(), route.as_mut_ptr().cast(), size, 0) };
    (result == 0 || FOUND.contains(&result)) && route[2] == by
}
