//! Known objects of one kind, stored only as far as change detection needs.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;

use netpold_core::model::{Change, Key};

use super::hub::Problems;
use super::kind::WatchedKind;
use crate::convert::{ObjectIdentity, Read};

/// Maximum number of problems of a kind that are named; the others are counted.
const NAMED: usize = 200;
/// Maximum number of problems of one namespace that are named, so that one tenant's problems do not crowd out
/// another's.
const NAMED_OF_NAMESPACE: usize = 10;

/// The objects of one kind, each as a hash of its converted content. A cluster has 100,000 pods, and most events change
/// nothing that policies depend on (conditions, heartbeats): those events are dropped here.
#[derive(Debug)]
pub(super) struct Store<K> {
    known: HashMap<Box<str>, ReportedObject>,
    troubles: BTreeMap<Box<str>, ObjectProblems>,
    /// Whether `troubles` changed since they were reported last.
    news: bool,
    hasher: RandomState,
    /// Number of the current list: objects that it does not contain are removed when it ends.
    list: u32,
    /// See [`Store::is_settled`].
    is_settled: bool,
    /// Changes of a list that has not ended yet.
    held: Vec<Change>,
    kind: PhantomData<K>,
}

#[derive(Debug)]
struct ReportedObject {
    /// Hash of the last reported state; none if no state was reported.
    hash: Option<u64>,
    list: u32,
}

/// Problems with an object.
#[derive(Debug, PartialEq, Eq)]
struct ObjectProblems {
    texts: Vec<String>,
    /// Whether the object cannot be decoded.
    undecoded: bool,
}

impl<K: WatchedKind> Store<K> {
    pub(super) fn new() -> Self {
        Self {
            known: HashMap::new(),
            troubles: BTreeMap::new(),
            news: false,
            hasher: RandomState::new(),
            list: 0,
            is_settled: false,
            held: Vec::new(),
            kind: PhantomData,
        }
    }

    /// Begins a list. An unfinished earlier list is abandoned, but its objects stay known.
    pub(super) fn begin(&mut self) {
        self.list += 1;
    }

    /// Takes in an object of a list. During the first list, changes are returned at once; later they are held until the
    /// list ends, so that deletions and their replacements are sent together.
    pub(super) fn listed(&mut self, read: &Read) -> Option<Change> {
        let change = self.update(read)?;
        if self.is_settled {
            self.held.push(change);
            return None;
        }
        Some(change)
    }

    /// Completes the list: removes objects that it did not contain.
    pub(super) fn complete(&mut self) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.held);
        let list = self.list;
        let gone: Vec<Box<str>> = self
            .known
            .iter()
            .filter(|(_, known)| known.list != list)
            .map(|(name, _)| name.clone())
            .collect();
        changes.extend(gone.into_iter().filter_map(|name| self.remove_by_name(&name)));
        self.is_settled = true;
        changes
    }

    /// Takes in an object of a watch. An object without a state (not decodable, and not a policy) keeps its last one.
    pub(super) fn update(&mut self, read: &Read) -> Option<Change> {
        let name = name(&read.identity);
        let before = self.known.get(&name).and_then(|known| known.hash);
        let hash = read.change.as_ref().map(|change| self.hasher.hash_one(change)).or(before);
        self.trouble(&name, read, before.is_some());
        self.known.insert(name, ReportedObject { hash, list: self.list });
        read.change.clone().filter(|_| before != hash)
    }

    fn trouble(&mut self, name: &str, read: &Read, known: bool) {
        if read.problems.is_empty() {
            self.news |= self.troubles.remove(name).is_some();
            return;
        }
        let outcome = match (&read.change, known) {
            (Some(_), _) => "",
            (None, true) => "; the object cannot be decoded, its last known state stays",
            (None, false) => "; the object cannot be decoded and counts as absent",
        };
        let shown = if read.identity.name.is_some() { name } else { "(its name cannot be read)" };
        let texts = read.problems.iter().map(|p| format!("{} {shown}: {p}{outcome}", K::kind(&())));
        let trouble = ObjectProblems { texts: texts.collect(), undecoded: read.undecoded };
        self.news |= self.troubles.get(name) != Some(&trouble);
        self.troubles.insert(name.into(), trouble);
    }

    /// Removes an object that a watch reported as deleted.
    pub(super) fn remove(&mut self, identity: &ObjectIdentity) -> Option<Change> {
        self.remove_by_name(&name(identity))
    }

    /// Forgets an object; returns its removal if the object was reported.
    fn remove_by_name(&mut self, name: &str) -> Option<Change> {
        self.news |= self.troubles.remove(name).is_some();
        let known = self.known.remove(name)?;
        known.hash.map(|_| K::removal(key(name)))
    }

    /// Returns the number of known objects.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns the number of known objects with a current version that cannot be decoded.
    pub(super) fn undecoded(&self) -> usize {
        self.troubles.values().filter(|trouble| trouble.undecoded).count()
    }

    /// Returns whether nothing waits for a list of the kind: it was listed, or the server does not serve or allow it.
    pub(super) const fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Counts the kind as complete without a list. The known objects stay.
    pub(super) const fn count_as_complete(&mut self) {
        self.is_settled = true;
    }

    /// Removes all objects because the kind was removed; returns the removals.
    pub(super) fn remove_all(&mut self) -> Vec<Change> {
        self.begin();
        self.held.clear();
        self.complete()
    }

    /// Returns the problems with objects in the order of names, if they changed since the last call.
    pub(super) fn problems(&mut self) -> Option<Problems> {
        if !std::mem::take(&mut self.news) {
            return None;
        }
        let (mut texts, mut all) = (Vec::new(), 0);
        let mut of_namespace = ("", 0);
        for (name, trouble) in &self.troubles {
            all += trouble.texts.len();
            let namespace = name.split_once('/').map_or("", |(namespace, _)| namespace);
            if of_namespace.0 != namespace {
                of_namespace = (namespace, 0);
            }
            let room = (NAMED_OF_NAMESPACE - of_namespace.1).min(NAMED - texts.len());
            texts.extend(trouble.texts.iter().take(room).cloned());
            of_namespace.1 += trouble.texts.len().min(room);
        }
        Some(Problems { more: all - texts.len(), texts })
    }
}

/// Returns `namespace/name`, or the name alone for an object without a namespace.
fn name(identity: &ObjectIdentity) -> Box<str> {
    let name = identity.name.as_deref().unwrap_or_default();
    match identity.namespace.as_deref() {
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
    use k8s_openapi::api::networking::v1::NetworkPolicy;
    use serde_json::{Value, json};

    use super::*;
    use crate::convert::{self, read};

    fn pod(name: &str, label: &str, extra: Value) -> Read {
        let metadata = json!({ "name": name, "namespace": "x", "labels": { "l": label } });
        let pod = json!({ "metadata": metadata, "status": extra });
        read(convert::Kind::Pod, pod.to_string().as_bytes(), true)
    }

    /// A pod with labels that cannot be decoded.
    fn broken(namespace: &str, name: &str) -> Read {
        let pod = json!({ "metadata": { "name": name, "namespace": namespace, "labels": 1 } });
        read(convert::Kind::Pod, pod.to_string().as_bytes(), true)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "of the many kinds, the ones this is about")]
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
        let mut store: Store<Pod> = Store::new();
        assert_eq!(list(&mut store, &[("a", "1"), ("b", "1")]), ["x/a=1", "x/b=1"]);
        assert_eq!(list(&mut store, &[("b", "1"), ("c", "1")]), ["-x/a", "x/c=1"]);
        assert!(list(&mut store, &[("b", "1"), ("c", "1")]).is_empty());
        assert_eq!(list(&mut store, &[]), ["-x/b", "-x/c"]);
    }

    #[test]
    fn of_a_kind_that_is_removed_nothing_stays() {
        let mut store: Store<Pod> = Store::new();
        list(&mut store, &[("a", "1"), ("b", "1")]);
        store.begin();
        // The list breaks off because the kind is removed.
        assert!(store.listed(&pod("a", "2", json!({}))).is_none());
        let mut gone: Vec<String> = store.remove_all().iter().map(said).collect();
        gone.sort();
        assert_eq!(gone, ["-x/a", "-x/b"]);
        assert_eq!((store.len(), store.is_settled()), (0, true));
        assert_eq!(list(&mut store, &[("a", "2")]), ["x/a=2"]);
    }

    #[test]
    fn what_policy_does_not_read_is_no_change() {
        let mut store: Store<Pod> = Store::new();
        let first = pod("a", "1", json!({ "podIP": "10.0.0.1" }));
        assert!(store.update(&first).is_some());
        let beat = pod("a", "1", json!({ "podIP": "10.0.0.1", "message": "ready" }));
        assert!(store.update(&beat).is_none());
        assert!(store.update(&pod("a", "1", json!({ "podIP": "10.0.0.2" }))).is_some());
    }

    #[test]
    fn nothing_is_lost_when_a_list_breaks_off() {
        let mut store: Store<Pod> = Store::new();
        list(&mut store, &[("a", "1"), ("b", "1")]);
        store.begin();
        assert!(store.listed(&pod("a", "2", json!({}))).is_none(), "held until the list ends");
        assert!(store.listed(&pod("new", "1", json!({}))).is_none());
        // The connection breaks; in the next list `new` is missing again.
        assert_eq!(list(&mut store, &[("a", "2"), ("b", "1")]), ["-x/new", "x/a=2", "x/new=1"]);
    }

    #[test]
    fn what_was_never_known_does_not_go() {
        let mut store: Store<Pod> = Store::new();
        assert!(store.remove(&pod("a", "1", json!({})).identity).is_none());
    }

    #[test]
    fn what_cannot_be_decoded_stays_as_it_was_and_is_named() {
        let mut store: Store<Pod> = Store::new();
        list(&mut store, &[("a", "1"), ("b", "1")]);
        assert!(store.problems().is_none());
        assert!(store.update(&broken("x", "a")).is_none());
        let problems = store.problems().unwrap();
        assert_eq!(
            problems.texts,
            ["Pod x/a: metadata.labels: is integer `1`, expected a map; \
              the object cannot be decoded, its last known state stays"]
        );
        assert_eq!((store.len(), store.undecoded(), problems.more), (2, 1, 0));
        // A repetition of the same problem is not reported.
        assert!(store.update(&broken("x", "a")).is_none() && store.problems().is_none());
        // A list contains the object, so it is not removed; its last state is still known.
        store.begin();
        assert!(store.listed(&broken("x", "a")).is_none());
        assert_eq!(store.complete().iter().map(said).collect::<Vec<_>>(), ["-x/b"]);
        assert!(store.update(&pod("a", "1", json!({}))).is_none());
        assert_eq!((store.problems().unwrap().texts.len(), store.undecoded()), (0, 0));
        // The object is deleted while it cannot be decoded.
        store.update(&broken("x", "a"));
        assert_eq!(store.remove(&broken("x", "a").identity).as_ref().map(said).unwrap(), "-x/a");
        assert_eq!((store.len(), store.problems().unwrap().texts.len()), (0, 0));
    }

    #[test]
    fn what_never_could_be_decoded_is_named_until_it_goes() {
        let mut store: Store<Pod> = Store::new();
        store.begin();
        assert!(store.listed(&broken("x", "a")).is_none());
        assert!(store.listed(&broken("x", "b")).is_none());
        assert!(store.complete().is_empty());
        let texts = store.problems().unwrap().texts;
        assert!(
            texts[1].ends_with("the object cannot be decoded and counts as absent"),
            "{texts:?}"
        );
        assert!(store.remove(&broken("x", "a").identity).is_none(), "nobody was told of it");
        assert_eq!(store.problems().unwrap().texts.len(), 1);
        assert!(list(&mut store, &[]).is_empty());
        assert_eq!((store.problems().unwrap().texts.len(), store.len()), (0, 0));
    }

    #[test]
    fn an_object_without_a_name_that_can_be_read_is_counted() {
        let mut store: Store<NetworkPolicy> = Store::new();
        store.begin();
        let nameless = read(convert::Kind::NetworkPolicy, b"{\"metadata\":{\"name\":{}}}", true);
        assert!(store.listed(&nameless).is_none());
        assert!(store.complete().is_empty());
        let texts = store.problems().unwrap().texts;
        let expected = "NetworkPolicy (its name cannot be read): metadata.name: is map";
        assert!(texts[0].starts_with(expected), "{texts:?}");
    }

    #[test]
    fn one_namespaces_problems_leave_room_for_the_others() {
        let mut store: Store<Pod> = Store::new();
        (0..300).for_each(|n| _ = store.update(&broken("crowd", &format!("p{n}"))));
        store.update(&broken("other", "p"));
        let problems = store.problems().unwrap();
        assert_eq!((problems.texts.len(), problems.more), (11, 290));
        assert!(problems.texts[10].starts_with("Pod other/p: "));
    }
}
