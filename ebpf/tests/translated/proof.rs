//! Proof and mark: for whom a packet is judged where it leaves.

use netpold_ebpf::{
    judge::{
        proof::{Exit, Origin, is_unknown},
        station,
    },
    layout::{
        BRIDGE_GONE, BRIDGE_ISOLATED, BRIDGE_OPEN, DEVICE_LINE, DEVICE_PROBES, DEVICES,
        ENDPOINT_SLOTS, EP_CHECK_SOURCE, Endpoint, answer_mark, device_place, endpoint_slot,
        is_mark, mark, marked_slot, parts_of,
    },
    reason::Reason,
};
use netpold_testkit::node::NodeTables;

use crate::setup::*;

#[test]
fn a_mark_names_its_endpoint() {
    for slot in [0, 1, 4095, ENDPOINT_SLOTS - 1] {
        for id in [0, 1, 6, 7, u32::MAX - 1] {
            let answer = answer_mark(mark(slot, id));
            for (all, answers) in [(mark(slot, id), false), (answer, true)] {
                assert!(is_mark(all) && u16::try_from(all).is_ok());
                assert_eq!(marked_slot(all), slot);
                assert_eq!(parts_of(all), (mark(slot, id), answers));
            }
            assert_ne!(mark(slot, id), mark(slot, id + 1), "the next pod's");
        }
    }
    assert!(!is_mark(0));
}

/// Whatever a pod writes into its packets, one that its veth's program did not see is judged for the
/// endpoint that it came by, and has to come from that endpoint's address.
#[test]
fn what_went_round_its_program_is_judged_where_it_leaves() {
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).flags |= EP_CHECK_SOURCE;
    let forged = mark(endpoint_slot(OTHER_IFINDEX, 0), 1);
    let own = mark(endpoint_slot(POD_IFINDEX, 0), 1);
    for tc_index in [0, own, forged, 0xffff] {
        for (ifindex, ingress_ifindex) in [(OTHER_IFINDEX, POD_IFINDEX), (UPLINK, POD_IFINDEX)] {
            let mark = !tables.flows.settings.proof;
            let exit = Exit { ifindex, ingress_ifindex, mark, tc_index, foreign: false };
            let leave = |source, to| leave_by(&tables, &tcp((source, 1), to, ACK), exit);
            assert_eq!(leave(POD, (ALLOWED, 8080)), Reason::Allowed);
            assert_eq!(leave(POD, (ALLOWED, 8081)), Reason::Policy);
            assert_eq!(leave(POD, (DENIED, 8080)), Reason::Policy);
            assert_eq!(leave(ALLOWED, (ALLOWED, 8080)), Reason::SpoofedSource);
            let arp = [&[0; 12][..], &[8, 6], &[0; 28]].concat();
            assert_eq!(leave_by(&tables, &arp, exit), Reason::NotIp);
        }
    }
    // Where its program proves nothing yet, and what came by no endpoint's interface.
    let exit = |ingress_ifindex| Exit {
        ifindex: UPLINK,
        ingress_ifindex,
        mark: 0,
        tc_index: own,
        foreign: false,
    };
    for ingress_ifindex in [0, UPLINK, OTHER_IFINDEX] {
        assert!(matches!(Origin::of(&tables, &exit(ingress_ifindex)), Origin::Final));
    }
    let final_ = Exit { mark: tables.flows.settings.proof, tc_index: 0, ..exit(POD_IFINDEX) };
    assert!(matches!(Origin::of(&tables, &final_), Origin::Final), "judged");
    tables.flows.settings.demands_proof = 0;
    assert!(matches!(Origin::of(&tables, &exit(POD_IFINDEX)), Origin::Final));
    // A pod that no policy isolates may send to anybody, but not as anybody.
    tables.flows.settings.demands_proof = 1;
    tables.endpoint_mut(POD_IFINDEX).rows = 0;
    let leave = |source| leave_by(&tables, &tcp((source, 1), (DENIED, 1), SYN), exit(POD_IFINDEX));
    assert_eq!(leave(POD), Reason::NotIsolated);
    assert_eq!(leave(DENIED), Reason::SpoofedSource);
}

/// Of what a bridge hands to the node without proof only the source says anything, and that a pod can write.
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
            let exit = Exit { ifindex: UPLINK, ingress_ifindex, mark, tc_index, foreign: false };
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
    assert!(matches!(Origin::of(&tables, &exit), Origin::Final));
}

/// Once the agent has put down which interfaces may hand packets on without proof, all others hand on nothing.
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
    // A socket of another namespace: a device on top of the one that it leaves by.
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
    tables.endpoint_mut(POD_IFINDEX).id += 1;
    assert_eq!(
        leave_by(&tables, &packet, exit),
        Reason::ServiceBackend,
        "another pod has the slot"
    );
}

#[test]
fn a_mark_whose_endpoint_is_gone_grants_nothing() {
    let mut tables = tables();
    tables.policy.endpoints.remove(&POD_IFINDEX);
    let packet = tcp((POD, 40000), (OPEN, 80), SYN);
    assert_eq!(behind(&tables, &packet, UPLINK), Reason::ServiceBackend);
}

/// On a bridge the station that a frame is for decides who gets it: another pod than the one whose
/// address the packet has does not.
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
        assert!(astray(&tables, to, OTHER_IFINDEX, 0), "made anew of somebody's parts");
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
    tables.endpoint_mut(endpoint_slot(OTHER_IFINDEX, 0)).flags &= !EP_CHECK_SOURCE;
    assert!(!astray(&tables, ALLOWED, OTHER_IFINDEX, POD_IFINDEX), "it may have other addresses");
}
