//! Lookups: a number determines the question, the resolver's answer and the address that the pod connects to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netpold_testkit::names::{Record, answer, query, wire};

use crate::random::SplitMix64;

/// Types of records.
pub(crate) const A: u16 = 1;
pub(crate) const AAAA: u16 = 28;
/// Length of a message's header; the question's name follows.
const HEADER: usize = 12;
/// Place of the number of additional records in the header.
const ADDITIONAL: usize = 10;
/// An OPT record: answers of up to 1,232 bytes (RFC 6891 section 6.1.2).
const OPT: [u8; 11] = [0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0];
/// Records of an answer that the programs read.
const RECORDS: u32 = 64;
/// Longest chain of aliases.
const ALIASES: u32 = 16;
/// Longest answer, which fits in a packet over IPv6.
const LONGEST: usize = 1_400;
/// Seconds that addresses live.
pub(crate) const TTL: u32 = 600;

/// A lookup of a name below `race.example`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DnsLookup {
    /// The number.
    pub(crate) number: u32,
    /// Type of the wanted records.
    pub(crate) kind: u16,
    /// Whether the resolver is asked at its IPv6 address.
    pub(crate) over_ipv6: bool,
    has_edns0: bool,
}

impl DnsLookup {
    /// The lookup of a number below 131,072.
    pub(crate) const fn new(number: u32) -> Self {
        Self {
            number,
            kind: if number & 1 == 0 { A } else { AAAA },
            over_ipv6: number & 2 != 0,
            has_edns0: number & 4 != 0,
        }
    }

    /// The lookup that a question belongs to; `None` for others.
    fn of(question: &[u8]) -> Option<Self> {
        let label = question.get(HEADER + 2..)?.split(|byte| !byte.is_ascii_digit()).next()?;
        Some(Self::new(std::str::from_utf8(label).ok()?.parse().ok()?))
    }

    /// The address of this lookup alone.
    pub(crate) fn target(self) -> IpAddr {
        address(self.kind, self.number)
    }

    /// Identifier of its messages.
    pub(crate) const fn id(self) -> u16 {
        self.number as u16
    }

    /// The question, with letters of either case.
    pub(crate) fn question(self) -> Vec<u8> {
        let mut random = SplitMix64::new(u64::from(self.number));
        let name = format!("n{}.race.example", self.number);
        let mixed = |c: char| if random.below(2) == 0 { c } else { c.to_ascii_uppercase() };
        let name: String = name.chars().map(mixed).collect();
        ask(self.id(), &name, self.kind, self.has_edns0)
    }

    /// The answer: a chain of up to 16 aliases and up to 64 records, among them the lookup's own address at any place.
    fn answer(self, question: &[u8]) -> Vec<u8> {
        let mut random = SplitMix64::new(u64::from(self.number) << 32);
        let name = name_of(question);
        let mut at = HEADER + name.len() + 4;
        let mut owner = vec![0xc0, HEADER as u8];
        let mut records = Vec::new();
        for step in 0..random.below(ALIASES + 1) {
            let target = wire(&format!("a{step}.edge.example"));
            let record = Record::alias(owner, target.clone());
            let data = at + record.owner.len() + 10;
            at = data + target.len();
            let is_pointer = random.below(4) > 0;
            owner = if is_pointer { (0xc000 | data as u16).to_be_bytes().to_vec() } else { target };
            records.push(record);
        }
        let size = owner.len() + 10 + if self.kind == A { 4 } else { 16 };
        let room = (LONGEST - at) / size;
        let count = (1 + random.below(RECORDS - records.len() as u32)).min(room as u32);
        let own = random.below(count);
        let addresses = (0..count)
            .map(|place| if place == own { self.target() } else { shared(self.kind, place) });
        records.extend(addresses.map(|address| Record::address(owner.clone(), address, TTL)));
        respond(question, &records)
    }
}

/// Answers a question about a lookup's name, and no other.
pub(crate) fn answer_lookup(question: &[u8]) -> Option<Vec<u8>> {
    Some(DnsLookup::of(question)?.answer(question))
}

/// An address of an outside service, by number below 131,072.
pub(crate) fn address(kind: u16, number: u32) -> IpAddr {
    if kind == A {
        Ipv4Addr::from_bits(0xc612_0000 + number).into()
    } else {
        Ipv6Addr::from_bits((0x2001_0db8_0009 << 80) + u128::from(number)).into()
    }
}

/// An address of many names.
fn shared(kind: u16, place: u32) -> IpAddr {
    if kind == A {
        Ipv4Addr::from_bits(0xcb00_7100 + place).into()
    } else {
        Ipv6Addr::from_bits((0x2001_0db8_000a << 80) + u128::from(place)).into()
    }
}

/// A question for records of a type.
pub(crate) fn ask(id: u16, name: &str, kind: u16, has_edns0: bool) -> Vec<u8> {
    let mut question = query(id, &wire(name));
    let at = question.len() - 4;
    question[at..][..2].copy_from_slice(&kind.to_be_bytes());
    if has_edns0 {
        question[ADDITIONAL + 1] = 1;
        question.extend(OPT);
    }
    question
}

/// The answer to a question, with these records, and an OPT record if the question has one.
pub(crate) fn respond(question: &[u8], records: &[Record]) -> Vec<u8> {
    let name = name_of(question);
    let mut message = answer(u16::from_be_bytes([question[0], question[1]]), name, records);
    let kind = HEADER + name.len();
    message[kind..][..2].copy_from_slice(&question[kind..][..2]);
    if question[ADDITIONAL + 1] == 1 {
        message[ADDITIONAL + 1] = 1;
        message.extend(OPT);
    }
    message
}

/// The name of a question that has one, on the wire.
pub(crate) fn name_of(question: &[u8]) -> &[u8] {
    let name = &question[HEADER..];
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len() - 5);
    &name[..=end]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pairs have answers of all kinds, which fit in a packet.
    #[test]
    fn answers_are_of_all_kinds() {
        let (mut longest, mut most, mut fewest) = (0, 0, u16::MAX);
        for number in 0..2_000 {
            let lookup = DnsLookup::new(number);
            let question = lookup.question();
            let answer = answer_lookup(&question).expect("an answer");
            assert_eq!(answer[..2], question[..2], "the identifier");
            assert_eq!(name_of(&answer), name_of(&question), "the same letters");
            let octets = match lookup.target() {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            assert!(answer.windows(octets.len()).any(|window| window == octets), "{number}");
            let records = u16::from_be_bytes([answer[6], answer[7]]);
            (most, fewest) = (most.max(records), fewest.min(records));
            longest = longest.max(answer.len());
        }
        assert!(fewest < 5 && most == RECORDS as u16, "{fewest} to {most}");
        assert!((1_300..=LONGEST + OPT.len()).contains(&longest), "{longest}");
    }

    #[test]
    fn other_names_have_no_answer() {
        assert!(answer_lookup(&ask(1, "www.example.com", A, false)).is_none());
    }
}
