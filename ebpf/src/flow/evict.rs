//! Eviction from a table that one pod nearly fills.
//!
//! Answered flows are protected, so a pod and one allowed peer could fill the table and lock out all other pods' new
//! connections. If none of a new flow's ways is free or half-open and none of their flows can be relocated, the longest
//! idle flow of the same pod is evicted, provided that it has been idle for a quarter of an hour. Else the longest idle
//! flow of an endpoint that holds three quarters of the ways is evicted, if the new flow's endpoint holds at most one.
//! (Competing with many busy pods, such an endpoint keeps a third of the table.) Other established flows are evicted
//! only after two hours of idle time, and half-open flows replace each other first.

use crate::{
    flow::{
        control::{Control, FREE, PROTECTED, Timeouts},
        key::FlowTableKey,
        memory::Memory,
        table::{PLACES, stored_protocol, way},
    },
    layout::{Settings, TIMEOUT_IDLE},
    order,
};

/// Minimum number of a new flow's ways that an endpoint must hold to lose one.
const CROWDING_WAYS: usize = PLACES * 3 / 4;
/// Maximum number of a new flow's ways that its own endpoint may hold to be given one.
const FEW_WAYS: usize = 1;
/// Divisor of [`TIMEOUT_IDLE`] for flows of the same pod: two hours become a quarter of an hour.
const STALE: u32 = 8;

/// Frees the way of the longest idle flow of the same endpoint, if it has been idle for long enough; false if there is
/// none, or another writer was faster.
///
/// # Safety
/// As [`crate::flow::table::Flow::find`].
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub unsafe fn free_stale<K: FlowTableKey, M: Memory>(
    memory: &M,
    buckets: [*mut u64; 2],
    (endpoint, hash): (u32, u64),
    settings: &Settings,
    now: u32,
) -> bool {
    let (mut best, mut best_age, mut best_control) = (0, 0, Control(0));
    // As in the loop of `Flow::victim`.
    let mut place = 0;
    while place < PLACES {
        // SAFETY: as the caller promises.
        let (control, other) = unsafe {
            let way = way::<K>(buckets, place);
            let control = Control(memory.load(way));
            (control, K::endpoint(memory.load(order::after_load(way, control.0).add(1))))
        };
        let age = control.age(now);
        let own = other == endpoint && control.is_valid();
        if own && age >= settings.timeouts[TIMEOUT_IDLE] / STALE && age > best_age {
            best = memory.opaque(place, hash);
            best_age = memory.opaque(age as usize, hash) as u32;
            best_control = control;
        }
        place = core::hint::black_box(place + 1);
    }
    // SAFETY: as the caller promises.
    best_age != 0 && unsafe { free(memory, way::<K>(buckets, best), best_control) }
}

/// Frees a way for a new flow of an endpoint; false if no endpoint holds enough ways to lose one, or another writer
/// was faster. `hash` is the new flow's.
///
/// # Safety
/// As [`crate::flow::table::Flow::find`].
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub unsafe fn make_room<K: FlowTableKey, M: Timeouts>(
    memory: &M,
    buckets: [*mut u64; 2],
    (endpoint, hash): (u32, u64),
    settings: &Settings,
    now: u32,
) -> bool {
    // SAFETY: as the caller promises.
    if unsafe { ways_of::<K, M>(memory, buckets, endpoint, hash) } > FEW_WAYS {
        return false;
    }
    let (mut best, mut best_age, mut best_control) = (0, 0, Control(0));
    // As in the loop of `Flow::victim`.
    let mut place = 0;
    while place < PLACES {
        // SAFETY: as the caller promises.
        let (control, protocol, ways) = unsafe {
            let way = way::<K>(buckets, place);
            let control = Control(memory.load(way));
            // Reads the key after the control word: if the swap finds the same control word, the key belongs to it.
            let way = order::after_load(way, control.0);
            let other = K::endpoint(memory.load(way.add(1)));
            let ways = ways_of::<K, M>(memory, buckets, other, hash);
            (control, stored_protocol::<K, M>(memory, way), ways)
        };
        if memory.rank(control, protocol, settings, now) != PROTECTED {
            // The table is not full: the flow lost a race for this way.
            return false;
        }
        let age = u64::from(control.age(now)) + 1;
        if ways >= CROWDING_WAYS && control.is_valid() && age > best_age {
            best = memory.opaque(place, hash);
            best_age = memory.opaque(age as usize, hash) as u64;
            best_control = control;
        }
        place = core::hint::black_box(place + 1);
    }
    // SAFETY: as the caller promises.
    best_age != 0 && unsafe { free(memory, way::<K>(buckets, best), best_control) }
}

/// Way to take for a new flow of an endpoint in a table that protects none: a way without a live flow, otherwise that
/// of the endpoint with most of the flow's ways (its own, counting the new flow, on a tie). Of these ways, those of
/// closed flows are taken first, then half-open ones, then the longest idle one. `None` if other writers hold all ways.
///
/// # Safety
/// As [`crate::flow::table::Flow::find`].
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub unsafe fn take_share<K: FlowTableKey, M: Timeouts>(
    memory: &M,
    buckets: [*mut u64; 2],
    (endpoint, hash): (u32, u64),
    settings: &Settings,
    now: u32,
) -> Option<(*mut u64, Control)> {
    /// Above every rank that [`Control::rank`] returns for a live flow.
    const SHARE: u64 = 1 << 35;
    let (mut best, mut best_score, mut best_control) = (0, 0, Control(0));
    // As in the loop of `Flow::victim`.
    let mut place = 0;
    while place < PLACES {
        // SAFETY: as the caller promises.
        let (control, protocol, other, ways) = unsafe {
            let way = way::<K>(buckets, place);
            let control = Control(memory.load(way));
            let way = order::after_load(way, control.0);
            let other = K::endpoint(memory.load(way.add(1)));
            let ways = ways_of::<K, M>(memory, buckets, other, hash);
            (control, stored_protocol::<K, M>(memory, way), other, ways)
        };
        let rank = memory.rank(control, protocol, settings, now);
        let share = ways as u64 + u64::from(other == endpoint);
        let score = match rank {
            FREE => FREE * PLACES as u64 * 2,
            _ if !control.is_valid() => 0,
            rank => SHARE * share + rank.max(u64::from(control.age(now)) + 1),
        };
        if score > best_score {
            best = memory.opaque(place, hash);
            best_score = memory.opaque(score as usize, hash) as u64;
            best_control = control;
        }
        if rank == FREE {
            break;
        }
        place = core::hint::black_box(place + 1);
    }
    // SAFETY: as the caller promises.
    (best_score != 0).then(|| unsafe { (way::<K>(buckets, best), best_control) })
}

/// Frees a way, as the sweeper does. A flow that has a packet at this moment stays.
#[inline(always)]
unsafe fn free<M: Memory>(memory: &M, way: *mut u64, control: Control) -> bool {
    // SAFETY: the caller's way lies in the table.
    unsafe { memory.swap(way, control.0, control.freed().0) == control.0 }
}

/// Number of a flow's ways with the key of an endpoint, in use or not. Without a branch or a loop in the program: the
/// verifier follows this once for each way.
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
unsafe fn ways_of<K: FlowTableKey, M: Memory>(
    memory: &M,
    buckets: [*mut u64; 2],
    endpoint: u32,
    hash: u64,
) -> usize {
    let mut count = 0;
    for place in 0..PLACES {
        // SAFETY: as the caller promises.
        let other = K::endpoint(unsafe { memory.load(way::<K>(buckets, place).add(1)) });
        // 1 if they are equal.
        count += u64::from(other ^ endpoint).wrapping_sub(1) >> 63;
    }
    memory.opaque(count as usize, hash)
}
