//! What each part of a NetworkPolicy compiles to, judged through the tables.

mod common;

use common::*;
use netpold_core::model::{Change, Protocol, Selector};

/// Two namespaces; `a/web` on interface 10, `a/db` on 11, `b/web` elsewhere.
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

fn world(policies: impl IntoIterator<Item = netpold_core::model::Policy>) -> World {
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
