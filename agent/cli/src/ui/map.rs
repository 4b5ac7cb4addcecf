//! The map: workloads and other parties, and the pairs that rules name.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use netpold_api::flows::{FlowsAnswer, ListedFlow};
use netpold_core::cluster::{AddressOwner, Cluster};
use netpold_core::model::{Direction, Key};
use netpold_review::diff::{DiffParty, NamedPair, PartyIsolation};
use serde::Serialize;
use serde_json::{Value, json};

use super::snapshot::ObjectSnapshot;

/// Verdict of an edge, as a word of `observe`; `mixed` if all ports are denied to some pods or addresses only.
fn verdict(pair: &NamedPair) -> &'static str {
    match (pair.allowed.is_empty(), pair.on_trial.is_empty()) {
        (true, _) => "deny",
        (false, _) if pair.some_denied => "mixed",
        (false, false) => "audit",
        (false, true) => "allow",
    }
}

/// A node of the map.
#[derive(Serialize)]
struct MapNode {
    kind: &'static str,
    /// Namespace; a word for the group of parties that have none.
    group: String,
    name: String,
    /// Name as in `diff`.
    title: String,
    pods: usize,
    #[serde(flatten)]
    sides: PartyIsolation,
}

/// Returns the document of the map. An edge is sender, receiver, verdict, ports and ports on trial; texts are listed once.
pub(super) fn document(world: &ObjectSnapshot, is_live: bool) -> Value {
    let named = &world.named;
    let nodes = named.parties.iter().zip(&named.sides);
    let nodes: Vec<MapNode> = nodes.map(|(party, sides)| node(party, *sides)).collect();
    let (mut texts, mut numbers) = (Vec::new(), HashMap::new());
    let mut number = |text: String| {
        *numbers.entry(text.clone()).or_insert_with(|| {
            texts.push(text);
            texts.len() - 1
        })
    };
    let edges = named.pairs.iter().map(|pair| {
        let ports = number(pair.allowed.to_string());
        let on_trial = number(pair.on_trial.to_string());
        json!([pair.from, pair.to, verdict(pair), ports, on_trial, pair.some])
    });
    let edges: Vec<Value> = edges.collect();
    json!({
        "revision": world.revision,
        "source": world.title,
        "live": is_live,
        "namespace": world.namespace,
        "pods": world.cluster().pods().len(),
        "policies": world.cluster().policies().len() + world.cluster().cluster_policies().count(),
        "nodes": nodes,
        "texts": texts,
        "edges": edges,
        "left_out": named.left_out,
    })
}

fn node(party: &DiffParty, sides: PartyIsolation) -> MapNode {
    let title = party.to_string();
    let (kind, group, name, pods) = match party {
        DiffParty::Workload(workload) => {
            let (namespace, name) = title.split_once('/').unwrap_or(("", &title));
            ("workload", namespace.to_owned(), name.to_owned(), workload.pods[1].len())
        }
        DiffParty::OwnNode | DiffParty::Nodes { .. } => {
            ("nodes", "nodes".to_owned(), title.clone(), 0)
        }
        DiffParty::Outside { .. } => ("outside", "outside".to_owned(), title.clone(), 0),
        DiffParty::Name(_) => ("name", "names".to_owned(), title.clone(), 0),
        DiffParty::Service(_) => ("service", "services".to_owned(), title.clone(), 0),
    };
    MapNode { kind, group, name, title, pods, sides }
}

/// Parties by their pods, nodes and addresses.
pub(super) struct PartyIndex<'w> {
    cluster: &'w Cluster,
    of_pods: HashMap<&'w Key, usize>,
    of_nodes: HashMap<&'w str, usize>,
    own_node: Option<usize>,
    /// Blocks, the longest prefixes first, with the blocks inside that are parties of their own.
    outside: Vec<(IpNet, &'w [IpNet], usize)>,
}

impl<'w> PartyIndex<'w> {
    pub(super) fn new(cluster: &'w Cluster, parties: &'w [DiffParty]) -> Self {
        let (mut of_pods, mut of_nodes) = (HashMap::new(), HashMap::new());
        let (mut own_node, mut outside) = (None, Vec::new());
        for (index, party) in parties.iter().enumerate() {
            match party {
                DiffParty::Workload(workload) => {
                    of_pods.extend(workload.pods.iter().flatten().map(|pod| (pod, index)));
                }
                DiffParty::OwnNode => own_node = Some(index),
                DiffParty::Nodes { nodes, .. } => {
                    of_nodes.extend(nodes.iter().map(|node| (node.as_str(), index)));
                }
                DiffParty::Outside { block, without, .. } => {
                    outside.push((*block, &without[..], index));
                }
                DiffParty::Name(_) | DiffParty::Service(_) => {}
            }
        }
        outside.sort_by_key(|(block, _, _)| std::cmp::Reverse(block.prefix_len()));
        Self { cluster, of_pods, of_nodes, own_node, outside }
    }

    /// Returns the party of a pod.
    pub(super) fn of_pod(&self, pod: &Key) -> Option<usize> {
        self.of_pods.get(pod).copied()
    }

    /// Returns the party of the owner of an address that `pod` exchanges packets with; for a Service, the party of its
    /// first backend. Rules that name addresses, nodes or domain names distinguish them: none other stands for these.
    pub(super) fn of_peer(
        &self,
        pod: &Key,
        peer: &AddressOwner,
        address: Option<IpAddr>,
    ) -> Option<usize> {
        match peer {
            AddressOwner::Pod(key) => self.of_pod(key),
            AddressOwner::Node { name } => match self.cluster.pods().get(pod) {
                Some(pod) if *pod.node == **name => self.own_node,
                _ => self.of_nodes.get(name.as_str()).copied(),
            },
            AddressOwner::Outside => self.of_address(address?),
            AddressOwner::Service(key) => self.of_service(key),
        }
    }

    /// Returns the party of the longest block with an address.
    fn of_address(&self, address: IpAddr) -> Option<usize> {
        let (_, without, index) =
            self.outside.iter().find(|(block, _, _)| block.contains(&address))?;
        let is_other = without.iter().any(|block| block.contains(&address));
        (!is_other).then_some(*index)
    }

    fn of_service(&self, service: &Key) -> Option<usize> {
        let slices = self.cluster.slices().values();
        let slices = slices.filter(|slice| {
            slice.service == service.name && slice.key.namespace == service.namespace
        });
        let mut addresses = slices.flat_map(|slice| &slice.addresses);
        addresses.find_map(|address| self.of_pod(&self.cluster.owner(*address)?.key))
    }

    fn of_remote(&self, flow: &ListedFlow) -> Option<usize> {
        let remote = flow.translated.map_or(flow.remote, |on| on.to.ip());
        self.of_peer(&flow.pod, &self.cluster.owner_of_address(remote), Some(remote))
    }
}

/// Returns the open flows of nodes by pair of parties: sender, receiver and number of flows.
pub(super) fn flows(world: &ObjectSnapshot, answers: &[FlowsAnswer]) -> Value {
    let places = PartyIndex::new(world.cluster(), &world.named.parties);
    let mut pairs: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    let (mut unplaced, mut left_out) = (0_u64, 0_u64);
    for answer in answers {
        left_out += answer.left_out.iter().map(|pod| pod.flows).sum::<u64>();
        for flow in &answer.flows {
            let (pod, remote) = (places.of_pod(&flow.pod), places.of_remote(flow));
            let (Some(pod), Some(remote)) = (pod, remote) else {
                unplaced += 1;
                continue;
            };
            for direction in &flow.began {
                let pair = match direction {
                    Direction::Egress => (pod, remote),
                    Direction::Ingress => (remote, pod),
                };
                *pairs.entry(pair).or_default() += 1;
            }
        }
    }
    let pairs: Vec<Value> =
        pairs.into_iter().map(|((from, to), flows)| json!([from, to, flows])).collect();
    json!({ "revision": world.revision, "flows": pairs, "unplaced": unplaced, "left_out": left_out })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netpold_client::offline::read_text;
    use netpold_review::diff::named_pairs;

    const OBJECTS: &str = r#"
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {zone: a}}, status: {addresses: [{type: InternalIP, address: 10.0.0.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {zone: b}}, status: {addresses: [{type: InternalIP, address: 10.0.0.2}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {nodeName: n1, containers: []},
  status: {phase: Running, podIP: 10.1.0.1, podIPs: [{ip: 10.1.0.1}, {ip: "fd00::1"}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: shop},
  spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.128/25]}}]}]}}
---
{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: nodes},
  spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{nodes: {matchLabels: {zone: b}}}]}]}}
"#;

    #[test]
    fn peers_have_the_party_that_rules_distinguish() {
        let cluster: Cluster =
            read_text("objects", OBJECTS.as_bytes(), "shop").unwrap().into_iter().collect();
        let named = named_pairs(&cluster, &[], 100);
        let places = PartyIndex::new(&cluster, &named.parties);
        let web = Key { namespace: "shop".into(), name: "web".into() };
        let title = |index: Option<usize>| index.map(|index| named.parties[index].to_string());
        let outside = |address: &str| {
            title(places.of_peer(&web, &AddressOwner::Outside, Some(address.parse().unwrap())))
        };
        assert_eq!(outside("192.0.2.1").as_deref(), Some("192.0.2.0/24 without 192.0.2.128/25"));
        assert_eq!(outside("192.0.2.129").as_deref(), Some("192.0.2.128/25"));
        let (v4, v6) = (outside("198.51.100.1").unwrap(), outside("2001:db8::1").unwrap());
        assert!(v4.contains("IPv4") && v6.contains("IPv6"), "{v4}, {v6}");
        assert_eq!(places.of_peer(&web, &AddressOwner::Outside, None), None);
        let node = |name: &str| {
            title(places.of_peer(&web, &AddressOwner::Node { name: name.into() }, None))
        };
        assert_eq!(node("n1").as_deref(), Some("own node"));
        assert_eq!(node("n2").as_deref(), Some("node n2"));
        assert_eq!(node("n3"), None);
    }
}
