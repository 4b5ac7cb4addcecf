//! Pods by what selectors read of them: those of a namespace with equal labels are kin. A selector is
//! held against each kin once, however many pods a ReplicaSet has.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::cluster::small_vec::Few;
use crate::model::{Labels, Pod};

/// Pods of one namespace with equal labels.
#[derive(Debug)]
pub(crate) struct Kin(Few<Arc<Pod>>);

impl Kin {
    /// Of each of them.
    pub(crate) fn labels(&self) -> &Labels {
        &self.0.first().labels
    }

    pub(crate) fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.0.iter()
    }
}

/// All pods that policy can select or match as peers.
#[derive(Debug, Default)]
pub(crate) struct Kinship {
    /// By namespace; none is empty.
    namespaces: BTreeMap<String, HashTable<Kin>>,
    hasher: DefaultHashBuilder,
}

impl Kinship {
    /// The namespaces with pods, in order.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.namespaces.keys().map(String::as_str)
    }

    /// The pods of a namespace.
    pub(crate) fn of(&self, namespace: &str) -> impl Iterator<Item = &Kin> {
        self.namespaces.get(namespace).into_iter().flatten()
    }

    /// Takes a pod in.
    pub(crate) fn add(&mut self, pod: &Arc<Pod>) {
        let hash = |labels: &Labels| self.hasher.hash_one(labels);
        let kin = self.namespaces.entry(pod.key.namespace.clone()).or_default();
        let same = |kin: &Kin| *kin.labels() == pod.labels;
        match kin.entry(hash(&pod.labels), same, |kin| hash(kin.labels())) {
            Entry::Occupied(mut kin) => kin.get_mut().0.push(pod.clone()),
            Entry::Vacant(place) => {
                place.insert(Kin(Few::one(pod.clone())));
            }
        }
    }

    /// Takes a pod out: the very one that was taken in.
    pub(crate) fn remove(&mut self, pod: &Arc<Pod>) {
        let Some(kin) = self.namespaces.get_mut(&pod.key.namespace) else { return };
        let hash = self.hasher.hash_one(&pod.labels);
        let Ok(mut entry) = kin.find_entry(hash, |kin| *kin.labels() == pod.labels) else { return };
        if entry.get_mut().0.remove(|other| Arc::ptr_eq(other, pod)) {
            entry.remove();
        }
        if kin.is_empty() {
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
            uid: String::new(),
            labels: Labels::from_iter([("app".to_owned(), app.to_owned())]),
            node: String::new(),
            addresses: Vec::new(),
            host_network: false,
            finished: false,
            terminating: false,
            created: 0,
            ports: Vec::new(),
            foreign_sources: false,
        })
    }

    /// The names of each kin's pods, sorted.
    fn names(kinship: &Kinship, namespace: &str) -> Vec<Vec<String>> {
        let mut all: Vec<Vec<String>> = kinship
            .of(namespace)
            .map(|kin| {
                let mut names: Vec<_> = kin.pods().map(|pod| pod.key.name.clone()).collect();
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
        let mut kinship = Kinship::default();
        pods.iter().for_each(|pod| kinship.add(pod));
        assert_eq!(names(&kinship, "a"), [vec!["1", "3"], vec!["2"]]);
        assert_eq!(names(&kinship, "b"), [["4"]]);
        // The first of several goes, and one that is alone.
        kinship.remove(&pods[0]);
        kinship.remove(&pods[1]);
        assert_eq!(names(&kinship, "a"), [["3"]]);
        kinship.remove(&pods[1]);
        kinship.remove(&pods[2]);
        assert_eq!(kinship.namespaces().collect::<Vec<_>>(), ["b"]);
    }
}
