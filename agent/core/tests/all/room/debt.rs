//! Full compilations for a full table: which namespaces are charged, and when closed policies are tried again.

use std::collections::BTreeSet;

use netpold_core::cluster::ObjectKey;
use netpold_core::compile::CompileError;
use netpold_core::model::{Change, Key, Selector};
use netpold_core::ops::{Capacity, Table};
use netpold_testkit::objects::{block, policy, rule, select, tcp};
use netpold_testkit::world::World;

use crate::room::{
    OTHER, ROOM, TENANT, VICTIM, bystanders, closed, install, isolated, names_by_the_pod,
    namespaces,
};

/// A second compiler next to the world's, which starts over with tables of this size.
fn successor(world: &World, capacity: Capacity) -> World {
    let mut other = World::new([]);
    other.compiler = world.compiler.blank();
    other.compiler.take_over(world.compiler.all_objects());
    install(&mut other, capacity);
    other.compiler.defer(Some(BTreeSet::new()));
    other
}

/// Namespaces without credit, or one.
fn held(names: &[&str]) -> Option<BTreeSet<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

/// An attempt to open the closed policies compiles everything, so it is another compiler's work.
#[test]
fn a_namespace_in_debt_waits_to_open_what_was_closed() {
    const CAPACITY: Capacity = Capacity { bitmaps: 200, ..ROOM };
    let mut world = World::new([]);
    let objects = bystanders().into_iter().chain(names_by_the_pod(6, 20));
    objects.for_each(|change| world.compiler.ingest(change));
    install(&mut world, CAPACITY);
    assert!(closed(&world).contains(&Key::new("tenant", "app5")));
    assert_eq!(world.compiler.left_out(), BTreeSet::from(["tenant".to_owned()]));
    world.compiler.defer(held(&["tenant"]));
    // The other policies would fit now.
    world.apply((0..3).map(|n| Change::PolicyGone(Key::new("tenant", format!("app{n}")))));
    let is_open = |world: &World| world.egress(TENANT + 5, "10.2.0.3", 1000 + 3 * 21 + 5);
    assert!(!is_open(&world));
    assert_eq!(world.compiler.late(), BTreeSet::from(["tenant".to_owned()]), "to be tried later");
    // Changes by others do not open the policies earlier, and no update has to find out whether they fit.
    let rules = vec![rule(Some(vec![block("198.51.100.0/24", &[])]), Some(vec![tcp(81)]))];
    world.apply([Change::Policy(policy("other", "own", Selector::default(), None, Some(rules)))]);
    world.compiler.defer(held(&[]));
    world.apply([]);
    assert_eq!(world.compiler.left_out(), BTreeSet::from(["tenant".to_owned()]));
    assert!(!is_open(&world));
    let world = successor(&world, CAPACITY);
    assert!(world.compiler.left_out().is_empty() && world.compiler.late().is_empty());
    assert!(is_open(&world));
}

/// A policy with `sets` sets of ports of its own.
fn with_sets(of: &str, number: u32, sets: u32) -> [Change; 3] {
    let nth = |n: u32| {
        // One port alone needs no bitmap.
        let port = (1000 + 4 * (sets * number + n)) as u16;
        let peer = block(&format!("203.0.113.{n}/32"), &[]);
        rule(Some(vec![peer]), Some(vec![tcp(port), tcp(port + 2)]))
    };
    isolated(of, number, (0..sets).map(nth).collect())
}

/// Installs two namespaces with equally many port sets, which together fill the table.
fn rivals(capacity: Capacity) -> World {
    let mut world = World::new([]);
    let rivals = (0..20).flat_map(|n| {
        with_sets("tenant", n, 10).into_iter().chain(with_sets("rival", 100 + n, 10))
    });
    bystanders().into_iter().chain(rivals).for_each(|change| world.compiler.ingest(change));
    assert_eq!(install(&mut world, capacity), [Table::Bitmaps]);
    world.compiler.defer(held(&[]));
    world
}

/// Writes changes that do not fit; returns the namespaces to charge.
fn overflow(world: &mut World, capacity: Capacity, changes: Vec<Change>) -> Vec<String> {
    changes.into_iter().for_each(|change| world.compiler.ingest(change));
    let refused = world.compiler.update().map(|ops| ops.len());
    let CompileError::Full { table, .. } = refused.unwrap_err();
    install(world, capacity);
    world.compiler.take_causes(Some(table)).into_keys().collect()
}

#[test]
fn who_grows_pays_for_what_a_full_table_costs() {
    const CAPACITY: Capacity = Capacity { bitmaps: 300, ..ROOM };
    let mut world = rivals(CAPACITY);
    // Nobody has changed anything yet.
    assert!(world.compiler.take_causes(None).is_empty());
    assert_eq!(namespaces(&closed(&world)), BTreeSet::from(["rival", "tenant"]));
    // Namespaces with closed policies are not charged for another namespace's growth; that one is charged, although it
    // has closed policies, too.
    for round in 0..3 {
        let more = (0..5).flat_map(|n| with_sets("tenant", 20 + 5 * round + n, 10)).collect();
        assert_eq!(overflow(&mut world, CAPACITY, more), ["tenant"]);
    }
    assert!(world.egress(VICTIM, "198.51.100.7", 443));
}

/// A tenant that fills a table, frees room, and fills it again, next to a larger tenant that never changes.
#[test]
fn who_fills_a_table_by_turns_pays_each_time() {
    const CAPACITY: Capacity = Capacity { bitmaps: 300, ..ROOM };
    let mut world = World::new([]);
    let steady = (0..20).flat_map(|n| with_sets("steady", 100 + n, 9));
    bystanders().into_iter().chain(steady).for_each(|change| world.compiler.ingest(change));
    assert_eq!(install(&mut world, CAPACITY), []);
    for _ in 0..3 {
        // The larger namespace is in debt, for large policies of its own.
        world.compiler.defer(held(&["steady"]));
        let turn = (0..14).flat_map(|n| with_sets("tenant", n, 10)).collect();
        assert_eq!(overflow(&mut world, CAPACITY, turn), ["tenant"]);
        let problems = world.compiler.problems();
        assert!(namespaces(&closed(&world)).contains("steady"), "it uses most");
        assert!(!problems.iter().any(|it| it.to_string().contains("again and again")));
        world.apply((0..14).map(|n| Change::PolicyGone(Key::new("tenant", format!("app{n}")))));
        assert!(world.compiler.has_room_again());
        world = successor(&world, CAPACITY);
        assert!(closed(&world).is_empty());
    }
}

/// Closed policies of other namespaces open as soon as a barred namespace has made room.
#[test]
fn a_barred_namespace_makes_room_for_the_others() {
    const CAPACITY: Capacity = Capacity { bitmaps: 300, ..ROOM };
    let mut world = rivals(CAPACITY);
    world.compiler.defer(held(&["tenant"]));
    let more = (0..5).flat_map(|n| with_sets("tenant", 20 + n, 10)).collect();
    assert_eq!(overflow(&mut world, CAPACITY, more), ["tenant"]);
    assert!(world.compiler.has_room_again());
    let world = successor(&world, CAPACITY);
    assert_eq!(namespaces(&closed(&world)), BTreeSet::from(["tenant"]));
    assert!(!world.compiler.has_room_again(), "until the debt ends");
    // A compiler that was running meanwhile takes over the closed policies.
    let mut other = rivals(CAPACITY);
    other.compiler.take_over(world.compiler.changed_objects([]));
    other.apply([]);
    assert!(namespaces(&closed(&other)).contains("tenant"));
}

#[test]
fn who_fills_a_table_again_in_debt_is_closed_until_the_debt_ends() {
    const CAPACITY: Capacity = Capacity { bitmaps: 300, ..ROOM };
    let mut world = rivals(CAPACITY);
    world.compiler.take_causes(None);
    world.compiler.defer(held(&["rival", "tenant"]));
    let open = |world: &World, first: u32| {
        let port = |n: u32| (1000 + 4 * (10 * n + 3)) as u16;
        (first..first + 20).filter(|n| world.egress(TENANT + n, "203.0.113.3", port(*n))).count()
    };
    assert!(open(&world, 0) > 5);
    let more = |first: u32| (0..5).flat_map(move |n| with_sets("tenant", first + n, 10));
    assert_eq!(overflow(&mut world, CAPACITY, more(20).collect()), ["tenant"]);
    assert_eq!(open(&world, 0), 0);
    assert!(open(&world, 100) > 5, "the other one, in debt or not, keeps what it had");
    let problems = world.compiler.problems();
    assert!(problems.iter().any(|it| it.to_string().contains("again and again")), "{problems:?}");
    // Further policies of the namespace cause no full compilation.
    for first in 25..40 {
        world.apply(more(first));
    }
    assert!(world.egress(VICTIM, "198.51.100.7", 443));
    // Another compiler that starts meanwhile keeps its policies closed.
    let mut world = successor(&world, CAPACITY);
    assert_eq!(open(&world, 0), 0);
    world.compiler.defer(held(&["tenant"]));
    let mut world = successor(&world, CAPACITY);
    assert_eq!(open(&world, 0), 0);
    assert_eq!(world.compiler.late(), BTreeSet::from(["tenant".to_owned()]), "to be tried later");
    world.compiler.defer(held(&[]));
    let world = successor(&world, CAPACITY);
    let all = [0, 20].map(|first| open(&world, first));
    assert!(all.into_iter().sum::<usize>() > 5, "{all:?}");
}

/// An update that has room afterwards, but not for both states, is repeated with new tables.
#[test]
fn who_edits_too_much_at_once_pays_for_new_tables() {
    const CAPACITY: Capacity = Capacity { bitmaps: 300, ..ROOM };
    let mut world = World::new([]);
    let policies = (0..20).flat_map(|n| with_sets("tenant", n, 10));
    bystanders().into_iter().chain(policies).for_each(|change| world.compiler.ingest(change));
    assert_eq!(install(&mut world, CAPACITY), []);
    world.compiler.defer(held(&[]));
    let edited = |first: u32| {
        let policy = |n: u32| {
            let [.., policy] = with_sets("tenant", first + n, 10);
            let Change::Policy(mut policy) = policy else { unreachable!() };
            let name = format!("app{n}");
            policy.key = Key::new("tenant", name.clone());
            policy.pod_selector = select(&[("app", &name)]);
            Change::Policy(policy)
        };
        (0..20).map(policy).collect()
    };
    let open = |world: &World| world.egress(VICTIM, "198.51.100.7", 443);
    assert_eq!(overflow(&mut world, CAPACITY, edited(100)), ["tenant"]);
    assert!(closed(&world).is_empty() && open(&world), "{:?}", closed(&world));
    world.compiler.defer(held(&["tenant"]));
    assert_eq!(overflow(&mut world, CAPACITY, edited(200)), ["tenant"]);
    world.apply([]);
    assert_eq!((closed(&world).len(), open(&world)), (20, true), "in debt, so closed");
    world.apply(edited(300));
    // Larger tables are nobody's fault.
    world.compiler.defer(held(&[]));
    let mut world = successor(&world, CAPACITY);
    let larger = Capacity { bitmaps: 600, ..ROOM };
    let more = (0..15).flat_map(|n| with_sets("tenant", 20 + n, 10));
    edited(400).into_iter().chain(more).for_each(|change| world.compiler.ingest(change));
    assert!(world.compiler.update().is_err());
    world.compiler.recompile(CAPACITY, |_, _| Some(larger)).unwrap();
    assert!(world.compiler.take_causes(None).is_empty());
}

#[test]
fn room_that_comes_back_is_noticed_whoever_made_it() {
    const CAPACITY: Capacity = Capacity { bitmaps: 300, ..ROOM };
    let mut world = World::new([]);
    let small = (0..10).flat_map(|n| with_sets("small", 100 + n, 8));
    let tenant = (0..20).flat_map(|n| with_sets("tenant", n, 12));
    let objects = bystanders().into_iter().chain(small).chain(tenant);
    objects.for_each(|change| world.compiler.ingest(change));
    install(&mut world, CAPACITY);
    world.compiler.defer(held(&[]));
    let gone = closed(&world);
    assert_eq!(namespaces(&gone), BTreeSet::from(["tenant"]));
    assert!(!world.compiler.has_room_again() && world.compiler.late().is_empty());
    // A namespace that uses much less, and had nothing closed.
    world.apply((0..10).map(|n| Change::PolicyGone(Key::new("small", format!("app{}", 100 + n)))));
    assert!(world.compiler.has_room_again());
    assert_eq!(closed(&world), gone, "not by this compiler");
    let world = successor(&world, CAPACITY);
    assert!(closed(&world).is_empty() && !world.compiler.has_room_again());
}

/// A compiler that catches up with a namespace with closed policies.
#[test]
fn edits_of_what_is_closed_do_not_hold_a_successor_up() {
    const CAPACITY: Capacity = Capacity { bitmaps: 300, ..ROOM };
    let mut world = rivals(CAPACITY);
    let mut other = successor(&world, CAPACITY);
    let gone = closed(&other);
    assert!(gone.iter().any(|key| key.namespace == "tenant"));
    for number in 0..5 {
        let changes: Vec<Change> = gone
            .iter()
            .filter(|key| key.namespace == "tenant")
            .flat_map(|key| {
                let number: u32 = key.name.trim_start_matches("app").parse().unwrap();
                let [.., policy] = with_sets("tenant", number, 11 + number % 2);
                [policy]
            })
            .collect();
        let changes = changes.into_iter().skip(number % 2);
        let changed: Vec<Change> = changes.collect();
        let keys: Vec<ObjectKey> = changed.iter().map(ObjectKey::of).collect();
        world.apply(changed);
        other.compiler.take_over(world.compiler.changed_objects(keys));
        let ops = other.compiler.update().unwrap();
        other.tables.fill(&ops);
        other.compiler.grace_passed();
    }
    assert_eq!(closed(&other), gone);
    // Later, another compiler looks for room.
    assert_eq!(other.compiler.late(), BTreeSet::from(["tenant".to_owned()]));
    assert!(other.egress(VICTIM, "198.51.100.7", 443));
}

/// On a node whose tables stay full, each edit would cause a full compilation.
#[test]
fn an_eighth_of_a_table_that_was_full_stays_free() {
    const CAPACITY: Capacity = Capacity { bitmaps: 320, ..ROOM };
    let used = |world: &World| {
        let fill = world.compiler.fill();
        fill.iter().find(|fill| fill.table == Table::Bitmaps).unwrap().used
    };
    let mut world = rivals(CAPACITY);
    assert!(used(&world) > 280);
    let before = closed(&world).len();
    assert!(world.compiler.keep_reserve(Table::Bitmaps));
    assert_eq!(install(&mut world, CAPACITY), []);
    assert!((270..=280).contains(&used(&world)), "{}", used(&world));
    assert!((1..=4).contains(&(closed(&world).len() - before)));
    assert!(!world.compiler.keep_reserve(Table::Bitmaps), "so much is free");
    // Where policies use little of the table, closing them does not help.
    assert!(!world.compiler.keep_reserve(Table::Rows));
    let rows = Capacity { rows: 26, ..CAPACITY };
    let mut world = World::new([]);
    bystanders().into_iter().for_each(|change| world.compiler.ingest(change));
    world.compiler.recompile(Capacity { rows: 3, ..rows }, |_, _| None).unwrap();
    assert!(!world.compiler.keep_reserve(Table::Rows) && closed(&world).is_empty());
}

/// A namespace that fills the rest of a table while a compiler is at work does not keep others' large policies out.
#[test]
fn a_successor_without_room_for_the_latest_changes_is_taken_over() {
    const CAPACITY: Capacity = Capacity { bitmaps: 300, ..ROOM };
    let mut world = rivals(CAPACITY);
    // Large, so that only another compiler brings it into force.
    let peers = (0..5000).map(|n| block(&format!("11.{}.{}.1/32", n / 200, n % 200), &[]));
    let rules = vec![rule(Some(peers.collect()), Some(vec![tcp(7)]))];
    let large = policy("other", "own", Selector::default(), None, Some(rules));
    world.apply([Change::Policy(large)]);
    let is_in_force = |world: &World| world.egress(OTHER, "11.0.5.1", 7);
    assert!(!is_in_force(&world));
    let mut other = successor(&world, CAPACITY);
    other.compiler.take_causes(None);
    let more: Vec<Change> = (0..8).flat_map(|n| with_sets("tenant", 20 + n, 10)).collect();
    let changed: Vec<ObjectKey> = more.iter().map(ObjectKey::of).collect();
    more.into_iter().for_each(|change| world.compiler.ingest(change));
    other.compiler.take_over(world.compiler.changed_objects(changed));
    assert_eq!(overflow(&mut other, CAPACITY, Vec::new()), ["tenant"]);
    assert!(is_in_force(&other) && other.egress(VICTIM, "198.51.100.7", 443));
}
