//! The map: workloads and other parties, and the pairs that rules name.

use std::collections::{BTreeMap, HashMap};

use netpold_api::flows::{Answer, Flow};
use netpold_core::cluster::{Cluster, Whose};
use netpold_core::model::{Direction, Key};
use serde::Serialize;
use serde_json::{Value, json};

use super::world::World;
use crate::diff::{NamedPair, Party, Sides};

/// Verdict of an edge, as a word of `observe`.
fn verdict(pair: &NamedPair) -> &'static str {
    match (pair.allowed.is_empty(), pair.on_trial.is_empty()) {
        (true, _) => "deny",
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
    sides: Sides,
}

/// Returns the document of the map. An edge is sender, receiver, verdict, ports and ports on trial; texts are listed once.
pub(super) fn document(world: &World, is_live: bool) -> Value {
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
        "pods": world.cluster.pods().len(),
        "policies": world.cluster.policies().len() + world.cluster.cluster_policies().count(),
        "nodes": nodes,
        "texts": texts,
        "edges": edges,
        "left_out": named.left_out,
    })
}

fn node(party: &Party, sides: Sides) -> MapNode {
    let title = party.to_string();
    let (kind, group, name, pods) = match party {
        Party::Workload(workload) => {
            let (namespace, name) = title.split_once('/').unwrap_or(("", &title));
            ("workload", namespace.to_owned(), name.to_owned(), workload.pods[1].len())
        }
        Party::OwnNode | Party::Nodes { .. } => ("nodes", "nodes".to_owned(), title.clone(), 0),
        Party::Outside { .. } => ("outside", "outside".to_owned(), title.clone(), 0),
        Party::Name(_) => ("name", "names".to_owned(), title.clone(), 0),
    };
    MapNode { kind, group, name, title, pods, sides }
}

/// Parties by their pods.
pub(super) struct Places<'w> {
    cluster: &'w Cluster,
    of_pods: HashMap<&'w Key, usize>,
    outside: Option<usize>,
    nodes: Option<usize>,
}

impl<'w> Places<'w> {
    pub(super) fn new(world: &'w World) -> Self {
        let parties = &world.named.parties;
        let mut of_pods = HashMap::new();
        for (index, party) in parties.iter().enumerate() {
            if let Party::Workload(workload) = party {
                of_pods.extend(workload.pods.iter().flatten().map(|pod| (pod, index)));
            }
        }
        let outside = parties
            .iter()
            .position(|it| matches!(it, Party::Outside { block, .. } if block.prefix_len() == 0));
        let nodes = parties.iter().position(|it| matches!(it, Party::Nodes { .. }));
        Self { cluster: &world.cluster, of_pods, outside, nodes }
    }

    /// Returns the party of a pod.
    pub(super) fn of_pod(&self, pod: &Key) -> Option<usize> {
        self.of_pods.get(pod).copied()
    }

    /// Returns the party of the owner of an address; for a Service, the party of its first backend.
    pub(super) fn of_peer(&self, peer: &Whose) -> Option<usize> {
        match peer {
            Whose::Pod(key) => self.of_pod(key),
            Whose::Node { .. } => self.nodes,
            Whose::Outside => self.outside,
            Whose::Service(key) => self.of_service(key),
        }
    }

    fn of_service(&self, service: &Key) -> Option<usize> {
        let slices = self.cluster.slices().values();
        let slices = slices.filter(|slice| {
            slice.service == service.name && slice.key.namespace == service.namespace
        });
        let mut addresses = slices.flat_map(|slice| &slice.addresses);
        addresses.find_map(|address| self.of_pod(&self.cluster.owner(*address)?.key))
    }

    fn of_remote(&self, flow: &Flow) -> Option<usize> {
        let remote = flow.translated.map_or(flow.remote, |on| on.to.ip());
        self.of_peer(&self.cluster.whose(remote))
    }
}

/// Returns the open flows of nodes by pair of parties: sender, receiver and number of flows.
pub(super) fn flows(world: &World, answers: &[Answer]) -> Value {
    let places = Places::new(world);
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
