//! Frames, byte by byte.

use std::net::IpAddr;

use bytes::BufMut;

/// An address family, with the addresses of the test pod, a client and a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// IPv4 and IPv6.
pub const FAMILIES: [IpVersion; 2] = [IpVersion::V4, IpVersion::V6];

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// IP protocol number of SCTP.
pub const SCTP: u8 = 132;
/// TCP flag.
pub const FIN: u8 = 0x01;
/// TCP flag.
pub const SYN: u8 = 0x02;
/// TCP flag.
pub const RST: u8 = 0x04;
/// TCP flag.
pub const ACK: u8 = 0x10;

/// A sender or receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The judged pod.
    Pod,
    /// A client that the pod allows on TCP 80 and UDP 53.
    Client,
    /// A server that the pod may reach.
    Server,
    /// A peer of no rule.
    Stranger,
    /// A peer to which the pod allows all traffic.
    Friend,
}

impl Who {
    /// Third byte of the IPv4 address, third of the IPv6 address.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Pod => 0,
            Self::Client => 1,
            Self::Server => 2,
            Self::Friend => 3,
            Self::Stranger => 9,
        }
    }

    /// IPv4 address.
    #[must_use]
    pub const fn v4(self) -> [u8; 4] {
        [10, 0, self.number(), 2]
    }

    /// IPv6 address.
    #[must_use]
    pub const fn v6(self) -> [u8; 16] {
        [0xfd, 0, self.number(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    }
}

/// An Ethernet frame.
#[must_use]
pub fn ether(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    frame.put_u16(ethertype);
    frame.put_slice(payload);
    frame
}

/// A frame with VLAN tags of these types before the EtherType.
#[must_use]
pub fn vlan(tags: &[u16], frame: &[u8]) -> Vec<u8> {
    let mut tagged = frame[..12].to_vec();
    for tag in tags {
        tagged.put_u16(*tag);
        tagged.put_u16(7);
    }
    tagged.put_slice(&frame[12..]);
    tagged
}

/// An IPv4 packet with options and the fragment field.
#[must_use]
pub fn ipv4(from: Who, to: Who, protocol: u8, options: &[u8], part: u16, data: &[u8]) -> Vec<u8> {
    ipv4_between([from.v4(), to.v4()], protocol, options, part, data)
}

/// [`ipv4`] between two addresses.
#[must_use]
pub fn ipv4_between(
    addresses: [[u8; 4]; 2],
    protocol: u8,
    options: &[u8],
    part: u16,
    data: &[u8],
) -> Vec<u8> {
    let header = 20 + options.len();
    let mut packet = vec![0x40 | (header / 4) as u8, 0];
    packet.put_u16((header + data.len()) as u16);
    packet.put_u16(0x1234);
    packet.put_u16(part);
    packet.put_slice(&[64, protocol, 0, 0]);
    packet.put_slice(addresses.as_flattened());
    packet.put_slice(options);
    packet.put_slice(data);
    packet
}

/// An IPv6 packet.
#[must_use]
pub fn ipv6(from: Who, to: Who, next: u8, hop_limit: u8, data: &[u8]) -> Vec<u8> {
    ipv6_between([from.v6(), to.v6()], next, hop_limit, data)
}

/// [`ipv6`] between two addresses.
#[must_use]
pub fn ipv6_between(addresses: [[u8; 16]; 2], next: u8, hop_limit: u8, data: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.put_u16(data.len() as u16);
    packet.put_slice(&[next, hop_limit]);
    packet.put_slice(addresses.as_flattened());
    packet.put_slice(data);
    packet
}

/// A plain IP packet of a family, without Ethernet header.
#[must_use]
pub fn ip(family: IpVersion, from: Who, to: Who, protocol: u8, data: &[u8]) -> Vec<u8> {
    match family {
        IpVersion::V4 => ipv4(from, to, protocol, &[], 0, data),
        IpVersion::V6 => ipv6(from, to, protocol, 64, data),
    }
}

/// A plain IP packet between addresses of one family, without Ethernet header.
///
/// # Panics
/// The addresses are of two families.
#[must_use]
pub fn ip_between(from: IpAddr, to: IpAddr, protocol: u8, data: &[u8]) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            ipv4_between([from.octets(), to.octets()], protocol, &[], 0, data)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            ipv6_between([from.octets(), to.octets()], protocol, 64, data)
        }
        _ => panic!("{from} and {to} are of two families"),
    }
}

/// Prepends the Ethernet header for an IP packet's version.
#[must_use]
pub fn frame(packet: &[u8]) -> Vec<u8> {
    ether(if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd }, packet)
}

/// A frame with a plain IPv4 packet.
#[must_use]
pub fn frame4(protocol: u8, from: [u8; 4], to: [u8; 4], data: &[u8]) -> Vec<u8> {
    frame(&ipv4_between([from, to], protocol, &[], 0, data))
}

/// A frame with a TCP header between two addresses and ports.
#[must_use]
pub fn tcp4(from: ([u8; 4], u16), to: ([u8; 4], u16), flags: u8) -> Vec<u8> {
    frame4(TCP, from.0, to.0, &tcp(from.1, to.1, flags))
}

/// A frame with an empty UDP datagram between two addresses and ports.
#[must_use]
pub fn udp4(from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
    frame4(UDP, from.0, to.0, &udp(from.1, to.1, &[]))
}

/// A TCP header of 20 bytes, without data.
#[must_use]
pub fn tcp(source: u16, destination: u16, flags: u8) -> Vec<u8> {
    let mut header = ports(source, destination);
    header.put_slice(&[0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    header
}

/// A TCP segment with a sequence number and an acknowledged one.
#[must_use]
pub fn segment(ports: (u16, u16), flags: u8, numbers: (u32, u32), data: &[u8]) -> Vec<u8> {
    let mut segment = tcp(ports.0, ports.1, flags);
    segment[4..8].copy_from_slice(&numbers.0.to_be_bytes());
    segment[8..12].copy_from_slice(&numbers.1.to_be_bytes());
    segment.put_slice(data);
    segment
}

/// A UDP datagram.
#[must_use]
pub fn udp(source: u16, destination: u16, data: &[u8]) -> Vec<u8> {
    let mut header = ports(source, destination);
    header.put_u16((8 + data.len()) as u16);
    header.put_u16(0);
    header.put_slice(data);
    header
}

/// An SCTP packet of one chunk.
#[must_use]
pub fn sctp(source: u16, destination: u16, chunk: u8) -> Vec<u8> {
    let mut header = ports(source, destination);
    header.put_slice(&[0, 0, 0, 1, 0, 0, 0, 0, chunk, 0, 0, 4]);
    header
}

fn ports(source: u16, destination: u16) -> Vec<u8> {
    [source.to_be_bytes(), destination.to_be_bytes()].concat()
}

/// An ICMP message, without a checksum.
#[must_use]
pub fn icmp(kind: u8, code: u8, rest: [u8; 4], data: &[u8]) -> Vec<u8> {
    let mut header = vec![kind, code, 0, 0];
    header.put_slice(&rest);
    header.put_slice(data);
    header
}

impl IpVersion {
    /// IP protocol number of the family's ICMP.
    #[must_use]
    pub const fn icmp(self) -> u8 {
        if matches!(self, Self::V4) { 1 } else { 58 }
    }

    /// Type of an echo request.
    #[must_use]
    pub const fn echo_request(self) -> u8 {
        if matches!(self, Self::V4) { 8 } else { 128 }
    }

    /// Type of an echo reply.
    #[must_use]
    pub const fn echo_reply(self) -> u8 {
        if matches!(self, Self::V4) { 0 } else { 129 }
    }

    /// Type of "destination unreachable".
    #[must_use]
    pub const fn unreachable(self) -> u8 {
        if matches!(self, Self::V4) { 3 } else { 1 }
    }

    /// A fragment of a UDP datagram; `offset` in units of 8 bytes.
    #[must_use]
    pub fn fragment(self, from: Who, to: Who, offset: u16, more: bool, data: &[u8]) -> Vec<u8> {
        match self {
            Self::V4 => {
                let part = offset | if more { 0x2000 } else { 0 };
                frame(&ipv4(from, to, UDP, &[], part, data))
            }
            Self::V6 => {
                let mut payload = vec![UDP, 0];
                payload.put_u16(offset << 3 | u16::from(more));
                payload.put_u32(0x1234);
                payload.put_slice(data);
                frame(&ipv6(from, to, 44, 64, &payload))
            }
        }
    }
}
