//! Verdicts through the compiled tables for each part of a NetworkPolicy.

use netpold_core::model::{
    Change, Direction, Policy, PortMatch, PortRule, Protocol, Requirement, Rule, Selector,
};
use netpold_testkit::objects::{
    NODE, block, interface, ip, named, namespace, node, pod, pods, policy, port_name, rule, select,
    tcp,
};
use netpold_testkit::world::World;

/// Two namespaces; `a/web` on interface 10, `a/db` on 11, `b/web` on another node.
fn base() -> Vec<Change> {
    let mut far = pod("b", "web", &[("app", "web")], &["10.0.1.1", "fd00::101"]);
    far.node = "elsewhere".into();
    vec![
        Change::Namespace(namespace("a", &[("team", "one")])),
        Change::Namespace(namespace("b", &[("team", "two")])),
        Change::Node(node(NODE, &["192.0.2.1", "fd00:1::1"])),
        Change::Pod(pod("a", "web", &[("app", "web")], &["10.0.0.1", "fd00::1"])),
        Change::Pod(pod("a", "db", &[("app", "db")], &["10.0.0.2", "fd00::2"])),
        Change::Pod(far),
        Change::Interface(interface(10, &["10.0.0.1", "fd00::1"])),
        Change::Interface(interface(11, &["10.0.0.2", "fd00::2"])),
    ]
}

fn world(policies: impl IntoIterator<Item = Policy>) -> World {
    World::new(base().into_iter().chain(policies.into_iter().map(Change::Policy)))
}

#[test]
fn no_policy_isolates_nothing() {
    let world = world([]);
    assert!(world.ingress(10, "203.0.113.9", 1));
    assert!(world.compiler.endpoints().all(|e| !e.ingress && !e.egress));
    assert_eq!(world.compiler.endpoints().count(), 2);
}

#[test]
fn isolation_is_per_direction_and_per_selected_pod() {
    let world = world([policy("a", "deny", select(&[("app", "db")]), Some(vec![]), None)]);
    assert!(!world.ingress(11, "10.0.0.1", 80));
    assert!(world.egress(11, "10.0.0.1", 80));
    assert!(world.ingress(10, "10.0.0.2", 80));
}

#[test]
fn pod_selector_alone_means_own_namespace() {
    let web = rule(Some(vec![pods(None, select(&[("app", "web")]))]), Some(vec![tcp(80)]));
    let world = world([policy("a", "p", select(&[("app", "db")]), Some(vec![web]), None)]);
    for remote in ["10.0.0.1", "fd00::1"] {
        assert!(world.ingress(11, remote, 80));
        assert!(!world.ingress(11, remote, 81));
    }
    for remote in ["10.0.1.1", "fd00::101", "203.0.113.9"] {
        assert!(!world.ingress(11, remote, 80), "{remote}");
    }
}

#[test]
fn egress_names_resolve_on_each_destination() {
    let any = rule(None, Some(vec![port_name(Protocol::Tcp, "http")]));
    let mut world = world([policy("a", "p", Selector::default(), None, Some(vec![any]))]);
    assert!(!world.egress(10, "10.0.0.2", 8080));
    let mut db = pod("a", "db", &[("app", "db")], &["10.0.0.2", "fd00::2"]);
    db.ports = vec![named("http", Protocol::Tcp, 8080), named("http", Protocol::Tcp, 9090)];
    world.apply([Change::Pod(db)]);
    assert!(world.egress(10, "10.0.0.2", 8080) && world.egress(10, "10.0.0.2", 9090));
    assert!(world.egress(10, "fd00::2", 8080));
    assert!(!world.egress(10, "10.0.0.1", 8080) && !world.egress(10, "203.0.113.1", 8080));
}

/// A policy in namespace `a` on `db` (interface 11) with these ingress rules.
fn on_db(rules: Vec<Rule>) -> Policy {
    policy("a", "p", select(&[("app", "db")]), Some(rules), None)
}

fn from(peers: Vec<netpold_core::model::Peer>) -> Vec<Rule> {
    vec![rule(Some(peers), None)]
}

#[test]
fn namespace_selector_alone_and_with_pods() {
    let two = || Some(select(&[("team", "two")]));
    let alone = world([on_db(from(vec![pods(two(), Selector::default())]))]);
    assert!(alone.ingress(11, "10.0.1.1", 1) && !alone.ingress(11, "10.0.0.1", 1));
    let both = world([on_db(from(vec![pods(two(), select(&[("app", "db")]))]))]);
    assert!(!both.ingress(11, "10.0.1.1", 1) && !both.ingress(11, "10.0.0.2", 1));
}

#[test]
fn negative_operators_match_absent_keys() {
    let not_in = Requirement::NotIn("tier".into(), vec!["x".into()]);
    let not_there = Requirement::DoesNotExist("tier".into());
    for requirement in [not_in, not_there] {
        let peer = pods(None, Selector { requirements: vec![requirement] });
        let mut world = world([on_db(from(vec![peer]))]);
        assert!(world.ingress(11, "10.0.0.1", 1));
        let tier = [("app", "web"), ("tier", "x")];
        world.apply([Change::Pod(pod("a", "web", &tier, &["10.0.0.1", "fd00::1"]))]);
        assert!(!world.ingress(11, "10.0.0.1", 1) && !world.ingress(11, "fd00::1", 1));
    }
}

#[test]
fn missing_namespace_has_only_its_name() {
    let named = select(&[("kubernetes.io/metadata.name", "b")]);
    let by_name = on_db(from(vec![pods(Some(named), Selector::default())]));
    let mut world = world([by_name]);
    world.apply([Change::NamespaceGone("b".into())]);
    assert!(world.ingress(11, "10.0.1.1", 1));
    let team = on_db(from(vec![pods(Some(select(&[("team", "two")])), Selector::default())]));
    world.apply([Change::Policy(team)]);
    assert!(!world.ingress(11, "10.0.1.1", 1));
    world.apply([Change::Namespace(namespace("b", &[("team", "two")]))]);
    assert!(world.ingress(11, "10.0.1.1", 1));
}

#[test]
fn peers_are_neither_host_network_nor_finished() {
    let mut world = world([on_db(from(vec![pods(None, Selector::default())]))]);
    assert!(world.ingress(11, "10.0.0.1", 1));
    let mut web = pod("a", "web", &[("app", "web")], &["10.0.0.1"]);
    web.finished = true;
    world.apply([Change::Pod(web.clone())]);
    assert!(!world.ingress(11, "10.0.0.1", 1));
    web.finished = false;
    web.host_network = true;
    world.apply([Change::Pod(web)]);
    assert!(!world.ingress(11, "10.0.0.1", 1));
}

#[test]
fn host_network_and_finished_pods_are_not_selected() {
    let mut world = world([on_db(vec![])]);
    for change in 0..2 {
        let mut db = pod("a", "db", &[("app", "db")], &["10.0.0.2", "fd00::2"]);
        db.host_network = change == 0;
        db.finished = change == 1;
        world.apply([Change::Pod(db)]);
        assert!(world.tables.endpoint(11).is_none());
    }
}

#[test]
fn an_address_belongs_to_one_pod() {
    let mut world = world([on_db(from(vec![pods(None, select(&[("app", "new")]))]))]);
    let mut other = pod("a", "other", &[("app", "new")], &["10.0.0.1"]);
    other.node = "elsewhere".into();
    other.created = -1;
    world.apply([Change::Pod(other.clone())]);
    assert!(!world.ingress(11, "10.0.0.1", 1), "the younger pod has it");
    other.created = 1;
    world.apply([Change::Pod(other.clone())]);
    assert!(world.ingress(11, "10.0.0.1", 1));
    assert!(world.tables.endpoint(10).is_some(), "web still has its IPv6 address");
    other.terminating = true;
    world.apply([Change::Pod(other)]);
    assert!(!world.ingress(11, "10.0.0.1", 1), "a terminating pod yields");
}

#[test]
fn except_cuts_only_its_own_block() {
    let narrow = block("10.0.0.0/16", &["10.0.0.0/24"]);
    let one = world([on_db(from(vec![narrow.clone()]))]);
    assert!(!one.ingress(11, "10.0.0.1", 1), "pods are cut too");
    assert!(one.ingress(11, "10.0.1.1", 1), "pods are matched too");
    assert!(!one.ingress(11, "10.1.0.1", 1));
    let both = world([on_db(from(vec![narrow, block("10.0.0.0/8", &["10.0.1.0/24"])]))]);
    assert!(both.ingress(11, "10.0.0.1", 1) && both.ingress(11, "10.0.1.1", 1));
    let six = world([on_db(from(vec![block("fd00::/64", &["fd00::2/127"])]))]);
    assert!(six.ingress(11, "fd00::1", 1) && six.ingress(11, "fd00::4", 1));
    assert!(!six.ingress(11, "fd00::3", 1) && !six.ingress(11, "fd01::1", 1));
}

#[test]
fn an_exception_of_the_whole_block_leaves_nothing() {
    let world = world([on_db(from(vec![block("10.0.0.0/24", &["10.0.0.0/24"])]))]);
    assert!(!world.ingress(11, "10.0.0.1", 1));
    let wider = on_db(from(vec![block("10.0.0.0/24", &["10.0.0.0/8"])]));
    assert!(
        !World::new(base().into_iter().chain([Change::Policy(wider)])).ingress(11, "10.0.0.1", 1)
    );
}

#[test]
fn absent_ports_are_every_protocol_and_given_ports_only_those() {
    let everything = world([on_db(vec![rule(None, None)])]);
    let some = world([on_db(vec![rule(None, Some(vec![tcp(80)]))])]);
    let nothing = world([on_db(vec![rule(None, Some(vec![]))])]);
    for (protocol, port) in [(1, 0), (6, 80), (17, 80), (132, 80), (47, 0), (6, 81)] {
        let see = |world: &World| {
            world.tables.allows(11, Direction::Ingress, ip("10.0.0.1"), protocol, port).unwrap()
        };
        assert!(see(&everything));
        assert_eq!(see(&some), (protocol, port) == (6, 80), "{protocol} {port}");
        assert!(!see(&nothing));
    }
}

#[test]
fn any_number_of_ranges() {
    let range =
        |first, last| PortRule { protocol: Protocol::Tcp, port: PortMatch::Range(first, last) };
    let many: Vec<PortRule> = (0..200).map(|n| range(n * 300, n * 300 + 150)).collect();
    let world = world([on_db(vec![rule(None, Some(many))])]);
    for port in (0..60_000u16).step_by(7) {
        assert_eq!(world.ingress(11, "10.0.0.1", port), port % 300 <= 150, "{port}");
    }
}

#[test]
fn ingress_names_resolve_on_the_selected_pod() {
    let http = vec![rule(None, Some(vec![port_name(Protocol::Tcp, "http")]))];
    let mut world = world([policy("a", "p", Selector::default(), Some(http), None)]);
    let mut db = pod("a", "db", &[("app", "db")], &["10.0.0.2", "fd00::2"]);
    db.ports = vec![named("http", Protocol::Udp, 53), named("http", Protocol::Tcp, 8080)];
    world.apply([Change::Pod(db)]);
    assert!(world.ingress(11, "10.0.0.1", 8080) && !world.ingress(11, "10.0.0.1", 53));
    assert!(!world.ingress(10, "10.0.0.2", 8080), "web has no such port");
}

#[test]
fn egress_names_do_not_resolve_on_host_network_pods() {
    let http = vec![rule(None, Some(vec![port_name(Protocol::Tcp, "http")]))];
    let mut world = world([policy("a", "p", Selector::default(), None, Some(http))]);
    let mut far = pod("b", "web", &[("app", "web")], &["198.51.100.1"]);
    far.node = "elsewhere".into();
    far.ports = vec![named("http", Protocol::Tcp, 8080)];
    world.apply([Change::Pod(far.clone())]);
    assert!(world.egress(10, "198.51.100.1", 8080));
    far.host_network = true;
    world.apply([Change::Pod(far)]);
    assert!(!world.egress(10, "198.51.100.1", 8080));
}

#[test]
fn egress_to_the_own_node_is_always_allowed() {
    let deny = policy("a", "p", Selector::default(), Some(vec![]), Some(vec![]));
    let mut world = world([deny]);
    for own in ["192.0.2.1", "fd00:1::1"] {
        assert!(world.egress(10, own, 22) && !world.ingress(10, own, 22), "{own}");
    }
    world.apply([Change::Node(node("elsewhere", &["192.0.2.2"]))]);
    assert!(!world.egress(10, "192.0.2.2", 22), "another node is an ordinary address");
    let mut agent = pod("b", "agent", &[], &["192.0.2.3"]);
    agent.host_network = true;
    world.apply([Change::Pod(agent)]);
    assert!(world.egress(10, "192.0.2.3", 22), "a hostNetwork pod here is the own node");
    world.apply([Change::NodeGone(NODE.into())]);
    assert!(!world.egress(10, "192.0.2.1", 22));
}

#[test]
fn what_the_nodes_interfaces_have_is_the_own_node_unless_a_pod_has_it() {
    let deny = policy("a", "p", Selector::default(), Some(vec![]), Some(vec![]));
    let mut world = world([deny]);
    let found =
        |addresses: &[&str]| Change::OwnAddresses(addresses.iter().map(|a| ip(a)).collect());
    world.apply([found(&["192.0.2.1", "192.0.2.9", "fd00:9::1", "10.0.1.1"])]);
    assert!(world.egress(10, "192.0.2.9", 22) && world.egress(10, "fd00:9::1", 22));
    assert!(!world.egress(10, "10.0.1.1", 22), "a pod's address stays the pod's");
    assert!(!world.ingress(10, "192.0.2.9", 22), "ingress goes by who made the packet");
    world.apply([found(&["fd00:9::1"])]);
    assert!(!world.egress(10, "192.0.2.9", 22), "the address went");
    assert!(world.egress(10, "192.0.2.1", 22), "the Node object still says so");
}

#[test]
fn policies_are_a_union_and_stay_in_their_namespace() {
    let web = on_db(vec![rule(Some(vec![block("10.0.0.0/24", &[])]), Some(vec![tcp(80)]))]);
    let mut more = on_db(vec![rule(Some(vec![block("10.0.0.1/32", &[])]), Some(vec![tcp(443)]))]);
    more.key.name = "more".into();
    let mut foreign = on_db(vec![rule(None, None)]);
    foreign.key.namespace = "b".into();
    let world = world([web, more, foreign]);
    assert!(world.ingress(11, "10.0.0.1", 80) && world.ingress(11, "10.0.0.1", 443));
    assert!(world.ingress(11, "10.0.0.3", 80) && !world.ingress(11, "10.0.0.3", 443));
    assert!(!world.ingress(11, "10.0.1.1", 80), "the policy of namespace b does not count");
}
