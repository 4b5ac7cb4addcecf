//! Entries of connections to resolvers: buckets that all pods share, as those of [`store`](crate::names::store).
//!
//! The reader of a packet holds the entry of its connection: [`StreamEntry::until`](crate::layout::StreamEntry::until)
//! is [`NAME_BUSY`] meanwhile. Two packets of a connection may be judged at once. The second one then cannot be read,
//! and if it passed unread, the recorded position in the stream would be wrong, so it is dropped: TCP sends it again.
//!
//! A packet that ends the reading needs no hold: it sets the bit of the pod's port ([`doubt`]), which no other packet
//! clears. An entry of a port in doubt is not read, and no new one is made for [`DOUBTED`] seconds. The absence of an
//! entry proves nothing, so every removal of an entry, and every packet that passes without one, leaves a doubt as
//! well: an entry displaced by another, a SYN without room, a packet of the pod without a valid entry.
//!
//! The same pod may open one connection twice at once, on two CPUs, and create two entries of it. A packet that finds
//! both casts doubt on the port.

use crate::{
    flow::{key::hash_words, memory::Memory},
    layout::{NAME_BUSY, SHARES_NAMES, STREAM_BUCKETS, STREAM_WAYS, STREAM_WORDS},
    names::{
        conversation::in_seconds,
        doubt::{DOUBTED, doubt_port, is_port_doubted},
        store::{ATTEMPTS, is_zero, lowest},
        tables::NameTables,
        work::{Victim, Work},
    },
};

/// Indices of an entry's words.
const ASKER: usize = 2;
const RESOLVER: usize = 3;
const OPENED: usize = 5;
const SENT: usize = 6;
const PLACES: usize = 7;
const MESSAGE: usize = 8;
const UNTIL: usize = STREAM_WORDS - 1;

/// Result of [`hold`].
#[derive(Clone, Copy)]
pub(crate) enum HeldEntry {
    /// There is no valid entry.
    Absent,
    /// The reader of another packet has the entry.
    Busy,
    /// The entry, which is held until [`StreamWay::release`].
    Entry(StreamWay),
}

/// An entry, at a place of the table.
#[derive(Clone, Copy)]
pub(crate) struct StreamWay {
    first: *mut u64,
    slot: u32,
}

#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a way's words are read and written under one promise"
)]
impl StreamWay {
    /// The entry at a place; its bytes are at the same place of their table.
    #[inline(always)]
    pub(crate) fn at<T: NameTables>(tables: &T, slot: u32) -> Option<Self> {
        let bucket = tables.stream_bucket(slot / STREAM_WAYS as u32)?;
        // SAFETY: the index is below the number of ways.
        let first = unsafe { bucket.add((slot as usize & (STREAM_WAYS - 1)) * STREAM_WORDS) };
        Some(Self { first, slot })
    }

    pub(crate) const fn slot(self) -> u32 {
        self.slot
    }

    #[inline(always)]
    fn word<M: Memory>(self, memory: &M, index: usize) -> u64 {
        // SAFETY: within the way, by `at`.
        unsafe { memory.load(self.first.add(index)) }
    }

    #[inline(always)]
    fn set<M: Memory>(self, memory: &M, index: usize, value: u64) {
        // SAFETY: within the way, by `at`.
        unsafe { memory.store(self.first.add(index), value) };
    }

    /// Replaces the time; false if another packet's reader was faster.
    #[inline(always)]
    fn set_until<M: Memory>(self, memory: &M, old: u64, new: u64) -> bool {
        // SAFETY: within the way, by `at`.
        unsafe { memory.swap(self.first.add(UNTIL), old, new) == old }
    }

    /// 0 if the entry is of the segment's connection. The other end is not part of the key: a Service's address and a
    /// backend's may be two keys of one connection, depending on where the node translates.
    #[inline(always)]
    fn difference<M: Memory>(self, memory: &M, work: Work) -> u64 {
        let own = work.own();
        (self.word(memory, 0) ^ own[0])
            | (self.word(memory, 1) ^ own[1])
            | (self.word(memory, ASKER) ^ work.asker())
    }

    /// Whether the segment's other end is the resolver.
    #[inline(always)]
    pub(crate) fn is_of<M: Memory>(self, memory: &M, work: Work) -> bool {
        let resolver = work.resolver();
        let first = self.word(memory, RESOLVER) ^ resolver[0];
        first | (self.word(memory, RESOLVER + 1) ^ resolver[1]) == 0
    }

    #[inline(always)]
    pub(crate) fn opened<M: Memory>(self, memory: &M) -> u64 {
        self.word(memory, OPENED)
    }

    #[inline(always)]
    pub(crate) fn set_opened<M: Memory>(self, memory: &M, opened: u64) {
        self.set(memory, OPENED, opened);
    }

    /// Sequence numbers of the resolver's first byte and of the next one.
    #[inline(always)]
    pub(crate) fn places<M: Memory>(self, memory: &M) -> (u32, u32) {
        let places = self.word(memory, PLACES);
        (places as u32, (places >> 32) as u32)
    }

    #[inline(always)]
    pub(crate) fn set_places<M: Memory>(self, memory: &M, first: u32, next: u32) {
        self.set(memory, PLACES, u64::from(first) | u64::from(next) << 32);
    }

    /// Sequence number of the pod's next byte.
    #[inline(always)]
    pub(crate) fn sent<M: Memory>(self, memory: &M) -> u32 {
        self.word(memory, SENT) as u32
    }

    #[inline(always)]
    pub(crate) fn set_sent<M: Memory>(self, memory: &M, sent: u32) {
        self.set(memory, SENT, sent.into());
    }

    /// Jiffies until which the entry is valid.
    #[inline(always)]
    pub(crate) fn until<M: Memory>(self, memory: &M) -> u64 {
        self.word(memory, UNTIL)
    }

    #[inline(always)]
    pub(crate) fn message<M: Memory>(self, memory: &M) -> u64 {
        self.word(memory, MESSAGE)
    }

    #[inline(always)]
    pub(crate) fn set_message<M: Memory>(self, memory: &M, message: u64) {
        self.set(memory, MESSAGE, message);
    }

    /// Releases a held entry, which is then valid until a time, or free if that is 0. All earlier writes are visible
    /// before the release.
    #[inline(always)]
    pub(crate) fn release<M: Memory>(self, memory: &M, until: u64) {
        self.set_until(memory, NAME_BUSY, until);
    }

    /// Writes a held entry of the connection that the segment opens.
    #[inline(always)]
    fn write<M: Memory>(self, memory: &M, work: Work, until: u64) {
        let (own, resolver) = (work.own(), work.resolver());
        self.set(memory, 0, own[0]);
        self.set(memory, 1, own[1]);
        self.set(memory, ASKER, work.asker());
        self.set(memory, RESOLVER, resolver[0]);
        self.set(memory, RESOLVER + 1, resolver[1]);
        self.set(memory, OPENED, work.sequence().into());
        self.set(memory, SENT, work.sequence().wrapping_add(1).into());
        self.set(memory, PLACES, 0);
        self.set(memory, MESSAGE, 0);
        self.release(memory, until);
    }
}

/// Place of the bucket of the segment's connection.
#[inline(always)]
fn bucket<T: NameTables>(tables: &T, work: Work) -> Option<u32> {
    let settings = tables.settings()?;
    let word = |index| match index {
        0 => work.own()[0],
        1 => work.own()[1],
        2 => work.asker(),
        _ => 0,
    };
    let hash = hash_words::<[u64; 4]>(settings, word);
    Some((hash as u32 & (STREAM_BUCKETS - 1)) * STREAM_WAYS as u32)
}

/// Ways of a bucket with the segment's connection, a bit for each.
#[inline(always)]
fn matches<T: NameTables>(tables: &T, bucket: u32, work: Work) -> u64 {
    let mut found = 0;
    for index in 0..STREAM_WAYS as u32 {
        let Some(way) = StreamWay::at(tables, bucket + index) else { return 0 };
        let is_used = is_zero(tables, way.word(tables, UNTIL)) ^ 1;
        found |= (is_zero(tables, way.difference(tables, work)) & is_used) << index;
    }
    found
}

/// Holds the entry of the segment's connection, also an expired one if `any_age`; also returns the time until which it
/// was valid.
#[inline(always)]
pub(crate) fn hold<T: NameTables>(tables: &T, work: Work, any_age: bool) -> (HeldEntry, u64) {
    let Some(bucket) = bucket(tables, work) else { return (HeldEntry::Absent, 0) };
    let found = matches(tables, bucket, work);
    if found == 0 {
        return (HeldEntry::Absent, 0);
    }
    let of = |found: u64| StreamWay::at(tables, bucket + lowest(found as u32));
    let Some(way) = of(found) else { return (HeldEntry::Absent, 0) };
    if found & (found - 1) != 0 {
        doubt(tables, work);
        return (HeldEntry::Absent, 0);
    }
    let until = way.word(tables, UNTIL);
    if until == 0 {
        return (HeldEntry::Absent, 0);
    }
    if until == NAME_BUSY || !way.set_until(tables, until, NAME_BUSY) {
        return (HeldEntry::Busy, 0);
    }
    // Another pod's connection may have taken the place since.
    if way.difference(tables, work) != 0 {
        way.release(tables, until);
        return (HeldEntry::Busy, 0);
    }
    // The expired entry stays, so that a later SYN leaves a doubt.
    if until < tables.jiffies() && !any_age {
        way.release(tables, until);
        return (HeldEntry::Absent, 0);
    }
    (HeldEntry::Entry(way), until)
}

/// The entry of the segment's connection, also while another CPU holds it.
#[inline(always)]
pub(crate) fn find<T: NameTables>(tables: &T, work: Work) -> Option<StreamWay> {
    let bucket = bucket(tables, work)?;
    let found = matches(tables, bucket, work);
    if found == 0 { None } else { StreamWay::at(tables, bucket + lowest(found as u32)) }
}

/// Ends the reading of the segment's connection, and lets none begin at its port for [`DOUBTED`] seconds.
#[inline(always)]
pub(crate) fn doubt<T: NameTables>(tables: &T, work: Work) {
    doubt_port(tables, work.asker());
}

/// Whether the segment's port is in doubt, or all ports of its pod.
#[inline(always)]
pub(crate) fn is_doubted<T: NameTables>(tables: &T, work: Work) -> bool {
    is_port_doubted(tables, work.asker())
}

/// Whether programs in front of these have read most packets ([`SHARES_NAMES`]).
#[inline(always)]
pub(crate) fn is_read_in_front<T: NameTables>(tables: &T) -> bool {
    tables.settings().is_some_and(|settings| settings.has_handover_flags(SHARES_NAMES))
}

/// Whether an entry was valid so lately that packets of its connection may be on their way.
#[inline(always)]
fn is_recent<T: NameTables>(tables: &T, until: u64) -> bool {
    let Some(settings) = tables.settings() else { return true };
    in_seconds(tables, settings, 0) <= until + DOUBTED * u64::from(settings.refresh_after)
}

/// Writes the entry of the connection that the segment opens. `false`: another packet's reader has the entry.
/// A connection beyond the room of the table has no entry, and its answers are not read.
#[inline(always)]
pub(crate) fn open<T: NameTables>(tables: &T, work: Work, until: u64) -> bool {
    if is_doubted(tables, work) {
        doubt(tables, work);
        return true;
    }
    match hold(tables, work, true) {
        (HeldEntry::Busy, _) => return false,
        // Another SYN of the connection, or one that programs in front have read.
        (HeldEntry::Entry(way), before) if is_recent(tables, before) => {
            let is_same = way.opened(tables) == work.sequence().into() && way.is_of(tables, work);
            if !(is_same && is_read_in_front(tables)) {
                doubt(tables, work);
            }
            way.release(tables, before);
            return true;
        }
        (HeldEntry::Entry(way), _) => {
            way.write(tables, work, until);
            return true;
        }
        (HeldEntry::Absent, _) => {}
    }
    let Some(bucket) = bucket(tables, work) else { return true };
    for _ in 0..ATTEMPTS {
        work.set_victim(Victim { rank: 0, until: NAME_BUSY, index: 0 });
        for index in 0..STREAM_WAYS as u32 {
            rank(tables, work, bucket, index);
        }
        let victim = work.victim();
        let index = victim.index as u32 & (STREAM_WAYS as u32 - 1);
        let Some(way) = StreamWay::at(tables, bucket + index) else { return true };
        if victim.until != NAME_BUSY && way.set_until(tables, victim.until, NAME_BUSY) {
            if victim.until != 0 && is_recent(tables, victim.until) {
                doubt_port(tables, way.word(tables, ASKER));
            }
            way.write(tables, work, until);
            return true;
        }
    }
    doubt(tables, work);
    true
}

/// Makes a way the one to be replaced if it ranks higher: a free one, then one past its time, then one of the pod with
/// most ways, counting the new one; among these the one that ends first.
#[inline(always)]
fn rank<T: NameTables>(tables: &T, work: Work, bucket: u32, index: u32) {
    const PAST: u64 = 1 << 62;
    const SHARE: u64 = 1 << 56;
    let Some(way) = StreamWay::at(tables, bucket + index) else { return };
    let (until, holder) = (way.word(tables, UNTIL), way.word(tables, ASKER) >> 32);
    if until == NAME_BUSY {
        return;
    }
    let mut share = is_zero(tables, holder ^ (work.asker() >> 32));
    for other in 0..STREAM_WAYS as u32 {
        let Some(other) = StreamWay::at(tables, bucket + other) else { return };
        share += is_zero(tables, holder ^ (other.word(tables, ASKER) >> 32));
    }
    let now = tables.jiffies();
    let rank = if until == 0 {
        u64::MAX
    } else if until < now {
        PAST + (now - until)
    } else {
        share * SHARE - (until - now)
    };
    if rank > work.victim().rank {
        work.set_victim(Victim { rank, until, index: index.into() });
    }
}
