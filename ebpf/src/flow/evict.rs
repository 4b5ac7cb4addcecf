//! What becomes of a full table that one pod has nearly for itself.
//!
//! Answered flows are protected, so a pod and a peer that it may talk to could fill the table and keep
//! all other pods' new connections out. Where none of a new flow's ways is free or half-open and none
//! of their flows can move, the pod's own longest idle one goes if it has been for a quarter of an hour;
//! else the longest idle one of the endpoint that has three quarters of them, if the new flow's has
//! at most one. (Many pods that want everything leave it a third of the table.) Else nothing
//! established makes room but what has been idle for two hours, and half-open flows take one
//! another's place first.

use crate::{
    flow::{
        control::{Control, PROTECTED},
        key::Key,
        memory::Memory,
        table::{PLACES, stored_protocol, way},
    },
    layout::{Settings, TIMEOUT_IDLE},
    order,
};

/// Ways of a flow that the endpoint has which gives way.
const MOST: usize = PLACES * 3 / 4;
/// Ways of a flow that its endpoint has at the most to be given one.
const LEAST: usize = 1;
/// Which part of the idle time of a flow that gives way to anybody is enough for its own pod's: a
/// quarter of an hour of two hours.
const STALE: u32 = 8;

/// Frees the way of a flow that holds the longest idle one of its own endpoint, if that has been for
/// long; false if none has, or another writer was faster.
///
/// # Safety
/// As [`crate::flow::table::Flow::find`].
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub unsafe fn free_stale<K: Key, M: Memory>(
    memory: &M,
    buckets: [*mut u64; 2],
    (endpoint, hash): (u32, u64),
    settings: &Settings,
    now: u32,
) -> bool {
    let (mut best, mut best_age, mut best_control) = (0, 0, Control(0));
    // As the loop of `Flow::victim`.
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

/// Frees one of the ways of a flow of an endpoint; false if there is none to share, or another writer
/// was faster. `hash` is the flow's.
///
/// # Safety
/// As [`crate::flow::table::Flow::find`].
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub unsafe fn make_room<K: Key, M: Memory>(
    memory: &M,
    buckets: [*mut u64; 2],
    (endpoint, hash): (u32, u64),
    settings: &Settings,
    now: u32,
) -> bool {
    // SAFETY: as the caller promises.
    if unsafe { ways_of::<K, M>(memory, buckets, endpoint, hash) } > LEAST {
        return false;
    }
    let (mut best, mut best_age, mut best_control) = (0, 0, Control(0));
    // As the loop of `Flow::victim`.
    let mut place = 0;
    while place < PLACES {
        // SAFETY: as the caller promises.
        let (control, protocol, ways) = unsafe {
            let way = way::<K>(buckets, place);
            let control = Control(memory.load(way));
            // Behind it: if the control word is still the same when it is swapped, this is its flow's.
            let way = order::after_load(way, control.0);
            let other = K::endpoint(memory.load(way.add(1)));
            let ways = ways_of::<K, M>(memory, buckets, other, hash);
            (control, stored_protocol::<K, M>(memory, way), ways)
        };
        if control.rank(memory, protocol, settings, now) != PROTECTED {
            // Not full: the flow lost a race for this one.
            return false;
        }
        let age = u64::from(control.age(now)) + 1;
        if ways >= MOST && control.is_valid() && age > best_age {
            best = memory.opaque(place, hash);
            best_age = memory.opaque(age as usize, hash) as u64;
            best_control = control;
        }
        place = core::hint::black_box(place + 1);
    }
    // SAFETY: as the caller promises.
    best_age != 0 && unsafe { free(memory, way::<K>(buckets, best), best_control) }
}

/// Frees a way, as when it is swept. Who uses its flow at this moment keeps it.
#[inline(always)]
unsafe fn free<M: Memory>(memory: &M, way: *mut u64, control: Control) -> bool {
    // SAFETY: the caller's way lies in the table.
    unsafe { memory.swap(way, control.0, control.freed().0) == control.0 }
}

/// How many of a flow's ways hold, or held, flows of an endpoint.
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
unsafe fn ways_of<K: Key, M: Memory>(
    memory: &M,
    buckets: [*mut u64; 2],
    endpoint: u32,
    hash: u64,
) -> usize {
    let mut count = 0;
    let mut place = 0;
    while place < PLACES {
        // SAFETY: as the caller promises.
        let other = K::endpoint(unsafe { memory.load(way::<K>(buckets, place).add(1)) });
        // 1 if they are equal, without a branch for the verifier to follow.
        count += u64::from(other ^ endpoint).wrapping_sub(1) >> 63;
        place = core::hint::black_box(place + 1);
    }
    memory.opaque(count as usize, hash)
}
