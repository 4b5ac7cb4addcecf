//! Flows of former tables in new ones, which programs in front of the former ones fill meanwhile.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::sync::atomic::Ordering;

use netpold_ebpf::{
    flow::key::{FlowTableKey, hash},
    host::HostMemory,
    layout::CT_VALID,
    packet::family::{V4, V6},
    reason::Reason,
    tables::{self, TableFamily, Tables},
};
use netpold_testkit::{
    frames::{ACK, FAMILIES, IpVersion, RST, SYN, TCP, UDP, Who, frame, icmp, ip, tcp, udp},
    node::NodeTables,
    one_pod::{DENY_ROW, EGRESS_ROW, INGRESS_ROW, egress, ingress, set_rows, with_rows},
};

/// Copies the flows of the former tables, as the agent does.
fn migrate(former: &NodeTables, new: &NodeTables) {
    former.flows.for_each(|_, control, way| {
        let key = |word: usize| way[1 + word].load(Ordering::Acquire);
        let (flags, seen) = (control.flags() & !CT_VALID, control.last_seen());
        if way.len() == <[u64; 2]>::STRIDE {
            adopt::<V4>(new, std::array::from_fn(key), flags, seen);
        } else {
            adopt::<V6>(new, std::array::from_fn(key), flags, seen);
        }
    });
}

fn adopt<F: TableFamily>(new: &NodeTables, key: F::Key, flags: u16, seen: u32) {
    let settings = &new.flows.settings;
    let hash = hash(settings, &key);
    let flow = tables::flow::<F, _, _>(new, settings, key, hash).expect("buckets");
    // SAFETY: the buckets of a live table.
    unsafe { flow.adopt(&HostMemory, flags, settings, new.now(), seen, true) }.expect("room");
}

/// Former and new tables of one pod with these rows.
fn generations(ingress: u32, egress: u32) -> [NodeTables; 2] {
    [with_rows(ingress, egress), with_rows(ingress, egress)]
}

fn datagram(family: IpVersion, from: Who, to: Who, ports: (u16, u16)) -> Vec<u8> {
    frame(&ip(family, from, to, UDP, &udp(ports.0, ports.1, b"datagram")))
}

fn segment(family: IpVersion, from: Who, to: Who, ports: (u16, u16), flags: u8) -> Vec<u8> {
    frame(&ip(family, from, to, TCP, &tcp(ports.0, ports.1, flags)))
}

/// A pod that is isolated for egress alone asks a server. The new programs see the answer first, and then the next
/// question as the answer to it.
#[test]
fn an_answer_that_new_programs_see_first_begins_no_flow() {
    for family in FAMILIES {
        let [former, mut new] = generations(0, EGRESS_ROW);
        let question = datagram(family, Who::Pod, Who::Server, (5000, 53));
        let answer = datagram(family, Who::Server, Who::Pod, (53, 5000));
        assert_eq!(egress(&former, &question), Reason::Allowed);
        assert_eq!(ingress(&former, &answer), Reason::NotIsolated);
        assert_eq!(ingress(&new, &answer), Reason::NotIsolated);
        assert_eq!(egress(&new, &question), Reason::Allowed);
        migrate(&former, &new);
        assert_eq!(egress(&new, &question), Reason::Allowed);
        assert_eq!(ingress(&new, &answer), Reason::NotIsolated);
        set_rows(&mut new, 0, DENY_ROW);
        assert_eq!(egress(&new, &question), Reason::Policy);
        assert_eq!(ingress(&new, &answer), Reason::NotIsolated);
        assert_eq!(egress(&new, &question), Reason::Policy);
    }
}

/// The same for a client of a pod that is isolated for ingress alone.
#[test]
fn an_answer_of_the_pod_that_new_programs_see_first_begins_no_flow() {
    for family in FAMILIES {
        let [former, mut new] = generations(INGRESS_ROW, 0);
        let question = datagram(family, Who::Client, Who::Pod, (5000, 53));
        let answer = datagram(family, Who::Pod, Who::Client, (53, 5000));
        assert_eq!(ingress(&former, &question), Reason::Allowed);
        assert_eq!(egress(&former, &answer), Reason::NotIsolated);
        assert_eq!(egress(&new, &answer), Reason::NotIsolated);
        assert_eq!(ingress(&new, &question), Reason::Allowed);
        migrate(&former, &new);
        assert_eq!(ingress(&new, &question), Reason::Allowed);
        set_rows(&mut new, DENY_ROW, 0);
        assert_eq!(ingress(&new, &question), Reason::Policy);
    }
}

/// The former programs deny a flow that the new ones take for the server's. Their cached verdict ends with the
/// migration.
#[test]
fn a_cut_flow_stays_cut() {
    for family in FAMILIES {
        let [mut former, mut new] = generations(0, EGRESS_ROW);
        let question = datagram(family, Who::Pod, Who::Server, (5000, 53));
        let answer = datagram(family, Who::Server, Who::Pod, (53, 5000));
        assert_eq!(egress(&former, &question), Reason::Allowed);
        set_rows(&mut former, 0, DENY_ROW);
        set_rows(&mut new, 0, DENY_ROW);
        assert_eq!(egress(&former, &question), Reason::Policy);
        assert_eq!(ingress(&new, &answer), Reason::NotIsolated);
        for _ in 0..3 {
            assert_eq!(egress(&new, &question), Reason::Reply, "the former programs drop it");
        }
        migrate(&former, &new);
        assert_eq!(egress(&new, &question), Reason::Policy);
    }
}

/// A connection between the ports of a former one, in the other direction.
#[test]
fn a_connection_opened_meanwhile_keeps_its_initiator() {
    for family in FAMILIES {
        let [former, mut new] = generations(INGRESS_ROW, 0);
        let (c, p) = (Who::Client, Who::Pod);
        assert_eq!(egress(&former, &segment(family, p, c, (80, 4000), SYN)), Reason::NotIsolated);
        assert_eq!(ingress(&former, &segment(family, c, p, (4000, 80), RST)), Reason::Allowed);
        assert_eq!(ingress(&new, &segment(family, c, p, (4000, 80), SYN)), Reason::Allowed);
        migrate(&former, &new);
        let answer = segment(family, p, c, (80, 4000), SYN | ACK);
        assert_eq!(egress(&new, &answer), Reason::NotIsolated);
        set_rows(&mut new, DENY_ROW, 0);
        assert_eq!(egress(&new, &answer), Reason::NotIsolated);
        assert_eq!(ingress(&new, &segment(family, c, p, (4000, 80), ACK)), Reason::Policy);
    }
}

/// Both sides may send echo requests with one identifier.
#[test]
fn echo_requests_of_both_sides_are_answered() {
    for family in FAMILIES {
        let [former, mut new] = generations(INGRESS_ROW, EGRESS_ROW);
        let echo = |from, to, kind| {
            frame(&ip(family, from, to, family.icmp(), &icmp(kind, 0, [0, 5, 0, 1], b"ping")))
        };
        let (request, reply) = (family.echo_request(), family.echo_reply());
        let (p, s) = (Who::Pod, Who::Server);
        assert_eq!(egress(&former, &echo(p, s, request)), Reason::Allowed);
        set_rows(&mut new, 0, EGRESS_ROW);
        assert_eq!(ingress(&new, &echo(s, p, request)), Reason::NotIsolated);
        migrate(&former, &new);
        set_rows(&mut new, 0, DENY_ROW);
        assert_eq!(egress(&new, &echo(p, s, reply)), Reason::Reply);
        set_rows(&mut new, DENY_ROW, EGRESS_ROW);
        assert_eq!(ingress(&new, &echo(s, p, reply)), Reason::Reply);
    }
}
