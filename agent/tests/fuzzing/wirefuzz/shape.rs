//! Description of a packet, and the bytes of its fragments.

use std::net::{IpAddr, SocketAddr};

use netpold_testbed::packet::{checksummed, ipv4, ipv6, tcp_message, udp_message};

use crate::wirefuzz::read::{ICMP, ICMPV6, SCTP, TCP, Tuple, UDP};
use netpold_testkit::random::Random;

/// Protocol number of the Fragment header.
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

/// Packet before fragmentation.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) message: Vec<u8>,
    /// IPv4 options; a multiple of 4 bytes.
    pub(crate) options: Vec<u8>,
    /// IPv6 extension headers: type, and the bytes after Next Header.
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
    /// Whether Destination Options follow, after the Fragment header if there is one.
    pub(crate) inside: bool,
    pub(crate) ident: u16,
}

/// Fragment of a datagram: offset, bytes, and whether more fragments follow.
pub(crate) type Part = (usize, Vec<u8>, bool);

impl Shape {
    /// Returns the bytes to cut into fragments, after the headers that each fragment repeats.
    pub(crate) fn body(&self) -> Vec<u8> {
        if !self.inside {
            return self.message.clone();
        }
        [&[self.protocol, 0, 1, 4, 0, 0, 0, 0], &self.message[..]].concat()
    }

    /// Returns the whole packet.
    pub(crate) fn whole(&self) -> Vec<u8> {
        self.headed(&self.body(), None)
    }

    /// Returns a fragment as a packet of its own.
    pub(crate) fn part(&self, (offset, bytes, more): &Part) -> Vec<u8> {
        self.headed(bytes, Some((*offset as u16, *more)))
    }

    fn headed(&self, body: &[u8], part: Option<(u16, bool)>) -> Vec<u8> {
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let fields = part.map_or(0, |(at, more)| (at / 8) | if more { 0x2000 } else { 0 });
                ipv4((from, to), self.protocol, (self.ident, fields), &self.options, body)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut next = if self.inside { DESTINATION_OPTIONS } else { self.protocol };
                let mut rest = body.to_vec();
                if let Some((at, more)) = part {
                    let fields = ((at & !7) | u16::from(more)).to_be_bytes();
                    let ident = u32::from(self.ident).to_be_bytes();
                    rest = [&[next, 0], &fields[..], &ident, &rest].concat();
                    next = FRAGMENT;
                }
                for (kind, header) in self.extensions.iter().rev() {
                    rest = [&[next], &header[..], &rest].concat();
                    next = *kind;
                }
                ipv6((from, to), next, &rest)
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn cut(&self, size: usize) -> Vec<Part> {
        let body = self.body();
        let size = (size / 8 * 8).max(8);
        let count = body.len().div_ceil(size);
        let part =
            |(number, bytes): (usize, &[u8])| (number * size, bytes.to_vec(), number + 1 < count);
        body.chunks(size).enumerate().map(part).collect()
    }
}

/// Returns the transport message of a flow around a payload; for other protocols the payload itself.
pub(crate) fn message(random: &mut Random, flow: Tuple, payload: &[u8]) -> Vec<u8> {
    let Tuple { protocol, from, to } = flow;
    let ends = (SocketAddr::from(from), SocketAddr::from(to));
    match protocol {
        UDP => udp_message(ends.0, ends.1, payload),
        TCP => {
            const FLAGS: [u8; 10] = [0x02, 0x12, 0x10, 0x18, 0x11, 0x04, 0x14, 0x00, 0xff, 0x03];
            let numbers = (random.below(1 << 32) as u32, random.below(1 << 32) as u32);
            tcp_message(ends.0, ends.1, FLAGS[random.below(FLAGS.len())], numbers, payload)
        }
        SCTP => {
            const CHUNKS: [u8; 6] = [1, 2, 0, 3, 6, 10];
            let mut message = [from.1, to.1].map(u16::to_be_bytes).concat();
            message.extend((random.below(1 << 32) as u32).to_be_bytes());
            message.extend([0; 4]);
            message.extend([CHUNKS[random.below(CHUNKS.len())], 0]);
            message.extend((4 + payload.len() as u16).to_be_bytes());
            message.extend(payload);
            message
        }
        ICMP | ICMPV6 => {
            let reply = to.1 != 0;
            let kind = match (protocol, reply) {
                (ICMP, false) => [8, 8, 8, 13, 42][random.below(5)],
                (ICMP, true) => 0,
                (_, false) => [128, 128, 128, 160, 139][random.below(5)],
                (_, true) => 129,
            };
            let identifier = if reply { to.1 } else { from.1 }.to_be_bytes();
            let header = [&[kind, 0, 0, 0], &identifier[..], &[0, 1]].concat();
            checksummed(from.0, to.0, protocol, [&header, payload].concat())
        }
        _ => payload.to_vec(),
    }
}

/// Returns IPv4 options that are well-formed, or nearly.
pub(crate) fn options(random: &mut Random, address: IpAddr) -> Vec<u8> {
    let IpAddr::V4(address) = address else { return Vec::new() };
    let octets = address.octets();
    match random.below(6) {
        0 => vec![1; 4],
        1 => vec![148, 4, 0, 0],
        2 => [&[1, 7, 7, 4], &octets[..]].concat(),
        3 => [&[1, 131, 7, 4], &octets[..]].concat(),
        4 => [&[1, 137, 7, 4], &octets[..]].concat(),
        _ => (0..4 * (1 + random.below(9))).map(|_| random.below(256) as u8).collect(),
    }
}

/// Returns an IPv6 extension header other than a Fragment header.
pub(crate) fn extension(random: &mut Random) -> (u8, Vec<u8>) {
    let filler = |length: usize| {
        let mut header = vec![(length / 8 - 1) as u8, 1, (length - 4) as u8];
        header.resize(length - 1, 0);
        header
    };
    match random.below(5) {
        0 => (0, filler(8)),
        1 => (60, filler(8 * (1 + random.below(4)))),
        2 => (60, filler(8)),
        3 => (135, filler(8)),
        // Authentication header of three words.
        _ => (51, [&[1][..], &[0; 10]].concat()),
    }
}

/// Returns a Routing header with an address, and one segment left or none.
pub(crate) fn routing(random: &mut Random, by: IpAddr) -> (u8, Vec<u8>) {
    let IpAddr::V6(by) = by else { return (60, vec![0, 1, 4, 0, 0, 0, 0]) };
    let kind = [0, 2, 3, 4][random.below(4)];
    (43, [&[2, kind, random.below(2) as u8, 0, 0, 0, 0][..], &by.octets()].concat())
}
