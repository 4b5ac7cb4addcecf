//! Services: each decision in a small cluster, and the operations of an event.
#![expect(clippy::unwrap_used, reason = "tests")]

use netpold_core::model::{Change, EndpointSlice, Key, Selector, Service};
use netpold_core::ops::Op;
use netpold_core::ops::Table;
use netpold_ebpf::layout::CLASS_TRANSLATED;
use netpold_testkit::objects::{
    self, NODE, block, interface, ip, namespace, node, pod, pods, policy, rule, select, tcp,
};
use netpold_testkit::world::World;

const WEB: &str = "10.96.0.1";
const WEB6: &str = "fd96::1";

fn service(name: &str, addresses: &[&str], ports: &[(&str, u16, Option<u16>)]) -> Change {
    Change::Service(objects::service(("a", name), addresses, ports))
}

/// A [`service`] for a proxy other than the nodes' proxy.
fn unserved(name: &str, addresses: &[&str], ports: &[(&str, u16, Option<u16>)]) -> Change {
    let service = objects::service(("a", name), addresses, ports);
    Change::Service(Service { unserved: true, ..service })
}

fn slice(name: &str, service: &str, addresses: &[&str], ports: &[(&str, u16)]) -> Change {
    Change::EndpointSlice(objects::slice(("a", name), service, addresses, ports))
}

/// A [`slice`] with no backend ready.
fn unready(name: &str, service: &str, addresses: &[&str], ports: &[(&str, u16)]) -> Change {
    let slice = objects::slice(("a", name), service, addresses, ports);
    Change::EndpointSlice(EndpointSlice { not_ready: slice.addresses.clone(), ..slice })
}

fn far(name: &str, app: &str, addresses: &[&str]) -> Change {
    let mut pod = pod("a", name, &[("app", app)], addresses);
    pod.node = "elsewhere".into();
    Change::Pod(pod)
}

/// A pod `a/p` on interface 1 that may reach TCP 8080 of pods `app=good`; two nodes; pods good1, good2 and bad.
fn cluster() -> Vec<Change> {
    let rules =
        vec![rule(Some(vec![pods(None, select(&[("app", "good")]))]), Some(vec![tcp(8080)]))];
    vec![
        Change::Node(node(NODE, &["192.0.2.1"])),
        Change::Node(node("elsewhere", &["192.0.2.2", "2001:db8::2"])),
        Change::Namespace(namespace("a", &[])),
        Change::Pod(pod("a", "p", &[], &["10.0.0.1", "fd00::1"])),
        Change::Interface(interface(1, &["10.0.0.1", "fd00::1"])),
        far("good1", "good", &["10.0.1.1", "fd00:1::1"]),
        far("good2", "good", &["10.0.1.2", "fd00:1::2"]),
        far("bad", "bad", &["10.0.1.3", "fd00:1::3"]),
        Change::Policy(policy("a", "out", Selector::default(), None, Some(rules))),
    ]
}

fn with(more: impl IntoIterator<Item = Change>) -> World {
    World::new(cluster().into_iter().chain(more))
}

fn is_marked(world: &World, address: &str) -> bool {
    world.tables.class(ip(address)) & CLASS_TRANSLATED != 0
}

#[test]
fn some_backend_is_enough_and_its_own_port_counts() {
    let world = with([
        service("web", &[WEB], &[("", 80, None)]),
        slice("web-1", "web", &["10.0.1.1", "10.0.1.3"], &[("", 8080)]),
    ]);
    assert!(world.egress(1, WEB, 80), "one of two backends is allowed");
    assert!(!world.egress(1, WEB, 8080), "no port of the Service");
    assert!(!world.egress(1, "10.0.1.3", 8080), "the other backend itself is not");
    let world = with([
        service("web", &[WEB], &[("", 8080, None)]),
        slice("web-1", "web", &["10.0.1.1"], &[("", 80)]),
    ]);
    assert!(!world.egress(1, WEB, 8080), "the backend's port is not allowed");
}

/// Connections outlive the readiness of their backend; the pod's verdict does not depend on readiness.
#[test]
fn a_backend_that_is_not_ready_keeps_its_connections() {
    let mut world = with([
        service("web", &[WEB], &[("", 80, None)]),
        unready("web-1", "web", &["10.0.1.1"], &[("", 8080)]),
    ]);
    assert!(world.egress(1, WEB, 80));
    world.apply([unready("web-1", "web", &["10.0.1.3"], &[("", 8080)])]);
    assert!(!world.egress(1, WEB, 80), "policy denies this one");
}

/// NodeLocal DNS puts the cluster address of kube-dns on an interface of the node: policy must mean the same with and
/// without it.
#[test]
fn a_cluster_address_on_the_node_is_the_services() {
    let found = |addresses: &[&str]| {
        Change::OwnAddresses(addresses.iter().map(|address| ip(address)).collect())
    };
    const OTHER: &str = "10.96.0.2";
    const EXTERNAL: &str = "198.51.100.9";
    let Change::Service(mut web) = service("web", &[WEB], &[("", 80, None)]) else { return };
    web.addresses.push(ip(EXTERNAL));
    let mut world = with([
        Change::Service(web),
        slice("web-1", "web", &["10.0.1.1"], &[("", 8080)]),
        found(&[WEB, OTHER, "169.254.20.10", EXTERNAL]),
    ]);
    assert!(world.egress(1, WEB, 80) && is_marked(&world, WEB), "its backend is allowed");
    assert!(!world.egress(1, WEB, 81), "but no other port: the address is not the node's");
    assert!(world.egress(1, OTHER, 80), "no Service's (yet): the own node's");
    assert!(world.egress(1, "169.254.20.10", 53), "the own node's");
    assert!(world.egress(1, EXTERNAL, 81), "an external address may well be the node's own");
    world.apply([service("other", &[OTHER], &[("", 80, None)])]);
    assert!(!world.egress(1, OTHER, 80), "now it is one, of a Service without backends");
    world.apply([Change::ServiceGone(Key::new("a", "other"))]);
    assert!(world.egress(1, OTHER, 80));
    world.apply([slice("web-1", "web", &["10.0.1.3"], &[("", 8080)])]);
    assert!(!world.egress(1, WEB, 80), "its backend is denied");
    world.apply([found(&[])]);
    assert!(!world.egress(1, WEB, 80) && !world.egress(1, OTHER, 80));
}

#[test]
fn ports_belong_together_by_name_and_protocol() {
    let world = with([
        service("web", &[WEB], &[("x", 80, None), ("y", 81, None)]),
        slice("web-1", "web", &["10.0.1.1"], &[("x", 8080), ("y", 9090)]),
        slice("web-2", "web", &["10.0.1.2"], &[("y", 8080)]),
        slice("other", "", &["10.0.1.1"], &[("x", 8080)]),
    ]);
    assert!(world.egress(1, WEB, 80));
    assert!(world.egress(1, WEB, 81), "slices may resolve a named target port differently");
    let udp = world.tables.allows(1, netpold_core::model::Direction::Egress, ip(WEB), 17, 80);
    assert_eq!(udp, Some(false));
}

#[test]
fn families_do_not_mix() {
    let world = with([
        service("web", &[WEB, WEB6], &[("", 80, None)]),
        slice("web-1", "web", &["fd00:1::1"], &[("", 8080)]),
    ]);
    assert_eq!((world.egress(1, WEB, 80), world.egress(1, WEB6, 80)), (false, true));
}

#[test]
fn the_address_itself_may_be_allowed() {
    let rules = vec![rule(Some(vec![block("10.96.0.0/16", &[])]), None)];
    let open = Change::Policy(policy("a", "block", Selector::default(), None, Some(rules)));
    let web = [service("web", &[WEB], &[("", 80, None)])];
    let world = with(web.into_iter().chain([open]));
    assert!(world.egress(1, WEB, 80) && world.egress(1, WEB, 81));
    assert!(is_marked(&world, WEB), "what it leads to is judged on the way");
    assert!(!is_marked(&world, "10.96.0.2"));
}

#[test]
fn backends_that_are_no_pods_and_the_own_node() {
    let rules = vec![rule(Some(vec![block("198.51.100.0/24", &[])]), Some(vec![tcp(443)]))];
    let open = Change::Policy(policy("a", "block", Selector::default(), None, Some(rules)));
    let world = with([
        open,
        service("outside", &[WEB], &[("", 80, None)]),
        slice("outside-1", "outside", &["198.51.100.7"], &[("", 443)]),
        service("kubelet", &["10.96.0.2"], &[("", 80, None)]),
        slice("kubelet-1", "kubelet", &["192.0.2.1"], &[("", 10250)]),
        service("closed", &["10.96.0.3"], &[("", 80, None)]),
        slice("closed-1", "closed", &["203.0.113.1"], &[("", 443)]),
    ]);
    assert!(world.egress(1, WEB, 80));
    assert!(world.egress(1, "10.96.0.2", 80), "the own node is always allowed");
    assert!(!world.egress(1, "10.96.0.3", 80));
}

/// The node translates node ports there as at its other addresses.
#[test]
fn addresses_that_each_node_has_may_be_translated() {
    let inner = [block("127.3.0.0/16", &[]), block("fe80::1/128", &[])];
    let outside = [block("0.0.0.0/0", &["10.0.0.0/8"]), block("::/0", &["fd00::/8"])];
    let all = inner.into_iter().chain(outside).collect();
    let egress = Some(vec![rule(Some(all), None)]);
    let open = policy("a", "outside", Selector::default(), None, egress);
    let mut world = with([Change::Policy(open.clone())]);
    let each = ["127.0.0.1", "127.3.2.1", "::1", "fe80::1", "febf::2"];
    for address in each {
        assert!(world.egress(1, address, 30080) && is_marked(&world, address), "{address}");
        assert!(untranslated(&world, address, 30080), "{address}");
    }
    for address in ["128.0.0.1", "126.255.255.255", "::2", "fec0::1", "fe7f::1"] {
        assert!(world.egress(1, address, 30080) && !is_marked(&world, address), "{address}");
    }
    world.apply([Change::PolicyGone(open.key)]);
    world.apply([Change::Policy(policy("a", "closed", Selector::default(), None, Some(vec![])))]);
    for address in each {
        assert!(!world.egress(1, address, 30080), "{address}: the mark grants nothing");
    }
}

/// Whether an untranslated packet passes where it leaves the node.
fn untranslated(world: &World, address: &str, port: u16) -> bool {
    world.tables.allows_untranslated(1, ip(address), 6, port).unwrap()
}

/// The other node chooses the backend of its node port, so every backend must be allowed, ready or not.
#[test]
fn node_ports_of_other_nodes_need_every_backend() {
    let mut world = with([
        service("web", &[WEB], &[("", 80, Some(30080))]),
        service("bad", &["10.96.0.2"], &[("", 80, Some(30081))]),
        service("mixed", &["10.96.0.3"], &[("", 80, Some(30082))]),
        service("empty", &["10.96.0.4"], &[("", 80, Some(30083))]),
        slice("web-1", "web", &["10.0.1.1", "10.0.1.2"], &[("", 8080)]),
        slice("web-6", "web", &["fd00:1::1"], &[("", 8080)]),
        slice("bad-1", "bad", &["10.0.1.3"], &[("", 8080)]),
        slice("mixed-1", "mixed", &["10.0.1.1"], &[("", 8080)]),
        unready("mixed-2", "mixed", &["10.0.1.3"], &[("", 8080)]),
    ]);
    for (address, port, allowed) in [
        ("192.0.2.2", 30080, true),
        ("2001:db8::2", 30080, true),
        ("192.0.2.2", 80, false),
        ("192.0.2.2", 30081, false),
        ("192.0.2.2", 30082, false),
        ("192.0.2.2", 30083, false),
        ("192.0.2.1", 30081, true),
        (WEB, 30080, false),
    ] {
        assert_eq!(world.egress(1, address, port), allowed, "{address} {port}");
        let last = untranslated(&world, address, port);
        assert_eq!(last, allowed, "{address} {port}, where it leaves: as at the pod");
    }
    assert!(world.egress(1, "10.96.0.3", 80), "at the Service's address some backend is enough");
    assert!(is_marked(&world, "192.0.2.1") && is_marked(&world, "192.0.2.2"));
    // Another slice of the same Service, with a denied backend.
    world.apply([slice("web-2", "web", &["10.0.1.3"], &[("", 8080)])]);
    assert!(!world.egress(1, "192.0.2.2", 30080) && world.egress(1, WEB, 80));
    // A literal grant of the node's address is enough for all its ports.
    let rules = vec![rule(Some(vec![block("192.0.2.2/32", &[])]), None)];
    let open = Change::Policy(policy("a", "block", Selector::default(), None, Some(rules)));
    world.apply([open]);
    assert!(world.egress(1, "192.0.2.2", 30080) && untranslated(&world, "192.0.2.2", 30080));
}

/// After the place of translation, only literal grants allow a Service's address: the proxy does not know the
/// Service yet, or the packet is for the real host at that address.
#[test]
fn what_nobody_translated_is_judged_literally() {
    const EXTERNAL: &str = "203.0.113.7";
    let mut world = with([
        service("web", &[WEB, EXTERNAL], &[("", 80, None)]),
        slice("web-1", "web", &["10.0.1.1", "10.0.0.1"], &[("", 8080)]),
    ]);
    for address in [WEB, EXTERNAL] {
        assert!(world.egress(1, address, 80), "some backend is allowed");
        assert!(!untranslated(&world, address, 80), "{address} itself is not");
    }
    assert!(untranslated(&world, "10.0.1.1", 8080) && !untranslated(&world, "10.0.1.3", 8080));
    assert!(untranslated(&world, "192.0.2.1", 1), "the own node always");
    let rules = vec![rule(Some(vec![block("203.0.113.0/24", &[])]), Some(vec![tcp(443)]))];
    let open = Change::Policy(policy("a", "block", Selector::default(), None, Some(rules)));
    world.apply([open]);
    assert!(untranslated(&world, EXTERNAL, 443) && !untranslated(&world, EXTERNAL, 80));
    assert!(world.egress(1, EXTERNAL, 80) && world.egress(1, EXTERNAL, 443));
    // The pod reaches itself through the Service only before translation.
    world.apply([slice("web-1", "web", &["10.0.0.1"], &[("", 9090)])]);
    assert!(world.egress(1, WEB, 80) && !untranslated(&world, WEB, 80));
}

/// `service.kubernetes.io/service-proxy-name`: packets leave untranslated.
#[test]
fn services_that_the_nodes_proxy_does_not_serve_count_for_nothing() {
    let ports: &[_] = &[("", 80, Some(30080))];
    let mut world = with([
        unserved("web", &[WEB], ports),
        slice("web-1", "web", &["10.0.1.1", "10.0.0.1"], &[("", 8080)]),
    ]);
    let nothing = |world: &World| {
        !world.egress(1, WEB, 80)
            && !world.egress(1, "192.0.2.2", 30080)
            && !is_marked(world, WEB)
            && !is_marked(world, "192.0.2.2")
    };
    assert!(nothing(&world));
    world.apply([slice("web-1", "web", &["10.0.1.1"], &[("", 8080)])]);
    assert!(nothing(&world));
    world.apply([service("web", &[WEB], ports)]);
    assert!(world.egress(1, WEB, 80) && world.egress(1, "192.0.2.2", 30080));
    world.apply([unserved("web", &[WEB], ports)]);
    assert!(nothing(&world));
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    let world = with([
        service("self", &[WEB, WEB6], &[("", 80, Some(30080)), ("x", 81, None)]),
        slice("self-1", "self", &["10.0.0.1", "10.0.1.3"], &[("", 9090)]),
    ]);
    for (address, port, allowed) in [
        (WEB, 80, true),
        // Another node chooses the backend, and a packet that comes back is not recognized as the pod's own.
        ("192.0.2.2", 30080, false),
        ("192.0.2.1", 30080, true),
        (WEB, 81, false),
        (WEB6, 80, false),
        ("10.0.1.3", 9090, false),
    ] {
        assert_eq!(world.egress(1, address, port), allowed, "{address} {port}");
    }
}

#[test]
fn a_pod_of_two_families_behind_one_address() {
    // The veth is known by the IPv6 address, the pod serves on the IPv4 one.
    let mut world = with([
        Change::Interface(interface(1, &["fd00::1"])),
        service("self", &[WEB], &[("", 80, None)]),
    ]);
    assert!(!world.egress(1, WEB, 80));
    world.apply([slice("self-1", "self", &["10.0.0.1"], &[("", 9090)])]);
    assert!(world.egress(1, WEB, 80));
    world.apply([Change::EndpointSliceGone(Key::new("a", "self-1"))]);
    assert!(!world.egress(1, WEB, 80));
}

#[test]
fn services_of_others_matter_to_egress_only() {
    let rules = vec![rule(Some(vec![pods(None, select(&[("app", "good")]))]), None)];
    let into = Change::Policy(policy("a", "out", Selector::default(), Some(rules), None));
    let mut world = with([
        service("web", &[WEB], &[("", 80, None)]),
        slice("web-1", "web", &["10.0.1.1"], &[("", 8080)]),
    ]);
    let both = world.compiler.image().addresses.len();
    world.apply([into]);
    assert!(!world.ingress(1, WEB, 80), "what comes from a Service's address is no backend's");
    assert!(!is_marked(&world, WEB), "no pod is isolated for egress any more");
    assert!(world.compiler.image().addresses.len() < both);
    assert_eq!(world.tables.class(ip("192.0.2.2")), 0);
}

/// A pod isolated for ingress alone is recognized after translation by the mark of its packets, so packets to addresses
/// that may lead back to it are marked, and no others.
#[test]
fn a_service_leads_its_own_backend_back_to_itself() {
    let into = |policy_types| match policy_types {
        "Ingress" => policy("a", "out", Selector::default(), Some(Vec::new()), None),
        _ => policy("a", "out", Selector::default(), Some(Vec::new()), Some(Vec::new())),
    };
    let own = |backend: &str| slice("own-1", "own", &[backend], &[("", 8080)]);
    const OWN: &str = "10.96.0.9";
    const OWN_NODE: &str = "192.0.2.1";
    let mut world = with([
        service("web", &[WEB], &[("", 80, Some(30_080))]),
        slice("web-1", "web", &["10.0.1.1"], &[("", 8080)]),
        service("own", &[OWN, "fd96::9"], &[("", 80, None)]),
        own("10.0.0.1"),
        Change::Policy(into("Ingress")),
    ]);
    let marked = |world: &World| [OWN, "fd96::9", WEB, OWN_NODE].map(|to| is_marked(world, to));
    assert_eq!(marked(&world), [true, true, false, false]);
    assert!(!world.ingress(1, OWN, 80), "a mark grants nothing");
    // The node's address leads to the pod by a node port.
    world.apply([service("own", &[OWN], &[("", 80, Some(30_090))])]);
    assert_eq!(marked(&world), [true, false, false, true]);
    assert!(!is_marked(&world, "192.0.2.2"), "another node's does not come back as its own");
    world.apply([own("10.0.1.1")]);
    assert_eq!(marked(&world), [false; 4], "no local pod is its backend any more");
    world.apply([own("10.0.0.1"), service("own", &[OWN], &[("", 80, None)])]);
    assert_eq!(marked(&world), [true, false, false, false]);
    world.apply([Change::Policy(into("both"))]);
    assert_eq!(marked(&world), [true, false, true, true], "all Services matter to egress");
    world.apply([Change::Policy(into("Ingress"))]);
    assert_eq!(marked(&world), [true, false, false, false]);
    world.apply([Change::ServiceGone(Key::new("a", "own"))]);
    assert_eq!(marked(&world), [false; 4]);
}

#[test]
fn equal_services_share_a_class() {
    let used = |world: &World| {
        world.compiler.fill().iter().find(|fill| fill.table == Table::Classes).unwrap().used
    };
    let many = (1..=50).flat_map(|n| {
        let name = format!("s{n}");
        let backend = if n % 2 == 0 { "10.0.1.1" } else { "10.0.1.2" };
        [
            service(&name, &[&format!("10.96.1.{n}")], &[("", 80, None)]),
            slice(&format!("{name}-1"), &name, &[backend], &[("", 8080)]),
        ]
    });
    let (without, world) = (with([]), with(many));
    let spare = used(&without) % 2;
    let two = used(&world) - used(&without);
    assert!(two <= 2 + spare, "a column at the pod and one behind translation: {two}");
    assert!(world.egress(1, "10.96.1.50", 80));
}

#[test]
fn an_event_writes_the_words_of_the_addresses_concerned() {
    let services = (1..=20).flat_map(|n| {
        let name = format!("s{n}");
        let backend = format!("10.0.2.{n}");
        [
            far(&format!("b{n}"), "bad", &[&backend]),
            service(&name, &[&format!("10.96.1.{n}")], &[("", 80, None)]),
            slice(&format!("{name}-1"), &name, &[&backend], &[("", 8080)]),
        ]
    });
    let mut world = with(services);
    let relabelled = |app: &str| far("b7", app, &["10.0.2.7"]);
    world.compiler.ingest(relabelled("good"));
    let ops = world.update();
    let words = ops.iter().filter(|op| matches!(op, Op::TrieWord { .. })).count();
    assert_eq!(words, 2, "the pod and the Service it backs: {ops:?}");
    assert!(world.egress(1, "10.96.1.7", 80) && !world.egress(1, "10.96.1.8", 80));
    assert_eq!(world.apply([relabelled("good")]), 0);
    // A second backend with the same membership as the first changes nothing.
    world.apply([far("c", "good", &["10.0.2.99"])]);
    let both = slice("s7-1", "s7", &["10.0.2.7", "10.0.2.99"], &[("", 8080)]);
    assert_eq!(world.apply([both]), 0);
    world.apply([Change::ServiceGone(Key::new("a", "s7"))]);
    assert!(!world.egress(1, "10.96.1.7", 80) && !is_marked(&world, "10.96.1.7"));
}

/// A waiting Service has no ports yet, but kube-proxy translates its addresses at once.
#[test]
fn packets_to_a_service_without_ports_are_judged_after_the_translation() {
    let mut world = with([service("web", &[WEB], &[])]);
    assert!(is_marked(&world, WEB) && !world.egress(1, WEB, 80));
    let rules = vec![rule(Some(vec![block("0.0.0.0/0", &[])]), None)];
    world.apply([Change::Policy(policy("a", "wide", Selector::default(), None, Some(rules)))]);
    assert!(is_marked(&world, WEB) && world.egress(1, WEB, 80), "by its address");
    world.apply([Change::ServiceGone(Key::new("a", "web"))]);
    assert!(!is_marked(&world, WEB));
}
