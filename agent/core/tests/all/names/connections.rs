//! DNS over TCP: connections of pod a/p to a resolver, and their messages.

use std::sync::atomic::Ordering;

use netpold_core::model::Direction;
use netpold_ebpf::layout::{STREAM_BUCKETS, STREAM_WORDS};
use netpold_ebpf::packet::protocol::{TCP, TCP_SYN};
use netpold_testkit::frames::tcp as tcp_header;
use netpold_testkit::names::{Record, answer, query, wire};
use netpold_testkit::objects::ip;
use netpold_testkit::streams::{DirectedPacket, DnsConnection, framed};

use super::net::{API, DNS, Net, found, pointer};

pub(crate) const PORT: u16 = 41_000;
/// Address of a forged answer.
pub(crate) const EVIL: &str = "192.0.2.66";

impl Net {
    /// Whether a packet passes at pod a/p. Panics if policy drops the packet.
    pub(crate) fn passes(&self, (direction, packet): &DirectedPacket) -> bool {
        self.at(1, (*direction, packet.clone()))
    }

    /// Like [`Net::passes`], at the pod of any interface.
    pub(crate) fn at(&self, ifindex: u32, (direction, packet): DirectedPacket) -> bool {
        let (reason, passes) = self.judge(ifindex, direction, &packet);
        assert!(!reason.is_drop(), "{reason:?} of {packet:02x?}");
        passes
    }

    pub(crate) fn open(&self, connection: &DnsConnection) {
        for packet in connection.handshake() {
            assert!(self.passes(&packet));
        }
    }

    /// Opens a connection and sends both [`questions`].
    pub(crate) fn asked(&self) -> DnsConnection {
        let connection = connection();
        self.open(&connection);
        assert!(self.passes(&connection.asks(0, &questions())));
        connection
    }

    /// Whether pod a/p may connect to an address. Unlike [`Net::reaches`], keeps the recorded flows.
    pub(crate) fn connects(&self, remote: &str) -> bool {
        let syn = tcp_header(40_000, 443, TCP_SYN);
        !self.packet(1, Direction::Egress, remote, TCP, &syn).is_drop()
    }

    /// Number of tracked connections: entries that have not expired, with a source port that is not doubted.
    pub(crate) fn streams(&self) -> usize {
        let words = (0..STREAM_BUCKETS)
            .flat_map(|at| self.flows.stream_bucket(at).unwrap().chunks(STREAM_WORDS));
        let is_read = |way: &&[std::sync::atomic::AtomicU64]| {
            let word = |index: usize| way[index].load(Ordering::Acquire);
            let (asker, until) = (word(2), word(STREAM_WORDS - 1));
            until >= self.flows.now.load(Ordering::Acquire).into()
                && !self.is_doubted((asker >> 32) as u32, asker as u16)
        };
        words.filter(is_read).count()
    }

    /// Number of entries in use, expired ones included.
    pub(crate) fn entries(&self) -> usize {
        let words = (0..STREAM_BUCKETS).flat_map(|at| self.flows.stream_bucket(at).unwrap());
        words
            .skip(STREAM_WORDS - 1)
            .step_by(STREAM_WORDS)
            .filter(|it| it.load(Ordering::Acquire) != 0)
            .count()
    }

    /// Replaces the expiry time of the only entry; returns the former time.
    pub(crate) fn set_until(&self, until: u64) -> u64 {
        let words = (0..STREAM_BUCKETS).flat_map(|at| self.flows.stream_bucket(at).unwrap());
        let mut times = words.skip(STREAM_WORDS - 1).step_by(STREAM_WORDS);
        times.find(|it| it.load(Ordering::Acquire) != 0).unwrap().swap(until, Ordering::AcqRel)
    }
}

pub(crate) fn connection() -> DnsConnection {
    DnsConnection::new(ip("10.0.0.1"), ip(DNS), PORT, (0x1234_5678, 0xffff_ff00))
}

pub(crate) fn question() -> Vec<u8> {
    query(7, &wire(API))
}

/// Queries for both names of the tests, each preceded by its length field.
pub(crate) fn questions() -> Vec<u8> {
    [framed(&question()), framed(&query(9, &wire("mine.example")))].concat()
}

/// The resolver's genuine answer, preceded by its length field.
pub(crate) fn good() -> Vec<u8> {
    framed(&answer(7, &wire(API), &found(API, 300)))
}

/// A forged answer to the same question, with the attacker's address.
pub(crate) fn evil() -> Vec<u8> {
    framed(&answer(7, &wire(API), &[Record::address(pointer(), ip(EVIL), 300)]))
}

/// An answer about the other name, with these bytes in a TXT record.
pub(crate) fn around(bytes: &[u8]) -> Vec<u8> {
    let text = Record { owner: pointer(), kind: 16, ttl: 300, data: bytes.to_vec() };
    framed(&answer(9, &wire("mine.example"), &[text]))
}
