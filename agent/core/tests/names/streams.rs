//! Answers over TCP: connections to resolvers whose packets are cut, lost, sent again and forged in all ways that a pod
//! or the way there may choose.

use std::sync::atomic::Ordering;

use netpold_core::model::Direction;
use netpold_ebpf::layout::{NAME_BUSY, STREAM_BUCKETS, STREAM_ENDED, STREAM_WORDS};
use netpold_ebpf::names::conversation::RECORDS;
use netpold_ebpf::names::stream::{MOST_GAPS, QUIET, WINDOW};
use netpold_ebpf::packet::protocol::{TCP, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};
use netpold_testkit::flows::HZ;
use netpold_testkit::frames::{ipv4_between, ipv6_between, segment, tcp as tcp_header};
use netpold_testkit::names::{Record, answer, query, wire};
use netpold_testkit::objects::{ip, tcp};
use netpold_testkit::random::Random;
use netpold_testkit::streams::{Connection, Packet, framed, transmit};

use super::net::{API, BACKEND, DNS, DNS6, FOUND, Net, accept, domain, found, pointer};

const PORT: u16 = 41_000;
/// Address of a forged answer.
const EVIL: &str = "192.0.2.66";

impl Net {
    /// Judges a packet at pod a/p; whether it passes. Policy allows it in any case.
    fn passes(&self, (direction, packet): &Packet) -> bool {
        self.at(1, (*direction, packet.clone()))
    }

    fn at(&self, ifindex: u32, (direction, packet): Packet) -> bool {
        let (reason, passes) = self.judge(ifindex, direction, &packet);
        assert!(!reason.is_drop(), "{reason:?} of {packet:02x?}");
        passes
    }

    fn open(&self, connection: &Connection) {
        for packet in connection.handshake() {
            assert!(self.passes(&packet));
        }
    }

    /// Opens a connection and asks a question in it.
    fn asked(&self) -> Connection {
        let connection = connection();
        self.open(&connection);
        assert!(self.passes(&connection.asks(0, &framed(&question()))));
        connection
    }

    /// Whether pod a/p may connect to an address. Flows stay, those to the resolvers too.
    fn connects(&self, remote: &str) -> bool {
        let syn = tcp_header(40_000, 443, TCP_SYN);
        !self.packet(1, Direction::Egress, remote, TCP, &syn).is_drop()
    }

    /// Entries in use.
    fn streams(&self) -> usize {
        let words = (0..STREAM_BUCKETS).flat_map(|at| self.flows.stream_bucket(at).unwrap());
        words
            .skip(STREAM_WORDS - 1)
            .step_by(STREAM_WORDS)
            .filter(|it| it.load(Ordering::Acquire) != 0)
            .count()
    }

    /// Replaces the time of the only entry; returns the former one.
    fn set_until(&self, until: u64) -> u64 {
        let words = (0..STREAM_BUCKETS).flat_map(|at| self.flows.stream_bucket(at).unwrap());
        let mut times = words.skip(STREAM_WORDS - 1).step_by(STREAM_WORDS);
        times.find(|it| it.load(Ordering::Acquire) != 0).unwrap().swap(until, Ordering::AcqRel)
    }
}

fn connection() -> Connection {
    Connection::new(ip("10.0.0.1"), ip(DNS), PORT, (0x1234_5678, 0xffff_ff00))
}

fn question() -> Vec<u8> {
    query(7, &wire(API))
}

/// The true answer, behind its length.
fn good() -> Vec<u8> {
    framed(&answer(7, &wire(API), &found(API, 300)))
}

/// An answer to the same question that somebody else wants the pod to have.
fn evil() -> Vec<u8> {
    framed(&answer(7, &wire(API), &[Record::address(pointer(), ip(EVIL), 300)]))
}

/// An answer about another name, with these bytes in a record of text.
fn around(bytes: &[u8]) -> Vec<u8> {
    let text = Record { owner: pointer(), kind: 16, ttl: 300, data: bytes.to_vec() };
    framed(&answer(9, &wire("mine.example"), &[text]))
}

#[test]
fn an_answer_over_tcp_opens_its_address() {
    for (own, resolver) in [("10.0.0.1", DNS), ("fd00::1", DNS6)] {
        let net = Net::of_api();
        let connection = Connection::new(ip(own), ip(resolver), PORT, (1, u32::MAX));
        net.open(&connection);
        assert!(!net.connects(FOUND), "not resolved yet");
        assert!(net.passes(&connection.asks(0, &framed(&question()))));
        assert!(net.passes(&connection.answers(0, &good())));
        assert!(net.connects(FOUND), "{resolver}");
        assert!(!net.reaches(2, FOUND, 443), "another pod");
        net.flows.later(301 * HZ);
        assert!(!net.connects(FOUND), "its time is over");
    }
}

#[test]
fn segments_may_be_cut_anywhere() {
    let bytes = good();
    for cut in 1..bytes.len() {
        let net = Net::of_api();
        let connection = net.asked();
        assert!(net.passes(&connection.answers(0, &bytes[..cut])));
        assert!(!net.connects(FOUND), "{cut} bytes are no answer");
        // Another message is read meanwhile.
        net.send(1, DNS, 5000, &query(8, &wire("other.example")));
        assert!(net.passes(&connection.answers(cut, &bytes[cut..])));
        assert!(net.connects(FOUND), "cut at {cut}");
    }
    let net = Net::of_api();
    let connection = net.asked();
    for (at, byte) in bytes.iter().enumerate() {
        assert!(!net.connects(FOUND));
        assert!(net.passes(&connection.answers(at, &[*byte])));
    }
    assert!(net.connects(FOUND), "byte by byte");
}

#[test]
fn a_segment_has_several_answers() {
    let net = Net::of_api();
    let connection = connection();
    net.open(&connection);
    let questions = [framed(&query(8, &wire("other.example"))), framed(&question())].concat();
    assert!(net.passes(&connection.asks(0, &questions)), "as the C library asks for A and AAAA");
    let second = framed(&query(6, &wire(API)));
    assert!(net.passes(&connection.asks(questions.len(), &second)), "before the first answer");
    let at = Record::address(pointer(), ip("192.0.2.8"), 300);
    let last = framed(&answer(6, &wire(API), &[at]));
    let bytes = [around(b"text"), good(), last].concat();
    assert!(net.passes(&connection.answers(0, &bytes[..bytes.len() - 9])));
    assert!(net.connects(FOUND) && !net.connects("192.0.2.8"));
    // The last answer begins in the segment of the one before.
    assert!(net.passes(&connection.answers(bytes.len() - 9, &bytes[bytes.len() - 9..])));
    assert!(net.connects("192.0.2.8"));
    assert_eq!(net.streams(), 1, "and goes on");
    assert!(net.passes(&connection.asks(questions.len() + second.len(), &framed(&question()))));
    assert_eq!(net.streams(), 0, "up to a question behind the first answer");
}

/// Some clients send the length in a segment of its own. A question in other parts is not recorded.
#[test]
fn a_question_counts_whole() {
    let bytes = framed(&question());
    for (cut, counts) in [(2, true), (1, false), (3, false), (20, false)] {
        let net = Net::of_api();
        let connection = connection();
        net.open(&connection);
        assert!(net.passes(&connection.asks(0, &bytes[..cut])));
        assert!(net.passes(&connection.asks(cut, &bytes[cut..])));
        assert!(net.passes(&connection.answers(0, &good())));
        assert_eq!(net.connects(FOUND), counts, "cut at {cut}");
    }
    // With TCP Fast Open, the SYN has the question.
    let net = Net::of_api();
    let connection = connection();
    assert!(net.passes(&connection.sent(TCP_SYN, 0, &bytes)) && net.passes(&connection.syn_ack()));
    assert!(net.passes(&connection.answers(0, &good())) && net.connects(FOUND));
}

/// Neither protocol answers the other's questions.
#[test]
fn an_answer_comes_by_the_questions_protocol() {
    let net = Net::of_api();
    let connection = net.asked();
    net.deliver(1, DNS, PORT, &good()[2..]);
    assert!(!net.connects(FOUND), "asked by TCP, answered by UDP");
    assert!(net.passes(&connection.answers(0, &good())) && net.connects(FOUND));
    let net = Net::of_api();
    net.open(&connection);
    net.send(1, DNS, PORT, &question());
    assert!(net.passes(&connection.answers(0, &good())));
    assert!(!net.connects(FOUND), "asked by UDP, answered by TCP");
}

/// Packets before an answer, and whether the answer counts behind them.
#[test]
fn forged_and_malformed_streams_open_nothing() {
    type Attack = fn(&Net, &Connection);
    let attacks: [(&str, Attack); 17] = [
        ("a segment from before the first byte", |net, it| {
            assert!(
                net.passes(&it.answers(0, &[0])) && net.passes(&it.received(TCP_ACK, 0, &[0; 3]))
            );
        }),
        ("data without a SYN-ACK", |net, it| {
            assert!(net.passes(&it.reset()) && net.passes(&it.syn()));
            assert!(net.passes(&it.answers(0, &[])) && net.passes(&it.answers(0, &[0])));
            assert!(net.passes(&it.syn_ack()));
        }),
        ("a SYN-ACK with another number, as of another SYN cookie", |net, it| {
            let other = Connection { server: it.server.wrapping_add(1), ..*it };
            assert!(net.passes(&other.syn_ack()));
        }),
        ("a SYN-ACK of another SYN", |net, it| {
            let other = Connection { client: it.client.wrapping_add(1), ..*it };
            assert!(net.passes(&other.syn_ack()));
        }),
        ("a SYN-ACK with data", |net, it| {
            assert!(net.passes(&it.received(TCP_SYN | TCP_ACK, 0, &[1])));
        }),
        ("a SYN-ACK of the backend", |net, it| {
            let backend = Connection { resolver: ip(BACKEND), ..*it };
            assert!(net.passes(&backend.syn()) && net.passes(&it.syn_ack()));
        }),
        ("a SYN-ACK from another port", |net, it| {
            let other = Connection { remote_port: 5353, ..*it };
            assert!(net.passes(&other.syn()) && net.passes(&other.syn_ack()));
        }),
        ("a SYN to the backend", |net, it| {
            assert!(net.passes(&Connection { resolver: ip(BACKEND), ..*it }.syn()));
        }),
        ("another SYN", |net, it| {
            assert!(net.passes(&Connection { client: 9, ..*it }.syn()));
        }),
        ("the same SYN behind the first byte", |net, it| {
            assert!(net.passes(&it.answers(0, &[0])) && net.passes(&it.syn()));
        }),
        ("a segment too far ahead", |net, it| {
            assert!(net.passes(&it.received(TCP_ACK, 2 + WINDOW, &[0])));
        }),
        ("a message without bytes", |net, it| assert!(net.passes(&it.answers(0, &[0, 0])))),
        ("a message too long", |net, it| assert!(net.passes(&it.answers(0, &[0x10, 1])))),
        ("a reset of the pod", |net, it| assert!(net.passes(&it.reset()))),
        ("a reset of the resolver", |net, it| {
            assert!(net.passes(&it.received(TCP_RST, 1, &[])));
        }),
        ("the end", |net, it| assert!(net.passes(&it.fin(0)))),
        ("too long without an answer", |net, it| {
            net.flows.later((QUIET as u32 + 1) * HZ);
            assert!(net.passes(&it.asks(0, &framed(&question()))));
        }),
    ];
    for (what, attack) in attacks {
        let net = Net::of_api();
        let connection = connection();
        net.open(&connection);
        assert!(net.passes(&connection.asks(0, &framed(&question()))));
        attack(&net, &connection);
        // Whatever was read before, a whole message ends at each of these places.
        for at in [0, 1, 2] {
            assert!(net.passes(&connection.answers(at, &good())), "{what}");
        }
        assert!(!net.connects(FOUND), "{what}");
        let next = Connection { client: 77, server: 88, ..connection };
        net.open(&next);
        assert!(
            net.passes(&next.asks(0, &framed(&question())))
                && net.passes(&next.answers(0, &good()))
        );
        assert!(net.connects(FOUND), "{what}: the next connection is read");
    }
}

/// With SYN cookies, the resolver keeps nothing of a SYN. Once its connection is gone, an ACK of the pod opens another one
/// with the same numbers, and its answers begin where those before began.
#[test]
fn no_second_connection_goes_on_in_the_first_ones_place() {
    let first = around(b"");
    // A message of the second connection, which has a forged answer at the place that was reached in the first one.
    let mut filler = vec![b'.'; 200];
    let at = first.len() - (around(&filler).len() - filler.len());
    filler[at..][..evil().len()].copy_from_slice(&evil());
    let second = around(&filler);
    assert_eq!(second[first.len()..][..evil().len()], evil());
    let segments = [&second[..first.len()], &second[first.len()..]];
    // The pod hides its reset in the first fragment, and behind a header.
    let reset = |it: &Connection| {
        segment((PORT, 53), TCP_RST | TCP_ACK, (it.client + 1, it.server + 1), &[0; 8])
    };
    let v4 = Connection { server: 1, ..connection() };
    let v6 = Connection { own: ip("fd00::1"), resolver: ip(DNS6), ..v4 };
    let addresses6 = ["fd00::1", DNS6].map(|at| at.parse::<std::net::Ipv6Addr>().unwrap().octets());
    let to = |remote: &str, remote_port| Connection { resolver: ip(remote), remote_port, ..v4 };
    let hidden: [(&str, Connection, Packet); 15] = [
        ("a reset", v4, v4.reset()),
        ("a reset to the backend", v4, to(BACKEND, 53).reset()),
        ("a reset to the backend's port", v4, to(BACKEND, 5353).reset()),
        ("an end of the pod", v4, v4.sent(TCP_FIN | TCP_ACK, 1, &[])),
        ("an end to the backend's port", v4, to(BACKEND, 5353).sent(TCP_FIN | TCP_ACK, 1, &[])),
        ("bytes to the backend", v4, to(BACKEND, 53).asks(0, &[0])),
        ("an acknowledgement to the backend's port", v4, to(BACKEND, 5353).sent(TCP_ACK, 1, &[])),
        (
            "an acknowledgement of an end that was lost",
            v4,
            Connection { server: v4.server + first.len() as u32 + 1, ..v4 }.sent(TCP_ACK, 1, &[]),
        ),
        ("another question", v4, v4.asks(0, &[0])),
        ("an end behind a gap", v4, v4.fin(first.len() + 9)),
        ("a reset of the resolver", v4, v4.received(TCP_RST, 9, &[])),
        ("an end of the backend", v4, to(BACKEND, 5353).fin(first.len())),
        ("bytes of the backend", v4, to(BACKEND, 53).answers(first.len(), &[0])),
        (
            "a reset behind options",
            v4,
            (
                Direction::Egress,
                ipv4_between([[10, 0, 0, 1], [10, 96, 0, 10]], TCP, &[1; 4], 0, &reset(&v4)),
            ),
        ),
        (
            "a reset behind a header",
            v6,
            (
                Direction::Egress,
                ipv6_between(
                    addresses6,
                    60,
                    64,
                    &[&[TCP, 0, 1, 4, 0, 0, 0, 0][..], &reset(&v6)].concat(),
                ),
            ),
        ),
    ];
    for (what, connection, packet) in hidden {
        let net = Net::of_api();
        // Flows, by which the backend's packets pass.
        for port in [53, 5353] {
            assert!(net.passes(&to(BACKEND, port).syn()));
        }
        net.open(&connection);
        assert!(net.passes(&connection.asks(0, &framed(&question()))));
        assert!(net.passes(&connection.answers(0, &first)) && net.passes(&packet), "{what}");
        let mut at = 0;
        for bytes in segments {
            assert!(net.passes(&connection.answers(at, bytes)), "{what}");
            at += bytes.len();
        }
        assert!(!net.connects(EVIL), "{what}");
        assert_eq!(net.streams(), 0, "{what}");
    }
}

#[test]
fn what_was_read_is_not_read_again() {
    let net = Net::of_api();
    let connection = net.asked();
    let text = around(&evil());
    let inside = text.len() - evil().len();
    let all = [text.clone(), good()].concat();
    assert!(net.passes(&connection.answers(0, &text[..inside])));
    for _ in 0..3 {
        assert!(net.passes(&connection.answers(0, &text[..inside])), "sent again");
        assert!(net.passes(&connection.answers(inside - 5, &text[inside - 5..inside])), "in part");
    }
    assert!(net.passes(&connection.answers(inside - 5, &all[inside - 5..])), "with new bytes");
    assert!(net.connects(FOUND) && !net.connects(EVIL));
    assert!(net.passes(&connection.answers(inside, &evil())), "inside of what was read");
    assert!(!net.connects(EVIL));
}

#[test]
fn a_segment_behind_a_gap_is_sent_again() {
    let (net, bytes) = (Net::of_api(), good());
    let connection = net.asked();
    assert!(!net.passes(&connection.answers(10, &bytes[10..])), "ten bytes are missing");
    assert!(net.passes(&connection.answers(0, &bytes[..10])) && !net.connects(FOUND));
    assert!(net.passes(&connection.answers(10, &bytes[10..])) && net.connects(FOUND));
    assert!(net.passes(&connection.fin(bytes.len())));
    assert_eq!(net.streams(), 0);
    // A connection goes on in any case.
    let net = Net::of_api();
    let connection = net.asked();
    for _ in 0..MOST_GAPS {
        assert!(!net.passes(&connection.answers(10, &bytes[10..])));
    }
    assert!(net.passes(&connection.answers(10, &bytes[10..])), "what is missing may never come");
    assert!(net.passes(&connection.answers(0, &bytes)) && !net.connects(FOUND));
}

#[test]
fn a_packet_that_meets_a_held_entry_is_sent_again() {
    let (net, bytes) = (Net::of_api(), good());
    let connection = net.asked();
    let until = net.set_until(NAME_BUSY);
    for packet in [connection.syn(), connection.answers(0, &bytes)] {
        assert!(!net.passes(&packet), "{packet:02x?}");
    }
    assert!(net.passes(&connection.asks(0, &framed(&question()))), "a question needs no entry");
    assert!(
        net.passes(&connection.sent(TCP_ACK, 1, &[])) && net.passes(&connection.answers(0, &[]))
    );
    assert_eq!(net.set_until(until), NAME_BUSY);
    assert!(net.passes(&connection.answers(0, &bytes)) && net.connects(FOUND));
}

/// TCP does not send an end again that the pod acknowledges unseen. Who holds the entry frees it then.
#[test]
fn an_end_that_meets_a_held_entry_frees_it() {
    let it = connection();
    for packet in [
        it.fin(0),
        it.received(TCP_RST, 1, &[]),
        it.syn_ack(),
        it.reset(),
        it.sent(TCP_FIN | TCP_ACK, 1, &[]),
        Connection { server: it.server.wrapping_add(1), ..it }.sent(TCP_ACK, 1, &[]),
    ] {
        let net = Net::of_api();
        let _ = net.asked();
        let until = net.set_until(NAME_BUSY);
        assert!(net.passes(&packet), "{packet:02x?}");
        assert_eq!(net.set_until(until), STREAM_ENDED, "{packet:02x?}");
        net.set_until(STREAM_ENDED);
        assert!(!net.passes(&it.answers(0, &good())), "{packet:02x?}");
    }
}

/// Nobody could know whether a fragment ends a connection.
#[test]
fn no_fragment_of_a_pods_segments_passes() {
    let net = Net::of_api();
    let it = connection();
    let addresses = [[10, 0, 0, 1], [10, 96, 0, 10]];
    // With a header that goes on in the next fragment, before any entry.
    let mut reset =
        segment((PORT, 53), TCP_RST | TCP_ACK, (it.client + 1, it.server + 1), &[0; 40]);
    reset[12] = 0xf0;
    let first = ipv4_between(addresses, TCP, &[], 0x2000, &reset[..24]);
    assert!(!net.passes(&(Direction::Egress, first)));
    let to_other = segment((PORT, 443), TCP_ACK, (1, 1), &[0; 40]);
    let first = ipv4_between(addresses, TCP, &[], 0x2000, &to_other[..24]);
    assert!(!net.passes(&(Direction::Egress, first)), "whatever its port");
}

/// Policy may drop an end, as an answer of a flow that is forgotten, and the pod acknowledges it unseen.
#[test]
fn an_end_that_policy_drops_ends_the_reading() {
    // Another Service may lead to the resolver, too.
    for (flags, from) in [(TCP_FIN | TCP_ACK, DNS), (TCP_RST, DNS), (TCP_RST, "10.96.0.99")] {
        let net = Net::of_api();
        let connection = net.asked();
        assert!(net.passes(&connection.answers(0, &good()[..9])));
        net.flows.forget_flows();
        let sender = Connection { resolver: ip(from), ..connection };
        let (direction, packet) = sender.received(flags, 10, &[]);
        let (reason, _) = net.judge(1, direction, &packet);
        assert!(reason.is_drop(), "{reason:?}");
        assert_eq!(net.streams(), 0);
    }
}

/// Strangers end nothing: they do not know the numbers.
#[test]
fn a_strangers_packets_end_nothing() {
    let net = Net::of_api();
    let connection = net.asked();
    for (server, remote_port) in [(1 << 30, 53), (connection.server.wrapping_add(WINDOW * 2), 443)]
    {
        let stranger = Connection { resolver: ip("192.0.2.9"), server, remote_port, ..connection };
        for flags in [TCP_SYN, TCP_SYN | TCP_ACK, TCP_FIN | TCP_ACK, TCP_RST, TCP_ACK] {
            let (direction, packet) = stranger.received(flags, 1, &[0]);
            net.judge(1, direction, &packet);
        }
    }
    assert!(net.passes(&connection.answers(0, &good())) && net.connects(FOUND));
}

/// Two CPUs may write an entry each when the pod sends two SYNs at once.
#[test]
fn two_entries_of_one_connection_are_freed() {
    for packet in [Connection::syn, |it: &Connection| it.answers(0, &good())] {
        let net = Net::of_api();
        let connection = net.asked();
        let buckets = || (0..STREAM_BUCKETS).map(|at| net.flows.stream_bucket(at).unwrap());
        let ways = || {
            buckets().flat_map(|bucket| bucket.chunks(STREAM_WORDS).map(move |way| (bucket, way)))
        };
        let used = |way: &[std::sync::atomic::AtomicU64]| {
            way[STREAM_WORDS - 1].load(Ordering::Acquire) != 0
        };
        let (bucket, entry) = ways().find(|(_, way)| used(way)).unwrap();
        let twin = bucket.chunks(STREAM_WORDS).find(|way| !used(way)).unwrap();
        for (to, from) in twin.iter().zip(entry) {
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        }
        assert_eq!(net.streams(), 2);
        assert!(!net.passes(&packet(&connection)));
        assert_eq!(net.streams(), 0);
        assert!(net.passes(&connection.answers(0, &good())) && !net.connects(FOUND));
    }
}

#[test]
fn a_handshake_that_is_sent_again_resets_nothing() {
    let (net, bytes) = (Net::of_api(), good());
    let connection = connection();
    for _ in 0..2 {
        assert!(net.passes(&connection.syn()));
        net.flows.later(3 * HZ);
    }
    assert!(net.passes(&connection.syn_ack()) && net.passes(&connection.syn()));
    assert!(
        net.passes(&connection.syn_ack()) && net.passes(&connection.asks(0, &framed(&question())))
    );
    assert!(net.passes(&connection.answers(0, &bytes[..10])) && net.passes(&connection.syn_ack()));
    assert!(net.passes(&connection.answers(10, &bytes[10..])) && net.connects(FOUND));
    assert_eq!(net.streams(), 1);
    // It keeps no entry, either.
    let net = Net::of_api();
    net.open(&connection);
    net.flows.later((QUIET as u32 - 5) * HZ);
    assert!(net.passes(&connection.syn()));
    net.flows.later(6 * HZ);
    assert!(net.passes(&connection.answers(0, &bytes[..10])));
    assert_eq!(net.streams(), 0);
}

/// Each answer keeps a connection for as long again.
#[test]
fn an_answer_prolongs_its_connection() {
    let net = Net::of_api();
    let connection = net.asked();
    let mut at = 0;
    for _ in 0..3 {
        net.flows.later((QUIET as u32 - 10) * HZ);
        assert!(net.passes(&connection.answers(at, &around(b""))));
        at += around(b"").len();
    }
    assert_eq!(net.streams(), 1);
    assert!(net.passes(&connection.answers(at, &good())));
    // A segment sent again does not.
    net.flows.later((QUIET as u32 - 10) * HZ);
    assert!(net.passes(&connection.answers(0, &around(b""))));
    net.flows.later(11 * HZ);
    assert!(net.passes(&connection.answers(at + good().len(), &good())));
    assert_eq!(net.streams(), 0);
}

#[test]
fn a_stream_is_read_up_to_its_window() {
    const LENGTH: usize = 4096 + 2;
    let net = Net::of_api();
    let connection = net.asked();
    let messages = framed(&[0; 4096]).repeat(8);
    let mut at = 0;
    while at + messages.len() <= WINDOW as usize {
        assert!(net.passes(&connection.answers(at, &messages)));
        at += messages.len();
    }
    while at + LENGTH <= WINDOW as usize {
        assert!(net.passes(&connection.answers(at, &messages[..LENGTH])));
        at += LENGTH;
    }
    assert_eq!(net.streams(), 1);
    assert!(net.passes(&connection.answers(at, &messages[..LENGTH])));
    assert_eq!(net.streams(), 0);
    assert!(net.passes(&connection.answers(at + LENGTH, &good())) && !net.connects(FOUND));
}

/// A packet costs a limited time. What is behind, and later, is not read.
#[test]
fn a_segment_with_too_many_messages_ends_the_reading() {
    let small = framed(&[0]);
    for (messages, counts) in [(30, true), (100, false)] {
        let net = Net::of_api();
        let connection = net.asked();
        let bytes = [small.repeat(messages), good()].concat();
        assert!(net.passes(&connection.answers(0, &bytes)));
        assert_eq!(net.connects(FOUND), counts, "{messages}");
        assert!(net.passes(&connection.answers(bytes.len(), &good())));
        assert_eq!(net.streams(), usize::from(counts), "{messages}");
    }
    let net = Net::of_api();
    let connection = net.asked();
    let last = RECORDS as u8;
    let records = (1..=last + 1).map(|n| Record::address(pointer(), [198, 18, 0, n].into(), 300));
    let long = framed(&answer(7, &wire(API), &records.collect::<Vec<_>>()));
    assert!(net.passes(&connection.answers(0, &long)));
    assert!(net.connects(&format!("198.18.0.{last}")));
    assert!(!net.connects(&format!("198.18.0.{}", last + 1)), "as over UDP");
}

#[test]
fn a_flood_of_connections_displaces_only_the_own_ones() {
    let net = Net::of_api();
    let connection = net.asked();
    for port in 1024..9_000_u16 {
        let numbers = (port.into(), 7);
        let other = Connection::new(ip("10.0.0.2"), ip(DNS), port, numbers);
        assert!(net.at(2, other.syn()));
    }
    assert!(net.streams() > 500, "{}", net.streams());
    assert!(net.passes(&connection.answers(0, &good())) && net.connects(FOUND));
    let next = Connection { port: PORT + 1, ..connection };
    net.open(&next);
    assert!(net.passes(&next.asks(0, &framed(&question()))));
    assert!(net.passes(&next.answers(0, &evil())) && net.connects(EVIL), "there is room for it");
}

#[test]
fn a_port_that_is_no_resolvers_has_no_entry() {
    let net = Net::new(vec![accept(vec![domain(API)], Some(vec![tcp(443)]))]);
    for other in [
        Connection { remote_port: 853, ..connection() },
        Connection { resolver: ip(BACKEND), remote_port: 5353, ..connection() },
    ] {
        net.open(&other);
    }
    assert_eq!(net.streams(), 0);
}

/// Generated connections, in order and out of it: true answers count, and nothing that stands inside of others.
#[test]
fn generated_streams_open_what_their_answers_have() {
    let (mut opened, mut dropped) = (0, 0);
    for seed in 1..=50_u64 {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let net = Net::of_api();
        let server = (random.below(1 << 32)) as u32;
        let connection = Connection { server, port: PORT + seed as u16, ..connection() };
        net.open(&connection);
        let (mut bytes, mut asked, mut true_ones) = (Vec::new(), 0, Vec::new());
        for n in 0..1 + random.below(12) {
            let longest = [3, 3_000][random.below(2)];
            let padding = vec![0; random.below(longest)];
            match random.below(4) {
                0 => bytes.extend(around(&[padding, evil(), evil()].concat())),
                1 => bytes.extend(around(&padding)),
                _ => {
                    let (id, at) = (1000 + n as u16, format!("198.18.0.{n}"));
                    let question = framed(&query(id, &wire(API)));
                    assert!(net.passes(&connection.asks(asked, &question)));
                    asked += question.len();
                    let records = [Record::address(pointer(), ip(&at), 300)];
                    bytes.extend(framed(&answer(id, &wire(API), &records)));
                    true_ones.push(at);
                }
            }
        }
        assert!(net.passes(&connection.asks(asked, &framed(&question()))));
        let arrived = transmit(&connection, random, &bytes, |packet| {
            let passes = net.passes(packet);
            dropped += u32::from(!passes);
            passes
        });
        assert!(arrived, "seed {seed}");
        for at in &true_ones {
            assert!(net.connects(at), "seed {seed}: {at}");
        }
        assert!(!net.connects(EVIL), "seed {seed}");
        opened += true_ones.len();
    }
    println!("{opened} answers, {dropped} segments sent again");
    assert!(opened > 100 && dropped > 30, "{opened} {dropped}");
}
