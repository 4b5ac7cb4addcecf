//! Answers to denied packets: their form, and the packets that get none.

mod behind;
mod cut;
mod oracle;

use netpold_ebpf::{
    host::HostMemory,
    judge::{hook::PacketHook, proof::DEFAULT_BIT, reject},
    layout::{
        ANY_UNCHECKED, EP_CHECK_SOURCE, EP_REJECT_EGRESS, EP_REJECT_INGRESS, EP_STATION_SHIFT,
        Endpoint, REJECTION, STRANGER, Settings,
    },
};
use netpold_testkit::frames::{
    ACK, FAMILIES, FIN, IpVersion, RST, SCTP, SYN, TCP, UDP, Who, ether, frame, icmp, ip, ipv4,
    ipv6, sctp, tcp, udp, vlan,
};
use netpold_testkit::node::NodeTables;
use netpold_testkit::one_pod::{DENY_ROW, Direction, IFINDEX, UPLINK, with_rows};
use netpold_testkit::reject::{PacketArrival, answer};

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

/// The friend's pod, on the same node.
fn friend() -> Endpoint {
    Endpoint {
        ifindex: OTHER,
        id: 8,
        addr4: [u32::from_be_bytes(Who::Friend.v4()), 0, 0, 0],
        addr6: [Who::Friend.v6(), [0; 16], [0; 16], [0; 16]],
        flags: EP_CHECK_SOURCE | 0x11 | Endpoint::pack_station([2, 0, 0, 0, 0, 2]),
        ..Endpoint::default()
    }
}

fn arrival(direction: Direction) -> PacketArrival {
    let ingress_ifindex = if direction == Direction::Egress { IFINDEX } else { UPLINK };
    let hook = PacketHook { ifindex: IFINDEX, ingress_ifindex };
    PacketArrival { direction, hook, mark: 0, tc_index: 0, routed: true }
}

/// A frame from the pod has the pod's hardware address as source.
fn sent(packet: &[u8]) -> Vec<u8> {
    let mut frame = frame(packet);
    frame.copy_within(..6, 6);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame
}

/// The packet in its direction, and its frame: the pod and a stranger.
fn denied(direction: Direction, family: IpVersion, protocol: u8, data: &[u8]) -> Vec<u8> {
    match direction {
        Direction::Ingress => frame(&ip(family, Who::Stranger, Who::Pod, protocol, data)),
        Direction::Egress => sent(&ip(family, Who::Pod, Who::Stranger, protocol, data)),
    }
}

/// Sum of a message with its pseudo header; all ones if its checksum is right.
fn sum(answer: &[u8], family: IpVersion) -> u16 {
    let (addresses, protocol, at) = match family {
        IpVersion::V4 => (&answer[26..34], answer[23], 34),
        IpVersion::V6 => (&answer[22..54], answer[20], 54),
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
                    IpVersion::V4 => (26..30, 30..34),
                    IpVersion::V6 => (22..38, 38..54),
                };
                assert_eq!(answer[source.clone()], frame[destination.clone()]);
                assert_eq!(answer[destination], frame[source]);
                assert_eq!(sum(&answer, family), 0xffff, "{protocol} {family:?}");
                if family == IpVersion::V4 {
                    assert_eq!(add(&answer[14..34]), 0xffff);
                    assert_eq!(
                        usize::from(answer[17]) + usize::from(answer[16]) * 256 + 14,
                        answer.len()
                    );
                }
                let headers = if family == IpVersion::V4 { 28 } else { 48 };
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
        for (family, at) in [(IpVersion::V4, 34), (IpVersion::V6, 54)] {
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
    for (family, at, kind) in [(IpVersion::V4, 34, [3, 13]), (IpVersion::V6, 54, [1, 1])] {
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

/// None of these packets gets an answer, in either direction.
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

/// Addresses that do not belong to a single host.
#[test]
fn groups_and_special_addresses_get_no_answer() {
    let tables = tables();
    let to = |frame: &mut [u8], at: usize, address: &[u8]| {
        frame[at..at + address.len()].copy_from_slice(address);
    };
    for address in [[224, 0, 0, 9], [255; 4], [0, 1, 2, 3], [127, 0, 0, 1], [240, 0, 0, 1]] {
        let mut sent = denied(Direction::Egress, IpVersion::V4, UDP, &udp(1, 2, &[]));
        to(&mut sent, 30, &address);
        assert_eq!(answer(&tables, &arrival(Direction::Egress), &sent), None, "to {address:?}");
        let mut received = denied(Direction::Ingress, IpVersion::V4, UDP, &udp(1, 2, &[]));
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
        let mut sent = denied(Direction::Egress, IpVersion::V6, UDP, &udp(1, 2, &[]));
        to(&mut sent, 38, &first);
        assert_eq!(answer(&tables, &arrival(Direction::Egress), &sent), None, "to {first:x?}");
    }
    for address in [[0; 16], loopback] {
        let mut received = denied(Direction::Ingress, IpVersion::V6, UDP, &udp(1, 2, &[]));
        to(&mut received, 22, &address);
        assert_eq!(answer(&tables, &arrival(Direction::Ingress), &received), None);
    }
}

/// The source must be the sender's.
#[test]
fn sources_without_proof_get_no_answer() {
    let mut tables = tables();
    tables.set_endpoint(friend());
    let packet = |from| frame(&ip(IpVersion::V4, from, Who::Pod, UDP, &udp(1, 2, &[])));
    let (pods, outside) = (packet(Who::Friend), packet(Who::Stranger));
    let base = arrival(Direction::Ingress);
    let by = |ingress_ifindex, mark, tc_index, routed| {
        let hook = PacketHook { ingress_ifindex, ..base.hook };
        PacketArrival { hook, mark, tc_index, routed, ..base }
    };
    let witness = 16;
    for (arrival, frame, answered) in [
        (by(OTHER, PROOF, witness, false), &pods, true),
        (by(OTHER, 0, witness, true), &pods, false),
        // Routed from a bridge, whose pods all have programs.
        (by(UPLINK, PROOF, witness, false), &pods, true),
        (by(UPLINK, 0, 0, true), &pods, false),
        (by(UPLINK, PROOF, STRANGER, true), &pods, false),
        (by(UPLINK, 0, 0, true), &outside, true),
        (by(UPLINK, 0, 0, false), &outside, false),
        (by(UPLINK, PROOF, STRANGER, true), &outside, true),
        // Sent by a pod of the node, with a source that is not a pod's.
        (by(UPLINK, PROOF, witness, true), &outside, false),
    ] {
        assert_eq!(answer(&tables, &arrival, frame).is_some(), answered, "{arrival:?}");
    }
    // A sender that may use any address.
    tables.endpoint_mut(OTHER).flags &= !EP_CHECK_SOURCE;
    assert_eq!(answer(&tables, &by(OTHER, PROOF, witness, true), &pods), None);
    // A sender that may use any station.
    let flags = tables.endpoint_mut(OTHER).flags | EP_CHECK_SOURCE;
    tables.endpoint_mut(OTHER).flags = flags & !(u64::MAX << EP_STATION_SHIFT);
    assert_eq!(answer(&tables, &by(OTHER, PROOF, witness, true), &pods), None);
    // While any endpoint is unchecked, a packet from a bridge has no proof: only its source address names the sender.
    tables.endpoint_mut(OTHER).flags = flags;
    tables.flows.settings.any_endpoint = ANY_UNCHECKED;
    assert!(answer(&tables, &by(OTHER, PROOF, witness, false), &pods).is_some());
    assert_eq!(answer(&tables, &by(UPLINK, PROOF, witness, true), &pods), None);
    tables.flows.settings.any_endpoint = 0;
    // In egress: an address that is not the pod's, with and without a source check.
    let forged = sent(&ip(IpVersion::V4, Who::Friend, Who::Stranger, UDP, &udp(1, 2, &[])));
    assert_eq!(answer(&tables, &arrival(Direction::Egress), &forged), None);
    tables.endpoint_mut(IFINDEX).flags &= !EP_CHECK_SOURCE;
    assert_eq!(answer(&tables, &arrival(Direction::Egress), &forged), None);
}

/// The answer to a flooded frame for another station would make the bridge learn that station at the pod's port.
#[test]
fn flooded_frames_get_no_answer() {
    let tables = tables();
    let mut frame = denied(Direction::Ingress, IpVersion::V4, UDP, &udp(1, 2, &[]));
    assert!(answer(&tables, &arrival(Direction::Ingress), &frame).is_some());
    frame[5] ^= 1;
    assert_eq!(answer(&tables, &arrival(Direction::Ingress), &frame), None);
}

#[test]
fn without_the_flag_or_with_a_grant_there_is_no_answer() {
    let mut tables = tables();
    for direction in [Direction::Ingress, Direction::Egress] {
        let frame = denied(direction, IpVersion::V4, TCP, &tcp(4000, 81, SYN));
        assert!(answer(&tables, &arrival(direction), &frame).is_some());
    }
    tables.endpoint_mut(IFINDEX).flags &= !EP_REJECT_EGRESS;
    let sent = denied(Direction::Egress, IpVersion::V4, TCP, &tcp(4000, 81, SYN));
    let received = denied(Direction::Ingress, IpVersion::V4, TCP, &tcp(4000, 81, SYN));
    assert_eq!(answer(&tables, &arrival(Direction::Egress), &sent), None);
    assert!(answer(&tables, &arrival(Direction::Ingress), &received).is_some());
    tables.endpoint_mut(IFINDEX).rows = 0;
    tables.changed();
    assert_eq!(answer(&tables, &arrival(Direction::Ingress), &received), None);
}

#[test]
fn answers_are_recognised_by_what_no_pod_can_write() {
    let tables = tables();
    let seal = reject::seal(&tables);
    let is = |mark, tc_index, cb| reject::is_rejection(&tables, mark, tc_index, cb);
    assert!(is(PROOF, REJECTION, seal));
    for (mark, tc_index) in [(0, REJECTION), (!PROOF, REJECTION), (PROOF, 0), (PROOF, STRANGER)] {
        assert!(!is(mark, tc_index, seal), "{mark:x} {tc_index}");
    }
    for cb in [[0; 2], [seal[0], !seal[1]], [!seal[0], seal[1]]] {
        assert!(!is(PROOF, REJECTION, cb), "{cb:x?}");
    }
}

#[test]
fn a_second_has_a_number_of_answers() {
    let settings = Settings { refresh_after: 1000, ..Settings::default() };
    let mut word = 0_u64;
    let mut take = |now, most| {
        // SAFETY: a word of its own.
        unsafe { reject::take_token(&HostMemory, &raw mut word, now, &settings, most).is_some() }
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
