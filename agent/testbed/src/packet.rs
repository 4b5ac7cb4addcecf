//! Raw IP packets with correct checksums.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Result, bail};
use bytes::BufMut;

use crate::frame::ethernet;
use crate::icmp::checksum;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const HOPS: u8 = 64;

/// An IP packet in an Ethernet frame, with the Ethernet type of the packet's version.
#[must_use]
pub fn frame(destination: [u8; 6], source: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    ethernet(destination, source, if v4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 }, packet)
}

/// An IPv4 packet. `part`: flags and offset of a fragment, as in the header; `options`: a multiple of 4 bytes, at most
/// 40.
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
    header.put_u16((length + payload.len()) as u16);
    header.put_u16(ident);
    header.put_u16(part);
    header.put_slice(&[HOPS, protocol, 0, 0]);
    header.put_u32(from.to_bits());
    header.put_u32(to.to_bits());
    header.put_slice(options);
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    [&header, payload].concat()
}

/// An IPv6 packet; `next` is the type of the first header in `payload`.
#[must_use]
pub fn ipv6((from, to): (Ipv6Addr, Ipv6Addr), next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.put_u16(payload.len() as u16);
    packet.put_slice(&[next, HOPS]);
    packet.put_u128(from.to_bits());
    packet.put_u128(to.to_bits());
    packet.put_slice(payload);
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

/// Fills in the checksum of a TCP, UDP or ICMP message; returns others unchanged.
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
    let length = message.len();
    let mut covered = Vec::with_capacity(40 + length);
    match (from, to) {
        _ if protocol == ICMP => {}
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            covered.put_u32(from.to_bits());
            covered.put_u32(to.to_bits());
            covered.put_u16(protocol.into());
            covered.put_u16(length as u16);
        }
        _ => {
            covered.put_u128(mapped(from).to_bits());
            covered.put_u128(mapped(to).to_bits());
            covered.put_u32(length as u32);
            covered.put_u32(protocol.into());
        }
    }
    covered.put_slice(&message);
    let sum = checksum(&covered);
    // RFC 768: an all-zero checksum would mean no checksum.
    let sum = if sum == 0 && protocol == UDP { u16::MAX } else { sum };
    message[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    message
}

/// A UDP message (header and payload).
#[must_use]
pub fn udp_message(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(8 + payload.len());
    message.put_u16(from.port());
    message.put_u16(to.port());
    message.put_u16((8 + payload.len()) as u16);
    message.put_u16(0);
    message.put_slice(payload);
    checksummed(from.ip(), to.ip(), UDP, message)
}

/// A UDP datagram.
#[must_use]
pub fn udp_packet(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    packet(from.ip(), to.ip(), UDP, &udp_message(from, to, payload))
}

/// A UDP datagram with fragmentation forbidden, in an Ethernet frame.
///
/// # Errors
/// When the addresses are of different families.
pub fn udp_frame(
    destination_mac: [u8; 6],
    source_mac: [u8; 6],
    from: SocketAddr,
    to: SocketAddr,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let message = udp_message(from, to, payload);
    let packet = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4((from, to), UDP, (0, 0x4000), &[], &message),
        (IpAddr::V6(from), IpAddr::V6(to)) => ipv6((from, to), UDP, &message),
        _ => bail!("{from} and {to} are of different families"),
    };
    Ok(frame(destination_mac, source_mac, &packet))
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
    let mut message = Vec::with_capacity(20 + payload.len());
    message.put_u16(from.port());
    message.put_u16(to.port());
    message.put_u32(sequence);
    message.put_u32(acknowledged);
    message.put_slice(&[0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    message.put_slice(payload);
    checksummed(from.ip(), to.ip(), TCP, message)
}

/// An ICMP or ICMPv6 message: type, code, the four bytes after the checksum, and the rest.
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

/// "Port unreachable" with a whole packet quoted.
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
