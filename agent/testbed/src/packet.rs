//! IP packets of one's own making, with checksums that are right.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::frame::ethernet;
use crate::icmp::checksum;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const HOPS: u8 = 64;

/// An IP packet in an Ethernet frame, whose type follows from the packet's version.
#[must_use]
pub fn frame(destination: [u8; 6], source: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    ethernet(destination, source, if v4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 }, packet)
}

/// An IPv4 packet. `part`: flags and offset of a fragment, as in the header; `options`: a multiple
/// of 4 bytes, 40 at the most.
#[must_use]
pub fn ipv4(
    (from, to): (Ipv4Addr, Ipv4Addr),
    protocol: u8,
    (ident, part): (u16, u16),
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let length = 20 + options.len();
    let mut header = vec![0x40 | (length / 4) as u8, 0];
    header.extend(((length + payload.len()) as u16).to_be_bytes());
    header.extend(ident.to_be_bytes());
    header.extend(part.to_be_bytes());
    header.extend([HOPS, protocol, 0, 0]);
    header.extend(from.octets());
    header.extend(to.octets());
    header.extend(options);
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    [&header, payload].concat()
}

/// An IPv6 packet, whose payload begins with what `next` says.
#[must_use]
pub fn ipv6((from, to): (Ipv6Addr, Ipv6Addr), next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, HOPS]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(payload);
    packet
}

/// A whole packet without options. Addresses of two families become IPv6, the other one mapped.
#[must_use]
pub fn packet(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4((from, to), protocol, (0, 0), &[], payload),
        _ => ipv6((mapped(from), mapped(to)), protocol, payload),
    }
}

/// A TCP, UDP or ICMP message with its checksum filled in; any other as it is.
#[must_use]
pub fn checksummed(from: IpAddr, to: IpAddr, protocol: u8, mut message: Vec<u8>) -> Vec<u8> {
    let at = match protocol {
        ICMP | ICMPV6 => 2,
        TCP => 16,
        UDP => 6,
        _ => return message,
    };
    if message.len() < at + 2 {
        return message;
    }
    message[at..at + 2].fill(0);
    let length = (message.len() as u32).to_be_bytes();
    let pseudo = match (from, to) {
        _ if protocol == ICMP => Vec::new(),
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            [&from.octets()[..], &to.octets(), &[0, protocol], &length[2..]].concat()
        }
        _ => {
            let ends = [mapped(from).octets(), mapped(to).octets()].concat();
            [&ends[..], &length, &[0, 0, 0, protocol]].concat()
        }
    };
    let sum = checksum(&[&pseudo[..], &message].concat());
    // RFC 768: an all-zero checksum would mean that there is none.
    let sum = if sum == 0 && protocol == UDP { u16::MAX } else { sum };
    message[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    message
}

/// A UDP message (header and payload).
#[must_use]
pub fn udp_message(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    let mut message = [from.port(), to.port(), length, 0].map(u16::to_be_bytes).concat();
    message.extend(payload);
    checksummed(from.ip(), to.ip(), UDP, message)
}

/// A UDP datagram.
#[must_use]
pub fn udp_packet(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    packet(from.ip(), to.ip(), UDP, &udp_message(from, to, payload))
}

/// A TCP segment (header and payload) with these flags, sequence and acknowledgement numbers.
#[must_use]
pub fn tcp_message(
    from: SocketAddr,
    to: SocketAddr,
    flags: u8,
    (sequence, acknowledged): (u32, u32),
    payload: &[u8],
) -> Vec<u8> {
    let mut message = [from.port(), to.port()].map(u16::to_be_bytes).concat();
    message.extend(sequence.to_be_bytes());
    message.extend(acknowledged.to_be_bytes());
    message.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    message.extend(payload);
    checksummed(from.ip(), to.ip(), TCP, message)
}

/// An ICMP or ICMPv6 message: type, code, the four bytes behind the checksum, and the rest.
#[must_use]
pub fn icmp_packet(
    (from, to): (IpAddr, IpAddr),
    (kind, code): (u8, u8),
    word: [u8; 4],
    rest: &[u8],
) -> Vec<u8> {
    let protocol = if from.is_ipv4() { ICMP } else { ICMPV6 };
    let message = [&[kind, code, 0, 0], &word, rest].concat();
    packet(from, to, protocol, &checksummed(from, to, protocol, message))
}

/// "Port unreachable", quoting a packet whole.
#[must_use]
pub fn unreachable_packet(from: IpAddr, to: IpAddr, quoted: &[u8]) -> Vec<u8> {
    let kind = if from.is_ipv4() { (3, 3) } else { (1, 4) };
    icmp_packet((from, to), kind, [0; 4], quoted)
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}
