//! Index of pod selectors by required label: a pod is compared only with selectors found by one of its labels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::cluster::Cluster;
use crate::compile::sets::registry::Registry;
use crate::compile::sets::set::{PeerSet, SetId};
use crate::model::{Labels, Requirement, Selector};

/// Peer sets of pods in use, by their namespace part.
#[derive(Debug, Default)]
pub(super) struct PodSelectors {
    own_namespace: HashMap<String, BTreeSet<SetId>>,
    /// By namespace selector, so that each is matched with a namespace once. No set is empty.
    any_namespace: BTreeMap<Selector, BTreeSet<SetId>>,
    /// By namespace, the pod peer sets with a matching namespace part.
    candidates: HashMap<String, Arc<SelectorIndex>>,
    /// Indexes by their peer sets. Namespaces that match the same peer sets share one.
    indexes: HashMap<Vec<SetId>, Arc<SelectorIndex>>,
}

impl PodSelectors {
    /// Adds a peer set to those in use.
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

    /// Removes a peer set from those in use.
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

    /// Drops state derived from namespace labels.
    pub(super) fn forget(&mut self) {
        self.candidates.clear();
        self.indexes.clear();
    }

    /// Drops indexes that no namespace uses.
    pub(super) fn sweep(&mut self) {
        self.indexes.retain(|_, index| Arc::strong_count(index) > 1);
    }

    /// Index of the pod peer sets with a matching namespace part.
    pub(super) fn candidates(
        &mut self,
        cluster: &Cluster,
        namespace: &str,
        registry: &Registry,
    ) -> Arc<SelectorIndex> {
        if let Some(known) = self.candidates.get(namespace) {
            return known.clone();
        }
        let own = self.own_namespace.get(namespace).into_iter().flatten();
        let ids = matching(cluster, namespace, own, &self.any_namespace);
        let found = self.index(ids, registry);
        self.candidates.insert(namespace.to_owned(), found.clone());
        found
    }

    /// Index of these pod peer sets.
    pub(super) fn index(&mut self, ids: Vec<SetId>, registry: &Registry) -> Arc<SelectorIndex> {
        if let Some(known) = self.indexes.get(&ids) {
            return known.clone();
        }
        let index =
            Arc::new(SelectorIndex::new(ids.iter().filter_map(
                |id| match registry.peer_set(*id) {
                    Some(PeerSet::PodsIn(_, pods) | PeerSet::Pods(_, pods)) => Some((*id, pods)),
                    _ => None,
                },
            )));
        self.indexes.insert(ids, index.clone());
        index
    }
}

/// Peer sets of an index with a matching pod selector.
pub(super) fn selecting<'a>(
    registry: &'a Registry,
    index: &'a SelectorIndex,
    labels: &'a Labels,
) -> impl Iterator<Item = SetId> + 'a {
    index.possible(labels).filter(|id| {
        matches!(
            registry.peer_set(*id),
            Some(PeerSet::PodsIn(_, pods) | PeerSet::Pods(_, pods)) if pods.matches(labels)
        )
    })
}

/// Pod peer sets with a matching namespace part, in order: those of the namespace itself, and those with a namespace
/// selector that matches its labels.
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
pub(super) struct SelectorIndex {
    /// By key and value. A selector is filed under one key (with each of its values), and a pod has a key only once, so
    /// a lookup returns a peer set at most once.
    by_label: HashMap<String, HashMap<String, Vec<SetId>>>,
    /// Peer sets with selectors that require no label value.
    others: Vec<SetId>,
}

impl SelectorIndex {
    /// Files each peer set under the required label that the fewest other selectors share.
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

    /// Candidates by label: all peer sets with a matching selector, and few others.
    pub(super) fn possible(&self, labels: &Labels) -> impl Iterator<Item = SetId> {
        let filed = labels.iter().filter_map(|(key, value)| self.by_label.get(key)?.get(value));
        filed.flatten().chain(&self.others).copied()
    }
}

/// `In` requirements: each key with its values, one of which a pod must have.
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
            vec![is_in("app", &["db", "web"])],
            vec![is_in("app", &["web"]), is_in("tier", &["target"])],
            vec![is_in("app", &[])],
            vec![Requirement::Exists("app".into())],
            vec![Requirement::NotIn("app".into(), vec!["web".into()]), is_in("tier", &["back"])],
        ];
        let selectors = selectors.map(|requirements| Selector { requirements });
        let index = SelectorIndex::new((0..).zip(&selectors));
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
