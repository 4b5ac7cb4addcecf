//! EndpointSlices beyond their limits: their Services grant nothing, and no other namespace notices.

use std::net::{IpAddr, Ipv4Addr};

use netpold_core::budget::{NAMESPACE_BACKENDS, SLICE_ADDRESSES, SLICE_PORTS};
use netpold_core::compile::Problem;
use netpold_core::model::{Action, Change, Key, Protocol, Selector, SlicePort, Tier};
use netpold_ebpf::layout::CLASS_TRANSLATED;
use netpold_testkit::objects::{
    self, NODE, block, cluster_policy, cluster_rule, interface, ip, namespace, node, pod, pods,
    policy, rule, select, tcp,
};
use netpold_testkit::world::World;

const CLIENT: u32 = 1;
/// Addresses of the tenant's Services `a`, `b` and `c`, and of the other's.
const FRONTENDS: [&str; 4] = ["10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4"];

/// A pod that may reach TCP 8080 of pods `app=good`, which back three Services of a tenant and one of another namespace.
fn objects() -> Vec<Change> {
    let peers = Some(vec![pods(Some(Selector::default()), select(&[("app", "good")]))]);
    let out = vec![rule(peers, Some(vec![tcp(8080)]))];
    let mut good = pod("tenant", "good", &[("app", "good")], &["10.0.1.1"]);
    good.node = "elsewhere".into();
    let service = |namespace, name, address| {
        let port = ("", 80, (name == "a").then_some(30_080));
        Change::Service(objects::service((namespace, name), &[address], &[port]))
    };
    vec![
        Change::Node(node(NODE, &["192.0.2.1"])),
        Change::Node(node("elsewhere", &["192.0.2.2"])),
        Change::Namespace(namespace("tenant", &[])),
        Change::Pod(pod("client", "p", &[], &["10.0.0.1"])),
        Change::Interface(interface(CLIENT, &["10.0.0.1"])),
        Change::Pod(good),
        Change::Policy(policy("client", "out", Selector::default(), None, Some(out))),
        service("tenant", "a", FRONTENDS[0]),
        service("tenant", "b", FRONTENDS[1]),
        service("tenant", "c", FRONTENDS[2]),
        service("other", "d", FRONTENDS[3]),
    ]
}

/// A slice with the good pod and further addresses.
fn slice(namespace: &str, service: &str, name: &str, addresses: usize, ports: usize) -> Change {
    let mut slice = objects::slice((namespace, name), service, &["10.0.1.1"], &[("", 8080)]);
    let further = |n| IpAddr::V4(Ipv4Addr::from_bits(0x1400_0000 + n as u32));
    slice.addresses.extend((1..addresses).map(further));
    slice.addresses.sort_unstable();
    let further = |n| SlicePort { name: format!("p{n}"), protocol: Protocol::Tcp, port: 9000 };
    slice.ports.extend((1..ports).map(further));
    Change::EndpointSlice(slice)
}

/// The Services through which the client reaches the good pod. All addresses must be marked.
fn granted(world: &World) -> [bool; 4] {
    FRONTENDS.map(|address| {
        assert!(world.tables.class(ip(address)) & CLASS_TRANSLATED != 0, "{address}");
        world.egress(CLIENT, address, 80)
    })
}

fn reported(world: &World) -> Vec<String> {
    let problems = world.compiler.problems().into_iter();
    let named = problems.map(|problem| {
        if let Problem::TooManyBackends { namespace } = problem {
            namespace
        } else {
            problem.to_string()
        }
    });
    named.collect()
}

#[test]
fn a_slice_that_is_too_large_ends_the_grants_of_its_service() {
    let ordinary = ["a", "b", "c"].map(|name| slice("tenant", name, name, 1, 1));
    let of_other = slice("other", "d", "d", 1000, 1);
    let mut world = World::new(objects().into_iter().chain(ordinary).chain([of_other]));
    let before = world.compiler.image();
    assert_eq!(granted(&world), [true; 4]);
    for (addresses, ports, fits) in [
        (SLICE_ADDRESSES, SLICE_PORTS, true),
        (SLICE_ADDRESSES + 1, 1, false),
        (1, SLICE_PORTS + 1, false),
    ] {
        world.apply([slice("tenant", "b", "b2", addresses, ports)]);
        assert_eq!(granted(&world), [true, fits, true, true]);
        assert_eq!(reported(&world).is_empty(), fits);
    }
    // Blocks still allow the address itself: what it leads to is judged after the translation.
    let wide = vec![rule(Some(vec![block("10.96.0.0/16", &[])]), None)];
    world.apply([Change::Policy(policy("client", "w", Selector::default(), None, Some(wide)))]);
    assert_eq!(granted(&world), [true; 4]);
    world.apply([
        slice("tenant", "b", "b2", 1, 1).removal(),
        Change::PolicyGone(Key::new("client", "w")),
    ]);
    assert_eq!(granted(&world), [true; 4]);
    assert!(reported(&world).is_empty() && world.compiler.image() == before);
}

/// Another node chooses the backend of its node port, and judges nothing for the sender: while a tier may deny one of the
/// backends, no literal grant is enough.
#[test]
fn a_node_port_with_unknown_backends_is_closed_to_pods_under_tiers() {
    let wide = vec![rule(Some(vec![block("0.0.0.0/0", &[])]), None)];
    let wide = Change::Policy(policy("client", "w", Selector::default(), None, Some(wide)));
    let secret = vec![pods(Some(Selector::default()), select(&[("app", "secret")]))];
    let deny = vec![cluster_rule(Action::Deny, secret, None)];
    let deny = cluster_policy("deny", (Tier::Admin, 1), Vec::new(), deny);
    let small = slice("tenant", "a", "a", 1, 1);
    let large = slice("tenant", "a", "a", SLICE_ADDRESSES + 1, 1);
    let mut world = World::new(objects().into_iter().chain([small.clone()]));
    assert!(world.egress(CLIENT, "192.0.2.2", 30_080), "its backend is allowed");
    world.apply([large.clone()]);
    assert!(!world.egress(CLIENT, "192.0.2.2", 30_080), "not all are known to be allowed");
    world.apply([wide]);
    assert!(world.egress(CLIENT, "192.0.2.2", 30_080), "the address itself is allowed");
    world.apply([Change::ClusterPolicy(deny)]);
    assert!(!world.egress(CLIENT, "192.0.2.2", 30_080), "a backend may be denied");
    assert!(world.egress(CLIENT, "192.0.2.2", 30_081), "no Service's");
    world.apply([small]);
    assert!(world.egress(CLIENT, "192.0.2.2", 30_080), "no backend is denied");
}

/// The slices that count follow from the objects, whatever their order.
#[test]
fn slices_of_a_namespace_share_a_limit_in_the_order_of_their_names() {
    let filling = NAMESPACE_BACKENDS / (SLICE_ADDRESSES + SLICE_PORTS);
    let fill =
        |n: usize| slice("tenant", "none", &format!("f{n:02}"), SLICE_ADDRESSES, SLICE_PORTS);
    let services = [
        slice("tenant", "a", "e", 1, 1),
        slice("tenant", "b", "f99", SLICE_ADDRESSES, SLICE_PORTS),
        slice("tenant", "c", "g", 1, 1),
        slice("other", "d", "z", 1000, 1),
    ];
    let all: Vec<Change> = (0..filling).map(fill).chain(services).collect();
    // The steps visit each slice once, as their number is prime.
    let shuffled = |step: usize| {
        let mut world = World::new(objects());
        for n in 0..all.len() {
            world.apply([all[n * step % all.len()].clone()]);
        }
        world
    };
    let mut worlds = [1, 7, 11].map(shuffled);
    for world in &worlds {
        assert_eq!(granted(world), [true, false, false, true]);
        assert_eq!(reported(world), ["tenant"]);
        assert!(world.compiler.image() == worlds[0].compiler.image());
    }
    let world = &mut worlds[1];
    world.apply([fill(3).removal()]);
    assert_eq!(granted(world), [true; 4]);
    assert!(reported(world).is_empty());
    world.apply([fill(3)]);
    assert_eq!(granted(world), [true, false, false, true]);
    world.apply([fill(5).removal(), slice("tenant", "b", "f99", 1, 1)]);
    assert_eq!(granted(world), [true; 4]);
    world.apply((0..filling).map(|n| fill(n).removal()));
    assert_eq!(granted(world), [true; 4]);
}

/// An ordinary Service of 1,000 endpoints in slices of 100 is within the limits, as are a hundred of them.
#[test]
fn ordinary_services_are_within_the_limits() {
    let slices =
        (0..1000).map(|n| slice("tenant", ["a", "b", "c"][n % 3], &format!("s{n:03}"), 100, 3));
    let of_other = slice("other", "d", "d", 1000, 1);
    let world = World::new(objects().into_iter().chain(slices).chain([of_other]));
    assert_eq!(granted(&world), [true; 4]);
    assert!(reported(&world).is_empty());
}
