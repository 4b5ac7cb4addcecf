//! Classes that match a peer of a rule.

use std::collections::HashMap;
use std::net::IpAddr;

use netpold_core::cluster::Cluster;
use netpold_core::model::{DomainName, Peer, Pod, Requirement, Selector};

use super::class::{Class, ClassKind, PartyEnds};
use super::party::DiffParty;

/// Other side of a rule: index of a class, or of the party of a domain name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Remote {
    Class(usize),
    Name(usize),
}

/// Classes of a pair: sender and receiver. A domain name is a receiver only.
pub(super) type ClassPair = (usize, Remote);

/// Index of the classes by the properties that peers name. Of each distinct peer, the number of its classes is kept, not
/// the classes: a tenant can write thousands of peers that match nearly all pods.
pub(super) struct PeerIndex<'a, 'c> {
    cluster: &'c Cluster,
    ends: &'a PartyEnds<'c>,
    /// Index of the cluster: 0 before, 1 after.
    side: usize,
    by_label: HashMap<(&'c str, &'c str), Vec<usize>>,
    by_namespace: HashMap<&'c str, Vec<usize>>,
    /// Number of each peer, by the namespace of its policy.
    known: HashMap<(&'c str, &'c Peer), usize>,
    /// Peers by their number, with the number of their classes.
    all: Vec<(&'c str, &'c Peer, usize)>,
}

/// Returns whether a peer names nobody in particular: every pod, or every address.
pub(super) fn is_everyone(peer: &Peer) -> bool {
    match peer {
        Peer::Pods { namespaces: Some(namespaces), pods } => {
            namespaces.requirements.is_empty() && pods.requirements.is_empty()
        }
        Peer::Block(block) => block.cidr.prefix_len() == 0,
        Peer::Pods { namespaces: None, .. } | Peer::Nodes(_) | Peer::Domain(_) => false,
    }
}

impl<'a, 'c> PeerIndex<'a, 'c> {
    /// Indexes the classes by their members in this cluster; `side` is 0 before the change and 1 after it.
    pub(super) fn new(cluster: &'c Cluster, ends: &'a PartyEnds<'c>, side: usize) -> Self {
        let (mut by_label, mut by_namespace) = (HashMap::<_, Vec<_>>::new(), HashMap::new());
        for (index, class) in ends.classes.iter().enumerate() {
            let Some(pod) = pod_of(class, side) else { continue };
            let namespace: &mut Vec<usize> =
                by_namespace.entry(pod.key.namespace.as_str()).or_default();
            namespace.push(index);
            for (key, value) in pod.labels.iter() {
                by_label.entry((key.as_str(), value.as_str())).or_default().push(index);
            }
        }
        let (known, all) = (HashMap::new(), Vec::new());
        Self { cluster, ends, side, by_label, by_namespace, known, all }
    }

    /// Returns the number of classes that match a peer of a policy of this namespace, and the peer's own number. A
    /// ClusterNetworkPolicy has no namespace.
    pub(super) fn number(&mut self, namespace: &'c str, peer: &'c Peer) -> (usize, usize) {
        let number = match self.known.get(&(namespace, peer)) {
            Some(number) => *number,
            None => {
                let size = self.find(namespace, peer).len();
                self.all.push((namespace, peer, size));
                self.known.insert((namespace, peer), self.all.len() - 1);
                self.all.len() - 1
            }
        };
        (self.all[number].2, number)
    }

    /// Returns the sides that match the peer with this number.
    pub(super) fn matching(&self, number: usize) -> Vec<Remote> {
        self.all
            .get(number)
            .map_or_else(Vec::new, |(namespace, peer, _)| self.find(namespace, peer))
    }

    fn find(&self, namespace: &str, peer: &Peer) -> Vec<Remote> {
        let classes = match peer {
            // A peer of all addresses names the outside as a whole, and no pod and no block.
            Peer::Block(block) if is_everyone(peer) => self.classes(|class| {
                let party = &self.ends.parties[class.party];
                matches!(party, DiffParty::Outside { block, .. } if block.prefix_len() == 0)
                    && block.contains(self.address(class))
            }),
            Peer::Pods { .. } if is_everyone(peer) => Vec::new(),
            Peer::Domain(name) => return self.name(name).into_iter().collect(),
            Peer::Pods { .. } | Peer::Block(_) | Peer::Nodes(_) => {
                self.matching_classes(namespace, peer)
            }
        };
        classes.into_iter().map(Remote::Class).collect()
    }

    /// Returns the indexes of all classes that match a peer, sorted; none for a domain name, to which classes do not
    /// belong.
    pub(super) fn matching_classes(&self, namespace: &str, peer: &Peer) -> Vec<usize> {
        match peer {
            Peer::Pods { namespaces, pods } => self.pods(namespace, namespaces.as_ref(), pods),
            Peer::Block(block) => self.classes(|class| block.contains(self.address(class))),
            Peer::Nodes(nodes) => self.classes(|class| {
                let node = self.cluster.nodes().get(class.members[0][self.side].node);
                class.kind == ClassKind::Nodes
                    && node.is_some_and(|node| nodes.matches(&node.labels))
            }),
            Peer::Domain(_) => Vec::new(),
        }
    }

    fn address(&self, class: &Class<'c>) -> IpAddr {
        class.members[0][self.side].address
    }

    fn name(&self, name: &DomainName) -> Option<Remote> {
        self.ends.names.get(name).map(|party| Remote::Name(*party))
    }

    fn classes(&self, is_meant: impl Fn(&Class<'c>) -> bool) -> Vec<usize> {
        let all = self.ends.classes.iter().enumerate();
        all.filter(|(_, class)| is_meant(class)).map(|(index, _)| index).collect()
    }

    fn pods(&self, own: &str, namespaces: Option<&Selector>, pods: &Selector) -> Vec<usize> {
        let in_namespace = |name: &str| match namespaces {
            Some(selector) => selector.matches(&self.cluster.namespace_labels(name)),
            None => name == own,
        };
        let by_namespace = self.by_namespace.iter().filter(|(name, _)| in_namespace(name));
        let here: HashMap<&str, &Vec<usize>> = by_namespace.map(|(name, of)| (*name, of)).collect();
        // Of the labels that the selector requires, the rarest one has the fewest candidates.
        let required = pods.requirements.iter().filter_map(|it| self.with_label(it));
        let candidates = required.min_by_key(Vec::len);
        let candidates =
            candidates.unwrap_or_else(|| here.values().copied().flatten().copied().collect());
        let matches = |index: &usize| {
            pod_of(&self.ends.classes[*index], self.side).is_some_and(|pod| {
                here.contains_key(pod.key.namespace.as_str()) && pods.matches(&pod.labels)
            })
        };
        let mut found: Vec<usize> = candidates.into_iter().filter(matches).collect();
        found.sort_unstable();
        found
    }

    /// Returns the classes with a label that a requirement needs; `None` if the requirement needs none.
    fn with_label(&self, requirement: &Requirement) -> Option<Vec<usize>> {
        let Requirement::In(key, values) = requirement else { return None };
        let mut classes = Vec::new();
        for value in values {
            classes
                .extend(self.by_label.get(&(key.as_str(), value.as_str())).into_iter().flatten());
        }
        Some(classes)
    }
}

/// Returns a pod of a class that policies can name by labels.
fn pod_of<'c>(class: &Class<'c>, side: usize) -> Option<&'c Pod> {
    class.members.first()?[side].pod.filter(|pod| !pod.host_network)
}
