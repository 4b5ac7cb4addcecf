//! Excessive policies close the pods that they isolate, are reported, and do not affect others.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::Ipv4Addr;

use netpold_core::budget::{POLICY_PORT_SETS, POLICY_UNITS};
use netpold_core::cluster::ObjectKey;
use netpold_core::compile::{CompileError, Problem};
use netpold_core::explain::{Cause, Explainer, Verdict};
use netpold_core::model::{
    Action, Change, Direction, IpBlock, Key, Peer, Policy, Requirement, Rule, Selector, Tier,
};
use netpold_core::ops::{Capacity, Table};
use netpold_core::probe::IpProtocol;
use netpold_testkit::memory::MemoryTables;
use netpold_testkit::objects::{
    block, cluster_policy, cluster_rule, interface, namespace, pod, policy, rule, select, tcp,
};
use netpold_testkit::world::World;

const TENANT: u32 = 1;
const VICTIM: u32 = 2;

fn two_tenants() -> Vec<Change> {
    vec![
        Change::Namespace(namespace("tenant", &[])),
        Change::Namespace(namespace("victim", &[])),
        Change::Pod(pod("tenant", "p", &[], &["10.0.0.1"])),
        Change::Pod(pod("victim", "p", &[], &["10.0.0.2"])),
        Change::Interface(interface(TENANT, &["10.0.0.1"])),
        Change::Interface(interface(VICTIM, &["10.0.0.2"])),
        Change::Policy(small("victim", 443)),
    ]
}

fn small(namespace: &str, port: u16) -> Policy {
    let rules = vec![rule(Some(vec![block("198.51.100.0/24", &[])]), Some(vec![tcp(port)]))];
    policy(namespace, "small", Selector::default(), None, Some(rules))
}

fn host(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x1400_0000 + number * 256)
}

fn large(namespace: &str, rules: Vec<Rule>) -> Policy {
    policy(namespace, "large", Selector::default(), None, Some(rules))
}

/// Rules that each allow one port to everything but one address.
fn all_but_one(count: u32) -> Vec<Rule> {
    let nth = |number: u32| {
        let except = vec![ipnet::IpNet::new(host(number).into(), 32).unwrap()];
        let block = IpBlock { cidr: "0.0.0.0/0".parse().unwrap(), except };
        rule(Some(vec![Peer::Block(block)]), Some(vec![tcp(1 + 2 * number as u16)]))
    };
    (0..count).map(nth).collect()
}

/// Rules with one block and one port each, all different.
fn each_its_own(count: u32) -> Vec<Rule> {
    let nth = |number: u32| {
        let peers = vec![block(&format!("{}/32", host(number)), &[])];
        rule(Some(peers), Some(vec![tcp(number as u16)]))
    };
    (0..count).map(nth).collect()
}

/// Starts over with tables of this size.
fn install(world: &mut World, capacity: Capacity) {
    world.tables = MemoryTables::new();
    world.tables.fill(&world.compiler.recompile(capacity, |_, _| None).unwrap());
    world.compiler.grace_passed();
}

fn problems(world: &World) -> Vec<String> {
    world.compiler.problems().iter().map(ToString::to_string).collect()
}

#[test]
fn all_but_one_address_each() {
    let mut world = World::new(two_tenants());
    world.apply([Change::Policy(large("tenant", all_but_one(200)))]);
    for number in [0, 7, 199] {
        let address = host(number).to_string();
        for (port, allowed) in [(1 + 2 * number, false), (1 + 2 * (199 - number), true), (2, false)]
        {
            assert_eq!(world.egress(TENANT, &address, port as u16), allowed, "{address} {port}");
        }
    }
    assert!(world.egress(TENANT, "9.9.9.9", 1) && !world.egress(TENANT, "9.9.9.9", 500));
    assert!(problems(&world).is_empty());
}

#[test]
fn twice_the_rules_are_about_twice_the_work() {
    for shape in [all_but_one, each_its_own] {
        let figures: Vec<u64> = [250, 500, 1000, 2000]
            .map(|rules| {
                let mut world = World::new(two_tenants());
                let capacity = Capacity { bitmaps: 4096, ..Capacity::default() };
                install(&mut world, capacity);
                let before = world.compiler.work();
                world.apply([Change::Policy(large("tenant", shape(rules)))]);
                world.compiler.work() - before
            })
            .to_vec();
        for pair in figures.windows(2) {
            assert!(pair[1] * 10 <= pair[0] * 24, "{figures:?}");
        }
    }
}

#[test]
fn what_others_do_costs_them_no_more() {
    let edit = |world: &mut World, port| {
        let before = world.compiler.work();
        world.apply([Change::Policy(small("victim", port))]);
        world.compiler.work() - before
    };
    let alone = edit(&mut World::new(two_tenants()), 80);
    let mut world = World::new(two_tenants());
    world.apply([Change::Policy(large("tenant", all_but_one(1000)))]);
    let beside = edit(&mut world, 80);
    // At most two visits of each class and each place of the other tenant.
    assert!(beside <= alone + 8 * 1001, "{alone}, beside it {beside}");
}

/// A policy over its budget is closed and reported by compiler and explain; the victim's edits are in force.
fn is_closed(excessive: Policy, reason: &str) {
    let mut world = World::new(two_tenants());
    world.apply([Change::Policy(small("tenant", 443)), Change::Policy(excessive.clone())]);
    let said = problems(&world);
    assert!(
        said.len() == 1 && said[0].contains("tenant/large") && said[0].contains(reason),
        "{said:?}"
    );
    assert!(world.egress(TENANT, "198.51.100.7", 443), "the tenant's other policy still grants");
    assert!(
        !world.egress(TENANT, &host(3).to_string(), 3),
        "what is over its budget grants nothing"
    );
    world.apply([Change::PolicyGone(small("tenant", 443).key)]);
    assert!(!world.egress(TENANT, "198.51.100.7", 443), "but isolates");
    world.apply([Change::Policy(small("victim", 80))]);
    assert!(world.egress(VICTIM, "198.51.100.7", 80) && !world.egress(VICTIM, "198.51.100.7", 443));
    let objects = two_tenants().into_iter().chain([Change::Policy(excessive.clone())]);
    let cluster = objects.collect();
    let explainer = Explainer::new(&cluster);
    let (pod, tcp) = (Key::new("tenant", "p"), IpProtocol(6));
    let judged = explainer.judge(&pod, Direction::Egress, host(3).into(), tcp, 3).unwrap();
    assert_eq!((judged.verdict, judged.cause), (Verdict::Deny, Cause::NoRule));
    let lines = judged.lines().join("\n");
    assert!(
        lines.contains("closed, grants nothing: tenant/large") && lines.contains(reason),
        "{lines}"
    );
    world.apply([Change::Policy(large("tenant", each_its_own(10)))]);
    assert!(world.egress(TENANT, &host(3).to_string(), 3));
    assert!(problems(&world).is_empty());
}

#[test]
fn too_many_sets_of_ports_close_their_policy() {
    is_closed(
        large("tenant", each_its_own(POLICY_PORT_SETS as u32 + 1)),
        "different sets of ports",
    );
}

#[test]
fn too_many_rules_close_their_policy() {
    let mut rules = each_its_own(10);
    rules[0].ports = Some((0..=POLICY_UNITS).map(|n| tcp((n % 50_000) as u16)).collect());
    is_closed(large("tenant", rules), "weigh");
}

#[test]
fn a_pod_selector_over_the_budget_isolates_its_namespace_and_takes_no_memory() {
    let mut world = World::new(two_tenants());
    let labels = (0..=POLICY_UNITS).map(|n| format!("{n:06}")).collect();
    // It selects no pod of this node, but is not kept.
    let requirements = vec![Requirement::In("app".into(), labels)];
    let selector = Selector { requirements };
    let excessive = policy("tenant", "large", selector, None, Some(each_its_own(10)));
    world.apply([Change::Policy(excessive.clone())]);
    let kept = &world.compiler.cluster().policies()[&excessive.key];
    assert_eq!((&kept.pod_selector, &kept.egress), (&Selector::default(), &Some(Vec::new())));
    assert!(!world.egress(TENANT, &host(3).to_string(), 3), "closed");
    let said = problems(&world);
    assert!(said.len() == 1 && said[0].contains("every pod of its namespace"), "{said:?}");
    assert!(world.egress(VICTIM, "198.51.100.7", 443) && !world.egress(VICTIM, "9.9.9.9", 443));
    // The same object again changes nothing.
    assert_eq!(world.apply([Change::Policy(excessive)]), 0);
    world.apply([Change::Policy(large("tenant", each_its_own(10)))]);
    assert!(world.egress(TENANT, &host(3).to_string(), 3) && problems(&world).is_empty());
}

#[test]
fn a_table_that_cannot_grow_closes_the_largest() {
    let capacity = Capacity { bitmaps: 64, ..Capacity::default() };
    let mut world = World::new(two_tenants());
    world.compiler.recompile(capacity, |_, _| None).unwrap();
    world.compiler.ingest(Change::Policy(large("tenant", all_but_one(100))));
    world.compiler.ingest(Change::Policy(small("victim", 80)));
    let error = world.compiler.update().unwrap_err();
    let CompileError::Full { table, .. } = error;
    assert_eq!(table, Table::Bitmaps);
    assert!(world.compiler.leave_out(&error));
    install(&mut world, capacity);
    let closed: Vec<Problem> = world.compiler.problems();
    assert!(
        matches!(&closed[..], [Problem::Closed { policies, direction: Direction::Egress, message }]
            if *policies == [Key::new("tenant", "large")] && message.contains("port bitmaps")),
        "{closed:?}"
    );
    assert!(!world.egress(TENANT, "9.9.9.9", 1), "closed");
    assert!(world.egress(VICTIM, "198.51.100.7", 80) && !world.egress(VICTIM, "198.51.100.7", 443));
    // Edits of others are applied; the closed combination stays closed until something as large changes.
    world.apply([Change::Policy(small("victim", 81))]);
    assert!(world.egress(VICTIM, "198.51.100.7", 81) && !world.egress(TENANT, "9.9.9.9", 1));
    world.apply([Change::Policy(large("tenant", all_but_one(20)))]);
    assert!(world.egress(TENANT, "9.9.9.9", 1) && problems(&world).is_empty());
}

#[test]
fn more_classes_than_there_are_close_the_largest() {
    let mut world = World::new(two_tenants());
    // Each within its budget, but together more than the maximum number of classes.
    for tenant in 0..6u32 {
        let (name, address) = (format!("t{tenant}"), format!("10.0.1.{tenant}"));
        world.compiler.ingest(Change::Pod(pod(&name, "p", &[], &[&address])));
        world.compiler.ingest(Change::Interface(interface(10 + tenant, &[&address])));
        let nth = |number: u32| {
            let host = Ipv4Addr::from_bits(0x1400_0000 + tenant * 0x0100_0000 + number);
            rule(Some(vec![block(&format!("{host}/32"), &[])]), Some(vec![tcp(number as u16)]))
        };
        let rules = (1..12_000 + tenant).map(nth).collect();
        world.compiler.ingest(Change::Policy(large(&name, rules)));
    }
    let error = world.compiler.update().unwrap_err();
    let mut capacity =
        Capacity { trie_blocks: 1 << 18, row_blocks: 1 << 16, ..Capacity::default() };
    capacity.bitmaps = 1 << 16;
    assert!(matches!(error, CompileError::Full { .. }));
    let mut refused = 0;
    let ops = loop {
        match world.compiler.recompile(capacity, |_, _| None) {
            Ok(ops) => break ops,
            Err(error) => {
                refused += 1;
                assert!(
                    matches!(error, CompileError::Full { table: Table::Classes, .. }),
                    "{error}"
                );
                assert!(world.compiler.leave_out(&error));
            }
        }
    };
    assert_eq!(refused, 1);
    world.tables = MemoryTables::new();
    world.tables.fill(&ops);
    let said = problems(&world);
    assert!(
        said.len() == 1 && said[0].contains("t5/large"),
        "the largest, and nobody else: {said:?}"
    );
    assert!(world.egress(VICTIM, "198.51.100.7", 443));
    for tenant in 0..6u32 {
        let address = Ipv4Addr::from_bits(0x1400_0000 + tenant * 0x0100_0000 + 77).to_string();
        assert_eq!(world.egress(10 + tenant, &address, 77), tenant != 5, "tenant {tenant}");
    }
}

/// Policies of one namespace, each for the pods with one `app` label.
fn selecting(app: &str, rules: Vec<Rule>) -> Change {
    Change::Policy(policy("tenant", app, select(&[("app", app)]), None, Some(rules)))
}

fn labelled(app: &str) -> Change {
    Change::Pod(pod("tenant", "p", &[("app", app)], &["10.0.0.1"]))
}

/// Defers large policies to another compiler, and in the held namespaces everything beyond modest size.
fn defer(world: &mut World, held: &[&str]) {
    world.compiler.defer(Some(held.iter().map(|name| (*name).to_owned()).collect()));
    world.apply([]);
}

/// Tables with enough room.
const ROOM: Capacity = Capacity {
    bitmaps: 8192,
    row_blocks: 4096,
    rows: 2048,
    trie_blocks: 16_384,
    hosts6: 8,
    blocks6: 8,
    names: 8,
};

/// Replaces the world's compiler by another one.
fn succeed(world: &mut World, since: impl FnOnce(&mut World)) {
    let mut successor = world.compiler.blank();
    successor.take_over(world.compiler.all_objects());
    let mut tables = MemoryTables::new();
    tables.fill(&successor.recompile(ROOM, |_, _| None).unwrap());
    successor.grace_passed();
    successor.defer(Some(std::collections::BTreeSet::new()));
    since(world);
    let changed = [
        ObjectKey::Pod(Key::new("tenant", "p")),
        ObjectKey::Policy(Key::new("victim", "small")),
        ObjectKey::Policy(Key::new("tenant", "large")),
        ObjectKey::Interface(NEWCOMER),
        ObjectKey::Pod(Key::new("victim", "q")),
    ];
    successor.take_over(world.compiler.changed_objects(changed));
    tables.fill(&successor.update().unwrap());
    successor.grace_passed();
    (world.compiler, world.tables) = (successor, tables);
}

const NEWCOMER: u32 = 3;

/// A ClusterNetworkPolicy that denies egress to a block.
fn denies(name: &str, to: &str) -> Change {
    let rule = cluster_rule(Action::Deny, vec![block(to, &[])], None);
    Change::ClusterPolicy(cluster_policy(name, (Tier::Admin, 1), vec![], vec![rule]))
}

/// Otherwise a tenant with a large policy would keep its pods out of any further ClusterNetworkPolicy.
#[test]
fn deferred_policies_keep_no_pod_out_of_tiers() {
    let mut world = World::new(two_tenants());
    install(&mut world, ROOM);
    world.apply([labelled("large"), selecting("large", each_its_own(2000))]);
    let (seven, eight) = (host(7).to_string(), host(8).to_string());
    assert!(world.egress(TENANT, &seven, 7));
    defer(&mut world, &["tenant"]);
    assert!(!world.compiler.has_outdated_tiers());
    world.apply([denies("quarantine", &format!("{seven}/32"))]);
    // The pod keeps its state for as long as the other compiler takes, whatever its namespace owes.
    assert!(world.egress(TENANT, &seven, 7) && world.compiler.has_outdated_tiers());
    // Other pods do not take over that state.
    let newcomer = pod("tenant", "q", &[("app", "large")], &["10.0.0.3"]);
    world.apply([Change::Pod(newcomer), Change::Interface(interface(NEWCOMER, &["10.0.0.3"]))]);
    assert!(!world.egress(NEWCOMER, &seven, 7) && !world.egress(NEWCOMER, &eight, 8));
    succeed(&mut world, |_| {});
    assert!(!world.egress(TENANT, &seven, 7) && world.egress(TENANT, &eight, 8));
    assert!(!world.egress(NEWCOMER, &seven, 7) && world.egress(NEWCOMER, &eight, 8));
    assert!(!world.compiler.has_outdated_tiers());
    // An edit of the large policy under the same tiers keeps the state before it, also for new pods.
    defer(&mut world, &["tenant"]);
    world.apply([selecting("large", each_its_own(2001))]);
    assert!(!world.egress(TENANT, &seven, 7) && world.egress(TENANT, &eight, 8));
    assert!(!world.compiler.has_outdated_tiers());
}

#[test]
fn what_is_large_waits_for_another_compiler_and_nobody_else_does() {
    let mut world = World::new(two_tenants());
    install(&mut world, ROOM);
    world.apply([labelled("large"), selecting("large", each_its_own(2000))]);
    assert_eq!(world.compiler.take_compiled().keys().collect::<Vec<_>>(), ["tenant"]);
    let (of_both, of_the_edit) = (host(7).to_string(), host(2000).to_string());
    assert!(world.egress(TENANT, &of_both, 7));

    defer(&mut world, &[]);
    assert!(world.egress(TENANT, &of_both, 7) && problems(&world).is_empty(), "in force stays");
    // An edit: the state before it stays in force, and the compiler does no work for it.
    let before = world.compiler.work();
    world.apply([selecting("large", each_its_own(2001)), Change::Policy(small("victim", 80))]);
    assert!(world.compiler.work() - before < 4 * 2001, "the victim's, at each class");
    assert!(world.egress(VICTIM, "198.51.100.7", 80), "nobody else waits");
    assert!(world.egress(TENANT, &of_both, 7) && !world.egress(TENANT, &of_the_edit, 2000));
    let said = problems(&world);
    assert!(said.len() == 1 && said[0].contains("before their last edit"), "{said:?}");
    assert!(world.compiler.take_compiled().is_empty());
    assert_eq!(world.compiler.late().into_iter().collect::<Vec<_>>(), ["tenant"]);

    // A further policy for a pod that is isolated already: the state before stays in force.
    let further = policy("tenant", "further", Selector::default(), None, Some(each_its_own(3)));
    world.apply([Change::Policy(further.clone())]);
    assert!(world.egress(TENANT, &of_both, 7));
    world.apply([Change::PolicyGone(further.key)]);
    assert!(world.egress(TENANT, &of_both, 7) && !world.egress(TENANT, &of_the_edit, 2000));

    // A new, large policy: closed.
    world.apply([selecting("other", each_its_own(2002)), labelled("other")]);
    assert!(!world.egress(TENANT, &of_both, 7) && !world.egress(TENANT, "9.9.9.9", 80));
    let said = problems(&world);
    assert!(said.len() == 1 && said[0].contains("tenant/other"), "{said:?}");
    assert!(
        said[0].contains("is closed") && said[0].contains("compiled in the background"),
        "{said:?}"
    );
    // An unused policy stays in the tables, and is in force at once when it is used again.
    assert_eq!(world.compiler.lingering().into_iter().collect::<Vec<_>>(), ["tenant"]);
    world.apply([labelled("large")]);
    assert!(world.egress(TENANT, &of_both, 7), "as before its edit");
    world.apply([selecting("tiny", each_its_own(4)), labelled("tiny")]);
    assert!(world.egress(TENANT, &host(3).to_string(), 3), "what is small does not wait");

    world.apply([labelled("other")]);
    succeed(&mut world, |world| {
        world.apply([Change::Policy(small("victim", 81))]);
    });
    assert!(world.egress(TENANT, &of_the_edit, 2000) && problems(&world).is_empty());
    assert!(world.egress(VICTIM, "198.51.100.7", 81) && !world.egress(VICTIM, "198.51.100.7", 80));
    assert!(world.compiler.late().is_empty() && world.compiler.lingering().is_empty());
    assert_eq!(world.compiler.take_compiled().keys().collect::<Vec<_>>(), ["tenant"]);

    // New tables close nothing.
    install(&mut world, ROOM);
    assert!(world.egress(TENANT, &of_the_edit, 2000) && problems(&world).is_empty());
}

/// Namespaces with much recent compile work also wait for everything beyond modest size.
#[test]
fn what_is_more_than_modest_waits_for_namespaces_that_are_held() {
    let mut world = World::new(two_tenants());
    defer(&mut world, &["tenant"]);
    let medium = || selecting("medium", each_its_own(300));
    world.apply([labelled("medium"), medium(), Change::Policy(large("victim", each_its_own(300)))]);
    assert!(!world.egress(TENANT, &host(7).to_string(), 7), "closed so long");
    assert!(world.egress(VICTIM, &host(7).to_string(), 7));
    defer(&mut world, &[]);
    assert!(world.egress(TENANT, &host(7).to_string(), 7) && problems(&world).is_empty());
    // Three of them in one update exceed the share of a namespace, one after the other they do not.
    let pods = (0..3).map(|n| {
        let (address, app) = (format!("10.0.2.{n}"), format!("app{n}"));
        let pod = pod("tenant", &app, &[("app", &app)], &[&address]);
        [Change::Pod(pod), Change::Interface(interface(20 + n, &[&address]))]
    });
    let policies = (0..3).map(|n| selecting(&format!("app{n}"), each_its_own(600 + n)));
    world.apply(pods.flatten().chain(policies));
    let allowed = (0..3).filter(|n| world.egress(20 + n, &host(7).to_string(), 7));
    assert_eq!(allowed.count(), 2);
    world.compiler.defer(None);
    world.apply([]);
    assert!((0..3).all(|n| world.egress(20 + n, &host(7).to_string(), 7)));
}

/// Endpoints that appear while another compiler is at work get the same numbers there.
#[test]
fn a_successor_gives_the_numbers_that_were_given() {
    let mut world = World::new(two_tenants());
    defer(&mut world, &[]);
    world.apply([labelled("large"), selecting("large", each_its_own(2000))]);
    let numbers = |world: &World| -> Vec<(u32, u32)> {
        world.compiler.endpoints().map(|it| (it.ifindex, it.id)).collect()
    };
    let mut before = Vec::new();
    let version = world.compiler.endpoints_version();
    succeed(&mut world, |world| {
        let pod = Change::Pod(pod("victim", "q", &[], &["10.0.0.3"]));
        world.apply([pod, Change::Interface(interface(NEWCOMER, &["10.0.0.3"]))]);
        before = numbers(world);
    });
    assert_eq!((before.len(), numbers(&world)), (3, before));
    assert!(world.compiler.endpoints_version() > version);
    assert!(world.egress(TENANT, &host(7).to_string(), 7));
}

#[test]
fn all_tables_that_are_too_small_grow_for_one_compilation() {
    let mut world = World::new(two_tenants());
    let error = world
        .compiler
        .recompile(Capacity { rows: 1, bitmaps: 1, ..ROOM }, |_, _| None)
        .unwrap_err();
    assert!(matches!(error, CompileError::Full { .. }));
    world.compiler.ingest(Change::Policy(large("tenant", all_but_one(100))));
    let small = Capacity { rows: 1, bitmaps: 1, row_blocks: 1, trie_blocks: 1, ..ROOM };
    let asked = std::cell::RefCell::new(Vec::new());
    let alone = || {
        let mut other = world.compiler.blank();
        other.take_over(world.compiler.all_objects());
        other.recompile(ROOM, |_, _| None).unwrap();
        other.work()
    };
    let alone = alone();
    let ops = world.compiler.recompile(small, |capacity, error| {
        let CompileError::Full { table, .. } = error;
        asked.borrow_mut().push(*table);
        Some(match table {
            Table::Bitmaps => Capacity { bitmaps: ROOM.bitmaps, ..capacity },
            Table::RowBlocks => Capacity { row_blocks: ROOM.row_blocks, ..capacity },
            Table::Rows => Capacity { rows: ROOM.rows, ..capacity },
            Table::TrieBlocks => Capacity { trie_blocks: ROOM.trie_blocks, ..capacity },
            Table::Classes | Table::Hosts6 | Table::Blocks6 | Table::Names => return None,
        })
    });
    assert!(asked.borrow().len() >= 3, "{asked:?}");
    assert_eq!(world.compiler.work(), alone, "compiled once, whatever was too small");
    world.tables = MemoryTables::new();
    world.tables.fill(&ops.unwrap());
    world.compiler.grace_passed();
    assert!(world.egress(TENANT, "9.9.9.9", 1) && problems(&world).is_empty());
}
