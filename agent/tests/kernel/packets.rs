//! Frames, byte by byte.

/// A family and its addresses of the story: the pod, a client it admits, a server it may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

pub(crate) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const SCTP: u8 = 132;
pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// Who sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Pod,
    Client,
    Server,
    Stranger,
    Friend,
}

impl Who {
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Pod => 0,
            Self::Client => 1,
            Self::Server => 2,
            Self::Friend => 3,
            Self::Stranger => 9,
        }
    }

    pub(crate) const fn v4(self) -> [u8; 4] {
        [10, 0, self.number(), 2]
    }

    pub(crate) const fn v6(self) -> [u8; 16] {
        [0xfd, 0, self.number(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    }
}

pub(crate) fn ether(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

pub(crate) fn vlan(tags: &[u16], frame: &[u8]) -> Vec<u8> {
    let mut tagged = frame[..12].to_vec();
    for tag in tags {
        tagged.extend(tag.to_be_bytes());
        tagged.extend([0, 7]);
    }
    tagged.extend(&frame[12..]);
    tagged
}

/// An IPv4 packet with options and the fragment field.
pub(crate) fn ipv4(
    from: Who,
    to: Who,
    protocol: u8,
    options: &[u8],
    part: u16,
    data: &[u8],
) -> Vec<u8> {
    let header = 20 + options.len();
    let mut packet = vec![0x40 | (header / 4) as u8, 0];
    packet.extend(((header + data.len()) as u16).to_be_bytes());
    packet.extend([0x12, 0x34]);
    packet.extend(part.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(from.v4());
    packet.extend(to.v4());
    packet.extend(options);
    packet.extend(data);
    packet
}

pub(crate) fn ipv6(from: Who, to: Who, next: u8, hop_limit: u8, data: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((data.len() as u16).to_be_bytes());
    packet.extend([next, hop_limit]);
    packet.extend(from.v6());
    packet.extend(to.v6());
    packet.extend(data);
    packet
}

/// The plain IP packet of a family, without Ethernet header.
pub(crate) fn ip(family: Family, from: Who, to: Who, protocol: u8, data: &[u8]) -> Vec<u8> {
    match family {
        Family::V4 => ipv4(from, to, protocol, &[], 0, data),
        Family::V6 => ipv6(from, to, protocol, 64, data),
    }
}

/// Puts the Ethernet header of its version before an IP packet.
pub(crate) fn frame(packet: &[u8]) -> Vec<u8> {
    ether(if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd }, packet)
}

pub(crate) fn tcp(source: u16, destination: u16, flags: u8) -> Vec<u8> {
    let mut header = ports(source, destination);
    header.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    header
}

pub(crate) fn udp(source: u16, destination: u16, data: &[u8]) -> Vec<u8> {
    let mut header = ports(source, destination);
    header.extend(((8 + data.len()) as u16).to_be_bytes());
    header.extend([0, 0]);
    header.extend(data);
    header
}

/// An SCTP packet of one chunk.
pub(crate) fn sctp(source: u16, destination: u16, chunk: u8) -> Vec<u8> {
    let mut header = ports(source, destination);
    header.extend([0, 0, 0, 1, 0, 0, 0, 0, chunk, 0, 0, 4]);
    header
}

fn ports(source: u16, destination: u16) -> Vec<u8> {
    [source.to_be_bytes(), destination.to_be_bytes()].concat()
}

pub(crate) fn icmp(kind: u8, code: u8, rest: [u8; 4], data: &[u8]) -> Vec<u8> {
    let mut header = vec![kind, code, 0, 0];
    header.extend(rest);
    header.extend(data);
    header
}

impl Family {
    pub(crate) const fn icmp(self) -> u8 {
        if matches!(self, Self::V4) { 1 } else { 58 }
    }

    pub(crate) const fn echo_request(self) -> u8 {
        if matches!(self, Self::V4) { 8 } else { 128 }
    }

    pub(crate) const fn echo_reply(self) -> u8 {
        if matches!(self, Self::V4) { 0 } else { 129 }
    }

    pub(crate) const fn unreachable(self) -> u8 {
        if matches!(self, Self::V4) { 3 } else { 1 }
    }

    /// A fragment of a UDP datagram; `offset` in units of 8 bytes.
    pub(crate) fn fragment(
        self,
        from: Who,
        to: Who,
        offset: u16,
        more: bool,
        data: &[u8],
    ) -> Vec<u8> {
        match self {
            Self::V4 => {
                let part = offset | if more { 0x2000 } else { 0 };
                frame(&ipv4(from, to, UDP, &[], part, data))
            }
            Self::V6 => {
                let mut payload = vec![UDP, 0];
                payload.extend((offset << 3 | u16::from(more)).to_be_bytes());
                payload.extend([0, 0, 0x12, 0x34]);
                payload.extend(data);
                frame(&ipv6(from, to, 44, 64, &payload))
            }
        }
    }
}
