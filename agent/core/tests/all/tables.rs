//! Operations of an update: as few as possible, within capacity, numbers reused only after grace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netpold_core::cluster::ObjectKey;
use netpold_core::compile::{CompileError, Compiler, Problem};
use netpold_core::model::{
    Bound, Change, Interface, InterfaceOwner, Key, Pod, Policy, Selector, Standing,
};
use netpold_core::ops::Table;
use netpold_core::ops::{Capacity, Op};
use netpold_core::options::{CheckSource, NewPods, ObserveFlows, Options, SourceExempt};
use netpold_ebpf::layout::{
    ENDPOINT_PROBES, EP_CHECK_SOURCE, EP_OBSERVE, ROW_NOT_ISOLATED, endpoint_slot,
};
use netpold_testkit::memory::MemoryTables;
use netpold_testkit::objects::{
    NODE, interface, ip, namespace, pod, pods, policy, rule, select, tcp,
};
use netpold_testkit::world::World;

/// Pods `a/p1` to `a/p4` on interfaces 1 to 4, and `a/far1` to `a/far9` on another node.
fn pods_of_two_nodes() -> Vec<Change> {
    let mut changes = vec![Change::Namespace(namespace("a", &[]))];
    for n in 1..=4u32 {
        let addresses = [format!("10.0.0.{n}"), format!("fd00::{n}")];
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        changes.push(Change::Pod(pod("a", &format!("p{n}"), &[("app", "local")], &addresses)));
        changes.push(Change::Interface(interface(n, &addresses)));
    }
    changes.extend((1..=9).map(|n| Change::Pod(far(n, "x"))));
    changes
}

fn far(n: u32, app: &str) -> Pod {
    let addresses = [format!("10.1.0.{n}"), format!("fd00:1::{n}")];
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let mut pod = pod("a", &format!("far{n}"), &[("app", app)], &addresses);
    pod.node = "elsewhere".into();
    pod
}

fn allow_from(app: &str, port: u16) -> Policy {
    let peer = pods(None, select(&[("app", app)]));
    let rules = vec![rule(Some(vec![peer]), Some(vec![tcp(port)]))];
    policy("a", "allow", Selector::default(), Some(rules), None)
}

fn world() -> World {
    let policy = Change::Policy(allow_from("x", 80));
    World::new(pods_of_two_nodes().into_iter().chain([policy]))
}

#[test]
fn equal_rules_share_a_row() {
    let world = world();
    let rows: BTreeSet<u64> = world.tables.endpoints.values().map(|e| e.rows).collect();
    assert_eq!(rows.len(), 1);
    let fill = world.compiler.fill();
    let used = |table| fill.iter().find(|fill| fill.table == table).unwrap().used;
    assert_eq!(used(Table::Rows), 2, "number 0 and the shared one");
    assert_eq!(used(Table::Hosts6), 9);
    assert_eq!(used(Table::TrieBlocks), 2);
}

#[test]
fn a_pod_writes_its_addresses_only() {
    let mut world = world();
    // The classes for "x" and for no set exist, so two words change: one per family.
    assert_eq!(world.apply([Change::Pod(far(3, "y"))]), 2);
    assert_eq!(world.apply([Change::Pod(far(3, "x"))]), 2);
    assert_eq!(world.apply([Change::Pod(far(10, "x"))]), 2);
    assert_eq!(world.apply([Change::Pod(far(11, "y"))]), 0, "it matches nothing");
    assert_eq!(world.apply([Change::PodGone(far(10, "x").key)]), 2);
    assert_eq!(world.apply([Change::Pod(far(3, "x"))]), 0, "nothing changed");
    // A namespace label that no rule uses.
    assert_eq!(world.apply([Change::Namespace(namespace("a", &[("team", "one")]))]), 0);
}

#[test]
fn a_policy_of_other_pods_writes_nothing() {
    let mut world = world();
    let mut other = allow_from("x", 81);
    other.key.namespace = "b".into();
    assert_eq!(world.apply([Change::Policy(other)]), 0);
    let nobody = policy("a", "nobody", select(&[("app", "nobody")]), Some(vec![]), None);
    assert_eq!(world.apply([Change::Policy(nobody)]), 0);
    let mut same = allow_from("x", 80);
    same.key.name = "same".into();
    assert_eq!(world.apply([Change::Policy(same)]), 0, "the rules are there already");
}

#[test]
fn blocks_that_became_uniform_are_given_back() {
    let mut world = world();
    world.apply([Change::PolicyGone(allow_from("x", 80).key)]);
    for fill in world.compiler.fill() {
        let reserved = match fill.table {
            Table::Classes | Table::Rows | Table::RowBlocks => 1,
            Table::Bitmaps => 2,
            Table::TrieBlocks | Table::Hosts6 | Table::Blocks6 | Table::Names => 0,
        };
        assert_eq!(fill.used, reserved, "{}", fill.table);
    }
}

/// Table and number of the element that an operation fills.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "of the many operations, those that fill elements"
)]
fn filled(op: &Op) -> Option<(&'static str, u32)> {
    match op {
        Op::Bitmap(id, _) => Some(("bitmap", *id)),
        Op::RowBlock(id, _) => Some(("row block", *id)),
        Op::Row(id, _) => Some(("row", *id)),
        Op::TrieBlock(id, _) => Some(("trie block", *id)),
        Op::Endpoint(id, _) => Some(("endpoint", *id)),
        _ => None,
    }
}

#[test]
fn numbers_are_reused_only_after_grace() {
    let mut compiler = Compiler::new(Options { node: NODE.into(), ..Options::default() });
    pods_of_two_nodes().into_iter().for_each(|change| compiler.ingest(change));
    let mut seen = BTreeSet::new();
    let mut highest = 0;
    let mut graces = 0;
    for round in 0..60 {
        compiler.ingest(Change::Policy(allow_from("x", 80 + round)));
        compiler.ingest(Change::Pod(far(9, if round % 2 == 0 { "x" } else { "y" })));
        for op in compiler.update().unwrap() {
            if op == Op::Grace {
                seen.clear();
                graces += 1;
            }
            if let Some((table, number)) = filled(&op) {
                assert!(seen.insert((table, number)), "{table} {number} was filled twice");
                // Slots follow from the interface's index.
                highest = if table == "endpoint" { highest } else { highest.max(number) };
            }
        }
        if round == 30 {
            compiler.grace_passed();
            seen.clear();
        }
    }
    assert!(graces > 50, "updates in close succession wait for packets in flight: {graces}");
    assert!(highest < 20, "numbers that fell free were not used again: {highest}");
}

#[test]
fn a_full_table_refuses_the_update_until_reinstalled() {
    let capacity = Capacity { rows: 3, ..Capacity::default() };
    let options = Options { node: NODE.into(), capacity, ..Options::default() };
    let mut compiler = Compiler::new(options);
    pods_of_two_nodes().into_iter().for_each(|change| compiler.ingest(change));
    compiler.ingest(Change::Policy(allow_from("x", 80)));
    compiler.update().unwrap();
    let ids: BTreeMap<u32, u32> = compiler.endpoints().map(|e| (e.ifindex, e.id)).collect();
    let both = policy("a", "more", Selector::default(), Some(vec![]), Some(vec![]));
    compiler.ingest(Change::Policy(both.clone()));
    compiler.ingest(Change::Policy(allow_from("x", 81)));
    let full = CompileError::Full { table: Table::Rows, needed: 4, capacity: 3 };
    assert_eq!(compiler.update(), Err(full.clone()));
    assert!(matches!(&compiler.problems()[..], [Problem::Refused { .. }]));
    compiler.ingest(Change::Pod(far(9, "y")));
    assert_eq!(compiler.update(), Err(full), "later updates do not slip past it");

    let ops = compiler.recompile(Capacity { rows: 4, ..capacity }, |_, _| None).unwrap();
    let mut tables = MemoryTables::new();
    tables.fill(&ops);
    let see =
        |address| tables.allows(1, netpold_core::model::Direction::Ingress, ip(address), 6, 81);
    assert_eq!((see("10.1.0.1"), see("10.1.0.9")), (Some(true), Some(false)));
    assert_eq!(compiler.endpoints().map(|e| (e.ifindex, e.id)).collect::<BTreeMap<_, _>>(), ids);
    assert!(compiler.problems().is_empty());
}

#[test]
fn endpoint_numbers_are_recognised_and_never_reused() {
    let first = World::new(pods_of_two_nodes());
    let known: BTreeMap<(u32, u64), u32> =
        first.compiler.endpoints().map(|e| ((e.ifindex, e.uid_hash), e.id + 100)).collect();
    let options = Options {
        node: NODE.into(),
        first_endpoint_id: 50,
        known_endpoints: known.clone(),
        ..Options::default()
    };
    let mut compiler = Compiler::new(options);
    pods_of_two_nodes().into_iter().for_each(|change| compiler.ingest(change));
    compiler.update().unwrap();
    compiler.grace_passed();
    for endpoint in compiler.endpoints() {
        assert_eq!(endpoint.id, known[&(endpoint.ifindex, endpoint.uid_hash)]);
    }
    let mut used: BTreeSet<u32> = known.into_values().collect();
    let mut again = interface(1, &["10.0.0.1", "fd00::1"]);
    again.incarnation = 2;
    let mut other = pod("a", "p2", &[("app", "local")], &["10.0.0.2", "fd00::2"]);
    other.uid = "another".into();
    for change in [Change::Interface(again), Change::Pod(other)] {
        compiler.ingest(change);
        let ops = compiler.update().unwrap();
        assert!(matches!(ops[..], [Op::EndpointAddrs(..)]), "{ops:?}");
        let new: Vec<u32> =
            compiler.endpoints().map(|e| e.id).filter(|id| used.insert(*id)).collect();
        assert_eq!(new.len(), 1);
        compiler.grace_passed();
    }
}

#[test]
fn a_changed_address_is_written_beside_the_old_one() {
    let mut world = world();
    let before = *world.tables.endpoint(1).unwrap();
    let addresses = ["10.0.0.1", "10.0.0.77"];
    world.apply([Change::Pod(pod("a", "p1", &[("app", "local")], &addresses))]);
    let after = *world.tables.endpoint(1).unwrap();
    assert_eq!(after.id, before.id);
    for slot in 0..4 {
        let was_valid = before.flags >> slot & 1 != 0;
        assert!(!was_valid || before.addr4[slot] == after.addr4[slot], "slot {slot} was in use");
    }
    let valid = |slot: &usize| after.flags >> slot & 1 != 0;
    let now: BTreeSet<u32> = (0..4).filter(valid).map(|slot| after.addr4[slot]).collect();
    assert_eq!(now, BTreeSet::from([0x0a00_0001, 0x0a00_004d]));
    assert_eq!(after.flags >> 4 & 15, 0, "no IPv6 address is left");
}

#[test]
fn too_many_addresses_deny_everything_where_isolated() {
    let mut world = world();
    let many = ["10.0.0.1", "10.0.0.5", "10.0.0.6", "fd00::1"];
    world.apply([Change::Pod(pod("a", "p1", &[("app", "local")], &many))]);
    assert!(!world.ingress(1, "10.1.0.1", 80) && world.egress(1, "10.1.0.1", 80));
    assert!(world.ingress(2, "10.1.0.1", 80));
    assert!(matches!(&world.compiler.problems()[..], [Problem::TooManyAddresses { .. }]));
}

/// Interface indexes whose first probe is this slot, in ascending order.
fn indexes_of<const N: usize>(slot: u32) -> [u32; N] {
    let mut indexes = (1..).filter(|ifindex| endpoint_slot(*ifindex, 0) == slot);
    std::array::from_fn(|_| indexes.next().unwrap_or_default())
}

fn slot(compiler: &Compiler, ifindex: u32) -> Option<u32> {
    compiler.endpoints().find(|it| it.ifindex == ifindex).and_then(|it| it.slot)
}

#[test]
fn interfaces_beyond_the_probed_slots_are_a_problem() {
    let mut world = World::new(pods_of_two_nodes());
    let sharing: [u32; 6] = indexes_of(100);
    world.apply(sharing.iter().map(|n| Change::Interface(interface(*n, &["10.0.0.3"]))));
    let problems = world.compiler.problems();
    assert!(problems.iter().all(|p| matches!(p, Problem::NoSlot { .. })), "{problems:?}");
    assert_eq!(problems.len(), 2, "there are four slots: {problems:?}");
    world.apply([Change::InterfaceGone(sharing[0])]);
    world.apply([]);
    assert_eq!(world.compiler.problems().len(), 1, "a slot fell free after grace");
}

/// The kernel hands out consecutive indexes, and pods stay for a long time.
#[test]
fn long_lived_pods_leave_slots_for_all_later_indexes() {
    for first in [3, 700, 8000, 65_000, 4_000_000_000] {
        let mut taken = BTreeSet::new();
        for ifindex in first..first + 250 {
            let mut probes = (0..ENDPOINT_PROBES).map(|probe| endpoint_slot(ifindex, probe));
            let free = probes.find(|slot| taken.insert(*slot));
            assert!(free.is_some(), "{ifindex} of the block from {first}");
        }
        for later in first + 250..first + 100_000 {
            let mut probes = (0..ENDPOINT_PROBES).map(|probe| endpoint_slot(later, probe));
            assert!(probes.any(|slot| !taken.contains(&slot)), "{later} after {first}");
        }
    }
}

/// Five interfaces with indexes of one slot, all with one address; the fifth is added after another one is removed.
fn crowded() -> (World, [u32; 5]) {
    let sharing: [u32; 5] = indexes_of(100);
    let mut world = World::new(pods_of_two_nodes());
    let add = |ifindex| Change::Interface(interface(ifindex, &["10.0.0.3"]));
    // In descending order of the indexes.
    for ifindex in [sharing[3], sharing[2], sharing[1], sharing[0]] {
        world.apply([add(ifindex)]);
    }
    world.apply([Change::InterfaceGone(sharing[2])]);
    world.apply([]);
    world.apply([add(sharing[4])]);
    (world, sharing)
}

fn slots(compiler: &Compiler) -> BTreeMap<u32, u32> {
    compiler.endpoints().filter_map(|it| Some((it.ifindex, it.slot?))).collect()
}

/// Programs of both generations read the marks of the other: a slot means the same pod to both.
#[test]
fn slots_are_inherited() {
    let (mut world, sharing) = crowded();
    let before = slots(&world.compiler);
    assert_eq!(before[&sharing[4]], 101, "that of the one that has gone");
    let objects = world.compiler.all_objects();
    // An agent starts.
    let options = Options { node: NODE.into(), known_slots: before.clone(), ..Options::default() };
    let mut started = Compiler::new(options.clone());
    started.take_over(Compiler::new(options).all_objects());
    pods_of_two_nodes().into_iter().for_each(|change| started.ingest(change));
    for ifindex in before.keys().filter(|ifindex| **ifindex > 4) {
        started.ingest(Change::Interface(interface(*ifindex, &["10.0.0.3"])));
    }
    started.update().unwrap();
    assert_eq!(slots(&started), before);
    // Tables become larger on another thread, while an interface is removed and another one is added.
    let mut successor = world.compiler.blank();
    successor.take_over(objects);
    let mut tables = MemoryTables::new();
    let mut update = |successor: &mut Compiler| {
        tables.fill(&successor.update().unwrap());
        successor.grace_passed();
    };
    update(&mut successor);
    assert_eq!(slots(&successor), before);
    world.apply([Change::InterfaceGone(sharing[1])]);
    world.apply([Change::Interface(interface(sharing[2], &["10.0.0.3"]))]);
    // The successor receives the new interface earlier than the tables in force, and the removal of the former one
    // later.
    successor.ingest(Change::Interface(interface(sharing[2], &["10.0.0.3"])));
    update(&mut successor);
    assert_ne!(slots(&successor), slots(&world.compiler));
    successor.take_over(
        world.compiler.changed_objects([sharing[1], sharing[2]].map(ObjectKey::Interface)),
    );
    update(&mut successor);
    // The slot of the former interface is free after grace.
    update(&mut successor);
    assert_eq!(slots(&successor), slots(&world.compiler));
    for (ifindex, slot) in slots(&successor) {
        assert_eq!(tables.slot(slot).ifindex, ifindex);
    }
    assert_eq!(tables.endpoints.len(), slots(&successor).len());
    // Tables are emptied and written again.
    let before = slots(&world.compiler);
    world.compiler.recompile(Capacity::default(), |_, _| None).unwrap();
    assert_eq!(slots(&world.compiler), before);
}

/// A pod that can add interfaces to its namespace can choose their indexes.
#[test]
fn slots_of_further_interfaces_go_to_pods_first_ones() {
    let mut world = World::new(pods_of_two_nodes());
    let second = |index| {
        let pod = Arc::new(pod("a", "p1", &[("app", "local")], &["10.0.0.1", "fd00::1"]));
        let owner = InterfaceOwner::Pod(Bound {
            pod,
            standing: Standing::Listed,
            is_secondary: true,
            station: None,
        });
        Change::Interface(Interface { index, owner, ..Interface::default() })
    };
    let [first, further @ .., last] = indexes_of::<6>(100);
    // All slots in which the first interface can be placed.
    world.apply(further.map(second));
    let slot = |world: &World, index| slot(&world.compiler, index);
    assert!(further.iter().all(|index| slot(&world, *index).is_some()));
    let newcomer = [
        Change::Pod(pod("a", "p5", &[("app", "local")], &["10.0.0.5"])),
        Change::Interface(interface(first, &["10.0.0.5"])),
    ];
    newcomer.into_iter().for_each(|change| world.compiler.ingest(change));
    let ops = world.update();
    let gone = ops.iter().position(|op| matches!(op, Op::EndpointGone(100))).unwrap();
    let new = ops.iter().position(|op| matches!(op, Op::Endpoint(100, _))).unwrap();
    let waits = ops[gone..new].iter().any(|op| matches!(op, Op::Grace));
    assert!(waits, "packets that carry the number may be on their way");
    assert_eq!(slot(&world, first), Some(100));
    assert_eq!(slot(&world, further[0]), None, "it is closed");
    // Another secondary interface takes no slot of a primary one.
    world.apply([second(last)]);
    assert_eq!((slot(&world, first), slot(&world, last)), (Some(100), None));
}

/// With `--new-pods deny`, interfaces whose pod is unknown to the first agent are open, and stay open for the next.
#[test]
fn an_interface_is_familiar_if_the_earlier_agent_left_it_open() {
    let denied = (4, netpold_core::compile::WAITING);
    for (judged, known, expected) in [
        (None, vec![], [false; 4]),
        (Some(vec![1, 2, 4]), vec![((2, 7), 20), (denied, 21)], [false, true, true, true]),
        (Some(vec![]), vec![], [true; 4]),
    ] {
        let options = Options {
            node: NODE.into(),
            new_pods: NewPods::Deny,
            known_endpoints: known.into_iter().collect(),
            judged: judged.map(|judged: Vec<u32>| judged.into_iter().collect()),
            ..Options::default()
        };
        let mut world = World { compiler: Compiler::new(options), tables: MemoryTables::new() };
        world.apply((1..=4).map(|n| Change::Interface(interface(n, &["10.0.0.1"]))));
        let waiting = |n: u32| world.compiler.endpoints().any(|it| it.ifindex == n && it.waiting);
        assert_eq!([1, 2, 3, 4].map(waiting), expected);
        world.apply([Change::Interface(interface(5, &["10.0.0.1"]))]);
        assert!(world.compiler.endpoints().any(|it| it.ifindex == 5 && it.waiting), "it is new");
    }
}

#[test]
fn source_check_by_option() {
    let deny = policy("a", "deny", select(&[("app", "db")]), Some(vec![]), None);
    for (check, isolated, free) in [
        (CheckSource::Off, false, false),
        (CheckSource::Isolated, true, false),
        (CheckSource::All, true, true),
    ] {
        let options = Options { node: NODE.into(), check_source: check, ..Options::default() };
        let mut world = World { compiler: Compiler::new(options), tables: MemoryTables::new() };
        world.apply([
            Change::Pod(pod("a", "db", &[("app", "db")], &["10.0.0.1"])),
            Change::Pod(pod("a", "web", &[], &["10.0.0.2"])),
            Change::Interface(interface(1, &["10.0.0.1"])),
            Change::Interface(interface(2, &["10.0.0.2"])),
            Change::Policy(deny.clone()),
        ]);
        let checks = |ifindex| world.tables.endpoint(ifindex).unwrap().flags & EP_CHECK_SOURCE != 0;
        assert_eq!((checks(1), checks(2)), (isolated, free), "{check:?}");
    }
}

/// The label of a namespace enables records of its pods' flows, also if the label is set or removed while pods run; the
/// option overrides the label.
#[test]
fn flows_are_observed_by_label_or_option() {
    let deny = policy("a", "deny", select(&[("app", "db")]), Some(vec![]), None);
    let label = [("netpold.io/observe", "flows")];
    for (observe_flows, labelled, other) in [
        (ObserveFlows::None, false, false),
        (ObserveFlows::Labelled, true, false),
        (ObserveFlows::All, true, true),
    ] {
        let options = Options { node: NODE.into(), observe_flows, ..Options::default() };
        let mut world = World { compiler: Compiler::new(options), tables: MemoryTables::new() };
        world.apply([
            Change::Namespace(namespace("a", &label)),
            Change::Namespace(namespace("b", &[("netpold.io/observe", "drops")])),
            Change::Pod(pod("a", "db", &[("app", "db")], &["10.0.0.1"])),
            Change::Pod(pod("a", "web", &[], &["10.0.0.2"])),
            Change::Pod(pod("b", "web", &[], &["10.0.0.3"])),
            Change::Interface(interface(1, &["10.0.0.1"])),
            Change::Interface(interface(2, &["10.0.0.2"])),
            Change::Interface(interface(3, &["10.0.0.3"])),
            Change::Policy(deny.clone()),
        ]);
        let flags = |world: &World| {
            [1, 2, 3].map(|i| world.tables.endpoint(i).unwrap().flags & EP_OBSERVE != 0)
        };
        let observed = |world: &World| {
            let infos = world.compiler.endpoints().filter(|info| info.observed);
            infos.map(|info| info.ifindex).collect::<Vec<_>>()
        };
        assert_eq!(flags(&world), [labelled, labelled, other], "{observe_flows:?}");
        let rows = |world: &World| [1, 2, 3].map(|i| world.tables.endpoint(i).unwrap().rows);
        let before = rows(&world);
        assert!(before[0] != 0 && before[1..] == [0; 2], "one pod is isolated");
        let of_free: Vec<u32> = [(2, labelled), (3, other)]
            .into_iter()
            .filter_map(|(ifindex, is)| is.then_some(ifindex))
            .collect();
        assert_eq!(observed(&world), of_free, "{observe_flows:?}: only pods without policy");
        // The label moves to the other namespace.
        world.apply([
            Change::Namespace(namespace("a", &[])),
            Change::Namespace(namespace("b", &label)),
        ]);
        assert_eq!(flags(&world), [other, other, labelled], "{observe_flows:?}: relabelled");
        assert_eq!(rows(&world), before, "enforcement is the same");
    }
}

/// Pods that opt out of the source check are exempt if the operator lists their namespace; pods with an address in a
/// listed block are exempt too. Nothing else exempts a pod.
#[test]
fn who_is_exempt_from_the_source_check() {
    let blocks = vec!["10.0.9.0/24".parse().unwrap()];
    let source_exempt = SourceExempt { namespaces: ["vpn".to_owned()].into(), blocks };
    let options = Options { node: NODE.into(), source_exempt, ..Options::default() };
    let mut world = World { compiler: Compiler::new(options), tables: MemoryTables::new() };
    let asking = |pod: Pod| Pod { foreign_sources: true, ..pod };
    let pods = [
        (asking(pod("vpn", "gateway", &[], &["10.0.0.1"])), false),
        (pod("vpn", "web", &[], &["10.0.0.2"]), true),
        (asking(pod("a", "liar", &[], &["10.0.0.3"])), true),
        (pod("a", "machine", &[], &["10.0.9.4"]), false),
        (pod("a", "many", &[], &["10.0.0.5", "10.0.0.6", "10.0.0.7"]), true),
    ];
    for (index, (pod, _)) in (1..).zip(&pods) {
        let address = pod.addresses[0].to_string();
        world.apply([Change::Pod(pod.clone()), Change::Interface(interface(index, &[&address]))]);
    }
    let checks = |world: &World, i| world.tables.endpoint(i).unwrap().flags & EP_CHECK_SOURCE != 0;
    for (index, (pod, expected)) in (1..).zip(&pods) {
        assert_eq!(checks(&world, index), *expected, "{}", pod.key);
    }
    let of = |name| Key::new("a", name);
    let expected = [
        Problem::SourceNotExempt { pod: of("liar") },
        Problem::TooManyAddresses { pod: of("many") },
    ];
    assert_eq!(world.compiler.problems(), expected);
    // The annotation is removed and added again while the pod runs.
    world.apply([Change::Pod(pod("vpn", "gateway", &[], &["10.0.0.1"]))]);
    assert!(checks(&world, 1));
    world.apply([Change::Pod(asking(pod("vpn", "gateway", &[], &["10.0.0.1"])))]);
    assert!(!checks(&world, 1));
}

#[test]
fn an_isolated_direction_never_has_row_zero() {
    let world = world();
    for endpoint in world.tables.endpoints.values() {
        assert_ne!(endpoint.rows as u32, ROW_NOT_ISOLATED);
        assert_eq!((endpoint.rows >> 32) as u32, ROW_NOT_ISOLATED);
    }
}
