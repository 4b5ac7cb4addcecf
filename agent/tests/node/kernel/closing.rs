//! End of flows in the kernel, with timeouts that a test can wait for.

use std::{sync::atomic::Ordering, thread::sleep, time::Duration};

use netpold_ebpf::{
    layout::{TIMEOUT_TCP_CLOSED, TIMEOUT_TCP_HALF_CLOSED},
    reason::Reason,
};

use netpold_testkit::frames::{
    ACK, FAMILIES, FIN, IpVersion, RST, SYN, TCP, Who, frame, icmp, ip, tcp,
};

use super::{world, world::World};

/// Jiffies that stand for two minutes, and for ten seconds: 0.2 s and 0.1 s at 250 Hz.
const HALF_CLOSED: u32 = 50;
const CLOSED: u32 = 25;

fn segment(family: IpVersion, from: Who, to: Who, ports: (u16, u16), flags: u8) -> Vec<u8> {
    frame(&ip(family, from, to, TCP, &tcp(ports.0, ports.1, flags)))
}

/// Waits longer than both timeouts, at any tick rate of the kernel.
fn idle(world: &World) {
    sleep(Duration::from_millis(600));
    world.host.flows.now.fetch_add(2 * HALF_CLOSED, Ordering::AcqRel);
}

/// Opens the pod's connection to the server's port 443 from a lower port: no packet that the pod sends midstream
/// creates an entry.
fn open(world: &mut World, family: IpVersion) -> [Vec<u8>; 2] {
    world.next_pod();
    let out = |flags| segment(family, Who::Pod, Who::Server, (400, 443), flags);
    let back = |flags| segment(family, Who::Server, Who::Pod, (443, 400), flags);
    assert_eq!(world.egress(&out(SYN)), Reason::Allowed);
    assert_eq!(world.ingress(&back(SYN | ACK)), Reason::Reply);
    assert_eq!(world.egress(&out(ACK)), Reason::Allowed);
    assert_eq!(world.ingress(&back(ACK)), Reason::Reply);
    [out(ACK), back(ACK)]
}

#[test]
fn half_closed_flows_end_and_forged_resets_end_none() {
    let Some(mut world) = world() else { return };
    world.host.flows.settings.refresh_after = 1;
    world.host.flows.settings.timeouts[TIMEOUT_TCP_HALF_CLOSED] = HALF_CLOSED;
    world.host.flows.settings.timeouts[TIMEOUT_TCP_CLOSED] = CLOSED;
    for family in FAMILIES {
        let back = |flags| segment(family, Who::Server, Who::Pod, (443, 400), flags);
        let [_, answer] = open(&mut world, family);
        assert_eq!(world.ingress(&back(FIN | ACK)), Reason::Reply);
        assert_eq!(world.ingress(&answer), Reason::Reply);
        idle(&world);
        assert_eq!(world.ingress(&answer), Reason::Policy, "{family:?}: half-closed");

        for reset in [RST, RST | ACK] {
            let [sent, answer] = open(&mut world, family);
            assert_eq!(world.ingress(&back(reset)), Reason::Reply);
            idle(&world);
            assert_eq!(world.ingress(&answer), Reason::Reply, "{family:?}: it may be forged");
            assert_eq!(world.ingress(&back(reset)), Reason::Reply);
            assert_eq!(world.egress(&sent), Reason::Allowed);
            idle(&world);
            assert_eq!(world.ingress(&answer), Reason::Reply, "{family:?}: it goes on");
        }

        let [_, answer] = open(&mut world, family);
        let reset = segment(family, Who::Pod, Who::Server, (400, 443), RST);
        assert_eq!(world.egress(&reset), Reason::Allowed);
        idle(&world);
        assert_eq!(world.ingress(&answer), Reason::Policy, "{family:?}: the pod's own");
    }
}

#[test]
fn timestamps_and_extended_echo_are_answered() {
    let Some(mut world) = world() else { return };
    for (family, request, reply, other) in
        [(IpVersion::V4, 13, 14, 0), (IpVersion::V4, 42, 43, 14), (IpVersion::V6, 160, 161, 129)]
    {
        world.next_pod();
        let message = |from, to, kind, id| {
            frame(&ip(family, from, to, family.icmp(), &icmp(kind, 0, [0, id, 0, 1], b"")))
        };
        let (p, s) = (Who::Pod, Who::Server);
        assert_eq!(world.ingress(&message(s, p, reply, 5)), Reason::Policy);
        assert_eq!(world.egress(&message(p, s, request, 5)), Reason::Allowed);
        assert_eq!(world.ingress(&message(s, p, reply, 5)), Reason::Reply, "{request}");
        assert_eq!(world.ingress(&message(s, p, reply, 6)), Reason::Policy);
        assert_eq!(world.ingress(&message(s, p, other, 5)), Reason::Policy, "another kind's");
        assert_eq!(world.ingress(&message(s, p, request, 5)), Reason::Policy);
    }
}
