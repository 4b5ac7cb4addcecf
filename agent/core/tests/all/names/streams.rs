//! DNS answers over TCP: packets of connections to resolvers are split, lost, repeated and reordered, as a network may
//! do.

use netpold_ebpf::layout::NAME_BUSY;
use netpold_ebpf::names::conversation::RECORDS;
use netpold_ebpf::packet::protocol::TCP_SYN;
use netpold_testkit::flows::HZ;
use netpold_testkit::names::{Record, answer, query, wire};
use netpold_testkit::objects::ip;
use netpold_testkit::random::Random;
use netpold_testkit::streams::{DnsConnection, framed, transmit, transmit_in_order};

use super::connections::{EVIL, PORT, around, connection, evil, good, question, questions};
use super::net::{API, DNS, DNS6, FOUND, Net, pointer};

#[test]
fn an_answer_over_tcp_opens_its_address() {
    for (own, resolver) in [("10.0.0.1", DNS), ("fd00::1", DNS6)] {
        let net = Net::of_api();
        let connection = DnsConnection::new(ip(own), ip(resolver), PORT, (1, u32::MAX));
        net.open(&connection);
        assert!(!net.connects(FOUND), "not resolved yet");
        assert!(net.passes(&connection.asks(0, &questions())));
        assert!(net.passes(&connection.answers(0, &good())));
        assert!(net.connects(FOUND), "{resolver}");
        assert!(!net.reaches(2, FOUND, 443), "another pod");
        net.flows.later(301 * HZ);
        assert!(!net.connects(FOUND), "its time is over");
    }
}

#[test]
fn answers_over_tcp_count_unless_turned_off() {
    let mut net = Net::of_api();
    net.world.tables.resolvers.values_mut().for_each(|over_tcp| *over_tcp = false);
    let connection = connection();
    net.open(&connection);
    assert!(net.passes(&connection.asks(0, &questions())));
    assert!(net.passes(&connection.answers(0, &good())));
    assert!(!net.connects(FOUND) && net.streams() == 0);
    net.send(1, DNS, PORT, &question());
    net.deliver(1, DNS, PORT, &good()[2..]);
    assert!(net.connects(FOUND), "over UDP");
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
    let questions = [framed(&query(8, &wire("other.example"))), questions()].concat();
    assert!(net.passes(&connection.asks(0, &questions)), "as the C library asks for A and AAAA");
    let second = framed(&query(6, &wire(API)));
    assert!(net.passes(&connection.asks(questions.len(), &second)), "before the first answer");
    let at = Record::address(pointer(), ip("192.0.2.8"), 300);
    let last = framed(&answer(6, &wire(API), &[at]));
    let bytes = [around(b"text"), good(), last].concat();
    assert!(net.passes(&connection.answers(0, &bytes[..bytes.len() - 9])));
    assert!(net.connects(FOUND) && !net.connects("192.0.2.8"));
    // The last answer begins in the segment of the previous answer.
    assert!(net.passes(&connection.answers(bytes.len() - 9, &bytes[bytes.len() - 9..])));
    assert!(net.connects("192.0.2.8"));
    assert_eq!(net.streams(), 1, "and goes on");
    assert!(net.passes(&connection.asks(questions.len() + second.len(), &framed(&question()))));
    assert_eq!(net.streams(), 0, "up to a question behind the first answer");
}

/// Some clients send the length in a segment of its own. A question split elsewhere is not recorded.
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
    // With TCP Fast Open, the SYN has the question. It opens a connection before the SYN-ACK.
    let net = Net::of_api();
    let connection = connection();
    assert!(net.passes(&connection.sent(TCP_SYN, 0, &bytes)) && net.passes(&connection.syn_ack()));
    assert!(net.passes(&connection.answers(0, &good())) && !net.connects(FOUND));
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
    assert!(net.passes(&connection.answers(inside, &all[inside..])), "the rest");
    assert!(net.connects(FOUND) && !net.connects(EVIL));
    assert!(net.passes(&connection.answers(inside, &evil())), "inside of what was read");
    assert!(!net.connects(EVIL));
}

#[test]
fn a_segment_behind_a_gap_or_over_the_place_ends_the_reading() {
    let bytes = good();
    for (before, at) in [(0, 10), (10, 11), (10, 9), (10, 0)] {
        let net = Net::of_api();
        let connection = net.asked();
        assert!(before == 0 || net.passes(&connection.answers(0, &bytes[..before])));
        assert!(net.passes(&connection.answers(at, &bytes[at..])), "no connection depends on it");
        assert!(
            net.passes(&connection.answers(0, &bytes)) && !net.connects(FOUND),
            "{before} {at}"
        );
        assert_eq!(net.streams(), 0);
    }
}

#[test]
fn a_packet_that_meets_a_held_entry_is_sent_again() {
    let (net, bytes) = (Net::of_api(), good());
    let connection = net.asked();
    let until = net.set_until(NAME_BUSY);
    let again = connection.asks(questions().len(), &framed(&question()));
    for packet in [connection.syn(), connection.answers(0, &bytes), again] {
        assert!(!net.passes(&packet), "{packet:02x?}");
    }
    assert!(
        net.passes(&connection.asks(questions().len(), &[]))
            && net.passes(&connection.answers(0, &[]))
    );
    assert_eq!(net.set_until(until), NAME_BUSY);
    assert!(net.passes(&connection.answers(0, &bytes)) && net.connects(FOUND));
}

#[test]
fn a_syn_ack_may_come_again_and_a_syn_may_not() {
    for (is_syn, counts) in [(false, true), (true, false)] {
        let (net, bytes, it) = (Net::of_api(), good(), connection());
        net.open(&it);
        assert!(net.passes(&if is_syn { it.syn() } else { it.syn_ack() }));
        assert!(net.passes(&it.asks(0, &questions())) && net.passes(&it.answers(0, &bytes)));
        assert_eq!(net.connects(FOUND), counts);
    }
}

#[test]
fn further_records_are_not_read() {
    let net = Net::of_api();
    let connection = net.asked();
    let last = RECORDS as u8;
    let records = (1..=last + 1).map(|n| Record::address(pointer(), [198, 18, 0, n].into(), 300));
    let long = framed(&answer(7, &wire(API), &records.collect::<Vec<_>>()));
    assert!(net.passes(&connection.answers(0, &long)));
    assert!(net.connects(&format!("198.18.0.{last}")));
    assert!(!net.connects(&format!("198.18.0.{}", last + 1)), "as over UDP");
}

/// Generated connections, in order and out of it: true answers count, and no message embedded in another.
#[test]
fn generated_streams_open_what_their_answers_have() {
    let mut opened = 0;
    for seed in 1..=50_u64 {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let net = Net::of_api();
        let server = (random.below(1 << 32)) as u32;
        let connection = DnsConnection { server, port: PORT + seed as u16, ..connection() };
        net.open(&connection);
        let is_disturbed = seed % 2 == 0;
        let (mut bytes, mut questions, mut true_ones) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..=random.below(12) {
            let longest = [3, 3_000][random.below(2)];
            let padding = vec![0; random.below(longest)];
            let id = 1000 + n as u16;
            if random.below(2) == 0 {
                let data = [padding, evil(), evil()].concat();
                let text = Record { owner: pointer(), kind: 16, ttl: 300, data };
                questions.extend(framed(&query(id, &wire("mine.example"))));
                bytes.extend(framed(&answer(id, &wire("mine.example"), &[text])));
            } else {
                let at = format!("198.18.0.{n}");
                questions.extend(framed(&query(id, &wire(API))));
                let records = [Record::address(pointer(), ip(&at), 300)];
                bytes.extend(framed(&answer(id, &wire(API), &records)));
                true_ones.push(at);
            }
        }
        questions.extend(framed(&question()));
        // A segment may have at most four questions.
        let mut at = 0;
        while at < questions.len() {
            let length = 2 + usize::from(u16::from_be_bytes([questions[at], questions[at + 1]]));
            assert!(net.passes(&connection.asks(at, &questions[at..at + length])));
            at += length;
        }
        if is_disturbed {
            let _ = transmit(&connection, random, &bytes, |packet| net.passes(packet));
        } else {
            transmit_in_order(&connection, random, (&bytes, 600), |packet| {
                assert!(net.passes(packet));
            });
            for at in &true_ones {
                assert!(net.connects(at), "seed {seed}: {at}");
            }
            opened += true_ones.len();
        }
        assert!(!net.connects(EVIL), "seed {seed}");
    }
    assert!(opened > 50, "{opened}");
}
