//! Packets of a pod to a Service are judged by the backend that the node translates them to.

use netpold_ebpf::{
    judge::{post_nat, proof::Origin},
    layout::Endpoint,
    packet::protocol,
    reason::Reason,
};
use netpold_testkit::frames::udp;

use crate::translated::setup::*;

#[test]
fn what_may_be_translated_is_judged_by_what_it_became() {
    let tables = tables();
    let from = (POD, 40000);
    assert_eq!(egress(&tables, &tcp(from, (SERVICE, 80), SYN)), Reason::Translated);
    assert_eq!(egress(&tables, &tcp(from, (SERVICE, 81), SYN)), Reason::Policy);
    assert_eq!(egress(&tables, &tcp(from, (ALLOWED, 8080), SYN)), Reason::Allowed);
    for (to, expected) in [
        ((ALLOWED, 8080), Reason::Allowed),
        ((ALLOWED, 8081), Reason::ServiceBackend),
        ((OPEN, 1), Reason::Allowed),
        ((DENIED, 8080), Reason::ServiceBackend),
        ((CLIENT, 8080), Reason::ServiceBackend),
        // Not translated: only literal grants count.
        ((SERVICE, 80), Reason::ServiceBackend),
        ((SERVICE, 81), Reason::ServiceBackend),
        ((SERVICE, 443), Reason::Allowed),
        ((NODE, 1), Reason::Allowed),
    ] {
        for ifindex in [OTHER_IFINDEX, UPLINK] {
            // Masqueraded or not.
            for source in [POD, NODE] {
                let packet = tcp((source, 40000), to, ACK);
                assert_eq!(behind(&tables, &packet, ifindex), expected, "{to:?}");
                let whole = Linear { frame: &packet, linear: packet.len() };
                assert_eq!(in_place(&tables, whole, marked(&tables, ifindex)), expected);
            }
        }
    }
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    let tables = tables();
    let hairpin = tcp((NODE, 40000), (POD, 9999), SYN);
    assert_eq!(behind(&tables, &hairpin, POD_IFINDEX), Reason::Loopback);
    assert_eq!(behind(&tables, &hairpin, OTHER_IFINDEX), Reason::ServiceBackend);
}

#[test]
fn a_pod_that_may_reach_anything_may_reach_every_backend() {
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(2, 0);
    let to = tcp((POD, 40000), (SERVICE, 81), SYN);
    assert_eq!(egress(&tables, &to), Reason::Translated, "marked, to know itself again");
    assert_eq!(behind(&tables, &tcp((POD, 1), (DENIED, 1), SYN), UPLINK), Reason::NotIsolated);
    tables.endpoint_mut(POD_IFINDEX).rows = 0;
    assert_eq!(egress(&tables, &to), Reason::NotIsolated);
}

#[test]
fn later_fragments_are_judged_by_their_translated_first() {
    const MORE: u16 = 0x2000;
    let tables = tables();
    let first = |to, port| fragment(to, MORE, &udp(4000, port, &[0; 8]));
    let later = |to| fragment(to, 2, &[0; 8]);
    // At the sender: the first fragment's port is the Service's.
    assert_eq!(egress(&tables, &later(SERVICE)), Reason::FragmentWithoutFirst);
    assert_eq!(egress(&tables, &first(SERVICE, 80)), Reason::Translated);
    assert_eq!(egress(&tables, &later(SERVICE)), Reason::Translated);
    // After the translation, the port is the backend's.
    assert_eq!(behind(&tables, &later(ALLOWED), UPLINK), Reason::FragmentWithoutFirst);
    assert_eq!(behind(&tables, &first(ALLOWED, 8080), UPLINK), Reason::Allowed);
    assert_eq!(behind(&tables, &later(ALLOWED), UPLINK), Reason::Allowed);
    assert_eq!(behind(&tables, &first(DENIED, 8080), UPLINK), Reason::ServiceBackend);
    assert_eq!(behind(&tables, &later(DENIED), UPLINK), Reason::FragmentWithoutFirst);
    // Where every port is allowed, no record of the first fragment is needed.
    assert_eq!(behind(&tables, &later(OPEN), UPLINK), Reason::Allowed);
    assert_eq!(egress(&tables, &later(NODE)), Reason::Translated);
}

#[test]
fn what_cannot_be_read_behind_a_translation_drops() {
    let tables = tables();
    let whole = tcp((POD, 40000), (ALLOWED, 8080), SYN);
    for length in 0..whole.len() {
        assert_eq!(behind(&tables, &whole[..length], UPLINK), Reason::Truncated, "{length}");
    }
    let mut arp = whole.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(behind(&tables, &arp, UPLINK), Reason::NotIp);
    // A device without link header: the type comes from the kernel.
    let bare = &whole[14..];
    let link = Ok((protocol::ETHERTYPE_IPV4, 0));
    let origin = Origin::at_exit(&tables, &marked(&tables, UPLINK));
    let verdict = post_nat::judge(&bare, link, &tables, origin, UPLINK, None, || true);
    assert_eq!(verdict.reason(), Reason::Allowed);
}
