//! Pairs that rules name, in generated clusters, compared with the oracle.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::HashMap;
use std::net::IpAddr;

use netpold_client::offline::read_text;
use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::model::{Change, Key, Pod, Protocol};
use netpold_core::probe::{IpProtocol, Party as Side, Probe};
use netpold_review::diff::{DiffParty, IsolationState, NamedPair, NamedPairs, named_pairs};
use netpold_testkit::generate;
use netpold_testkit::oracle::Oracle;

/// Number of generated clusters.
const CLUSTERS: u64 = 1500;
/// Ports near the ends of generated ranges.
const PORTS: [u16; 8] = [1, 53, 79, 80, 81, 443, 8080, u16::MAX];

struct World {
    cluster: Cluster,
    oracle: Oracle,
    named: NamedPairs,
    parties: HashMap<Key, usize>,
}

impl World {
    fn new(seed: u64) -> Self {
        let objects: Vec<Change> = generate::GeneratedCluster::from_seed(seed).objects;
        let objects: Vec<Change> = objects.into_iter().filter(Change::is_object).collect();
        let cluster: Cluster = objects.iter().cloned().collect();
        let named = named_pairs(&cluster, &[], usize::MAX);
        let mut parties = HashMap::new();
        for (index, party) in named.parties.iter().enumerate() {
            if let DiffParty::Workload(workload) = party {
                parties.extend(workload.pods[1].iter().map(|pod| (pod.clone(), index)));
            }
        }
        Self { cluster, oracle: objects.into_iter().collect(), named, parties }
    }

    /// Returns the pods that policies can select, each with its addresses.
    fn pods(&self) -> Vec<(&Pod, IpAddr)> {
        let pods = self.cluster.pods().values().map(|pod| &**pod).filter(|pod| is_subject(pod));
        let owned = pods.flat_map(|pod| pod.addresses.iter().map(move |address| (pod, *address)));
        owned
            .filter(|(pod, at)| self.cluster.owner(*at).is_some_and(|it| it.key == pod.key))
            .collect()
    }

    /// Returns whether an address is listed twice: a pod reaches its own address even if another object has it, and a
    /// Service's address is translated.
    fn has_claimed_addresses(&self) -> bool {
        let pods = self.cluster.pods().values().filter(|pod| !pod.host_network);
        let services = self.cluster.services().values().flat_map(|it| it.addresses.clone());
        let nodes = self.cluster.nodes().values().flat_map(|node| node.addresses.clone());
        let pods = pods.flat_map(|pod| pod.addresses.clone());
        let mut listed: Vec<IpAddr> = pods.chain(services).chain(nodes).collect();
        let all = listed.len();
        listed.sort_unstable();
        listed.dedup();
        listed.len() < all
    }

    fn is_allowed(&self, from: IpAddr, to: IpAddr, protocol: IpProtocol, port: u16) -> bool {
        let (from, to) = (Side::Address(from), Side::Address(to));
        self.oracle.verdict(&Probe { from, to, protocol, port }).allowed().unwrap()
    }

    fn pair(&self, from: usize, to: usize) -> Option<&NamedPair> {
        self.named.pairs.iter().find(|pair| (pair.from, pair.to) == (from, to))
    }
}

#[test]
fn named_pairs_have_the_oracles_ports_and_others_follow_from_isolation() {
    let (mut named, mut cut, mut open) = (0, 0, 0);
    for seed in 0..CLUSTERS {
        let world = World::new(seed);
        let pods = world.pods();
        if world.has_claimed_addresses() {
            continue;
        }
        for (from, source) in &pods {
            for (to, destination) in &pods {
                if from.key == to.key || source.is_ipv6() != destination.is_ipv6() {
                    continue;
                }
                let (a, b) = (world.parties[&from.key], world.parties[&to.key]);
                let at = |port| world.is_allowed(*source, *destination, IpProtocol::TCP, port);
                if let Some(pair) = world.pair(a, b) {
                    for port in PORTS.into_iter().filter(|_| !pair.some) {
                        let said = pair.allowed.contains(Protocol::Tcp, port);
                        assert_eq!(
                            said,
                            at(port),
                            "seed {seed}: {} to {}, TCP {port}",
                            from.key,
                            to.key
                        );
                        named += 1;
                    }
                    continue;
                }
                let [sender, receiver] = [a, b].map(|index| world.named.sides[index]);
                if sender.egress_tiers || receiver.ingress_tiers {
                    continue;
                }
                let closed = sender.egress == IsolationState::Isolated && !sender.to_everyone
                    || receiver.ingress == IsolationState::Isolated && !receiver.from_everyone;
                let free = [sender.egress, receiver.ingress]
                    .into_iter()
                    .all(|state| matches!(state, IsolationState::Open | IsolationState::Trial));
                for port in PORTS {
                    if closed {
                        assert!(!at(port), "seed {seed}: no rule names {} to {}", from.key, to.key);
                        cut += 1;
                    } else if free {
                        assert!(
                            at(port),
                            "seed {seed}: nothing isolates {} to {}",
                            from.key,
                            to.key
                        );
                        open += 1;
                    }
                }
            }
        }
    }
    assert!(named > 1000 && cut > 1000 && open > 1000, "{named} named, {cut} cut, {open} open");
}

/// Returns the pairs of a cluster by manifests.
fn named(objects: &str, most: usize) -> NamedPairs {
    let objects = read_text("objects", objects.as_bytes(), "shop").unwrap();
    named_pairs(&objects.into_iter().collect(), &[], most)
}

fn index(named: &NamedPairs, title: &str) -> usize {
    named.parties.iter().position(|party| party.to_string() == title).unwrap()
}

fn pod(name: &str, labels: &str, address: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {labels}}}, \
         spec: {{nodeName: n1, containers: []}}, status: {{phase: Running, podIP: {address}}}}}\n---\n"
    )
}

fn policy(name: &str, selector: &str, peers: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: shop}}, \
         spec: {{podSelector: {selector}, ingress: [{{from: {peers}}}]}}}}\n---\n"
    )
}

#[test]
fn peers_that_match_nearly_all_pods_are_bounded_and_come_last() {
    const PODS: usize = 1010;
    let mut text = String::new();
    for number in 0..PODS {
        let address = format!("10.0.{}.{}", number / 250, number % 250 + 1);
        text += &pod(&format!("pod-{number:04}"), &format!("{{app: a{number}}}"), &address);
    }
    for number in 0..3 {
        let peer = format!(
            "[{{namespaceSelector: {{}}, podSelector: {{matchExpressions: [{{key: app, operator: NotIn, values: \
             [none{number}]}}]}}}}]"
        );
        text += &policy(&format!("broad-{number}"), "{}", &peer);
    }
    text +=
        &policy("narrow", "{matchLabels: {app: a7}}", "[{podSelector: {matchLabels: {app: a5}}}]");
    text += &policy("everyone", "{}", "[{namespaceSelector: {}}]");
    let named = named(&text, 1);
    let [from, to] = ["shop/pod-0005", "shop/pod-0007"].map(|title| index(&named, title));
    let pairs: Vec<_> = named.pairs.iter().map(|pair| (pair.from, pair.to)).collect();
    assert_eq!(pairs, [(from, to)], "the narrow rule's pair is the first");
    // Three policies name each pair of a pod; more than a million are not distinguished.
    assert!((PODS * PODS - 1..3 * PODS * PODS).contains(&named.left_out), "{}", named.left_out);
}

#[test]
fn a_peer_of_all_pods_names_no_pair() {
    let text = pod("web", "{app: web}", "10.0.0.1")
        + &pod("db", "{app: db}", "10.0.0.2")
        + &policy("db", "{matchLabels: {app: db}}", "[{namespaceSelector: {}}]");
    let named = named(&text, 100);
    assert_eq!(named.pairs, []);
    assert!(named.sides[index(&named, "shop/db")].from_everyone);
}

#[test]
fn pods_of_a_workload_that_are_denied_alone_are_noted() {
    let text =
        pod("web-6d9f7c-aaaaa", "{app: web, pod-template-hash: 6d9f7c, role: a}", "10.0.0.1")
            + &pod(
                "web-6d9f7c-bbbbb",
                "{app: web, pod-template-hash: 6d9f7c, role: b}",
                "10.0.0.2",
            )
            + &pod("db", "{app: db}", "10.0.0.3")
            + &policy(
                "db",
                "{matchLabels: {app: db}}",
                "[{podSelector: {matchLabels: {role: a}}}]",
            );
    let named = named(&text, 100);
    let [from, to] = ["shop/web", "shop/db"].map(|title| index(&named, title));
    let pair = named.pairs.iter().find(|pair| (pair.from, pair.to) == (from, to)).unwrap();
    assert!(!pair.allowed.is_empty() && pair.some && pair.some_denied, "{pair:?}");
}

#[test]
fn cluster_policies_are_noted_by_direction_and_only_if_enforced() {
    let cluster_policy = |name: &str, tier: &str, annotations: &str, rules: &str| {
        format!(
            "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: {name}, \
             annotations: {annotations}}}, spec: {{tier: {tier}, priority: 1, subject: {{namespaces: {{}}}}, {rules}}}}}\n---\n"
        )
    };
    let text = pod("web", "{app: web}", "10.0.0.1")
        + &cluster_policy(
            "deny",
            "Baseline",
            "{}",
            "ingress: [{action: Deny, from: [{namespaces: {}}]}]",
        )
        + &cluster_policy(
            "trial",
            "Admin",
            "{netpold.io/enforcement: audit}",
            "egress: [{action: Deny, to: [{namespaces: {}}]}]",
        );
    let named = named(&text, 100);
    let sides = named.sides[index(&named, "shop/web")];
    assert_eq!((sides.ingress, sides.egress), (IsolationState::Open, IsolationState::Open));
    assert_eq!((sides.ingress_tiers, sides.egress_tiers), (true, false));
}
