//! Ends of flows: by packets of the pod itself and by timeouts, but not by packets that anyone can forge.

use std::sync::atomic::Ordering;

use netpold_ebpf::{
    judge::hook::PacketHook,
    layout::{
        Endpoint, TIMEOUT_ECHO, TIMEOUT_TCP_CLOSED, TIMEOUT_TCP_ESTABLISHED, TIMEOUT_TCP_FINISHED,
        TIMEOUT_TCP_HALF_CLOSED, TIMEOUT_UDP_ANSWERED, TIMEOUT_UDP_STREAM, endpoint_slot,
    },
    packet::protocol::ICMP,
    reason::Reason,
};
use netpold_testkit::frames::{ACK, FIN, RST, SYN, Who, frame4, icmp, tcp4, udp4};
use netpold_testkit::node::NodeTables;
use netpold_testkit::one_pod::{
    DENY_ROW, Direction, IFINDEX, INGRESS_ROW, UPLINK, egress, ingress, with_rows,
};

/// Interface of another pod with the same policy.
const OTHER: u32 = IFINDEX + 1;
const POD: [u8; 4] = Who::Pod.v4();
const CLIENT: [u8; 4] = Who::Friend.v4();
const PSH: u8 = 8;
/// Jiffies.
const SECOND: u32 = 1000;
const MINUTE: u32 = 60 * SECOND;
const HOUR: u32 = 60 * MINUTE;

/// A pod that clients may reach and that may send nothing, and another pod.
fn tables() -> NodeTables {
    let mut tables = with_rows(INGRESS_ROW, DENY_ROW);
    let pod = tables.policy.slot(endpoint_slot(IFINDEX, 0));
    tables.set_endpoint(Endpoint { ifindex: OTHER, id: pod.id + 1, ..pod });
    tables
}

/// One flow between the client and the pod.
#[derive(Clone, Copy)]
struct Flow<'a> {
    tables: &'a NodeTables,
    ifindex: u32,
    /// The pod's port and the client's port.
    ports: (u16, u16),
}

impl Flow<'_> {
    fn arrives(&self, flags: u8) -> Reason {
        let frame = tcp4((CLIENT, self.ports.1), (POD, self.ports.0), flags);
        let hook = PacketHook { ifindex: self.ifindex, ingress_ifindex: UPLINK };
        self.tables.judge(Direction::Ingress, hook, &frame).reason()
    }

    fn leaves(&self, flags: u8) -> Reason {
        let frame = tcp4((POD, self.ports.0), (CLIENT, self.ports.1), flags);
        let hook = PacketHook { ifindex: self.ifindex, ingress_ifindex: self.ifindex };
        self.tables.judge(Direction::Egress, hook, &frame).reason()
    }

    /// A connection opened by the client, with data in both directions.
    fn open(&self) {
        assert_eq!(self.arrives(SYN), Reason::Allowed);
        assert_eq!(self.leaves(SYN | ACK), Reason::Reply);
        assert_eq!(self.arrives(ACK), Reason::Allowed);
        assert_eq!(self.arrives(PSH | ACK), Reason::Allowed);
        assert_eq!(self.leaves(PSH | ACK), Reason::Reply);
    }
}

fn flow(tables: &NodeTables, ports: (u16, u16)) -> Flow<'_> {
    Flow { tables, ifindex: IFINDEX, ports }
}

/// Many more flows than the table holds: half-open ones of the pod, established ones of another.
fn crowd(tables: &NodeTables) {
    for port in 20_000..20_300 {
        let new = |ifindex| Flow { tables, ifindex, ports: (80, port) };
        let _ = new(IFINDEX).arrives(SYN);
        let other = new(OTHER);
        if other.arrives(SYN) == Reason::Allowed {
            let _ = other.leaves(SYN | ACK);
            let _ = other.arrives(ACK);
        }
    }
}

/// Ports of the pod and the client, one of them in the client range: without an entry, packets of one side only would
/// begin the flow again.
const PORTS: [(u16, u16); 2] = [(80, 40_000), (40_000, 1_024)];

/// Forged ends arrive again and again, while the flow has a packet once a minute.
fn forged(ends: u8) {
    for ports in PORTS {
        for by_client in [true, false] {
            let tables = tables();
            let flow = flow(&tables, ports);
            flow.open();
            for minute in 0..60 {
                assert_eq!(flow.arrives(ends), Reason::Allowed);
                crowd(&tables);
                tables.flows.later(MINUTE / 2);
                assert_eq!(flow.arrives(ends), Reason::Allowed);
                tables.flows.later(MINUTE / 2);
                crowd(&tables);
                let case = format!("{ports:?}, minute {minute}, by the client: {by_client}");
                if by_client {
                    assert_eq!(flow.arrives(PSH | ACK), Reason::Allowed, "{case}");
                }
                assert_eq!(flow.leaves(ACK), Reason::Reply, "{case}");
            }
        }
    }
}

#[test]
fn forged_resets_end_no_flow_that_goes_on() {
    forged(RST);
    forged(RST | ACK);
}

#[test]
fn forged_fins_end_no_flow_that_goes_on() {
    forged(FIN | ACK);
    forged(FIN | RST);
}

/// The next packet restores the flow after any kind of end.
#[test]
fn the_next_packet_takes_a_forged_end_back() {
    for (ends, idle) in [(RST, 2 * HOUR), (RST | ACK, 2 * HOUR), (FIN | ACK, MINUTE)] {
        for ports in PORTS {
            let tables = tables();
            let flow = flow(&tables, ports);
            flow.open();
            assert_eq!(flow.arrives(ends), Reason::Allowed);
            tables.flows.later(idle);
            // Data of the FIN's apparent sender clears the FIN.
            assert_eq!(flow.arrives(PSH | ACK), Reason::Allowed);
            assert_eq!(flow.leaves(ACK), Reason::Reply, "{ends} {ports:?}");
            tables.flows.later(tables.flows.settings.timeouts[TIMEOUT_TCP_ESTABLISHED] - 1);
            assert_eq!(
                flow.leaves(ACK),
                Reason::Reply,
                "{ends} {ports:?}: as established as before"
            );
        }
    }
    // A packet of the pod clears a reset, too.
    let tables = tables();
    let flow = flow(&tables, PORTS[1]);
    flow.open();
    assert_eq!(flow.arrives(RST), Reason::Allowed);
    assert_eq!(flow.leaves(ACK), Reason::Reply, "at once, while the entry is fresh");
    tables.flows.later(3 * HOUR);
    assert_eq!(flow.leaves(ACK), Reason::Reply);
}

#[test]
fn half_closed_flows_end_after_two_minutes() {
    for pod_closes in [false, true] {
        let tables = tables();
        let flow = flow(&tables, PORTS[0]);
        flow.open();
        let half_closed = tables.flows.settings.timeouts[TIMEOUT_TCP_HALF_CLOSED];
        assert_eq!(half_closed, 120 * SECOND);
        if pod_closes {
            assert_eq!(flow.leaves(FIN | ACK), Reason::Reply);
            assert_eq!(flow.arrives(ACK), Reason::Allowed);
        } else {
            assert_eq!(flow.arrives(FIN | ACK), Reason::Allowed);
            assert_eq!(flow.leaves(ACK), Reason::Reply);
        }
        // The other half stays open as long as it sends packets.
        for _ in 0..10 {
            tables.flows.later(half_closed - 1);
            assert_eq!(flow.leaves(ACK), Reason::Reply);
        }
        tables.flows.later(half_closed);
        assert_eq!(flow.leaves(ACK), Reason::Policy, "the pod closed: {pod_closes}");
    }
}

/// Closed flows make room, but not at once: FINs are acknowledged, and may be forged.
#[test]
fn what_is_over_makes_room_after_a_while() {
    let tables = tables();
    let timeouts = tables.flows.settings.timeouts;
    let all: Vec<u16> = (1_000..3_000)
        .filter(|port| {
            let new = flow(&tables, (80, *port));
            let begun = new.arrives(SYN) == Reason::Allowed;
            begun && new.leaves(SYN | ACK) == Reason::Reply && new.arrives(ACK) == Reason::Allowed
        })
        .collect();
    let filled = |first: u16| {
        let ports = first..first + 50;
        ports.filter(|port| flow(&tables, (80, *port)).arrives(SYN) == Reason::Allowed).count()
    };
    assert_eq!(filled(30_000), 0, "{} flows fill the table", all.len());
    for port in &all {
        assert_eq!(flow(&tables, (80, *port)).arrives(FIN | ACK), Reason::Allowed);
        assert_eq!(flow(&tables, (80, *port)).leaves(FIN | ACK), Reason::Reply);
    }
    assert_eq!(filled(31_000), 0);
    for port in &all {
        assert_eq!(flow(&tables, (80, *port)).leaves(ACK), Reason::Reply, "still found");
    }
    tables.flows.later(timeouts[TIMEOUT_TCP_CLOSED]);
    assert_eq!(filled(32_000), 50, "they make room");
    tables.flows.later(timeouts[TIMEOUT_TCP_FINISHED]);
    for port in &all {
        assert_eq!(flow(&tables, (80, *port)).leaves(ACK), Reason::Policy, "none is left");
    }
}

/// The pod's own reset cannot be forged.
#[test]
fn the_pods_own_reset_ends_its_flow() {
    let tables = tables();
    let flow = flow(&tables, PORTS[1]);
    flow.open();
    assert_eq!(flow.leaves(RST), Reason::Reply);
    tables.flows.later(tables.flows.settings.timeouts[TIMEOUT_TCP_CLOSED]);
    assert_eq!(flow.leaves(ACK), Reason::Policy);
}

/// A refused connection leaves no protected flow.
#[test]
fn a_refusal_establishes_nothing() {
    let tables = tables();
    for port in 1_000..3_000 {
        let refused = flow(&tables, (81, port));
        assert_eq!(refused.arrives(SYN), Reason::Allowed, "{port}");
        assert_eq!(refused.leaves(RST | ACK), Reason::Reply, "{port}");
    }
    flow(&tables, PORTS[0]).open();
}

/// As in the kernel's conntrack, which keeps a single question and answer for a shorter time.
#[test]
fn datagrams_are_a_stream_after_two_seconds() {
    let mut tables = tables();
    tables.flows.settings.timeouts[TIMEOUT_UDP_ANSWERED] = 30 * SECOND;
    tables.flows.settings.timeouts[TIMEOUT_UDP_STREAM] = 120 * SECOND;
    let arrives = |tables: &NodeTables, port| {
        assert_eq!(ingress(tables, &udp4((CLIENT, port), (POD, 53))), Reason::Allowed);
    };
    let leaves = |tables: &NodeTables, port| egress(tables, &udp4((POD, 53), (CLIENT, port)));
    // Port, duration of the flow in steps of 100 ms, and expected timeout in seconds.
    for (port, steps, kept) in
        [(1_000, 0, 30), (1_001, 19, 30), (1_002, 21, 120), (1_003, 600, 120)]
    {
        arrives(&tables, port);
        assert_eq!(leaves(&tables, port), Reason::Reply);
        for _ in 0..steps {
            tables.flows.later(SECOND / 10);
            arrives(&tables, port);
            assert_eq!(leaves(&tables, port), Reason::Reply, "{steps}");
        }
        // The stamp may be older than the last packet, by two seconds at most.
        let now = tables.flows.now.load(Ordering::Acquire);
        tables.flows.now.store(now.wrapping_add(kept * SECOND), Ordering::Release);
        assert_eq!(leaves(&tables, port), Reason::Policy, "{steps} steps: no longer");
        tables.flows.now.store(now.wrapping_add((kept - 2) * SECOND - 1), Ordering::Release);
        assert_eq!(leaves(&tables, port), Reason::Reply, "{steps} steps: as long");
    }
}

/// Timestamps and extended echo are answered like echo, each kind separately.
#[test]
fn every_kind_of_echo_is_answered_by_its_own() {
    let message = |kind, id| icmp(kind, 0, [0, id, 0, 1], &[0; 2]);
    for (request, reply) in [(8, 0), (13, 14), (42, 43)] {
        let tables = tables();
        let asks = frame4(ICMP, CLIENT, POD, &message(request, 7));
        assert_eq!(ingress(&tables, &asks), Reason::Allowed);
        let answers = |kind, id| egress(&tables, &frame4(ICMP, POD, CLIENT, &message(kind, id)));
        assert_eq!(answers(reply, 7), Reason::Reply, "{request}");
        assert_eq!(answers(reply, 8), Reason::Policy, "{request}: another identifier");
        for other in [0, 14, 43].into_iter().filter(|other| *other != reply) {
            assert_eq!(answers(other, 7), Reason::Policy, "{other} is no answer to {request}");
        }
        assert_eq!(answers(request, 7), Reason::Policy, "not a way back for requests");
        tables.flows.later(tables.flows.settings.timeouts[TIMEOUT_ECHO]);
        assert_eq!(answers(reply, 7), Reason::Policy);
    }
}
