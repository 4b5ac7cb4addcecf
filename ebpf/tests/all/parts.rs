//! Parts of the judgement, each tested alone.

use netpold_ebpf::{
    direction::{Egress, Ingress, PodDirection},
    endpoint::Rows,
    judge::{fragment::DatagramKey, policy::EndpointPolicy},
    layout::{
        CLASS_TRANSLATED, CT_EGRESS, CT_FIN_EGRESS, CT_INGRESS, CT_NODE, CT_REPLIED, CT_RST,
        CT_SYN, CT_SYN_ACK, CT_VALID, Endpoint, TIMEOUT_FRAGMENT,
    },
    packet::{
        family::{Family, V4, V6},
        parse::{Fragment, Transport},
        tuple::FlowTuple,
    },
    reason::Reason,
    tables::Tables as _,
};
use netpold_testkit::frames::{ACK, FIN, RST, SYN, Who, tcp4};
use netpold_testkit::node::NodeTables;
use netpold_testkit::one_pod::{self, DENY_ROW as NOBODY, INGRESS_ROW as CLIENTS};

/// The class that row [`CLIENTS`] allows every port, and one without a grant.
const CLIENT: u32 = Who::Friend.number() as u32;
const STRANGER: u32 = Who::Stranger.number() as u32;

const TCP: Transport = Transport { protocol: 6, flags: 0, source: 4000, destination: 80 };

fn policy<D: PodDirection>(
    tables: &NodeTables,
    ingress: u32,
    egress: u32,
) -> EndpointPolicy<'_, D, NodeTables> {
    EndpointPolicy::new(tables, Rows(Endpoint::pack_rows(ingress, egress)))
}

#[test]
fn each_direction_asks_its_own_row() {
    let tables = one_pod::tables(16);
    let ingress = policy::<Ingress>(&tables, CLIENTS, NOBODY);
    let egress = policy::<Egress>(&tables, CLIENTS, NOBODY);
    assert!(ingress.is_isolated() && egress.is_isolated());
    assert!(ingress.allows(CLIENT, &TCP) && ingress.allows_every_port(CLIENT));
    assert!(!ingress.allows(STRANGER, &TCP) && !ingress.allows_every_port(STRANGER));
    assert!(!egress.allows(CLIENT, &TCP) && !egress.allows_every_port(CLIENT));
    assert!(!policy::<Ingress>(&tables, 0, NOBODY).is_isolated());
    assert!(!policy::<Egress>(&tables, CLIENTS, 0).is_isolated());
}

#[test]
fn a_flow_is_allowed_by_the_direction_that_began_it() {
    let tables = one_pod::tables(16);
    let policy = policy::<Egress>(&tables, CLIENTS, NOBODY);
    let flow = FlowTuple::<V4>::new(0x0a00_0107, &TCP, false);
    let allows = |flags, class| policy.still_allows(flags, class, &flow);
    for replied in [0, CT_REPLIED] {
        assert!(allows(replied | CT_INGRESS, CLIENT) && !allows(replied | CT_INGRESS, STRANGER));
        assert!(!allows(replied | CT_EGRESS, CLIENT) && !allows(replied, CLIENT));
        assert!(allows(replied | CT_NODE, STRANGER));
    }
    let open = self::policy::<Egress>(&tables, NOBODY, 0);
    assert!(open.still_allows(CT_EGRESS, STRANGER, &flow));
    assert!(!open.still_allows(CT_INGRESS, STRANGER, &flow));
}

#[test]
fn what_may_be_translated_is_judged_again() {
    let tables = one_pod::tables(16);
    let service = STRANGER | CLASS_TRANSLATED;
    let egress = policy::<Egress>(&tables, NOBODY, CLIENTS);
    assert_eq!(egress.passing_reason(Reason::Allowed, service), Reason::Translated);
    assert_eq!(egress.passing_reason(Reason::Allowed, CLIENT), Reason::Allowed);
    assert_eq!(egress.reply_reason(Reason::Reply, service), Reason::TranslatedReply);
    assert_eq!(egress.reply_reason(Reason::Reply, CLIENT), Reason::Reply);
    assert_eq!(egress.rejudged_reason(Reason::Related), Reason::Translated);
    let open = policy::<Egress>(&tables, NOBODY, 0);
    assert_eq!(open.reply_reason(Reason::Reply, service), Reason::Reply);
    assert_eq!(open.rejudged_reason(Reason::Related), Reason::Related);
    let ingress = policy::<Ingress>(&tables, NOBODY, CLIENTS);
    assert_eq!(ingress.passing_reason(Reason::Allowed, service), Reason::Allowed);
    assert_eq!(ingress.reply_reason(Reason::Reply, service), Reason::TranslatedReply);
    assert_eq!(ingress.rejudged_reason(Reason::Related), Reason::Related);
}

#[test]
fn what_cannot_be_read_drops_if_its_direction_is_isolated() {
    let tables = one_pod::tables(16);
    let isolated = policy::<Ingress>(&tables, NOBODY, 0);
    let open = policy::<Egress>(&tables, NOBODY, 0);
    assert_eq!(isolated.unparsed(Reason::Truncated), Err(Reason::Truncated));
    assert_eq!(open.unparsed(Reason::Truncated), Ok(Reason::NotIsolated));
    assert_eq!(open.unparsed(Reason::Deferred), Err(Reason::Deferred));
}

#[test]
fn a_first_fragment_leaves_its_ports_to_its_datagram() {
    const SENT: u32 = 1;
    let tables = one_pod::tables(16);
    let timeout = tables.settings().expect("settings").timeouts[TIMEOUT_FRAGMENT];
    let fragment = Fragment { ident: 7, next: 17, ..Fragment::default() };
    let datagram = |endpoint, direction, fragment: &Fragment| {
        DatagramKey::new::<V4>(endpoint, direction, 0x0a00_0107, 0x0a00_0002, fragment)
    };
    let own = datagram(1, SENT, &fragment);
    assert_eq!(own.first(&tables), Err(Reason::FragmentWithoutFirst));
    own.record_ports(&tables, &Transport { protocol: 17, ..TCP }, true);
    let ports = own.first(&tables).expect("the first fragment's ports");
    assert_eq!((ports.protocol, ports.local_port, ports.remote_port), (17, 4000, 80));
    for other in [
        datagram(2, SENT, &fragment),
        datagram(1, 0, &fragment),
        datagram(1, SENT, &Fragment { ident: 8, ..fragment }),
        datagram(1, SENT, &Fragment { next: 6, ..fragment }),
        DatagramKey::new::<V6>(1, SENT, V6::words(&V4::octets(0x0a00_0107)), [0; 2], &fragment),
    ] {
        assert_eq!(other.first(&tables), Err(Reason::FragmentWithoutFirst));
    }
    tables.flows.later(timeout - 1);
    assert!(own.first(&tables).is_ok());
    tables.flows.later(1);
    assert_eq!(own.first(&tables), Err(Reason::FragmentWithoutFirst));
    own.record_ports(&tables, &TCP, false);
    let ports = own.first(&tables).expect("the first fragment's ports");
    assert_eq!((ports.local_port, ports.remote_port), (80, 4000));
}

/// After each packet, the entry of its flow shows the effect of `FlowTracker`.
#[test]
fn an_entry_says_who_began_who_answered_and_who_ended() {
    let tables = one_pod::with_rows(CLIENTS, NOBODY);
    let (pod, client) = ((Who::Pod.v4(), 80), (Who::Friend.v4(), 4000));
    let arrives = |flags| one_pod::ingress(&tables, &tcp4(client, pod, flags));
    let leaves = |flags| one_pod::egress(&tables, &tcp4(pod, client, flags));
    let entries = || {
        let mut entries = Vec::new();
        tables.flows.for_each(|_, control, _| entries.push(control.flags() & !CT_VALID));
        entries
    };
    assert_eq!((leaves(SYN), entries()), (Reason::Policy, vec![]), "it is denied");
    let server = (client.0, 79);
    let middle = one_pod::ingress(&tables, &tcp4(server, pod, ACK));
    assert_eq!((middle, entries()), (Reason::Allowed, vec![]), "the pod may have begun it");
    let begun = CT_INGRESS | CT_SYN;
    assert_eq!((arrives(SYN), entries()), (Reason::Allowed, vec![begun]));
    let half_open = begun | CT_SYN_ACK;
    assert_eq!((leaves(SYN | ACK), entries()), (Reason::Reply, vec![half_open]));
    let open = half_open | CT_REPLIED;
    assert_eq!((arrives(ACK), entries()), (Reason::Allowed, vec![open]));
    assert_eq!((arrives(RST), entries()), (Reason::Allowed, vec![open | CT_RST]));
    assert_eq!((leaves(ACK), entries()), (Reason::Reply, vec![open]), "it was forged");
    let closing = open | CT_FIN_EGRESS;
    assert_eq!((leaves(FIN | ACK), entries()), (Reason::Reply, vec![closing]));
    assert_eq!((arrives(SYN), entries()), (Reason::Allowed, vec![begun]), "another connection");
    tables.flows.forget_flows();
    let node = tcp4((Who::Stranger.v4(), 4000), pod, SYN);
    let node = one_pod::judge(&tables, one_pod::Direction::Ingress, 0, &node);
    assert_eq!((node.reason(), entries()), (Reason::Node, vec![begun | CT_NODE]));
}
