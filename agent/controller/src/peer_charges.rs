//! Namespaces to which the names in slices are charged: those of the policies that asked for them.
//!
//! A name stays in slices for minutes after its last policy, so a tenant whose policies select by new labels again and
//! again could fill them. Therefore a namespace has a budget, in which its former names count. Names of
//! ClusterNetworkPolicies have room of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netpold_core::cluster::ObjectKey;
use netpold_slices::{MAX_NAMES, NAMESPACE_NAMES, Vocabulary, VocabularyName};

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

/// Names in policies and in slices, with the namespaces of the policies that have each, or had it last. The namespace of
/// names of ClusterNetworkPolicies is empty.
#[derive(Debug, Default)]
pub(super) struct PeerCharges {
    /// Names in policies, in the order in which slices get them.
    needed: Vec<OwnedName>,
    /// Number of those that ClusterNetworkPolicies have.
    cluster_wide: usize,
    namespaces: BTreeMap<OwnedName, Vec<Arc<str>>>,
}

/// Returns the maximum number of names of one namespace's policies; that of ClusterNetworkPolicies is empty.
const fn max_needed(namespace: &str) -> usize {
    if namespace.is_empty() { MAX_NAMES } else { NAMESPACE_NAMES }
}

/// Returns the names of a policy that can be in slices: the first ones.
pub(super) fn bounded(namespace: &str, names: &Vocabulary) -> Vocabulary {
    let mut first = Vocabulary::default();
    first.add_within(names.all(), max_needed(namespace));
    first
}

impl PeerCharges {
    /// Takes in the names in policies, at most [`MAX_NAMES`]. Those of ClusterNetworkPolicies come first; then each namespace
    /// gets its first name, its second, and so on up to [`NAMESPACE_NAMES`], so that a namespace with many names leaves room
    /// for the others. Forgets names that are neither in policies nor in slices.
    pub(super) fn set_needed(
        &mut self,
        policies: &PolicyVocabularies,
        is_in_slices: impl Fn(&OwnedName) -> bool,
    ) {
        let mut by_namespace: BTreeMap<&str, BTreeSet<VocabularyName<'_>>> = BTreeMap::new();
        for (namespace, names) in policies.values() {
            let first = by_namespace.entry(namespace).or_default();
            first.extend(names.all());
            while first.len() > max_needed(namespace) {
                first.pop_last();
            }
        }
        let cluster = by_namespace.remove("").unwrap_or_default();
        let by_namespace: Vec<(Arc<str>, Vec<VocabularyName<'_>>)> = by_namespace
            .into_iter()
            .map(|(namespace, names)| (namespace.into(), names.into_iter().collect()))
            .collect();
        let turns = (0..NAMESPACE_NAMES)
            .flat_map(|turn| by_namespace.iter().filter_map(move |(_, names)| names.get(turn)));
        self.cluster_wide = cluster.len();
        let mut needed: BTreeMap<VocabularyName<'_>, Vec<Arc<str>>> = BTreeMap::new();
        self.needed.clear();
        for name in cluster.iter().chain(turns) {
            if self.needed.len() >= MAX_NAMES {
                break;
            }
            if needed.insert(*name, Vec::new()).is_none() {
                self.needed.push(owned(*name));
            }
        }
        for (namespace, names) in &by_namespace {
            for name in names.iter().filter(|name| !cluster.contains(*name)) {
                if let Some(namespaces) = needed.get_mut(name) {
                    namespaces.push(Arc::clone(namespace));
                }
            }
        }
        self.namespaces.retain(|name, _| is_in_slices(name));
        for (name, namespaces) in needed {
            let is_cluster_wide = namespaces.is_empty();
            let namespaces = if is_cluster_wide { vec![Arc::from("")] } else { namespaces };
            self.namespaces.insert(owned(name), namespaces);
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

    /// Returns the namespaces of a name; empty: nobody knows them since a change of the leader.
    pub(super) fn namespaces(&self, name: &OwnedName) -> &[Arc<str>] {
        self.namespaces.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether ClusterNetworkPolicies have a name, or had it last.
    pub(super) fn is_cluster_wide(&self, name: &OwnedName) -> bool {
        matches!(self.namespaces(name), [namespace] if namespace.is_empty())
    }

    /// Returns the room beside names in slices. A name of several namespaces is charged to the one with the fewest.
    pub(super) fn room(&self, in_slices: impl Iterator<Item = OwnedName>) -> PeerRoom<'_> {
        let mut room = PeerRoom::default();
        let mut shared = Vec::new();
        for name in in_slices {
            match self.namespaces.get(&name).map_or(&[][..], Vec::as_slice) {
                [] => room.add(None),
                [namespace] => room.add(Some(namespace)),
                namespaces => shared.push(namespaces),
            }
        }
        for namespaces in shared {
            room.add(room.fewest(namespaces));
        }
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
    /// Returns the namespace to which one more name of these namespaces is to be charged; `None`: none has room. A namespace
    /// has at most as many names as are free for all, so some always remain free for a namespace with few names, however
    /// many namespaces use up their room.
    pub(super) fn payer(&self, namespaces: &'a [Arc<str>]) -> Option<&'a str> {
        let namespace = self.fewest(namespaces)?;
        if namespace.is_empty() {
            return (self.all < MAX_ALL).then_some(namespace);
        }
        let free = NAMESPACES.saturating_sub(self.all - self.cluster_wide);
        (self.charge(namespace) < free.min(NAMESPACE_CHARGE)).then_some(namespace)
    }

    fn charge(&self, namespace: &str) -> usize {
        self.by_namespace.get(namespace).copied().unwrap_or_default()
    }

    /// Returns the namespace with the fewest names.
    fn fewest(&self, namespaces: &'a [Arc<str>]) -> Option<&'a str> {
        let namespaces = namespaces.iter().map(|namespace| &**namespace);
        namespaces.min_by_key(|namespace| self.charge(namespace))
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

pub(super) fn owned((is_port, name): VocabularyName<'_>) -> OwnedName {
    (is_port, name.to_owned())
}

#[cfg(test)]
mod tests {
    use netpold_core::model::{Change, Key};

    use super::*;

    #[test]
    fn names_that_are_neither_in_policies_nor_in_slices_are_forgotten() {
        let (mut charges, mut policies) = (PeerCharges::default(), PolicyVocabularies::new());
        for turn in 0..50 {
            let label_keys = (0..100).map(|number| format!("{turn}-{number}")).collect();
            let names = Vocabulary { label_keys, ..Vocabulary::default() };
            let key = ObjectKey::of(&Change::PolicyGone(Key::new("x", "p")));
            policies.insert(key, ("x".to_owned(), names));
            charges.set_needed(&policies, |(_, name)| name.starts_with("0-"));
        }
        assert_eq!(charges.namespaces.len(), 200, "those in slices, and in the policy");
    }
}
