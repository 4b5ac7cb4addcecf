//! What arrives at the node: XDP drops nothing that the pod's hook would pass.

mod common;

use netpold_ebpf::{
    direction::{Egress, Ingress},
    judge::{decide::decide, hook::Hook},
    layout::Endpoint,
    packet::parse,
    reason::Reason,
    xdp::uplink::{Scope, drops},
};
use netpold_testkit::node::NodeTables;

const IFINDEX: u32 = 5;
const UPLINK: u32 = 9;
const POD: [u8; 4] = [10, 0, 0, 2];
const CLIENT: [u8; 4] = [10, 0, 1, 7];
const STRANGER: [u8; 4] = [10, 0, 9, 7];
const SYN: u8 = 2;
const ACK: u8 = 16;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A pod that admits 10.0.1.0/24, and may send anything.
fn tables() -> NodeTables {
    let mut tables = common::tables();
    let mut pod = Endpoint {
        ifindex: IFINDEX,
        id: 1,
        rows: Endpoint::pack_rows(common::CLIENTS, 0),
        flags: 1,
        ..Endpoint::default()
    };
    pod.addr4[0] = u32::from_be_bytes(POD);
    tables.set_endpoint(pod);
    tables
}

fn frame(tags: &[u8], protocol: u8, from: [u8; 4], to: [u8; 4], flags: u8) -> Vec<u8> {
    let length = if protocol == TCP { 20 } else { 8 };
    let mut frame = vec![0; 12];
    frame.extend(tags);
    frame.extend([8, 0, 0x45, 0, 0, 20 + length, 0, 1, 0, 0, 64, protocol, 0, 0]);
    frame.extend([from, to].concat());
    let ports = if to == POD { [0x9c, 0x40, 0, 80] } else { [0, 80, 0x9c, 0x40] };
    frame.extend(ports);
    frame.extend([0, 8, 0, 0]);
    if protocol == TCP {
        frame.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    }
    frame
}

fn dropped(tables: &NodeTables, frame: &[u8], scope: Scope) -> bool {
    drops(&frame, parse::link(&frame), tables, UPLINK, scope).is_some()
}

#[test]
fn openings_that_policy_denies_drop_with_or_without_tags() {
    let tables = tables();
    let tag = [0x81, 0, 0, 7];
    for tags in [&[][..], &tag, &[[0x88, 0xa8, 0, 3], tag].concat()] {
        for scope in [Scope::Openings, Scope::All] {
            assert!(dropped(&tables, &frame(tags, TCP, STRANGER, POD, SYN), scope));
            assert!(!dropped(&tables, &frame(tags, TCP, CLIENT, POD, SYN), scope));
            // Not the pod's address: nobody's business here.
            assert!(!dropped(&tables, &frame(tags, TCP, STRANGER, CLIENT, SYN), scope));
        }
        assert!(!dropped(&tables, &frame(tags, UDP, STRANGER, POD, 0), Scope::Openings));
        assert!(dropped(&tables, &frame(tags, UDP, STRANGER, POD, 0), Scope::All));
    }
}

#[test]
fn answers_pass_and_leave_no_trace() {
    let tables = tables();
    for protocol in [TCP, UDP] {
        let answer = frame(&[], protocol, STRANGER, POD, ACK | SYN);
        assert!(dropped(&tables, &answer, Scope::All), "nothing was asked");
        let request = frame(&[], protocol, POD, STRANGER, SYN);
        let out = Hook { ifindex: IFINDEX, ingress_ifindex: IFINDEX };
        assert!(decide::<Egress, _, _>(&&request[..], &tables, out).passes());
        for scope in [Scope::Openings, Scope::All] {
            assert!(!dropped(&tables, &answer, scope));
        }
        // What XDP looked at was not noted: the next packet is the first answer all the same.
        let hook = Hook { ifindex: IFINDEX, ingress_ifindex: UPLINK };
        let verdict = decide::<Ingress, _, _>(&&answer[..], &tables, hook);
        assert_eq!(verdict.reason(), Reason::Reply);
    }
    tables.flows.forget_flows();
    assert!(!dropped(&tables, &frame(&[], UDP, CLIENT, POD, 0), Scope::All));
    let answer = frame(&[], UDP, POD, CLIENT, 0);
    let denying = Endpoint {
        rows: Endpoint::pack_rows(common::NOBODY, common::NOBODY),
        ..tables.policy.slot(5)
    };
    let mut tables = tables;
    tables.set_endpoint(denying);
    let out = Hook { ifindex: IFINDEX, ingress_ifindex: IFINDEX };
    let verdict = decide::<Egress, _, _>(&&answer[..], &tables, out);
    assert_eq!(verdict.reason(), Reason::Policy, "an allowed packet seen by XDP made no flow");
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
