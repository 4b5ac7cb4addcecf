//! Keys of flows, their hash and their buckets.

use crate::{
    layout::{Ct4Key, Ct4Way, Ct6Key, Ct6Way, HASH_KEYS, Settings},
    packet::family::V6,
};

/// Words of a flow's key, and their place in a way.
pub trait FlowTableKey: Copy {
    /// Words of the key, which follow the control word.
    const WORDS: usize;
    /// Words of a way.
    const STRIDE: usize;
    /// A word of the key.
    fn word(&self, index: usize) -> u64;
    /// IP protocol number.
    fn protocol(&self) -> u8;
    /// The endpoint's number in a key's first word.
    fn endpoint(first: u64) -> u32;
}

impl FlowTableKey for [u64; 2] {
    const WORDS: usize = 2;
    const STRIDE: usize = size_of::<Ct4Way>() / 8;

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        self[index]
    }

    #[inline(always)]
    fn protocol(&self) -> u8 {
        protocol4(self)
    }

    #[inline(always)]
    fn endpoint(first: u64) -> u32 {
        if cfg!(feature = "other-layout") { (first >> 32) as u32 } else { first as u32 }
    }
}

impl FlowTableKey for [u64; 4] {
    const WORDS: usize = 4;
    const STRIDE: usize = size_of::<Ct6Way>() / 8;

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        self[index]
    }

    #[inline(always)]
    fn protocol(&self) -> u8 {
        self[3] as u8
    }

    #[inline(always)]
    fn endpoint(first: u64) -> u32 {
        first as u32
    }
}

// `protocol4` and `words6` depend on the order of the halves.
const _: () = assert!(cfg!(target_endian = "little"), "the tables are little-endian only");

#[inline(always)]
const fn protocol4(key: &[u64; 2]) -> u8 {
    (key[1] >> 32) as u8
}

/// The words of an IPv4 key, as they lie in [`Ct4Way`].
#[must_use]
#[inline(always)]
pub const fn words4(key: &Ct4Key) -> [u64; 2] {
    let (low, high) = if cfg!(feature = "other-layout") {
        (key.remote, key.endpoint)
    } else {
        (key.endpoint, key.remote)
    };
    [
        low as u64 | (high as u64) << 32,
        key.local_port as u64 | (key.remote_port as u64) << 16 | (key.protocol as u64) << 32,
    ]
}

/// The words of an IPv6 key, as they lie in [`Ct6Way`]; `remote` as words in memory order.
#[must_use]
#[inline(always)]
pub const fn words6(
    endpoint: u32,
    local_port: u16,
    remote_port: u16,
    remote: [u64; 2],
    protocol: u8,
) -> [u64; 4] {
    [
        endpoint as u64 | (local_port as u64) << 32 | (remote_port as u64) << 48,
        remote[0],
        remote[1],
        protocol as u64,
    ]
}

/// The words of a stored IPv6 key.
#[must_use]
pub fn key6_words(key: &Ct6Key) -> [u64; 4] {
    let remote = V6::words(&key.remote);
    words6(key.endpoint, key.local_port, key.remote_port, remote, key.protocol as u8)
}

/// Keyed hash of a key, with [`Settings::hash_keys`].
#[must_use]
#[inline(always)]
pub fn hash<K: FlowTableKey>(settings: &Settings, key: &K) -> u64 {
    hash_words::<K>(settings, |index| key.word(index))
}

/// Keyed hash of a key's words.
///
/// NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, 1999): each half of a word is added to a half of its key, and
/// their products are summed up. Two different keys of one length collide under at most one of 2^32 hash keys, and no
/// difference collides under all of them. Both halves of the result are used, so a final mix without collisions
/// follows.
#[inline(always)]
pub(crate) fn hash_words<K: FlowTableKey>(settings: &Settings, word: impl Fn(usize) -> u64) -> u64 {
    const { assert!(K::WORDS <= HASH_KEYS) };
    let mut sum = 0_u64;
    let mut index = 0;
    while index < K::WORDS {
        let (word, key) = (word(index), settings.hash_keys[index]);
        let low = (word as u32).wrapping_add(key as u32);
        let high = ((word >> 32) as u32).wrapping_add((key >> 32) as u32);
        // Mixing the previous sum keeps the words in order, in machine code too: stacks are full.
        sum = (sum ^ sum >> 32).wrapping_add(u64::from(low).wrapping_mul(u64::from(high)));
        index += 1;
    }
    let hash = (sum ^ sum >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ hash >> 32
}

/// [`Settings::hash_keys`] of a seed (splitmix64: Steele, Lea, Flood, 2014).
#[must_use]
pub const fn hash_keys(seed: u64) -> [u64; HASH_KEYS] {
    let mut keys = [0; HASH_KEYS];
    let (mut state, mut index) = (seed, 0);
    while index < HASH_KEYS {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        keys[index] = mixed ^ mixed >> 31;
        index += 1;
    }
    keys
}

/// The two buckets of a flow, by its hash; different in any table of more than one bucket.
#[must_use]
#[inline(always)]
pub const fn choices(hash: u64, mask: u32) -> [u32; 2] {
    [first(hash, mask), second(hash, mask)]
}

/// The first of [`choices`].
#[must_use]
#[inline(always)]
pub const fn first(hash: u64, mask: u32) -> u32 {
    hash as u32 & mask
}

/// The second of [`choices`].
#[must_use]
#[inline(always)]
pub const fn second(hash: u64, mask: u32) -> u32 {
    let second = (hash >> 32) as u32 & mask;
    if second == first(hash, mask) { (second ^ 1) & mask } else { second }
}
