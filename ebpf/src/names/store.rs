//! Entries of resolved addresses and of questions: buckets that all pods share.
//!
//! A writer claims an entry by compare-and-swap of [`NameEntry::until`] to [`NAME_BUSY`], writes the other words, then
//! the time. A reader compares the words between two reads of the time, so it does not match a half-written entry on
//! x86; on processors with weaker memory order it may for nanoseconds.
//!
//! A resolved address has two candidate buckets. It takes a way of the bucket with more ways that are free or an hour
//! past their time (an open connection may still need a younger entry), so a table that is three quarters full has room
//! for nearly every address: of 100,000 in 131,072 ways, one to five find two full buckets. There a new entry replaces
//! one of the pod that has most of a bucket, counting the new one. So a pod displaces the last entry of another only where
//! both buckets have entries of eight pods. A question has one bucket.

use crate::{
    flow::{
        key::{choices, hash_words},
        memory::Memory,
    },
    layout::{
        LEARNED_BUCKETS, NAME_BUSY, NAME_WAYS, NAME_WORDS, NameEntry, QUESTION_BUCKETS, Settings,
    },
    names::{
        ignored::IgnoredAnswer,
        tables::{NameTable, NameTables},
        work::{Victim, Ways, Work},
    },
};

/// Attempts to claim an entry that other writers change too.
pub(crate) const ATTEMPTS: u32 = 4;

/// Seconds that an address is recorded for at least.
pub(crate) const LEAST: u32 = 60;
/// Seconds after which an expired address may be replaced, though an open connection may still need it.
const QUIET: u64 = 3600;

/// Index of the word [`NameEntry::until`].
const UNTIL: usize = NAME_WORDS - 1;

/// Candidate buckets of an entry. All names of one address have the same two; a question has the first one alone.
#[must_use]
#[inline(always)]
pub fn candidates(settings: &Settings, store: NameTable, entry: &NameEntry) -> [u32; 2] {
    let words = [entry.address[0], entry.address[1], entry.name[1] >> 32, entry.asked];
    let hash = hash_words::<[u64; 4]>(settings, |index| words[index]);
    let buckets = match store {
        NameTable::Learned => LEARNED_BUCKETS,
        NameTable::Asked => QUESTION_BUCKETS,
    };
    choices(hash, buckets - 1)
}

/// Number of [`candidates`] that a table uses.
#[must_use]
#[inline(always)]
pub const fn choices_of(store: NameTable) -> u32 {
    match store {
        NameTable::Learned => 2,
        NameTable::Asked => 1,
    }
}

/// Writes the candidate buckets of the entry in the working memory there; false without settings.
#[inline(always)]
pub(crate) fn find_buckets<T: NameTables>(tables: &T, work: Work, store: NameTable) -> bool {
    let Some(settings) = tables.settings() else { return false };
    work.set_buckets(candidates(settings, store, &work.entry()));
    true
}

/// First word of a candidate bucket in the working memory.
#[inline(always)]
pub(crate) fn bucket<T: NameTables>(
    tables: &T,
    work: Work,
    store: NameTable,
    choice: u32,
) -> Option<*mut u64> {
    tables.name_bucket(store, work.bucket(choice))
}

/// A way of the candidate buckets, by its index: the ways of the second bucket follow those of the first.
#[inline(always)]
fn way<T: NameTables>(tables: &T, work: Work, store: NameTable, index: u32) -> Option<Way> {
    let bucket = bucket(tables, work, store, index / NAME_WAYS as u32)?;
    // SAFETY: a whole bucket, and an index in it.
    Some(unsafe { Way::new(bucket, index as usize & (NAME_WAYS - 1)) })
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

    /// Whether the way is in use, with the key of the entry in the working memory. The words that differ most are compared
    /// first.
    #[inline(always)]
    fn is_of<M: Memory>(self, memory: &M, work: Work) -> bool {
        for index in [1, 2, 3, 4, 0] {
            if self.word(memory, index) != work.entry_word(index) {
                return false;
            }
        }
        let until = self.until(memory);
        until != 0 && until != NAME_BUSY
    }
}

/// Frees the entry with the key of the one in the working memory; returns the time until which it was valid, or 0.
#[inline(always)]
pub fn remove<T: NameTables>(tables: &T, work: Work, store: NameTable) -> u64 {
    if !find_buckets(tables, work, store) {
        return 0;
    }
    let index = tables.find(work, store);
    if index == ABSENT {
        return 0;
    }
    let Some(way) = way(tables, work, store, index) else { return 0 };
    let until = way.until(tables);
    let is_taken = until != 0
        && until != NAME_BUSY
        && way.is_of(tables, work)
        && way.set_until(tables, until, 0);
    if is_taken { until } else { 0 }
}

/// Writes the entry in the working memory, or prolongs the present one. False if another writer was faster.
#[inline(always)]
pub fn upsert<T: NameTables>(tables: &T, work: Work, store: NameTable) -> bool {
    if !find_buckets(tables, work, store) {
        return true;
    }
    let present = tables.find(work, store);
    if present != ABSENT {
        let Some(way) = way(tables, work, store, present) else { return true };
        let (until, wanted) = (way.until(tables), work.entry_word(UNTIL));
        return until != 0
            && until != NAME_BUSY
            && way.is_of(tables, work)
            && (until >= wanted || way.set_until(tables, until, wanted));
    }
    tables.survey(work, store);
    let ways = work.ways();
    let free = roomier(ways) & ways.free;
    if free != 0 {
        work.set_victim(Victim { rank: 0, until: 0, index: lowest(free).into() });
    } else {
        work.set_victim(Victim { rank: 0, until: NAME_BUSY, index: 0 });
        for index in 0..choices_of(store) * NAME_WAYS as u32 {
            tables.rank_way(work, store, index);
        }
    }
    let victim = work.victim();
    let Some(way) = way(tables, work, store, victim.index as u32) else { return true };
    if victim.until == NAME_BUSY || !way.set_until(tables, victim.until, NAME_BUSY) {
        return false;
    }
    way.write(tables, &work.entry());
    if victim.until != 0 && victim.rank < PAST {
        tables.count_ignored(IgnoredAnswer::NoRoom);
    }
    true
}

/// Ways of the bucket with more room, a bit for each.
#[inline(always)]
const fn roomier(ways: Ways) -> u32 {
    const FIRST: u32 = (1 << NAME_WAYS) - 1;
    let room = ways.free | ways.past;
    if (room >> NAME_WAYS).count_ones() > (room & FIRST).count_ones() {
        FIRST << NAME_WAYS
    } else {
        FIRST
    }
}

/// Index of the lowest bit of a word that is not 0: without a table, which `trailing_zeros` needs in a program.
#[inline(always)]
#[must_use]
pub const fn lowest(ways: u32) -> u32 {
    (!ways & ways.wrapping_sub(1)).count_ones()
}

/// Index of the way of the candidate buckets that has the key of the entry in the working memory, or [`ABSENT`].
#[inline(always)]
pub fn find<T: NameTables>(tables: &T, work: Work, store: NameTable) -> u32 {
    for choice in 0..choices_of(store) {
        let Some(bucket) = bucket(tables, work, store, choice) else { break };
        for index in 0..NAME_WAYS {
            // SAFETY: a whole bucket, and an index in it.
            let way = unsafe { Way::new(bucket, index) };
            if way.is_of(tables, work) {
                return choice * NAME_WAYS as u32 + index as u32;
            }
        }
    }
    ABSENT
}

/// Result of [`find`]: no way has the key.
const ABSENT: u32 = u32::MAX;

/// Finds the ways of the candidate buckets that are free, or may be replaced since they are long past their time. Without
/// a branch, which the verifier would follow on both sides.
#[inline(always)]
pub fn survey<T: NameTables>(tables: &T, work: Work, store: NameTable) {
    let mut found = Ways::default();
    work.set_ways(found);
    if let Some(settings) = tables.settings() {
        let gone = tables.jiffies().wrapping_sub(quiet(settings, store));
        // The last way first, which needs no shift by its index.
        for choice in (0..choices_of(store)).rev() {
            let Some(bucket) = bucket(tables, work, store, choice) else { break };
            for index in (0..NAME_WAYS).rev() {
                // SAFETY: a whole bucket, and an index in it.
                let until = unsafe { Way::new(bucket, index) }.until(tables);
                let is_free = is_zero(tables, until);
                let is_used = (is_free | is_zero(tables, !until)) ^ 1;
                // Below 0 if the time is before the other one.
                let is_past = until.wrapping_sub(gone) >> 63 & is_used;
                found.free = found.free << 1 | is_free as u32;
                found.past = found.past << 1 | is_past as u32;
                // Written for each way: otherwise the compiler reads all of them first, to the stack.
                work.set_ways(found);
            }
        }
    }
}

/// Jiffies after which an expired entry may be replaced.
#[inline(always)]
fn quiet(settings: &Settings, store: NameTable) -> u64 {
    // A refresh is due after one second.
    let second = u64::from(settings.refresh_after);
    if matches!(store, NameTable::Learned) { QUIET * second } else { 0 }
}

/// Makes a way the one to be replaced if it ranks higher than those before.
#[inline(always)]
pub fn rank_way<T: NameTables>(tables: &T, work: Work, store: NameTable, index: u32) {
    let bucket = bucket(tables, work, store, index / NAME_WAYS as u32);
    let Some((bucket, settings)) = bucket.zip(tables.settings()) else { return };
    // SAFETY: a whole bucket, and an index in it.
    let way = unsafe { Way::new(bucket, index as usize & (NAME_WAYS - 1)) };
    let until = way.until(tables);
    if until == NAME_BUSY {
        return;
    }
    let minute = u64::from(LEAST) * u64::from(settings.refresh_after);
    let times = [tables.jiffies(), quiet(settings, store), minute];
    let rank = rank(tables, work, bucket, (index, way, until), times);
    if rank > work.victim().rank {
        work.set_victim(Victim { rank, until, index: index.into() });
    }
}

/// Least rank of a way that is free or past its time.
const PAST: u64 = 1 << 62;

/// Rank of a way to be replaced: a free one first, or the longest past its time by more than `quiet`, of the bucket with
/// more of these; then one of the pod with most ways of a bucket: the one that ends first within a minute, else any.
#[inline(always)]
fn rank<T: NameTables>(
    tables: &T,
    work: Work,
    bucket: *mut u64,
    (index, way, until): (u32, Way, u64),
    [now, quiet, minute]: [u64; 3],
) -> u64 {
    const ROOMIER: u64 = 1 << 63;
    const SHARE: u64 = 1 << 56;
    /// Jiffies within which a way is chosen at random, so that a new entry does not always displace the previous one.
    const RANDOM: u64 = 0xff;
    if until == 0 || until + quiet < now {
        let is_roomier = roomier(work.ways()) >> index & 1;
        return u64::from(is_roomier) * ROOMIER + PAST + (now - until);
    }
    let (address, [_, name]) = (work.entry().address, work.entry().name);
    let (own, holder) = (name >> 32, way.word(tables, 3) >> 32);
    let mut share = is_zero(tables, holder ^ own);
    for index in 0..NAME_WAYS {
        // SAFETY: a whole bucket.
        let other = unsafe { Way::new(bucket, index) };
        share += is_zero(tables, holder ^ (other.word(tables, 3) >> 32));
    }
    // Addresses of one name differ in their last octet. Both are far below a share.
    let seed = address[1] >> 56 ^ way.word(tables, 1) >> 56;
    let random = (now ^ seed ^ way.word(tables, 2)) & RANDOM;
    (share * SHARE).wrapping_sub(until.saturating_sub(now).min(minute)) + random
}

/// 1 if a word is 0, else 0: without a branch, which the verifier would follow on both sides.
#[inline(always)]
pub(crate) fn is_zero<M: Memory>(memory: &M, word: u64) -> u64 {
    let folded = (word | word >> 32) & 0xffff_ffff;
    (memory.opaque(folded as usize, word) as u64).wrapping_sub(1) >> 63
}
