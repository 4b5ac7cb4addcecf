//! Entries of the flow table: finding, inserting and refreshing them.
//!
//! A writer claims a way by compare-and-swap of its control word to [`CT_BUSY`] under a new incarnation, writes the
//! key, then publishes the control word. A reader compares the whole key between two reads of the control word of the
//! same incarnation, so it never matches a half-written entry. An entry that has been idle for its timeout counts as
//! absent, whether swept or not. A flow is in the first of its two buckets unless that was full;
//! [`crate::flow::relocate`] moves a flow to its second bucket if a new flow finds no place.
//!
//! Two CPUs that insert one flow at the same moment may leave two entries. That is harmless: forward packets find and
//! refresh the first one, and the other expires.

use crate::{
    flow::{
        control::{Control, FREE, HALF_OPEN, OVER, PROTECTED, Timeouts},
        key::{FlowTableKey, hash_words},
        memory::Memory,
    },
    layout::{CT_BUSY, CT_VALID, CT_WAYS, Settings},
    order,
};

/// Attempts to change an entry that other writers change too.
pub(crate) const ATTEMPTS: usize = 4;

/// Ways of a flow's two buckets.
pub(crate) const PLACES: usize = 2 * CT_WAYS;

/// An entry found in the table.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    /// First word of the entry's way.
    pub way: *mut u64,
    /// Control word of the entry when it was read.
    pub control: Control,
}

impl Hit {
    /// Entry of the index and control word that [`search`] returned.
    ///
    /// # Safety
    /// The bucket must be [`CT_WAYS`] ways of this key's kind.
    #[inline(always)]
    pub(crate) const unsafe fn at<K: FlowTableKey>(
        bucket: *mut u64,
        (index, control): (usize, Control),
    ) -> Self {
        // SAFETY: the way lies in the bucket.
        let way = unsafe { bucket.add((index & (CT_WAYS - 1)) * K::STRIDE) };
        Self { way, control }
    }

    /// Address of the entry's [`crate::flow::cached_verdict::CachedVerdict`].
    ///
    /// # Safety
    /// The entry must have been found by this kind of key.
    #[inline(always)]
    pub(crate) const unsafe fn cached_verdict<K: FlowTableKey>(&self) -> *mut u64 {
        // SAFETY: the word follows the key.
        unsafe { self.way.add(1 + K::WORDS) }
    }
}

/// Error: every way of both buckets holds a live established flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketsFull;

/// Flow that made room for a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// None: a way was free, or its flow was over.
    Nothing,
    /// A half-open flow.
    HalfOpen,
    /// An established flow that had been idle for long.
    Idle,
}

/// Control word that [`search`] returns if a flow is not in a bucket, but may be in its second one.
const ELSEWHERE: Control = Control(CT_BUSY as u64);

/// Finds a flow, expired or not, in a bucket: the index of its way, hidden from the verifier, and its control word.
/// Without a hit the index is 0 and the control word is not valid; an `Option` would make the program save registers
/// that it never wrote, which the verifier rejects. The control word is [unused](Control::is_unused) if this is the
/// flow's first bucket and the second one cannot hold the flow either.
///
/// # Safety
/// The bucket must be [`CT_WAYS`] ways of this key's kind, in memory that meets the conditions of [`Memory`].
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub(crate) unsafe fn search<K: FlowTableKey, M: Memory>(
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
        // SAFETY: the way lies in the bucket.
        let control = Control(unsafe { memory.load(bucket.add(index * K::STRIDE)) });
        if control.is_unused() {
            return (memory.opaque(0, hash), control);
        }
    }
    (memory.opaque(0, hash), ELSEWHERE)
}

/// Control word of a way, if the way holds the flow.
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
unsafe fn probe<K: FlowTableKey, M: Memory>(memory: &M, key: &K, way: *mut u64) -> Option<Control> {
    // SAFETY: the caller's way has a control word and a key.
    unsafe {
        // Begin with the word that differs most: the one with the ports.
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
        // Mostly no other CPU has changed it meanwhile.
        let same =
            again == control || (again.is_valid() && again.incarnation() == control.incarnation());
        same.then_some(again)
    }
}

/// A flow's key and its two buckets.
#[derive(Clone, Copy, Debug)]
pub struct Flow<K> {
    /// Key of the flow.
    pub key: K,
    /// Hash of the key.
    pub hash: u64,
    /// First words of the two buckets.
    pub buckets: [*mut u64; 2],
}

#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
impl<K: FlowTableKey> Flow<K> {
    /// Finds the flow, expired or not.
    ///
    /// # Safety
    /// The buckets must be [`CT_WAYS`] ways of this key's kind each, in memory that meets the conditions of
    /// [`Memory`].
    #[inline(always)]
    pub unsafe fn find<M: Memory>(&self, memory: &M) -> Option<Hit> {
        for bucket in self.buckets {
            // SAFETY: as the caller promises.
            let hit = unsafe { Hit::at::<K>(bucket, search(memory, &self.key, self.hash, bucket)) };
            if hit.control.is_valid() {
                return Some(hit);
            }
            if hit.control.is_unused() {
                return None;
            }
        }
        None
    }

    /// Changes the flags of a found flow, and refreshes the stamp if it is old or flags change. Returns at once if
    /// there is nothing to write.
    ///
    /// # Safety
    /// As [`Flow::find`], on the same memory.
    #[inline(always)]
    pub unsafe fn touch<M: Memory>(
        memory: &M,
        hit: Hit,
        changes: FlagChanges,
        now: u32,
        after: u32,
    ) {
        let mut old = hit.control;
        if changes.apply(old.flags()) == old.flags() && old.age(now) < after {
            return;
        }
        for _ in 0..ATTEMPTS {
            let new = Control::new(now, old.incarnation(), changes.apply(old.flags()));
            // SAFETY: the way was found in the table.
            let seen = Control(unsafe { memory.swap(hit.way, old.0, new.0) });
            if seen == old || !seen.is_valid() || seen.incarnation() != old.incarnation() {
                return;
            }
            old = seen;
        }
    }

    /// Begins a found flow again: new incarnation, only these flags. False if another writer was faster.
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

    /// Inserts the flow into the best way of its buckets; returns the kind of flow that made room.
    ///
    /// # Errors
    /// [`BucketsFull`] if every way is protected, or another writer was faster: try once more.
    ///
    /// # Safety
    /// As [`Flow::find`].
    #[inline(always)]
    pub unsafe fn insert<M: Timeouts>(
        &self,
        memory: &M,
        flags: u16,
        settings: &Settings,
        now: u32,
    ) -> Result<Evicted, BucketsFull> {
        // SAFETY: as the caller promises.
        let (claimed, rank) = unsafe {
            let (way, old, rank) = self.victim(memory, settings, now).ok_or(BucketsFull)?;
            (self.claim(memory, way, old, flags, now), rank)
        };
        match rank {
            _ if !claimed => Err(BucketsFull),
            OVER.. => Ok(Evicted::Nothing),
            HALF_OPEN..OVER => Ok(Evicted::HalfOpen),
            ..HALF_OPEN => Ok(Evicted::Idle),
        }
    }

    /// Way to overwrite, with its control word and its rank ([`Control`]'s `rank`).
    #[inline(always)]
    pub(crate) unsafe fn victim<M: Timeouts>(
        &self,
        memory: &M,
        settings: &Settings,
        now: u32,
    ) -> Option<(*mut u64, Control, u64)> {
        let (mut best, mut best_rank, mut best_control) = (0, PROTECTED, Control(0));
        // `black_box` hides the number from the compiler, not from the verifier. Unrolled, this loop would not fit the
        // stack; and a loop that ends with `!=` instead of `<` never ends for verifiers before 6.8.
        let mut place = 0;
        while place < PLACES {
            // SAFETY: as the caller promises.
            let (control, protocol) = unsafe {
                let way = way::<K>(self.buckets, place);
                (Control(memory.load(way)), stored_protocol::<K, M>(memory, way))
            };
            let rank = memory.rank(control, protocol, settings, now);
            if rank > best_rank {
                // Not the hash: it would occupy a stack slot until here, and the stack is full.
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

    /// Calls [`claim`] for this flow.
    #[inline(always)]
    pub(crate) unsafe fn claim<M: Memory>(
        &self,
        memory: &M,
        way: *mut u64,
        old: Control,
        flags: u16,
        now: u32,
    ) -> bool {
        // SAFETY: as the caller promises.
        unsafe { claim(memory, &self.key, way, old, flags, now) }
    }
}

/// Inserts a flow into the first vacant way of its first bucket, the usual case in a table that is not crowded; false
/// if there is none or another writer was faster: then [`Flow::insert`] finds one.
///
/// # Safety
/// As [`Flow::find`].
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub(crate) unsafe fn insert_vacant<K: FlowTableKey, M: Memory>(
    memory: &M,
    key: &K,
    bucket: *mut u64,
    flags: u16,
    now: u32,
) -> bool {
    for index in 0..CT_WAYS {
        // SAFETY: as the caller promises.
        unsafe {
            let old = Control(memory.load(bucket.add(index * K::STRIDE)));
            if old.is_vacant() {
                let index = memory.opaque(index, key.word(0)) & (CT_WAYS - 1);
                return claim(memory, key, bucket.add(index * K::STRIDE), old, flags, now);
            }
        }
    }
    false
}

/// Claims a way and writes a flow into it; false if another writer was faster.
///
/// # Safety
/// The way must be of this key's kind, in memory that meets the conditions of [`Memory`].
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
unsafe fn claim<K: FlowTableKey, M: Memory>(
    memory: &M,
    key: &K,
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
            memory.store(way.add(1 + index), key.word(index));
            index += 1;
        }
        // Incarnations wrap around, so an old cached verdict could seem valid; see `crate::flow::cached_verdict`.
        memory.store(Hit { way, control: busy }.cached_verdict::<K>(), 0);
        let new = Control::new(now, incarnation, flags | CT_VALID);
        memory.publish(way, busy.0, new.0)
    }
}

/// Changes of an entry's flags by a packet: flags to set in the lower half, flags to clear unless also set in the
/// upper. One word, since stacks are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagChanges(u32);

impl FlagChanges {
    /// Flags to set, and flags to clear.
    #[must_use]
    #[inline(always)]
    pub const fn new(set: u16, cleared: u16) -> Self {
        Self(set as u32 | (cleared as u32) << 16)
    }

    /// Adds further flags to set.
    #[must_use]
    #[inline(always)]
    pub const fn and(self, set: u16) -> Self {
        Self(self.0 | set as u32)
    }

    /// Flags of an entry after the change.
    #[inline(always)]
    const fn apply(self, flags: u16) -> u16 {
        flags & !((self.0 >> 16) as u16) | self.0 as u16
    }
}

/// A way of a flow's two buckets; `place` counts modulo [`PLACES`].
///
/// # Safety
/// As [`Flow::find`].
#[inline(always)]
pub(crate) unsafe fn way<K: FlowTableKey>(buckets: [*mut u64; 2], place: usize) -> *mut u64 {
    let bucket = if place % PLACES < CT_WAYS { buckets[0] } else { buckets[1] };
    // SAFETY: the way lies in the bucket.
    unsafe { bucket.add(place % CT_WAYS * K::STRIDE) }
}

/// Protocol of the flow that a way holds.
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
pub(crate) unsafe fn stored_protocol<K: FlowTableKey, M: Memory>(memory: &M, way: *mut u64) -> u8 {
    // SAFETY: the caller's way has a key.
    unsafe {
        if K::WORDS == 2 {
            (memory.load(way.add(2)) >> 32) as u8
        } else {
            memory.load(way.add(4)) as u8
        }
    }
}

/// Hash of the flow that a way holds.
///
/// # Safety
/// The way must be of this key's kind, in memory that meets the conditions of [`Memory`].
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read under one promise"
)]
pub(crate) unsafe fn stored_hash<K: FlowTableKey, M: Memory>(
    memory: &M,
    way: *mut u64,
    settings: &Settings,
) -> u64 {
    // SAFETY: the caller's way has a key.
    hash_words::<K>(settings, |word| unsafe { memory.load(way.add(1 + word)) })
}
