//! Packets that arrive at the node: XDP drops none that the pod's hook would pass.

use netpold_ebpf::{
    packet::parse,
    reason::Reason,
    xdp::uplink::{Scope, drops},
};
use netpold_testkit::frames::{ACK, SYN, TCP, UDP, Who, frame4, tcp, udp, vlan};
use netpold_testkit::node::NodeTables;
use netpold_testkit::one_pod::{
    DENY_ROW, INGRESS_ROW, UPLINK, egress, ingress, set_rows, with_rows,
};

const POD: [u8; 4] = Who::Pod.v4();
const CLIENT: [u8; 4] = Who::Friend.v4();
const STRANGER: [u8; 4] = Who::Stranger.v4();

/// A pod that admits the client, and is not isolated in egress.
fn tables() -> NodeTables {
    with_rows(INGRESS_ROW, 0)
}

/// A packet between the pod's port 80 and port 40000 of the other side.
fn frame(tags: &[u16], protocol: u8, from: [u8; 4], to: [u8; 4], flags: u8) -> Vec<u8> {
    let (source, destination) = if to == POD { (40_000, 80) } else { (80, 40_000) };
    let data = match protocol {
        TCP => tcp(source, destination, flags),
        _ => udp(source, destination, &[]),
    };
    vlan(tags, &frame4(protocol, from, to, &data))
}

fn dropped(tables: &NodeTables, frame: &[u8], scope: Scope) -> bool {
    drops(&frame, parse::link(&frame), tables, UPLINK, scope).is_some()
}

#[test]
fn openings_that_policy_denies_drop_with_or_without_tags() {
    let tables = tables();
    for tags in [&[][..], &[0x8100], &[0x88a8, 0x8100]] {
        for scope in [Scope::Openings, Scope::All] {
            assert!(dropped(&tables, &frame(tags, TCP, STRANGER, POD, SYN), scope));
            assert!(!dropped(&tables, &frame(tags, TCP, CLIENT, POD, SYN), scope));
            // The destination is not a pod's, so XDP leaves the packet alone.
            assert!(!dropped(&tables, &frame(tags, TCP, STRANGER, CLIENT, SYN), scope));
        }
        assert!(!dropped(&tables, &frame(tags, UDP, STRANGER, POD, 0), Scope::Openings));
        assert!(dropped(&tables, &frame(tags, UDP, STRANGER, POD, 0), Scope::All));
    }
}

#[test]
fn answers_pass_and_leave_no_trace() {
    let mut tables = tables();
    for protocol in [TCP, UDP] {
        let answer = frame(&[], protocol, STRANGER, POD, ACK | SYN);
        assert!(dropped(&tables, &answer, Scope::All), "nothing was asked");
        let request = frame(&[], protocol, POD, STRANGER, SYN);
        assert!(!egress(&tables, &request).is_drop());
        for scope in [Scope::Openings, Scope::All] {
            assert!(!dropped(&tables, &answer, scope));
        }
        // XDP has recorded nothing: for the hook the next packet is the first reply.
        assert_eq!(ingress(&tables, &answer), Reason::Reply);
    }
    tables.flows.forget_flows();
    assert!(!dropped(&tables, &frame(&[], UDP, CLIENT, POD, 0), Scope::All));
    let answer = frame(&[], UDP, POD, CLIENT, 0);
    set_rows(&mut tables, DENY_ROW, DENY_ROW);
    let verdict = egress(&tables, &answer);
    assert_eq!(verdict, Reason::Policy, "an allowed packet seen by XDP made no flow");
}

#[test]
fn what_is_broken_or_in_parts_is_left_to_the_pods_hook() {
    let tables = tables();
    let whole = frame(&[], TCP, STRANGER, POD, SYN);
    for length in 0..whole.len() {
        assert!(!dropped(&tables, &whole[..length], Scope::All), "{length}");
    }
    let mut part = frame(&[], UDP, STRANGER, POD, 0);
    part[20] = 0x20;
    assert!(!dropped(&tables, &part, Scope::All), "a first fragment");
}
