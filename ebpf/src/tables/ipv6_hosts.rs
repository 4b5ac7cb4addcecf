//! The classes of single IPv6 addresses: buckets in an array that the agent writes while packets are
//! judged.
//!
//! The kernel's own hash map takes 25 ns a lookup here, and 100 more for random addresses among
//! 100,000. An address is in one of two buckets, nearly always in the first, and a bucket says whether any
//! of its addresses is in the other; one that found no room in either is among the blocks instead. An entry changes its class by one word. It changes its address only while its state
//! is not valid, and comes back under another incarnation, so that a reader who compared the address
//! between two looks at the state has seen one entry.

use crate::{
    flow::{
        key::{choices, hash},
        memory::Memory,
    },
    layout::{ClassId, HOST6_VALID, HOST6_WAYS, Host6, Hosts6Bucket, Settings},
    order,
};

/// Words of an entry.
const STRIDE: usize = size_of::<Host6>() / 8;

/// The two buckets that an address (words in memory order) may be in.
#[must_use]
#[inline(always)]
pub fn buckets(settings: &Settings, address: [u64; 2]) -> [u32; 2] {
    choices(hash(settings, &address), settings.ipv6_hosts_mask)
}

/// State of the entry of an address in a bucket; not [`HOST6_VALID`] if there is none.
///
/// # Safety
/// The bucket must be a [`crate::layout::Hosts6Bucket`] in memory as [`Memory`] asks.
#[must_use]
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub unsafe fn state<M: Memory>(memory: &M, bucket: *mut u64, address: [u64; 2]) -> u64 {
    for index in 0..HOST6_WAYS {
        // SAFETY: the entry lies in the bucket.
        unsafe {
            let entry = bucket.add(index * STRIDE);
            // The half that differs most first.
            if memory.load(entry.add(2)) != address[1] {
                continue;
            }
            let before = memory.load(entry);
            let stored = order::after_load(entry, before);
            let halves = [memory.load(stored.add(1)), memory.load(stored.add(2))];
            let again = order::after_load(entry, halves[0] | halves[1]);
            if halves[0] != address[0] || halves[1] != address[1] {
                continue;
            }
            let after = memory.load(again);
            if after & HOST6_VALID != 0 && same_incarnation(before, after) {
                return after;
            }
        }
    }
    0
}

/// Whether an address that is not in its first bucket may be in its second.
///
/// # Safety
/// As [`state`].
#[must_use]
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the bucket's word is read under the promise for all of them"
)]
pub unsafe fn goes_on<M: Memory>(memory: &M, first: *const u64) -> bool {
    const DISPLACED: usize = core::mem::offset_of!(Hosts6Bucket, displaced) / 8;
    // SAFETY: a word of the bucket.
    unsafe { memory.load(first.add(DISPLACED)) != 0 }
}

/// [`Host6::state`]: where the incarnation begins.
const INCARNATION: u32 = HOST6_VALID.trailing_zeros() + 1;

#[inline(always)]
const fn same_incarnation(a: u64, b: u64) -> bool {
    (a ^ b) >> INCARNATION == 0
}

/// The class in a valid state.
#[must_use]
#[inline(always)]
pub const fn class(state: u64) -> ClassId {
    state as u32
}

/// A valid state with another class.
#[must_use]
pub const fn with_class(state: u64, class: ClassId) -> u64 {
    state & !(ClassId::MAX as u64) | class as u64
}

/// The state behind a valid one: free, of the same incarnation.
#[must_use]
pub const fn freed(state: u64) -> u64 {
    state >> INCARNATION << INCARNATION
}

/// The state behind a free one: another address' entry.
#[must_use]
pub const fn taken(state: u64, class: ClassId) -> u64 {
    let incarnation = (state >> INCARNATION).wrapping_add(1) << INCARNATION;
    incarnation | HOST6_VALID | class as u64
}
