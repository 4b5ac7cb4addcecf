//! Nodes as senders and receivers: a pod's own node, and groups of nodes that no policy distinguishes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use netpold_core::model::Node;

use super::class::{Class, ClassKind, OwnNode, PartyEnd};
use super::ends_builder::PartyEndsBuilder;
use super::party::DiffParty;
use super::rules::RangeStarts;

impl<'c> PartyEndsBuilder<'c> {
    /// Returns the addresses of a node in a cluster, without those that a pod owns.
    fn of_node(
        &self,
        cluster: usize,
        node: &'c Node,
        v6: bool,
    ) -> impl Iterator<Item = PartyEnd<'c>> + use<'c> {
        let cluster = self.clusters[cluster];
        let addresses = node.addresses.iter().copied();
        let addresses = addresses.filter(move |a| a.is_ipv6() == v6 && cluster.owner(*a).is_none());
        addresses.map(|address| PartyEnd { pod: None, node: node.name.as_str(), address })
    }

    /// Pairs a pod's address with the addresses of its own node, of the same family.
    pub(super) fn own_node(&self, pod: [PartyEnd<'c>; 2]) -> Vec<OwnNode<'c>> {
        let nodes = [0, 1].map(|i| self.clusters[i].nodes().get(pod[i].node));
        let [Some(before), Some(after)] = nodes else { return Vec::new() };
        let v6 = pod[0].address.is_ipv6();
        let pairs = self.of_node(0, before, v6).zip(self.of_node(1, after, v6));
        let pairs = pairs.map(|(before, after)| {
            let node = [before, after];
            let [before, after] = node.map(|end| self.traits(end));
            let is_as_before = before == after
                && before.special.is_none()
                && node[0].address == node[1].address
                && self.labels_of_node(nodes[0]) == self.labels_of_node(nodes[1]);
            let receives_as_before = is_as_before && !self.node_ports;
            OwnNode { pod, node, is_as_before, receives_as_before }
        });
        pairs.collect()
    }

    /// Returns the labels of a node that policies name.
    pub(super) fn labels_of_node(&self, node: Option<&'c Node>) -> Vec<(&'c str, &'c str)> {
        let labels = node.into_iter().flat_map(|node| node.labels.iter());
        let labels = labels.filter(|(key, _)| self.named.labels.contains(*key));
        labels.map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    /// Adds the nodes of both clusters, grouped by the labels that policies name.
    pub(super) fn nodes(&mut self) {
        let mut alike: BTreeMap<_, Vec<[&'c Node; 2]>> = BTreeMap::new();
        for (name, before) in self.clusters[0].nodes() {
            let Some(after) = self.clusters[1].nodes().get(name) else { continue };
            let labels = [before, after].map(|node| self.labels_of_node(Some(node)));
            alike.entry(labels).or_default().push([before, after]);
        }
        let only = alike.len() == 1;
        for ([before, after], nodes) in alike {
            let party = self.parties.len();
            let names = nodes.iter().map(|[node, _]| node.name.clone()).collect();
            self.parties.push(DiffParty::Nodes { nodes: names, only });
            let mut known = HashMap::new();
            for pair in nodes {
                for v6 in [false, true] {
                    let [b, a] = [0, 1].map(|i| self.of_node(i, pair[i], v6));
                    for pair in b.zip(a) {
                        let pair: [PartyEnd<'c>; 2] = pair.into();
                        let traits = pair.map(|end| self.traits(end));
                        let special = traits.iter().any(|traits| traits.special.is_some());
                        let moved = pair[0].address != pair[1].address;
                        let class = *known.entry((v6, moved, traits)).or_insert_with(|| {
                            let same = before == after && !moved && !special;
                            self.classes.push(Class {
                                party,
                                kind: ClassKind::Nodes,
                                members: Vec::new(),
                                special,
                                is_contested: false,
                                lacks_address: false,
                                sends_as_before: same,
                                receives_as_before: same && !self.node_ports,
                                sends: RangeStarts::default(),
                                receives: RangeStarts::default(),
                                names: BTreeSet::new(),
                                resolved: Vec::new(),
                                own_nodes: Vec::new(),
                            });
                            self.classes.len() - 1
                        });
                        self.classes[class].members.push(pair);
                    }
                }
            }
        }
    }
}
