//! All pods, sorted by namespace and name. The set compares pods by their own names, so no key is stored twice.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::{Key, Pod};

/// Pods by key.
#[derive(Clone, Debug, Default)]
pub struct PodsByName {
    /// Pods by namespace; no set is empty.
    namespaces: BTreeMap<String, BTreeSet<ByName>>,
    len: usize,
}

/// A pod, compared by name within its namespace.
#[derive(Clone, Debug)]
struct ByName(Arc<Pod>);

impl Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        &self.0.key.name
    }
}

impl Ord for ByName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.name.cmp(&other.0.key.name)
    }
}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByName {}

impl PodsByName {
    /// The pod of a key.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Arc<Pod>> {
        self.namespaces.get(&key.namespace)?.get(key.name.as_str()).map(|ByName(pod)| pod)
    }

    /// All pods, by namespace and name.
    pub fn values(&self) -> impl Iterator<Item = &Arc<Pod>> + Clone {
        self.namespaces.values().flatten().map(|ByName(pod)| pod)
    }

    /// Number of pods.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no pods.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pods of a namespace, by name.
    pub(super) fn pods_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.namespaces.get(namespace).into_iter().flatten().map(|ByName(pod)| pod)
    }

    /// Sets or removes (`None`) the pod of a key. Returns the previous pod.
    pub(super) fn set(&mut self, key: &Key, new: Option<Arc<Pod>>) -> Option<Arc<Pod>> {
        let added = usize::from(new.is_some());
        let old = match new {
            Some(pod) => {
                let pods = self.namespaces.entry(key.namespace.clone()).or_default();
                pods.replace(ByName(pod))
            }
            None => self.remove(key),
        };
        self.len = self.len + added - usize::from(old.is_some());
        old.map(|ByName(pod)| pod)
    }

    fn remove(&mut self, key: &Key) -> Option<ByName> {
        let pods = self.namespaces.get_mut(&key.namespace)?;
        let old = pods.take(key.name.as_str());
        if pods.is_empty() {
            self.namespaces.remove(&key.namespace);
        }
        old
    }
}
