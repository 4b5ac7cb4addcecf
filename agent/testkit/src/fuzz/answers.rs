//! The parser of DNS answers against a second reading of RFC 1035: a pod has asked one question, and the input is the
//! message that its resolver answers with. Both find the same addresses, for the same times.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

use netpold_ebpf::layout::NameEntry;
use netpold_ebpf::names::conversation::{self, ADDRESS, END, MOST, RECORDS};
use netpold_ebpf::names::tables::NameTables as _;
use netpold_ebpf::names::work::{MESSAGE, NAME};

use super::streams::{DNS, NAME as ASKED, tables};
use crate::flows::HZ;
use crate::names::{query, wire};
use crate::node::NodeTables;
use crate::objects::ip;

const ID: u16 = 7;
const PORT: u16 = 5_000;
const HEADER: usize = 12;
/// Least number of seconds for which an address counts.
const LEAST: u32 = 60;
/// Bytes and pointers of a name within which the programs find its end.
const NAME_STEPS: usize = 400;
/// Types and class of records.
const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;
const IN: u16 = 1;

/// An address, and the seconds for which it counts.
type FoundAddress = (IpAddr, u32);

/// Runs one input.
///
/// # Panics
/// The programs' parser finds other addresses than the second reading.
pub fn run(bytes: &[u8]) {
    thread_local! {
        static TABLES: RefCell<NodeTables> = RefCell::new(tables());
    }
    let message = &bytes[..bytes.len().min(MESSAGE)];
    if message.is_empty() {
        return;
    }
    TABLES.with_borrow(|tables| {
        begin(tables, &query(ID, &wire(ASKED)));
        if let Some(work) = tables.work() {
            conversation::record_question(tables, work);
        }
        assert_eq!(
            parsed(tables, message),
            expected(message).unwrap_or_default(),
            "{message:02x?}"
        );
    });
}

/// Puts a message into the working memory.
fn begin(tables: &NodeTables, message: &[u8]) {
    let IpAddr::V4(resolver) = ip(DNS) else { return };
    let resolver = u64::from(u32::from_ne_bytes(resolver.octets()));
    let endpoint = tables.policy.endpoints.values().next().map_or(0, |endpoint| endpoint.id);
    let Some(work) = tables.work() else { return };
    // SAFETY: a readable and writable element.
    let memory = unsafe { &raw mut (*tables.flows.name_work()).message }.cast::<u8>();
    // SAFETY: the memory is as long as the longest message, and no other code uses it now.
    unsafe { ptr::copy_nonoverlapping(message.as_ptr(), memory, message.len()) };
    work.begin(message.len() as u32, [0, 0xffff_0000 | resolver << 32], endpoint, PORT);
}

/// Addresses that the programs' parser finds.
fn parsed(tables: &NodeTables, message: &[u8]) -> Vec<FoundAddress> {
    begin(tables, message);
    let list = tables.policy.names.keys().next().map_or(0, |(list, _)| *list);
    let Some(work) = tables.work() else { return Vec::new() };
    let mut found = Vec::new();
    if !conversation::check_answer(tables, work, list) {
        return found;
    }
    for _ in 0..RECORDS {
        match conversation::next_record(tables, work) {
            END => break,
            ADDRESS => {
                // SAFETY: a readable and writable element.
                let entry = unsafe { &raw const (*tables.flows.name_work()).entry };
                // SAFETY: no other code uses the element now.
                let NameEntry { address, until, .. } = unsafe { entry.read() };
                let octets: Vec<u8> = address.into_iter().flat_map(u64::to_ne_bytes).collect();
                let octets: [u8; 16] = octets.try_into().unwrap_or_default();
                let seconds = (until - tables.jiffies()) / u64::from(HZ);
                found.push((Ipv6Addr::from(octets).to_canonical(), seconds as u32));
            }
            _ => {}
        }
    }
    found
}

/// Addresses of the name that was asked for, in an answer to the question; `None` if it is not one.
fn expected(message: &[u8]) -> Option<Vec<FoundAddress>> {
    let header: &[u8; HEADER] = message.first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (name, end) = read_name(message, HEADER)?;
    let is_answer = word(0) == ID && word(2) & 0xf80f == 0x8000 && word(4) == 1;
    let asked = wire(ASKED);
    if !is_answer || name != asked[..asked.len() - 1] || end + 4 > message.len() {
        return None;
    }
    let (mut at, mut wanted, mut least) = (end + 4, name, MOST);
    let mut found = Vec::new();
    for _ in 0..u32::from(word(6)).min(RECORDS) {
        let Some(record) = ResourceRecord::read(message, at) else { break };
        at = record.end;
        if record.owner != wanted || record.class != IN {
            continue;
        }
        let address = match (record.kind, record.data) {
            (CNAME, data) => {
                let Some((target, _)) =
                    read_name(message, at - data.len()).filter(|(_, end)| *end == at)
                else {
                    break;
                };
                wanted = target;
                least = least.min(record.ttl);
                continue;
            }
            (A, data) => data.try_into().ok().map(|octets: [u8; 4]| Ipv4Addr::from(octets).into()),
            (AAAA, data) => {
                // The table has IPv4 addresses in this form.
                data.try_into().ok().map(|octets: [u8; 16]| Ipv6Addr::from(octets).to_canonical())
            }
            _ => None,
        };
        found.extend(address.map(|address| (address, record.ttl.min(least).max(LEAST))));
    }
    Some(found)
}

/// A resource record (RFC 1035 section 3.2.1).
struct ResourceRecord<'a> {
    owner: Vec<u8>,
    kind: u16,
    class: u16,
    ttl: u32,
    data: &'a [u8],
    end: usize,
}

impl<'a> ResourceRecord<'a> {
    fn read(message: &'a [u8], at: usize) -> Option<Self> {
        let (owner, at) = read_name(message, at)?;
        let [kind, class, high, low, size] = *message.get(at..at + 10)?.as_chunks::<2>().0 else {
            return None;
        };
        let ttl = u32::from(u16::from_be_bytes(high)) << 16 | u32::from(u16::from_be_bytes(low));
        let end = at + 10 + usize::from(u16::from_be_bytes(size));
        Some(Self {
            owner,
            kind: u16::from_be_bytes(kind),
            class: u16::from_be_bytes(class),
            // RFC 2181 section 8.
            ttl: if ttl >> 31 == 0 { ttl } else { 0 },
            data: message.get(at + 10..end)?,
            end,
        })
    }
}

/// A name in lower case without the root's label, and the offset after it.
fn read_name(message: &[u8], at: usize) -> Option<(Vec<u8>, usize)> {
    let (mut name, mut next, mut before, mut end) = (Vec::new(), at, at, None);
    let mut steps = 0;
    while steps < NAME_STEPS {
        let length = *message.get(next)?;
        if length == 0 {
            return Some((name, end.unwrap_or(next + 1)));
        }
        if length >= 0xc0 {
            let target = usize::from(length & 0x3f) << 8 | usize::from(*message.get(next + 1)?);
            if target >= before {
                return None;
            }
            end = end.or(Some(next + 2));
            (next, before) = (target, target);
            steps += 1;
            continue;
        }
        if length >= 64 {
            return None;
        }
        let label = message.get(next..=next + usize::from(length))?;
        name.push(length);
        name.extend(label[1..].to_ascii_lowercase());
        if name.len() > NAME {
            return None;
        }
        next += label.len();
        steps += label.len();
    }
    None
}
