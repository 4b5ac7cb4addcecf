//! A pod reaches itself through Services of its own namespace only; those of others change nothing about it.
#![expect(clippy::unwrap_used, reason = "tests")]

use netpold_core::budget::POD_HAIRPINS;
use netpold_core::compile::Problem;
use netpold_core::explain::Explainer;
use netpold_core::model::{Change, EndpointSlice, Key, Selector, Service, ServicePort, SlicePort};
use netpold_core::model::{Direction, PortRule, Protocol};
use netpold_core::probe::IpProtocol;
use netpold_ebpf::layout::CLASS_TRANSLATED;
use netpold_testkit::objects::{
    self, NODE, interface, ip, namespace, node, pod, pods, policy, rule, select, tcp,
};
use netpold_testkit::world::World;

const VICTIM: u32 = 1;
const FRONTEND: &str = "10.96.0.1";

/// A pod that may reach no pod, by a policy with 600 ports.
fn victim() -> Vec<Change> {
    let ports: Vec<PortRule> = (1..=600).map(tcp).collect();
    let out = vec![rule(Some(vec![pods(None, select(&[("app", "none")]))]), Some(ports))];
    vec![
        Change::Node(node(NODE, &["192.0.2.1"])),
        Change::Namespace(namespace("victim", &[])),
        Change::Namespace(namespace("tenant", &[])),
        Change::Pod(pod("victim", "p", &[], &["10.0.0.1"])),
        Change::Interface(interface(VICTIM, &["10.0.0.1"])),
        Change::Policy(policy("victim", "out", Selector::default(), None, Some(out))),
    ]
}

fn service(namespace: &str, name: &str, addresses: &[&str], ports: u16, first: u16) -> Change {
    let port = |n: u16| ServicePort {
        name: format!("p{n}"),
        protocol: Protocol::Tcp,
        port: first + n,
        node_port: None,
    };
    let service = objects::service((namespace, name), addresses, &[]);
    Change::Service(Service { ports: (0..ports).map(port).collect(), ..service })
}

/// A slice of a [`service`] with the victim as its backend.
fn slice(namespace: &str, name: &str, ports: u16, first: u16) -> Change {
    let port =
        |n: u16| SlicePort { name: format!("p{n}"), protocol: Protocol::Tcp, port: first + n };
    let slice = objects::slice((namespace, name), name, &["10.0.0.1"], &[]);
    Change::EndpointSlice(EndpointSlice { ports: (0..ports).map(port).collect(), ..slice })
}

/// Whether the victim's veth passes packets to the Service; the explainer must agree.
fn reaches(world: &World, port: u16) -> bool {
    let passes = world.egress(VICTIM, FRONTEND, port);
    let explainer = Explainer::new(world.compiler.cluster());
    let (pod, to) = (Key::new("victim", "p"), ip(FRONTEND));
    let explained = explainer.judge(&pod, Direction::Egress, to, IpProtocol(6), port).unwrap();
    assert_eq!(passes, explained.verdict == netpold_core::explain::Verdict::Allow);
    passes
}

#[test]
fn a_service_of_another_namespace_leads_no_pod_to_itself() {
    let of =
        |namespace| [service(namespace, "s", &[FRONTEND], 1, 80), slice(namespace, "s", 1, 9000)];
    let mut world = World::new(victim().into_iter().chain(of("tenant")));
    assert!(!reaches(&world, 80), "the pod is a backend like any other, and none is allowed");
    world.apply(of("tenant").map(|change| change.removal()));
    world.apply(of("victim"));
    assert!(reaches(&world, 80));
    world.apply(of("victim").map(|change| change.removal()));
    assert!(!reaches(&world, 80));
    // A pod isolated for ingress alone: only packets that may come back as its own are marked.
    let closed = policy("victim", "out", Selector::default(), Some(Vec::new()), None);
    world.apply([Change::Policy(closed)]);
    for (namespace, is_marked) in [("tenant", false), ("victim", true)] {
        world.apply(of(namespace));
        assert_eq!(world.tables.class(ip(FRONTEND)) & CLASS_TRANSLATED != 0, is_marked);
        world.apply(of(namespace).map(|change| change.removal()));
    }
}

/// Neither a compilation nor a row of the victim, and no charge to its namespace.
#[test]
fn services_that_name_anothers_pod_change_nothing_about_it() {
    let mut world = World::new(victim());
    let before = world.compiler.image();
    world.compiler.take_compiled();
    let all = |first: u16| {
        (0..100u16).flat_map(move |n| {
            let name = format!("s{n}");
            [service("tenant", &name, &[], 80, first), slice("tenant", &name, 80, first)]
        })
    };
    for first in [1000, 2000] {
        world.apply(all(first));
        assert!(world.compiler.take_compiled().is_empty());
        assert!(world.compiler.image() == before);
    }
    // A Service of the pod's own namespace costs that namespace the compilation.
    world.apply([service("victim", "own", &[FRONTEND], 1, 80), slice("victim", "own", 1, 9000)]);
    assert!(world.compiler.take_compiled().contains_key("victim"));
}

#[test]
fn a_pod_in_too_many_slices_reaches_itself_through_none() {
    let limit = POD_HAIRPINS as u16;
    let named = |world: &World| {
        let problems = world.compiler.problems();
        problems.iter().any(|it| matches!(it, Problem::TooManyHairpins { pod } if pod.name == "p"))
    };
    let mut world = World::new(victim().into_iter().chain([
        service("victim", "s", &[FRONTEND], limit, 1),
        slice("victim", "s", limit, 1),
        // Slices of others do not count.
        service("tenant", "t", &[], limit, 1),
        slice("tenant", "t", limit, 1),
    ]));
    assert!(reaches(&world, 1) && reaches(&world, limit) && !named(&world));
    world.apply([service("victim", "z", &[], 1, 1), slice("victim", "z", 1, 1)]);
    assert!(!reaches(&world, 1) && !reaches(&world, limit) && named(&world));
    world.apply([slice("victim", "z", 1, 1).removal()]);
    assert!(reaches(&world, 1) && reaches(&world, limit) && !named(&world));
}
