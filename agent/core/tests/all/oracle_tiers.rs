//! The oracle compared with sentences of the ClusterNetworkPolicy API, one by one, and with netpold's decisions where
//! the API leaves room.

use netpold_core::model::{
    Action, ClusterPolicy, ClusterRule, Direction, Enforcement, NamespacedPods, Node, Peer, Pod,
    Policy, PortMatch, PortRule, Protocol, Rule, Selector, Tier,
};
use netpold_testkit::objects::{
    self, block, cluster_policy, cluster_rule, ip, ips, labels, namespace, pods, port_name, select,
    tcp,
};
use netpold_testkit::oracle::{Oracle, OracleVerdict};

use Action::{Accept, Deny, Pass};
use Tier::{Admin, Baseline};

/// Namespaces x and y with pods a, b and c each: their addresses end in 1, 2, 3; those of y are in 10.0.1.0/24. Pods a
/// and b of x are on this node.
fn cluster(policies: impl IntoIterator<Item = ClusterPolicy>) -> Oracle {
    let pod = |namespace: &str, name: &str, address: &str| {
        let node = if namespace == "x" && name != "c" { "n1" } else { "n2" };
        let ports = vec![
            objects::named("web", Protocol::Tcp, 80),
            objects::named("dns", Protocol::Udp, 53),
        ];
        let pod = objects::pod(namespace, name, &[("app", name)], &[address]);
        Pod { node: node.into(), ports, ..pod }
    };
    let node = |name: &str, address: &str, role: &str| Node {
        name: name.to_owned(),
        addresses: ips(&[address]),
        labels: labels(&[("role", role)]),
        ..Node::default()
    };
    Oracle {
        namespaces: ["x", "y"].map(|name| namespace(name, &[("ns", name)])).to_vec(),
        nodes: vec![node("n1", "192.168.0.1", "work"), node("n2", "192.168.0.2", "edge")],
        pods: vec![
            pod("x", "a", "10.0.0.1"),
            pod("x", "b", "10.0.0.2"),
            pod("x", "c", "10.0.0.3"),
            pod("y", "a", "10.0.1.1"),
            pod("y", "b", "10.0.1.2"),
            Pod { host_network: true, ..pod("y", "host", "192.168.0.2") },
        ],
        cluster_policies: policies.into_iter().collect(),
        ..Oracle::default()
    }
}

const OTHERS: [&str; 5] = ["10.0.0.2", "10.0.1.1", "10.0.1.2", "192.168.0.2", "8.8.8.8"];

/// Whether x/a may exchange such packets with x/b, y/a, y/b, the other node and an outside address.
fn reach(oracle: &Oracle, direction: Direction, (protocol, port): (u8, u16)) -> [bool; 5] {
    let pod = &oracle.pods[0];
    OTHERS.map(|remote| oracle.judge(pod, direction, ip(remote), protocol, port))
}

/// Verdicts about packets of x/a to TCP 80.
fn sent(policies: impl IntoIterator<Item = ClusterPolicy>) -> [bool; 5] {
    reach(&cluster(policies), Direction::Egress, (6, 80))
}

/// All pods of a namespace.
fn all_of(name: &str) -> Peer {
    pods(Some(select(&[("ns", name)])), Selector::default())
}

/// Pods of all namespaces with an `app` label.
fn apps(app: &str) -> Peer {
    pods(Some(Selector::default()), select(&[("app", app)]))
}

fn to(action: Action, peers: Vec<Peer>) -> ClusterRule {
    cluster_rule(action, peers, None)
}

fn egress(name: &str, at: (Tier, u16), rules: Vec<ClusterRule>) -> ClusterPolicy {
    cluster_policy(name, at, vec![], rules)
}

/// Isolates x/a for egress and allows these peers.
fn network_policy(peers: Vec<Peer>) -> Policy {
    let rules = vec![Rule { peers: Some(peers), ports: None }];
    objects::policy("x", "p", select(&[("app", "a")]), None, Some(rules))
}

#[test]
fn without_rules_of_the_direction_nothing_is_affected() {
    let oracle = cluster([egress("p", (Admin, 1), vec![to(Deny, vec![all_of("y")])])]);
    assert_eq!(reach(&oracle, Direction::Ingress, (6, 80)), [true; 5]);
    assert_eq!(reach(&oracle, Direction::Egress, (6, 80)), [true, false, false, true, true]);
}

#[test]
fn the_rule_at_the_top_takes_precedence() {
    let rules = vec![to(Accept, vec![apps("b")]), to(Deny, vec![all_of("y"), all_of("x")])];
    assert_eq!(sent([egress("p", (Admin, 1), rules.clone())]), [true, false, true, true, true]);
    let rules = rules.into_iter().rev().collect();
    assert_eq!(sent([egress("p", (Admin, 1), rules)]), [false, false, false, true, true]);
}

#[test]
fn lower_priority_values_are_checked_first_then_names() {
    let deny = |name, priority| egress(name, (Admin, priority), vec![to(Deny, vec![all_of("y")])]);
    let accept =
        |name, priority| egress(name, (Admin, priority), vec![to(Accept, vec![apps("a")])]);
    let accepted = [true, true, false, true, true];
    let denied = [true, false, false, true, true];
    assert_eq!(sent([deny("a", 2), accept("b", 1)]), accepted);
    assert_eq!(sent([deny("b", 1), accept("a", 2)]), denied);
    assert_eq!(sent([deny("b", 1000), accept("a", 1000)]), accepted);
    assert_eq!(sent([deny("a", 0), accept("b", 0)]), denied);
}

#[test]
fn what_admin_decides_no_network_policy_overrides() {
    let rules = vec![to(Accept, vec![apps("a")]), to(Deny, vec![apps("b")])];
    let mut oracle = cluster([egress("p", (Admin, 1), rules)]);
    oracle.policies =
        vec![network_policy(vec![block("10.0.0.0/24", &[]), block("8.8.8.8/32", &[])])];
    assert_eq!(reach(&oracle, Direction::Egress, (6, 80)), [false, true, false, false, true]);
}

#[test]
fn policies_on_trial_decide_nothing() {
    let deny = egress("p", (Admin, 1), vec![to(Deny, vec![all_of("y")])]);
    let mut oracle = cluster([ClusterPolicy { enforcement: Enforcement::Audit, ..deny }]);
    let policy = network_policy(vec![]);
    oracle.policies = vec![Policy { enforcement: Enforcement::Audit, ..policy }];
    assert_eq!(reach(&oracle, Direction::Egress, (6, 80)), [true; 5]);
    oracle.cluster_policies[0].enforcement = Enforcement::Enforce;
    assert_eq!(reach(&oracle, Direction::Egress, (6, 80)), [true, false, false, true, true]);
    oracle.policies[0].enforcement = Enforcement::Enforce;
    assert_eq!(reach(&oracle, Direction::Egress, (6, 80)), [false; 5]);
}

#[test]
fn pass_skips_the_rest_of_the_tier_only() {
    let admin = [
        egress("a", (Admin, 1), vec![to(Pass, vec![apps("a")]), to(Deny, vec![apps("a")])]),
        egress("b", (Admin, 2), vec![to(Deny, vec![all_of("y")])]),
    ];
    assert_eq!(sent(admin.clone()), [true, true, false, true, true]);
    let baseline = egress("c", (Baseline, 0), vec![to(Deny, vec![all_of("y")])]);
    assert_eq!(sent(admin.clone().into_iter().chain([baseline])), [true, false, false, true, true]);
    let mut oracle = cluster(admin);
    oracle.policies = vec![network_policy(vec![])];
    assert_eq!(reach(&oracle, Direction::Egress, (6, 80)), [false; 5]);
    // In the last tier, Pass leaves only the default.
    let rules = vec![to(Pass, vec![apps("a")]), to(Deny, vec![all_of("y")])];
    assert_eq!(sent([egress("c", (Baseline, 0), rules)]), [true, true, false, true, true]);
}

#[test]
fn baseline_is_asked_where_no_network_policy_selects_the_pod() {
    let rules = vec![to(Deny, vec![all_of("y"), block("0.0.0.0/0", &[])])];
    let mut oracle = cluster([egress("p", (Baseline, 1), rules)]);
    assert_eq!(reach(&oracle, Direction::Egress, (6, 80)), [false; 5]);
    oracle.policies = vec![network_policy(vec![apps("a")])];
    assert_eq!(reach(&oracle, Direction::Egress, (6, 80)), [false, true, false, false, false]);
    // The policy selects the pod, but for the other direction.
    oracle.policies[0].ingress = oracle.policies[0].egress.take();
    assert_eq!(reach(&oracle, Direction::Egress, (6, 80)), [false; 5]);
    // An Accept rule of Baseline opens nothing that a NetworkPolicy closes.
    let mut oracle = cluster([egress("p", (Baseline, 1), vec![to(Accept, vec![all_of("y")])])]);
    oracle.policies = vec![network_policy(vec![])];
    assert_eq!(reach(&oracle, Direction::Egress, (6, 80)), [false; 5]);
}

#[test]
fn subjects_are_pods_of_namespaces_but_not_those_of_the_host_network() {
    let about = |namespaces, pods| {
        let policy = egress("p", (Admin, 1), vec![to(Deny, vec![apps("b")])]);
        let oracle =
            cluster([ClusterPolicy { subject: NamespacedPods { namespaces, pods }, ..policy }]);
        let denied = |pod: &&Pod| !oracle.judge(pod, Direction::Egress, ip("10.0.1.2"), 6, 80);
        let of = oracle.pods.iter().filter(|pod| !pod.addresses.contains(&ip("10.0.1.2")));
        of.filter(denied).map(|pod| pod.key.to_string()).collect::<Vec<_>>()
    };
    let all = Selector::default;
    assert_eq!(about(all(), all()), ["x/a", "x/b", "x/c", "y/a"]);
    assert_eq!(about(select(&[("ns", "x")]), all()), ["x/a", "x/b", "x/c"]);
    assert_eq!(about(all(), select(&[("app", "a")])), ["x/a", "y/a"]);
    assert_eq!(about(select(&[("ns", "x")]), select(&[("app", "a")])), ["x/a"]);
    assert_eq!(about(all(), select(&[("app", "host")])), Vec::<String>::new());
}

#[test]
fn pods_of_the_host_network_are_no_peers_their_nodes_are() {
    let admin = |peer| sent([egress("p", (Admin, 1), vec![to(Deny, vec![peer])])]);
    assert_eq!(admin(apps("host")), [true; 5]);
    let every_pod = pods(Some(Selector::default()), Selector::default());
    assert_eq!(admin(every_pod), [false, false, false, true, true]);
    assert_eq!(admin(Peer::Nodes(Selector::default())), [true, true, true, false, true]);
    assert_eq!(admin(Peer::Nodes(select(&[("role", "edge")]))), [true, true, true, false, true]);
    assert_eq!(admin(Peer::Nodes(select(&[("role", "work")]))), [true; 5]);
}

#[test]
fn networks_match_pods_and_nodes_too() {
    let admin = |cidrs: &[&str]| {
        let peers = cidrs.iter().map(|cidr| block(cidr, &[])).collect();
        sent([egress("p", (Admin, 1), vec![to(Deny, peers)])])
    };
    assert_eq!(admin(&["0.0.0.0/0"]), [false; 5]);
    assert_eq!(admin(&["10.0.1.0/31", "8.0.0.0/8"]), [true, false, true, true, false]);
    assert_eq!(admin(&["::/0"]), [true; 5]);
    // Quote of the API: "add a rule that Passes all pod traffic before the Networks rule".
    let every_pod = pods(Some(Selector::default()), Selector::default());
    let rules = vec![to(Pass, vec![every_pod]), to(Deny, vec![block("0.0.0.0/0", &[])])];
    assert_eq!(sent([egress("p", (Admin, 1), rules)]), [true, true, true, false, false]);
}

#[test]
fn the_own_node_is_always_reached_but_for_the_tiers() {
    let own = |oracle: &Oracle| {
        oracle.judge(&oracle.pods[0], Direction::Egress, ip("192.168.0.1"), 6, 80)
    };
    let deny =
        |tier| egress("p", (tier, 1), vec![to(Deny, vec![Peer::Nodes(Selector::default())])]);
    let mut oracle = cluster([]);
    oracle.policies = vec![network_policy(vec![])];
    assert!(own(&oracle));
    oracle.cluster_policies = vec![deny(Admin)];
    assert!(!own(&oracle));
    // The NetworkPolicy decides, and always allows this node.
    oracle.cluster_policies = vec![deny(Baseline)];
    assert!(own(&oracle));
    oracle.policies.clear();
    assert!(!own(&oracle));
}

#[test]
fn the_node_itself_and_the_pod_itself_are_never_stopped() {
    let rules = || vec![to(Deny, vec![apps("a"), block("0.0.0.0/0", &[])])];
    let oracle = cluster([cluster_policy("p", (Admin, 1), rules(), rules())]);
    let ask = |from: &str, to: &str| oracle.verdict(&objects::probe(from, to, 80));
    let judged = |egress, ingress| OracleVerdict::Judged { egress, ingress };
    assert_eq!(ask("x/a", "x/a"), judged(true, true));
    assert_eq!(ask("192.168.0.1", "x/a"), judged(true, true));
    assert_eq!(ask("192.168.0.2", "x/a"), judged(true, false));
    assert_eq!(ask("x/b", "x/a"), judged(false, false));
}

#[test]
fn protocols_and_ports() {
    let range = PortRule { protocol: Protocol::Tcp, port: PortMatch::Range(80, 90) };
    let any_udp = PortRule { protocol: Protocol::Udp, port: PortMatch::Any };
    let with = |ports| {
        let rule = cluster_rule(Deny, vec![all_of("x"), all_of("y")], ports);
        let oracle = cluster([egress("p", (Admin, 1), vec![rule])]);
        [(6, 79), (6, 80), (6, 90), (6, 91), (17, 7), (132, 80), (1, 0)]
            .map(|at| reach(&oracle, Direction::Egress, at)[0])
    };
    assert_eq!(with(None), [false; 7]);
    assert_eq!(with(Some(vec![range])), [true, false, false, true, true, true, true]);
    assert_eq!(with(Some(vec![tcp(79), any_udp])), [false, true, true, true, false, true, true]);
    assert_eq!(with(Some(vec![])), [true; 7]);
}

#[test]
fn named_ports_are_those_of_the_pod_that_receives() {
    let named = |name| {
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        Some(all.map(|protocol| port_name(protocol, name)).to_vec())
    };
    let rule =
        |name| vec![cluster_rule(Deny, vec![apps("b"), block("8.8.8.8/32", &[])], named(name))];
    let oracle = cluster([cluster_policy("p", (Admin, 1), rule("dns"), rule("web"))]);
    let denied = [false, true, false, true, true];
    assert_eq!(reach(&oracle, Direction::Egress, (6, 80)), denied);
    assert_eq!(reach(&oracle, Direction::Egress, (17, 53)), [true; 5]);
    assert_eq!(reach(&oracle, Direction::Egress, (17, 80)), [true; 5]);
    assert_eq!(reach(&oracle, Direction::Ingress, (17, 53)), [false, true, false, true, false]);
    assert_eq!(reach(&oracle, Direction::Ingress, (6, 80)), [true; 5]);
    let oracle = cluster([cluster_policy("p", (Admin, 1), vec![], rule("absent"))]);
    assert_eq!(reach(&oracle, Direction::Egress, (6, 80)), [true; 5]);
}

#[test]
fn rules_that_are_not_understood_fail_closed() {
    let nothing = cluster_rule(Accept, vec![], None);
    let everything = ClusterRule {
        matches: Rule { peers: None, ports: None },
        ..cluster_rule(Deny, vec![], None)
    };
    let accept = || to(Accept, vec![apps("a")]);
    let deny = || to(Deny, vec![all_of("y")]);
    let rules = vec![nothing, accept(), deny()];
    assert_eq!(sent([egress("p", (Admin, 1), rules)]), [true, true, false, true, true]);
    let rules = vec![accept(), everything];
    let oracle = cluster([egress("p", (Admin, 1), rules)]);
    assert_eq!(reach(&oracle, Direction::Egress, (1, 0)), [false, true, false, false, false]);
}

/// Adds a Service of y with a node port, which translates port 443 to port 80 of these backends.
fn serve(oracle: &mut Oracle, backends: &[&str]) {
    oracle.services = vec![objects::service(("x", "s"), &["10.9.0.1"], &[("", 443, Some(30443))])];
    oracle.slices = vec![objects::slice(("x", "s-1"), "s", backends, &[("", 80)])];
}

/// Whether x/a may send to the Service, and to the node port of its own node and of the other one.
fn serves(oracle: &Oracle) -> [bool; 3] {
    [("10.9.0.1", 443), ("192.168.0.1", 30443), ("192.168.0.2", 30443)]
        .map(|(to, port)| oracle.judge(&oracle.pods[0], Direction::Egress, ip(to), 6, port))
}

#[test]
fn a_service_is_denied_if_a_tier_denies_all_of_its_backends_elsewhere_any() {
    let mut oracle = cluster([]);
    serve(&mut oracle, &["10.0.1.1", "10.0.1.2"]);
    let mut with = |rules| {
        oracle.cluster_policies = vec![egress("p", (Admin, 1), rules)];
        serves(&oracle)
    };
    assert_eq!(with(vec![]), [true; 3]);
    assert_eq!(with(vec![to(Deny, vec![apps("a")])]), [true, true, false]);
    assert_eq!(with(vec![to(Deny, vec![all_of("y")])]), [false, true, false]);
    // The addresses themselves are denied, the backends are not.
    let frontends = || to(Deny, vec![block("10.9.0.1/32", &[]), Peer::Nodes(Selector::default())]);
    assert_eq!(with(vec![frontends()]), [true, false, true]);
    assert_eq!(
        with(vec![to(Accept, vec![apps("a")]), to(Deny, vec![all_of("y")])]),
        [true, true, false]
    );
    // Accepting the addresses opens no denied backend.
    let accept = to(Accept, vec![block("10.9.0.1/32", &[]), Peer::Nodes(Selector::default())]);
    assert_eq!(with(vec![accept, to(Deny, vec![all_of("y")])]), [false, true, false]);
}

#[test]
fn a_network_policy_that_grants_the_address_counts_where_no_tier_denies() {
    let mut oracle = cluster([egress("p", (Admin, 1), vec![to(Deny, vec![apps("a")])])]);
    oracle.policies = vec![network_policy(vec![block("10.9.0.1/32", &[])])];
    serve(&mut oracle, &["10.0.1.1", "10.0.1.2"]);
    assert_eq!(serves(&oracle), [true, true, false]);
    serve(&mut oracle, &["10.0.1.1"]);
    assert_eq!(serves(&oracle), [false, true, false]);
    serve(&mut oracle, &["10.0.1.2"]);
    assert_eq!(serves(&oracle), [true, true, false]);
}

#[test]
fn a_pod_through_its_own_service_is_exempt_from_network_policy_alone() {
    let mut oracle = cluster([]);
    serve(&mut oracle, &["10.0.0.1"]);
    let ask = |oracle: &Oracle| {
        let verdict = oracle.verdict(&objects::probe("x/a", "10.9.0.1", 443));
        assert_eq!(verdict, OracleVerdict::Translated { allowed: serves(oracle)[0] });
        serves(oracle)[0]
    };
    let deny = |tier| cluster_policy("p", (tier, 1), vec![], vec![to(Deny, vec![apps("a")])]);
    oracle.policies = vec![network_policy(vec![])];
    assert!(ask(&oracle));
    oracle.cluster_policies = vec![deny(Baseline)];
    assert!(ask(&oracle));
    oracle.cluster_policies = vec![deny(Admin)];
    assert!(!ask(&oracle));
    // Also if the ingress rule denies it, and with any other backends.
    let ClusterPolicy { ingress, egress, .. } = oracle.cluster_policies.remove(0);
    oracle.cluster_policies = vec![cluster_policy("p", (Admin, 1), egress, ingress)];
    serve(&mut oracle, &["10.0.0.1", "10.0.1.2"]);
    assert!(!ask(&oracle));
    oracle.policies.clear();
    oracle.cluster_policies = vec![deny(Baseline)];
    assert!(!ask(&oracle));
    // A rule about the Service's address does not concern the backend.
    let frontend = to(Deny, vec![block("10.9.0.0/16", &[])]);
    oracle.cluster_policies = vec![cluster_policy("p", (Admin, 1), vec![], vec![frontend])];
    assert!(ask(&oracle));
}
