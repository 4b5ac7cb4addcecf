//! Answers to denied packets: their form, and the packets that get none.

use netpold_ebpf::{
    host::HostMemory,
    judge::{hook::Hook, proof::DEFAULT_BIT, reject},
    layout::{
        EP_CHECK_SOURCE, EP_REJECT_EGRESS, EP_REJECT_INGRESS, Endpoint, REJECTION, STRANGER,
        Settings,
    },
    reason::Reason,
};
use netpold_testkit::frames::{
    ACK, FAMILIES, FIN, Family, RST, SCTP, SYN, TCP, UDP, Who, ether, frame, icmp, ip, ipv4, ipv6,
    sctp, tcp, udp, vlan,
};
use netpold_testkit::node::NodeTables;
use netpold_testkit::one_pod::{
    DENY_ROW, Direction, EGRESS_ROW, IFINDEX, INGRESS_ROW, UPLINK, set_rows, with_rows,
};
use netpold_testkit::oracle::Denied;
use netpold_testkit::random::Random;
use netpold_testkit::reject::{Arrival, Sent, answer, sent as answers};

const PROOF: u32 = 1 << DEFAULT_BIT;
/// Destination address of the test kit's frames.
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Interface of another pod, the friend's.
const OTHER: u32 = IFINDEX + 7;

/// A pod that may do nothing, and rejects.
fn tables() -> NodeTables {
    rejecting(with_rows(DENY_ROW, DENY_ROW))
}

fn rejecting(mut tables: NodeTables) -> NodeTables {
    let pod = tables.endpoint_mut(IFINDEX);
    pod.flags |= EP_REJECT_INGRESS | EP_REJECT_EGRESS | Endpoint::pack_station(STATION);
    tables
}

fn arrival(direction: Direction) -> Arrival {
    let ingress_ifindex = if direction == Direction::Egress { IFINDEX } else { UPLINK };
    let hook = Hook { ifindex: IFINDEX, ingress_ifindex };
    Arrival { direction, hook, mark: 0, tc_index: 0, routed: true }
}

/// A frame from the pod has the pod's hardware address as source.
fn sent(packet: &[u8]) -> Vec<u8> {
    let mut frame = frame(packet);
    frame.copy_within(..6, 6);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame
}

/// The packet in its direction, and its frame: the pod and a stranger.
fn denied(direction: Direction, family: Family, protocol: u8, data: &[u8]) -> Vec<u8> {
    match direction {
        Direction::Ingress => frame(&ip(family, Who::Stranger, Who::Pod, protocol, data)),
        Direction::Egress => sent(&ip(family, Who::Pod, Who::Stranger, protocol, data)),
    }
}

/// Sum of a message with its pseudo header; all ones if its checksum is right.
fn sum(answer: &[u8], family: Family) -> u16 {
    let (addresses, protocol, at) = match family {
        Family::V4 => (&answer[26..34], answer[23], 34),
        Family::V6 => (&answer[22..54], answer[20], 54),
    };
    let message = &answer[at..];
    let pseudo = [addresses, &[0, protocol], &(message.len() as u16).to_be_bytes()].concat();
    let pseudo = if protocol == 1 { Vec::new() } else { pseudo };
    add(&[&pseudo, message].concat())
}

fn add(bytes: &[u8]) -> u16 {
    assert_eq!(bytes.len() % 2, 0);
    let sum = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    fold(fold(sum)) as u16
}

#[test]
fn answers_go_back_with_right_checksums() {
    let tables = tables();
    for direction in [Direction::Ingress, Direction::Egress] {
        for family in FAMILIES {
            let long = udp(4000, 53, &[7; 1000]);
            let packets = [
                (TCP, tcp(4000, 81, SYN)),
                (UDP, udp(4000, 53, b"odd")),
                (UDP, long),
                (SCTP, sctp(4000, 80, 1)),
                (family.icmp(), icmp(family.echo_request(), 0, [0; 4], &[1; 9])),
                (253, vec![1; 30]),
                (253, Vec::new()),
            ];
            for (protocol, data) in packets {
                let frame = denied(direction, family, protocol, &data);
                let answer = answer(&tables, &arrival(direction), &frame).expect("an answer");
                assert_eq!((&answer[..6], &answer[6..12]), (&frame[6..12], &frame[..6]));
                assert_eq!(answer[12..14], frame[12..14]);
                let (source, destination) = match family {
                    Family::V4 => (26..30, 30..34),
                    Family::V6 => (22..38, 38..54),
                };
                assert_eq!(answer[source.clone()], frame[destination.clone()]);
                assert_eq!(answer[destination], frame[source]);
                assert_eq!(sum(&answer, family), 0xffff, "{protocol} {family:?}");
                if family == Family::V4 {
                    assert_eq!(add(&answer[14..34]), 0xffff);
                    assert_eq!(
                        usize::from(answer[17]) + usize::from(answer[16]) * 256 + 14,
                        answer.len()
                    );
                }
                let headers = if family == Family::V4 { 28 } else { 48 };
                assert!(answer.len() <= frame.len() + headers, "no amplifier");
                assert!(answer.len() <= 576, "{}", answer.len());
            }
        }
    }
}

#[test]
fn segments_get_a_reset_that_their_sender_accepts() {
    let tables = tables();
    for direction in [Direction::Ingress, Direction::Egress] {
        for (family, at) in [(Family::V4, 34), (Family::V6, 54)] {
            for (flags, data, expected) in [
                // Sequence number 1, acknowledgement number 2.
                (SYN, 0, (0_u32, 2_u32, RST | ACK)),
                (SYN, 5, (0, 7, RST | ACK)),
                (FIN, 0, (0, 2, RST | ACK)),
                (0, 3, (0, 4, RST | ACK)),
                (ACK, 9, (2, 0, RST)),
                (SYN | ACK, 0, (2, 0, RST)),
            ] {
                let segment = [tcp(4000, 81, flags), vec![0; data]].concat();
                let frame = denied(direction, family, TCP, &segment);
                let answer = answer(&tables, &arrival(direction), &frame).expect("a reset");
                let word = |at: usize| {
                    u32::from_be_bytes(answer[at..at + 4].try_into().expect("four bytes"))
                };
                let found = (word(at + 4), word(at + 8), answer[at + 13]);
                assert_eq!(found, expected, "{flags:x} with {data} bytes");
                assert_eq!(answer[at..at + 4], [0, 81, 0x0f, 0xa0], "the ports reversed");
                assert_eq!(answer.len(), at + 20);
            }
        }
    }
}

#[test]
fn errors_quote_the_packet() {
    let tables = tables();
    for (family, at, kind) in [(Family::V4, 34, [3, 13]), (Family::V6, 54, [1, 1])] {
        for length in [0, 1, 40, 400, 1200] {
            let frame = denied(Direction::Egress, family, UDP, &udp(1, 2, &vec![5; length]));
            let answer = answer(&tables, &arrival(Direction::Egress), &frame).expect("an error");
            assert_eq!(answer[at..at + 2], kind);
            let quoted = &answer[at + 8..];
            let most = (frame.len() - 14).min(508);
            assert!(frame[14..].starts_with(quoted) && most - quoted.len() < 4, "{length}");
        }
    }
}

/// Nothing of this gets an answer, in either direction.
#[test]
fn what_gets_no_answer() {
    let tables = tables();
    for direction in [Direction::Ingress, Direction::Egress] {
        let silent = |frame: &[u8], what: &str| {
            let answer = answer(&tables, &arrival(direction), frame);
            assert_eq!(answer, None, "{what}: {direction:?}");
        };
        for family in FAMILIES {
            let of = |protocol, data: &[u8]| denied(direction, family, protocol, data);
            silent(&of(TCP, &tcp(1, 2, RST)), "a reset");
            silent(&of(TCP, &tcp(1, 2, RST | ACK)), "a reset");
            let quoted = ip(family, Who::Pod, Who::Stranger, UDP, &udp(9, 9, &[]));
            for kind in [0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 100, 127, 129, 133, 200] {
                if kind != family.echo_request() {
                    silent(&of(family.icmp(), &icmp(kind, 0, [0; 4], &quoted)), "ICMP");
                }
            }
            silent(&of(59 - family.icmp(), &icmp(8, 0, [0; 4], &[])), "the other family's ICMP");
            let mut group = of(UDP, &udp(1, 2, b"x"));
            group[0] |= 1;
            silent(&group, "a frame to a group");
            silent(&vlan(&[0x8100], &of(UDP, &udp(1, 2, b"x"))), "a tag");
            let plain = of(UDP, &udp(1, 2, b"x"));
            for length in 14..plain.len() {
                silent(&plain[..length], "a truncated packet");
            }
            let (from, to) = match direction {
                Direction::Ingress => (Who::Stranger, Who::Pod),
                Direction::Egress => (Who::Pod, Who::Stranger),
            };
            let mut later = family.fragment(from, to, 100, false, &[0; 40]);
            if direction == Direction::Egress {
                later.copy_within(..6, 6);
                later[0] = 2;
            }
            silent(&later, "a later fragment");
        }
        let options = match direction {
            Direction::Ingress => {
                frame(&ipv4(Who::Stranger, Who::Pod, UDP, &[1; 4], 0, &udp(1, 2, b"x")))
            }
            Direction::Egress => {
                sent(&ipv4(Who::Pod, Who::Stranger, UDP, &[1; 4], 0, &udp(1, 2, b"x")))
            }
        };
        silent(&options, "options");
        let (from, to) = match direction {
            Direction::Ingress => (Who::Stranger, Who::Pod),
            Direction::Egress => (Who::Pod, Who::Stranger),
        };
        for next in [0, 60] {
            let data = [&[UDP, 0, 1, 4, 0, 0, 0, 0], &udp(1, 2, b"x")[..]].concat();
            let packet = ipv6(from, to, next, 64, &data);
            let frame = if direction == Direction::Egress { sent(&packet) } else { frame(&packet) };
            silent(&frame, "an extension header");
        }
        silent(&ether(0x0806, &[0; 28]), "ARP");
    }
}

/// Addresses that are no single host's.
#[test]
fn groups_and_special_addresses_get_no_answer() {
    let tables = tables();
    let to = |frame: &mut [u8], at: usize, address: &[u8]| {
        frame[at..at + address.len()].copy_from_slice(address);
    };
    for address in [[224, 0, 0, 9], [255; 4], [0, 1, 2, 3], [127, 0, 0, 1], [240, 0, 0, 1]] {
        let mut sent = denied(Direction::Egress, Family::V4, UDP, &udp(1, 2, &[]));
        to(&mut sent, 30, &address);
        assert_eq!(answer(&tables, &arrival(Direction::Egress), &sent), None, "to {address:?}");
        let mut received = denied(Direction::Ingress, Family::V4, UDP, &udp(1, 2, &[]));
        to(&mut received, 26, &address);
        let none = answer(&tables, &arrival(Direction::Ingress), &received);
        assert_eq!(none, None, "from {address:?}");
    }
    let loopback = {
        let mut one = [0; 16];
        one[15] = 1;
        one
    };
    for first in [[0xff, 2], [0xfe, 0x80]] {
        let mut sent = denied(Direction::Egress, Family::V6, UDP, &udp(1, 2, &[]));
        to(&mut sent, 38, &first);
        assert_eq!(answer(&tables, &arrival(Direction::Egress), &sent), None, "to {first:x?}");
    }
    for address in [[0; 16], loopback] {
        let mut received = denied(Direction::Ingress, Family::V6, UDP, &udp(1, 2, &[]));
        to(&mut received, 22, &address);
        assert_eq!(answer(&tables, &arrival(Direction::Ingress), &received), None);
    }
}

/// The source must be the sender's.
#[test]
fn sources_without_proof_get_no_answer() {
    let mut tables = tables();
    let friend = Endpoint {
        ifindex: OTHER,
        id: 8,
        addr4: [u32::from_be_bytes(Who::Friend.v4()), 0, 0, 0],
        flags: EP_CHECK_SOURCE | 1,
        ..Endpoint::default()
    };
    tables.set_endpoint(friend);
    let packet = |from| frame(&ip(Family::V4, from, Who::Pod, UDP, &udp(1, 2, &[])));
    let (pods, outside) = (packet(Who::Friend), packet(Who::Stranger));
    let base = arrival(Direction::Ingress);
    let by = |ingress_ifindex, mark, tc_index, routed| {
        let hook = Hook { ingress_ifindex, ..base.hook };
        Arrival { hook, mark, tc_index, routed, ..base }
    };
    let witness = 16;
    for (arrival, frame, answered) in [
        (by(OTHER, PROOF, witness, false), &pods, true),
        (by(OTHER, 0, witness, true), &pods, false),
        // Routed off a bridge.
        (by(UPLINK, PROOF, witness, false), &pods, true),
        (by(UPLINK, 0, 0, true), &pods, false),
        (by(UPLINK, PROOF, STRANGER, true), &pods, false),
        (by(UPLINK, 0, 0, true), &outside, true),
        (by(UPLINK, 0, 0, false), &outside, false),
        (by(UPLINK, PROOF, STRANGER, true), &outside, true),
    ] {
        assert_eq!(answer(&tables, &arrival, frame).is_some(), answered, "{arrival:?}");
    }
    // A sender that may use any address.
    let slot = netpold_ebpf::layout::endpoint_slot(OTHER, 0);
    tables.endpoint_mut(slot).flags &= !EP_CHECK_SOURCE;
    assert_eq!(answer(&tables, &by(OTHER, PROOF, witness, true), &pods), None);
    // In egress, an address that is not the pod's; without a source check too.
    let forged = sent(&ip(Family::V4, Who::Friend, Who::Stranger, UDP, &udp(1, 2, &[])));
    assert_eq!(answer(&tables, &arrival(Direction::Egress), &forged), None);
    tables.endpoint_mut(IFINDEX).flags &= !EP_CHECK_SOURCE;
    assert_eq!(answer(&tables, &arrival(Direction::Egress), &forged), None);
}

/// A frame to another station, which a bridge has flooded, would make the bridge learn that station at the pod's port.
#[test]
fn flooded_frames_get_no_answer() {
    let tables = tables();
    let mut frame = denied(Direction::Ingress, Family::V4, UDP, &udp(1, 2, &[]));
    assert!(answer(&tables, &arrival(Direction::Ingress), &frame).is_some());
    frame[5] ^= 1;
    assert_eq!(answer(&tables, &arrival(Direction::Ingress), &frame), None);
}

#[test]
fn without_the_flag_or_with_a_grant_there_is_no_answer() {
    let mut tables = tables();
    for direction in [Direction::Ingress, Direction::Egress] {
        let frame = denied(direction, Family::V4, TCP, &tcp(4000, 81, SYN));
        assert!(answer(&tables, &arrival(direction), &frame).is_some());
    }
    tables.endpoint_mut(IFINDEX).flags &= !EP_REJECT_EGRESS;
    let sent = denied(Direction::Egress, Family::V4, TCP, &tcp(4000, 81, SYN));
    let received = denied(Direction::Ingress, Family::V4, TCP, &tcp(4000, 81, SYN));
    assert_eq!(answer(&tables, &arrival(Direction::Egress), &sent), None);
    assert!(answer(&tables, &arrival(Direction::Ingress), &received).is_some());
    tables.endpoint_mut(IFINDEX).rows = 0;
    tables.changed();
    assert_eq!(answer(&tables, &arrival(Direction::Ingress), &received), None);
}

#[test]
fn answers_are_recognised_by_what_no_pod_can_write() {
    let tables = tables();
    let is = |interfaces, mark, tc_index| reject::is_answer(&tables, interfaces, mark, tc_index);
    assert!(is([5, 5], PROOF, REJECTION));
    for (interfaces, mark, tc_index) in [
        ([5, 5], 0, REJECTION),
        ([5, 5], !PROOF, REJECTION),
        ([5, 5], PROOF, 0),
        ([5, 5], PROOF, STRANGER),
        ([5, 6], PROOF, REJECTION),
        ([5, 0], PROOF, REJECTION),
    ] {
        assert!(!is(interfaces, mark, tc_index), "{interfaces:?} {mark:x} {tc_index}");
    }
}

#[test]
fn a_second_has_a_number_of_answers() {
    let settings = Settings { refresh_after: 1000, ..Settings::default() };
    let mut word = 0_u64;
    let mut take = |now, most| {
        // SAFETY: a word of its own.
        unsafe { reject::take(&HostMemory, &raw mut word, now, &settings, most).is_some() }
    };
    for second in [5000, 6000, 7999] {
        let taken = (0..50).filter(|n| take(second + n, 3)).count();
        assert_eq!(taken, 3);
    }
    assert!(!take(9500, 0), "none at all");
    assert!(take(9500, 1));
    // The clock overflows.
    assert!(take(u32::MAX, 1) && !take(u32::MAX.wrapping_add(900), 1));
    assert!(take(u32::MAX.wrapping_add(1000), 1));
}

/// A segment of the client's connection with the pod.
fn segment(family: Family, direction: Direction, flags: u8, data: &[u8]) -> Vec<u8> {
    let of = |source, destination| [tcp(source, destination, flags), data.to_vec()].concat();
    match direction {
        Direction::Ingress => frame(&ip(family, Who::Client, Who::Pod, TCP, &of(4000, 80))),
        Direction::Egress => sent(&ip(family, Who::Pod, Who::Client, TCP, &of(80, 4000))),
    }
}

/// A pod with an open connection of the client, before a change of policy cuts it.
fn connected(family: Family, shakes: usize) -> NodeTables {
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

/// The first denied segment of a cut connection resets both ends; later ones their sender only.
#[test]
fn a_cut_connection_is_reset_at_both_ends_once() {
    for family in FAMILIES {
        let at = if family == Family::V4 { 34 } else { 54 };
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
                let addresses = if family == Family::V4 { 26..34 } else { 22..54 };
                assert_eq!(onward[addresses.clone()], frame[addresses]);
                assert_eq!((onward.len(), sum(&onward, family)), (at + 20, 0xffff));
                let again = answers(&tables, &arrival(direction), &frame);
                assert!(again.back.is_some() && again.onward.is_none(), "{again:?}");
            }
        }
    }
}

/// After that, the reset that the end without a connection sends goes on, once.
#[test]
fn a_reset_of_a_cut_connection_goes_on_once() {
    for family in FAMILIES {
        let at = if family == Family::V4 { 34 } else { 54 };
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

/// Only segments of connections that the table knows as established go on.
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
            let at = if family == Family::V4 { 34 } else { 54 };
            other_port[at + 1] ^= 1;
            assert_eq!(onward(&tables, &other_port), None, "another connection's");
            // A forged source, where it is not proved.
            if direction == Direction::Ingress {
                let unrouted = Arrival { routed: false, ..arrival(direction) };
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

/// A connection that policy allows again goes on as if nothing had been, and has no further resets.
#[test]
fn resets_go_on_once_for_each_connection() {
    let mut tables = connected(Family::V4, 3);
    let data = segment(Family::V4, Direction::Ingress, ACK, b"x");
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
            Direction::Ingress => frame(&ip(Family::V4, Who::Friend, Who::Pod, TCP, &of)),
            Direction::Egress => sent(&ip(Family::V4, Who::Pod, Who::Friend, TCP, &of)),
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

/// Of randomly changed packets, exactly those get an answer that the page lists. So an answer is always to a packet that
/// the pod itself sent, or that reached it with a proved source.
#[test]
fn answers_are_to_packets_with_a_proved_source_as_the_oracle_reads_the_page() {
    let mut tables = tables();
    let friend = Endpoint {
        ifindex: OTHER,
        id: 8,
        addr4: [u32::from_be_bytes(Who::Friend.v4()), 0, 0, 0],
        addr6: [Who::Friend.v6(), [0; 16], [0; 16], [0; 16]],
        flags: EP_CHECK_SOURCE | 0x11,
        ..Endpoint::default()
    };
    tables.set_endpoint(friend);
    let pod = [Who::Pod.v4().into(), Who::Pod.v6().into()];
    let friends: [std::net::IpAddr; 2] = [Who::Friend.v4().into(), Who::Friend.v6().into()];
    let mut seeds = Vec::new();
    for family in FAMILIES {
        for who in [Who::Stranger, Who::Friend] {
            for (protocol, data) in [
                (UDP, udp(4000, 53, b"question")),
                (TCP, tcp(4000, 81, SYN)),
                (TCP, tcp(4000, 81, ACK)),
                (SCTP, sctp(4000, 80, 1)),
                (family.icmp(), icmp(family.echo_request(), 0, [0; 4], b"echo")),
                (253, vec![1; 30]),
            ] {
                let received = frame(&ip(family, who, Who::Pod, protocol, &data));
                let sent = sent(&ip(family, Who::Pod, who, protocol, &data));
                seeds.extend([(Direction::Ingress, received), (Direction::Egress, sent)]);
            }
        }
    }
    let (mut random, mut counts) = (Random(0xdea1), [0_usize; 2]);
    for _ in 0..60_000 {
        let (direction, mut frame) = seeds[random.below(seeds.len())].clone();
        for _ in 0..random.below(3) {
            // Mostly the headers' fields that matter.
            let at = random.below(frame.len().min(58));
            frame[at] = [0, 1, 4, 6, 17, 44, 58, 0x46, 0xe0, 0xff, random.below(256) as u8]
                [random.below(11)];
        }
        let by = [UPLINK, OTHER, IFINDEX, 0][random.below(4)];
        let (mark, tc_index) = ([0, PROOF][random.below(2)], [0, 16, STRANGER][random.below(3)]);
        let routed = random.below(2) == 0;
        let own = arrival(direction);
        let hook = if direction == Direction::Egress {
            own.hook
        } else {
            Hook { ingress_ifindex: by, ..own.hook }
        };
        let arrival = Arrival { hook, mark, tc_index, routed, ..own };
        if tables.judge(direction, hook, &frame).reason() != Reason::Policy || by == 0 {
            continue;
        }
        let is_of_friend = source(&frame).is_some_and(|it| friends.contains(&it));
        let is_of_pod = source(&frame).is_some_and(|it| pod.contains(&it));
        let passed = mark == PROOF && tc_index != STRANGER;
        let is_local = by != UPLINK || is_of_friend || is_of_pod;
        let proved = if is_local { passed } else { routed };
        let oracle = Denied { frame: &frame, direction, pod: &pod, station: STATION, proved };
        let expected = oracle.is_answered();
        let Sent { back, onward } = answers(&tables, &arrival, &frame);
        assert_eq!(back.is_some(), expected, "{direction:?} {arrival:?} {frame:02x?}");
        assert_eq!(onward, None, "no connection is known");
        counts[usize::from(expected)] += 1;
        let Some(back) = back else { continue };
        assert_eq!(destination(&back), source(&frame));
        assert!(back.len() <= frame.len() + 48, "no amplifier");
        if direction == Direction::Egress {
            assert!(is_of_pod);
        }
    }
    assert!(counts.iter().all(|&count| count > 5000), "the packets show little: {counts:?}");
}

/// Source address of a frame.
fn source(frame: &[u8]) -> Option<std::net::IpAddr> {
    address(frame, [26, 22])
}

/// Destination address of a frame.
fn destination(frame: &[u8]) -> Option<std::net::IpAddr> {
    address(frame, [30, 38])
}

fn address(frame: &[u8], [four, six]: [usize; 2]) -> Option<std::net::IpAddr> {
    match frame[12..14] {
        [0x08, 0x00] => Some(<[u8; 4]>::try_from(frame.get(four..four + 4)?).ok()?.into()),
        [0x86, 0xdd] => Some(<[u8; 16]>::try_from(frame.get(six..six + 16)?).ok()?.into()),
        _ => None,
    }
}
