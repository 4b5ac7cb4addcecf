//! Answers to denied packets: the kernel writes the frame that the host's code writes.

use std::os::fd::AsFd;

use netpold_dataplane::bpf::test_run::{Run, run_into};
use netpold_ebpf::judge::hook::PacketHook;
use netpold_ebpf::judge::proof::DEFAULT_BIT;
use netpold_ebpf::judge::reject;
use netpold_ebpf::layout::{
    EP_CHECK_SOURCE, EP_REJECT_EGRESS, EP_REJECT_INGRESS, Endpoint, REJECTION,
};
use netpold_ebpf::reason::{Reason, rejections};
use netpold_testbed::SkbMarker;
use netpold_testkit::frames::{
    ACK, FAMILIES, FIN, IpVersion, RST, SCTP, SYN, TCP, UDP, Who, frame, icmp, ip, sctp, tcp, udp,
};
use netpold_testkit::reject::{PacketArrival, Sent, answer, sent};

use super::{
    World,
    evictions::controls_of,
    program, world,
    world::{DENY_ROW, DROP, Direction, EGRESS_ROW, IFINDEX, INGRESS_ROW, PASS},
};

/// `TC_ACT_REDIRECT`
const REDIRECT: u32 = 7;
const PROOF: u32 = 1 << DEFAULT_BIT;
/// Interface of another pod of the node, the friend's.
const OTHER: u32 = IFINDEX + 7;

fn rejecting() -> Option<World> {
    let mut world = world()?;
    let settings = &mut world.host.flows.settings;
    (settings.rejections, settings.node_rejections) = (1_000_000, 1_000_000);
    let pod = world.host.endpoint_mut(IFINDEX);
    pod.flags |= EP_REJECT_INGRESS | EP_REJECT_EGRESS | Endpoint::pack_station([2, 0, 0, 0, 0, 1]);
    let mut friend = Endpoint { ifindex: OTHER, id: 9, ..Endpoint::default() };
    friend.flags = EP_CHECK_SOURCE | 0x11 | Endpoint::pack_station([2, 0, 0, 0, 0, 2]);
    friend.addr4[0] = u32::from_be_bytes(Who::Friend.v4());
    friend.addr6[0] = Who::Friend.v6();
    world.set_endpoint(friend);
    world.set_rows(DENY_ROW, DENY_ROW);
    Some(world)
}

/// The program's action, and the frame that it leaves.
fn run(world: &mut World, arrival: &PacketArrival, frame: &[u8]) -> (u32, Vec<u8>) {
    let name = match arrival.direction {
        Direction::Ingress => "netpold_ingress",
        Direction::Egress => "netpold_egress",
    };
    let PacketHook { ifindex, ingress_ifindex } = arrival.hook;
    let once = Run { ifindex, ingress_ifindex, mark: arrival.mark, ..Run::once(frame) };
    let mut out = vec![0; 4096];
    let fd = program(&mut world.bpf, name).fd().expect(name).as_fd().try_clone_to_owned();
    let (answer, length) = run_into(fd.expect(name).as_fd(), &once, &mut out).expect(name);
    out.truncate(length);
    (answer.retval, out)
}

fn arrival(direction: Direction) -> PacketArrival {
    let (ingress_ifindex, mark) = match direction {
        Direction::Ingress => (OTHER, PROOF),
        Direction::Egress => (IFINDEX, 0),
    };
    let hook = PacketHook { ifindex: IFINDEX, ingress_ifindex };
    PacketArrival { direction, hook, mark, tc_index: 0, routed: false }
}

fn of(direction: Direction, family: IpVersion, protocol: u8, data: &[u8]) -> Vec<u8> {
    match direction {
        Direction::Ingress => frame(&ip(family, Who::Friend, Who::Pod, protocol, data)),
        Direction::Egress => {
            let mut frame = frame(&ip(family, Who::Pod, Who::Stranger, protocol, data));
            frame[..12].rotate_left(6);
            frame
        }
    }
}

#[test]
fn answers_of_kernel_and_host_are_equal() {
    let Some(mut world) = rejecting() else { return };
    let mut answered = 0;
    for direction in [Direction::Ingress, Direction::Egress] {
        for family in FAMILIES {
            let lengths = [0, 1, 2, 3, 40, 440, 460, 461, 500, 1400, 3000];
            let datagrams = lengths.map(|length| (UDP, udp(4000, 81, &vec![7; length])));
            let packets = [
                (TCP, tcp(4000, 81, SYN)),
                (TCP, [tcp(4000, 81, SYN), vec![3; 77]].concat()),
                (TCP, tcp(4000, 81, ACK)),
                (TCP, tcp(4000, 81, RST)),
                (SCTP, sctp(4000, 80, 1)),
                (family.icmp(), icmp(family.echo_request(), 0, [1, 2, 3, 4], &[5; 56])),
                (family.icmp(), icmp(family.echo_reply(), 0, [1, 2, 3, 4], &[5; 56])),
                (253, vec![1; 33]),
            ];
            for (protocol, data) in packets.into_iter().chain(datagrams) {
                let frame = of(direction, family, protocol, &data);
                let arrival = arrival(direction);
                let expected = answer(&world.host, &arrival, &frame);
                let (action, out) = run(&mut world, &arrival, &frame);
                match expected {
                    Some(expected) => {
                        assert_eq!(action, REDIRECT, "{direction:?} {family:?} {protocol}");
                        assert_eq!(out, expected, "{direction:?} {family:?} {protocol}");
                        answered += 1;
                    }
                    None => assert_eq!(action, DROP, "{direction:?} {family:?} {protocol}"),
                }
            }
        }
    }
    let counted = [false, true].map(|egress| world.counted(rejections(egress)));
    assert_eq!(counted.iter().sum::<u64>(), answered);
    assert_eq!(answered, 2 * 2 * (11 + 6));
}

#[test]
fn answers_are_limited_by_second() {
    let Some(mut world) = rejecting() else { return };
    let frame = of(Direction::Egress, IpVersion::V4, UDP, &udp(4000, 81, b"x"));
    let arrival = arrival(Direction::Egress);
    // The node's limit does not include the first five.
    for (pod, node, count) in [(5, 100, 5), (100, 4, 4), (100, 4, 0), (0, 100, 0)] {
        let settings = &mut world.host.flows.settings;
        (settings.rejections, settings.node_rejections) = (pod, node);
        settings.refresh_after = 1_000_000;
        world.set_rows(DENY_ROW, DENY_ROW);
        // The words of an earlier second still count: the limits only fall.
        let answers = (0..50).filter(|_| run(&mut world, &arrival, &frame).0 == REDIRECT).count();
        assert_eq!(answers, count, "{pod} of {node}");
    }
}

/// A segment of the friend's connection with the pod.
fn segment(direction: Direction, family: IpVersion, flags: u8, data: &[u8]) -> Vec<u8> {
    let of = |source, destination| [tcp(source, destination, flags), data.to_vec()].concat();
    match direction {
        Direction::Ingress => frame(&ip(family, Who::Friend, Who::Pod, TCP, &of(4000, 80))),
        Direction::Egress => {
            let mut frame = frame(&ip(family, Who::Pod, Who::Friend, TCP, &of(80, 4000)));
            frame[..12].rotate_left(6);
            frame
        }
    }
}

/// The first denied segment of a cut connection passes as a reset, and so does one reset after it.
#[test]
fn resets_of_cut_connections_by_kernel_and_host_are_equal() {
    let Some(mut world) = rejecting() else { return };
    let other = |direction| {
        if direction == Direction::Egress { Direction::Ingress } else { Direction::Egress }
    };
    for direction in [Direction::Ingress, Direction::Egress] {
        for family in FAMILIES {
            for (flags, data) in [(ACK, &[7; 1000][..]), (ACK, &[]), (FIN | ACK, b"x")] {
                open_connection(&mut world, family);
                world.set_rows(DENY_ROW, DENY_ROW);
                let denied = segment(direction, family, flags, data);
                let arrival = arrival(direction);
                let expected = sent(&world.host, &arrival, &denied).onward.expect("a reset");
                let before = world.counted(rejections(direction == Direction::Egress));
                assert_eq!(run(&mut world, &arrival, &denied), (PASS, expected));
                let after = world.counted(rejections(direction == Direction::Egress));
                assert_eq!(after, before + 1);
                let again = sent(&world.host, &arrival, &denied);
                let back = again.back.expect("an answer");
                assert_eq!(run(&mut world, &arrival, &denied), (REDIRECT, back));
                // The reset of the other side, and nothing more.
                let opposite = self::arrival(other(direction));
                let reset = segment(other(direction), family, RST, b"data");
                let expected = sent(&world.host, &opposite, &reset);
                let onward = expected.onward.clone().expect("a reset");
                assert_eq!(expected, Sent { back: None, onward: Some(onward.clone()) });
                assert_eq!(run(&mut world, &opposite, &reset), (PASS, onward));
                assert_eq!(run(&mut world, &opposite, &reset).0, DROP);
            }
        }
    }
}

/// Opens the friend's connection with the pod, under policy that allows it.
fn open_connection(world: &mut World, family: IpVersion) {
    world.host.endpoint_mut(IFINDEX).id += 1;
    world.set_rows(INGRESS_ROW, EGRESS_ROW);
    for (way, flags) in
        [(Direction::Ingress, SYN), (Direction::Egress, SYN | ACK), (Direction::Ingress, ACK)]
    {
        let frame = segment(way, family, flags, &[]);
        assert!(!world.host.judge(way, arrival(way).hook, &frame).reason().is_drop());
        assert_eq!(run(world, &arrival(way), &frame).0, PASS);
    }
}

/// A reset is forwarded only within the node's limit, and a reset beyond the limit does not use up a later one.
#[test]
fn resets_that_go_on_count_for_the_limit() {
    let Some(mut world) = rejecting() else { return };
    for direction in [Direction::Ingress, Direction::Egress] {
        for family in FAMILIES {
            open_connection(&mut world, family);
            let reset = segment(direction, family, RST, &[]);
            for (limit, action) in [(0, DROP), (1_000_000, PASS), (1_000_000, DROP)] {
                world.host.flows.settings.node_rejections = limit;
                world.set_rows(DENY_ROW, DENY_ROW);
                let arrival = arrival(direction);
                assert_eq!(
                    run(&mut world, &arrival, &reset).0,
                    action,
                    "{direction:?} {family:?} {limit}"
                );
            }
        }
    }
}

/// An answer of the program at one hook passes the other one as it is, regardless of policy, and leaves its flow's
/// entry as it is. Without one of its two marks it is judged, or drops if it comes from the pod with the proof.
#[test]
fn an_answer_passes_the_other_hook_unjudged() {
    let Some(mut world) = rejecting() else { return };
    for direction in [Direction::Ingress, Direction::Egress] {
        for family in FAMILIES {
            open_connection(&mut world, family);
            world.set_rows(DENY_ROW, DENY_ROW);
            let entries = controls_of(&world, family);
            let name = match direction {
                Direction::Ingress => "netpold_ingress",
                Direction::Egress => "netpold_egress",
            };
            let target = program(&mut world.bpf, name).fd().expect(name).as_fd();
            let target = target.try_clone_to_owned().expect(name);
            let reset = segment(direction, family, RST, &[]);
            let seal = reject::seal(&world.host);
            for (mark, tc_index, cb, passes) in [
                (PROOF, REJECTION, seal, true),
                (0, REJECTION, seal, false),
                (PROOF, world.host.flows.settings.witness, seal, false),
                (PROOF, REJECTION, [0; 2], false),
            ] {
                let marker = SkbMarker::before(target.as_fd(), tc_index as u16).expect("a program");
                let once = Run { mark, cb, ..Run::once(&reset) };
                let mut out = vec![0; 4096];
                // A pod's packet comes without the proof.
                let is_judged = direction == Direction::Egress && mark == PROOF;
                let reason = if is_judged { Reason::SpoofedSource } else { Reason::Policy };
                let dropped = world.dropped(direction, reason);
                let (answer, length) = run_into(marker.as_fd(), &once, &mut out).expect(name);
                let what = format!("{name}, {family:?}, {mark:x}, {tc_index:x}, {cb:x?}");
                if passes {
                    assert_eq!((answer.retval, &out[..length]), (PASS, &reset[..]), "{what}");
                    assert!(entries == controls_of(&world, family), "{what}: no entry changes");
                }
                let drops = world.dropped(direction, reason) - dropped;
                assert_eq!(drops, u64::from(!passes), "{what}");
            }
        }
    }
}
