//! Resets forwarded to the receiver of a connection that policy has cut.

use netpold_ebpf::layout::{EP_REJECT_EGRESS, EP_REJECT_INGRESS};
use netpold_testkit::frames::{ACK, FAMILIES, FIN, IpVersion, RST, SYN, TCP, Who, frame, ip, tcp};
use netpold_testkit::node::NodeTables;
use netpold_testkit::one_pod::{
    DENY_ROW, Direction, EGRESS_ROW, IFINDEX, INGRESS_ROW, set_rows, with_rows,
};
use netpold_testkit::reject::{PacketArrival, Sent, sent as answers, sent_within};

use super::{arrival, denied, rejecting, sent, sum};

/// A segment of the client's connection with the pod.
fn segment(family: IpVersion, direction: Direction, flags: u8, data: &[u8]) -> Vec<u8> {
    let of = |source, destination| [tcp(source, destination, flags), data.to_vec()].concat();
    match direction {
        Direction::Ingress => frame(&ip(family, Who::Client, Who::Pod, TCP, &of(4000, 80))),
        Direction::Egress => sent(&ip(family, Who::Pod, Who::Client, TCP, &of(80, 4000))),
    }
}

/// A pod with an open connection of the client, before a change of policy cuts it.
fn connected(family: IpVersion, shakes: usize) -> NodeTables {
    let mut tables = rejecting(with_rows(INGRESS_ROW, EGRESS_ROW));
    let handshake =
        [(Direction::Ingress, SYN), (Direction::Egress, SYN | ACK), (Direction::Ingress, ACK)];
    for (direction, flags) in handshake.into_iter().take(shakes) {
        let frame = segment(family, direction, flags, &[]);
        let hook = arrival(direction).hook;
        assert!(!tables.judge(direction, hook, &frame).reason().is_drop());
    }
    set_rows(&mut tables, DENY_ROW, DENY_ROW);
    tables
}

/// The first denied segment of a cut connection resets both ends; later segments reset their sender only.
#[test]
fn a_cut_connection_is_reset_at_both_ends_once() {
    for family in FAMILIES {
        let at = if family == IpVersion::V4 { 34 } else { 54 };
        for direction in [Direction::Ingress, Direction::Egress] {
            for (flags, data) in [(ACK, &b"question"[..]), (ACK, b""), (FIN | ACK, b"")] {
                let tables = connected(family, 3);
                let frame = segment(family, direction, flags, data);
                let Sent { back, onward } = answers(&tables, &arrival(direction), &frame);
                let (back, onward) = (back.expect("an answer"), onward.expect("a reset"));
                // Sequence number 1, acknowledgement number 2.
                assert_eq!(back[at + 4..at + 14], [0, 0, 0, 2, 0, 0, 0, 0, 0x50, RST]);
                assert_eq!(onward[at + 4..at + 14], [0, 0, 0, 1, 0, 0, 0, 2, 0x50, RST | ACK]);
                // Link header, addresses and ports of the segment; nothing of its data.
                assert_eq!(
                    (&onward[..14], &onward[at..at + 4]),
                    (&frame[..14], &frame[at..at + 4])
                );
                let addresses = if family == IpVersion::V4 { 26..34 } else { 22..54 };
                assert_eq!(onward[addresses.clone()], frame[addresses]);
                assert_eq!((onward.len(), sum(&onward, family)), (at + 20, 0xffff));
                let again = answers(&tables, &arrival(direction), &frame);
                assert!(again.back.is_some() && again.onward.is_none(), "{again:?}");
            }
        }
    }
}

/// After a segment of the other end, a reset is forwarded as well, once and without its data.
#[test]
fn a_reset_of_a_cut_connection_goes_on_once() {
    for family in FAMILIES {
        let at = if family == IpVersion::V4 { 34 } else { 54 };
        for (direction, other) in
            [(Direction::Ingress, Direction::Egress), (Direction::Egress, Direction::Ingress)]
        {
            for flags in [RST, RST | ACK] {
                let tables = connected(family, 3);
                let silent = Sent::default();
                let cut = answers(&tables, &arrival(other), &segment(family, other, ACK, &[]));
                assert!(cut.onward.is_some());
                let frame = segment(family, direction, flags, b"data of a hostile pod");
                let Sent { back, onward } = answers(&tables, &arrival(direction), &frame);
                let onward = onward.expect("a reset");
                assert_eq!((back, onward.len()), (None, at + 20), "without its data");
                assert_eq!(onward[at + 13], flags);
                assert_eq!(answers(&tables, &arrival(direction), &frame), silent);
                let later = segment(family, direction, ACK, &[]);
                assert_eq!(answers(&tables, &arrival(direction), &later).onward, None);
            }
        }
    }
}

/// A reset that arrives while the limit of answers is used up does not use up a later reset.
#[test]
fn a_reset_beyond_the_limit_leaves_its_place_to_a_later_one() {
    for family in FAMILIES {
        for direction in [Direction::Ingress, Direction::Egress] {
            let tables = connected(family, 3);
            let frame = segment(family, direction, RST, &[]);
            for (has_left, goes_on) in [(false, false), (true, true), (true, false)] {
                let Sent { onward, .. } =
                    sent_within(&tables, &arrival(direction), &frame, has_left);
                assert_eq!(onward.is_some(), goes_on, "{family:?} {direction:?} {has_left}");
            }
        }
    }
}

/// Only segments of connections that are established in the table are forwarded as resets.
#[test]
fn what_does_not_go_on() {
    for family in FAMILIES {
        for direction in [Direction::Ingress, Direction::Egress] {
            let onward = |tables: &NodeTables, frame: &[u8]| {
                answers(tables, &arrival(direction), frame).onward
            };
            let data = segment(family, direction, ACK, b"x");
            let reset = segment(family, direction, RST, &[]);
            for shakes in 0..3 {
                let tables = connected(family, shakes);
                assert_eq!(onward(&tables, &data), None, "{shakes} of three packets");
                assert_eq!(onward(&tables, &reset), None, "{shakes} of three packets");
            }
            let tables = connected(family, 3);
            for flags in [SYN, SYN | ACK, 0, FIN] {
                assert_eq!(onward(&tables, &segment(family, direction, flags, &[])), None);
            }
            let of = |protocol, data: &[u8]| denied(direction, family, protocol, data);
            assert_eq!(onward(&tables, &of(TCP, &tcp(4000, 80, ACK))), None, "another's");
            let mut other_port = data.clone();
            let at = if family == IpVersion::V4 { 34 } else { 54 };
            other_port[at + 1] ^= 1;
            assert_eq!(onward(&tables, &other_port), None, "another connection's");
            // A packet whose source may be forged.
            if direction == Direction::Ingress {
                let unrouted = PacketArrival { routed: false, ..arrival(direction) };
                assert_eq!(answers(&tables, &unrouted, &data), Sent::default());
                assert_eq!(answers(&tables, &unrouted, &reset), Sent::default());
            }
            let mut dropping = connected(family, 3);
            dropping.endpoint_mut(IFINDEX).flags &= !(EP_REJECT_INGRESS | EP_REJECT_EGRESS);
            assert_eq!(answers(&dropping, &arrival(direction), &data), Sent::default());
            assert_eq!(answers(&dropping, &arrival(direction), &reset), Sent::default());
            tables.flows.later(10 * 24 * 3600 * 1000);
            assert_eq!(onward(&tables, &data), None, "an expired entry");
            assert!(onward(&connected(family, 3), &data).is_some());
        }
    }
}

/// A connection that policy allows again continues undisturbed, without further resets.
#[test]
fn resets_go_on_once_for_each_connection() {
    let mut tables = connected(IpVersion::V4, 3);
    let data = segment(IpVersion::V4, Direction::Ingress, ACK, b"x");
    let arrival = arrival(Direction::Ingress);
    assert!(answers(&tables, &arrival, &data).onward.is_some());
    set_rows(&mut tables, INGRESS_ROW, EGRESS_ROW);
    assert!(!tables.judge(Direction::Ingress, arrival.hook, &data).reason().is_drop());
    set_rows(&mut tables, DENY_ROW, DENY_ROW);
    let again = answers(&tables, &arrival, &data);
    assert!(again.back.is_some() && again.onward.is_none());
}

/// A client with a low port and a server with a high one: the ports alone would take the server for the client.
#[test]
fn denied_packets_turn_no_connection_around() {
    let arrive = |way: Direction, server: Direction, flags: u8, data: &[u8]| {
        let is_clients = way == server;
        let (from, to) = if is_clients { (1024, 50_051) } else { (50_051, 1024) };
        let of = [tcp(from, to, flags), data.to_vec()].concat();
        match way {
            Direction::Ingress => frame(&ip(IpVersion::V4, Who::Friend, Who::Pod, TCP, &of)),
            Direction::Egress => sent(&ip(IpVersion::V4, Who::Pod, Who::Friend, TCP, &of)),
        }
    };
    // The pod as the server, and as the client: the direction of the client's packets is denied.
    for (of_client, of_server, rows) in [
        (Direction::Ingress, Direction::Egress, (DENY_ROW, 0)),
        (Direction::Egress, Direction::Ingress, (INGRESS_ROW, DENY_ROW)),
    ] {
        for denied in [[RST, ACK], [RST, RST], [ACK, RST], [ACK, ACK]] {
            let mut tables = rejecting(with_rows(INGRESS_ROW, 0));
            let passes = |tables: &NodeTables, way, flags, data: &[u8]| {
                let frame = arrive(way, of_client, flags, data);
                !tables.judge(way, arrival(way).hook, &frame).reason().is_drop()
            };
            for (way, flags) in [(of_client, SYN), (of_server, SYN | ACK), (of_client, ACK)] {
                assert!(passes(&tables, way, flags, &[]));
            }
            set_rows(&mut tables, rows.0, rows.1);
            let mut onward = 0;
            for round in 0..3 {
                for flags in denied {
                    let frame = arrive(of_client, of_client, flags, b"x");
                    let sent = answers(&tables, &arrival(of_client), &frame);
                    onward += usize::from(sent.onward.is_some());
                }
                // Answers are not judged, so no answer ends an entry, regardless of how long the server is silent.
                if round == 0 {
                    tables.flows.later(60_000);
                }
                // A challenge ACK, data, and a FIN of the server.
                for flags in [ACK, ACK | 8, ACK | FIN] {
                    assert!(passes(&tables, of_server, flags, b"y"), "{round}");
                    assert!(!passes(&tables, of_client, ACK, b"z"), "{of_client:?} {denied:?}");
                }
                tables.flows.later(60_000);
            }
            let kinds = 1 + usize::from(denied[0] != denied[1]);
            assert!(onward <= kinds && onward > 0, "{onward} of {denied:?}");
        }
    }
}
