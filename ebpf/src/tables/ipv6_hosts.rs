//! Classes of single IPv6 addresses: buckets in an array that the agent writes while packets are judged.
//!
//! The kernel's own hash map takes 25 ns per lookup here, and 100 more for random addresses among 100,000. Four
//! neighbouring addresses share an entry, which is in one of two buckets, nearly always in the first. If an entry finds
//! no room in either, its addresses are in the IPv6 block tree instead. A filter, small enough for the CPU's caches,
//! has 32 bits for each bucket: each entry sets one, chosen by its hash, in its first bucket. It recognises most
//! unknown addresses without a read of a bucket. The bucket counts for each bit the entries that are in their second
//! bucket.
//!
//! The filter's bit is set before an entry becomes valid, and cleared after it ceased to be. The class of an address
//! changes by one word. An entry changes its addresses only while none of them is valid, and returns under another
//! incarnation, so a reader that finds an address and its class between two reads of the same incarnation has read one
//! entry.

use crate::{
    flow::{
        key::{choices, hash},
        memory::Memory,
    },
    layout::{
        ClassId, HOSTS6_FILTER_BITS, HOSTS6_FILTERED, HOSTS6_GROUP, HOSTS6_MANY, HOSTS6_VALID,
        HOSTS6_WAYS, Hosts6Bucket, Hosts6Entry, Settings,
    },
    order,
};

/// Words of an entry.
const STRIDE: usize = size_of::<Hosts6Entry>() / 8;
/// Words of an entry before its classes.
const CLASSES: usize = core::mem::offset_of!(Hosts6Entry, classes) / 8;
/// Bits of an address's second word that select the address within its entry.
const MEMBER: u64 = (HOSTS6_GROUP as u64 - 1).to_be();
/// Flag in the result of [`find`], in addition to the class.
pub const FOUND: u64 = 1 << 32;

/// First address of the entry that holds an address.
#[must_use]
#[inline(always)]
pub const fn group(address: [u64; 2]) -> [u64; 2] {
    [address[0], address[1] & !MEMBER]
}

/// Index of an address in its entry.
#[must_use]
#[inline(always)]
pub const fn member(address: [u64; 2]) -> usize {
    u64::from_be(address[1] & MEMBER) as usize
}

/// Buckets and filter bit of an address's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The two buckets.
    pub buckets: [u32; 2],
    /// Number of the entry's bit among the filter bits of the first bucket.
    pub bit: u32,
}

impl Places {
    /// Places of the entry of an address (words in memory order).
    #[must_use]
    #[inline(always)]
    pub fn new(settings: &Settings, address: [u64; 2]) -> Self {
        let hash = hash(settings, &group(address));
        // Bits of the hash that do not select the first bucket, in tables of up to 2^27 buckets.
        let bit = hash as u32 >> (u32::BITS - HOSTS6_FILTER_BITS.ilog2());
        Self { buckets: choices(hash, settings.ipv6_hosts_mask), bit }
    }

    /// Index of the filter's word.
    #[must_use]
    #[inline(always)]
    pub const fn filter(self) -> u32 {
        self.buckets[0] / HOSTS6_FILTERED
    }

    /// Mask of the entry's bit in the filter's word.
    #[must_use]
    #[inline(always)]
    pub const fn filter_bit(self) -> u64 {
        1 << (filter_shift(self.buckets[0]) + self.bit)
    }

    /// Number of entries with the same filter bit that are in their second bucket, from the first bucket's
    /// [`Hosts6Bucket::displaced`].
    #[must_use]
    #[inline(always)]
    pub const fn displaced(self, word: u64) -> u64 {
        displaced(word, self.bit)
    }
}

/// Shift of a bucket's bits in its word of the filter.
#[must_use]
#[inline(always)]
pub const fn filter_shift(bucket: u32) -> u32 {
    bucket % HOSTS6_FILTERED * HOSTS6_FILTER_BITS
}

/// Count of a filter bit in [`Hosts6Bucket::displaced`].
#[must_use]
#[inline(always)]
pub const fn displaced(word: u64, bit: u32) -> u64 {
    word >> (bit * 2) & HOSTS6_MANY
}

/// Class of an address in a bucket, with [`FOUND`]; 0 if the bucket does not hold it.
///
/// # Safety
/// The bucket must be a [`crate::layout::Hosts6Bucket`] in memory that meets the conditions of [`Memory`].
#[must_use]
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub unsafe fn find<M: Memory>(memory: &M, bucket: *mut u64, address: [u64; 2]) -> u64 {
    let (group, member) = (group(address), member(address));
    let (mut place, mut before, mut behind_address) = (HOSTS6_WAYS, 0, 0);
    for index in 0..HOSTS6_WAYS {
        // SAFETY: the entry lies in the bucket.
        unsafe {
            let entry = bucket.add(index * STRIDE);
            // Begin with the half that differs most.
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
    if place >= HOSTS6_WAYS {
        return 0;
    }
    // SAFETY: the entry lies in the bucket.
    unsafe {
        let entry = bucket.add(place * STRIDE).wrapping_byte_add(behind_address);
        let pair = (member / 2) & (HOSTS6_GROUP / 2 - 1);
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

/// Shift of the incarnation in [`Hosts6Entry::state`].
const INCARNATION: u32 = 32;

#[inline(always)]
const fn same_incarnation(a: u64, b: u64) -> bool {
    (a ^ b) >> INCARNATION == 0
}

/// Whether an entry holds an address.
#[must_use]
pub const fn has(state: u64, member: usize) -> bool {
    state >> member & 1 != 0
}

/// An entry's state with an address added.
#[must_use]
pub const fn with(state: u64, member: usize) -> u64 {
    state | 1 << member
}

/// An entry's state with an address removed; [`is_free`] after the last one.
#[must_use]
pub const fn without(state: u64, member: usize) -> u64 {
    state & !(1 << member)
}

/// Whether an entry holds no address.
#[must_use]
pub const fn is_free(state: u64) -> bool {
    state & HOSTS6_VALID == 0
}

/// State of a free entry that is taken for a new group: another incarnation, with one address.
#[must_use]
pub const fn taken(state: u64, member: usize) -> u64 {
    with((state >> INCARNATION).wrapping_add(1) << INCARNATION, member)
}
