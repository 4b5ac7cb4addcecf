//! Namespaces to which the names in slices are charged: those of the policies that asked for them.
//!
//! A name stays in slices for minutes after its last policy, so a tenant whose policies select by new labels again and
//! again could fill them. Therefore a namespace has a budget, in which its former names count. Names of
//! ClusterNetworkPolicies have room of their own.

use std::collections::{BTreeMap, BTreeSet};

use netpold_core::cluster::ObjectKey;
use netpold_slices::{MAX_NAMES, NAMESPACE_NAMES, Vocabulary};

/// Most names of a namespace in slices: as many former ones as it may have in policies.
const NAMESPACE_CHARGE: usize = 2 * NAMESPACE_NAMES;
/// Most names of all namespaces in slices.
const NAMESPACES: usize = 2 * MAX_NAMES;
/// Most names in slices; ClusterNetworkPolicies alone get the last ones.
pub(super) const MAX_ALL: usize = NAMESPACES + MAX_NAMES;

/// Name, with whether it is a port's.
pub(super) type OwnedName = (bool, String);
/// Names of each policy, with its namespace; that of a ClusterNetworkPolicy is empty.
pub(super) type PolicyVocabularies = BTreeMap<ObjectKey, (String, Vocabulary)>;

/// Names in policies and in slices, with the namespace of a policy that has each, or had it last. The namespace of names of
/// ClusterNetworkPolicies is empty.
#[derive(Debug, Default)]
pub(super) struct PeerCharges {
    /// Names in policies, in the order in which slices get them.
    needed: Vec<OwnedName>,
    /// Number of those that ClusterNetworkPolicies have.
    cluster_wide: usize,
    namespaces: BTreeMap<OwnedName, String>,
}

impl PeerCharges {
    /// Takes in the names in policies, at most [`MAX_NAMES`]. Those of ClusterNetworkPolicies come first; then each namespace
    /// gets its first name, its second, and so on up to [`NAMESPACE_NAMES`], so that a namespace with many names leaves room
    /// for the others.
    pub(super) fn set_needed(&mut self, policies: &PolicyVocabularies) {
        let mut by_namespace: BTreeMap<&str, BTreeSet<netpold_slices::VocabularyName<'_>>> =
            BTreeMap::new();
        for (namespace, names) in policies.values() {
            by_namespace.entry(namespace).or_default().extend(names.all());
        }
        let cluster = by_namespace.remove("").unwrap_or_default();
        let mut turns: Vec<(usize, &str, netpold_slices::VocabularyName<'_>)> = Vec::new();
        for (namespace, names) in by_namespace {
            let names = names.into_iter().take(NAMESPACE_NAMES).enumerate();
            turns.extend(names.map(|(turn, name)| (turn, namespace, name)));
        }
        turns.sort_unstable();
        let first = cluster.iter().map(|&name| ("", name));
        let others = turns.into_iter().map(|(_, namespace, name)| (namespace, name));
        self.needed.clear();
        self.cluster_wide = cluster.len();
        let mut known = BTreeSet::new();
        for (namespace, name) in first.chain(others) {
            if self.needed.len() < MAX_NAMES && known.insert(name) {
                self.needed.push(owned(name));
                self.namespaces.insert(owned(name), namespace.to_owned());
            }
        }
    }

    /// Returns the names in policies, in the order in which slices get them.
    pub(super) fn needed(&self) -> &[OwnedName] {
        &self.needed
    }

    /// Returns the number of names that ClusterNetworkPolicies have.
    pub(super) const fn cluster_wide(&self) -> usize {
        self.cluster_wide
    }

    /// Returns the namespace of a name; `None`: nobody knows it since a change of the leader.
    pub(super) fn namespace(&self, name: &OwnedName) -> Option<&str> {
        self.namespaces.get(name).map(String::as_str)
    }

    /// Whether ClusterNetworkPolicies have a name, or had it last.
    pub(super) fn is_cluster_wide(&self, name: &OwnedName) -> bool {
        self.namespace(name) == Some("")
    }

    /// Forgets names that are neither in policies nor in slices.
    pub(super) fn retain(&mut self, is_in_slices: impl Fn(&OwnedName) -> bool) {
        let needed: BTreeSet<&OwnedName> = self.needed.iter().collect();
        self.namespaces.retain(|name, _| needed.contains(name) || is_in_slices(name));
    }

    /// Returns the room beside names in slices.
    pub(super) fn room(&self, in_slices: impl Iterator<Item = OwnedName>) -> PeerRoom<'_> {
        let mut room = PeerRoom::default();
        in_slices.for_each(|name| room.add(self.namespaces.get(&name).map(String::as_str)));
        room
    }
}

/// Number of names in slices by the namespace they are charged to.
#[derive(Debug, Default)]
pub(super) struct PeerRoom<'a> {
    all: usize,
    cluster_wide: usize,
    by_namespace: BTreeMap<&'a str, usize>,
}

impl<'a> PeerRoom<'a> {
    /// Returns whether a namespace has room for one more name. A namespace has at most as many names as are free for all,
    /// so some always remain free for a namespace with few names, however many namespaces use up their room.
    pub(super) fn has_room(&self, namespace: &str) -> bool {
        if namespace.is_empty() {
            return self.all < MAX_ALL;
        }
        let free = NAMESPACES.saturating_sub(self.all - self.cluster_wide);
        let charge = self.by_namespace.get(namespace).copied().unwrap_or_default();
        charge < free.min(NAMESPACE_CHARGE)
    }

    /// Takes in one more name in slices.
    pub(super) fn add(&mut self, namespace: Option<&'a str>) {
        self.all += 1;
        match namespace {
            Some("") => self.cluster_wide += 1,
            Some(namespace) => *self.by_namespace.entry(namespace).or_default() += 1,
            None => {}
        }
    }
}

pub(super) fn owned((is_port, name): netpold_slices::VocabularyName<'_>) -> OwnedName {
    (is_port, name.to_owned())
}
