//! Naive parser of frames: finds every flow to which a receiver could assign a frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocol and ends of a flow. Ports are 0 in protocols without ports; an echo's identifier is its sender's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tuple {
    pub(crate) protocol: u8,
    pub(crate) from: (IpAddr, u16),
    pub(crate) to: (IpAddr, u16),
}

impl Tuple {
    pub(crate) const fn reversed(self) -> Self {
        Self { protocol: self.protocol, from: self.to, to: self.from }
    }
}

/// Headers of an IP packet, with every reading of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) tuple: Tuple,
    /// Flows by another reading: an extension header as the transport protocol, or the last address of the route as
    /// the destination.
    pub(crate) others: Vec<Tuple>,
    /// Possible protocols and destination ports of the packet.
    pub(crate) meanings: Vec<(u8, u16)>,
    /// Whether the packet is a later fragment.
    pub(crate) is_later: bool,
    /// Whether the packet begins a connection, so that it answers nothing.
    pub(crate) is_opening: bool,
    /// Possible flows of the packet that an ICMP error quotes.
    pub(crate) quoted: Vec<Tuple>,
}

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const SCTP: u8 = 132;

impl Parsed {
    /// Returns every flow that the packet could belong to.
    pub(crate) fn tuples(&self) -> impl Iterator<Item = Tuple> {
        std::iter::once(self.tuple).chain(self.others.iter().copied())
    }
}

/// Reads a frame; `None` if it is not IP, or too short for an IP header.
pub(crate) fn frame(frame: &[u8]) -> Option<Parsed> {
    match untagged(frame)? {
        (0x0800 | 0x86dd, bytes) => packet(bytes),
        _ => None,
    }
}

/// Returns EtherType and payload after all VLAN tags.
pub(crate) fn untagged(frame: &[u8]) -> Option<(u16, &[u8])> {
    let mut at = 12;
    while matches!(number(frame, at)?, 0x8100 | 0x88a8) {
        at += 4;
    }
    Some((number(frame, at)?, frame.get(at + 2..)?))
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn packet(bytes: &[u8]) -> Option<Parsed> {
    match bytes.first()? >> 4 {
        4 => ipv4(bytes),
        6 => ipv6(bytes),
        _ => None,
    }
}

fn ipv4(bytes: &[u8]) -> Option<Parsed> {
    let address = |at: usize| {
        let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(IpAddr::V4(Ipv4Addr::from(octets)))
    };
    let (from, to) = (address(12)?, address(16)?);
    let is_later = number(bytes, 6)? & 0x1fff != 0;
    let payload = bytes.get(usize::from(bytes[0] & 15) * 4..).unwrap_or_default();
    Some(transport((from, to), &[bytes[9]], payload, is_later))
}

fn ipv6(bytes: &[u8]) -> Option<Parsed> {
    let address = |at: usize| {
        let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    let ends = (address(8)?, address(24)?);
    let mut last = None;
    let mut protocols = vec![*bytes.get(6)?];
    let mut rest = bytes.get(40..)?;
    let mut is_later = false;
    while let Some((&next, length)) = rest.first().zip(rest.get(1)) {
        let length = usize::from(*length);
        let header = match protocols.last() {
            Some(0 | 43 | 60 | 135 | 139 | 140) => (length + 1) * 8,
            Some(51) => (length + 2) * 4,
            Some(44) => {
                is_later |= number(rest, 2).is_some_and(|offset| offset >> 3 != 0);
                8
            }
            _ => break,
        };
        if protocols.last() == Some(&43) && header >= 24 {
            let octets = rest.get(header - 16..header).and_then(|at| <[u8; 16]>::try_from(at).ok());
            last = octets.map(|octets| IpAddr::V6(Ipv6Addr::from(octets)));
        }
        protocols.push(next);
        rest = rest.get(header..).unwrap_or_default();
        if is_later {
            break;
        }
    }
    let mut parsed = transport(ends, &protocols, rest, is_later);
    if let Some(last) = last {
        parsed.others.push(Tuple { to: (last, parsed.tuple.to.1), ..parsed.tuple });
    }
    Some(parsed)
}

fn transport(
    (from, to): (IpAddr, IpAddr),
    protocols: &[u8],
    bytes: &[u8],
    is_later: bool,
) -> Parsed {
    let protocol = *protocols.last().unwrap_or(&255);
    let port = |at: usize| number(bytes, at).unwrap_or(0);
    let flags = bytes.get(13).copied().unwrap_or(0);
    let kind = bytes.first().copied().unwrap_or(255);
    let (source, destination) = match (protocol, kind) {
        _ if is_later => (0, 0),
        (TCP | UDP | SCTP, _) => (port(0), port(2)),
        (ICMP, 0 | 14 | 43) | (ICMPV6, 129 | 161) => (0, port(4)),
        (ICMP | ICMPV6, _) => (port(4), 0),
        _ => (0, 0),
    };
    let is_error =
        !is_later && matches!((protocol, kind), (ICMP, 3 | 4 | 11 | 12) | (ICMPV6, 1..=4));
    let mut meanings: Vec<(u8, u16)> = protocols.iter().map(|other| (*other, 0)).collect();
    meanings.push((protocol, destination));
    // Headers that a filter may mistake for a transport protocol without ports.
    let unusual = protocols[..protocols.len() - 1].iter();
    let unusual = unusual.filter(|protocol| matches!(protocol, 51 | 135 | 139 | 140));
    let of = |&protocol: &u8| Tuple { protocol, from: (from, 0), to: (to, 0) };
    Parsed {
        others: unusual.map(of).collect(),
        tuple: Tuple { protocol, from: (from, source), to: (to, destination) },
        meanings,
        is_later,
        is_opening: !is_later
            && match protocol {
                TCP => flags & 0x12 == 2,
                SCTP => bytes.get(12) == Some(&1),
                ICMP => kind == 8,
                ICMPV6 => kind == 128,
                _ => false,
            },
        quoted: bytes
            .get(8..)
            .filter(|_| is_error)
            .and_then(packet)
            .map_or_else(Vec::new, |quoted| quoted.tuples().collect()),
    }
}
