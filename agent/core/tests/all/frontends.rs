//! Services with too many addresses are reported, and cost no other tenant its policies.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netpold_core::budget::NAMESPACE_FRONTENDS;
use netpold_core::compile::Problem;
use netpold_core::model::{Change, Key, Selector, Service};
use netpold_core::ops::Table;
use netpold_ebpf::layout::CLASS_TRANSLATED;
use netpold_testkit::objects::{
    self, NODE, block, interface, ip, namespace, node, pod, pods, policy, rule, select, tcp,
};
use netpold_testkit::world::World;

const VICTIM: u32 = 1;
const LIMIT: u32 = NAMESPACE_FRONTENDS as u32;

/// A pod that may send to a block, at TCP 443, and to pods `app=good`, at TCP 8080.
fn victim() -> Vec<Change> {
    let out = vec![
        rule(Some(vec![block("198.51.100.0/24", &[])]), Some(vec![tcp(443)])),
        rule(Some(vec![pods(None, select(&[("app", "good")]))]), Some(vec![tcp(8080)])),
    ];
    let far = |name: &str, app, address| {
        let mut pod = pod("victim", name, &[("app", app)], &[address]);
        pod.node = "elsewhere".into();
        Change::Pod(pod)
    };
    vec![
        Change::Node(node(NODE, &["192.0.2.1"])),
        Change::Node(node("elsewhere", &["192.0.2.2"])),
        Change::Namespace(namespace("victim", &[])),
        Change::Namespace(namespace("tenant", &[])),
        Change::Pod(pod("victim", "p", &[], &["10.0.0.1"])),
        Change::Interface(interface(VICTIM, &["10.0.0.1"])),
        far("good", "good", "20.0.0.5"),
        far("bad", "bad", "20.0.0.6"),
        Change::Policy(policy("victim", "out", Selector::default(), None, Some(out))),
    ]
}

/// A Service of the tenant with this many external addresses from the `first` on, each `apart` from the last.
fn service(name: &str, count: u32, first: u32, apart: u32) -> Service {
    let mut service = objects::service(("tenant", name), &["10.96.0.9"], &[("", 80, None)]);
    let all = (0..count).map(|n| IpAddr::V4(Ipv4Addr::from_bits(first + n * apart)));
    service.addresses.extend(all);
    service.addresses.sort_unstable();
    service
}

fn is_marked(world: &World, address: &str) -> bool {
    world.tables.class(ip(address)) & CLASS_TRANSLATED != 0
}

fn used(world: &World, table: Table) -> u32 {
    world.compiler.fill().iter().find(|fill| fill.table == table).unwrap().used
}

fn reported(world: &World) -> Vec<String> {
    let of = |problem: Problem| {
        let text = problem.to_string();
        if let Problem::TooManyFrontends { namespace } = problem { namespace } else { text }
    };
    world.compiler.problems().into_iter().map(of).collect()
}

/// The victim's policy is in force.
fn is_intact(world: &World) -> bool {
    let allowed = [("198.51.100.7", 443), ("20.0.0.5", 8080)];
    let denied = [("198.51.100.7", 80), ("20.0.0.6", 8080), ("20.0.0.7", 80), ("20.0.0.5", 80)];
    allowed.into_iter().all(|(address, port)| world.egress(VICTIM, address, port))
        && !denied.into_iter().any(|(address, port)| world.egress(VICTIM, address, port))
}

#[test]
fn services_with_too_many_addresses_close_no_policies() {
    let mut world = World::new(victim());
    let blocks = used(&world, Table::TrieBlocks);
    assert!(is_intact(&world) && !is_marked(&world, "20.0.0.7"));
    let huge = |n: u32| service(&format!("s{n}"), 90_000, 0x1400_0000 + n * 90_000 * 256, 256);
    world.apply((0..3).map(|n| Change::Service(huge(n))));
    assert!(is_intact(&world));
    assert_eq!(reported(&world), ["tenant"]);
    // The addresses themselves, and their networks: also pods in them, and blocks of rules.
    for address in ["20.0.0.0", "20.0.1.0", "24.1.0.0", "20.0.0.7", "20.0.0.5", "20.0.0.6"] {
        assert!(is_marked(&world, address), "{address}");
    }
    assert!(!is_marked(&world, "198.51.100.7") && !is_marked(&world, "10.0.0.1"));
    assert!(is_marked(&world, "10.96.0.9"), "cluster addresses keep their entries");
    assert!(used(&world, Table::TrieBlocks) <= blocks + 2);
    // Each root word of five /8, and the cluster address.
    for _ in 0..3 {
        let gone = world.apply([Change::ServiceGone(Key::new("tenant", "s0"))]);
        let again = world.apply([Change::Service(huge(0))]);
        assert!(gone < 2000 && again < 2000, "{gone}, {again} operations");
    }
    let all = (0..3).map(|n| Change::ServiceGone(Key::new("tenant", format!("s{n}"))));
    world.apply(all);
    assert!(is_intact(&world) && reported(&world).is_empty());
    assert!(!is_marked(&world, "20.0.0.7") && !is_marked(&world, "20.0.0.5"));
    assert_eq!(used(&world, Table::TrieBlocks), blocks);
}

#[test]
fn many_services_of_a_namespace_take_no_more_entries_than_it_may_have() {
    let mut world = World::new(victim());
    let blocks = used(&world, Table::TrieBlocks);
    let each = |n: u32| service(&format!("s{n:03}"), 1000, 0x1e00_0000 + n * 1000 * 256, 256);
    world.apply((0..100).map(|n| Change::Service(each(n))));
    assert!(is_intact(&world));
    assert_eq!(reported(&world), ["tenant"]);
    assert!(used(&world, Table::TrieBlocks) <= blocks + 2 * LIMIT + 2);
    let six = |n: u32| {
        let nth =
            |m: u32| IpAddr::V6(Ipv6Addr::from_bits(u128::from(0x2001_0000 + n * 1000 + m) << 96));
        let mut service = objects::service(("tenant", &format!("t{n:03}")), &["fd96::1"], &[]);
        service.addresses.extend((0..1000).map(nth));
        service.addresses.sort_unstable();
        service
    };
    world.apply((0..20).map(|n| Change::Service(six(n))));
    assert!(used(&world, Table::Hosts6) <= LIMIT + 2 && used(&world, Table::Blocks6) < 10);
    assert!(is_marked(&world, "2001:9::") && is_intact(&world));
}

/// The Services with entries of their own follow from the objects, whatever their order.
#[test]
fn services_beyond_the_limit_do_not_depend_on_the_order() {
    let at = |n: u32| 0x1400_0000 + (n << 20);
    let [a, b, c] = [("a", 600, 1), ("b", 600, 2), ("c", 400, 3)]
        .map(|(name, count, n)| Change::Service(service(name, count, at(n), 1)));
    let slice = |name: &str| {
        let slice = objects::slice(("tenant", name), name, &["20.0.0.5"], &[("", 8080)]);
        Change::EndpointSlice(slice)
    };
    let world = |changes: &[&Change]| {
        let mut world = World::new(victim().into_iter().chain(["a", "b", "c"].map(slice)));
        for change in changes {
            world.apply([(*change).clone()]);
        }
        world
    };
    let of = |world: &World| {
        ["20.16.0.9", "20.32.0.9", "20.48.0.9", "20.32.99.1"]
            .map(|at| (is_marked(world, at), world.egress(VICTIM, at, 80)))
    };
    let (own, network) = ((true, true), (true, false));
    let orders: [&[&Change]; 4] = [&[&a, &b, &c], &[&c, &b, &a], &[&b, &a, &c], &[&b, &c, &a, &b]];
    let worlds = orders.map(world);
    for world in &worlds {
        assert_eq!(of(world), [own, network, own, network]);
        assert!(world.compiler.image() == worlds[0].compiler.image());
        assert_eq!(reported(world), ["tenant"]);
    }
    let [mut world, ..] = worlds;
    world.apply([a.removal()]);
    assert_eq!(of(&world), [(false, false), own, own, (false, false)]);
    assert!(reported(&world).is_empty());
}

/// Addresses that have an entry anyway keep their Services' ports.
#[test]
fn addresses_of_nodes_and_of_other_services_count_in_full() {
    let shared = 0x1400_2001;
    let mut large = service("z", LIMIT - 1, 0x1400_2000, 1);
    large.addresses.push(ip("192.0.2.2"));
    large.addresses.sort_unstable();
    let small = service("small", 1, shared, 0);
    let slice = objects::slice(("tenant", "z"), "z", &["20.0.0.5"], &[("", 8080)]);
    let world = World::new(victim().into_iter().chain([
        Change::Service(large),
        Change::Service(small),
        Change::EndpointSlice(slice),
    ]));
    assert_eq!(reported(&world), ["tenant"]);
    for (address, allowed) in [("192.0.2.2", true), ("20.0.32.1", true), ("20.0.32.2", false)] {
        assert!(is_marked(&world, address), "{address}");
        assert_eq!(world.egress(VICTIM, address, 80), allowed, "{address}");
    }
}

/// An address that leads a pod back to itself is marked while no pod is isolated for egress.
#[test]
fn networks_lead_back_to_pods_that_are_isolated_for_ingress_alone() {
    let world = |backend: &str| {
        let closed = policy("victim", "in", Selector::default(), Some(Vec::new()), None);
        let own =
            Service { key: Key::new("victim", "s"), ..service("s", 2 * LIMIT, 0x1400_0000, 1) };
        let slice = objects::slice(("victim", "s"), "s", &[backend], &[("", 8080)]);
        World::new(victim().into_iter().chain([
            Change::PolicyGone(Key::new("victim", "out")),
            Change::Policy(closed),
            Change::Service(own),
            Change::EndpointSlice(slice),
        ]))
    };
    assert!(is_marked(&world("10.0.0.1"), "20.0.0.7"));
    assert!(!is_marked(&world("20.0.0.5"), "20.0.0.7"));
}

/// While the network has the same class, the tables have no entry for the address.
#[test]
fn an_address_stays_marked_when_the_network_around_it_ends() {
    let (own, large) = (service("own", 1, 0x1400_2000, 0), service("s", 2 * LIMIT, 0x1400_0000, 1));
    let own = Service { ports: Vec::new(), ..own };
    let mut world = World::new(victim());
    world.apply([Change::Service(large.clone()), Change::Service(own)]);
    assert!(is_marked(&world, "20.0.32.0") && is_marked(&world, "20.0.32.1"));
    world.apply([Change::ServiceGone(large.key.clone())]);
    assert!(is_marked(&world, "20.0.32.0") && !is_marked(&world, "20.0.32.1"));
    world.apply([Change::Service(large)]);
    assert!(is_marked(&world, "20.0.32.0") && is_marked(&world, "20.0.32.1"));
}
