//! Answers over TCP (RFC 7766): the bytes of a connection from a resolver to a pod.
//!
//! A name may lead to an address only through an answer that the resolver wrote, never through bytes inside an answer,
//! which the owner of some other name may choose. So the stream is read from its first byte, message by message with
//! the length before each. The pod, which may forge any packet of its own, must not be able to move that first byte or
//! to have bytes skipped:
//!
//! * An entry begins with a SYN, at a port of the pod that is not in doubt: for [`DOUBTED`](super::doubt::DOUBTED)
//!   seconds, no packet of the pod has gone from the port to any port 53 without a valid entry, nor to an address that
//!   the node may translate to a resolver's. So any connection that the resolver still has with these addresses and
//!   ports answers the SYN with an ACK, and no SYN-ACK is on its way.
//! * Packets that bypass the pod's hook cast doubt on all of its ports at the node's exits
//!   ([`crate::judge::post_nat`]). Packets to the node itself pass no exit, so nothing is read from a resolver on the
//!   node.
//! * The stream begins after the SYN-ACK that acknowledges the SYN. The number that the pod acknowledges decides which
//!   SYN-ACK becomes a connection of the resolver; with SYN cookies the pod may choose among several, and needs no SYN.
//!   So each later packet of the pod must acknowledge exactly the first byte until it is read, and then a number up to
//!   the last byte read. None may precede the SYN-ACK. So each connection of the resolver begins at that byte.
//! * The pod's bytes are sent once and in order, at most [`QUESTION_BYTES`], and all before the first answer. A
//!   connection answers only bytes that it received, so only one connection can answer, even if connections end unseen,
//!   and no other one receives a question. With cookies of the same minute the pod may begin a connection up to three
//!   bytes later, too few for a question before it.
//! * Each byte of the answers is read once and in order. A segment after a gap, or with both read and unread bytes,
//!   ends the reading, as does a segment that acknowledges bytes not sent by the pod. A segment of bytes that were read
//!   passes.
//! * A message that is not an answer to a question in this connection ends the reading.
//! * A TCP fragment of the pod is dropped. Linux sends none.
//! * A stream is read up to [`WINDOW`] bytes: sequence numbers repeat after 2^32 bytes.
//!
//! Where the reading ends, the port is in doubt: later segments pass unread, also those of the next connections. A
//! connection never depends on its reading. The checksum of a segment is not verified here. A damaged one is read, and the
//! pod's kernel rejects it; the bytes are not read a second time.

use crate::{
    layout::{RESOLVES, RESOLVES_OVER_TCP, STREAM_BYTES_WORDS, STREAM_OPEN},
    names::{
        conversation::{ANSWER_WITHIN, DNS, END, GOES_ON, HEADER, in_seconds},
        ignored::IgnoredAnswer,
        stream_table::{
            HeldEntry, StreamWay, doubt, find, hold, is_doubted, is_read_in_front, open,
        },
        tables::NameTables,
        work::{MESSAGE, Work},
    },
    packet::protocol::{TCP_ACK, TCP_FIN, TCP_PSH, TCP_RST, TCP_SYN},
};

/// Maximum number of bytes read of a stream, and the farthest position of a segment.
pub const WINDOW: u32 = 1 << 24;
/// Maximum number of bytes of questions in a connection.
pub const QUESTION_BYTES: u32 = 1_024;
/// Bytes of the shortest question: its length, and a header.
const LEAST_QUESTION: u32 = 2 + HEADER;
/// Seconds without an answer after which a connection is no longer read.
pub const QUIET: u64 = 20;
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
/// The packet passes, and ends the reading of its connection: [`end_reading`].
pub const ENDS: u32 = 4;
/// Result of [`next_message`] and [`next_question`]: a message is complete.
pub const MESSAGE_ENDS: u32 = 3;

/// Flags of segments that open or end a connection.
pub const BOUNDS: u8 = TCP_SYN | TCP_FIN | TCP_RST;

/// A packet to read messages from. Its bytes are copied and never moved: most of them lie in the pages of their sender.
pub trait MessageSource {
    /// Copies bytes from an offset of the frame to a place below [`MESSAGE`] of the message; at most [`MESSAGE`] bytes,
    /// at least one. False if the packet does not have them.
    fn load(&self, work: Work, place: u32, offset: u32, length: u32) -> bool;
}

/// A packet on the host.
impl MessageSource for &[u8] {
    fn load(&self, work: Work, place: u32, offset: u32, length: u32) -> bool {
        let Some(bytes) = self.get(offset as usize..offset as usize + length as usize) else {
            return false;
        };
        work.fill(place, bytes);
        true
    }
}

/// Result of [`admit`]: the packet passes, and no connection of it is read.
const UNREAD: u32 = 5;

/// Takes a segment to the pod, and holds its connection's entry if the result is [`READS`].
#[inline(always)]
pub fn admit_answers<T: NameTables>(tables: &T, work: Work) -> u32 {
    let trust = tables.resolver(work.remote());
    let result = admit(tables, work, trust & RESOLVES_OVER_TCP != 0);
    if result != UNREAD && result != ENDS {
        return result;
    }
    let has_data = work.is_whole() != 0 && work.segment_at() != work.segment_end();
    if has_data && work.remote_port() == u32::from(DNS) {
        let is_trusted = trust & RESOLVES != 0;
        tables.count_ignored(if is_trusted {
            IgnoredAnswer::UnreadSegment
        } else {
            IgnoredAnswer::NotResolver
        });
    }
    if result == ENDS { ENDS } else { PASSES }
}

#[inline(always)]
fn admit<T: NameTables>(tables: &T, work: Work, is_resolver: bool) -> u32 {
    let flags = work.flags() as u8;
    let is_bound = flags & BOUNDS != 0;
    if !is_resolver {
        return UNREAD;
    }
    if flags & TCP_RST != 0 || work.is_whole() == 0 {
        return ENDS;
    }
    // The node may translate one connection of the pod's port, and not the other.
    if work.remote_port() != u32::from(DNS) {
        return if is_bound { ENDS } else { PASSES };
    }
    if !is_bound && work.segment_at() == work.segment_end() {
        return if acknowledges(tables, work) { PASSES } else { ENDS };
    }
    let (way, until) = match hold(tables, work, false) {
        (HeldEntry::Absent, _) => return UNREAD,
        (HeldEntry::Busy, _) => return if is_bound { ENDS } else { DROPS },
        (HeldEntry::Entry(way), until) => (way, until),
    };
    let result = if !way.is_of(tables, work) || is_doubted(tables, work) {
        ENDS
    } else if flags & TCP_SYN != 0 {
        open_by_resolver(tables, work, way)
    } else {
        continue_reading(tables, work, way)
    };
    let is_new = flags & TCP_SYN != 0 && way.places(tables).0 == way.places(tables).1;
    if result != READS {
        let later = tables.settings().map_or(0, |it| in_seconds(tables, it, QUIET));
        way.release(tables, if is_new && result == PASSES { later.max(until) } else { until });
    }
    result
}

/// Whether the resolver's acknowledgement without data belongs to the connection that is read, or to none.
#[inline(always)]
fn acknowledges<T: NameTables>(tables: &T, work: Work) -> bool {
    find(tables, work).is_none_or(|way| {
        let opened = way.opened(tables);
        let (first, next) = way.places(tables);
        opened & STREAM_OPEN != 0
            && way.is_of(tables, work)
            && is_between(first, work.sequence(), next)
            && is_sent(tables, work, way)
    })
}

/// Whether a sequence number is one of a range, inclusive.
#[inline(always)]
const fn is_between(first: u32, number: u32, last: u32) -> bool {
    number.wrapping_sub(first) <= last.wrapping_sub(first)
}

/// Whether the resolver's segment acknowledges bytes that the pod has sent.
#[inline(always)]
fn is_sent<T: NameTables>(tables: &T, work: Work, way: StreamWay) -> bool {
    let begin = (way.opened(tables) as u32).wrapping_add(1);
    work.flags() as u8 & TCP_ACK != 0 && is_between(begin, work.acknowledged(), way.sent(tables))
}

/// Whether the other side is a trusted resolver, over TCP too.
#[inline(always)]
pub fn is_resolver<T: NameTables>(tables: &T, work: Work) -> bool {
    tables.resolver(work.remote()) & RESOLVES_OVER_TCP != 0
}

/// Ends the reading of the segment's connection, and casts doubt on its port.
#[inline(always)]
pub fn end_reading<T: NameTables>(tables: &T, work: Work) {
    doubt(tables, work);
}

/// Reads a SYN or SYN-ACK of the resolver.
#[inline(always)]
fn open_by_resolver<T: NameTables>(tables: &T, work: Work, way: StreamWay) -> u32 {
    let opened = way.opened(tables);
    let place = work.sequence().wrapping_add(1);
    if work.flags() as u8 & (TCP_ACK | TCP_FIN) != TCP_ACK
        || work.acknowledged() != (opened as u32).wrapping_add(1)
        || work.segment_at() != work.segment_end()
        || opened & STREAM_OPEN != 0 && way.places(tables).0 != place
    {
        return ENDS;
    }
    if opened & STREAM_OPEN == 0 {
        way.set_places(tables, place, place);
        way.set_opened(tables, opened | STREAM_OPEN);
    }
    PASSES
}

/// Finds the bytes of a segment that were not read yet.
#[inline(always)]
fn continue_reading<T: NameTables>(tables: &T, work: Work, way: StreamWay) -> u32 {
    let (sequence, offset) = (work.sequence(), work.segment_at());
    let length = work.segment_end() - offset;
    let opened = way.opened(tables);
    let (first, next) = way.places(tables);
    let end = sequence.wrapping_add(length);
    let asked = way.sent(tables).wrapping_sub(opened as u32).wrapping_sub(1);
    let is_valid = opened & STREAM_OPEN != 0
        && is_sent(tables, work, way)
        && length <= WINDOW
        && end.wrapping_sub(first) <= WINDOW
        && asked >= LEAST_QUESTION;
    if !is_valid || sequence != next {
        // Bytes that were read, sent again.
        let is_known = is_valid
            && work.flags() as u8 & TCP_FIN == 0
            && is_between(first, sequence, next)
            && is_between(sequence, end, next);
        return if is_known { PASSES } else { ENDS };
    }
    way.set_places(tables, first, end);
    let message = way.message(tables);
    work.set_slot(way.slot());
    work.set_ends(work.flags() & u32::from(TCP_FIN));
    work.set_stated(message as u32 & 0xffff);
    work.set_taken((message as u32) >> 16);
    work.set_stated_bytes((message >> 32) as u32 & 3);
    work.set_copied(0);
    work.set_unasked(0);
    READS
}

/// Reads the next byte of a length, or the bytes of the message that the segment has: [`MESSAGE_ENDS`] with its last one.
#[inline(always)]
pub fn next_message<S: MessageSource>(source: &S, work: Work) -> u32 {
    let (at, end) = (work.segment_at(), work.segment_end());
    if at >= end || work.unasked() != 0 {
        return END;
    }
    let (stated, known) = (work.stated(), work.stated_bytes());
    if known < 2 {
        // The following message takes the same place.
        if !source.load(work, 0, at, 1) {
            return END;
        }
        let stated = stated << 8 | u32::from(work.byte(0));
        // Not read: an empty message, and a message that exceeds the memory.
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
    work.set_unasked(1);
    work.begin_in_stream(stated);
    MESSAGE_ENDS
}

/// Copies some words of the incomplete message between the working memory and the connection's own memory, into the
/// latter if `keeps`. False after the last word.
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

/// Whether the incomplete message must be copied to the connection's own memory.
#[must_use]
#[inline(always)]
pub fn is_incomplete(work: Work) -> bool {
    work.set_copied(0);
    work.taken() != 0
}

/// Releases the entry after the last step. A segment with unread bytes ends the reading.
#[inline(always)]
pub fn release<T: NameTables>(tables: &T, work: Work) {
    let Some((way, settings)) = StreamWay::at(tables, work.slot()).zip(tables.settings()) else {
        return;
    };
    let is_unread = work.segment_at() != work.segment_end();
    if is_unread || work.ends() != 0 || work.unasked() != 0 {
        // The message before such bytes was counted.
        if is_unread && work.unasked() == 0 {
            tables.count_ignored(IgnoredAnswer::UnreadSegment);
        }
        doubt(tables, work);
        way.release(tables, in_seconds(tables, settings, 0));
        return;
    }
    let message = u64::from(work.stated() & 0xffff)
        | u64::from(work.taken()) << 16
        | u64::from(work.stated_bytes()) << 32;
    way.set_message(tables, message);
    way.release(tables, in_seconds(tables, settings, QUIET));
}

/// Takes a segment of a pod: a SYN to a resolver opens an entry. [`READS`] if it may have questions. `may_be_translated`:
/// the node may translate its destination to a resolver's.
#[inline(always)]
pub fn admit_questions<T: NameTables>(tables: &T, work: Work, may_be_translated: bool) -> u32 {
    let flags = work.flags() as u8;
    if work.is_whole() == 0 {
        return DROPS;
    }
    let opens = flags & (BOUNDS | TCP_ACK) == TCP_SYN;
    if work.remote_port() != u32::from(DNS) {
        return if may_be_translated { ENDS } else { PASSES };
    }
    // For any other address too: the resolver may attribute a segment at its own address to the Service's connection.
    if !is_resolver(tables, work) || flags & BOUNDS != 0 && !opens {
        return ENDS;
    }
    work.begin_in_stream(0);
    let has_bytes = work.segment_at() != work.segment_end();
    if opens {
        // With TCP Fast Open, it has bytes before the SYN-ACK.
        let Some(settings) = tables.settings().filter(|_| !has_bytes) else { return ENDS };
        let is_done = open(tables, work, in_seconds(tables, settings, ANSWER_WITHIN));
        return if is_done { PASSES } else { DROPS };
    }
    if has_bytes {
        return admit_segment(tables, work);
    }
    let belongs =
        find(tables, work).is_some_and(|way| belongs(tables, work, way, way.until(tables)));
    if belongs { PASSES } else { ENDS }
}

/// Takes a segment of the pod with bytes.
#[inline(always)]
fn admit_segment<T: NameTables>(tables: &T, work: Work) -> u32 {
    let (way, until) = match hold(tables, work, false) {
        (HeldEntry::Absent, _) => return ENDS,
        (HeldEntry::Busy, _) => return DROPS,
        (HeldEntry::Entry(way), until) => (way, until),
    };
    let (first, next) = way.places(tables);
    let length = work.segment_end() - work.segment_at();
    let sent = way.sent(tables).wrapping_add(length);
    let asked = sent.wrapping_sub(way.opened(tables) as u32).wrapping_sub(1);
    let is_valid = is_valid(tables, work, way, until);
    let belongs = is_valid
        && first == next
        && length <= QUESTION_BYTES
        && asked <= QUESTION_BYTES
        && work.sequence() == way.sent(tables);
    let is_read = is_valid
        && work.sequence().wrapping_add(length) == way.sent(tables)
        && is_read_in_front(tables);
    if belongs {
        way.set_sent(tables, sent);
    }
    way.release(tables, until);
    if belongs {
        READS
    } else if is_read {
        PASSES
    } else {
        ENDS
    }
}

/// Whether a segment of the pod is the next one of the connection that is read, and cannot open another one.
#[inline(always)]
fn belongs<T: NameTables>(tables: &T, work: Work, way: StreamWay, until: u64) -> bool {
    is_valid(tables, work, way, until) && work.sequence() == way.sent(tables)
}

/// Whether a segment of the pod, apart from its position, cannot open another connection than the one that is read.
#[inline(always)]
fn is_valid<T: NameTables>(tables: &T, work: Work, way: StreamWay, until: u64) -> bool {
    let opened = way.opened(tables);
    let (first, next) = way.places(tables);
    until >= tables.jiffies()
        && way.is_of(tables, work)
        && opened & STREAM_OPEN != 0
        && work.flags() as u8 & !TCP_PSH == TCP_ACK
        && is_between(first, work.acknowledged(), next)
}

/// Reads the next question of a segment that has it as a whole, with its length or without it: some clients send the
/// length in a separate segment. A question in parts is not recorded. The pod may ask any question over UDP too, so it
/// gains nothing from bytes that are not a question.
#[inline(always)]
pub fn next_question<S: MessageSource>(source: &S, work: Work) -> u32 {
    let (at, end) = (work.segment_at(), work.segment_end());
    if at + HEADER > end {
        return END;
    }
    if !source.load(work, 0, at, 8) {
        return END;
    }
    let (stated, rest) = (u32::from(work.be16(0)), end - at);
    // After its length, a message of one question has that number at this position.
    let is_framed = stated != 0 && stated + 2 <= rest && work.be16(6) == 1;
    let (begin, length) = if is_framed { (at + 2, stated) } else { (at, rest) };
    if length > MESSAGE as u32 || !source.load(work, 0, begin, length) {
        return END;
    }
    work.set_segment_at(begin + length);
    work.begin_in_stream(length);
    MESSAGE_ENDS
}
