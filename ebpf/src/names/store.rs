//! Entries of resolved addresses and of questions: buckets that all pods share.
//!
//! A writer claims an entry by compare-and-swap of [`NameEntry::until`] to [`NAME_BUSY`], writes the other words, then
//! the time. A reader compares the words between two reads of the time, so it does not match a half-written entry on
//! x86; on processors with weaker order it may for nanoseconds. An entry that is an hour past its time gives way first: an
//! open connection may still need a younger one. In a full bucket a new entry replaces one of the pod that has most of
//! them, counting the new one. So a pod displaces the last entry of another only in a bucket with entries of eight pods.

use crate::{
    flow::{key::hash_words, memory::Memory},
    layout::{
        LEARNED_BUCKETS, NAME_BUSY, NAME_WAYS, NAME_WORDS, NameEntry, QUESTION_BUCKETS, Settings,
    },
    names::{
        tables::{NameTables, Store},
        work::{Victim, Work},
    },
};

/// Attempts to claim an entry that other writers change too.
pub(crate) const ATTEMPTS: u32 = 4;

/// Seconds that an address is recorded for at least.
pub(crate) const LEAST: u32 = 60;
/// Seconds after which an address past its time gives way to others, though an open connection may still need it.
const QUIET: u64 = 3600;

/// Index of the word [`NameEntry::until`].
const UNTIL: usize = NAME_WORDS - 1;

/// Index of an entry's bucket: all names of one address are in one bucket.
#[inline(always)]
fn bucket_of(
    settings: &Settings,
    store: Store,
    address: [u64; 2],
    endpoint: u64,
    asked: u64,
) -> u32 {
    let words = [address[0], address[1], endpoint, asked];
    let hash = hash_words::<[u64; 4]>(settings, |index| words[index]);
    let buckets = match store {
        Store::Learned => LEARNED_BUCKETS,
        Store::Asked => QUESTION_BUCKETS,
    };
    hash as u32 & (buckets - 1)
}

/// First word of the bucket of the entry in the working memory.
#[inline(always)]
pub(crate) fn bucket<T: NameTables>(
    tables: &T,
    entry: &NameEntry,
    store: Store,
) -> Option<*mut u64> {
    let settings = tables.settings()?;
    let index = bucket_of(settings, store, entry.address, entry.name[1] >> 32, entry.asked);
    tables.name_bucket(store, index)
}

/// A way of a bucket.
#[derive(Clone, Copy)]
pub(crate) struct Way(*mut u64);

#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
impl Way {
    /// # Safety
    /// A whole bucket, and an index below [`NAME_WAYS`].
    #[inline(always)]
    pub(crate) unsafe fn new(bucket: *mut u64, index: usize) -> Self {
        // SAFETY: as the caller promises.
        Self(unsafe { bucket.add(index * NAME_WORDS) })
    }

    #[inline(always)]
    pub(crate) fn word<M: Memory>(self, memory: &M, index: usize) -> u64 {
        // SAFETY: within the way, by `new`.
        unsafe { memory.load(self.0.add(index)) }
    }

    #[inline(always)]
    pub(crate) fn until<M: Memory>(self, memory: &M) -> u64 {
        self.word(memory, UNTIL)
    }

    /// Replaces the time; false if another writer was faster.
    #[inline(always)]
    pub(crate) fn set_until<M: Memory>(self, memory: &M, old: u64, new: u64) -> bool {
        // SAFETY: within the way, by `new`.
        unsafe { memory.swap(self.0.add(UNTIL), old, new) == old }
    }

    #[inline(always)]
    fn write<M: Memory>(self, memory: &M, entry: &NameEntry) {
        let words = [entry.address[0], entry.address[1], entry.name[0], entry.name[1], entry.asked];
        // SAFETY: within the way, by `new`.
        unsafe {
            for (index, word) in words.into_iter().enumerate() {
                memory.store(self.0.add(index), word);
            }
            memory.store(self.0.add(UNTIL), entry.until);
        }
    }

    /// Difference of the key from an entry's; 0 if they are equal.
    #[inline(always)]
    fn difference<M: Memory>(self, memory: &M, entry: &NameEntry) -> u64 {
        (self.word(memory, 0) ^ entry.address[0])
            | (self.word(memory, 1) ^ entry.address[1])
            | (self.word(memory, 2) ^ entry.name[0])
            | (self.word(memory, 3) ^ entry.name[1])
            | (self.word(memory, 4) ^ entry.asked)
    }
}

/// Frees the entry with the key of the one in the working memory; returns until when it was valid, or 0.
#[inline(always)]
pub fn take<T: NameTables>(tables: &T, work: Work, store: Store) -> u64 {
    let entry = work.entry();
    let Some(bucket) = bucket(tables, &entry, store) else { return 0 };
    for index in 0..NAME_WAYS {
        // SAFETY: a whole bucket.
        let way = unsafe { Way::new(bucket, index) };
        let until = way.until(tables);
        if until != 0
            && until != NAME_BUSY
            && way.difference(tables, &entry) == 0
            && way.set_until(tables, until, 0)
        {
            return until;
        }
    }
    0
}

/// Writes the entry in the working memory, or prolongs the present one. False if another writer was faster.
#[inline(always)]
pub fn put<T: NameTables>(tables: &T, work: Work, store: Store) -> bool {
    work.set_victim(Victim { rank: 0, until: NAME_BUSY, index: 0 });
    for index in 0..NAME_WAYS as u32 {
        match tables.try_way(work, store, index) {
            NEXT => {}
            result => return result == DONE,
        }
    }
    let (entry, victim) = (work.entry(), work.victim());
    let Some(bucket) = bucket(tables, &entry, store) else { return true };
    // SAFETY: a whole bucket, and an index in it.
    let way = unsafe { Way::new(bucket, victim.index as usize & (NAME_WAYS - 1)) };
    if victim.until == NAME_BUSY || !way.set_until(tables, victim.until, NAME_BUSY) {
        return false;
    }
    way.write(tables, &entry);
    true
}

/// Results of [`try_way`]: another way is to be tried; the entry was prolonged; another writer was faster.
const NEXT: u32 = 0;
const DONE: u32 = 1;
const LOST: u32 = 2;

/// Prolongs the entry in the working memory if a way has it; otherwise ranks the way as one to be replaced.
#[inline(always)]
pub fn try_way<T: NameTables>(tables: &T, work: Work, store: Store, index: u32) -> u32 {
    let entry = work.entry();
    let Some(bucket) = bucket(tables, &entry, store) else { return DONE };
    // SAFETY: a whole bucket, and an index in it.
    let way = unsafe { Way::new(bucket, index as usize & (NAME_WAYS - 1)) };
    let until = way.until(tables);
    if until == NAME_BUSY {
        return NEXT;
    }
    if until != 0 && way.difference(tables, &entry) == 0 {
        let done = until >= entry.until || way.set_until(tables, until, entry.until);
        return if done { DONE } else { LOST };
    }
    let Some(settings) = tables.settings() else { return DONE };
    // A refresh is due after one second.
    let second = u64::from(settings.refresh_after);
    let quiet = if matches!(store, Store::Learned) { QUIET * second } else { 0 };
    // Last octet of the address.
    let seed = entry.address[1] >> 56;
    let times = [tables.jiffies(), quiet, u64::from(LEAST) * second];
    let rank = rank(tables, bucket, (way, until), (entry.name[1] >> 32, seed), times);
    if rank > work.victim().rank {
        work.set_victim(Victim { rank, until, index: index.into() });
    }
    NEXT
}

/// Rank of a way to be replaced: a free one first, then the longest past its time by more than `quiet`, then one of the
/// pod with most ways: the one that ends first within a minute, else any.
#[inline(always)]
fn rank<T: NameTables>(
    tables: &T,
    bucket: *mut u64,
    (way, until): (Way, u64),
    (own, seed): (u64, u64),
    [now, quiet, minute]: [u64; 3],
) -> u64 {
    const PAST: u64 = 1 << 62;
    const SHARE: u64 = 1 << 56;
    /// Jiffies within which a way is chosen at random, lest each new entry displaces the one before.
    const RANDOM: u64 = 0xff;
    if until == 0 {
        return u64::MAX;
    }
    if until + quiet < now {
        return PAST + (now - until);
    }
    let holder = way.word(tables, 3) >> 32;
    let mut share = same(tables, holder, own);
    for index in 0..NAME_WAYS {
        // SAFETY: a whole bucket.
        let other = unsafe { Way::new(bucket, index) };
        share += same(tables, holder, other.word(tables, 3) >> 32);
    }
    // Addresses of one name differ in their last octet. Both are far below a share.
    let random = (now ^ seed ^ (way.word(tables, 1) >> 56) ^ way.word(tables, 2)) & RANDOM;
    (share * SHARE).wrapping_sub(until.saturating_sub(now).min(minute)) + random
}

/// 1 if two numbers of endpoints are equal, else 0: without a branch, which the verifier would follow on both sides.
#[inline(always)]
fn same<M: Memory>(memory: &M, one: u64, other: u64) -> u64 {
    (memory.opaque((one ^ other) as usize, one) as u64).wrapping_sub(1) >> 63
}
