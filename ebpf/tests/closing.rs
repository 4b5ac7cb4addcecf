//! How flows end: by what the pod itself says, by silence, and not by what anybody can forge.

mod common;

use std::sync::atomic::Ordering;

use netpold_ebpf::{
    direction::{Egress, Ingress},
    judge::{decide::decide, hook::Hook},
    layout::{
        EP_CHECK_SOURCE, Endpoint, TIMEOUT_ECHO, TIMEOUT_TCP_CLOSED, TIMEOUT_TCP_ESTABLISHED,
        TIMEOUT_TCP_FINISHED, TIMEOUT_TCP_HALF_CLOSED, TIMEOUT_UDP_ANSWERED, TIMEOUT_UDP_STREAM,
    },
    reason::Reason,
};
use netpold_testkit::frames::{frame, ipv4_between, tcp, udp};
use netpold_testkit::node::NodeTables;

use common::{CLIENTS, NOBODY};

const IFINDEX: u32 = 5;
/// A pod with the same policy beside it.
const OTHER: u32 = 6;
const POD: [u8; 4] = [10, 0, 0, 2];
const CLIENT: [u8; 4] = [10, 0, 1, 7];
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
/// Jiffies.
const SECOND: u32 = 1000;
const MINUTE: u32 = 60 * SECOND;
const HOUR: u32 = 60 * MINUTE;

/// A pod that clients may reach, and another; `ingress` and `egress` are rows.
fn tables(ingress: u32, egress: u32) -> NodeTables {
    let mut tables = common::tables();
    for ifindex in [IFINDEX, OTHER] {
        let rows = Endpoint::pack_rows(ingress, egress);
        let flags = EP_CHECK_SOURCE | 1;
        let mut endpoint = Endpoint { ifindex, id: ifindex, rows, flags, ..Endpoint::default() };
        endpoint.addr4[0] = u32::from_be_bytes(POD);
        tables.set_endpoint(endpoint);
    }
    tables
}

fn v4(protocol: u8, from: [u8; 4], to: [u8; 4], payload: &[u8]) -> Vec<u8> {
    frame(&ipv4_between([from, to], protocol, &[], 0, payload))
}

/// One flow between the client and the pod.
#[derive(Clone, Copy)]
struct Flow<'a> {
    tables: &'a NodeTables,
    ifindex: u32,
    /// The pod's port, the client's.
    ports: (u16, u16),
}

impl Flow<'_> {
    fn arrives(&self, flags: u8) -> Reason {
        let frame = v4(6, CLIENT, POD, &tcp(self.ports.1, self.ports.0, flags));
        let hook = Hook { ifindex: self.ifindex, ingress_ifindex: 9 };
        decide::<Ingress, _, _>(&frame.as_slice(), self.tables, hook).reason()
    }

    fn leaves(&self, flags: u8) -> Reason {
        let frame = v4(6, POD, CLIENT, &tcp(self.ports.0, self.ports.1, flags));
        let hook = Hook { ifindex: self.ifindex, ingress_ifindex: self.ifindex };
        decide::<Egress, _, _>(&frame.as_slice(), self.tables, hook).reason()
    }

    /// A connection of the client's, which has gone on for a while.
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

fn later(tables: &NodeTables, jiffies: u32) {
    tables.flows.now.fetch_add(jiffies, Ordering::AcqRel);
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

/// Which of the two sides' ports is the lower: a flow without an entry would be taken up again by one
/// side only.
const PORTS: [(u16, u16); 2] = [(80, 40_000), (40_000, 1_024)];

/// Somebody guesses addresses and ports again and again; the flow says something once a minute.
fn forged(ends: u8) {
    for ports in PORTS {
        for by_client in [true, false] {
            let tables = tables(CLIENTS, NOBODY);
            let flow = flow(&tables, ports);
            flow.open();
            for minute in 0..60 {
                assert_eq!(flow.arrives(ends), Reason::Allowed);
                crowd(&tables);
                later(&tables, MINUTE / 2);
                assert_eq!(flow.arrives(ends), Reason::Allowed);
                later(&tables, MINUTE / 2);
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

/// Whatever it was before, the next packet makes the flow what it was.
#[test]
fn the_next_packet_takes_a_forged_end_back() {
    for (ends, idle) in [(RST, 2 * HOUR), (RST | ACK, 2 * HOUR), (FIN | ACK, MINUTE)] {
        for ports in PORTS {
            let tables = tables(CLIENTS, NOBODY);
            let flow = flow(&tables, ports);
            flow.open();
            assert_eq!(flow.arrives(ends), Reason::Allowed);
            later(&tables, idle);
            // A FIN is taken back by data of the side that is said to have sent it.
            assert_eq!(flow.arrives(PSH | ACK), Reason::Allowed);
            assert_eq!(flow.leaves(ACK), Reason::Reply, "{ends} {ports:?}");
            later(&tables, tables.flows.settings.timeouts[TIMEOUT_TCP_ESTABLISHED] - 1);
            assert_eq!(
                flow.leaves(ACK),
                Reason::Reply,
                "{ends} {ports:?}: as established as before"
            );
        }
    }
    // The pod's own word takes a reset back, too.
    let tables = tables(CLIENTS, NOBODY);
    let flow = flow(&tables, PORTS[1]);
    flow.open();
    assert_eq!(flow.arrives(RST), Reason::Allowed);
    assert_eq!(flow.leaves(ACK), Reason::Reply, "at once, while the entry is fresh");
    later(&tables, 3 * HOUR);
    assert_eq!(flow.leaves(ACK), Reason::Reply);
}

#[test]
fn half_closed_flows_end_after_two_minutes() {
    for pod_closes in [false, true] {
        let tables = tables(CLIENTS, NOBODY);
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
        // The other half goes on for as long as it says something.
        for _ in 0..10 {
            later(&tables, half_closed - 1);
            assert_eq!(flow.leaves(ACK), Reason::Reply);
        }
        later(&tables, half_closed);
        assert_eq!(flow.leaves(ACK), Reason::Policy, "the pod closed: {pod_closes}");
    }
}

/// What is over makes room, but not at once: FINs are acknowledged, and may be forged.
#[test]
fn what_is_over_makes_room_after_a_while() {
    let tables = tables(CLIENTS, NOBODY);
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
    later(&tables, timeouts[TIMEOUT_TCP_CLOSED]);
    assert_eq!(filled(32_000), 50, "they make room");
    later(&tables, timeouts[TIMEOUT_TCP_FINISHED]);
    for port in &all {
        assert_eq!(flow(&tables, (80, *port)).leaves(ACK), Reason::Policy, "none is left");
    }
}

/// A pod's own reset is no guess.
#[test]
fn the_pods_own_reset_ends_its_flow() {
    let tables = tables(CLIENTS, NOBODY);
    let flow = flow(&tables, PORTS[1]);
    flow.open();
    assert_eq!(flow.leaves(RST), Reason::Reply);
    later(&tables, tables.flows.settings.timeouts[TIMEOUT_TCP_CLOSED]);
    assert_eq!(flow.leaves(ACK), Reason::Policy);
}

/// Who is refused has no flow that is protected.
#[test]
fn a_refusal_establishes_nothing() {
    let tables = tables(CLIENTS, NOBODY);
    for port in 1_000..3_000 {
        let refused = flow(&tables, (81, port));
        assert_eq!(refused.arrives(SYN), Reason::Allowed, "{port}");
        assert_eq!(refused.leaves(RST | ACK), Reason::Reply, "{port}");
    }
    flow(&tables, PORTS[0]).open();
}

/// As the kernel's conntrack has it, which keeps a question and its answer for a shorter time.
#[test]
fn datagrams_are_a_stream_after_two_seconds() {
    let mut tables = tables(CLIENTS, NOBODY);
    tables.flows.settings.timeouts[TIMEOUT_UDP_ANSWERED] = 30 * SECOND;
    tables.flows.settings.timeouts[TIMEOUT_UDP_STREAM] = 120 * SECOND;
    let arrives = |tables: &NodeTables, port| {
        let frame = v4(17, CLIENT, POD, &udp(port, 53, &[]));
        let hook = Hook { ifindex: IFINDEX, ingress_ifindex: 9 };
        assert_eq!(
            decide::<Ingress, _, _>(&frame.as_slice(), tables, hook).reason(),
            Reason::Allowed
        );
    };
    let leaves = |tables: &NodeTables, port| {
        let frame = v4(17, POD, CLIENT, &udp(53, port, &[]));
        let hook = Hook { ifindex: IFINDEX, ingress_ifindex: IFINDEX };
        decide::<Egress, _, _>(&frame.as_slice(), tables, hook).reason()
    };
    // How long it goes on, in steps of 100 ms, and for how long it is remembered then.
    for (port, steps, kept) in
        [(1_000, 0, 30), (1_001, 19, 30), (1_002, 21, 120), (1_003, 600, 120)]
    {
        arrives(&tables, port);
        assert_eq!(leaves(&tables, port), Reason::Reply);
        for _ in 0..steps {
            later(&tables, SECOND / 10);
            arrives(&tables, port);
            assert_eq!(leaves(&tables, port), Reason::Reply, "{steps}");
        }
        // Its stamp may be older than its last packet, by two seconds at the most.
        let now = tables.flows.now.load(Ordering::Acquire);
        tables.flows.now.store(now.wrapping_add(kept * SECOND), Ordering::Release);
        assert_eq!(leaves(&tables, port), Reason::Policy, "{steps} steps: no longer");
        tables.flows.now.store(now.wrapping_add((kept - 2) * SECOND - 1), Ordering::Release);
        assert_eq!(leaves(&tables, port), Reason::Reply, "{steps} steps: as long");
    }
}

/// Timestamps and extended echo are answered as echo is, each kind by itself.
#[test]
fn every_kind_of_echo_is_answered_by_its_own() {
    let message = |kind, id: u16| [&[kind, 0, 0, 0][..], &id.to_be_bytes(), &[0, 1, 0, 0]].concat();
    for (request, reply) in [(8, 0), (13, 14), (42, 43)] {
        let tables = tables(CLIENTS, NOBODY);
        let asks = v4(1, CLIENT, POD, &message(request, 7));
        let hook = Hook { ifindex: IFINDEX, ingress_ifindex: 9 };
        let verdict = decide::<Ingress, _, _>(&asks.as_slice(), &tables, hook);
        assert_eq!(verdict.reason(), Reason::Allowed);
        let answers = |kind, id| {
            let frame = v4(1, POD, CLIENT, &message(kind, id));
            let hook = Hook { ifindex: IFINDEX, ingress_ifindex: IFINDEX };
            decide::<Egress, _, _>(&frame.as_slice(), &tables, hook).reason()
        };
        assert_eq!(answers(reply, 7), Reason::Reply, "{request}");
        assert_eq!(answers(reply, 8), Reason::Policy, "{request}: another identifier");
        for other in [0, 14, 43].into_iter().filter(|other| *other != reply) {
            assert_eq!(answers(other, 7), Reason::Policy, "{other} is no answer to {request}");
        }
        assert_eq!(answers(request, 7), Reason::Policy, "not a way back for requests");
        later(&tables, tables.flows.settings.timeouts[TIMEOUT_ECHO]);
        assert_eq!(answers(reply, 7), Reason::Policy);
    }
}
