//! Messages of the link, which pass without a rule: their form, their reach and their sender.

use netpold_ebpf::{
    judge::{
        post_nat,
        proof::{Exit, Origin},
    },
    layout::{EP_CHECK_SOURCE, Endpoint, endpoint_slot, mark},
    packet::parse,
    reason::Reason,
};
use netpold_testkit::frames::{Who, frame, ipv6_between, udp4};
use netpold_testkit::node::NodeTables;
use netpold_testkit::one_pod::{
    DENY_ROW as NOBODY, IFINDEX, INGRESS_ROW, egress, ingress, with_rows,
};

const POD: [u8; 16] = Who::Pod.v6();
const NEIGHBOUR: [u8; 16] = address(0xfd, 3);
const FAR: [u8; 16] = address(0x20, 7);
const LINK: [u8; 16] = link(9);
const NONE: [u8; 16] = [0; 16];
const ALL_NODES: [u8; 16] = group(1);
const ALL_ROUTERS: [u8; 16] = group(2);
const ALL_REPORTS: [u8; 16] = group(0x16);

const fn address(first: u8, last: u8) -> [u8; 16] {
    [first, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

const fn link(last: u8) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

const fn group(last: u8) -> [u8; 16] {
    [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

/// Solicited-node group of an address.
fn solicited(of: [u8; 16]) -> [u8; 16] {
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&of[13..]);
    group
}

/// An isolated pod that no rule allows these messages; with row 0 a pod that is not isolated.
fn tables(row: u32, check: bool) -> NodeTables {
    let mut tables = with_rows(if row == 0 { 0 } else { INGRESS_ROW }, row);
    if !check {
        tables.endpoint_mut(IFINDEX).flags &= !EP_CHECK_SOURCE;
    }
    tables
}

fn ipv6(from: [u8; 16], to: [u8; 16], next: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
    frame(&ipv6_between([from, to], next, hops, payload))
}

/// A message of neighbour discovery: flags, target and options.
fn message(kind: u8, flags: u32, target: &[u8], options: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &flags.to_be_bytes(), target, options].concat()
}

fn nd(from: [u8; 16], to: [u8; 16], message: &[u8]) -> Vec<u8> {
    ipv6(from, to, 58, 255, message)
}

const fn option(kind: u8) -> [u8; 8] {
    [kind, 1, 2, 0, 0, 0, 0, 2]
}

fn solicitation(of: [u8; 16], options: &[u8]) -> Vec<u8> {
    message(135, 0, &of, options)
}

fn advertisement(of: [u8; 16], options: &[u8]) -> Vec<u8> {
    message(136, 0x6000_0000, &of, options)
}

/// Messages that a pod without any grant needs on its link, in their exact form.
#[test]
fn solicitations_have_one_form() {
    let tables = tables(NOBODY, true);
    let group = solicited(NEIGHBOUR);
    let single = Reason::Translated;
    for (from, to, message, expected) in [
        // Address resolution, reachability detection, duplicate address detection.
        (POD, group, solicitation(NEIGHBOUR, &option(1)), Reason::Neighbour),
        (LINK, group, solicitation(NEIGHBOUR, &[]), Reason::Neighbour),
        (POD, NEIGHBOUR, solicitation(NEIGHBOUR, &option(1)), single),
        (POD, link(1), solicitation(link(1), &[]), Reason::Neighbour),
        (NONE, solicited(POD), solicitation(POD, &option(14)), Reason::Neighbour),
        (NONE, solicited(POD), solicitation(POD, &[]), Reason::Neighbour),
        (LINK, ALL_ROUTERS, message(133, 0, &[], &option(1)), Reason::Neighbour),
        (NONE, ALL_ROUTERS, message(133, 0, &[], &[]), Reason::Neighbour),
        (NONE, solicited(LINK), solicitation(LINK, &[]), Reason::Neighbour),
        // Claims that keep another host from its address.
        (NONE, solicited(NEIGHBOUR), solicitation(NEIGHBOUR, &option(14)), Reason::SpoofedSource),
        (NONE, NEIGHBOUR, solicitation(NEIGHBOUR, &[]), Reason::SpoofedSource),
        // Other destinations than the target's.
        (POD, FAR, solicitation(NEIGHBOUR, &[]), Reason::Policy),
        (POD, ALL_NODES, solicitation(NEIGHBOUR, &[]), Reason::Policy),
        (POD, solicited(POD), solicitation(NEIGHBOUR, &[]), Reason::Policy),
        (POD, FAR, message(133, 0, &[], &[]), Reason::Policy),
        (POD, ALL_NODES, message(133, 0, &[], &[]), Reason::Policy),
        // Two options, another option, another length, a reserved field that is not zero.
        (POD, group, solicitation(NEIGHBOUR, &[option(1); 2].concat()), Reason::Policy),
        (POD, group, solicitation(NEIGHBOUR, &option(2)), Reason::Policy),
        (POD, group, solicitation(NEIGHBOUR, &[1, 2, 0, 0, 0, 0, 0, 0]), Reason::Policy),
        (POD, group, solicitation(NEIGHBOUR, &[0; 4]), Reason::Policy),
        (POD, group, message(135, 1, &NEIGHBOUR, &[]), Reason::Policy),
        (LINK, ALL_ROUTERS, message(133, 1, &[], &[]), Reason::SpoofedSource),
        // From the unspecified address only for duplicate address detection.
        (NONE, solicited(POD), solicitation(POD, &option(1)), Reason::SpoofedSource),
        (NONE, POD, solicitation(POD, &[]), Reason::SpoofedSource),
        // From another host's address.
        (NEIGHBOUR, group, solicitation(NEIGHBOUR, &[]), Reason::SpoofedSource),
    ] {
        assert_eq!(
            egress(&tables, &nd(from, to, &message)),
            expected,
            "{message:02x?} to {to:02x?}"
        );
    }
    let sound = solicitation(NEIGHBOUR, &option(1));
    for (frame, why) in [
        (ipv6(POD, group, 58, 254, &sound), "hop limit"),
        (ipv6(POD, group, 60, 255, &[&[58, 0, 1, 4, 0, 0, 0, 0], &sound[..]].concat()), "options"),
        (ipv6(POD, group, 44, 255, &[&[58, 0, 0, 1, 0, 0, 0, 7], &sound[..]].concat()), "parts"),
        (ipv6(POD, group, 44, 255, &[&[58, 0, 0, 0, 0, 0, 0, 7], &sound[..]].concat()), "one part"),
    ] {
        assert_eq!(egress(&tables, &frame), Reason::Policy, "{why}");
    }
}

#[test]
fn advertisements_are_of_the_pod() {
    let isolated = tables(NOBODY, true);
    for (from, to, message, expected) in [
        (POD, NEIGHBOUR, advertisement(POD, &option(2)), Reason::Translated),
        (POD, link(1), advertisement(POD, &option(2)), Reason::Neighbour),
        (LINK, ALL_NODES, advertisement(POD, &[]), Reason::Neighbour),
        (LINK, link(1), advertisement(LINK, &option(2)), Reason::Neighbour),
        (POD, NEIGHBOUR, advertisement(POD, &option(1)), Reason::Policy),
        (POD, solicited(NEIGHBOUR), advertisement(POD, &[]), Reason::Policy),
        (POD, NEIGHBOUR, message(136, 1, &POD, &[]), Reason::Policy),
        (POD, NEIGHBOUR, advertisement(POD, &[0; 900]), Reason::Policy),
    ] {
        assert_eq!(egress(&isolated, &nd(from, to, &message)), expected, "{message:02x?}");
    }
    // Claims drop, with policy for the pod or without.
    for tables in [isolated, tables(0, true)] {
        for (from, to, message) in [
            (POD, ALL_NODES, advertisement(NEIGHBOUR, &option(2))),
            (LINK, NEIGHBOUR, advertisement(NEIGHBOUR, &[])),
            (LINK, NEIGHBOUR, advertisement(link(1), &[])),
            (NEIGHBOUR, POD, advertisement(NEIGHBOUR, &[])),
            (LINK, ALL_NODES, message(134, 0, &[0; 8], &[])),
            (LINK, POD, message(137, 0, &NEIGHBOUR, &NEIGHBOUR)),
            (POD, ALL_NODES, vec![136, 0, 0, 0, 0, 0, 0, 0]),
            (NONE, solicited(NEIGHBOUR), solicitation(NEIGHBOUR, &[])),
            (NONE, solicited(NEIGHBOUR), vec![135, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            let plain = egress(&tables, &nd(from, to, &message));
            assert_eq!(plain, Reason::SpoofedSource, "{message:02x?}");
            for headers in [1, 8] {
                let mut payload = Vec::new();
                for header in 1..=headers {
                    let next = if header == headers { 58 } else { 60 };
                    payload.extend([next, 0, 1, 4, 0, 0, 0, 0]);
                }
                payload.extend(&message);
                let hidden = egress(&tables, &ipv6(from, to, 60, 255, &payload));
                assert_eq!(hidden, Reason::SpoofedSource, "{message:02x?} behind {headers}");
                let deeper = [&[60, 0, 1, 4, 0, 0, 0, 0][..], &payload].concat();
                let unseen = egress(&tables, &ipv6(from, to, 60, 255, &deeper));
                assert!(unseen.is_drop(), "{message:02x?} behind more: {unseen:?}");
            }
            let first = [&[58, 0, 0, 1, 0, 0, 0, 7], &message[..]].concat();
            let first = egress(&tables, &ipv6(from, to, 44, 255, &first));
            assert_eq!(first, Reason::SpoofedSource, "{message:02x?}, the first part");
        }
    }
    // A pod that is exempt from the source check may claim any address, in the exact form.
    let gateway = tables(NOBODY, false);
    let claim = advertisement(NEIGHBOUR, &option(2));
    assert_eq!(egress(&gateway, &nd(POD, ALL_NODES, &claim)), Reason::Neighbour);
    let more = advertisement(NEIGHBOUR, &[0; 900]);
    assert_eq!(egress(&gateway, &nd(POD, ALL_NODES, &more)), Reason::Policy);
}

/// A message to one address is judged again at the exit: a router lowers the hop limit.
#[test]
fn neighbour_discovery_does_not_leave_the_link() {
    let tables = tables(NOBODY, true);
    let behind = |frame: &[u8]| {
        let tc_index =
            mark(endpoint_slot(IFINDEX, 0), tables.policy.slot(endpoint_slot(IFINDEX, 0)).id);
        let exit = Exit {
            ifindex: 77,
            ingress_ifindex: IFINDEX,
            mark: tables.flows.settings.proof,
            tc_index,
            ..Exit::default()
        };
        let origin = Origin::at_exit(&tables, &exit);
        post_nat::judge(&frame, parse::link(&frame), &tables, origin, 77, None, || true).reason()
    };
    for message in [solicitation(FAR, &option(1)), advertisement(POD, &option(2))] {
        let mut frame = nd(POD, FAR, &message);
        assert_eq!(egress(&tables, &frame), Reason::Translated);
        assert_eq!(behind(&frame), Reason::Neighbour, "a bridge passed it on");
        frame[14 + 7] = 254;
        assert_eq!(behind(&frame), Reason::ServiceBackend, "a router forwarded it");
    }
    let long = nd(POD, FAR, &advertisement(POD, &[0; 900]));
    assert_eq!(behind(&long), Reason::ServiceBackend);
}

#[test]
fn an_isolated_pod_gets_neighbour_discovery_of_its_link_alone() {
    let tables = tables(NOBODY, true);
    for (from, to, message, expected) in [
        (NEIGHBOUR, solicited(POD), solicitation(POD, &option(1)), Reason::Neighbour),
        (FAR, POD, solicitation(POD, &[]), Reason::Neighbour),
        (NEIGHBOUR, POD, advertisement(NEIGHBOUR, &option(2)), Reason::Neighbour),
        (LINK, ALL_NODES, message(134, 0, &[0; 8], &[0; 64]), Reason::Neighbour),
        (FAR, ALL_NODES, message(134, 0, &[0; 8], &[]), Reason::Policy),
        (LINK, ALL_NODES, message(134, 0, &[0; 8], &[0; 900]), Reason::Policy),
        (NEIGHBOUR, solicited(POD), solicitation(POD, &[0; 900]), Reason::Policy),
        (NEIGHBOUR, POD, advertisement(NEIGHBOUR, &[0; 900]), Reason::Policy),
        (LINK, POD, message(137, 0, &FAR, &FAR), Reason::Policy),
    ] {
        assert_eq!(ingress(&tables, &nd(from, to, &message)), expected, "{message:02x?}");
        let routed = ingress(&tables, &ipv6(from, to, 58, 254, &message));
        assert_eq!(routed, Reason::Policy, "{message:02x?} by a router");
    }
}

fn listener(from: [u8; 16], to: [u8; 16], alert: [u8; 6], message: &[u8]) -> Vec<u8> {
    ipv6(from, to, 0, 1, &[&[58, 0], &alert[..], message].concat())
}

fn records(count: u16, each: &[u8]) -> Vec<u8> {
    let mut message = vec![143, 0, 0, 0, 0, 0];
    message.extend(count.to_be_bytes());
    (0..count).for_each(|_| message.extend(each));
    message
}

#[test]
fn listener_reports_have_one_form() {
    const ALERT: [u8; 6] = [5, 2, 0, 0, 1, 0];
    let tables = tables(NOBODY, true);
    let named = group(0xfb);
    let record = [&[4, 0, 0, 0][..], &named].concat();
    let with_source = [&[3, 0, 0, 1][..], &named, &FAR].concat();
    let with_data = [&[4, 2, 0, 0][..], &named, &[0; 8]].concat();
    let of_one = [&[4, 0, 0, 0][..], &FAR].concat();
    let v1 = |kind: u8, extra: &[u8]| [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &named, extra].concat();
    for (to, message, sound) in [
        (ALL_REPORTS, records(1, &record), true),
        (ALL_REPORTS, records(8, &record), true),
        (ALL_REPORTS, records(2, &with_source), true),
        (ALL_REPORTS, records(9, &record), false),
        (ALL_REPORTS, records(0, &record), false),
        (ALL_REPORTS, records(1, &with_data), false),
        (ALL_REPORTS, records(1, &of_one), false),
        (ALL_REPORTS, [records(1, &record), vec![0; 1200]].concat(), false),
        (ALL_REPORTS, [records(2, &record)[..28].to_vec(), vec![]].concat(), false),
        (ALL_NODES, records(1, &record), false),
        (named, v1(131, &[]), true),
        (ALL_ROUTERS, v1(132, &[]), true),
        (ALL_NODES, v1(131, &[]), false),
        (named, v1(131, &[0; 1200]), false),
        (FAR, v1(131, &[]), false),
    ] {
        let expected = if sound { Reason::Neighbour } else { Reason::SpoofedSource };
        for from in [LINK, NONE] {
            let verdict = egress(&tables, &listener(from, to, ALERT, &message));
            assert_eq!(verdict, expected, "{message:02x?}");
        }
        // A message to another unicast address does not even count as the pod's.
        let denied = if to == FAR { Reason::Flooded } else { Reason::Policy };
        let expected = if sound { Reason::Neighbour } else { denied };
        assert_eq!(ingress(&tables, &listener(LINK, to, ALERT, &message)), expected);
        assert_eq!(ingress(&tables, &listener(FAR, to, ALERT, &message)), denied);
        let unheard = ingress(&tables, &listener(LINK, to, [1, 4, 0, 0, 0, 0], &message));
        assert_eq!(unheard, denied, "no router alert");
        let direct = ingress(&tables, &ipv6(LINK, to, 58, 1, &message));
        assert_eq!(direct, denied, "no hop-by-hop header");
    }
    // Pods receive queries, but send none.
    let query = |sources: u16| {
        let mut message = v1(130, &[0, 0]);
        message.extend(sources.to_be_bytes());
        (0..sources).for_each(|_| message.extend(FAR));
        message
    };
    for (message, sound) in
        [(v1(130, &[]), true), (query(0), true), (query(8), true), (query(9), false)]
    {
        let expected = if sound { Reason::Neighbour } else { Reason::Policy };
        assert_eq!(ingress(&tables, &listener(LINK, ALL_NODES, ALERT, &message)), expected);
        assert!(egress(&tables, &listener(LINK, ALL_NODES, ALERT, &message)).is_drop());
    }
}

/// The pod's hardware address, and another.
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Tables of a pod with a known hardware address, see [`tables`].
fn with_station(row: u32, check: bool) -> NodeTables {
    let mut tables = tables(row, check);
    tables.endpoint_mut(IFINDEX).flags |= Endpoint::pack_station(OWN);
    tables
}

/// The frame with another source hardware address, and tags of these types.
fn from_station(station: [u8; 6], frame: &[u8], tags: &[u16]) -> Vec<u8> {
    let tags = tags.iter().flat_map(|kind| [&kind.to_be_bytes()[..], &[0, 0]].concat());
    let tags: Vec<u8> = tags.collect();
    [&frame[..6], &station, &tags, &frame[12..]].concat()
}

fn arp(operation: u8, station: [u8; 6], own: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let packet = [&[0, 1, 8, 0, 6, 4, 0, operation][..], &station, &own, &[0; 6], &target].concat();
    [&[0xff; 6][..], &OWN, &[8, 6], &packet].concat()
}

#[test]
fn what_cannot_be_read_passes_no_check_of_its_sender() {
    const KINDS: [u16; 2] = [0x8100, 0x88a8];
    let own = udp4((Who::Pod.v4(), 1), (Who::Stranger.v4(), 2));
    let forged = udp4((Who::Stranger.v4(), 1), (Who::Pod.v4(), 2));
    let claim = nd(POD, ALL_NODES, &advertisement(NEIGHBOUR, &[]));
    let router = nd(LINK, ALL_NODES, &message(134, 0, &[0; 8], &[]));
    let theft = arp(2, OWN, Who::Stranger.v4(), Who::Pod.v4());
    for row in [0, NOBODY] {
        let (checked, exempt) = (with_station(row, true), with_station(row, false));
        for count in 0..=12 {
            let tags: Vec<u16> = (0..count).map(|n| KINDS[n % 2]).collect();
            for frame in [&forged, &claim, &router, &theft] {
                let tagged = from_station(OWN, frame, &tags);
                assert!(egress(&checked, &tagged).is_drop(), "{count} tags: {frame:02x?}");
            }
            let tagged = from_station(OWN, &own, &tags);
            let passes = !egress(&checked, &tagged).is_drop();
            assert_eq!(passes, row == 0 && count <= 2, "{count} tags in its own name");
            let passes = !egress(&exempt, &tagged).is_drop();
            assert_eq!(passes, row == 0, "{count} tags of who may have any name");
        }
        // Types that no IP receiver accepts drop too: a host may decapsulate them.
        for kind in [0x8847_u16, 0x8864, 0x88cc, 0x9100, 0x0026] {
            let frame = [&own[..12], &kind.to_be_bytes(), &own[12..]].concat();
            let frame = from_station(OWN, &frame, &[]);
            assert_eq!(egress(&checked, &frame), Reason::NotIp, "{kind:x}");
        }
        // Nested fragments, and options that continue in the next fragment: unreadable IPv6 drops.
        for (next, payload) in [
            (44, vec![44, 0, 0, 1, 0, 0, 0, 7, 58, 0, 0, 1, 0, 0, 0, 8, 136, 0, 0, 0, 0, 0, 0, 0]),
            (44, vec![60, 0, 0, 1, 0, 0, 0, 7, 58, 9, 1, 4, 0, 0, 0, 0]),
            (43, vec![58, 2, 0, 1, 0, 0, 0, 0]),
        ] {
            let frame = from_station(OWN, &ipv6(POD, NEIGHBOUR, next, 255, &payload), &[]);
            assert!(egress(&checked, &frame).is_drop(), "{payload:02x?}");
        }
    }
}

#[test]
fn frames_come_from_the_pods_own_station() {
    let own = udp4((Who::Pod.v4(), 1), (Who::Stranger.v4(), 2));
    let own6 = ipv6(POD, FAR, 17, 64, &[0, 1, 0, 2, 0, 8, 0, 0]);
    let discovery = nd(POD, solicited(NEIGHBOUR), &solicitation(NEIGHBOUR, &option(1)));
    let asking = arp(1, OWN, Who::Pod.v4(), Who::Stranger.v4());
    for row in [0, NOBODY] {
        let (checked, exempt) = (with_station(row, true), with_station(row, false));
        let unknown = tables(row, true);
        for frame in [&own, &own6, &discovery, &asking] {
            let verdict =
                |tables: &NodeTables, station| egress(tables, &from_station(station, frame, &[]));
            assert_eq!(verdict(&checked, OTHER), Reason::SpoofedSource, "{frame:02x?}");
            assert_ne!(verdict(&checked, OWN), Reason::SpoofedSource, "{frame:02x?}");
            for any in [&exempt, &unknown] {
                assert_eq!(verdict(any, OTHER), verdict(any, OWN), "{frame:02x?}");
            }
        }
        // ARP has the hardware address in its own fields, too.
        let lie = arp(2, OTHER, Who::Pod.v4(), Who::Pod.v4());
        assert_eq!(egress(&checked, &lie), Reason::SpoofedSource);
        assert_eq!(egress(&unknown, &lie), Reason::Neighbour);
    }
}

/// Duplicate address detection: a host abandons an address for which another host sends a probe.
#[test]
fn a_pod_asks_for_its_own_addresses_alone() {
    const EUI: fn(u8) -> [u8; 16] =
        |last| [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, last];
    for row in [0, NOBODY] {
        let checked = with_station(row, true);
        for (target, free) in [
            (POD, true),
            // With the pod's own hardware address in it, with another's, with none.
            (EUI(1), true),
            (EUI(9), false),
            (LINK, true),
            (NEIGHBOUR, false),
            (FAR, false),
        ] {
            let frame =
                from_station(OWN, &nd(NONE, solicited(target), &solicitation(target, &[])), &[]);
            let expected = if free { Reason::Neighbour } else { Reason::SpoofedSource };
            assert_eq!(egress(&checked, &frame), expected, "{target:02x?}, row {row}");
            let claim = nd(target, ALL_NODES, &advertisement(target, &[]));
            let claimed = egress(&checked, &from_station(OWN, &claim, &[]));
            assert_eq!(claimed.is_drop(), !free, "{target:02x?} claimed");
        }
        for (target, free) in [(Who::Pod.v4(), true), (Who::Stranger.v4(), false)] {
            let probe = egress(&checked, &arp(1, OWN, [0; 4], target));
            let expected = if free { Reason::Neighbour } else { Reason::SpoofedSource };
            assert_eq!(probe, expected, "{target:?}");
        }
    }
}
