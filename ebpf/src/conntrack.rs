//! The flow table: 4-way set-associative buckets, two choices for each flow, in plain shared memory.
//!
//! The kernel program, the agent's sweeper and tests use this same code over [`Memory`]. A way is
//! claimed by compare-and-swap of its control word to [`CT_BUSY`] under a new incarnation, then its
//! key is written, then the control word is published. A reader compares the whole key between
//! two reads of the control word of the same incarnation, so it never matches a half-written entry.
//! An entry that has been idle for its timeout is absent, whether swept or not. A flow is in the first of
//! its two buckets unless that was full; [`relocate`] moves one on where a new one finds no place.
//!
//! Two CPUs that insert one flow at the same moment may leave it twice. That is harmless: the
//! first is found, refreshed by forward packets, and the other expires.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]

pub use crate::control::{Control, timeouts};
pub use evict::{free_stale, make_room};
pub use relocate::{Shift, make_place, shift};
#[cfg(not(target_arch = "bpf"))]
pub use sweep::{Swept, sweep};

use crate::{
    control::{FREE, HALF_OPEN, OVER, PROTECTED},
    family::V6,
    layout::{
        CT_BUSY, CT_EGRESS, CT_INGRESS, CT_VALID, CT_WAYS, Ct4Key, Ct4Way, Ct6Key, Ct6Way,
        HASH_KEYS, Settings,
    },
    order,
};

#[cfg(not(target_arch = "bpf"))]
mod adopt;
mod evict;
mod relocate;
#[cfg(not(target_arch = "bpf"))]
mod sweep;

/// Attempts to change an entry that others change too.
const ATTEMPTS: usize = 4;

/// Ways that a flow may be in.
const PLACES: usize = 2 * CT_WAYS;

/// Access to words that others change at the same time.
pub trait Memory {
    /// Reads a word; later reads are not made before it.
    ///
    /// # Safety
    /// The word must be readable, aligned, and only ever changed atomically.
    unsafe fn load(&self, word: *const u64) -> u64;
    /// Writes a word; earlier writes are visible before it.
    ///
    /// # Safety
    /// As [`Memory::load`], and writable.
    unsafe fn store(&self, word: *mut u64, value: u64);
    /// Writes `new` if the word is `old`; the word as it was.
    ///
    /// # Safety
    /// As [`Memory::store`].
    unsafe fn swap(&self, word: *mut u64, old: u64, new: u64) -> u64;
    /// The same index, in the kernel hidden behind `noise` from the verifier, which else follows
    /// everything behind a search once for each place where the search may end.
    #[inline(always)]
    fn opaque(&self, index: usize, noise: u64) -> usize {
        let _ = noise;
        index
    }
}

/// A flow's key as words, and where it lies in a way.
pub trait Key: Copy {
    /// Words of the key, behind the control word.
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

impl Key for [u64; 2] {
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

impl Key for [u64; 4] {
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

// The protocol is picked from the words, and `words6` depends on the order of the halves.
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

/// The words of an IPv6 key, as they lie in [`Ct6Way`]; the address as words in memory order.
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

/// Keyed hash of a key, [`Settings::hash_keys`].
#[must_use]
#[inline(always)]
pub fn hash<K: Key>(settings: &Settings, key: &K) -> u64 {
    hash_words::<K>(settings, |index| key.word(index))
}

/// As [`hash`], of a key's words.
///
/// NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, 1999): each half of a word is added to a half of
/// its key, and their products are added up. Whatever two different keys of one length are, they
/// collide under one of 2^32 hash keys at the most; no difference collides under all of them. Both
/// halves of the result are used, so a mix comes behind that maps no two sums to one.
#[inline(always)]
fn hash_words<K: Key>(settings: &Settings, word: impl Fn(usize) -> u64) -> u64 {
    const { assert!(K::WORDS <= HASH_KEYS) };
    let mut sum = 0_u64;
    let mut index = 0;
    while index < K::WORDS {
        let (word, key) = (word(index), settings.hash_keys[index]);
        let low = (word as u32).wrapping_add(key as u32);
        let high = ((word >> 32) as u32).wrapping_add((key >> 32) as u32);
        // The mix of what came before keeps the words in order, in the machine too: stacks are full.
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

/// The two buckets of a flow, by its hash; always different in a table of more than one.
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

/// An entry that was found.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    way: *mut u64,
    /// Its control word when it was read.
    pub control: Control,
}

impl Hit {
    /// What [`search`] found in a bucket.
    ///
    /// # Safety
    /// The bucket must be [`CT_WAYS`] ways of this key's kind.
    #[inline(always)]
    pub(crate) const unsafe fn at<K: Key>(
        bucket: *mut u64,
        (index, control): (usize, Control),
    ) -> Self {
        // SAFETY: the way lies in the bucket.
        let way = unsafe { bucket.add((index & (CT_WAYS - 1)) * K::STRIDE) };
        Self { way, control }
    }

    /// The entry's word of [`crate::cached_verdict::CachedVerdict`].
    ///
    /// # Safety
    /// The entry must have been found by this kind of key.
    #[inline(always)]
    pub(crate) const unsafe fn cached_verdict<K: Key>(&self) -> *mut u64 {
        // SAFETY: it lies behind the key.
        unsafe { self.way.add(1 + K::WORDS) }
    }
}

/// Every way of both buckets holds an established flow that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// What made room for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gave {
    /// A way was free, or what was in it was over.
    Nothing,
    /// A half-open flow.
    HalfOpen,
    /// An established flow that had been idle for long.
    Idle,
}

/// Finds the way of a bucket that holds a flow, expired or not: which one, hidden from the verifier,
/// and its control word. Where none does that is not valid, and the first way stands in: were there
/// nothing at all, registers would be saved that nobody wrote, which the verifier refuses.
///
/// # Safety
/// The bucket must be [`CT_WAYS`] ways of this key's kind, in memory as [`Memory`] asks.
#[inline(always)]
pub(crate) unsafe fn search<K: Key, M: Memory>(
    memory: &M,
    key: &K,
    hash: u64,
    bucket: *mut u64,
) -> (usize, Control) {
    for index in 0..CT_WAYS {
        // SAFETY: the way lies in the bucket.
        let control = unsafe { probe(memory, key, bucket.add(index * K::STRIDE)) };
        if let Some(control) = control {
            return (memory.opaque(index, hash), control);
        }
    }
    (memory.opaque(0, hash), Control(0))
}

/// Whether a way holds the flow.
#[inline(always)]
unsafe fn probe<K: Key, M: Memory>(memory: &M, key: &K, way: *mut u64) -> Option<Control> {
    // SAFETY: the caller's way has a control word and a key.
    unsafe {
        // Begin with the word that differs most, which is the one with the ports.
        let first = usize::from(K::WORDS == 2);
        if memory.load(way.add(1 + first)) != key.word(first) {
            return None;
        }
        let control = Control(memory.load(way));
        if !control.is_valid() {
            return None;
        }
        let stored = order::after_load(way, control.0);
        let mut behind_key = 0;
        let mut index = 0;
        while index < K::WORDS {
            let word = memory.load(stored.add(1 + index));
            behind_key |= order::zero(word);
            if word != key.word(index) {
                return None;
            }
            index += 1;
        }
        let again = Control(memory.load(way.wrapping_byte_add(behind_key)));
        // Mostly nobody has touched it meanwhile.
        let same =
            again == control || (again.is_valid() && again.incarnation() == control.incarnation());
        same.then_some(again)
    }
}

/// The two buckets of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Flow<K> {
    /// The flow.
    pub key: K,
    /// Its hash.
    pub hash: u64,
    /// First words of its buckets.
    pub buckets: [*mut u64; 2],
}

impl<K: Key> Flow<K> {
    /// Finds the flow, expired or not.
    ///
    /// # Safety
    /// The buckets must be [`CT_WAYS`] ways of this key's kind each, in memory as [`Memory`] asks.
    #[inline(always)]
    pub unsafe fn find<M: Memory>(&self, memory: &M) -> Option<Hit> {
        let mut hits = self.buckets.into_iter().map(|bucket| {
            // SAFETY: as the caller promises.
            unsafe { Hit::at::<K>(bucket, search(memory, &self.key, self.hash, bucket)) }
        });
        hits.find(|hit| hit.control.is_valid())
    }

    /// Marks a flow that was found: adds flags and clears others, and refreshes the stamp if it is old
    /// or flags change. Returns at once where nothing is to be written.
    ///
    /// # Safety
    /// As [`Flow::find`], on the same memory.
    #[inline(always)]
    pub unsafe fn touch<M: Memory>(memory: &M, hit: Hit, marks: Marks, now: u32, after: u32) {
        let mut old = hit.control;
        if marks.of(old.flags()) == old.flags() && old.age(now) < after {
            return;
        }
        for _ in 0..ATTEMPTS {
            let new = Control::new(now, old.incarnation(), marks.of(old.flags()));
            // SAFETY: the way was found in the table.
            let seen = Control(unsafe { memory.swap(hit.way, old.0, new.0) });
            if seen == old || !seen.is_valid() || seen.incarnation() != old.incarnation() {
                return;
            }
            old = seen;
        }
    }

    /// Begins a found flow again: new incarnation, only these flags. False if others were faster.
    ///
    /// # Safety
    /// As [`Flow::touch`].
    #[inline(always)]
    pub unsafe fn restart<M: Memory>(memory: &M, hit: Hit, flags: u16, now: u32) -> bool {
        let incarnation = hit.control.incarnation().wrapping_add(1);
        let new = Control::new(now, incarnation, flags | CT_VALID);
        // SAFETY: the way was found in the table, by this kind of key.
        unsafe {
            memory.store(hit.cached_verdict::<K>(), 0);
            memory.swap(hit.way, hit.control.0, new.0) == hit.control.0
        }
    }

    /// Inserts the flow into the best way of its buckets; what had to go for it.
    ///
    /// # Errors
    /// [`Full`] if every way is protected, or another writer was faster: try once more.
    ///
    /// # Safety
    /// As [`Flow::find`].
    #[inline(always)]
    pub unsafe fn insert<M: Memory>(
        &self,
        memory: &M,
        flags: u16,
        settings: &Settings,
        now: u32,
    ) -> Result<Gave, Full> {
        // SAFETY: as the caller promises.
        let (claimed, rank) = unsafe {
            let (way, old, rank) = self.victim(memory, settings, now).ok_or(Full)?;
            (self.claim(memory, way, old, flags, now), rank)
        };
        match rank {
            _ if !claimed => Err(Full),
            OVER.. => Ok(Gave::Nothing),
            HALF_OPEN..OVER => Ok(Gave::HalfOpen),
            ..HALF_OPEN => Ok(Gave::Idle),
        }
    }

    /// The way to overwrite, its control word and rank, see [`Control`]'s.
    #[inline(always)]
    unsafe fn victim<M: Memory>(
        &self,
        memory: &M,
        settings: &Settings,
        now: u32,
    ) -> Option<(*mut u64, Control, u64)> {
        let (mut best, mut best_rank, mut best_control) = (0, PROTECTED, Control(0));
        // A number that the verifier knows and the compiler does not. Unrolled, this would not fit the
        // stack; and a loop that ends with `!=` instead of `<` never ends for verifiers before 6.8.
        let mut place = 0;
        while place < PLACES {
            // SAFETY: as the caller promises.
            let (control, protocol) = unsafe {
                let way = way::<K>(self.buckets, place);
                (Control(memory.load(way)), stored_protocol::<K, M>(memory, way))
            };
            let rank = control.rank(memory, protocol, settings, now);
            if rank > best_rank {
                // Not the hash: it would have to be kept until here, on a stack that is full.
                best = memory.opaque(place, self.key.word(0));
                best_rank = memory.opaque(rank as usize, self.key.word(0)) as u64;
                best_control = control;
            }
            if best_rank == FREE {
                break;
            }
            place = core::hint::black_box(place + 1);
        }
        // SAFETY: as the caller promises.
        let way = unsafe { way::<K>(self.buckets, best) };
        (best_rank != PROTECTED).then_some((way, best_control, best_rank))
    }

    /// Takes a way and writes the flow into it; false if another writer was faster.
    #[inline(always)]
    unsafe fn claim<M: Memory>(
        &self,
        memory: &M,
        way: *mut u64,
        old: Control,
        flags: u16,
        now: u32,
    ) -> bool {
        let incarnation = old.incarnation().wrapping_add(1);
        let busy = Control::new(now, incarnation, CT_BUSY);
        // SAFETY: the way lies in the table, and is this writer's once the swap succeeded.
        unsafe {
            if memory.swap(way, old.0, busy.0) != old.0 {
                return false;
            }
            let mut index = 0;
            while index < K::WORDS {
                memory.store(way.add(1 + index), self.key.word(index));
                index += 1;
            }
            // Incarnations come round again; see `crate::cached_verdict`.
            memory.store(Hit { way, control: busy }.cached_verdict::<K>(), 0);
            let new = Control::new(now, incarnation, flags | CT_VALID);
            memory.swap(way, busy.0, new.0) == busy.0
        }
    }
}

/// Flags that a packet leaves in its flow's entry: those that are set in the lower half, those that go
/// unless they are set in the upper. One word, since stacks are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks(u32);

impl Marks {
    /// Flags that are set, and flags that go.
    #[must_use]
    #[inline(always)]
    pub const fn new(set: u16, cleared: u16) -> Self {
        Self(set as u32 | (cleared as u32) << 16)
    }

    /// With further flags that are set.
    #[must_use]
    #[inline(always)]
    pub const fn and(self, set: u16) -> Self {
        Self(self.0 | set as u32)
    }

    /// What becomes of an entry's flags.
    #[inline(always)]
    const fn of(self, flags: u16) -> u16 {
        flags & !((self.0 >> 16) as u16) | self.0 as u16
    }
}

/// A way of a flow's two buckets; `place` counts modulo [`PLACES`].
///
/// # Safety
/// As [`Flow::find`].
#[inline(always)]
unsafe fn way<K: Key>(buckets: [*mut u64; 2], place: usize) -> *mut u64 {
    let bucket = if place % PLACES < CT_WAYS { buckets[0] } else { buckets[1] };
    // SAFETY: the way lies in the bucket.
    unsafe { bucket.add(place % CT_WAYS * K::STRIDE) }
}

/// Protocol of the flow a way holds.
#[inline(always)]
unsafe fn stored_protocol<K: Key, M: Memory>(memory: &M, way: *mut u64) -> u8 {
    // SAFETY: the caller's way has a key.
    unsafe {
        if K::WORDS == 2 {
            (memory.load(way.add(2)) >> 32) as u8
        } else {
            memory.load(way.add(4)) as u8
        }
    }
}

/// The flag of pod ingress or pod egress seen.
#[must_use]
#[inline(always)]
pub const fn direction_flag(egress: bool) -> u16 {
    if egress { CT_EGRESS } else { CT_INGRESS }
}
