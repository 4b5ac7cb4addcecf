//! A full table closes the policies of the namespace that fills it, however small each of them is.
#![expect(clippy::unwrap_used, reason = "tests")]

mod debt;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use netpold_core::compile::{CompileError, Problem};
use netpold_core::model::{Change, Key, Peer, Pod, PortRule, Protocol, Rule, Selector};
use netpold_core::ops::{Capacity, Table};
use netpold_testkit::memory::MemoryTables;
use netpold_testkit::objects::{
    block, interface, named, namespace, pod, policy, port_name, rule, select, tcp,
};
use netpold_testkit::world::World;

const TENANT: u32 = 10;
const VICTIM: u32 = 2;
const OTHER: u32 = 3;
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// Tables with enough room for everything but the full one.
const ROOM: Capacity = Capacity {
    bitmaps: 65_536,
    row_blocks: 65_536,
    rows: 2048,
    trie_blocks: 262_144,
    hosts6: 65_536,
    blocks6: 65_536,
    names: 8,
};

/// Two pods whose namespaces have a larger and a small policy.
fn bystanders() -> Vec<Change> {
    let of = |name: &str, ifindex: u32, rules: Vec<Rule>| {
        let address = format!("10.0.0.{ifindex}");
        [
            Change::Namespace(namespace(name, &[])),
            Change::Pod(pod(name, "p", &[], &[&address])),
            Change::Interface(interface(ifindex, &[&address])),
            Change::Policy(policy(name, "own", Selector::default(), None, Some(rules))),
        ]
    };
    let hosts = (0..40).map(|n| block(&format!("198.51.100.{n}/32"), &[])).collect();
    let large = rule(Some(hosts), Some(vec![tcp(443), tcp(444)]));
    let small = rule(Some(vec![block("198.51.100.0/24", &[])]), Some(vec![tcp(80)]));
    of("victim", VICTIM, vec![large]).into_iter().chain(of("other", OTHER, vec![small])).collect()
}

/// A pod of this node with an egress policy of its own.
fn isolated(of: &str, number: u32, rules: Vec<Rule>) -> [Change; 3] {
    let (name, address) =
        (format!("app{number}"), format!("10.1.{}.{}", number >> 8, number & 255));
    let pod = pod(of, &name, &[("app", &name)], &[&address]);
    let ifindex = TENANT + number;
    [
        Change::Pod(pod),
        Change::Interface(interface(ifindex, &[&address])),
        Change::Policy(policy(of, &name, select(&[("app", &name)]), None, Some(rules))),
    ]
}

/// Policies of one rule with port names alone, a different pair of names in each, and pods with other numbers for each
/// name: three sets of ports for each policy and pod.
fn names_by_the_pod(policies: u32, pods: u32) -> Vec<Change> {
    let names = |number: u32| [number, number + 1].map(|n| format!("name{}", n % (policies + 1)));
    let of_rule = |number: u32| {
        let ports: Vec<PortRule> = PROTOCOLS
            .into_iter()
            .flat_map(|protocol| names(number).map(|name| port_name(protocol, &name)))
            .collect();
        vec![rule(None, Some(ports))]
    };
    let of_pod = |number: u32| {
        let ports = (0u32..).zip(PROTOCOLS).flat_map(|(nth, protocol)| {
            (0..=policies).map(move |name| {
                let port = 1000 + (3 * number + nth) * (policies + 1) + name;
                named(&format!("name{name}"), protocol, port as u16)
            })
        });
        let address = format!("10.2.0.{number}");
        let ports = ports.collect();
        Change::Pod(Pod { ports, ..pod("tenant", &format!("d{number}"), &[], &[&address]) })
    };
    let policies = (0..policies).flat_map(|number| isolated("tenant", number, of_rule(number)));
    policies.chain((0..pods).map(of_pod)).collect()
}

/// Installs the objects with tables of this size, and closes policies until they fit. Returns the full tables.
fn install(world: &mut World, capacity: Capacity) -> Vec<Table> {
    let mut full = Vec::new();
    let ops = loop {
        match world.compiler.recompile(capacity, |_, _| None) {
            Ok(ops) => break ops,
            Err(error) => {
                let CompileError::Full { table, .. } = error;
                full.push(table);
                assert!(world.compiler.leave_out(&error), "{error}");
            }
        }
    };
    world.tables = MemoryTables::new();
    world.tables.fill(&ops);
    world.compiler.grace_passed();
    world.compiler.compare_later();
    full
}

/// Installs the objects as if this many classes were too many.
fn install_without(world: &mut World, classes: u32) {
    world.compiler.recompile(ROOM, |_, _| None).unwrap();
    let error = CompileError::Full { table: Table::Classes, needed: classes, capacity: 0 };
    assert!(world.compiler.leave_out(&error));
    assert_eq!(install(world, ROOM), []);
}

/// The closed policies.
fn closed(world: &World) -> BTreeSet<Key> {
    let problems = world.compiler.problems().into_iter();
    let closed = problems.filter_map(|problem| {
        if let Problem::Closed { policies, .. } = problem { Some(policies) } else { None }
    });
    closed.flatten().collect()
}

fn namespaces(closed: &BTreeSet<Key>) -> BTreeSet<&str> {
    closed.iter().map(|key| key.namespace.as_str()).collect()
}

#[test]
fn many_small_policies_of_port_names_are_closed_before_larger_ones_of_others() {
    let objects = bystanders().into_iter().chain(names_by_the_pod(6, 20));
    let mut world = World::new([]);
    objects.for_each(|change| world.compiler.ingest(change));
    // 360 sets of ports: for six policies, twenty pods and three protocols.
    let full = install(&mut world, Capacity { bitmaps: 200, ..ROOM });
    assert_eq!(full, [Table::Bitmaps], "closed at once, and no more often");
    let gone = closed(&world);
    assert_eq!(namespaces(&gone), BTreeSet::from(["tenant"]), "{gone:?}");
    assert_eq!(gone.len(), 3, "the rest has room: {gone:?}");
    assert!(world.egress(VICTIM, "198.51.100.7", 443) && !world.egress(VICTIM, "9.9.9.9", 443));
    assert!(world.egress(OTHER, "198.51.100.7", 80) && !world.egress(OTHER, "198.51.100.7", 443));
    // Updates of others continue.
    let rules = vec![rule(Some(vec![block("198.51.100.0/24", &[])]), Some(vec![tcp(81)]))];
    world.apply([Change::Policy(policy("other", "own", Selector::default(), None, Some(rules)))]);
    assert!(world.egress(OTHER, "198.51.100.7", 81) && !world.egress(OTHER, "198.51.100.7", 80));
    assert_eq!(closed(&world), gone);
    // They are in force again once their namespace makes room.
    world.apply((1..6).map(|n| Change::PolicyGone(Key::new("tenant", format!("app{n}")))));
    assert_eq!(closed(&world), BTreeSet::new());
    assert!(world.egress(TENANT, "10.2.0.3", 1000 + 3 * 21));
}

#[test]
fn small_policies_of_one_namespace_are_closed_before_a_larger_one_of_another() {
    let mut world = World::new([]);
    bystanders().into_iter().for_each(|change| world.compiler.ingest(change));
    // Fewer peers in each than the victim has, but a set of ports for each peer.
    for number in 0..30 {
        let nth = |n: u32| {
            let port = 1000 + 40 * number + 4 * n;
            let peer = block(&format!("203.0.113.{n}/32"), &[]);
            rule(Some(vec![peer]), Some(vec![tcp(port as u16), tcp(port as u16 + 2)]))
        };
        let changes = isolated("tenant", number, (0..10).map(nth).collect());
        changes.into_iter().for_each(|change| world.compiler.ingest(change));
    }
    let full = install(&mut world, Capacity { bitmaps: 250, ..ROOM });
    assert_eq!(full, [Table::Bitmaps]);
    let gone = closed(&world);
    assert_eq!(namespaces(&gone), BTreeSet::from(["tenant"]), "{gone:?}");
    assert!((5..=8).contains(&gone.len()), "as many as are needed: {gone:?}");
    assert!(world.egress(VICTIM, "198.51.100.7", 443));
}

#[test]
fn full_rows_close_the_namespace_with_most_of_them() {
    let mut world = World::new([]);
    bystanders().into_iter().for_each(|change| world.compiler.ingest(change));
    for number in 0..30 {
        // A row each, and nothing else.
        let rules = vec![rule(None, Some(vec![tcp(1000 + number as u16)]))];
        let changes = isolated("tenant", number, rules);
        changes.into_iter().for_each(|change| world.compiler.ingest(change));
    }
    let full = install(&mut world, Capacity { rows: 20, ..ROOM });
    assert!(full.iter().all(|table| *table == Table::Rows) && full.len() <= 2, "{full:?}");
    assert_eq!(namespaces(&closed(&world)), BTreeSet::from(["tenant"]));
    assert!(world.egress(VICTIM, "198.51.100.7", 443) && world.egress(OTHER, "198.51.100.7", 80));
}

/// Rules with a block and a port each.
fn each_its_own(first: u32, count: u32) -> Vec<Rule> {
    let nth = |number: u32| {
        let address = Ipv4Addr::from_bits(first + number);
        rule(Some(vec![block(&format!("{address}/32"), &[])]), Some(vec![tcp(1 + number as u16)]))
    };
    (0..count).map(nth).collect()
}

#[test]
fn a_long_list_with_one_grant_stays_when_others_fill_the_classes() {
    let mut world = World::new([]);
    bystanders().into_iter().for_each(|change| world.compiler.ingest(change));
    // More blocks than any other, but one class for all of them.
    let peers: Vec<Peer> = (0..400)
        .map(|n| block(&format!("{}/32", Ipv4Addr::from_bits(0x3000_0000 + 2 * n)), &[]))
        .collect();
    let rules = vec![rule(Some(peers), Some(vec![tcp(443)]))];
    let list = policy("victim", "own", Selector::default(), None, Some(rules));
    world.compiler.ingest(Change::Policy(list));
    for number in 0..6 {
        let rules = each_its_own(0x2000_0000 + number * 0x1_0000, 100);
        let changes = isolated("tenant", number, rules);
        changes.into_iter().for_each(|change| world.compiler.ingest(change));
    }
    install_without(&mut world, 50);
    let gone = closed(&world);
    assert_eq!((namespaces(&gone), gone.len()), (BTreeSet::from(["tenant"]), 1));
    assert!(world.egress(VICTIM, "48.0.0.2", 443) && !world.egress(VICTIM, "48.0.0.3", 443));
}

/// Eight namespaces each select a different half of the same addresses: every address becomes a class.
#[test]
fn who_multiplies_classes_by_halves_is_closed_first() {
    let mut world = World::new([]);
    bystanders().into_iter().for_each(|change| world.compiler.ingest(change));
    for bit in 0..8 {
        let of_bit = (0..1u32 << 8).filter(|n| n & (1 << bit) != 0);
        let peers =
            of_bit.map(|n| block(&format!("{}/32", Ipv4Addr::from_bits(0x2000_0000 + n)), &[]));
        let rules = vec![rule(Some(peers.collect()), None)];
        let changes = isolated(&format!("t{bit}"), bit, rules);
        changes.into_iter().for_each(|change| world.compiler.ingest(change));
    }
    install_without(&mut world, 100);
    let gone = closed(&world);
    assert_eq!(gone.len(), 1, "half of the classes: {gone:?}");
    assert!(world.egress(VICTIM, "198.51.100.7", 443));
}
