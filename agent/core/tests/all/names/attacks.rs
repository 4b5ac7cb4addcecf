//! Answers over TCP: packets that a pod, another pod or a stranger forges, hides, repeats or reorders.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use netpold_core::model::Direction;
use netpold_ebpf::layout::{NAME_BUSY, STREAM_BUCKETS, STREAM_WORDS};
use netpold_ebpf::names::stream::{QUIET, WINDOW};
use netpold_ebpf::packet::protocol::{TCP, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN};
use netpold_testkit::flows::HZ;
use netpold_testkit::frames::{ipv4_between, ipv6_between, segment};
use netpold_testkit::names::{Record, answer, query, wire};
use netpold_testkit::objects::{block, ip, tcp};
use netpold_testkit::streams::{DirectedPacket, DnsConnection, framed};

use super::connections::{EVIL, PORT, around, connection, evil, good, question, questions};
use super::net::{API, BACKEND, DNS, DNS6, FOUND, Net, accept, domain, found, pointer};

/// Packets before an answer, and whether the answer counts after them.
#[test]
fn forged_and_malformed_streams_open_nothing() {
    type Attack = fn(&Net, &DnsConnection);
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
            let other = DnsConnection { server: it.server.wrapping_add(1), ..*it };
            assert!(net.passes(&other.syn_ack()));
        }),
        ("a SYN-ACK of another SYN", |net, it| {
            let other = DnsConnection { client: it.client.wrapping_add(1), ..*it };
            assert!(net.passes(&other.syn_ack()));
        }),
        ("a SYN-ACK with data", |net, it| {
            assert!(net.passes(&it.received(TCP_SYN | TCP_ACK, 0, &[1])));
        }),
        ("a SYN-ACK of the backend", |net, it| {
            let backend = DnsConnection { resolver: ip(BACKEND), ..*it };
            assert!(net.passes(&backend.syn()) && net.passes(&it.syn_ack()));
        }),
        ("a SYN-ACK from another port of the Service", |net, it| {
            let other = DnsConnection { remote_port: 5353, ..*it };
            assert!(net.passes(&other.syn()) && net.passes(&other.syn_ack()));
        }),
        ("a SYN to the backend", |net, it| {
            assert!(net.passes(&DnsConnection { resolver: ip(BACKEND), ..*it }.syn()));
        }),
        ("another SYN", |net, it| {
            assert!(net.passes(&DnsConnection { client: 9, ..*it }.syn()));
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
            assert!(net.passes(&it.asks(0, &questions())));
        }),
    ];
    for (what, attack) in attacks {
        let net = Net::of_api();
        let connection = connection();
        net.open(&connection);
        assert!(net.passes(&connection.asks(0, &questions())));
        attack(&net, &connection);
        // Regardless of the bytes read before, a whole message begins at each of these positions.
        for at in [0, 1, 2] {
            assert!(net.passes(&connection.answers(at, &good())), "{what}");
        }
        assert!(!net.connects(FOUND), "{what}");
        // The next connection is not read at once: packets of the former one may still be on their way.
        let next = DnsConnection { client: 77, server: 88, ..connection };
        net.open(&next);
        assert!(net.passes(&next.asks(0, &questions())) && net.passes(&next.answers(0, &good())));
        assert!(!net.connects(FOUND), "{what}: too early");
        net.flows.later(60 * HZ);
        net.open(&next);
        assert!(net.passes(&next.asks(0, &questions())) && net.passes(&next.answers(0, &good())));
        assert!(net.connects(FOUND), "{what}: the next connection is read");
    }
}

/// With SYN cookies, the resolver keeps no state for a SYN. Once the first connection has ended, an ACK of the pod
/// opens another one with the same sequence numbers, whose answers begin at the same position.
#[test]
fn no_second_connection_goes_on_in_the_first_ones_place() {
    let first = around(b"");
    // A message of the second connection, which has a forged answer at the position that was reached in the first one.
    let mut filler = vec![b'.'; 200];
    let at = first.len() - (around(&filler).len() - filler.len());
    filler[at..][..evil().len()].copy_from_slice(&evil());
    let second = around(&filler);
    assert_eq!(second[first.len()..][..evil().len()], evil());
    let segments = [&second[..first.len()], &second[first.len()..]];
    // The pod hides its reset in the first fragment, and after a header.
    let reset = |it: &DnsConnection| {
        segment((PORT, 53), TCP_RST | TCP_ACK, (it.client + 1, it.server + 1), &[0; 8])
    };
    let v4 = DnsConnection { server: 1, ..connection() };
    let v6 = DnsConnection { own: ip("fd00::1"), resolver: ip(DNS6), ..v4 };
    let addresses6 = ["fd00::1", DNS6].map(|at| at.parse::<std::net::Ipv6Addr>().unwrap().octets());
    let to = |remote: &str, remote_port| DnsConnection { resolver: ip(remote), remote_port, ..v4 };
    let hidden: [(&str, DnsConnection, DirectedPacket); 13] = [
        ("a reset", v4, v4.reset()),
        ("a reset to the backend", v4, to(BACKEND, 53).reset()),
        ("an end of the pod", v4, v4.sent(TCP_FIN | TCP_ACK, 1, &[])),
        ("an acknowledgement to the backend", v4, to(BACKEND, 53).sent(TCP_ACK, 1, &[])),
        ("bytes to the backend", v4, to(BACKEND, 53).asks(0, &[0])),
        (
            "an acknowledgement of an end that was lost",
            v4,
            DnsConnection { server: v4.server + first.len() as u32 + 1, ..v4 }.sent(
                TCP_ACK,
                1,
                &[],
            ),
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
        // Flows that let the backend's packets pass.
        for port in [53, 5353] {
            assert!(net.passes(&to(BACKEND, port).syn()));
        }
        net.flows.later(60 * HZ);
        net.open(&connection);
        assert!(net.passes(&connection.asks(0, &questions())));
        assert!(net.passes(&connection.answers(0, &first)), "{what}");
        assert_eq!(net.streams(), 1, "{what}");
        assert!(net.passes(&packet), "{what}");
        let mut at = 0;
        for bytes in segments {
            assert!(net.passes(&connection.answers(at, bytes)), "{what}");
            at += bytes.len();
        }
        assert!(!net.connects(EVIL), "{what}");
        assert_eq!(net.streams(), 0, "{what}");
    }
}

/// An end is not lost where another CPU holds the entry.
#[test]
fn an_end_that_meets_a_held_entry_counts() {
    let it = connection();
    for packet in [
        it.fin(0),
        it.received(TCP_RST, 1, &[]),
        it.syn_ack(),
        it.reset(),
        it.sent(TCP_FIN | TCP_ACK, 1, &[]),
        DnsConnection { server: it.server.wrapping_add(1), ..it }.sent(TCP_ACK, 1, &[]),
    ] {
        let net = Net::of_api();
        let _ = net.asked();
        let until = net.set_until(NAME_BUSY);
        assert!(net.passes(&packet), "{packet:02x?}");
        net.set_until(until);
        assert_eq!(net.streams(), 0, "{packet:02x?}");
        assert!(net.passes(&it.answers(0, &good())) && !net.connects(FOUND), "{packet:02x?}");
    }
}

/// A fragment does not show whether it ends a connection.
#[test]
fn no_fragment_of_a_pods_segments_passes() {
    let net = Net::of_api();
    let it = connection();
    let addresses = [[10, 0, 0, 1], [10, 96, 0, 10]];
    // With a header that continues in the next fragment, before any entry.
    let mut reset =
        segment((PORT, 53), TCP_RST | TCP_ACK, (it.client + 1, it.server + 1), &[0; 40]);
    reset[12] = 0xf0;
    let first = ipv4_between(addresses, TCP, &[], 0x2000, &reset[..24]);
    assert!(!net.passes(&(Direction::Egress, first)));
    let to_other = segment((PORT, 443), TCP_ACK, (1, 1), &[0; 40]);
    let first = ipv4_between(addresses, TCP, &[], 0x2000, &to_other[..24]);
    assert!(!net.passes(&(Direction::Egress, first)), "whatever its port");
}

/// Policy may drop a resolver's segment, such as an answer of a forgotten flow. A dropped end may be acknowledged
/// unread, and any other segment may be answered by a reset in the pod's name.
#[test]
fn a_segment_that_policy_drops_ends_the_reading() {
    for flags in [TCP_FIN | TCP_ACK, TCP_RST, TCP_ACK] {
        let net = Net::of_api();
        let connection = net.asked();
        assert!(net.passes(&connection.answers(0, &good()[..9])));
        net.flows.forget_flows();
        let (direction, packet) = connection.received(flags, 10, &[1]);
        let (reason, _) = net.judge(1, direction, &packet);
        assert!(reason.is_drop(), "{reason:?}");
        assert_eq!(net.streams(), 0);
    }
}

/// Hosts that do not know the sequence numbers cannot end the reading.
#[test]
fn a_strangers_packets_end_nothing() {
    let net = Net::of_api();
    let connection = net.asked();
    for (server, remote_port) in [(1 << 30, 53), (connection.server.wrapping_add(WINDOW * 2), 443)]
    {
        let stranger =
            DnsConnection { resolver: ip("192.0.2.9"), server, remote_port, ..connection };
        for flags in [TCP_SYN, TCP_SYN | TCP_ACK, TCP_FIN | TCP_ACK, TCP_RST, TCP_ACK] {
            let (direction, packet) = stranger.received(flags, 1, &[0]);
            net.judge(1, direction, &packet);
        }
    }
    // A frame to another pod that a bridge floods.
    let other = DnsConnection { own: ip("10.9.9.9"), ..connection };
    for flags in [TCP_FIN | TCP_ACK, TCP_RST, TCP_ACK] {
        let (direction, packet) = other.received(flags, 1, &[0]);
        net.judge(1, direction, &packet);
    }
    assert!(net.passes(&connection.answers(0, &good())) && net.connects(FOUND));
}

/// Two CPUs may write an entry each when the pod sends two SYNs at once.
#[test]
fn two_entries_of_one_connection_are_not_read() {
    for packet in [DnsConnection::syn, |it: &DnsConnection| it.answers(0, &good())] {
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
        assert!(net.passes(&packet(&connection)));
        assert_eq!(net.streams(), 0);
        assert!(net.passes(&connection.answers(0, &good())) && !net.connects(FOUND));
    }
}

#[test]
fn a_flood_of_names_displaces_only_the_own_ones() {
    let net = Net::new(vec![accept(vec![domain("*.example.com")], Some(vec![tcp(443)]))]);
    net.resolve(API, &found(API, 300));
    let name = wire("x.example.com");
    for n in 0..4096_u32 {
        let records: Vec<_> = (0..64)
            .map(|m| {
                Record::address(
                    pointer(),
                    IpAddr::from((0xc612_0000 + n * 64 + m).to_be_bytes()),
                    300,
                )
            })
            .collect();
        net.send(2, DNS, 6000, &query(n as u16, &name));
        net.deliver(2, DNS, 6000, &answer(n as u16, &name, &records));
    }
    assert!(net.reaches(1, FOUND, 443), "131,072 entries for 262,144 addresses of another pod");
    // On average, four of a bucket's eight entries.
    let last = (0xc612_0000 + 3072 * 64..0xc612_0000 + 4096 * 64_u32).step_by(61);
    let (open, all) = last.fold((0, 0), |(open, all), address| {
        let address = IpAddr::from(address.to_be_bytes()).to_string();
        (open + usize::from(net.reaches(2, &address, 443)), all + 1)
    });
    assert!(open * 2 > all, "of {all} recent addresses, {open} are open");
    net.resolve(API, &[Record::address(pointer(), ip("192.0.2.8"), 300)]);
    assert!(net.reaches(1, "192.0.2.8", 443), "and there is room for further ones");
}

#[test]
fn a_flood_of_connections_displaces_only_the_own_ones() {
    let net = Net::of_api();
    let connection = net.asked();
    for port in 1024..9_000_u16 {
        let numbers = (port.into(), 7);
        let other = DnsConnection::new(ip("10.0.0.2"), ip(DNS), port, numbers);
        assert!(net.at(2, other.syn()));
    }
    assert!(net.entries() > 500, "{}", net.entries());
    assert!(net.passes(&connection.answers(0, &good())) && net.connects(FOUND));
    let next = DnsConnection { port: PORT + 1, ..connection };
    net.open(&next);
    assert!(net.passes(&next.asks(0, &questions())));
    assert!(net.passes(&next.answers(0, &evil())) && net.connects(EVIL), "there is room for it");
}

#[test]
fn a_port_that_is_no_resolvers_has_no_entry() {
    let net = Net::new(vec![accept(vec![domain(API)], Some(vec![tcp(443)]))]);
    for other in [
        DnsConnection { remote_port: 853, ..connection() },
        DnsConnection { resolver: ip(BACKEND), remote_port: 5353, ..connection() },
    ] {
        net.open(&other);
    }
    assert_eq!(net.streams(), 0);
}

/// A connection belongs to the pod instance, also where two pods have the same address and port.
#[test]
fn another_pods_packets_count_for_its_own_connections_alone() {
    let net = Net::of_api();
    let mine = net.asked();
    assert!(net.passes(&mine.answers(0, &good()[..9])));
    // At the other pod's interface; its source is checked elsewhere.
    for (direction, packet) in
        [mine.syn(), mine.reset(), mine.fin(9), mine.answers(9, &good()[9..])]
    {
        net.judge(2, direction, &packet);
    }
    assert_eq!(net.streams(), 1, "nothing ended, nothing begun");
    let theirs = DnsConnection { own: ip("10.0.0.2"), ..mine };
    for packet in theirs.handshake() {
        assert!(net.at(2, packet));
    }
    assert!(net.at(2, theirs.answers(0, &evil())), "the question of a/p");
    assert!(!net.connects(EVIL));
    assert!(net.passes(&mine.answers(9, &good()[9..])) && net.connects(FOUND));
    assert!(!net.reaches(2, FOUND, 443) && !net.reaches(2, EVIL, 443));
}

/// Answers do not count without their question in the same connection, or late.
#[test]
fn an_answer_counts_once_for_a_question_of_its_connection() {
    let of = |id: u16, name: &str, at: &str| {
        framed(&answer(id, &wire(name), &[Record::address(pointer(), ip(at), 300)]))
    };
    for (what, bytes) in [
        ("another identifier", of(8, API, EVIL)),
        ("another name", of(7, "www.example.com", EVIL)),
        ("a question instead of an answer", framed(&question())),
    ] {
        let net = Net::of_api();
        let it = net.asked();
        assert!(net.passes(&it.answers(0, &bytes)));
        assert!(!net.connects(EVIL), "{what}");
        assert!(net.passes(&it.answers(bytes.len(), &good())) && !net.connects(FOUND), "{what}");
    }
    let net = Net::of_api();
    let it = net.asked();
    assert!(net.passes(&it.answers(0, &good())) && net.connects(FOUND));
    assert!(net.passes(&it.answers(good().len(), &evil())) && !net.connects(EVIL), "a second one");
    let net = Net::of_api();
    let it = connection();
    net.open(&it);
    assert!(net.passes(&it.answers(0, &evil())) && !net.connects(EVIL), "not asked");
    let net = Net::of_api();
    let (asked, other) = (net.asked(), DnsConnection { port: PORT + 1, ..connection() });
    net.open(&other);
    assert!(net.passes(&other.answers(0, &evil())) && !net.connects(EVIL), "asked elsewhere");
    net.flows.later(11 * HZ);
    assert!(net.passes(&asked.answers(0, &good())) && !net.connects(FOUND), "too late");
}

/// A server at port 53 opens an address only if it is a trusted resolver, also if the pod has another connection to a
/// resolver from the same port.
#[test]
fn a_server_that_is_no_resolver_opens_nothing() {
    let rules =
        vec![accept(vec![domain(API)], None), accept(vec![block("192.0.2.0/28", &[])], None)];
    let net = Net::new(rules);
    let stranger = DnsConnection { resolver: ip("192.0.2.9"), ..connection() };
    net.open(&stranger);
    assert!(net.passes(&stranger.asks(0, &questions())));
    assert!(net.passes(&stranger.answers(0, &evil())));
    assert!(!net.connects(EVIL));
    assert_eq!(net.streams(), 0);
    // The resolver's connection, with bytes of the stranger at the same position.
    net.flows.later(60 * HZ);
    let it = net.asked();
    let same = DnsConnection { resolver: ip("192.0.2.9"), ..it };
    assert!(net.passes(&same.answers(0, &evil())));
    assert!(!net.connects(EVIL));
    assert!(net.passes(&it.answers(0, &good())) && net.connects(FOUND));
}

/// Connections whose handshake never completes are not read, and occupy an entry no longer than a question does.
#[test]
fn a_half_open_connection_is_not_read() {
    let net = Net::of_api();
    let it = connection();
    assert!(net.passes(&it.syn()) && net.passes(&it.asks(0, &questions())));
    // The answer passes because it belongs to a flow, but no SYN-ACK was read.
    assert!(net.passes(&it.answers(0, &good())) && !net.connects(FOUND));
    let net = Net::of_api();
    assert!(net.passes(&it.syn()));
    net.flows.later(11 * HZ);
    assert!(net.passes(&it.syn_ack()) && net.passes(&it.asks(0, &questions())));
    assert!(net.passes(&it.answers(0, &good())) && !net.connects(FOUND), "a late SYN-ACK");
    assert_eq!(net.streams(), 0);
}

/// With SYN cookies, the number that the pod acknowledges decides about the connection: with another number, the
/// answers begin at another byte than the SYN-ACK shows. The pod sends such an acknowledgement before the SYN-ACK,
/// after it, and in a new SYN.
#[test]
fn only_the_number_of_the_syn_ack_is_acknowledged() {
    let it = connection();
    for shift in [-3, -2, -1, 1, 2, 3, 1 << 24, -(1 << 24)] {
        let cookie = DnsConnection { server: it.server.wrapping_add_signed(shift), ..it };
        let (first, answers) = (cookie.sent(TCP_ACK, 1, &[]), cookie.answers(0, &[]));
        for is_early in [false, true] {
            let net = Net::of_api();
            assert!(net.passes(&it.syn()));
            if is_early {
                assert!(net.passes(&first) && net.passes(&it.syn()) && net.passes(&it.syn_ack()));
            } else {
                assert!(net.passes(&it.syn_ack()) && net.passes(&first));
            }
            assert!(net.passes(&it.asks(0, &questions())));
            assert!(net.passes(&it.answers(0, &good())) && !net.connects(FOUND), "{shift}");
            assert_eq!(net.streams(), 0, "{shift}");
        }
        // The resolver's own acknowledgement shows another connection, too.
        let net = Net::of_api();
        let _ = net.asked();
        assert!(net.passes(&answers));
        assert_eq!(net.streams(), 0, "{shift}");
    }
}

/// An acknowledgement before the SYN, at a port without an entry, may have opened a connection.
#[test]
fn a_packet_without_an_entry_casts_doubt_on_the_next_one() {
    for packet in [
        |it: &DnsConnection| it.sent(TCP_ACK, 1, &[]),
        |it: &DnsConnection| it.asks(0, &[0]),
        DnsConnection::reset,
    ] {
        for (seconds, counts) in [(0, false), (29, false), (45, true)] {
            let net = Net::of_api();
            let it = connection();
            assert!(net.passes(&packet(&it)));
            net.flows.later(seconds * HZ);
            let it = net.asked();
            assert!(net.passes(&it.answers(0, &good())));
            assert_eq!(net.connects(FOUND), counts, "{seconds} s");
        }
    }
}

/// The pod's own SYNs, and those of others, displace entries, but do not clear doubts.
#[test]
fn a_displaced_entry_leaves_a_doubt() {
    let net = Net::of_api();
    let it = connection();
    assert!(net.passes(&it.syn()));
    for port in 1024..9_000_u16 {
        assert!(net.passes(&DnsConnection { port, ..it }.syn()));
    }
    let it = net.asked();
    assert!(net.passes(&it.answers(0, &good())) && !net.connects(FOUND));
    assert!(net.is_doubted(1, PORT) || net.streams() == 0);
}

/// The pod's bytes may reach one connection only: if they are sent again, they may reach a second one.
#[test]
fn bytes_that_are_sent_again_end_the_reading() {
    let it = connection();
    for packet in [
        it.asks(0, &questions()),
        it.asks(questions().len() - 1, &[0]),
        it.asks(questions().len() + 1, &[0]),
        it.asks(questions().len(), &[0; 1_024]),
        it.sent(TCP_ACK, 0, &[]),
        it.sent(0, 1, &[]),
    ] {
        let net = Net::of_api();
        let _ = net.asked();
        assert!(net.passes(&packet));
        assert!(net.passes(&it.answers(0, &good())) && !net.connects(FOUND), "{packet:02x?}");
    }
}
