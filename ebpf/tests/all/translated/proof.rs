//! Proof and mark: the endpoint for which a packet is judged at an exit.

use netpold_ebpf::{
    judge::{
        post_nat,
        proof::{Exit, Origin, Rebuilt, is_unknown},
        station,
    },
    layout::{
        BRIDGE_GONE, BRIDGE_ISOLATED, BRIDGE_OPEN, DEVICE_LINE, DEVICE_PROBES, DEVICES,
        ENDPOINT_SLOTS, EP_CHECK_SOURCE, Endpoint, MARK_NUMBERS, device_place, endpoint_slot,
        is_mark, mark, marked_slot, reply_mark, split_mark,
    },
    packet::parse,
    reason::Reason,
};
use netpold_testkit::frames::{self, Who, ipv4_between, ipv6_between};
use netpold_testkit::node::NodeTables;

use crate::translated::setup::*;

#[test]
fn a_mark_names_its_endpoint() {
    for slot in [0, 1, 4095, ENDPOINT_SLOTS - 1] {
        for id in [0, 1, 6, 7, u32::MAX - 1] {
            let answer = reply_mark(mark(slot, id));
            for (all, answers) in [(mark(slot, id), false), (answer, true)] {
                assert!(is_mark(all) && u16::try_from(all).is_ok());
                assert_eq!(marked_slot(all), slot);
                assert_eq!(split_mark(all), (mark(slot, id), answers));
            }
            assert_ne!(mark(slot, id), mark(slot, id + 1), "the next pod's");
        }
    }
    assert!(!is_mark(0));
}

/// A packet that its veth's program did not see is judged for the endpoint that it arrived by, regardless of the fields
/// that a pod can write, and must have that endpoint's source address.
#[test]
fn what_went_round_its_program_is_judged_where_it_leaves() {
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).flags |= EP_CHECK_SOURCE;
    let forged = mark(endpoint_slot(OTHER_IFINDEX, 0), 1);
    let own = mark(endpoint_slot(POD_IFINDEX, 0), 1);
    let proof = tables.flows.settings.proof;
    for tc_index in [0, own, forged, 0xffff] {
        for (ifindex, ingress_ifindex) in [(OTHER_IFINDEX, POD_IFINDEX), (UPLINK, POD_IFINDEX)] {
            let exit = Exit { ifindex, ingress_ifindex, mark: !proof, tc_index, ..Exit::default() };
            let leave = |source, to| leave_by(&tables, &tcp((source, 1), to, ACK), exit);
            assert_eq!(leave(POD, (ALLOWED, 8080)), Reason::Allowed);
            assert_eq!(leave(POD, (ALLOWED, 8081)), Reason::Policy);
            assert_eq!(leave(POD, (DENIED, 8080)), Reason::Policy);
            assert_eq!(leave(ALLOWED, (ALLOWED, 8080)), Reason::SpoofedSource);
            let arp = [&[0; 12][..], &[8, 6], &[0; 28]].concat();
            assert_eq!(leave_by(&tables, &arp, exit), Reason::NotIp);
        }
    }
    let came_by = |ingress_ifindex| Exit { ifindex: UPLINK, ingress_ifindex, ..Exit::default() };
    // Back to the endpoint too: it would answer a forged source.
    let itself = |source| {
        let exit = Exit { ifindex: POD_IFINDEX, ..came_by(POD_IFINDEX) };
        leave_by(&tables, &tcp((source, 1), (POD, 2), SYN), exit)
    };
    assert_eq!(itself(POD), Reason::Policy);
    assert_eq!(itself(DENIED), Reason::SpoofedSource);
    // Without an endpoint's interface or before the proof is demanded, packets pass unjudged.
    let exit = |ingress_ifindex| Exit { tc_index: own, ..came_by(ingress_ifindex) };
    for ingress_ifindex in [0, UPLINK, OTHER_IFINDEX] {
        assert!(matches!(Origin::at_exit(&tables, &exit(ingress_ifindex)), Origin::Final));
    }
    let final_ = Exit { mark: tables.flows.settings.proof, tc_index: 0, ..exit(POD_IFINDEX) };
    assert!(matches!(Origin::at_exit(&tables, &final_), Origin::Final), "judged");
    tables.flows.settings.demands_proof = 0;
    assert!(matches!(Origin::at_exit(&tables, &exit(POD_IFINDEX)), Origin::Final));
    // A pod that no policy isolates may send to any address, but only from its own.
    tables.flows.settings.demands_proof = 1;
    tables.endpoint_mut(POD_IFINDEX).rows = 0;
    let leave = |source| leave_by(&tables, &tcp((source, 1), (DENIED, 1), SYN), exit(POD_IFINDEX));
    assert_eq!(leave(POD), Reason::NotIsolated);
    assert_eq!(leave(DENIED), Reason::SpoofedSource);
}

/// Packets without proof from a bridge are judged by their source alone, and a pod can forge that.
#[test]
fn what_comes_from_a_bridge_without_proof_drops_by_its_source() {
    const BRIDGE: u32 = 9;
    const OTHER: u32 = 78;
    let mut tables = tables();
    let own = mark(endpoint_slot(POD_IFINDEX, 0), 1);
    for flags in 0..8 {
        let [isolated, lives, open] = [0, 1, 2].map(|bit| flags >> bit & 1 != 0);
        let word = if isolated { BRIDGE | BRIDGE_ISOLATED } else { BRIDGE };
        let word = if open { word | BRIDGE_OPEN } else { word };
        let others = [77, BRIDGE_GONE, word, OTHER | BRIDGE_ISOLATED];
        tables.flows.settings.bridges[..others.len()].copy_from_slice(&others);
        let leave = |frame: &[u8], ingress_ifindex, mark, tc_index| {
            let exit = Exit { ifindex: UPLINK, ingress_ifindex, mark, tc_index, ..Exit::default() };
            leave(&tables, &frame, exit, None, lives)
        };
        for tc_index in [0, own, 0xffff] {
            let by_bridge = |source| {
                let frame = tcp((source, 1), (ALLOWED, 8080), SYN);
                leave(&frame, BRIDGE, !tables.flows.settings.proof, tc_index)
                    == Reason::SpoofedSource
            };
            assert_eq!(by_bridge(POD), isolated, "it may be the isolated pod's");
            let forged = lives && !open;
            assert_eq!(by_bridge(CLIENT), forged, "or one's that has come while no agent ran");
        }
        let packet = tcp((CLIENT, 1), (ALLOWED, 8080), SYN);
        assert_eq!(leave(&packet, BRIDGE, tables.flows.settings.proof, 0), Reason::NotEndpoint);
        assert_eq!(leave(&packet, BRIDGE + 1, 0, 0), Reason::NotEndpoint, "another bridge");
        assert_eq!(leave(&packet, 0, 0, 0), Reason::NotEndpoint, "the node");
        for length in 0..34 {
            assert_eq!(leave(&packet[..length], BRIDGE, 0, 0), Reason::Truncated, "{length}");
        }
    }
    tables.flows.settings.demands_proof = 0;
    let exit = Exit { ifindex: UPLINK, ingress_ifindex: BRIDGE, ..Exit::default() };
    assert!(matches!(Origin::at_exit(&tables, &exit), Origin::Final));
}

/// Once the agent has listed the interfaces that may hand packets on without proof, packets from all others drop.
#[test]
fn what_comes_by_an_interface_that_nobody_knows_drops() {
    const BRIDGE: u32 = 9;
    const DOOR: u32 = 1_000_003;
    let mut tables = tables();
    tables.flows.settings.bridges[0] = BRIDGE;
    tables.flows.settings.witness = 7;
    let exit = |ingress_ifindex| Exit { ifindex: UPLINK, ingress_ifindex, ..Exit::default() };
    assert!(!is_unknown(&tables, &exit(DOOR)), "nothing was put down yet");
    tables.flows.settings.closes_unknown = 1;
    assert!(is_unknown(&tables, &exit(DOOR)));
    for known in [0, UPLINK, BRIDGE, POD_IFINDEX] {
        assert!(!is_unknown(&tables, &exit(known)), "{known}: the node, itself, judged otherwise");
    }
    let proven = Exit { mark: tables.flows.settings.proof, ..exit(DOOR) };
    assert!(!is_unknown(&tables, &proven));
    for probe in 0..DEVICE_PROBES {
        let place = device_place(DOOR, probe);
        tables.flows.settings.devices[place / DEVICE_LINE][place % DEVICE_LINE] = DOOR;
        assert!(!is_unknown(&tables, &exit(DOOR)), "probe {probe}");
        assert!(is_unknown(&tables, &exit(DOOR + DEVICES)), "another one at its place");
        tables.flows.settings.devices[place / DEVICE_LINE][place % DEVICE_LINE] = 0;
    }
    // A socket of another namespace: a device on top of the exit's device.
    let foreign = |ingress_ifindex, tc_index| Exit {
        ifindex: OTHER_IFINDEX,
        ingress_ifindex,
        tc_index,
        foreign: true,
        ..Exit::default()
    };
    for (ingress_ifindex, tc_index) in
        [(0, 0), (0, 7), (POD_IFINDEX, 0), (OTHER_IFINDEX, 0), (BRIDGE, 0), (UPLINK, 0)]
    {
        assert!(is_unknown(&tables, &foreign(ingress_ifindex, tc_index)), "{ingress_ifindex}");
    }
    assert!(!is_unknown(&tables, &foreign(POD_IFINDEX, 7)), "its program has seen it");
    tables.flows.settings.demands_proof = 0;
    assert!(!is_unknown(&tables, &foreign(0, 0)) && !is_unknown(&tables, &exit(DOOR)));
}

#[test]
fn a_mark_ends_with_its_endpoint() {
    let mut tables = tables();
    let packet = tcp((POD, 40000), (OPEN, 80), SYN);
    let exit = marked(&tables, UPLINK);
    assert_eq!(leave_by(&tables, &packet, exit), Reason::Allowed);
    let id = tables.endpoint_mut(POD_IFINDEX).id;
    for next in 1..=2 * MARK_NUMBERS {
        tables.endpoint_mut(POD_IFINDEX).id = id + next;
        // The agent gives no such number to an endpoint that takes over the record.
        let same = next % MARK_NUMBERS == 0;
        let expected = if same { Reason::Allowed } else { Reason::ServiceBackend };
        assert_eq!(leave_by(&tables, &packet, exit), expected, "a pod has the slot as {next}");
    }
}

#[test]
fn a_mark_whose_endpoint_is_gone_grants_nothing() {
    let mut tables = tables();
    tables.policy.endpoints.remove(&endpoint_slot(POD_IFINDEX, 0));
    let packet = tcp((POD, 40000), (OPEN, 80), SYN);
    assert_eq!(behind(&tables, &packet, UPLINK), Reason::ServiceBackend);
}

/// A bridge delivers by a frame's hardware address: a packet must not reach another pod than the one with its
/// destination address.
#[test]
fn what_is_for_anothers_address_arrives_nowhere_else() {
    let mut tables = tables();
    let mut other = Endpoint {
        ifindex: OTHER_IFINDEX,
        id: 2,
        flags: 1 | EP_CHECK_SOURCE,
        ..Endpoint::default()
    };
    other.addr4[0] = u32::from_be_bytes(OPEN);
    tables.set_endpoint(other);
    let astray = |tables: &NodeTables, to, ifindex, by| {
        let frame = tcp((POD, 4000), (to, 8080), SYN);
        station::may_go_astray(tables, ifindex, by)
            && station::is_astray(&&frame[..], tables, ifindex) == Ok(true)
    };
    for to in [ALLOWED, NODE, SERVICE, DENIED] {
        assert!(astray(&tables, to, OTHER_IFINDEX, POD_IFINDEX), "{to:?}");
        assert!(!astray(&tables, to, OTHER_IFINDEX, UPLINK), "from elsewhere");
        assert!(astray(&tables, to, OTHER_IFINDEX, 0), "made rebuilt of somebody's parts");
        assert!(!astray(&tables, to, POD_IFINDEX, OTHER_IFINDEX), "its sender may send anything");
    }
    let tagged = {
        let mut frame = tcp((POD, 4000), (ALLOWED, 8080), SYN);
        frame.splice(12..12, [0x81, 0, 0, 7]);
        frame
    };
    assert_eq!(station::is_astray(&&tagged[..], &tables, OTHER_IFINDEX), Ok(true));
    assert!(!astray(&tables, OPEN, OTHER_IFINDEX, POD_IFINDEX), "its own address");
    assert!(!astray(&tables, [224, 0, 0, 251], OTHER_IFINDEX, POD_IFINDEX), "everybody's");
    tables.endpoint_mut(OTHER_IFINDEX).flags &= !EP_CHECK_SOURCE;
    assert!(!astray(&tables, ALLOWED, OTHER_IFINDEX, POD_IFINDEX), "it may have other addresses");
}

/// An IPv6 advertisement and an ARP reply.
fn claims(from: [u8; 16], sender: [u8; 4]) -> [Vec<u8>; 2] {
    let message = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &Who::Stranger.v6()].concat();
    let advertisement = frames::frame(&ipv6_between([from, Who::Client.v6()], 58, 255, &message));
    let packet = [&[0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 7][..], &sender, &[0; 10]].concat();
    [advertisement, [&[0; 12][..], &[8, 6], &packet].concat()]
}

/// Claims of a pod without policy do not count where its program did not see them.
#[test]
fn what_went_round_its_program_claims_nothing() {
    let mut tables = tables();
    let own = Who::Pod.v6();
    let pod = tables.endpoint_mut(POD_IFINDEX);
    pod.flags |= EP_CHECK_SOURCE | 0x10;
    (pod.addr6[0], pod.rows) = (own, 0);
    let exit = Exit { ifindex: UPLINK, ingress_ifindex: POD_IFINDEX, ..Exit::default() };
    let [advertisement, arp] = claims(own, POD);
    let may_claim = |frame: &[u8]| post_nat::may_claim(&frame, parse::link(&frame));
    assert!(may_claim(&advertisement));
    assert_eq!(leave_by(&tables, &arp, exit), Reason::NotIp);
    let behind_options = {
        let payload = [&[58, 0, 1, 4, 0, 0, 0, 0][..], &advertisement[54..]].concat();
        frames::frame(&ipv6_between([own, Who::Client.v6()], 60, 255, &payload))
    };
    assert!(may_claim(&behind_options));
    let unread = frames::frame(&ipv6_between([own, Who::Client.v6()], 60, 255, &[58; 4]));
    assert!(may_claim(&unread));
    let echo = frames::frame(&ipv6_between([own, Who::Client.v6()], 58, 255, &[128; 8]));
    assert!(!may_claim(&echo));
    assert_eq!(leave_by(&tables, &echo, exit), Reason::NotIsolated);
    // A route beyond the destination, in IPv4 options.
    let routed = |options: &[u8]| {
        let packet = ipv4_between([POD, ALLOWED], 6, options, 0, &[0; 20]);
        let frame = frames::frame(&packet);
        let options = post_nat::options(&&frame[..], parse::link(&&frame[..]));
        options.is_some_and(|(at, end)| parse::has_route(&&frame[..], at, end))
    };
    for (options, on) in [
        (&[][..], false),
        (&[148, 4, 0, 0], false),
        (&[131, 7, 4, 10, 0, 3, 1, 0], true),
        (&[1, 137, 7, 4, 10, 0, 3, 1], true),
    ] {
        assert_eq!(routed(options), on, "{options:02x?}");
    }
}

/// The kernel rebuilds packets of any sender: fragments, and with SYNPROXY the openings of connections.
#[test]
fn what_the_kernel_made_anew_is_from_nobody_it_says() {
    let mut tables = tables();
    let part = |from| frames::frame(&ipv4_between([from, ALLOWED], 17, &[], 0x2000, &[0; 40]));
    let syn = |from, to| tcp((from, 1), to, SYN);
    let kind = |frame: &[u8]| Rebuilt::kind(&frame, parse::link(&frame));
    assert_eq!(kind(&part(POD)), Rebuilt::Fragment);
    assert_eq!(kind(&syn(POD, (ALLOWED, 80))), Rebuilt::Opening);
    assert_eq!(kind(&tcp((POD, 1), (ALLOWED, 80), SYN | ACK)), Rebuilt::No);
    assert_eq!(kind(&tcp((POD, 1), (ALLOWED, 80), ACK)), Rebuilt::No);
    let part6 = |next, payload: &[u8]| {
        frames::frame(&ipv6_between([Who::Pod.v6(), Who::Client.v6()], next, 64, payload))
    };
    assert_eq!(kind(&part6(44, &[17, 0, 0, 1, 0, 0, 0, 1])), Rebuilt::Fragment);
    assert_eq!(kind(&part6(60, &[44, 0, 1, 4, 0, 0, 0, 0])), Rebuilt::Fragment, "behind options");
    assert_eq!(kind(&part6(17, &[0; 8])), Rebuilt::No);
    let [_, arp] = claims(Who::Pod.v6(), POD);
    assert_eq!(kind(&arp), Rebuilt::No);
    for isolates in [0, 1] {
        tables.flows.settings.any_endpoint = isolates;
        for mark in [0, !tables.flows.settings.proof] {
            let by = |frame: &[u8]| {
                let rebuilt = kind(frame);
                leave_by(&tables, frame, Exit { ifindex: UPLINK, mark, rebuilt, ..Exit::default() })
            };
            assert_eq!(by(&part(POD)), Reason::SpoofedSource, "its program would have proved it");
            let from_outside =
                if isolates == 0 { Reason::NotEndpoint } else { Reason::SpoofedSource };
            assert_eq!(by(&part(CLIENT)), from_outside);
            assert_eq!(by(&syn(CLIENT, (ALLOWED, 1))), Reason::NotEndpoint, "a client outside");
            assert_eq!(by(&syn(POD, (ALLOWED, 8080))), Reason::Allowed);
            assert_eq!(by(&syn(POD, (ALLOWED, 8081))), Reason::Policy);
        }
        let proven = Exit {
            ifindex: UPLINK,
            mark: tables.flows.settings.proof,
            rebuilt: Rebuilt::No,
            ..Exit::default()
        };
        assert!(
            matches!(Origin::at_exit(&tables, &proven), Origin::Final),
            "parts of what was judged"
        );
    }
    tables.flows.settings.demands_proof = 0;
    let exit = Exit { ifindex: UPLINK, rebuilt: Rebuilt::Fragment, ..Exit::default() };
    assert!(matches!(Origin::at_exit(&tables, &exit), Origin::Final));
}

/// Packets to the node itself pass no exit.
#[test]
fn what_a_bridge_hands_to_the_node_has_the_proof() {
    const BRIDGE: u32 = 9;
    let mut tables = tables();
    for flags in 0..8 {
        let [isolated, lives, open] = [0, 1, 2].map(|bit| flags >> bit & 1 != 0);
        let word = if isolated { BRIDGE | BRIDGE_ISOLATED } else { BRIDGE };
        tables.flows.settings.bridges[0] = if open { word | BRIDGE_OPEN } else { word };
        let at = |frame: &[u8], ifindex, mark| {
            let origin = Origin::at_bridge(&tables, ifindex, mark);
            let link = parse::link(&frame);
            post_nat::judge_at_bridge(&frame, link, &tables, origin, || lives).reason().is_drop()
        };
        let forged = lives && !open;
        let [advertisement, arp] = claims(Who::Stranger.v6(), POD);
        assert!(at(&arp, BRIDGE, 0), "an endpoint's address");
        assert_eq!(at(&claims(Who::Stranger.v6(), CLIENT)[1], BRIDGE, 0), forged);
        assert_eq!(at(&advertisement, BRIDGE, 0), forged);
        let from = |source| tcp((source, 1), (NODE, 80), SYN);
        assert_eq!(at(&from(POD), BRIDGE, 0), isolated, "it may be the isolated pod's");
        assert_eq!(at(&from(CLIENT), BRIDGE, 0), forged);
        assert!(at(&from(CLIENT)[..20], BRIDGE, 0), "cut short");
        for frame in [&arp, &advertisement, &from(POD)] {
            assert!(!at(frame, BRIDGE, tables.flows.settings.proof), "seen by its port's program");
            assert!(!at(frame, BRIDGE + 1, 0), "a bridge of which nothing is demanded");
        }
    }
}
