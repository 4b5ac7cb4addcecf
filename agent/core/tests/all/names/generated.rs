//! Generated conversations over TCP, compared with the oracle, which records every pod's resolved addresses.

use std::net::IpAddr;

use netpold_core::model::Key;
use netpold_ebpf::packet::protocol::{TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};
use netpold_testkit::names::{answer, query, wire};
use netpold_testkit::objects::ip;
use netpold_testkit::oracle::Oracle;
use netpold_testkit::random::Random;
use netpold_testkit::streams::{DirectedPacket, DnsConnection, framed};

use super::lookups::{NAMES, agrees, random_records, random_rules};
use super::net::{BACKEND, DNS, DNS6, Net, cluster, only};

/// Event during a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Bytes that were read, sent again.
    Repetition,
    /// A segment that does not belong to the conversation: from a stranger's address, or at another pod.
    Foreign,
    /// A segment after a gap, as after a lost or reordered one.
    Gap,
    /// A segment with bytes that were read and with new ones.
    Overlap,
    /// A FIN or RST of the resolver.
    End,
    /// Another SYN-ACK.
    SynAck,
    /// A packet of the pod that belongs to no connection, or to another one.
    Forged,
}

const EVENTS: [Event; 7] = [
    Event::Repetition,
    Event::Foreign,
    Event::Gap,
    Event::Overlap,
    Event::End,
    Event::SynAck,
    Event::Forged,
];

/// A connection with questions and their answers.
struct Conversation {
    it: DnsConnection,
    ifindex: u32,
    /// Bytes of the resolver.
    bytes: Vec<u8>,
    /// For each answer that counts, the position after it and its addresses; up to the first answer without a question.
    answers: Vec<(usize, (String, Vec<IpAddr>))>,
}

impl Conversation {
    /// Opens a connection of a pod and asks one to four questions in it.
    fn begin(net: &Net, random: &mut Random, ifindex: u32, port: u16) -> Self {
        let resolver = [DNS, DNS6, BACKEND][random.below(3)];
        let family = if resolver.contains(':') { "fd00::" } else { "10.0.0." };
        let numbers = (random.below(1 << 32) as u32, random.below(1 << 32) as u32);
        let own = ip(&format!("{family}{ifindex}"));
        let it = DnsConnection::new(own, ip(resolver), port, numbers);
        it.handshake().into_iter().for_each(|packet| assert!(net.at(ifindex, packet)));
        let mut conversation = Self { it, ifindex, bytes: Vec::new(), answers: Vec::new() };
        let (mut asked, mut pending, mut is_known) = (0, Vec::new(), true);
        for id in 0..=random.below(4) as u16 {
            let name = NAMES[random.below(6)];
            let case = |c: char, up| if up { c.to_ascii_uppercase() } else { c };
            let mixed: String = name.chars().map(|c| case(c, random.below(2) == 0)).collect();
            let question = framed(&query(id, &wire(&mixed)));
            // Several questions in a segment, each in its own segment, or with its length in a separate segment before
            // it.
            match random.below(3) {
                0 => pending.extend(question),
                1 if pending.is_empty() => {
                    for part in [&question[..2], &question[2..]] {
                        assert!(net.at(ifindex, it.asks(asked, part)));
                        asked += part.len();
                    }
                }
                _ => {
                    pending.extend(question);
                    assert!(net.at(ifindex, it.asks(asked, &pending)));
                    asked += std::mem::take(&mut pending).len();
                }
            }
            let is_honest = random.below(12) > 0;
            let (records, resolved) = random_records(random, name);
            let id = if is_honest { id } else { id + 100 };
            conversation.bytes.extend(framed(&answer(id, &wire(name), &records)));
            is_known &= is_honest;
            if is_known {
                conversation.answers.push((conversation.bytes.len(), (name.into(), resolved)));
            }
        }
        if !pending.is_empty() {
            assert!(net.at(ifindex, it.asks(asked, &pending)));
        }
        conversation
    }

    /// Sends the answers in segments of any length, with an event before one of them. Returns the number of bytes that
    /// were read.
    fn transmit(&self, net: &Net, random: &mut Random, event: Option<Event>) -> usize {
        let when = random.below(self.bytes.len());
        let longest = [4, 40, 400, 4_000][random.below(4)];
        let (mut at, mut is_read, mut left) = (0, true, event);
        let mut read = 0;
        while at < self.bytes.len() {
            if at >= when
                && let Some(event) = left.take()
            {
                is_read &= self.disturb(net, random, event, at);
            }
            let end = (at + 1 + random.below(longest)).min(self.bytes.len());
            assert!(net.at(self.ifindex, self.it.answers(at, &self.bytes[at..end])));
            at = end;
            read = if is_read { at } else { read };
        }
        read
    }

    /// Causes an event before the byte at a position; returns whether the reading continues.
    fn disturb(&self, net: &Net, random: &mut Random, event: Event, at: usize) -> bool {
        let (it, bytes) = (&self.it, &self.bytes);
        let passes = |packet: DirectedPacket| assert!(net.at(self.ifindex, packet));
        match event {
            Event::Repetition => {
                let from = random.below(at + 1);
                passes(it.answers(from, &bytes[from..at]));
                true
            }
            Event::Foreign => {
                let stranger = ["203.0.113.9", "2001:db8::9"][usize::from(it.own.is_ipv6())];
                let stranger = DnsConnection { resolver: ip(stranger), ..*it };
                for flags in [TCP_ACK, TCP_RST, TCP_SYN | TCP_ACK] {
                    let (direction, packet) = stranger.received(flags, 1, &bytes[at..]);
                    let _ = net.judge(self.ifindex, direction, &packet);
                    let (direction, packet) = it.received(flags, 1, &bytes[at..]);
                    let _ = net.judge(3 - self.ifindex, direction, &packet);
                }
                true
            }
            Event::Overlap if at > 0 => {
                let from = random.below(at);
                let end = (at + 1 + random.below(9)).min(bytes.len());
                passes(it.answers(from, &bytes[from..end]));
                false
            }
            Event::Gap | Event::Overlap => {
                let from = at + 1 + random.below(50);
                passes(it.answers(from, &[1; 9][..=random.below(9)]));
                false
            }
            Event::End => {
                let flags = [TCP_FIN | TCP_ACK, TCP_RST, TCP_RST | TCP_ACK][random.below(3)];
                passes(it.received(flags, 1 + at as u32, &[]));
                false
            }
            Event::SynAck => {
                let other = DnsConnection { server: it.server.wrapping_add(1 + at as u32), ..*it };
                passes(other.syn_ack());
                false
            }
            Event::Forged => {
                let backend = DnsConnection { resolver: ip(BACKEND), own: ip("10.0.0.1"), ..*it };
                let is_v4 =
                    it.own.is_ipv4() && self.ifindex == 1 && it.resolver != backend.resolver;
                let packets = [
                    it.syn(),
                    it.reset(),
                    it.sent(TCP_FIN | TCP_ACK, 1, &[]),
                    it.sent(TCP_ACK, 0, &[]),
                    it.asks(5_000, &[0]),
                    if is_v4 { backend.sent(TCP_ACK, 1, &[]) } else { it.syn() },
                ];
                passes(packets.into_iter().nth(random.below(6)).unwrap());
                false
            }
        }
    }
}

/// Segments cut anywhere, several answers in one, repeated, reordered, overlapping and forged ones, and ends: each answer
/// counts that arrived in order before its connection's reading ended, and no other. Rules change in between.
#[test]
fn conversations_over_tcp_agree_with_the_oracle() {
    let (mut conversations, mut counted, mut uncounted) = (0, 0, 0);
    for seed in 1..=400_u64 {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let rules = random_rules(random);
        let mut net = Net::new(rules.clone());
        let mut oracle: Oracle = cluster().into_iter().chain([only(rules)]).collect();
        for step in 0..25_u16 {
            let ifindex = 1 + random.below(2) as u32;
            let key = Key::new("a", if ifindex == 1 { "p" } else { "q" });
            let conversation = Conversation::begin(&net, random, ifindex, 41_000 + step);
            let event = EVENTS.get(random.below(14)).copied();
            let read = conversation.transmit(&net, random, event);
            for (end, (name, resolved)) in conversation.answers {
                if end > read {
                    uncounted += 1;
                    continue;
                }
                counted += 1;
                let of = |at| (key.clone(), name.clone(), at);
                oracle.resolved.extend(resolved.into_iter().map(of));
            }
            conversations += 1;
            // Opened addresses stay open, so one check covers several conversations.
            let (is_edited, is_last) = (random.below(8) == 0, step % 5 == 4);
            net.flows.forget_flows();
            for ifindex in [1, 2].into_iter().filter(|_| is_edited || is_last) {
                agrees(&net, &oracle, ifindex, &format!("seed {seed}, step {step}: {event:?}"));
            }
            if is_edited {
                let rules = random_rules(random);
                net.world.apply([only(rules.clone())]);
                oracle.ingest(only(rules));
            }
        }
    }
    println!("{conversations} conversations, {counted} answers counted, {uncounted} did not");
    assert!(conversations == 10_000 && counted > 10_000 && uncounted > 2_000);
}
