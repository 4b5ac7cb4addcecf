//! Connections of a pod to a resolver by TCP, packet by packet.

use std::net::IpAddr;

use netpold_core::model::Direction;
use netpold_ebpf::packet::protocol::{TCP, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};

use crate::frames::{ip_between, segment};
use crate::random::Random;

/// An IP packet, and its direction at the pod.
pub type DirectedPacket = (Direction, Vec<u8>);

/// A connection, from the pod's port to the resolver's port 53.
#[derive(Clone, Copy, Debug)]
pub struct DnsConnection {
    /// The pod's address.
    pub own: IpAddr,
    /// The resolver's address.
    pub resolver: IpAddr,
    /// The pod's port.
    pub port: u16,
    /// The resolver's port.
    pub remote_port: u16,
    /// Sequence number of the pod's SYN.
    pub client: u32,
    /// Sequence number of the resolver's SYN-ACK.
    pub server: u32,
}

impl DnsConnection {
    /// A connection to port 53.
    #[must_use]
    pub const fn new(own: IpAddr, resolver: IpAddr, port: u16, numbers: (u32, u32)) -> Self {
        let (client, server) = numbers;
        Self { own, resolver, port, remote_port: 53, client, server }
    }

    /// A packet of the pod: `at` is its position, 0 for the SYN.
    #[must_use]
    pub fn sent(&self, flags: u8, at: u32, data: &[u8]) -> DirectedPacket {
        let ack = if flags & TCP_ACK == 0 { 0 } else { self.server.wrapping_add(1) };
        let numbers = (self.client.wrapping_add(at), ack);
        let data = segment((self.port, self.remote_port), flags, numbers, data);
        (Direction::Egress, ip_between(self.own, self.resolver, TCP, &data))
    }

    /// A packet of the resolver, likewise.
    #[must_use]
    pub fn received(&self, flags: u8, at: u32, data: &[u8]) -> DirectedPacket {
        let numbers = (self.server.wrapping_add(at), self.client.wrapping_add(1));
        let data = segment((self.remote_port, self.port), flags, numbers, data);
        (Direction::Ingress, ip_between(self.resolver, self.own, TCP, &data))
    }

    /// The three packets that open the connection.
    #[must_use]
    pub fn handshake(&self) -> [DirectedPacket; 3] {
        [self.syn(), self.syn_ack(), self.sent(TCP_ACK, 1, &[])]
    }

    /// The pod's SYN.
    #[must_use]
    pub fn syn(&self) -> DirectedPacket {
        self.sent(TCP_SYN, 0, &[])
    }

    /// The resolver's SYN-ACK.
    #[must_use]
    pub fn syn_ack(&self) -> DirectedPacket {
        self.received(TCP_SYN | TCP_ACK, 0, &[])
    }

    /// Bytes of the pod, after `before` earlier ones.
    #[must_use]
    pub fn asks(&self, before: usize, data: &[u8]) -> DirectedPacket {
        self.sent(TCP_ACK, 1 + before as u32, data)
    }

    /// Bytes of the resolver, after `before` earlier ones.
    #[must_use]
    pub fn answers(&self, before: usize, data: &[u8]) -> DirectedPacket {
        self.received(TCP_ACK, 1 + before as u32, data)
    }

    /// The resolver's FIN, after `before` bytes.
    #[must_use]
    pub fn fin(&self, before: usize) -> DirectedPacket {
        self.received(TCP_ACK | TCP_FIN, 1 + before as u32, &[])
    }

    /// The pod's reset.
    #[must_use]
    pub fn reset(&self) -> DirectedPacket {
        self.sent(TCP_RST, 1, &[])
    }
}

/// A message preceded by its length.
#[must_use]
pub fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes()[..], message].concat()
}

/// Sends bytes of a resolver in order, in parts of random lengths up to `longest`; after each part, sends some earlier
/// bytes again.
pub fn transmit_in_order(
    connection: &DnsConnection,
    random: &mut Random,
    (bytes, longest): (&[u8], usize),
    mut send: impl FnMut(&DirectedPacket),
) {
    let mut at = 0;
    while at < bytes.len() {
        let end = (at + 1 + random.below(longest)).min(bytes.len());
        send(&connection.answers(at, &bytes[at..end]));
        let again = random.below(end);
        send(&connection.answers(again, &bytes[again..end.min(again + longest)]));
        at = end;
    }
}

/// Sends bytes of a resolver in parts of random lengths, some lost, some sent twice, some out of order. `passes` judges
/// each packet on its way; the parts that it drops are sent again. Returns whether all bytes arrived.
pub fn transmit(
    connection: &DnsConnection,
    random: &mut Random,
    bytes: &[u8],
    mut passes: impl FnMut(&DirectedPacket) -> bool,
) -> bool {
    let (mut arrived, mut early) = (0, 0);
    for _ in 0..20 * bytes.len() + 100 {
        if arrived == bytes.len() {
            return true;
        }
        let longest = [1, 3, 40, 400, 3_000][random.below(5)];
        let length = 1 + random.below(longest);
        // Parts after a gap are rare, and never many in succession.
        let is_early = random.below(8) == 0 && early < 3;
        let begin = match random.below(6) {
            0 => random.below(arrived + 1),
            _ if is_early => (arrived + 1 + random.below(100)).min(bytes.len() - 1),
            _ => arrived,
        };
        let end = (begin + length).min(bytes.len());
        let passed = begin < end && passes(&connection.answers(begin, &bytes[begin..end]));
        if passed && begin <= arrived {
            arrived = arrived.max(end);
        }
        early = if begin > arrived { early + 1 } else { 0 };
    }
    false
}
