//! The classes of single IPv6 addresses: buckets in an array that the agent writes while packets are
//! judged.
//!
//! The kernel's own hash map takes 25 ns a lookup here, and 100 more for random addresses among
//! 100,000. Four neighbouring addresses share an entry, which is in one of two buckets, nearly always in the first; an
//! address whose entry found no room in either is among the blocks instead. A filter that stays in the CPU's caches has
//! for each bucket one bit of 32 for each entry of which it is the first bucket, chosen by the entry's hash: most
//! strangers are known by it, and no bucket is read for them. The bucket says of each bit whether any such entry is in
//! its second bucket.
//!
//! The filter's bit is set before an entry is valid, and cleared after it is not. An address changes its class by one
//! word. An entry changes its addresses only while none of them is valid, and comes back under another incarnation, so
//! that a reader who found an address valid and its class between two looks at the state has seen one entry.

use crate::{
    flow::{
        key::{choices, hash},
        memory::Memory,
    },
    layout::{
        ClassId, HOST6_GROUP, HOST6_VALID, HOST6_WAYS, HOSTS6_FILTER_BITS, HOSTS6_FILTERED,
        HOSTS6_MANY, Hosts6Bucket, Hosts6Entry, Settings,
    },
    order,
};

/// Words of an entry.
const STRIDE: usize = size_of::<Hosts6Entry>() / 8;
/// Words of an entry before its classes.
const CLASSES: usize = core::mem::offset_of!(Hosts6Entry, classes) / 8;
/// The bits of an address' second word that choose the address in an entry.
const MEMBER: u64 = (HOST6_GROUP as u64 - 1).to_be();
/// What [`find`] answers beside the class.
pub const FOUND: u64 = 1 << 32;

/// The address that an address' entry begins with.
#[must_use]
#[inline(always)]
pub const fn group(address: [u64; 2]) -> [u64; 2] {
    [address[0], address[1] & !MEMBER]
}

/// Which address of its entry an address is.
#[must_use]
#[inline(always)]
pub const fn member(address: [u64; 2]) -> usize {
    u64::from_be(address[1] & MEMBER) as usize
}

/// Where the entry of an address may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Its two buckets.
    pub buckets: [u32; 2],
    /// Its bit, of those that the first bucket has in the filter.
    pub bit: u32,
}

impl Places {
    /// Of an address (words in memory order).
    #[must_use]
    #[inline(always)]
    pub fn new(settings: &Settings, address: [u64; 2]) -> Self {
        let hash = hash(settings, &group(address));
        // Other bits than those that choose the first bucket, in tables of up to 2^27.
        let bit = hash as u32 >> (u32::BITS - HOSTS6_FILTER_BITS.ilog2());
        Self { buckets: choices(hash, settings.ipv6_hosts_mask), bit }
    }

    /// The word of the filter.
    #[must_use]
    #[inline(always)]
    pub const fn filter(self) -> u32 {
        self.buckets[0] / HOSTS6_FILTERED
    }

    /// The entry's bit in that word.
    #[must_use]
    #[inline(always)]
    pub const fn filter_bit(self) -> u64 {
        1 << (filter_shift(self.buckets[0]) + self.bit)
    }

    /// How many entries with its bit are in their second bucket, in the first bucket's
    /// [`Hosts6Bucket::displaced`].
    #[must_use]
    #[inline(always)]
    pub const fn displaced(self, word: u64) -> u64 {
        displaced(word, self.bit)
    }
}

/// Where a bucket's bits begin in its word of the filter.
#[must_use]
#[inline(always)]
pub const fn filter_shift(bucket: u32) -> u32 {
    bucket % HOSTS6_FILTERED * HOSTS6_FILTER_BITS
}

/// The count for a bit in [`Hosts6Bucket::displaced`].
#[must_use]
#[inline(always)]
pub const fn displaced(word: u64, bit: u32) -> u64 {
    word >> (bit * 2) & HOSTS6_MANY
}

/// Class of an address in a bucket, with [`FOUND`]; 0 if it is not there.
///
/// # Safety
/// The bucket must be a [`crate::layout::Hosts6Bucket`] in memory as [`Memory`] asks.
#[must_use]
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub unsafe fn find<M: Memory>(memory: &M, bucket: *mut u64, address: [u64; 2]) -> u64 {
    let (group, member) = (group(address), member(address));
    let (mut place, mut before, mut behind_address) = (HOST6_WAYS, 0, 0);
    for index in 0..HOST6_WAYS {
        // SAFETY: the entry lies in the bucket.
        unsafe {
            let entry = bucket.add(index * STRIDE);
            // The half that differs most first.
            if memory.load(entry.add(2)) != group[1] {
                continue;
            }
            let state = memory.load(entry);
            let stored = order::after_load(entry, state);
            let halves = [memory.load(stored.add(1)), memory.load(stored.add(2))];
            if halves == group && state >> member & 1 != 0 {
                behind_address = order::zero(halves[0] | halves[1]);
                (place, before) = (index, state);
                break;
            }
        }
    }
    let place = memory.opaque(place, group[1]);
    if place >= HOST6_WAYS {
        return 0;
    }
    // SAFETY: the entry lies in the bucket.
    unsafe {
        let entry = bucket.add(place * STRIDE).wrapping_byte_add(behind_address);
        let pair = (member / 2) & (HOST6_GROUP / 2 - 1);
        let classes = memory.load(entry.add(CLASSES + pair));
        let after = memory.load(order::after_load(entry, classes));
        let class = (classes >> (member % 2 * 32)) as ClassId;
        if same_incarnation(before, after) { FOUND | u64::from(class) } else { 0 }
    }
}

/// Whether an address that is not in its first bucket may be in its second.
///
/// # Safety
/// As [`find`].
#[must_use]
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the bucket's word is read under the promise for all of them"
)]
pub unsafe fn goes_on<M: Memory>(memory: &M, first: *const u64, places: Places) -> bool {
    const DISPLACED: usize = core::mem::offset_of!(Hosts6Bucket, displaced) / 8;
    // SAFETY: a word of the bucket.
    places.displaced(unsafe { memory.load(first.add(DISPLACED)) }) != 0
}

/// [`Hosts6Entry::state`]: where the incarnation begins.
const INCARNATION: u32 = 32;

#[inline(always)]
const fn same_incarnation(a: u64, b: u64) -> bool {
    (a ^ b) >> INCARNATION == 0
}

/// Whether an entry has an address.
#[must_use]
pub const fn has(state: u64, member: usize) -> bool {
    state >> member & 1 != 0
}

/// An entry's state with one address more.
#[must_use]
pub const fn with(state: u64, member: usize) -> u64 {
    state | 1 << member
}

/// An entry's state with one address less; [`is_free`] after the last one.
#[must_use]
pub const fn without(state: u64, member: usize) -> u64 {
    state & !(1 << member)
}

/// Whether an entry holds nothing.
#[must_use]
pub const fn is_free(state: u64) -> bool {
    state & HOST6_VALID == 0
}

/// The state behind a free one: the entry of another address.
#[must_use]
pub const fn taken(state: u64, member: usize) -> u64 {
    with((state >> INCARNATION).wrapping_add(1) << INCARNATION, member)
}
