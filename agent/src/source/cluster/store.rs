//! What is known of one kind: enough to tell what changed, and no more.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;

use kube::ResourceExt;
use netpold_core::model::{Change, Key};

use super::hub::Problems;
use super::kind::Kind;

/// Problems of a kind that are named; the others are counted.
const NAMED: usize = 100;

/// The objects of one kind, each as a hash of what it says. A cluster has 100,000 pods and most
/// events change nothing that policy reads (conditions, heartbeats): those are not passed on.
#[derive(Debug)]
pub(super) struct Store<K> {
    known: HashMap<Box<str>, Known>,
    problems: BTreeMap<Box<str>, Vec<String>>,
    /// They are not as they were told last.
    news: bool,
    hasher: RandomState,
    /// Number of the current list: what it did not name is gone when it ends.
    list: u32,
    /// A whole list was taken in at some time.
    synced: bool,
    /// What a list that has not ended yet changed.
    held: Vec<Change>,
    kind: PhantomData<K>,
}

#[derive(Debug)]
struct Known {
    print: u64,
    list: u32,
    uid: Option<Box<str>>,
}

impl<K: Kind> Store<K> {
    pub(super) fn new() -> Self {
        Self {
            known: HashMap::new(),
            problems: BTreeMap::new(),
            news: false,
            hasher: RandomState::new(),
            list: 0,
            synced: false,
            held: Vec::new(),
            kind: PhantomData,
        }
    }

    /// A list begins. One that began before and did not end is forgotten, but not what it said.
    pub(super) fn begin(&mut self) {
        self.list += 1;
    }

    /// An object of a list. The changes are passed on at once the first time; later, when the list
    /// has ended, so that what was deleted goes together with what came in its place.
    pub(super) fn listed(&mut self, object: &K) -> Option<Change> {
        let change = self.update(object)?;
        if self.synced {
            self.held.push(change);
            return None;
        }
        Some(change)
    }

    /// The list is complete: what it did not name is gone.
    pub(super) fn complete(&mut self) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.held);
        let list = self.list;
        let gone: Vec<Box<str>> = self
            .known
            .iter()
            .filter(|(_, known)| known.list != list)
            .map(|(name, _)| name.clone())
            .collect();
        changes.extend(gone.into_iter().map(|name| self.forget(&name)));
        self.synced = true;
        changes
    }

    /// An object as a watch has it now.
    pub(super) fn update(&mut self, object: &K) -> Option<Change> {
        let name = name(object);
        let (change, problems) = match object.converted() {
            Ok(converted) => (Some(converted.change), converted.problems),
            Err(problem) => (None, vec![problem]),
        };
        self.news |= if problems.is_empty() {
            self.problems.remove(&name).is_some()
        } else {
            let texts = problems.iter().map(|p| format!("{} {name}: {p}", K::kind(&())));
            self.problems.insert(name.clone(), texts.collect());
            true
        };
        let change = change?;
        let print = self.hasher.hash_one(&change);
        let uid = K::WITH_UID.then(|| object.uid().unwrap_or_default().into());
        let known = Known { print, list: self.list, uid };
        let before = self.known.insert(name, known);
        before.is_none_or(|before| before.print != print).then_some(change)
    }

    /// An object that a watch saw go.
    pub(super) fn remove(&mut self, object: &K) -> Option<Change> {
        let name = name(object);
        self.known.contains_key(&name).then(|| self.forget(&name))
    }

    fn forget(&mut self, name: &str) -> Change {
        self.known.remove(name);
        self.news |= self.problems.remove(name).is_some();
        K::gone(key(name))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether a whole list was taken in at some time.
    pub(super) const fn synced(&self) -> bool {
        self.synced
    }

    /// There are none: the server does not serve the kind. What was known before stays.
    pub(super) const fn absent(&mut self) {
        self.synced = true;
    }

    /// What of the objects could not be understood, in the order of names; if that changed since
    /// it was last asked for.
    pub(super) fn problems(&mut self) -> Option<Problems> {
        if !std::mem::take(&mut self.news) {
            return None;
        }
        let uid = |name: &str| self.known.get(name)?.uid.as_deref().map(str::to_owned);
        let texts = self.problems.values().flatten();
        Some(Problems {
            more: texts.clone().count().saturating_sub(NAMED),
            texts: texts.take(NAMED).cloned().collect(),
            uids: K::WITH_UID.then(|| {
                self.problems.keys().filter_map(|name| Some((key(name), uid(name)?))).collect()
            }),
        })
    }
}

/// `namespace/name`, or the name alone where there are no namespaces.
fn name<K: Kind>(object: &K) -> Box<str> {
    let meta = object.meta();
    let name = meta.name.as_deref().unwrap_or_default();
    match meta.namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{name}").into(),
        None => name.into(),
    }
}

fn key(name: &str) -> Key {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    Key::new(namespace, name)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, label: &str, extra: Value) -> Pod {
        let metadata = json!({ "name": name, "namespace": "x", "labels": { "l": label } });
        serde_json::from_value(json!({ "metadata": metadata, "status": extra })).unwrap()
    }

    fn said(change: &Change) -> String {
        match change {
            Change::Pod(pod) => format!("{}={}", pod.key, pod.labels.get("l").unwrap()),
            Change::PodGone(key) => format!("-{key}"),
            other => panic!("{other:?}"),
        }
    }

    fn list(store: &mut Store<Pod>, pods: &[(&str, &str)]) -> Vec<String> {
        store.begin();
        let early: Vec<Change> =
            pods.iter().filter_map(|(n, l)| store.listed(&pod(n, l, json!({})))).collect();
        let mut all: Vec<String> = early.iter().chain(&store.complete()).map(said).collect();
        all.sort();
        all
    }

    #[test]
    fn a_list_says_what_changed_since_the_last_one() {
        let mut store = Store::new();
        assert_eq!(list(&mut store, &[("a", "1"), ("b", "1")]), ["x/a=1", "x/b=1"]);
        assert_eq!(list(&mut store, &[("b", "1"), ("c", "1")]), ["-x/a", "x/c=1"]);
        assert!(list(&mut store, &[("b", "1"), ("c", "1")]).is_empty());
        assert_eq!(list(&mut store, &[]), ["-x/b", "-x/c"]);
    }

    #[test]
    fn what_policy_does_not_read_is_no_change() {
        let mut store = Store::new();
        let first = pod("a", "1", json!({ "podIP": "10.0.0.1" }));
        assert!(store.update(&first).is_some());
        let beat = pod("a", "1", json!({ "podIP": "10.0.0.1", "message": "ready" }));
        assert!(store.update(&beat).is_none());
        assert!(store.update(&pod("a", "1", json!({ "podIP": "10.0.0.2" }))).is_some());
    }

    #[test]
    fn nothing_is_lost_when_a_list_breaks_off() {
        let mut store = Store::new();
        list(&mut store, &[("a", "1"), ("b", "1")]);
        store.begin();
        assert!(store.listed(&pod("a", "2", json!({}))).is_none(), "held until the list ends");
        assert!(store.listed(&pod("new", "1", json!({}))).is_none());
        // The connection breaks; in the next list `new` is gone again.
        assert_eq!(list(&mut store, &[("a", "2"), ("b", "1")]), ["-x/new", "x/a=2", "x/new=1"]);
    }

    #[test]
    fn what_was_never_known_does_not_go() {
        let mut store: Store<Pod> = Store::new();
        assert!(store.remove(&pod("a", "1", json!({}))).is_none());
    }
}
