//! Pod selectors by the labels they ask for: a pod is held against those that its own labels lead
//! to, not against all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::cluster::Cluster;
use crate::compile::sets::registry::Registry;
use crate::compile::sets::set::{PeerSet, SetId};
use crate::model::{Labels, Requirement, Selector};

/// The pod peer sets in use, by what they ask of a pod's namespace.
#[derive(Debug, Default)]
pub(super) struct PodSelectors {
    own_namespace: HashMap<String, BTreeSet<SetId>>,
    /// By the selector of namespaces: each is held against a namespace once. None is empty.
    any_namespace: BTreeMap<Selector, BTreeSet<SetId>>,
    /// By namespace, the pod peer sets whose namespace part matches it.
    candidates: HashMap<String, Arc<Index>>,
    /// Namespaces that the same peer sets match, as those of one team, have one index.
    indexes: HashMap<Vec<SetId>, Arc<Index>>,
}

impl PodSelectors {
    /// A peer set is in use from now on.
    pub(super) fn add(&mut self, id: SetId, peer_set: &PeerSet) {
        if let PeerSet::PodsIn(namespace, _) = peer_set {
            self.own_namespace.entry(namespace.clone()).or_default().insert(id);
            self.candidates.remove(namespace);
        }
        if let PeerSet::Pods(namespaces, _) = peer_set {
            self.any_namespace.entry(namespaces.clone()).or_default().insert(id);
            self.forget();
        }
    }

    /// A peer set is not in use any more.
    pub(super) fn remove(&mut self, id: SetId, peer_set: &PeerSet) {
        if let PeerSet::PodsIn(namespace, _) = peer_set {
            if let Some(ids) = self.own_namespace.get_mut(namespace) {
                ids.remove(&id);
            }
            self.candidates.remove(namespace);
        }
        if let PeerSet::Pods(namespaces, _) = peer_set {
            if let Some(ids) = self.any_namespace.get_mut(namespaces) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.any_namespace.remove(namespaces);
                }
            }
            self.forget();
        }
    }

    /// Forgets what was derived from the labels of namespaces.
    pub(super) fn forget(&mut self) {
        self.candidates.clear();
        self.indexes.clear();
    }

    /// Forgets indexes that no namespace has.
    pub(super) fn sweep(&mut self) {
        self.indexes.retain(|_, index| Arc::strong_count(index) > 1);
    }

    /// The pod peer sets whose namespace part matches a namespace.
    pub(super) fn candidates(
        &mut self,
        cluster: &Cluster,
        namespace: &str,
        registry: &Registry,
    ) -> Arc<Index> {
        if let Some(known) = self.candidates.get(namespace) {
            return known.clone();
        }
        let own = self.own_namespace.get(namespace).into_iter().flatten();
        let ids = matching(cluster, namespace, own, &self.any_namespace);
        let found = self.index(ids, registry);
        self.candidates.insert(namespace.to_owned(), found.clone());
        found
    }

    /// The index of these pod peer sets.
    pub(super) fn index(&mut self, ids: Vec<SetId>, registry: &Registry) -> Arc<Index> {
        if let Some(known) = self.indexes.get(&ids) {
            return known.clone();
        }
        let index =
            Arc::new(Index::new(ids.iter().filter_map(|id| match registry.peer_set(*id) {
                Some(PeerSet::PodsIn(_, pods) | PeerSet::Pods(_, pods)) => Some((*id, pods)),
                _ => None,
            })));
        self.indexes.insert(ids, index.clone());
        index
    }
}

/// The peer sets of an index whose pod selector matches.
pub(super) fn selecting<'a>(
    registry: &'a Registry,
    index: &'a Index,
    labels: &'a Labels,
) -> impl Iterator<Item = SetId> + 'a {
    index.possible(labels).filter(|id| {
        matches!(
            registry.peer_set(*id),
            Some(PeerSet::PodsIn(_, pods) | PeerSet::Pods(_, pods)) if pods.matches(labels)
        )
    })
}

/// Those of the pod peer sets whose namespace part matches a namespace, in order: its own, and those of
/// the selectors that match its labels.
pub(super) fn matching<'a>(
    cluster: &Cluster,
    namespace: &str,
    own: impl Iterator<Item = &'a SetId>,
    any: &'a BTreeMap<Selector, BTreeSet<SetId>>,
) -> Vec<SetId> {
    let labels = cluster.namespace_labels(namespace);
    let any = any.iter().filter(|(selector, _)| selector.matches(&labels));
    let mut ids: Vec<SetId> = own.chain(any.flat_map(|(_, ids)| ids)).copied().collect();
    ids.sort_unstable();
    ids
}

/// Peer sets by a label that their pod selectors require.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By key and value. A selector is filed under one key (and each value it takes), and a pod has
    /// a key once, so that a pod meets a peer set once.
    by_label: HashMap<String, HashMap<String, Vec<SetId>>>,
    /// Those that require no label's value.
    others: Vec<SetId>,
}

impl Index {
    /// Files peer sets under their pod selectors, each under the label that fewest ask for.
    pub(super) fn new<'a>(peer_sets: impl Iterator<Item = (SetId, &'a Selector)> + Clone) -> Self {
        let mut counts: HashMap<(&str, &str), u32> = HashMap::new();
        for (key, values) in peer_sets.clone().flat_map(|(_, selector)| required(selector)) {
            for value in values {
                *counts.entry((key, value)).or_default() += 1;
            }
        }
        let others = |(key, values): &(&str, &[String])| -> u32 {
            values.iter().filter_map(|value| counts.get(&(*key, value.as_str()))).sum()
        };
        let mut index = Self::default();
        for (peer_set, selector) in peer_sets {
            let Some((key, values)) = required(selector).min_by_key(others) else {
                index.others.push(peer_set);
                continue;
            };
            let by_value = index.by_label.entry_ref(key).or_default();
            for value in values {
                by_value.entry_ref(value).or_default().push(peer_set);
            }
        }
        index
    }

    /// The peer sets whose selectors may match: all that do, and few that do not.
    pub(super) fn possible(&self, labels: &Labels) -> impl Iterator<Item = SetId> {
        let filed = labels.iter().filter_map(|(key, value)| self.by_label.get(key)?.get(value));
        filed.flatten().chain(&self.others).copied()
    }
}

/// Keys of which a pod must have one of some values.
fn required(selector: &Selector) -> impl Iterator<Item = (&str, &[String])> {
    selector.requirements.iter().filter_map(|requirement| {
        if let Requirement::In(key, values) = requirement {
            Some((key.as_str(), values.as_slice()))
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_in(key: &str, values: &[&str]) -> Requirement {
        Requirement::In(key.into(), values.iter().map(|v| (*v).into()).collect())
    }

    #[test]
    fn finds_what_matches_once() {
        let selectors = [
            vec![],
            vec![is_in("app", &["web", "db"])],
            vec![is_in("app", &["web"]), is_in("tier", &["target"])],
            vec![is_in("app", &[])],
            vec![Requirement::Exists("app".into())],
            vec![Requirement::NotIn("app".into(), vec!["web".into()]), is_in("tier", &["back"])],
        ];
        let selectors = selectors.map(|requirements| Selector { requirements });
        let index = Index::new((0..).zip(&selectors));
        for app in [None, Some("web"), Some("db"), Some("other")] {
            for tier in [None, Some("target"), Some("back")] {
                let pairs = [("app", app), ("tier", tier)];
                let labels: Labels =
                    pairs.iter().filter_map(|(k, v)| Some(((*k).into(), (*v)?.into()))).collect();
                let matches = |peer_set: &SetId| selectors[*peer_set as usize].matches(&labels);
                let mut found: Vec<SetId> = index.possible(&labels).filter(matches).collect();
                found.sort_unstable();
                let expected: Vec<SetId> = (0..6).filter(matches).collect();
                assert_eq!(found, expected, "{labels:?}");
            }
        }
    }
}
