//! Replies at translated addresses, and ICMP errors about their flows.

use netpold_ebpf::{
    judge::{
        connection::{Course, Tuple},
        proof::Exit,
    },
    layout::{CLASS_SERVICE, CLASS_TRANSLATED, EP_CHECK_SOURCE, Endpoint, reply_mark},
    reason::Reason,
};

use crate::translated::setup::*;

/// An ICMP error that quotes a packet.
fn error(from: [u8; 4], to: [u8; 4], quoted: &[u8]) -> Vec<u8> {
    frame4(1, from, to, &[&[3, 3, 0, 0, 0, 0, 0, 0], &quoted[14..]].concat())
}

/// A client of a node port is masqueraded to the node's address: the pod's replies go to the node, which translates
/// them back to the client's address.
#[test]
fn answers_are_not_judged_as_what_they_are_translated_to() {
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(2, 2);
    // The pod admits its node to port 80, and may itself send any packet to it.
    let client = (NODE, 30001);
    let request = tcp(client, (POD, 80), SYN);
    assert_eq!(ingress(&tables, &request), Reason::Allowed);
    assert_eq!(egress(&tables, &tcp((POD, 80), client, SYN | ACK)), Reason::TranslatedReply);
    assert_eq!(egress(&tables, &tcp((POD, 80), client, ACK)), Reason::TranslatedReply);
    assert_eq!(
        egress(&tables, &tcp((POD, 80), client, ACK)),
        Reason::TranslatedReply,
        "it is remembered"
    );
    // Flows that the pod begins are judged again, from the same port too.
    assert_eq!(egress(&tables, &tcp((POD, 80), client, SYN)), Reason::Translated);
    assert_eq!(egress(&tables, &tcp((POD, 81), client, SYN)), Reason::Translated);
    assert_eq!(egress(&tables, &tcp((POD, 81), client, ACK)), Reason::Translated);
}

#[test]
fn icmp_errors_follow_the_flow_they_quote() {
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(2, 2);
    let about = |from: ([u8; 4], u16), local| error(POD, from.0, &tcp(from, (POD, local), ACK));
    // The other side began the flow: the error goes back through its translation.
    let request = tcp((NODE, 30001), (POD, 80), SYN);
    assert_eq!(ingress(&tables, &request), Reason::Allowed);
    assert_eq!(egress(&tables, &about((NODE, 30001), 80)), Reason::TranslatedReply);
    // No flow, or one that the pod began: the node may translate the error to any address.
    assert_eq!(egress(&tables, &about((NODE, 30002), 80)), Reason::Translated);
    assert_eq!(egress(&tables, &tcp((POD, 40000), (SERVICE, 80), SYN)), Reason::Translated);
    assert_eq!(egress(&tables, &about((SERVICE, 80), 40000)), Reason::Translated);
    assert_eq!(egress(&tables, &tcp((POD, 40000), (ALLOWED, 8080), SYN)), Reason::Allowed);
    assert_eq!(egress(&tables, &about((ALLOWED, 8080), 40000)), Reason::Related);
    assert_eq!(egress(&tables, &about((OPEN, 8080), 40000)), Reason::Translated);
    assert_eq!(egress(&tables, &about((DENIED, 8080), 40000)), Reason::Policy);
    let echo = [8, 0, 0, 0, 0, 1, 0, 1];
    assert_eq!(egress(&tables, &frame4(1, POD, NODE, &echo)), Reason::Translated);
}

/// A host that sends from a Service's address must not turn the pod's packets to the Service into replies, which are
/// not judged again after the translation.
#[test]
fn a_services_address_begins_no_flow() {
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(0, 2);
    let from_service = tcp((SERVICE, 80), (POD, 5000), SYN);
    let answer = |flags| tcp((POD, 5000), (SERVICE, 80), flags);
    for (class, answered) in [
        (SERVICE_CLASS | CLASS_TRANSLATED, Reason::TranslatedReply),
        (SERVICE_CLASS | CLASS_TRANSLATED | CLASS_SERVICE, Reason::Translated),
    ] {
        tables.flows.forget_flows();
        tables.policy.trie_root[0x0a60] = class;
        assert_eq!(ingress(&tables, &from_service), Reason::NotIsolated);
        assert_eq!(egress(&tables, &answer(SYN | ACK)), answered);
        assert_eq!(egress(&tables, &answer(ACK)), answered);
    }
}

const AF_INET: u16 = 2;
/// `IP_CT_NEW` and `IP_CT_IS_REPLY` of `enum ip_conntrack_info`.
const NEW: u32 = 2;
const REPLY: u32 = 3;

/// Tuples of a TCP connection as in the kernel: the initiator's packets, and the other side's.
fn connection(original: [([u8; 4], u16); 2], reply: [([u8; 4], u16); 2]) -> [Tuple; 2] {
    let address = |octets: [u8; 4]| [u32::from_ne_bytes(octets), 0, 0, 0];
    let tuple = |[from, to]: [([u8; 4], u16); 2], direction| Tuple {
        source: address(from.0),
        source_port: from.1.to_be(),
        destination: address(to.0),
        destination_port: to.1.to_be(),
        family: AF_INET,
        protocol: 6,
        direction,
        ..Tuple::default()
    };
    [tuple(original, 0), tuple(reply, 1)]
}

/// The kernel's own conntrack may have forgotten the flow of a reply. Then the reply is a new flow there, and may be
/// translated to any backend.
#[test]
fn answers_go_back_where_the_nodes_conntrack_has_them() {
    let tables = tables();
    let sent = marked(&tables, UPLINK);
    let answered = |to: ([u8; 4], u16), from: [u8; 4], course| {
        let exit = Exit { tc_index: reply_mark(sent.tc_index), ..sent };
        leave(&tables, &&*tcp((from, 80), to, ACK), exit, Some(course), true)
    };
    let (pod, client, node) = ((POD, 80), (CLIENT, 5000), (NODE, 30001));
    let node_port = (NODE, 30080);
    let through = connection([client, node_port], [pod, node]);
    let masqueraded = connection([client, pod], [pod, node]);
    for tuples in [through, masqueraded] {
        assert_eq!(answered(client, NODE, Course::new(&tuples, REPLY)), Reason::Reply);
    }
    // Forgotten and translated again, among others to an address that the pod may reach.
    for (to, expected) in [
        ((DENIED, 8080), Reason::ServiceBackend),
        ((ALLOWED, 8081), Reason::ServiceBackend),
        ((ALLOWED, 8080), Reason::Allowed),
    ] {
        let tuples = connection([pod, node_port], [to, pod]);
        assert_eq!(answered(to, POD, Course::new(&tuples, NEW)), expected, "{to:?}");
    }
    // Forgotten, but with its destination unchanged and any new source.
    let plain = connection([pod, (SERVICE, 80)], [(SERVICE, 80), (NODE, 80)]);
    assert_eq!(answered((SERVICE, 80), NODE, Course::new(&plain, NEW)), Reason::Reply);
    // Not tracked: the destination is unchanged, so the packet was not translated.
    assert_eq!(answered((SERVICE, 80), POD, Course::UNKNOWN), Reason::Reply);
    assert_eq!(answered((DENIED, 80), POD, Course::UNKNOWN), Reason::ServiceBackend);
    let mut tables = tables;
    tables.endpoint_mut(POD_IFINDEX).flags |= EP_CHECK_SOURCE;
    let packet = tcp((NODE, 500), (SERVICE, 500), ACK);
    let tunnel = leave(&tables, &&*packet, sent, Some(Course::UNKNOWN), true);
    assert_eq!(tunnel, Reason::ServiceBackend, "the node has packed it");
    // It bypassed the pod's program, so its mark does not count.
    let exit = Exit { ifindex: UPLINK, ingress_ifindex: POD_IFINDEX, ..Exit::default() };
    let course = Course::new(&masqueraded, REPLY);
    let round = leave(&tables, &&*tcp((POD, 80), (DENIED, 80), ACK), exit, Some(course), true);
    assert_eq!(round, Reason::Policy);
}

/// A backend that was denied after the translation still has a connection in the kernel, and could answer.
#[test]
fn answers_are_of_those_whom_the_pod_may_send_to() {
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(1, 2);
    let (pod, service) = ((POD, 5000), (SERVICE, 80));
    assert_eq!(egress(&tables, &tcp(pod, service, SYN)), Reason::Translated);
    for flags in [SYN | ACK, ACK, ACK] {
        assert_eq!(ingress(&tables, &tcp(service, pod, flags)), Reason::TranslatedReply);
    }
    let endpoint = netpold_ebpf::tables::find_endpoint(&tables, POD_IFINDEX).unwrap();
    let allowed = |tuples: [Tuple; 2], info| {
        Course::new(&tuples, info).is_from_allowed_host(&tables, endpoint, &tuples)
    };
    for (backend, expected) in [
        ((ALLOWED, 8080), true),
        ((ALLOWED, 8081), false),
        ((OPEN, 1), true),
        ((DENIED, 8080), false),
        // Not translated itself, such as a backend that is a node.
        ((NODE, 6443), true),
        ((SERVICE, 443), true),
        ((SERVICE, 80), true),
        ((SERVICE, 81), false),
    ] {
        let tuples = connection([pod, service], [backend, pod]);
        assert_eq!(allowed(tuples, REPLY), expected, "{backend:?}");
    }
    // Conntrack has forgotten the flow, or another node wrote the Service's address: only literal grants count.
    for (source, expected) in
        [((NODE, 6443), true), ((SERVICE, 443), true), (service, false), ((SERVICE, 81), false)]
    {
        let tuples = connection([source, pod], [pod, source]);
        assert_eq!(allowed(tuples, NEW), expected, "{source:?}");
    }
    // Not translated by conntrack.
    assert!(allowed([Tuple::default(); 2], REPLY));
    // Masqueraded to an address that the pod sends to.
    assert!(!allowed(connection([(ALLOWED, 8080), pod], [pod, service]), NEW));
    // A pod that may send to any address gets replies from any address.
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(1, 0);
    tables.changed();
    assert_eq!(ingress(&tables, &tcp(service, pod, ACK)), Reason::Reply);
}

/// An error about a packet of the pod comes from the host that its replies come from.
#[test]
fn errors_are_of_those_whom_the_pod_may_send_to() {
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(1, 2);
    let about = |from, to, local| error(from, POD, &tcp((POD, local), to, ACK));
    assert_eq!(egress(&tables, &tcp((POD, 5000), (SERVICE, 80), SYN)), Reason::Translated);
    assert_eq!(ingress(&tables, &about(SERVICE, (SERVICE, 80), 5000)), Reason::TranslatedReply);
    assert_eq!(ingress(&tables, &about(CLIENT, (SERVICE, 80), 5000)), Reason::TranslatedReply);
    assert_eq!(ingress(&tables, &about(SERVICE, (SERVICE, 80), 5001)), Reason::Policy);
    assert_eq!(egress(&tables, &tcp((POD, 5000), (ALLOWED, 8080), SYN)), Reason::Allowed);
    assert_eq!(ingress(&tables, &about(CLIENT, (ALLOWED, 8080), 5000)), Reason::Related);
}
