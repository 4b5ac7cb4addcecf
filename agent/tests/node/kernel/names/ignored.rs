//! Answers that open no address: each reason is counted in the kernel as on the host.

use std::net::IpAddr;

use netpold_core::model::{Action, Direction};
use netpold_ebpf::names::ignored::IgnoredAnswer;
use netpold_ebpf::packet::protocol::UDP;
use netpold_testkit::frames::{frame, ipv4_between, ipv6_between, udp};
use netpold_testkit::names::{Record, answer, query, wire};
use netpold_testkit::objects::{block, cluster_rule, ip};
use netpold_testkit::streams::{DnsConnection, framed};

use super::{DNS, OWN, STRANGER, came, domain, judge, only, world};
use crate::kernel::world::{UPLINK, World};

const NAME: &str = "a.example";
const PORT: u16 = 5_000;

/// Counts of all reasons, equal in the kernel and on the host.
pub(super) fn counts(world: &World) -> [u64; IgnoredAnswer::COUNT] {
    IgnoredAnswer::ALL.map(|reason| {
        let on_host = world.host.flows.ignored(reason);
        assert_eq!(world.counted(reason.counter()), on_host, "{reason:?} on the host");
        on_host
    })
}

fn asks(world: &mut World, server: &str, id: u16) {
    let question = udp(PORT, 53, &query(id, &wire(NAME)));
    assert!(!judge(world, Direction::Egress, server, UDP, &question).is_drop());
}

fn answers(world: &mut World, server: &str, message: &[u8]) {
    let answer = udp(53, PORT, message);
    assert!(!judge(world, Direction::Ingress, server, UDP, &answer).is_drop());
}

/// An answer with a number of addresses.
fn found(id: u16, records: usize) -> Vec<u8> {
    let record = Record::address(vec![0xc0, 12], ip("198.18.7.7"), 600);
    answer(id, &wire(NAME), &vec![record; records])
}

/// The first fragment of a datagram.
fn first_fragment(from: IpAddr, to: IpAddr, datagram: &[u8]) -> Vec<u8> {
    const MORE: u16 = 1 << 13;
    frame(&match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            ipv4_between([from.octets(), to.octets()], UDP, &[], MORE, datagram)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let header = [UDP, 0, 0, 1, 0, 0, 0, 7];
            let data = [&header, datagram].concat();
            ipv6_between([from.octets(), to.octets()], 44, 64, &data)
        }
        _ => panic!("{from} and {to} are of two families"),
    })
}

#[test]
fn ignored_answers_are_counted_by_reason() {
    if !netpold_testbed::require_root("a test of the programs") {
        return;
    }
    let strangers = [STRANGER, "2001:db8::53"];
    let stranger = strangers.map(|at| block(&format!("{at}/{}", width(at)), &[])).to_vec();
    let rules = vec![
        cluster_rule(Action::Accept, stranger, None),
        cluster_rule(Action::Accept, vec![domain(NAME)], None),
    ];
    for family in 0..2 {
        let mut world = world(only(rules.clone()));
        let (server, stranger) = (DNS[family], strangers[family]);
        let mut expected = [0; IgnoredAnswer::COUNT];
        let mut counts_one_more = |world: &World, reason: IgnoredAnswer| {
            expected[reason as usize] += 1;
            assert_eq!(counts(world), expected, "{reason:?}, {server}");
        };

        asks(&mut world, stranger, 1);
        answers(&mut world, stranger, &found(1, 1));
        counts_one_more(&world, IgnoredAnswer::NotResolver);

        asks(&mut world, server, 2);
        answers(&mut world, server, &found(3, 1));
        counts_one_more(&world, IgnoredAnswer::NoQuestion);

        // Neither a name without addresses nor an error is ignored.
        answers(&mut world, server, &found(2, 0));
        asks(&mut world, server, 2);
        let mut refused = found(2, 0);
        refused[3] |= 5;
        answers(&mut world, server, &refused);

        asks(&mut world, server, 4);
        let whole = found(4, 2);
        answers(&mut world, server, &whole[..whole.len() - 1]);
        counts_one_more(&world, IgnoredAnswer::Malformed);

        asks(&mut world, server, 5);
        let datagram = udp(53, PORT, &found(5, 40));
        let fragment = first_fragment(ip(server), ip(OWN[family]), &datagram[..256]);
        assert!(!world.judge(Direction::Ingress, UPLINK, &fragment).is_drop());
        counts_one_more(&world, IgnoredAnswer::Fragment);

        asks(&mut world, server, 6);
        answers(&mut world, server, &found(6, 65));
        counts_one_more(&world, IgnoredAnswer::TooManyRecords);

        // Another packet of the connection would be the next one.
        let it = DnsConnection::new(ip(OWN[family]), ip(server), 42_000, (7, 9));
        let question = it.asks(0, &framed(&query(7, &wire(NAME))));
        for (direction, packet) in it.handshake().into_iter().chain([question]) {
            assert!(world.judge_and_read(direction, came(direction), &frame(&packet)).1);
        }
        let (direction, packet) = it.answers(1, &framed(&found(7, 1))[1..]);
        assert!(world.judge_and_read(direction, UPLINK, &frame(&packet)).1);
        counts_one_more(&world, IgnoredAnswer::UnreadSegment);

        for id in 0..20_000 {
            asks(&mut world, server, id);
            if world.host.flows.ignored(IgnoredAnswer::NoRoom) == 1 {
                break;
            }
        }
        counts_one_more(&world, IgnoredAnswer::NoRoom);
    }
}

fn width(address: &str) -> u8 {
    if address.contains(':') { 128 } else { 32 }
}
