//! Packets of hostile pods and neighbours, which must have no effect.

use netpold_ebpf::{
    judge::{hook::PacketHook, proof::UNKNOWN_INTERFACE},
    layout::{Endpoint, TIMEOUT_UDP_ANSWERED},
    reason::Reason,
};
use netpold_testkit::frames::{
    ACK, RST, SYN, Who, frame, frame4, icmp, ipv6_between, tcp, tcp4, udp, udp4,
};
use netpold_testkit::node::NodeTables;
use netpold_testkit::one_pod::{
    self, DENY_ROW as NOBODY, Direction, IFINDEX, INGRESS_ROW as CLIENTS, egress, ingress,
    set_rows, with_rows as tables,
};

const POD: [u8; 4] = Who::Pod.v4();
const CLIENT: [u8; 4] = Who::Friend.v4();
/// Address admitted to TCP 80 and UDP 53.
const GUEST: [u8; 4] = Who::Client.v4();
const STRANGER: [u8; 4] = Who::Stranger.v4();

/// An ICMP error (unreachable) that quotes the packet in a frame.
fn error_about(frame: &[u8]) -> Vec<u8> {
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(&frame[14..]);
    message
}

/// Forged SYNs that the pod answers become half-open flows, which a real client's flow evicts.
#[test]
fn a_flood_of_answered_syns_leaves_room_for_real_flows() {
    let tables = tables(CLIENTS, NOBODY);
    for port in 1000..4000 {
        assert_eq!(ingress(&tables, &tcp4((CLIENT, port), (POD, 80), SYN)), Reason::Allowed);
        let answer = tcp4((POD, 80), (CLIENT, port), SYN | ACK);
        assert_eq!(egress(&tables, &answer), Reason::Reply);
    }
    let real = |flags| tcp4((CLIENT, 60000), (POD, 80), flags);
    let answer = |flags| tcp4((POD, 80), (CLIENT, 60000), flags);
    assert_eq!(ingress(&tables, &real(SYN)), Reason::Allowed);
    assert_eq!(egress(&tables, &answer(SYN | ACK)), Reason::Reply);
    assert_eq!(ingress(&tables, &real(ACK)), Reason::Allowed);
    // The flow is established, and stays through the next flood.
    for port in 1000..4000 {
        assert_eq!(ingress(&tables, &tcp4((CLIENT, port), (POD, 80), SYN)), Reason::Allowed);
    }
    assert_eq!(egress(&tables, &answer(ACK)), Reason::Reply);
    tables.flows.later(tables.flows.settings.timeouts[0]);
    assert_eq!(egress(&tables, &answer(ACK)), Reason::Reply, "established");
    assert_eq!(egress(&tables, &tcp4((POD, 80), (CLIENT, 3999), SYN | ACK)), Reason::Policy);
}

#[test]
fn an_error_goes_only_to_who_sent_what_it_quotes() {
    let tables = tables(CLIENTS, NOBODY);
    let packet = udp4((CLIENT, 4000), (POD, 53));
    assert_eq!(ingress(&tables, &packet), Reason::Allowed);
    let error = error_about(&packet);
    assert_eq!(egress(&tables, &frame4(1, POD, CLIENT, &error)), Reason::Related);
    assert_eq!(egress(&tables, &frame4(1, POD, STRANGER, &error)), Reason::Policy);
}

/// A pod without egress policy continues to answer a client that policy has cut.
#[test]
fn a_flow_that_policy_cut_is_not_opened_by_its_answers() {
    let mut tables = tables(CLIENTS, 0);
    let request = udp4((CLIENT, 4000), (POD, 53));
    let answer = udp4((POD, 53), (CLIENT, 4000));
    assert_eq!(ingress(&tables, &request), Reason::Allowed);
    assert_eq!(egress(&tables, &answer), Reason::NotIsolated);
    set_rows(&mut tables, NOBODY, 0);
    for _ in 0..3 {
        assert_eq!(ingress(&tables, &request), Reason::Policy);
        assert_eq!(egress(&tables, &answer), Reason::NotIsolated);
    }
    set_rows(&mut tables, CLIENTS, 0);
    assert_eq!(ingress(&tables, &request), Reason::Allowed);
}

#[test]
fn the_pods_own_address_as_source_proves_nothing() {
    let tables = tables(NOBODY, NOBODY);
    let frame = udp4((POD, 1), (POD, 2));
    assert_eq!(ingress(&tables, &frame), Reason::Policy);
    let hairpin = one_pod::judge(&tables, Direction::Ingress, IFINDEX, &frame);
    assert_eq!(hairpin.reason(), Reason::Loopback);
}

#[test]
fn a_pod_that_may_send_anything_may_ask_for_its_address() {
    let discover = udp4(([0; 4], 68), ([255; 4], 67));
    assert_eq!(egress(&tables(NOBODY, 0), &discover), Reason::NotIsolated);
    assert_eq!(egress(&tables(NOBODY, NOBODY), &discover), Reason::SpoofedSource);
    let stranger = udp4((STRANGER, 68), (CLIENT, 67));
    assert_eq!(egress(&tables(NOBODY, 0), &stranger), Reason::SpoofedSource);
}

/// The unspecified address is not a source of data: no rule about pods, and no Deny of them, matches it.
#[test]
fn the_unspecified_address_asks_for_an_address_and_sends_nothing_else() {
    let groups = [group(1), group(2), group(0x16)];
    for row in [0, CLIENTS] {
        let tables = tables(row, 0);
        let four = |protocol, to, data: &[u8]| egress(&tables, &frame4(protocol, [0; 4], to, data));
        let udp_to = |ports: (u16, u16), to| four(17, to, &udp(ports.0, ports.1, b"data"));
        assert_eq!(udp_to((68, 67), [255; 4]), Reason::NotIsolated, "DHCP");
        assert_eq!(four(2, [224, 0, 0, 22], &[0x22; 16]), Reason::NotIsolated, "IGMP");
        for (ports, to) in [((68, 68), [255; 4]), ((67, 67), CLIENT), ((5000, 53), CLIENT)] {
            assert_eq!(udp_to(ports, to), Reason::SpoofedSource, "{ports:?}");
        }
        assert_eq!(four(2, CLIENT, &[0x22; 16]), Reason::SpoofedSource, "IGMP to a host");
        assert_eq!(four(6, CLIENT, &tcp(68, 67, SYN)), Reason::SpoofedSource);
        assert_eq!(four(1, CLIENT, &icmp(8, 0, [0; 4], b"echo")), Reason::SpoofedSource);
        let later = part(frame4(17, [0; 4], CLIENT, &[0; 16]), 2, false);
        assert_eq!(egress(&tables, &later), Reason::SpoofedSource);

        let six = |to, next, data: &[u8]| {
            egress(&tables, &frame(&ipv6_between([[0; 16], to], next, 255, data)))
        };
        let host = Who::Friend.v6();
        for to in groups.into_iter().chain([host]) {
            assert_eq!(six(to, 17, &udp(68, 67, b"data")), Reason::SpoofedSource, "{to:?}");
            assert_eq!(six(to, 6, &tcp(5000, 80, SYN)), Reason::SpoofedSource, "{to:?}");
            assert_eq!(six(to, 58, &icmp(128, 0, [0; 4], b"echo")), Reason::SpoofedSource);
            let behind = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp(1, 2, b"data")].concat();
            assert_eq!(six(to, 60, &behind), Reason::SpoofedSource, "behind options");
            let report = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &icmp(143, 0, [0; 4], &[])].concat();
            let expected = if to == host { Reason::SpoofedSource } else { Reason::NotIsolated };
            assert_eq!(six(to, 0, &report), expected, "a listener report to {to:?}");
        }
        let router = six(group(2), 58, &icmp(133, 0, [0; 4], &[]));
        assert!(matches!(router, Reason::Neighbour | Reason::NotIsolated), "{router:?}");
    }
}

/// A group of the link (RFC 4291 section 2.7.1).
const fn group(last: u8) -> [u8; 16] {
    [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

/// At its last segment the kernel unpacks the packet after a routing header, and forwards it.
#[test]
fn a_packet_behind_a_routing_header_is_malformed() {
    for row in [0, CLIENTS, NOBODY] {
        let tables = tables(row, row);
        for kind in [0, 2, 3, 4] {
            for (next, expected) in [(4, true), (41, true), (17, false)] {
                let header = [next, 0, kind, 0, 0, 0, 0, 0];
                let data = [&header[..], &udp(5000, 53, b"data")].concat();
                let packet = frame(&ipv6_between([Who::Pod.v6(), Who::Friend.v6()], 43, 64, &data));
                let is_malformed = egress(&tables, &packet) == Reason::Malformed;
                assert_eq!(is_malformed, expected, "row {row}, type {kind}, next {next}");
            }
        }
    }
}

/// Turns a frame of [`frame4`] into a fragment; the offset in units of 8 bytes.
fn part(mut frame: Vec<u8>, offset: u16, more: bool) -> Vec<u8> {
    let field = offset | if more { 0x2000 } else { 0 };
    frame[20..22].copy_from_slice(&field.to_be_bytes());
    frame
}

/// Fragments sent twice with different content: the verdict must not depend on the one that the receiver keeps.
#[test]
fn overlapping_fragments_open_nothing() {
    let mut tables = tables(CLIENTS, NOBODY);
    let first = |port| part(udp4((GUEST, 4000), (POD, port)), 0, true);
    let later = part(frame4(17, GUEST, POD, &[0; 16]), 2, false);
    // A denied first fragment records no ports, before an allowed one or after it.
    assert_eq!(ingress(&tables, &first(22)), Reason::Policy);
    assert_eq!(ingress(&tables, &later), Reason::FragmentWithoutFirst);
    assert_eq!(ingress(&tables, &first(53)), Reason::Allowed);
    assert_eq!(ingress(&tables, &first(22)), Reason::Policy);
    // Fragments that overlap the header by which the first one was judged.
    for (protocol, offset, expected) in [
        (6, 1, Reason::TinyFragment),
        (132, 1, Reason::TinyFragment),
        (17, 1, Reason::Allowed),
        (17, 2, Reason::Allowed),
    ] {
        let frame = part(frame4(protocol, GUEST, POD, &[0; 16]), offset, true);
        assert_eq!(ingress(&tables, &frame), expected, "protocol {protocol} at {offset}");
    }
    // A first fragment without SCTP's first chunk: the next one would decide the packet's kind.
    let cut = part(frame4(132, GUEST, POD, &[15, 160, 0, 53, 0, 0, 0, 1]), 0, true);
    assert_eq!(ingress(&tables, &cut), Reason::TinyFragment);
    // Policy is read again for each fragment.
    set_rows(&mut tables, NOBODY, NOBODY);
    assert_eq!(ingress(&tables, &later), Reason::Policy);
}

/// Only the first fragment of an ICMP error has the quote for which the error passes.
#[test]
fn later_fragments_of_an_icmp_error_drop() {
    let tables = tables(NOBODY, one_pod::EGRESS_ROW);
    let question = udp4((POD, 5000), (Who::Server.v4(), 53));
    assert_eq!(egress(&tables, &question), Reason::Allowed);
    let error = frame4(1, STRANGER, POD, &error_about(&question));
    assert_eq!(ingress(&tables, &error), Reason::Related);
    assert_eq!(ingress(&tables, &part(error.clone(), 0, true)), Reason::Related);
    let rest = frame4(1, STRANGER, POD, b"anything at all.");
    for offset in [5, 100, 8000] {
        let rest = part(rest.clone(), offset, true);
        assert_eq!(ingress(&tables, &rest), Reason::FragmentWithoutFirst);
    }
}

#[test]
fn protocols_without_ports_need_a_rule_without_ports() {
    let tables = tables(CLIENTS, NOBODY);
    let protocols = [0, 4, 41, 47, 50, 51, 94, 253, 255];
    for protocol in protocols {
        let frame = frame4(protocol, CLIENT, POD, &[0; 40]);
        assert_eq!(ingress(&tables, &frame), Reason::Allowed, "{protocol}");
        assert_eq!(egress(&tables, &frame4(protocol, POD, STRANGER, &[0; 40])), Reason::Policy);
    }
    for protocol in protocols {
        let frame = frame4(protocol, GUEST, POD, &[0; 40]);
        assert_eq!(ingress(&tables, &frame), Reason::Policy, "{protocol}");
    }
}

/// All pods share the node's flow table, but each entry belongs to one pod.
#[test]
fn another_pods_flows_are_not_ones_own() {
    let mut tables = tables(CLIENTS, NOBODY);
    assert_eq!(ingress(&tables, &tcp4((CLIENT, 4000), (POD, 80), SYN)), Reason::Allowed);
    let answer = tcp4((POD, 80), (CLIENT, 4000), ACK);
    assert_eq!(egress(&tables, &answer), Reason::Reply);
    // Another pod with the same address on another interface: a successor, or an impostor.
    let pod = *tables.policy.endpoint(IFINDEX).expect("the pod");
    let other = Endpoint { ifindex: IFINDEX + 1, id: 2, ..pod };
    tables.set_endpoint(other);
    let hook = PacketHook { ifindex: IFINDEX + 1, ingress_ifindex: IFINDEX + 1 };
    let verdict = tables.judge(Direction::Egress, hook, &answer);
    assert_eq!(verdict.reason(), Reason::Policy);
}

/// A table full of unanswered datagram flows: the oldest make room, no packet drops.
#[test]
fn datagrams_that_nobody_answers_fill_nothing() {
    let tables = tables(CLIENTS, NOBODY);
    let (request, answer) = (udp4((CLIENT, 4000), (POD, 53)), udp4((POD, 53), (CLIENT, 4000)));
    assert_eq!(ingress(&tables, &request), Reason::Allowed);
    assert_eq!(egress(&tables, &answer), Reason::Reply);
    for port in 5000..9000 {
        assert_eq!(ingress(&tables, &udp4((CLIENT, port), (POD, 53))), Reason::Allowed);
    }
    assert_eq!(egress(&tables, &answer), Reason::Reply, "a flow that was answered stays");
    assert_eq!(egress(&tables, &udp4((POD, 53), (CLIENT, 8999))), Reason::Reply);
    assert_eq!(egress(&tables, &udp4((POD, 53), (CLIENT, 5000))), Reason::Policy);
}

/// A table full of answered flows: packets that need no entry pass; packets drop, with the reason, if their replies
/// would be lost.
#[test]
fn a_full_flow_table_drops_only_what_could_not_be_answered() {
    let mut tables = tables(CLIENTS, NOBODY);
    let full = (1000..9000).find(|port| {
        let request = udp4((CLIENT, *port), (POD, 53));
        if ingress(&tables, &request) == Reason::ConntrackFull {
            return true;
        }
        assert_eq!(egress(&tables, &udp4((POD, 53), (CLIENT, *port))), Reason::Reply);
        false
    });
    let port = full.expect("64 entries are full at some time");
    let request = udp4((CLIENT, port), (POD, 53));
    assert_eq!(ingress(&tables, &request), Reason::ConntrackFull);
    // Flows in the table continue.
    assert_eq!(ingress(&tables, &udp4((CLIENT, 1000), (POD, 53))), Reason::Allowed);
    assert_eq!(egress(&tables, &udp4((POD, 53), (CLIENT, 1000))), Reason::Reply);
    // No entry is needed if replies pass without one.
    set_rows(&mut tables, CLIENTS, 0);
    assert_eq!(ingress(&tables, &request), Reason::Allowed);
    // Idle flows make room.
    set_rows(&mut tables, CLIENTS, NOBODY);
    tables.flows.later(tables.flows.settings.timeouts[TIMEOUT_UDP_ANSWERED]);
    assert_eq!(ingress(&tables, &request), Reason::Allowed);
}

/// A client's connection to the pod's port 80, with data in both directions.
fn connection(tables: &NodeTables) -> Vec<u8> {
    let to_pod = |flags| tcp4((CLIENT, 60000), (POD, 80), flags);
    let from_pod = |flags| tcp4((POD, 80), (CLIENT, 60000), flags);
    for (flags, answer) in [(SYN, SYN | ACK), (ACK, ACK), (ACK, ACK)] {
        assert_eq!(ingress(tables, &to_pod(flags)), Reason::Allowed);
        assert_eq!(egress(tables, &from_pod(answer)), Reason::Reply);
    }
    to_pod(ACK)
}

/// A cached verdict lasts as long as the policy's revision, and no longer than the entry is fresh.
#[test]
fn an_open_connection_ends_with_its_policy() {
    let mut tables = tables(CLIENTS, NOBODY);
    let packet = connection(&tables);
    // Under the same revision.
    let deny = |tables: &mut NodeTables| {
        tables.endpoint_mut(IFINDEX).rows = Endpoint::pack_rows(NOBODY, NOBODY);
    };
    deny(&mut tables);
    assert_eq!(ingress(&tables, &packet), Reason::Allowed, "the update is still under way");
    tables.changed();
    assert_eq!(ingress(&tables, &packet), Reason::Policy);

    set_rows(&mut tables, CLIENTS, NOBODY);
    let packet = connection(&tables);
    deny(&mut tables);
    tables.flows.later(tables.flows.settings.refresh_after);
    assert_eq!(ingress(&tables, &packet), Reason::Policy, "though nobody said that policy changed");
}

/// A pod's packet to itself passes by the interface that it comes back through. A forged one with the same addresses
/// and ports does not, though it has the same flow.
#[test]
fn nobody_passes_for_the_pod_itself() {
    let mut tables = tables(NOBODY, 0);
    let own = udp4((POD, 5353), (POD, 5353));
    let come_back =
        |tables: &NodeTables| one_pod::judge(tables, Direction::Ingress, IFINDEX, &own).reason();
    for _ in 0..2 {
        assert_eq!(egress(&tables, &own), Reason::NotIsolated);
        assert_eq!(come_back(&tables), Reason::Reply);
    }
    set_rows(&mut tables, NOBODY, NOBODY);
    for _ in 0..2 {
        assert_eq!(egress(&tables, &own), Reason::Loopback);
        assert_eq!(come_back(&tables), Reason::Loopback);
    }
    assert_eq!(ingress(&tables, &own), Reason::Policy);
}

/// A client that forges the pod's address makes the node answer the pod: with an echo reply, an error, a reset.
#[test]
fn the_node_answers_only_what_a_pod_has_asked() {
    let tables = tables(NOBODY, 0);
    let judge = |from, frame: &[u8]| one_pod::judge(&tables, Direction::Ingress, from, frame);
    let node = |frame: &[u8]| judge(0, frame).reason();
    let echo = |kind: u8| [kind, 0, 0, 0, 0, 7, 0, 1];
    let reply = frame4(1, STRANGER, POD, &echo(0));
    let refused = tcp4((STRANGER, 80), (POD, 4000), RST | ACK);
    let accepted = tcp4((STRANGER, 80), (POD, 4000), SYN | ACK);
    let asked = tcp4((POD, 4000), (STRANGER, 80), SYN);
    let unreachable = frame4(1, STRANGER, POD, &error_about(&asked));
    for answer in [&reply, &refused, &accepted, &unreachable] {
        assert_eq!(node(answer), Reason::Policy);
    }
    // Packets that begin or end flows of the node itself.
    assert_eq!(node(&frame4(1, STRANGER, POD, &echo(8))), Reason::Node);
    assert_eq!(node(&tcp4((STRANGER, 4001), (POD, 80), SYN)), Reason::Node);
    assert_eq!(node(&tcp4((STRANGER, 4001), (POD, 80), RST)), Reason::Node, "and ends");
    // Replies to requests of the pod.
    assert_eq!(egress(&tables, &frame4(1, POD, STRANGER, &echo(8))), Reason::NotIsolated);
    assert_eq!(node(&reply), Reason::Reply);
    assert_eq!(egress(&tables, &asked), Reason::NotIsolated);
    assert_eq!(node(&unreachable), Reason::Related);
    assert_eq!(node(&accepted), Reason::Node);
    assert_eq!(node(&refused), Reason::Node);
    // Packets of other senders that the kernel rebuilt have no interface either.
    let opening = tcp4((STRANGER, 4002), (POD, 80), SYN);
    assert_eq!(judge(UNKNOWN_INTERFACE, &opening).reason(), Reason::Policy);
}
