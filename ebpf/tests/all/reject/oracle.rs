//! Answers to generated packets, compared with the oracle.

use std::net::IpAddr;

use netpold_ebpf::{judge::hook::PacketHook, layout::STRANGER, reason::Reason};
use netpold_testkit::frames::{
    ACK, FAMILIES, SCTP, SYN, TCP, UDP, Who, frame, icmp, ip, sctp, tcp, udp,
};
use netpold_testkit::one_pod::{Direction, IFINDEX, UPLINK};
use netpold_testkit::oracle::DeniedFrame;
use netpold_testkit::random::Random;
use netpold_testkit::reject::{PacketArrival, Sent, sent as answers};

use super::{OTHER, PROOF, STATION, arrival, friend, sent, tables};

/// Of randomly changed packets, exactly those that the page lists get an answer. So an answer is always to a packet
/// that the pod itself sent, or that reached it with a proved source.
#[test]
fn answers_are_to_packets_with_a_proved_source_as_the_oracle_reads_the_page() {
    let mut tables = tables();
    tables.set_endpoint(friend());
    let pod = [Who::Pod.v4().into(), Who::Pod.v6().into()];
    let friends: [IpAddr; 2] = [Who::Friend.v4().into(), Who::Friend.v6().into()];
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
            // Mostly header fields.
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
            PacketHook { ingress_ifindex: by, ..own.hook }
        };
        let arrival = PacketArrival { hook, mark, tc_index, routed, ..own };
        if tables.judge(direction, hook, &frame).reason() != Reason::Policy || by == 0 {
            continue;
        }
        let is_of_friend = source(&frame).is_some_and(|it| friends.contains(&it));
        let is_of_pod = source(&frame).is_some_and(|it| pod.contains(&it));
        let passed = mark == PROOF && tc_index != STRANGER;
        let is_local = by != UPLINK || is_of_friend || is_of_pod;
        // A packet with the proof, but without a pod's source, was forged by a pod of the node.
        let proved = if is_local { passed } else { routed && !passed };
        let oracle = DeniedFrame { frame: &frame, direction, pod: &pod, station: STATION, proved };
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
fn source(frame: &[u8]) -> Option<IpAddr> {
    address(frame, [26, 22])
}

/// Destination address of a frame.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    address(frame, [30, 38])
}

fn address(frame: &[u8], [four, six]: [usize; 2]) -> Option<IpAddr> {
    match frame[12..14] {
        [0x08, 0x00] => Some(<[u8; 4]>::try_from(frame.get(four..four + 4)?).ok()?.into()),
        [0x86, 0xdd] => Some(<[u8; 16]>::try_from(frame.get(six..six + 16)?).ok()?.into()),
        _ => None,
    }
}
