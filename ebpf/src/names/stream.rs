//! Answers over TCP (RFC 7766): the bytes of a connection from a resolver to a pod.
//!
//! A name may lead to an address only by what the resolver has written as an answer, never by bytes inside of one, which
//! whoever owns some other name may choose. So the bytes are read from the stream's first one on, by the length before
//! each message, and the pod, which may forge any packet of its own, must not be able to move that first byte or to have
//! bytes skipped:
//!
//! * The stream begins behind the SYN-ACK that acknowledges the pod's SYN. With SYN cookies a resolver has several valid
//!   SYN-ACKs, and the pod chooses one by its ACK. So another SYN-ACK than the first ends the reading, as does a segment
//!   that begins before the first byte.
//! * Each byte is read once. Of a segment that was sent again, only the bytes behind the last one count.
//! * A segment behind a gap cannot be read, and the resolver would not send it again once the pod has it. So it is
//!   dropped, and TCP sends it again behind the missing one; after [`MOST_GAPS`] in succession, the reading ends, so
//!   that a connection never depends on it.
//! * With SYN cookies, the pod's next ACK may open another connection with the same sequence numbers, and no SYN, once
//!   the resolver's is gone. So each end of the connection ends the reading: a FIN or RST either way, by whatever address
//!   and port, also one that policy drops or that another CPU meets in the middle of a reading. The pod may acknowledge
//!   an end that was lost on the way: so does an ACK of bytes that were not read.
//! * The bytes of another connection need another question: the pod's bytes end the reading behind the first answer's
//!   first byte.
//! * A TCP fragment of the pod is dropped: what it ends would be known before the entry, or never. Linux sends none.
//! * A stream is read up to [`WINDOW`] bytes, and a segment further away from its place ends the reading: sequence
//!   numbers repeat after 2^32 bytes.
//!
//! Where the reading ends, the entry is freed. Later segments pass unread until the pod opens another connection. The
//! checksum of a segment is not verified here. A damaged one is read, and the pod's kernel rejects it; the bytes are not
//! read a second time.

use crate::{
    layout::{STREAM_BYTES_WORDS, STREAM_ENDED, STREAM_GAP, STREAM_OPEN},
    names::{
        conversation::{ANSWER_WITHIN, DNS, END, GOES_ON, HEADER, in_seconds},
        stream_table::{self, Held, StreamWay, find, hold, open},
        tables::NameTables,
        work::{MESSAGE, Work},
    },
    packet::{
        bytes::{Bytes, Window as _},
        protocol::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN},
    },
};

/// Bytes of a stream that are read at most, and the farthest place of a segment.
pub const WINDOW: u32 = 1 << 24;
/// Segments behind a gap that are dropped in succession.
pub const MOST_GAPS: u64 = 16;
/// Seconds without an answer after which a connection is no longer read: less than a resolver takes to give up a
/// connection whose end is lost on the way (100 s, `net.ipv4.tcp_orphan_retries`), and than the node's conntrack keeps
/// the translation of one that ends (30 s, `nf_conntrack_tcp_timeout_last_ack`).
pub const QUIET: u64 = 20;
/// Seconds for which a pod's packets to resolvers are watched, from the last one that opens or prolongs an entry on: by a
/// plain store, so longer than any entry lasts and any CPU delays it.
const WATCHED: u64 = 60;
/// Words that a call copies.
const STEP: u32 = 64;
/// Calls that copy a message.
pub(crate) const COPIES: u32 = STREAM_BYTES_WORDS as u32 / STEP;

/// The packet passes.
pub const PASSES: u32 = 0;
/// The packet is dropped: its sender's TCP sends it again.
pub const DROPS: u32 = 1;
/// The segment is to be read.
pub const READS: u32 = 2;
/// The packet passes, and ends the reading of its connection: [`end`].
pub const ENDS: u32 = 4;
/// Result of [`take`] and [`take_question`]: a message is complete.
pub const MESSAGE_ENDS: u32 = 3;

/// Flags of segments that open or end a connection.
pub const BOUNDS: u8 = TCP_SYN | TCP_FIN | TCP_RST;

/// A packet to read messages from.
pub trait Source: Bytes {
    /// Copies bytes from an offset of the frame to a place below [`MESSAGE`] of the message; at most [`MESSAGE`] bytes,
    /// at least one. False if they are not there.
    fn load(&self, work: Work, place: u32, offset: u32, length: u32) -> bool;
}

/// A packet on the host.
impl Source for &[u8] {
    fn load(&self, work: Work, place: u32, offset: u32, length: u32) -> bool {
        let Some(bytes) = self.get(offset as usize..offset as usize + length as usize) else {
            return false;
        };
        work.fill(place, bytes);
        true
    }
}

/// Takes a segment to the pod, and holds its connection's entry if the result is [`READS`].
#[inline(always)]
pub fn arrive<T: NameTables>(tables: &T, work: Work) -> u32 {
    let flags = work.flags() as u8;
    let is_bound = flags & BOUNDS != 0;
    if !tables.is_resolver(work.remote()) {
        return if is_bound && is_near(tables, work) { ENDS } else { PASSES };
    }
    if flags & TCP_RST != 0 || work.is_whole() == 0 {
        return ENDS;
    }
    // The node may translate one connection of the pod's port, and not the other.
    if work.remote_port() != u32::from(DNS) {
        return if is_bound { ENDS } else { PASSES };
    }
    if !is_bound && work.segment_at() == work.segment_end() {
        return PASSES;
    }
    let (way, until) = match hold(tables, work, false) {
        (Held::Absent, _) => return PASSES,
        (Held::Busy, _) => return if is_bound { ENDS } else { DROPS },
        (Held::Entry(way), until) => (way, until),
    };
    if !way.is_of(tables, work) {
        way.release(tables, 0);
        return PASSES;
    }
    let (result, until) = if flags & TCP_SYN != 0 {
        (PASSES, opened(tables, work, way, until))
    } else {
        follow(tables, work, way, until)
    };
    if result != READS {
        way.release(tables, until);
    }
    result
}

/// Whether a segment of anybody to the pod may be of the connection that is read: a Service of which netpold does not know
/// that it leads to the resolver may bring it. Strangers would have to guess the number.
#[inline(always)]
fn is_near<T: NameTables>(tables: &T, work: Work) -> bool {
    find(tables, work).is_some_and(|way| {
        let ahead = work.sequence().wrapping_sub(way.places(tables).1);
        ahead.wrapping_add(WINDOW) <= 2 * WINDOW
    })
}

/// Whether a segment to the pod that policy drops is to end the reading.
#[inline(always)]
pub fn is_refused<T: NameTables>(tables: &T, work: Work) -> bool {
    work.flags() as u8 & (TCP_FIN | TCP_RST) != 0
        && (tables.is_resolver(work.remote()) || is_near(tables, work))
}

/// Ends the reading of the segment's connection; whether the packet may pass.
#[inline(always)]
pub fn end<T: NameTables>(tables: &T, work: Work) -> bool {
    stream_table::end(tables, work)
}

/// Reads a SYN or SYN-ACK of the resolver; returns until when the entry is valid then.
#[inline(always)]
fn opened<T: NameTables>(tables: &T, work: Work, way: StreamWay, until: u64) -> u64 {
    let opened = way.opened(tables);
    let answers = work.flags() as u8 & (TCP_ACK | TCP_FIN) == TCP_ACK
        && work.acknowledged() == (opened as u32).wrapping_add(1)
        && work.segment_at() == work.segment_end();
    let (first, _) = way.places(tables);
    let place = work.sequence().wrapping_add(1);
    if !answers || opened & STREAM_OPEN != 0 && first != place {
        return 0;
    }
    if opened & STREAM_OPEN != 0 {
        return until;
    }
    way.set_places(tables, place, place);
    way.set_opened(tables, opened | STREAM_OPEN);
    tables.settings().map_or(0, |settings| in_seconds(tables, settings, QUIET))
}

/// Finds the bytes of a segment that were not read yet. Returns until when the entry is valid, too.
#[inline(always)]
fn follow<T: NameTables>(tables: &T, work: Work, way: StreamWay, until: u64) -> (u32, u64) {
    let (sequence, offset) = (work.sequence(), work.segment_at());
    let length = work.segment_end() - offset;
    let opened = way.opened(tables);
    let (first, next) = way.places(tables);
    let ahead = sequence.wrapping_sub(next) as i32;
    let is_far = ahead > WINDOW as i32 || ahead < -(WINDOW as i32);
    // The segment's place in the stream, which is read up to WINDOW bytes.
    let place = sequence.wrapping_sub(first) as i32;
    if opened & STREAM_OPEN == 0 || is_far || place < 0 || length > WINDOW {
        return (PASSES, 0);
    }
    if ahead > 0 {
        // The pod may acknowledge an end that it does not have, and nobody sends it again then.
        if opened / STREAM_GAP >= MOST_GAPS || work.flags() as u8 & TCP_FIN != 0 {
            return (PASSES, 0);
        }
        way.set_opened(tables, opened + STREAM_GAP);
        return (DROPS, until);
    }
    let known = ahead.unsigned_abs();
    let ends = work.flags() & u32::from(TCP_FIN);
    if known > length || known == length && ends == 0 {
        return (PASSES, until);
    }
    let next = sequence.wrapping_add(length);
    if next.wrapping_sub(first) > WINDOW {
        return (PASSES, 0);
    }
    way.set_places(tables, first, next);
    way.set_opened(tables, opened & (STREAM_GAP - 1));
    let message = way.message(tables);
    work.set_segment_at(offset + known);
    work.set_slot(way.slot());
    work.set_ends(ends);
    work.set_stated(message as u32 & 0xffff);
    work.set_taken((message as u32) >> 16);
    work.set_stated_bytes((message >> 32) as u32 & 3);
    work.set_copied(0);
    (READS, until)
}

/// Reads the next byte of a length, or the bytes of the message that the segment has: [`MESSAGE_ENDS`] with its last one.
#[inline(always)]
pub fn take<S: Source>(source: &S, work: Work) -> u32 {
    let (at, end) = (work.segment_at(), work.segment_end());
    if at >= end {
        return END;
    }
    let (stated, known) = (work.stated(), work.stated_bytes());
    if known < 2 {
        let Some(byte) = source.window::<1>(at) else { return END };
        let stated = stated << 8 | u32::from(byte.byte(0));
        // Neither is read: a message without bytes, and a longer one than the memory has room for.
        if known == 1 && (stated == 0 || stated > MESSAGE as u32) {
            return END;
        }
        work.set_stated(stated);
        work.set_stated_bytes(known + 1);
        work.set_segment_at(at + 1);
        return GOES_ON;
    }
    let taken = work.taken();
    let missing = stated.wrapping_sub(taken);
    let length = if missing < end - at { missing } else { end - at };
    if !source.load(work, taken, at, length) {
        return END;
    }
    work.set_segment_at(at + length);
    if length != missing {
        work.set_taken(taken + length);
        return END;
    }
    work.set_stated(0);
    work.set_stated_bytes(0);
    work.set_taken(0);
    work.begin_in_stream(stated);
    MESSAGE_ENDS
}

/// Copies some words of the message that has begun between the working memory and the connection's own, there if `keeps`.
/// False behind the last one.
#[inline(always)]
pub fn copy_some<T: NameTables>(tables: &T, work: Work, keeps: bool) -> bool {
    let (begin, taken) = (work.copied(), work.taken());
    let Some(bytes) = tables.stream_bytes(work.slot()) else { return false };
    for step in 0..STEP {
        let index = begin + step;
        if index * 8 >= taken {
            return false;
        }
        // SAFETY: the index is below the number of words.
        let kept = unsafe { bytes.add(index as usize & (STREAM_BYTES_WORDS - 1)) };
        let word = work.message_word(index);
        let (from, to) = if keeps { (word, kept) } else { (kept, word) };
        // SAFETY: a word of a table that nobody else uses while the entry is held.
        let value = unsafe { from.read_volatile() };
        // SAFETY: likewise.
        unsafe { to.write_volatile(value) };
    }
    work.set_copied(begin + STEP);
    true
}

/// Whether the message that has begun is to be copied to the connection's own memory.
#[must_use]
#[inline(always)]
pub fn keeps(work: Work) -> bool {
    work.set_copied(0);
    work.taken() != 0
}

/// Lets go of the entry behind the last step. A segment with unread bytes ends the reading.
#[inline(always)]
pub fn finish<T: NameTables>(tables: &T, work: Work) {
    let Some((way, settings)) = StreamWay::at(tables, work.slot()).zip(tables.settings()) else {
        return;
    };
    if work.segment_at() != work.segment_end() || work.ends() != 0 {
        way.release(tables, 0);
        return;
    }
    watch(tables, work);
    let message = u64::from(work.stated() & 0xffff)
        | u64::from(work.taken()) << 16
        | u64::from(work.stated_bytes()) << 32;
    way.set_message(tables, message);
    way.release(tables, in_seconds(tables, settings, QUIET));
}

/// Records that a connection of the segment's endpoint is read.
#[inline(always)]
fn watch<T: NameTables>(tables: &T, work: Work) {
    let place = tables.watched((work.asker() >> 32) as u32);
    if let Some((place, settings)) = place.zip(tables.settings()) {
        // SAFETY: a word of the table.
        unsafe { tables.store(place, in_seconds(tables, settings, WATCHED)) };
    }
}

/// Whether an endpoint may have a connection that is read. Others' packets need no look at their resolver.
#[must_use]
#[inline(always)]
pub fn is_watched<T: NameTables>(tables: &T, endpoint: u32) -> bool {
    // SAFETY: a word of the table.
    tables.watched(endpoint).is_none_or(|place| unsafe { tables.load(place) } >= tables.jiffies())
}

/// Takes a segment of a pod: a SYN to a resolver opens an entry. [`READS`] if it may have questions.
#[inline(always)]
pub fn leave<T: NameTables>(tables: &T, work: Work) -> u32 {
    let flags = work.flags() as u8;
    if work.is_whole() == 0 {
        return DROPS;
    }
    let opens = flags & (BOUNDS | TCP_ACK) == TCP_SYN;
    let is_resolver = tables.is_resolver(work.remote());
    let is_dns = is_resolver && work.remote_port() == u32::from(DNS);
    // To whomever: the resolver may take an end at its own address for one of the Service's connection.
    let may_go_on = is_resolver && !is_dns && is_watched(tables, (work.asker() >> 32) as u32);
    if flags & BOUNDS != 0 && !(opens && is_dns) || may_go_on {
        return ENDS;
    }
    if !is_dns {
        return PASSES;
    }
    work.begin_in_stream(0);
    if opens {
        let Some(settings) = tables.settings() else { return PASSES };
        watch(tables, work);
        if !open(tables, work, in_seconds(tables, settings, ANSWER_WITHIN)) {
            return DROPS;
        }
    } else if casts_doubt(tables, work) {
        return ENDS;
    }
    if work.segment_at() == work.segment_end() { PASSES } else { READS }
}

/// Whether a segment of the pod to a resolver's port shows another connection than the one that is read, or an end of it:
/// to another resolver, before the SYN-ACK, of bytes that were not read, or with bytes behind the first answer's begin.
#[inline(always)]
fn casts_doubt<T: NameTables>(tables: &T, work: Work) -> bool {
    let Some(way) = find(tables, work) else { return false };
    let (first, next) = way.places(tables);
    let has_bytes = work.segment_at() != work.segment_end();
    !way.is_of(tables, work)
        || way.opened(tables) & STREAM_OPEN == 0
        || work.flags() as u8 & TCP_ACK == 0
        || work.acknowledged().wrapping_sub(next) as i32 > 0
        || has_bytes && first != next
}

/// Reads the next question of a segment that has it as a whole, with its length or without it: some clients send that in
/// a segment of its own. A question in parts is not recorded. The pod may ask any question by UDP too, so it gains
/// nothing by one that is none.
#[inline(always)]
pub fn take_question<S: Source>(source: &S, work: Work) -> u32 {
    let (at, end) = (work.segment_at(), work.segment_end());
    if at + HEADER > end {
        return END;
    }
    let Some(prefix) = source.window::<8>(at) else { return END };
    let (stated, rest) = (u32::from(prefix.be16(0)), end - at);
    // Behind its length, a message of one question has that number at this place.
    let is_framed = stated != 0 && stated + 2 <= rest && prefix.be16(6) == 1;
    let (begin, length) = if is_framed { (at + 2, stated) } else { (at, rest) };
    if length > MESSAGE as u32 || !source.load(work, 0, begin, length) {
        return END;
    }
    work.set_segment_at(begin + length);
    work.begin_in_stream(length);
    MESSAGE_ENDS
}

const _: () = assert!(STREAM_ENDED > MOST_GAPS * STREAM_GAP);
