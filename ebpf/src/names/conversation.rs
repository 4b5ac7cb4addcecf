//! Questions and answers: DNS (RFC 1035), at the hooks of a pod that has rules with domain names.

use crate::{
    direction::PodDirection,
    layout::{NameEntry, RESOLVES, Settings},
    names::{
        ignored::IgnoredAnswer,
        name,
        store::{self, ATTEMPTS, LEAST},
        tables::{NameTable, NameTables},
        work::{MESSAGE, Work},
    },
    packet::{
        bytes::{Bytes, Window as _},
        family::{Family, V4, V6, mapped},
        parse,
        protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, UDP},
    },
};

/// Port of resolvers.
pub const DNS: u16 = 53;
/// Length of a message's header.
pub(crate) const HEADER: u32 = 12;
/// Maximum number of records read of an answer; further ones are ignored.
pub const RECORDS: u32 = 64;
/// Seconds within which an answer must follow its question.
pub(crate) const ANSWER_WITHIN: u64 = 10;
/// Maximum number of seconds for which an address is recorded: a week, which no resolver exceeds.
pub const MOST: u32 = 7 * 24 * 3600;

/// Types and class of records.
const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;
const IN: u16 = 1;

/// A DNS message in a packet.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// Offset of the message in the frame.
    pub offset: u32,
    /// Length of the message, at most [`MESSAGE`] unless it has a flaw.
    pub length: u32,
    /// Address of the resolver, as [`NameEntry::address`].
    pub resolver: [u64; 2],
    /// The pod's port.
    pub port: u16,
    /// Why the message cannot be read.
    pub flaw: Option<IgnoredAnswer>,
}

/// The DNS message to a resolver's port, or from there to the pod; `None` for all other packets, and for later fragments.
#[inline(always)]
pub fn parse_datagram<D: PodDirection, B: Bytes>(bytes: &B) -> Option<Datagram> {
    match parse::link(bytes).ok()? {
        (ETHERTYPE_IPV4, offset) => parse_family::<D, V4, B>(bytes, offset),
        (ETHERTYPE_IPV6, offset) => parse_family::<D, V6, B>(bytes, offset),
        _ => None,
    }
}

#[inline(always)]
fn parse_family<D: PodDirection, F: Family, B: Bytes>(bytes: &B, offset: u32) -> Option<Datagram> {
    let mut network = F::network(bytes, offset, false).ok()?;
    if !D::EGRESS {
        F::extensions(bytes, &mut network).ok()?;
    }
    if network.protocol != UDP || network.fragment.is_later() {
        return None;
    }
    let header = bytes.window::<8>(network.payload)?;
    let (source, destination) = (header.be16(0), header.be16(2));
    let (resolver, port, peer) = if D::EGRESS {
        (network.destination, source, destination)
    } else {
        (network.source, destination, source)
    };
    let stated = u32::from(header.be16(4));
    let offset = network.payload + 8;
    let length = stated.wrapping_sub(8);
    let fits = stated > 8 && length <= MESSAGE as u32 && offset + length <= network.end;
    let flaw = if network.fragment.more {
        Some(IgnoredAnswer::Fragment)
    } else if fits {
        None
    } else {
        Some(IgnoredAnswer::Malformed)
    };
    (peer == DNS).then(|| Datagram { offset, length, resolver: mapped::<F>(resolver), port, flaw })
}

/// Counts the answer of a datagram with a flaw, which begins with [`Work::begin`].
#[inline(always)]
pub fn count_flaw<T: NameTables>(tables: &T, work: Work, flaw: IgnoredAnswer) {
    let is_trusted = tables.resolver(work.address()) & RESOLVES != 0;
    tables.count_ignored(if is_trusted { flaw } else { IgnoredAnswer::NotResolver });
}

/// Whether a message has flags, and one question.
#[inline(always)]
fn has_flags(work: Work, mask: u16, flags: u16) -> bool {
    work.length() > HEADER && work.be16(2) & mask == flags && work.be16(4) == 1
}

/// Jiffies of a number of seconds from now.
#[inline(always)]
pub(crate) fn in_seconds<T: NameTables>(tables: &T, settings: &Settings, seconds: u64) -> u64 {
    // A refresh is due after one second.
    tables.jiffies() + seconds * u64::from(settings.refresh_after)
}

/// Records the question in the working memory, which begins with [`Work::begin`].
#[inline(always)]
pub fn record_question<T: NameTables>(tables: &T, work: Work) {
    let Some(settings) = tables.settings() else { return };
    // A query (QR 0) of the standard kind (opcode 0).
    if !has_flags(work, 0xf800, 0)
        || tables.resolver(work.address()) & RESOLVES == 0
        || tables.read_name(work, HEADER) == 0
    {
        return;
    }
    name::hash_name(tables, work, 0);
    complete_question_key(work);
    let until = in_seconds(tables, settings, ANSWER_WITHIN);
    work.set_entry(NameEntry { until, ..work.entry() });
    for _ in 0..ATTEMPTS {
        if store::upsert(tables, work, NameTable::Asked) {
            break;
        }
    }
}

/// Completes the key of a question by its name and identifier.
#[inline(always)]
fn complete_question_key(work: Work) {
    let (entry, [first, second, third]) = (work.entry(), work.hash());
    let name = [u64::from(first) | u64::from(second) << 32, u64::from(third) | entry.name[1]];
    let asked = entry.asked | u64::from(work.be16(0)) << 16;
    work.set_entry(NameEntry { name, asked, ..entry });
}

/// Reads the answer in the working memory up to its first record. False unless the pod asked this question,
/// and the list has a matching name.
#[inline(always)]
pub fn check_answer<T: NameTables>(tables: &T, work: Work, list: u32) -> bool {
    if list == 0 {
        return false;
    }
    if tables.resolver(work.address()) & RESOLVES == 0 {
        tables.count_ignored(IgnoredAnswer::NotResolver);
        return false;
    }
    // A response (QR 1) to a standard query.
    let end = if has_flags(work, 0xf800, 0x8000) { tables.read_name(work, HEADER) } else { 0 };
    if end == 0 || end + 4 > work.length() {
        tables.count_ignored(IgnoredAnswer::Malformed);
        return false;
    }
    name::hash_name(tables, work, list);
    complete_question_key(work);
    let until = store::remove(tables, work, NameTable::Asked);
    if until < tables.jiffies() {
        tables.count_ignored(IgnoredAnswer::NoQuestion);
        return false;
    }
    work.set_unasked(0);
    // The response code: no error.
    if work.be16(2) & 0xf != 0 || work.matched() == 0 {
        return false;
    }
    work.set_wanted(work.hash());
    work.set_wanted_at(HEADER);
    work.set_alias_ttl(MOST);
    work.set_at(end + 4);
    let records = u32::from(work.be16(6));
    if records > RECORDS {
        tables.count_ignored(IgnoredAnswer::TooManyRecords);
    }
    work.set_records(records.min(RECORDS));
    true
}

/// Result of [`next_record`], and of the steps of a stream: the answer ends, or the segment.
pub const END: u32 = 0;
/// Result of [`next_record`]: the answer continues.
pub const GOES_ON: u32 = 1;
/// Result of [`next_record`]: the record has an address of the wanted name, which [`learn_address`] records.
pub const ADDRESS: u32 = 2;

/// Result of [`read_record`]: the answer is shorter than the record, or the record has no valid name.
const BROKEN: u32 = 3;

/// Reads the next record. Records that belong to other names than the wanted one count for nothing.
#[inline(always)]
pub fn next_record<T: NameTables>(tables: &T, work: Work) -> u32 {
    let records = work.records();
    if records == 0 {
        return END;
    }
    work.set_records(records - 1);
    let result = read_record(tables, work);
    if result == BROKEN {
        tables.count_ignored(IgnoredAnswer::Malformed);
        return END;
    }
    result
}

#[inline(always)]
fn read_record<T: NameTables>(tables: &T, work: Work) -> u32 {
    let (at, length) = (work.at(), work.length());
    let Some(settings) = tables.settings() else { return END };
    if at + 2 > length {
        return BROKEN;
    }
    // Nearly all owners are a pointer to the wanted name.
    let (end, is_wanted) = if u32::from(work.be16(at)) == 0xc000 | work.wanted_at() {
        (at + 2, true)
    } else {
        let end = tables.read_name(work, at);
        name::hash_name(tables, work, 0);
        (end, work.hash() == work.wanted())
    };
    if end == 0 || end + 10 > length {
        return BROKEN;
    }
    let (kind, class) = (work.be16(end), work.be16(end + 2));
    let (ttl, size) = (work.be32(end + 4), u32::from(work.be16(end + 8)));
    let data = end + 10;
    if data + size > length {
        return BROKEN;
    }
    work.set_at(data + size);
    if !is_wanted || class != IN {
        return GOES_ON;
    }
    // A time with its highest bit set counts as 0 (RFC 2181 section 8).
    let ttl = if ttl >> 31 == 0 { ttl } else { 0 };
    let address = match (kind, size) {
        (CNAME, _) => {
            if tables.read_name(work, data) != data + size {
                return BROKEN;
            }
            name::hash_name(tables, work, 0);
            work.set_wanted(work.hash());
            work.set_wanted_at(data);
            work.set_alias_ttl(ttl.min(work.alias_ttl()));
            return GOES_ON;
        }
        (A, 4) => [0, 0xffff_0000 | work.word(data) << 32],
        (AAAA, 16) => [work.word(data), work.word(data + 8)],
        _ => return GOES_ON,
    };
    let seconds = ttl.min(work.alias_ttl()).max(LEAST);
    let until = in_seconds(tables, settings, seconds.into());
    work.set_found(address, until);
    ADDRESS
}

/// Records the address in the working memory for the matching name at an index, if there is one; returns whether more
/// names match.
#[inline(always)]
pub fn learn_address<T: NameTables>(tables: &T, work: Work, index: u32) -> bool {
    if index >= work.matched() {
        return false;
    }
    let (entry, [first, second, third]) = (work.entry(), work.matching(index));
    let endpoint = entry.name[1] >> 32 << 32;
    let name = [u64::from(first) | u64::from(second) << 32, u64::from(third) | endpoint];
    work.set_entry(NameEntry { name, ..entry });
    for _ in 0..ATTEMPTS {
        if store::upsert(tables, work, NameTable::Learned) {
            break;
        }
    }
    index + 1 < work.matched()
}
