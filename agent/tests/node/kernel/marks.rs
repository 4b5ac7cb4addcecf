//! Marked packets get the same verdict from the kernel's programs as from the code on the host.

use std::net::UdpSocket;
use std::os::fd::AsFd;

use netpold_dataplane::bpf::test_run::{Run, run};
use netpold_ebpf::{
    judge::{
        post_nat,
        proof::{Exit, Origin},
    },
    layout::{BRIDGE_GONE, BRIDGE_ISOLATED, BRIDGE_OPEN, Endpoint, STRANGER, endpoint_slot, mark},
    packet::parse,
    reason::Reason,
};
use netpold_testbed::SkbMarker;

use netpold_testkit::frames::{ACK, FAMILIES, SYN, TCP, UDP, Who, frame, icmp, ip, tcp, udp, vlan};

use super::{
    world,
    world::{DENY_ROW, Direction, EGRESS_ROW, IFINDEX, PASS, UPLINK, World, program},
};

/// Interface of the sender; its packets leave the node by another interface.
const SENDER: u32 = 77;

fn sender(world: &mut World, egress: u32) {
    let rows = Endpoint::pack_rows(0, egress);
    world.set_endpoint(Endpoint { ifindex: SENDER, id: 9, rows, ..Endpoint::default() });
}

/// Judges a packet that carries the mark of a slot, in the kernel and on the host. `name` is the program: one for exits
/// from the node, or one for the pod's ingress.
fn judge(world: &mut World, name: &str, slot: u32, frame: &[u8]) -> Reason {
    let id = world.host.policy.slot(slot).id;
    let (mark, proof) = (mark(slot, id), world.host.flows.settings.proof);
    let exit = Exit {
        ifindex: IFINDEX,
        ingress_ifindex: UPLINK,
        mark: proof,
        tc_index: mark,
        ..Exit::default()
    };
    let origin = Origin::at_exit(&world.host, &exit);
    let verdict =
        post_nat::judge(&frame, parse::link(&frame), &world.host, origin, IFINDEX, None, || true);
    let reason = verdict.reason();
    let before = world.dropped(Direction::Egress, reason);
    let target = program(&mut world.bpf, name).fd().expect(name);
    let marker = SkbMarker::before(target.as_fd(), mark as u16).expect("a program");
    let answer = run(marker.as_fd(), &Run { mark: proof, ..Run::once(frame) }).expect(name);
    assert_eq!(answer.retval == PASS, verdict.passes(), "{name}: {reason:?} of {frame:02x?}");
    let counted = world.dropped(Direction::Egress, reason) - before;
    assert_eq!(counted, u64::from(reason.is_drop()), "{name}: {reason:?}");
    reason
}

#[test]
fn marked_packets_are_judged_for_their_sender() {
    let Some(mut world) = world() else { return };
    sender(&mut world, EGRESS_ROW);
    let slot = endpoint_slot(SENDER, 0);
    for family in FAMILIES {
        let to = |who, protocol, data: &[u8]| frame(&ip(family, Who::Pod, who, protocol, data));
        let ping = icmp(family.echo_request(), 0, [0, 5, 0, 1], b"ping");
        for (packet, expected) in [
            (to(Who::Server, TCP, &tcp(4000, 443, SYN)), Reason::Allowed),
            (to(Who::Server, TCP, &tcp(4000, 80, ACK)), Reason::ServiceBackend),
            (to(Who::Server, UDP, &udp(4000, 53, b"q")), Reason::Allowed),
            (to(Who::Stranger, UDP, &udp(4000, 53, b"q")), Reason::ServiceBackend),
            (to(Who::Server, family.icmp(), &ping), Reason::Allowed),
            (vlan(&[0x8100], &to(Who::Server, TCP, &tcp(1, 443, SYN))), Reason::Allowed),
            (
                family.fragment(Who::Pod, Who::Server, 2, false, &[0; 8]),
                Reason::FragmentWithoutFirst,
            ),
            (
                family.fragment(Who::Pod, Who::Server, 0, true, &udp(1, 53, &[0; 8])),
                Reason::Allowed,
            ),
            (family.fragment(Who::Pod, Who::Server, 2, false, &[0; 8]), Reason::Allowed),
        ] {
            assert_eq!(judge(&mut world, "netpold_node", slot, &packet), expected, "{packet:02x?}");
        }
        let denied = to(Who::Stranger, TCP, &tcp(4000, 443, SYN));
        assert_eq!(judge(&mut world, "netpold_ingress", slot, &denied), Reason::ServiceBackend);
        // The mark of a slot without a pod, then the pod's own mark.
        assert_eq!(judge(&mut world, "netpold_node", slot + 1, &denied), Reason::ServiceBackend);
        let own = endpoint_slot(IFINDEX, 0);
        assert_eq!(judge(&mut world, "netpold_node", own, &denied), Reason::Loopback);
        assert_eq!(judge(&mut world, "netpold_ingress", own, &denied), Reason::Loopback);
    }
    sender(&mut world, 0);
    let any = frame(&ip(FAMILIES[0], Who::Pod, Who::Stranger, TCP, &tcp(1, 2, SYN)));
    assert_eq!(judge(&mut world, "netpold_node", slot, &any), Reason::NotIsolated);
    sender(&mut world, DENY_ROW);
    assert_eq!(judge(&mut world, "netpold_node", slot, &any), Reason::ServiceBackend);
}

/// An allowed packet of the sender is judged at its receiver like any other packet.
#[test]
fn marked_packets_are_judged_by_their_receiver_too() {
    let Some(mut world) = world() else { return };
    sender(&mut world, 0);
    let slot = endpoint_slot(SENDER, 0);
    for (from, expected) in [(Who::Client, Reason::Allowed), (Who::Stranger, Reason::Policy)] {
        let packet = frame(&ip(FAMILIES[0], from, Who::Pod, TCP, &tcp(4000, 80, SYN)));
        let target = program(&mut world.bpf, "netpold_ingress").fd().expect("ingress");
        let marker = SkbMarker::before(target.as_fd(), mark(slot, 9) as u16).expect("a program");
        let proof = world.host.flows.settings.proof;
        let answer =
            run(marker.as_fd(), &Run { mark: proof, ..Run::once(&packet) }).expect("a run");
        assert_eq!(answer.retval == PASS, !expected.is_drop(), "{from:?}");
    }
}

#[test]
fn packets_without_a_mark_pass_devices() {
    let Some(mut world) = world() else { return };
    sender(&mut world, DENY_ROW);
    let packet = frame(&ip(FAMILIES[0], Who::Pod, Who::Stranger, TCP, &tcp(1, 2, SYN)));
    let proof = world.host.flows.settings.proof;
    for name in ["netpold_node", "netpold_node_ip", "netpold_unmark", "netpold_tunnel"] {
        for tc_index in [0, 1, 77, u16::MAX, 0x7fff, 0xbfff | 0x2000] {
            for mark in [0, !proof, proof, u32::MAX] {
                let target = program(&mut world.bpf, name).fd().expect(name);
                let marker = SkbMarker::before(target.as_fd(), tc_index).expect("a program");
                let is_mark = netpold_ebpf::layout::is_mark(tc_index.into());
                let answer = run(marker.as_fd(), &Run { mark, ..Run::once(&packet) }).expect(name);
                let passes = match name {
                    "netpold_unmark" => true,
                    "netpold_tunnel" => mark & proof == 0 || tc_index == STRANGER as u16,
                    _ => !is_mark || mark & proof == 0,
                };
                assert_eq!(answer.retval == PASS, passes, "{name} at {tc_index:x}, {mark:x}");
            }
        }
    }
}

/// Such a packet was decapsulated by the node on the pod's interface, or forged by a program in the pod.
#[test]
fn a_packet_with_the_proof_comes_from_no_pod() {
    let Some(mut world) = world() else { return };
    let proof = world.host.flows.settings.proof;
    for family in FAMILIES {
        let packet = frame(&ip(family, Who::Pod, Who::Server, TCP, &tcp(4000, 443, SYN)));
        let dropped = world.dropped(Direction::Egress, Reason::SpoofedSource);
        for (mark, passes) in [(0, true), (!proof, true), (proof, false), (u32::MAX, false)] {
            let target = program(&mut world.bpf, "netpold_egress").fd().expect("egress");
            let answer = run(target.as_fd(), &Run { mark, ..Run::once(&packet) }).expect("a run");
            assert_eq!(answer.retval == PASS, passes, "{family:?}, {mark:x}");
        }
        let counted = world.dropped(Direction::Egress, Reason::SpoofedSource) - dropped;
        assert_eq!(counted, 2, "{family:?}");
        world.next_pod();
    }
}

/// A packet that bypassed the program of its veth is judged where it leaves the node, in the kernel as on the host.
#[test]
fn packets_without_proof_are_judged_for_the_endpoint_they_came_by() {
    let Some(mut world) = world() else { return };
    for (egress, expected) in [
        (EGRESS_ROW, [Reason::Allowed, Reason::Policy]),
        (DENY_ROW, [Reason::Policy, Reason::Policy]),
        (0, [Reason::NotIsolated, Reason::NotIsolated]),
    ] {
        sender(&mut world, egress);
        for (to, expected) in [Who::Server, Who::Stranger].into_iter().zip(expected) {
            let packet = frame(&ip(FAMILIES[0], Who::Pod, to, TCP, &tcp(4000, 443, SYN)));
            let exit = Exit { ifindex: IFINDEX, ingress_ifindex: SENDER, ..Exit::default() };
            let origin = Origin::at_exit(&world.host, &exit);
            let on_host = post_nat::judge(
                &&*packet,
                parse::link(&&*packet),
                &world.host,
                origin,
                IFINDEX,
                None,
                || true,
            );
            assert_eq!(on_host.reason(), expected);
            let fd = program(&mut world.bpf, "netpold_node").fd().expect("netpold_node");
            let once = Run { ingress_ifindex: SENDER, ..Run::once(&packet) };
            let answer = run(fd.as_fd(), &once).expect("netpold_node");
            assert_eq!(answer.retval == PASS, !expected.is_drop(), "{to:?}");
        }
    }
}

/// The verdict on a bridged packet without proof depends on its source, on the bridge's flags, and on whether the
/// agent's socket exists.
#[test]
fn packets_without_proof_from_a_bridge_drop_by_their_source_and_while_the_agent_lives() {
    const BRIDGE: u32 = 78;
    let Some(mut world) = world() else { return };
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let own = socket.local_addr().expect("its address");
    socket.connect(own).expect("itself");
    let port = u32::from(own.port().to_be());
    let all = [(false, 0), (false, port), (true, 0), (true, port)];
    let cases = [0, BRIDGE_OPEN].map(|open| all.map(|(isolated, agent)| (isolated, agent, open)));
    for (isolated, agent_port, open) in cases.into_iter().flatten() {
        let flag = if isolated { BRIDGE_ISOLATED | open } else { open };
        world.host.flows.settings.bridges[..3].copy_from_slice(&[7, BRIDGE_GONE, BRIDGE | flag]);
        world.host.flows.settings.agent_port = agent_port;
        world.set_endpoint(world.host.policy.slot(endpoint_slot(IFINDEX, 0)));
        let lives = agent_port != 0;
        for family in FAMILIES {
            for (from, local) in [(Who::Pod, true), (Who::Stranger, false)] {
                let packet = frame(&ip(family, from, Who::Server, TCP, &tcp(4000, 443, SYN)));
                let drops = if local { isolated } else { lives && open == 0 };
                let exit = Exit { ifindex: IFINDEX, ingress_ifindex: BRIDGE, ..Exit::default() };
                let origin = Origin::at_exit(&world.host, &exit);
                let link = parse::link(&&*packet);
                let on_host =
                    post_nat::judge(&&*packet, link, &world.host, origin, IFINDEX, None, || lives);
                let expected = if drops { Reason::SpoofedSource } else { Reason::NotEndpoint };
                assert_eq!(on_host.reason(), expected, "{from:?}, {isolated}, {lives}");
                let fd = program(&mut world.bpf, "netpold_node").fd().expect("netpold_node");
                for (ingress_ifindex, mark, passes) in [
                    (BRIDGE, 0, !drops),
                    (BRIDGE, world.host.flows.settings.proof, true),
                    (UPLINK, 0, true),
                ] {
                    let once = Run { ingress_ifindex, mark, ..Run::once(&packet) };
                    let answer = run(fd.as_fd(), &once).expect("netpold_node");
                    let what = (from, isolated, lives, ingress_ifindex, mark);
                    assert_eq!(answer.retval == PASS, passes, "{what:?}");
                }
            }
        }
    }
}
