//! Records of the flows of pods that no policy selects, see [`netpold_ebpf::observe`].
//!
//! Packets reach these functions after their verdict; none of the functions returns a verdict. Each is global to the
//! kernel (5.6). One for each direction calls the others in turn, so that their stack frames do not add up.

use aya_ebpf::bindings::__sk_buff;
use netpold_ebpf::{
    direction::{Egress, Ingress, PodDirection},
    flow::key::FlowTableKey,
    layout::ANY_OBSERVED,
    observe::{self, RecordFamily, RecordResult, Records, Unrecorded},
    packet::{
        bytes::Bytes,
        family::{V4, V6},
    },
    reason::{self, Reason},
    tables::{Tables as _, find_endpoint, find_slot},
};

use crate::{
    Global, hook,
    maps::{self, Pending},
    may_be_ipv6,
    packet::{CopiedTo, FollowedBytes, LinearBytes},
    tables::{Maps, flows::Key6},
};

/// Results of these functions: nothing is to be added, or the flow that is left in the scratch.
const DONE: u32 = 0;
const NEW: u32 = 1;
/// Result of a function for plain packets: the packet is not plain.
const DEFERRED: u32 = 2;

impl<const DEFERS: bool, const CLAIMS: bool> Records for Maps<DEFERS, CLAIMS> {
    #[inline(always)]
    fn record_bucket4(&self, index: u32) -> Option<*mut u64> {
        self.element(&maps::OBSERVED4, index).map(|bucket| bucket.cast())
    }

    #[inline(always)]
    fn record_bucket6(&self, index: u32) -> Option<*mut u64> {
        self.element(&maps::OBSERVED6, index).map(|bucket| bucket.cast())
    }

    #[inline(always)]
    fn added(&self, slot: u32) -> Option<*mut u64> {
        self.element(&maps::OBSERVED_ADDED, slot)
    }
}

/// Records the flow of a packet that passed, if its endpoint is observed and no policy selects it.
#[inline(always)]
pub(crate) fn record<D: PodDirection>(skb: *mut __sk_buff, reason: u32) {
    if reason != Reason::NotIsolated as u32 || !is_any_observed() {
        return;
    }
    // SAFETY: the program's context.
    let endpoint = find_endpoint(&Maps::new(), unsafe { (*skb).ifindex });
    if endpoint.is_some_and(observe::is_due) {
        if D::EGRESS {
            netpold_record_egress(skb);
        } else {
            netpold_record_ingress(skb);
        }
    }
}

/// Whether the flows of some endpoint are to be recorded: otherwise a packet costs one read of the settings.
#[inline(always)]
fn is_any_observed() -> bool {
    Maps::new().settings().is_some_and(|settings| settings.holds_for_any(ANY_OBSERVED))
}

/// Records a flow by the functions for plain IPv4, plain IPv6 and any other packets.
#[inline(always)]
fn record_by(skb: *mut __sk_buff, [plain4, plain6, any]: [Global; 3]) -> u32 {
    let mut result = if may_be_ipv6(skb) { plain6(skb) } else { plain4(skb) };
    if result == DEFERRED {
        result = any(skb);
    }
    if result == NEW { netpold_add_record(skb) } else { 0 }
}

/// Updates the record of a packet's flow, or leaves the flow in the scratch.
#[inline(always)]
fn find_or_store<D: PodDirection, B: Bytes>(skb: *mut __sk_buff, bytes: &B) -> u32 {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let Some(endpoint) = find_endpoint(&maps, unsafe { (*skb).ifindex }) else { return DONE };
    match observe::find_record::<D, B, _>(bytes, &maps, endpoint) {
        RecordResult::Done => DONE,
        RecordResult::Deferred => DEFERRED,
        RecordResult::New4(Unrecorded { key: [first, second], hash, flags }) => {
            store_pending([first, second, 0, 0], hash, Pending::IPV4 | u64::from(flags))
        }
        RecordResult::New6(Unrecorded { key, hash, flags }) => {
            store_pending(key, hash, Pending::IPV6 | u64::from(flags))
        }
    }
}

/// Leaves a flow for [`netpold_add_record`].
#[inline(always)]
fn store_pending(key: [u64; 4], hash: u64, what: u64) -> u32 {
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return DONE };
    // SAFETY: this CPU's own scratch.
    unsafe { (&raw mut (*scratch).pending).write(Pending { key, hash, what }) };
    NEW
}

/// Adds the record of the flow in the scratch; counts a flow that gets none.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_add_record(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's own scratch.
    let (what, hash) = unsafe { ((*scratch).pending.what, (*scratch).pending.hash) };
    let flags = observe::with_origin(what as u16, hook(skb), maps.settings());
    // SAFETY: this CPU's own scratch.
    let key = unsafe { &raw const (*scratch).pending.key };
    let added = if what & Pending::IPV6 != 0 {
        add::<V6, _>(skb, &maps, Unrecorded { key: Key6(key), hash, flags })
    } else {
        // SAFETY: this CPU's own scratch.
        let key = unsafe { key.cast::<[u64; 2]>().read() };
        add::<V4, _>(skb, &maps, Unrecorded { key, hash, flags })
    };
    if !added {
        maps.count(reason::unrecorded());
    }
    0
}

#[inline(always)]
fn add<F: RecordFamily, K: FlowTableKey>(
    skb: *mut __sk_buff,
    maps: &Maps,
    new: Unrecorded<K>,
) -> bool {
    // SAFETY: the program's context.
    let Some(at) = find_slot(maps, unsafe { (*skb).ifindex }) else { return false };
    observe::add::<F, K, _>(maps, at, new)
}

macro_rules! define_observers {
    ($all:ident, $direction:ty, $plain4:ident, $plain6:ident, $any:ident) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $plain4(skb: *mut __sk_buff) -> u32 {
            // SAFETY: the program's context.
            find_or_store::<$direction, _>(skb, &unsafe { LinearBytes::<true>::new(skb) })
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $plain6(skb: *mut __sk_buff) -> u32 {
            // SAFETY: the program's context.
            find_or_store::<$direction, _>(skb, &unsafe { LinearBytes::<false>::new(skb) })
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $any(skb: *mut __sk_buff) -> u32 {
            let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return DONE };
            // SAFETY: the program's context; this CPU's own scratch.
            let bytes = unsafe { FollowedBytes::new(skb, CopiedTo::new(skb, scratch)) };
            find_or_store::<$direction, _>(skb, &bytes)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $all(skb: *mut __sk_buff) -> u32 {
            record_by(skb, [$plain4, $plain6, $any])
        }
    };
}

define_observers!(
    netpold_record_ingress,
    Ingress,
    netpold_observe_ingress4,
    netpold_observe_ingress6,
    netpold_observe_ingress
);
define_observers!(
    netpold_record_egress,
    Egress,
    netpold_observe_egress4,
    netpold_observe_egress6,
    netpold_observe_egress
);
