//! The oracle compared with sentences of the API, one by one: no other test here checks the oracle.

use netpold_core::model::{
    Direction, Labels, Namespace, Peer, Pod, PortMatch, PortRule, Protocol, Requirement, Rule,
    Selector,
};
use netpold_testkit::objects::{self, block, ip, labels};
use netpold_testkit::oracle::{Oracle, OracleVerdict};

fn pod(namespace: &str, name: &str, address: &str) -> Pod {
    Pod { node: "n1".into(), ..objects::pod(namespace, name, &[("app", name)], &[address]) }
}

/// Namespaces x (labelled) and y (not), with the selected pod a in x, and peers.
fn cluster(rules: Vec<Rule>) -> Oracle {
    let selector = one(Requirement::Exists("app".to_owned()));
    let policy = objects::policy("x", "p", selector, Some(rules), None);
    Oracle {
        namespaces: vec![
            Namespace { name: "x".to_owned(), labels: labels(&[("app", "x")]), denial: None },
            Namespace { name: "y".to_owned(), labels: Labels::new(), denial: None },
        ],
        nodes: vec![objects::node("n1", &["192.168.0.1"])],
        pods: vec![
            pod("x", "a", "10.0.0.1"),
            pod("x", "b", "10.0.0.2"),
            pod("y", "b", "10.0.1.2"),
            Pod { host_network: true, ..pod("x", "host", "192.168.0.9") },
        ],
        policies: vec![policy],
        ..Oracle::default()
    }
}

fn one(requirement: Requirement) -> Selector {
    Selector { requirements: vec![requirement] }
}

fn not_in(value: &str) -> Selector {
    one(Requirement::NotIn("app".to_owned(), vec![value.to_owned()]))
}

fn from(peers: Vec<Peer>) -> Rule {
    Rule { peers: Some(peers), ports: None }
}

/// Whether x/b, y/b, an outside address and the hostNetwork pod reach x/a on TCP 80.
fn reach(rules: Vec<Rule>) -> [bool; 4] {
    let oracle = cluster(rules);
    ["10.0.0.2", "10.0.1.2", "8.8.8.8", "192.168.0.9"]
        .map(|remote| oracle.judge(&oracle.pods[0], Direction::Ingress, ip(remote), 6, 80))
}

#[test]
fn no_rules_and_empty_rules() {
    assert_eq!(reach(vec![]), [false; 4]);
    assert_eq!(reach(vec![Rule { peers: None, ports: None }]), [true; 4]);
    assert_eq!(reach(vec![from(vec![])]), [false; 4]);
    assert_eq!(reach(vec![Rule { peers: None, ports: Some(vec![]) }]), [false; 4]);
}

#[test]
fn selectors() {
    let pods = |namespaces, pods| reach(vec![from(vec![Peer::Pods { namespaces, pods }])]);
    assert_eq!(pods(None, Selector::default()), [true, false, false, false]);
    assert_eq!(pods(Some(Selector::default()), Selector::default()), [true, true, false, false]);
    // `NotIn` holds for an absent key.
    assert_eq!(pods(Some(not_in("x")), Selector::default()), [false, true, false, false]);
    assert_eq!(pods(Some(not_in("y")), not_in("c")), [true, true, false, false]);
    assert_eq!(pods(Some(Selector::default()), not_in("b")), [false, false, false, false]);
    let absent = one(Requirement::DoesNotExist("app".to_owned()));
    assert_eq!(pods(Some(absent.clone()), Selector::default()), [false, true, false, false]);
    assert_eq!(pods(Some(Selector::default()), absent), [false; 4]);
}

#[test]
fn blocks() {
    assert_eq!(reach(vec![from(vec![block("10.0.0.0/8", &[])])]), [true, true, false, false]);
    let cut = block("0.0.0.0/0", &["10.0.0.0/24"]);
    assert_eq!(reach(vec![from(vec![cut.clone()])]), [false, true, true, true]);
    // An `except` excludes addresses from its own block only.
    assert_eq!(reach(vec![from(vec![cut, block("10.0.0.2/32", &[])])]), [true; 4]);
    assert_eq!(reach(vec![from(vec![block("::/0", &[])])]), [false; 4]);
}

#[test]
fn ports_and_protocols() {
    let range = PortRule { protocol: Protocol::Tcp, port: PortMatch::Range(80, 82) };
    let any_udp = PortRule { protocol: Protocol::Udp, port: PortMatch::Any };
    let oracle = cluster(vec![Rule { peers: None, ports: Some(vec![range, any_udp]) }]);
    let allowed = |protocol, port| {
        oracle.judge(&oracle.pods[0], Direction::Ingress, ip("8.8.8.8"), protocol, port)
    };
    assert_eq!([79, 80, 82, 83].map(|port| allowed(6, port)), [false, true, true, false]);
    assert!(allowed(17, 1) && !allowed(132, 80) && !allowed(1, 80));
}

#[test]
fn of_several_claims_to_an_address_one_counts() {
    let mut oracle = cluster(vec![]);
    let address = ip("10.0.0.2");
    let owner = |oracle: &Oracle| oracle.pod_at(address).unwrap().key.name.clone();
    for (claim, name) in [
        (Pod { finished: true, created: 9, ..pod("z", "finished", "10.0.0.2") }, "b"),
        (Pod { terminating: true, created: 9, ..pod("z", "terminating", "10.0.0.2") }, "b"),
        (pod("a", "lesser", "10.0.0.2"), "b"),
        (pod("z", "greater", "10.0.0.2"), "greater"),
        (Pod { created: 1, ..pod("a", "younger", "10.0.0.2") }, "younger"),
    ] {
        oracle.pods.push(claim);
        assert_eq!(owner(&oracle), name);
        oracle.pods.reverse();
        assert_eq!(owner(&oracle), name);
    }
}

#[test]
fn both_sides_and_the_own_node() {
    let mut oracle = cluster(vec![]);
    oracle.policies[0].egress = Some(vec![]);
    let ask = |from: &str, to: &str| oracle.verdict(&objects::probe(from, to, 80));
    let judged = |egress, ingress| OracleVerdict::Judged { egress, ingress };
    assert_eq!(ask("x/a", "x/b"), judged(false, false));
    assert_eq!(ask("y/b", "x/b"), judged(true, false));
    assert_eq!(ask("x/a", "x/a"), judged(true, true));
    assert_eq!(ask("x/a", "192.168.0.1"), judged(true, true));
    assert_eq!(ask("x/host", "x/a"), judged(true, true));
    assert_eq!(ask("192.168.0.1", "x/a"), judged(true, true));
    assert_eq!(ask("192.168.0.2", "x/a"), judged(true, false));
    assert_eq!(ask("1.1.1.1", "8.8.8.8"), OracleVerdict::CannotTell);
    assert_eq!(ask("x/none", "x/a"), OracleVerdict::CannotTell);
}
