//! Packets to addresses that are translated: marked at the sender, judged again behind it.

use netpold_ebpf::{
    direction::{Egress, Ingress},
    judge::{
        connection::{Course, Tuple},
        decide::decide,
        hook::Hook,
        post_nat,
        proof::{Exit, Origin},
        station,
    },
    layout::{
        BRIDGE_GONE, BRIDGE_ISOLATED, BRIDGE_OPEN, CLASS_SERVICE, CLASS_TRANSLATED, ENDPOINT_SLOTS,
        EP_CHECK_SOURCE, Endpoint, PORTS_EVERY, PORTS_FIRST_BITMAP, PORTS_ONE, PortSet, Row,
        TRIE_POINTER, answer_mark, endpoint_slot, is_mark, mark, marked_slot, parts_of,
    },
    packet::{bytes::Bytes, parse, protocol},
    reason::Reason,
};
use netpold_testkit::node::NodeTables;

const HTTP: u32 = 80;
const HTTPS: u32 = 443;

const POD_IFINDEX: u32 = 5;
const OTHER_IFINDEX: u32 = 6;
const UPLINK: u32 = 2;
const POD: [u8; 4] = [10, 0, 0, 2];
const NODE: [u8; 4] = [10, 0, 3, 1];
const SERVICE: [u8; 4] = [10, 96, 0, 1];
const ALLOWED: [u8; 4] = [10, 0, 1, 7];
const OPEN: [u8; 4] = [10, 0, 2, 7];
const DENIED: [u8; 4] = [10, 0, 9, 7];
const CLIENT: [u8; 4] = [192, 0, 2, 9];
/// The Service's address, and that of the node.
const SERVICE_CLASS: u32 = 4;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// A pod that may reach 10.0.1.0/24 at port 8080 of TCP and UDP, 10.0.2.0/24 at all, so the Service
/// at port 80, and its node. The Service and the node may be translated; what is not translated may
/// reach the Service's address at port 443.
fn tables() -> NodeTables {
    let mut tables = NodeTables::new(64);
    let mut third = [0; 256];
    third[1] = 1;
    third[2] = 2;
    third[3] = 3 | CLASS_TRANSLATED;
    tables.policy.trie_root[0x0a00] = TRIE_POINTER;
    tables.policy.trie_root[0x0a60] = SERVICE_CLASS | CLASS_TRANSLATED;
    tables.policy.trie_blocks.push(third);
    let port = |number: usize| {
        let mut bitmap = [0; 1024];
        bitmap[number >> 6] = 1 << (number & 63);
        bitmap
    };
    tables.policy.bitmaps.push(port(8080));
    let set = |ports| PortSet { tcp: ports, udp: ports, ..PortSet::default() }.word();
    let (app, http) = (set(PORTS_FIRST_BITMAP), set(PORTS_ONE | HTTP));
    let literally = set(PORTS_ONE | HTTPS);
    let mut reaches = Row::EMPTY;
    reaches.first[..6].copy_from_slice(&[0, app, PORTS_EVERY, PORTS_EVERY, http, literally]);
    tables.policy.rows.extend([Row::EMPTY, reaches]);
    let mut pod = Endpoint {
        ifindex: POD_IFINDEX,
        id: 1,
        rows: Endpoint::pack_rows(0, 2),
        flags: 1,
        ..Endpoint::default()
    };
    pod.addr4[0] = u32::from_be_bytes(POD);
    tables.set_endpoint(pod);
    tables
}

fn frame(protocol: u8, from: [u8; 4], to: [u8; 4], part: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((20 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 1]);
    frame.extend(part.to_be_bytes());
    frame.extend([64, protocol, 0, 0]);
    frame.extend([from, to].concat());
    frame.extend(payload);
    frame
}

fn tcp(from: ([u8; 4], u16), to: ([u8; 4], u16), flags: u8) -> Vec<u8> {
    let mut segment = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    frame(6, from.0, to.0, 0, &segment)
}

fn udp(to: ([u8; 4], u16), part: u16) -> Vec<u8> {
    let datagram = [&4000_u16.to_be_bytes()[..], &to.1.to_be_bytes(), &[0, 16, 0, 0], &[0; 8]];
    frame(17, POD, to.0, part, &datagram.concat())
}

fn egress(tables: &NodeTables, frame: &[u8]) -> Reason {
    let hook = Hook { ifindex: POD_IFINDEX, ingress_ifindex: POD_IFINDEX };
    decide::<Egress, _, _>(&frame, tables, hook).reason()
}

/// What the pod's program leaves in a packet that is to be judged again.
fn marked(tables: &NodeTables, ifindex: u32) -> Exit {
    let tc_index = mark(endpoint_slot(POD_IFINDEX, 0), 1);
    Exit { ifindex, ingress_ifindex: POD_IFINDEX, mark: tables.flows.settings.proof, tc_index }
}

fn leave_by(tables: &NodeTables, frame: &[u8], exit: Exit) -> Reason {
    let origin = Origin::of(tables, &exit);
    let judged =
        post_nat::judge(&frame, parse::link(&frame), tables, origin, exit.ifindex, None, || true)
            .reason();
    for linear in 0..=frame.len() {
        let in_place = in_place(tables, Linear { frame, linear }, exit);
        assert!(in_place == judged || in_place == Reason::Deferred, "{linear}: {in_place:?}");
    }
    judged
}

fn in_place(tables: &NodeTables, packet: Linear<'_>, exit: Exit) -> Reason {
    let (origin, link) = (Origin::of(tables, &exit), parse::link(&packet));
    post_nat::judge(&packet, link, tables, origin, exit.ifindex, None, || true).reason()
}

/// A packet in the kernel's memory whose first bytes are at hand.
struct Linear<'a> {
    frame: &'a [u8],
    linear: usize,
}

impl<'a> Bytes for Linear<'a> {
    const PLAIN: bool = true;
    type Window = &'a [u8];

    fn length(&self) -> u32 {
        self.frame.length()
    }

    fn window<const N: usize>(&self, offset: u32) -> Option<&'a [u8]> {
        let start = offset as usize;
        self.frame[..self.linear].get(start..start + N)
    }
}

fn behind(tables: &NodeTables, frame: &[u8], ifindex: u32) -> Reason {
    leave_by(tables, frame, marked(tables, ifindex))
}

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
            let exit =
                Exit { ifindex, ingress_ifindex, mark: !tables.flows.settings.proof, tc_index };
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
    let exit = |ingress_ifindex| Exit { ifindex: UPLINK, ingress_ifindex, mark: 0, tc_index: own };
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
            let exit = Exit { ifindex: UPLINK, ingress_ifindex, mark, tc_index };
            let (origin, link) = (Origin::of(&tables, &exit), parse::link(&frame));
            post_nat::judge(&frame, link, &tables, origin, UPLINK, None, || lives).reason()
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
        // Not translated: what is granted literally.
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
fn a_mark_whose_endpoint_is_gone_grants_nothing() {
    let mut tables = tables();
    tables.policy.endpoints.remove(&POD_IFINDEX);
    let packet = tcp((POD, 40000), (OPEN, 80), SYN);
    assert_eq!(behind(&tables, &packet, UPLINK), Reason::ServiceBackend);
}

/// A client of a node port, masqueraded to the node's address: the pod's answers go to the node,
/// which turns them back into the client's.
#[test]
fn answers_are_not_judged_as_what_they_are_translated_to() {
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(2, 2);
    // The pod admits its node to port 80, and may itself send it anything.
    let client = (NODE, 30001);
    let hook = Hook { ifindex: POD_IFINDEX, ingress_ifindex: UPLINK };
    let request = tcp(client, (POD, 80), SYN);
    assert_eq!(decide::<Ingress, _, _>(&&*request, &tables, hook).reason(), Reason::Allowed);
    assert_eq!(egress(&tables, &tcp((POD, 80), client, SYN | ACK)), Reason::Answer);
    assert_eq!(egress(&tables, &tcp((POD, 80), client, ACK)), Reason::Answer);
    assert_eq!(egress(&tables, &tcp((POD, 80), client, ACK)), Reason::Answer, "it is remembered");
    // What it begins itself is, from the same port too.
    assert_eq!(egress(&tables, &tcp((POD, 80), client, SYN)), Reason::Translated);
    assert_eq!(egress(&tables, &tcp((POD, 81), client, SYN)), Reason::Translated);
    assert_eq!(egress(&tables, &tcp((POD, 81), client, ACK)), Reason::Translated);
}

#[test]
fn icmp_errors_follow_the_flow_they_quote() {
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(2, 2);
    let about = |from: ([u8; 4], u16), local| {
        let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
        message.extend(&tcp(from, (POD, local), ACK)[14..]);
        frame(1, POD, from.0, 0, &message)
    };
    // The other side began it: the error goes back through that flow's translation.
    let hook = Hook { ifindex: POD_IFINDEX, ingress_ifindex: UPLINK };
    let request = tcp((NODE, 30001), (POD, 80), SYN);
    assert_eq!(decide::<Ingress, _, _>(&&*request, &tables, hook).reason(), Reason::Allowed);
    assert_eq!(egress(&tables, &about((NODE, 30001), 80)), Reason::Answer);
    // Nobody began it, or the pod did: the node may make anything of the error.
    assert_eq!(egress(&tables, &about((NODE, 30002), 80)), Reason::Translated);
    assert_eq!(egress(&tables, &tcp((POD, 40000), (SERVICE, 80), SYN)), Reason::Translated);
    assert_eq!(egress(&tables, &about((SERVICE, 80), 40000)), Reason::Translated);
    assert_eq!(egress(&tables, &tcp((POD, 40000), (ALLOWED, 8080), SYN)), Reason::Allowed);
    assert_eq!(egress(&tables, &about((ALLOWED, 8080), 40000)), Reason::Related);
    assert_eq!(egress(&tables, &about((OPEN, 8080), 40000)), Reason::Translated);
    assert_eq!(egress(&tables, &about((DENIED, 8080), 40000)), Reason::Policy);
    let echo = [8, 0, 0, 0, 0, 1, 0, 1];
    assert_eq!(egress(&tables, &frame(1, POD, NODE, 0, &echo)), Reason::Translated);
}

#[test]
fn later_fragments_are_judged_by_their_translated_first() {
    const MORE: u16 = 0x2000;
    let tables = tables();
    let later = |to| frame(17, POD, to, 2, &[0; 8]);
    // At the sender: the first one's port is the Service's.
    assert_eq!(egress(&tables, &later(SERVICE)), Reason::FragmentWithoutFirst);
    assert_eq!(egress(&tables, &udp((SERVICE, 80), MORE)), Reason::Translated);
    assert_eq!(egress(&tables, &later(SERVICE)), Reason::Translated);
    // Behind the translation it is the backend's.
    assert_eq!(behind(&tables, &later(ALLOWED), UPLINK), Reason::FragmentWithoutFirst);
    assert_eq!(behind(&tables, &udp((ALLOWED, 8080), MORE), UPLINK), Reason::Allowed);
    assert_eq!(behind(&tables, &later(ALLOWED), UPLINK), Reason::Allowed);
    assert_eq!(behind(&tables, &udp((DENIED, 8080), MORE), UPLINK), Reason::ServiceBackend);
    assert_eq!(behind(&tables, &later(DENIED), UPLINK), Reason::FragmentWithoutFirst);
    // Where every port is allowed the first need not have been seen.
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
    // A device without link header: the type comes from elsewhere.
    let bare = &whole[14..];
    let link = Ok((protocol::ETHERTYPE_IPV4, 0));
    let origin = Origin::of(&tables, &marked(&tables, UPLINK));
    let verdict = post_nat::judge(&bare, link, &tables, origin, UPLINK, None, || true);
    assert_eq!(verdict.reason(), Reason::Allowed);
}

/// Somebody who sends in a Service's name would have the pod's packets to it pass as answers, which are
/// not judged again wherever the node leads them.
#[test]
fn a_services_address_begins_no_flow() {
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(0, 2);
    let hook = Hook { ifindex: POD_IFINDEX, ingress_ifindex: UPLINK };
    let from_service = tcp((SERVICE, 80), (POD, 5000), SYN);
    let answer = |flags| tcp((POD, 5000), (SERVICE, 80), flags);
    for (class, answered) in [
        (SERVICE_CLASS | CLASS_TRANSLATED, Reason::Answer),
        (SERVICE_CLASS | CLASS_TRANSLATED | CLASS_SERVICE, Reason::Translated),
    ] {
        tables.flows.forget_flows();
        tables.policy.trie_root[0x0a60] = class;
        let verdict = decide::<Ingress, _, _>(&&*from_service, &tables, hook);
        assert_eq!(verdict.reason(), Reason::NotIsolated);
        assert_eq!(egress(&tables, &answer(SYN | ACK)), answered);
        assert_eq!(egress(&tables, &answer(ACK)), answered);
    }
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

const AF_INET: u16 = 2;

/// As the kernel keeps a TCP connection: what who began sends, what the other side sends.
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

/// The kernel's own conntrack may have forgotten the flow that an answer is of: then it is a new flow there,
/// and led to whom the node leads those.
#[test]
fn answers_go_back_where_the_nodes_conntrack_has_them() {
    const REPLY: u32 = 3;
    const NEW: u32 = 2;
    let tables = tables();
    let leave = |to: ([u8; 4], u16), from: [u8; 4], course| {
        let packet = tcp((from, 80), to, ACK);
        let exit = marked(&tables, UPLINK);
        let exit = Exit { tc_index: answer_mark(exit.tc_index), ..exit };
        let origin = Origin::of(&tables, &exit);
        let link = parse::link(&&*packet);
        post_nat::judge(&&*packet, link, &tables, origin, UPLINK, Some(course), || true).reason()
    };
    let (pod, client, node) = ((POD, 80), (CLIENT, 5000), (NODE, 30001));
    let node_port = (NODE, 30080);
    let through = connection([client, node_port], [pod, node]);
    let masqueraded = connection([client, pod], [pod, node]);
    for tuples in [through, masqueraded] {
        assert_eq!(leave(client, NODE, Course::of(&tuples, REPLY)), Reason::Reply);
    }
    // Forgotten, and led anew; to whom the pod may send all the same.
    for (to, expected) in [
        ((DENIED, 8080), Reason::ServiceBackend),
        ((ALLOWED, 8081), Reason::ServiceBackend),
        ((ALLOWED, 8080), Reason::Allowed),
    ] {
        let tuples = connection([pod, node_port], [to, pod]);
        assert_eq!(leave(to, POD, Course::of(&tuples, NEW)), expected, "{to:?}");
    }
    // Forgotten, and sent on as it is, whatever its source became.
    let plain = connection([pod, (SERVICE, 80)], [(SERVICE, 80), (NODE, 80)]);
    assert_eq!(leave((SERVICE, 80), NODE, Course::of(&plain, NEW)), Reason::Reply);
    // Nothing tracks it: nobody translated what still goes where it did.
    assert_eq!(leave((SERVICE, 80), POD, Course::UNKNOWN), Reason::Reply);
    assert_eq!(leave((DENIED, 80), POD, Course::UNKNOWN), Reason::ServiceBackend);
    let mut tables = tables;
    tables.endpoint_mut(POD_IFINDEX).flags |= EP_CHECK_SOURCE;
    let packet = tcp((NODE, 500), (SERVICE, 500), ACK);
    let origin = Origin::of(&tables, &marked(&tables, UPLINK));
    let (link, answer) = (parse::link(&&*packet), Some(Course::UNKNOWN));
    let tunnel = post_nat::judge(&&*packet, link, &tables, origin, UPLINK, answer, || true);
    assert_eq!(tunnel.reason(), Reason::ServiceBackend, "the node has packed it");
    // Round its program, nothing that it carries counts.
    let exit = Exit { ifindex: UPLINK, ingress_ifindex: POD_IFINDEX, ..Exit::default() };
    let packet = tcp((POD, 80), (DENIED, 80), ACK);
    let course = Course::of(&masqueraded, REPLY);
    let origin = Origin::of(&tables, &exit);
    let link = parse::link(&&*packet);
    let round = post_nat::judge(&&*packet, link, &tables, origin, UPLINK, Some(course), || true);
    assert_eq!(round.reason(), Reason::Policy);
}

/// Who was denied behind a translation is known to the kernel all the same, and could answer.
#[test]
fn answers_are_of_those_whom_the_pod_may_send_to() {
    const REPLY: u32 = 3;
    const NEW: u32 = 2;
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(1, 2);
    let (pod, service) = ((POD, 5000), (SERVICE, 80));
    assert_eq!(egress(&tables, &tcp(pod, service, SYN)), Reason::Translated);
    let hook = Hook { ifindex: POD_IFINDEX, ingress_ifindex: UPLINK };
    for flags in [SYN | ACK, ACK, ACK] {
        let answer = tcp(service, pod, flags);
        assert_eq!(decide::<Ingress, _, _>(&&*answer, &tables, hook).reason(), Reason::Answer);
    }
    let endpoint = netpold_ebpf::tables::find_endpoint(&tables, POD_IFINDEX).unwrap();
    let allowed = |tuples: [Tuple; 2], info| {
        Course::of(&tuples, info).is_of_allowed(&tables, endpoint, &tuples)
    };
    for (backend, expected) in [
        ((ALLOWED, 8080), true),
        ((ALLOWED, 8081), false),
        ((OPEN, 1), true),
        ((DENIED, 8080), false),
        // Itself not translated, as a backend that is a node.
        ((NODE, 6443), true),
        ((SERVICE, 443), true),
        ((SERVICE, 80), true),
        ((SERVICE, 81), false),
    ] {
        let tuples = connection([pod, service], [backend, pod]);
        assert_eq!(allowed(tuples, REPLY), expected, "{backend:?}");
    }
    // Conntrack has forgotten the flow, or another node wrote the Service's address: what is granted literally.
    for (source, expected) in
        [((NODE, 6443), true), ((SERVICE, 443), true), (service, false), ((SERVICE, 81), false)]
    {
        let tuples = connection([source, pod], [pod, source]);
        assert_eq!(allowed(tuples, NEW), expected, "{source:?}");
    }
    // Not translated by conntrack.
    assert!(allowed([Tuple::default(); 2], REPLY));
    // Masqueraded to where the pod sends.
    assert!(!allowed(connection([(ALLOWED, 8080), pod], [pod, service]), NEW));
    // Who may send to anybody gets anybody's answers.
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(1, 0);
    tables.changed();
    let answer = tcp(service, pod, ACK);
    assert_eq!(decide::<Ingress, _, _>(&&*answer, &tables, hook).reason(), Reason::Reply);
}

/// An error about what the pod has sent comes from whom its answers come from.
#[test]
fn errors_are_of_those_whom_the_pod_may_send_to() {
    let mut tables = tables();
    tables.endpoint_mut(POD_IFINDEX).rows = Endpoint::pack_rows(1, 2);
    let hook = Hook { ifindex: POD_IFINDEX, ingress_ifindex: UPLINK };
    let about = |from: [u8; 4], to: ([u8; 4], u16), local| {
        let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
        message.extend(&tcp((POD, local), to, ACK)[14..]);
        frame(1, from, POD, 0, &message)
    };
    let ingress = |frame: Vec<u8>| decide::<Ingress, _, _>(&&*frame, &tables, hook).reason();
    assert_eq!(egress(&tables, &tcp((POD, 5000), (SERVICE, 80), SYN)), Reason::Translated);
    assert_eq!(ingress(about(SERVICE, (SERVICE, 80), 5000)), Reason::Answer);
    assert_eq!(ingress(about(CLIENT, (SERVICE, 80), 5000)), Reason::Answer);
    assert_eq!(ingress(about(SERVICE, (SERVICE, 80), 5001)), Reason::Policy);
    assert_eq!(egress(&tables, &tcp((POD, 5000), (ALLOWED, 8080), SYN)), Reason::Allowed);
    assert_eq!(ingress(about(CLIENT, (ALLOWED, 8080), 5000)), Reason::Related);
}
