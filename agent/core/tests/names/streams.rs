//! Answers over TCP: connections to resolvers whose packets are cut, lost and sent again in all ways that the way there
//! may choose.

use netpold_ebpf::layout::NAME_BUSY;
use netpold_ebpf::names::conversation::RECORDS;
use netpold_ebpf::names::stream::{MOST_GAPS, QUIET, WINDOW};
use netpold_ebpf::packet::protocol::{TCP_ACK, TCP_SYN};
use netpold_testkit::flows::HZ;
use netpold_testkit::names::{Record, answer, query, wire};
use netpold_testkit::objects::ip;
use netpold_testkit::random::Random;
use netpold_testkit::streams::{Connection, framed, transmit};

use super::connections::{EVIL, PORT, around, connection, evil, good, question};
use super::net::{API, DNS, DNS6, FOUND, Net, pointer};

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
        for n in 0..=random.below(12) {
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
