//! Times in a large cluster: `cargo test --release -p netpold-core --test all scale:: -- --ignored --nocapture`.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that reports figures")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use netpold_core::model::{
    Change, EndpointSlice, Interface, Key, Pod, Protocol, Selector, Service, ServicePort, SlicePort,
};
use netpold_testkit::objects::{
    NODE, block, interface, namespace, node, pod, pods, policy, rule, select, tcp,
};
use netpold_testkit::world::World;

const NAMESPACES: u32 = 1000;
const PODS: u32 = 100_000;
const LOCAL: u32 = 110;
const POLICIES: u32 = 5000;
const SERVICES: u32 = 10_000;

fn namespace_name(number: u32) -> String {
    format!("ns{number}")
}

/// Pod `number`; about every thousandth is local.
fn nth_pod(number: u32, version: &str) -> Pod {
    let app = format!("app{}", number / NAMESPACES % 7);
    let pairs = [("app", app.as_str()), ("version", version)];
    let namespace = namespace_name(number % NAMESPACES);
    let mut pod = pod(&namespace, &format!("pod{number}"), &pairs, &[]);
    pod.addresses = vec![IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number))];
    if number >= LOCAL {
        pod.node = "elsewhere".into();
    }
    pod
}

/// Policy `number`, with a few peers and ports.
fn nth_policy(number: u32) -> netpold_core::model::Policy {
    let app = format!("app{}", number / NAMESPACES % 7);
    let team = format!("team{}", number % 10);
    let cidr = format!("172.{}.{}.0/24", 16 + number % 16, number % 256);
    let peers = vec![
        pods(None, select(&[("app", &app)])),
        pods(Some(select(&[("team", &team)])), select(&[("app", "app1")])),
        block(&cidr, &[]),
    ];
    let rules = vec![rule(Some(peers), Some(vec![tcp(80), tcp(1000 + (number % 50) as u16)]))];
    let namespace = namespace_name(number % NAMESPACES);
    policy(
        &namespace,
        &format!("p{number}"),
        select(&[("app", &app)]),
        Some(rules.clone()),
        Some(rules),
    )
}

/// Service `number`, with ten pods as backends in two slices; every tenth has a node port.
fn nth_service(number: u32) -> [Change; 3] {
    let (namespace, name) = (namespace_name(number % NAMESPACES), format!("s{number}"));
    let address = IpAddr::V4(Ipv4Addr::from_bits(0x0a60_0000 + number));
    let port = ServicePort {
        name: "web".into(),
        protocol: Protocol::Tcp,
        port: 443,
        node_port: number.is_multiple_of(10).then_some(20_000 + number as u16),
    };
    let key = Key::new(namespace.clone(), name.clone());
    let (addresses, ports) = (vec![address], vec![port]);
    let (cluster, networks, beyond) = (addresses.clone(), Vec::new(), Vec::new());
    let service = Service { key, cluster, addresses, networks, beyond, ports, unserved: false };
    let slices = [0, 1].map(|half| nth_slice(number, half, 5));
    let [first, second] = slices;
    [Change::Service(service), first, second]
}

fn nth_slice(number: u32, half: u32, backends: u32) -> Change {
    let pods =
        (0..backends).map(|n| (number + NAMESPACES * (number % 7 + 7 * (half * 5 + n))) % PODS);
    let addresses = pods.map(|n| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n)));
    Change::EndpointSlice(EndpointSlice {
        key: Key::new(namespace_name(number % NAMESPACES), format!("s{number}-{half}")),
        service: format!("s{number}"),
        ports: vec![SlicePort { name: "web".into(), protocol: Protocol::Tcp, port: 80 }],
        addresses: addresses.collect(),
        not_ready: Vec::new(),
        terminating: Vec::new(),
    })
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    println!("{what}: {:.3} ms", start.elapsed().as_secs_f64() * 1e3);
    result
}

#[test]
#[ignore = "reports times, judges nothing"]
fn large_cluster() {
    measure(0);
}

#[test]
#[ignore = "reports times, judges nothing"]
fn large_cluster_with_services() {
    measure(SERVICES);
}

fn measure(services: u32) {
    let mut changes = vec![Change::Node(node(NODE, &["192.0.2.1"]))];
    changes.extend((0..1000u32).map(|n| {
        let address = format!("192.0.{}.{}", 3 + n / 250, n % 250);
        Change::Node(node(&format!("n{n}"), &[&address]))
    }));
    changes.extend((0..services).flat_map(nth_service));
    changes.extend((0..NAMESPACES).map(|n| {
        let team = format!("team{}", n % 10);
        Change::Namespace(namespace(&namespace_name(n), &[("team", &team)]))
    }));
    changes.extend((0..PODS).map(|n| Change::Pod(nth_pod(n, "1"))));
    changes.extend((0..POLICIES).map(|n| Change::Policy(nth_policy(n))));
    changes.extend((0..LOCAL).map(|n| {
        let addresses = nth_pod(n, "1").addresses;
        Change::Interface(Interface {
            index: 100 + n,
            incarnation: 1,
            addresses,
            ..Interface::default()
        })
    }));
    let mut world = World::new([]);
    timed("taking the changes in", || changes.into_iter().for_each(|c| world.compiler.ingest(c)));
    let ops = timed("full image", || world.compiler.update().unwrap());
    println!("  {} operations, {:?}", ops.len(), world.compiler.fill());
    let mut next = |what: &str, change: Change| {
        world.compiler.ingest(change);
        let ops = timed(what, || world.compiler.update().unwrap());
        println!("  {} operations", ops.len());
        world.compiler.grace_passed();
    };
    next("remote pod relabelled, nothing matches", Change::Pod(nth_pod(99_999, "2")));
    let mut moved = nth_pod(99_998, "1");
    moved.labels.insert("app".into(), "app1".into());
    next("remote pod relabelled, peers match", Change::Pod(moved));
    next("remote pod gone", Change::PodGone(nth_pod(99_997, "1").key));
    next("remote pod new", Change::Pod(nth_pod(PODS + 1, "1")));
    if services > 0 {
        next("slice: a backend less", nth_slice(77, 0, 4));
        next("slice: a backend more", nth_slice(77, 0, 5));
        next("slice of a node port: no backend", nth_slice(80, 0, 0));
        next("slice of a node port: five", nth_slice(80, 0, 5));
        next("service gone", Change::ServiceGone(Key::new(namespace_name(78), "s78")));
        let [service, ..] = nth_service(78);
        next("service new", service);
    }
    let mut local = nth_pod(5, "1");
    local.labels.insert("app".into(), "app3".into());
    next("local pod relabelled", Change::Pod(local));
    let mut edited = nth_policy(3);
    edited.ingress.as_mut().unwrap()[0].ports = Some(vec![tcp(81)]);
    next("policy edited: ports", Change::Policy(edited.clone()));
    edited.ingress.as_mut().unwrap()[0].peers =
        Some(vec![pods(Some(select(&[("team", "team7")])), select(&[("app", "app2")]))]);
    next("policy edited: peers", Change::Policy(edited.clone()));
    let everyone =
        vec![rule(Some(vec![pods(Some(Selector::default()), Selector::default())]), None)];
    edited.ingress = Some(everyone);
    next("policy edited: all pods as peers", Change::Policy(edited.clone()));
    next("policy gone", Change::PolicyGone(edited.key));
    let team = [("team", "team9")];
    next("namespace relabelled", Change::Namespace(namespace("ns3", &team)));
    timed("recompile", || {
        world.compiler.recompile(netpold_core::ops::Capacity::default(), |_, _| None).unwrap()
    });
}

#[test]
#[ignore = "reports times, judges nothing"]
fn a_rule_of_100_000_blocks() {
    let nth = |n: u32| {
        let address = IpAddr::V4(Ipv4Addr::from_bits(0x1400_0000 + n * 16));
        block(&format!("{address}/28"), &[])
    };
    let listed = |count: u32| {
        let rules = vec![rule(Some((0..count).map(nth).collect()), Some(vec![tcp(443)]))];
        Change::Policy(policy("a", "blocks", Selector::default(), None, Some(rules)))
    };
    let mut world = World::new([
        Change::Namespace(namespace("a", &[])),
        Change::Pod(pod("a", "p", &[], &["10.0.0.1"])),
        Change::Interface(interface(1, &["10.0.0.1"])),
    ]);
    for (what, count) in [("100,000 blocks", 100_000), ("one less", 99_999), ("one more", 100_000)]
    {
        world.compiler.ingest(listed(count));
        let ops = timed(what, || world.compiler.update().unwrap());
        println!("  {} operations, {:?}", ops.len(), world.compiler.fill()[0]);
        world.compiler.grace_passed();
    }
}
