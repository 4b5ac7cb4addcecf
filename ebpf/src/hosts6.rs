//! The classes of single IPv6 addresses: buckets in an array that the agent writes while packets are
//! judged.
//!
//! The kernel's own hash map takes 25 ns a lookup here, and 100 more for random addresses among
//! 100,000. An address is in one of two buckets; one that found no room in either is in the prefix
//! table instead. An entry changes its class by one word. It changes its address only while its state
//! is not valid, and comes back under another incarnation, so that a reader who compared the address
//! between two looks at the state has seen one entry.

use crate::{
    conntrack::{Memory, choices, hash_words},
    layout::{ClassId, HOST6_VALID, HOST6_WAYS, Host6, Settings},
};

/// Words of an entry.
const STRIDE: usize = size_of::<Host6>() / 8;

/// The two buckets that an address (words in memory order) may be in.
#[must_use]
#[inline(always)]
pub fn buckets(settings: &Settings, address: [u64; 2]) -> [u32; 2] {
    choices(hash_words(settings.hash_seed, &address), settings.hosts6_mask)
}

/// State of the entry of an address in a bucket; not [`HOST6_VALID`] if there is none.
///
/// # Safety
/// The bucket must be a [`crate::layout::Hosts6Bucket`] in memory as [`Memory`] asks.
#[must_use]
#[inline(always)]
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
            if memory.load(entry.add(1)) != address[0] || memory.load(entry.add(2)) != address[1] {
                continue;
            }
            let after = memory.load(entry);
            if after & HOST6_VALID != 0 && (before ^ after) >> 33 == 0 {
                return after;
            }
        }
    }
    0
}

/// The class in a valid state.
#[must_use]
#[inline(always)]
pub const fn class(state: u64) -> ClassId {
    state as u32
}
