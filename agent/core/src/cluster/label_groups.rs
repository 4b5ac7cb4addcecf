//! Groups the pods of one namespace by equal labels, so that a selector is evaluated once per group, however many pods
//! a ReplicaSet has.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::cluster::small_vec::SmallVec;
use crate::model::{Labels, Pod};

/// Pods of one namespace with equal labels.
#[derive(Clone, Debug)]
pub(crate) struct LabelGroup(SmallVec<Arc<Pod>>);

impl LabelGroup {
    /// The labels that all pods of the group have.
    pub(crate) fn labels(&self) -> &Labels {
        &self.0.first().labels
    }

    /// The pods.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.0.iter()
    }
}

/// All pods that policy can select or match as peers.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodsByLabels {
    /// By namespace; none is empty.
    namespaces: BTreeMap<String, HashTable<LabelGroup>>,
    hasher: DefaultHashBuilder,
}

impl PodsByLabels {
    /// The namespaces with pods, in order.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.namespaces.keys().map(String::as_str)
    }

    /// The pods of a namespace.
    pub(crate) fn groups_in(&self, namespace: &str) -> impl Iterator<Item = &LabelGroup> {
        self.namespaces.get(namespace).into_iter().flatten()
    }

    /// A pod of the same namespace with equal labels.
    pub(super) fn kin(&self, pod: &Pod) -> Option<&Arc<Pod>> {
        let groups = self.namespaces.get(&pod.key.namespace)?;
        let hash = self.hasher.hash_one(&pod.labels);
        groups.find(hash, |group| *group.labels() == pod.labels).map(|group| group.0.first())
    }

    /// Adds a pod.
    pub(crate) fn add(&mut self, pod: &Arc<Pod>) {
        let hash = |labels: &Labels| self.hasher.hash_one(labels);
        let group = self.namespaces.entry(pod.key.namespace.clone()).or_default();
        let same = |group: &LabelGroup| *group.labels() == pod.labels;
        match group.entry(hash(&pod.labels), same, |group| hash(group.labels())) {
            Entry::Occupied(mut group) => group.get_mut().0.push(pod.clone()),
            Entry::Vacant(place) => {
                place.insert(LabelGroup(SmallVec::one(pod.clone())));
            }
        }
    }

    /// Removes a pod; must be the same `Arc` that was added.
    pub(crate) fn remove(&mut self, pod: &Arc<Pod>) {
        let Some(group) = self.namespaces.get_mut(&pod.key.namespace) else { return };
        let hash = self.hasher.hash_one(&pod.labels);
        let Ok(mut entry) = group.find_entry(hash, |group| *group.labels() == pod.labels) else {
            return;
        };
        if entry.get_mut().0.remove(|other| Arc::ptr_eq(other, pod)) {
            entry.remove();
        }
        if group.is_empty() {
            self.namespaces.remove(&pod.key.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Key;

    fn pod(namespace: &str, name: &str, app: &str) -> Arc<Pod> {
        Arc::new(Pod {
            key: Key::new(namespace, name),
            labels: Labels::from_iter([("app".to_owned(), app.to_owned())]),
            ..Pod::default()
        })
    }

    /// The names of each group's pods, sorted.
    fn names(pods_by_labels: &PodsByLabels, namespace: &str) -> Vec<Vec<String>> {
        let mut all: Vec<Vec<String>> = pods_by_labels
            .groups_in(namespace)
            .map(|group| {
                let mut names: Vec<_> = group.pods().map(|pod| pod.key.name.clone()).collect();
                names.sort_unstable();
                names
            })
            .collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn equal_labels_of_a_namespace_are_kin() {
        let pods = [("a", "1", "x"), ("a", "2", "y"), ("a", "3", "x"), ("b", "4", "x")]
            .map(|(namespace, name, app)| pod(namespace, name, app));
        let mut pods_by_labels = PodsByLabels::default();
        pods.iter().for_each(|pod| pods_by_labels.add(pod));
        assert_eq!(names(&pods_by_labels, "a"), [vec!["1", "3"], vec!["2"]]);
        assert_eq!(names(&pods_by_labels, "b"), [["4"]]);
        // Removes one of two pods of a group, and the only pod of another group.
        pods_by_labels.remove(&pods[0]);
        pods_by_labels.remove(&pods[1]);
        assert_eq!(names(&pods_by_labels, "a"), [["3"]]);
        pods_by_labels.remove(&pods[1]);
        pods_by_labels.remove(&pods[2]);
        assert_eq!(pods_by_labels.namespaces().collect::<Vec<_>>(), ["b"]);
    }
}
