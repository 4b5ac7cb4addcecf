//! Packets in sequence at one pod: no panics, and each verdict must agree with a second, independent parser.

use std::cell::RefCell;

use netpold_ebpf::reason::Reason;

use crate::frames::Who;
use crate::node::NodeTables;
use crate::one_pod::{Direction, EGRESS_ROW, IFINDEX, INGRESS_ROW, judge, set_rows, tables};
use crate::steps::{PacketStep, steps};

/// Few buckets, so that flows collide.
const BUCKETS: u32 = 4;

/// Runs one input.
///
/// # Panics
/// The input reveals a defect.
pub fn run(bytes: &[u8]) {
    thread_local! {
        static TABLES: RefCell<NodeTables> =
            RefCell::new(tables(BUCKETS));
    }
    TABLES.with_borrow_mut(|tables| {
        tables.flows.forget_flows();
        for step in steps(bytes) {
            let (ingress, egress) = step.rows;
            set_rows(tables, ingress, egress);
            let reason = judge(tables, step.direction, step.came_from, step.frame).reason();
            let again = judge(tables, step.direction, step.came_from, step.frame).reason();
            check(&step, reason, again);
        }
    });
}

#[expect(clippy::wildcard_enum_match_arm, reason = "every other reason is wrong")]
fn check(step: &PacketStep<'_>, reason: Reason, again: Reason) {
    let told = || format!("{reason:?}, then {again:?}, of {step:02x?}");
    assert_ne!(reason, Reason::Deferred, "{}", told());
    assert_ne!(reason, Reason::NoTable, "{}", told());
    // A packet that passed once passes again: its own flow must not block it.
    let by_itself = |reason| matches!(reason, Reason::Allowed | Reason::NotIsolated | Reason::Node);
    if by_itself(reason) {
        assert!(!again.is_drop() || again == Reason::ConntrackFull, "{}", told());
    }
    let Some(facts) = naive(step.frame) else {
        // Too short, inconsistent, a fragment, tagged, with extension headers, or neither TCP nor UDP.
        return;
    };
    let row = match step.direction {
        Direction::Ingress => step.rows.0,
        Direction::Egress => step.rows.1,
    };
    let own = |address: [u8; 16]| address == mapped(Who::Pod.v4()) || address == Who::Pod.v6();
    let spoofed = step.direction == Direction::Egress && !own(facts.source);
    match reason {
        Reason::Allowed => {
            assert!(row != 0 && rule_allows(step, row, &facts) && !spoofed, "{}", told());
        }
        Reason::NotIsolated => assert!(row == 0, "{}", told()),
        Reason::Policy | Reason::Reply => {
            assert!(row != 0 && !rule_allows(step, row, &facts), "{}", told());
        }
        Reason::SpoofedSource => assert!(spoofed, "{}", told()),
        Reason::Node => {
            assert!(step.direction == Direction::Ingress && step.came_from == 0, "{}", told());
        }
        Reason::Loopback => {
            let itself = match step.direction {
                Direction::Ingress => step.came_from == IFINDEX,
                Direction::Egress => own(facts.destination),
            };
            assert!(itself, "{}", told());
        }
        Reason::ConntrackFull => {}
        Reason::Flooded => {
            let elsewhere = step.direction == Direction::Ingress && !own(facts.destination);
            assert!(elsewhere && row != 0 && !rule_allows(step, row, &facts), "{}", told());
        }
        other => panic!("a plain packet is {other:?}: {}", told()),
    }
}

/// The rules of [`crate::one_pod::tables`], evaluated literally.
fn rule_allows(step: &PacketStep<'_>, row: u32, facts: &Facts) -> bool {
    let (remote, local_row) = match step.direction {
        Direction::Ingress => (facts.source, INGRESS_ROW),
        Direction::Egress => (facts.destination, EGRESS_ROW),
    };
    let is = |who: Who| remote == mapped(who.v4()) || in_block(remote, who);
    let port = facts.destination_port;
    let ports = |tcp: u16| (facts.tcp && port == tcp) || (!facts.tcp && port == 53);
    row == local_row
        && match step.direction {
            Direction::Ingress => is(Who::Friend) || (is(Who::Client) && ports(80)),
            Direction::Egress => is(Who::Server) && ports(443),
        }
}

/// A plain TCP or UDP packet; IPv4 addresses are mapped to IPv6.
struct Facts {
    source: [u8; 16],
    destination: [u8; 16],
    tcp: bool,
    destination_port: u16,
}

/// Parses a plain packet by its RFC; `None` for everything unusual.
fn naive(frame: &[u8]) -> Option<Facts> {
    let number =
        |at: usize| Some(usize::from(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?])));
    let address4 = |at: usize| Some(mapped(frame.get(at..at + 4)?.try_into().ok()?));
    let address6 = |at: usize| frame.get(at..at + 16)?.try_into().ok();
    let (source, destination, protocol, payload, end) = match number(12)? {
        0x0800 => {
            let (total, part) = (number(16)?, number(20)?);
            let plain = frame[14] == 0x45 && part.trailing_zeros() >= 14 && total >= 20;
            let ends = (address4(26)?, address4(30)?);
            plain.then_some((ends.0, ends.1, frame[23], 34, 14 + total))?
        }
        0x86dd => {
            let plain = *frame.get(14)? >> 4 == 6;
            let ends = (address6(22)?, address6(38)?);
            plain.then_some((ends.0, ends.1, frame[20], 54, 54 + number(18)?))?
        }
        _ => return None,
    };
    let tcp = match protocol {
        6 => true,
        17 => false,
        _ => return None,
    };
    let whole = end <= frame.len() && payload + if tcp { 20 } else { 8 } <= end;
    let destination_port = number(payload + 2)? as u16;
    whole.then_some(Facts { source, destination, tcp, destination_port })
}

fn mapped(v4: [u8; 4]) -> [u8; 16] {
    std::net::Ipv4Addr::from(v4).to_ipv6_mapped().octets()
}

/// The blocks are /24 and /64.
fn in_block(remote: [u8; 16], who: Who) -> bool {
    let block4 = mapped(who.v4());
    (remote[..12] == block4[..12] && remote[12..15] == block4[12..15])
        || remote[..8] == who.v6()[..8]
}
