//! The pods in an agent's view: pods of its own node from a watch, pods of other nodes from slices or from a watch of
//! all pods.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;

use netpold_core::model::{Change, Key, Pod};

use crate::packing::SliceNumber;
use crate::vocabulary::Vocabulary;

/// Origin of the pods of other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerOrigin {
    /// Slices.
    #[default]
    Slices,
    /// A watch of all pods.
    Pods,
}

/// All pods, and those of them that were reported.
///
/// This node's pods are always those of their own watch; entries of slices with the same names, or with this node, do
/// not count. So a slice can misname peers, but neither isolates nor opens a pod of this node.
///
/// Two slices have a pod while it moves from one to the other. The one with the higher `resourceVersion` counts; the other
/// counts again if that one loses the pod.
#[derive(Debug)]
pub struct PeerView {
    /// Name of this node.
    node: String,
    origin: PeerOrigin,
    /// Whether pods of other nodes are reported: slices that nobody renews may be of any age.
    is_started: bool,
    /// Pods of this node, from their watch.
    own: BTreeMap<Key, Pod>,
    slices: BTreeMap<SliceNumber, Slice>,
    /// For each pod in slices, the slice that counts.
    places: HashMap<Key, SliceNumber>,
    /// For pods in several slices, the other slices.
    also: BTreeMap<Key, BTreeSet<SliceNumber>>,
    /// All pods, from their watch; empty unless they are followed.
    watched: BTreeMap<Key, Pod>,
    /// Pods of this node that were deleted, but that the other origin still has.
    hidden: BTreeMap<Key, Pod>,
    /// Reported pods, each with a hash of its state.
    reported: HashMap<Key, u64>,
    hasher: RandomState,
}

/// Slice, as received last.
#[derive(Debug, Default)]
struct Slice {
    /// Its `resourceVersion`.
    version: u64,
    pods: BTreeMap<Key, Pod>,
}

impl PeerView {
    /// Creates the view of a node.
    #[must_use]
    pub fn new(node: String) -> Self {
        Self {
            node,
            origin: PeerOrigin::default(),
            is_started: false,
            own: BTreeMap::new(),
            slices: BTreeMap::new(),
            places: HashMap::new(),
            also: BTreeMap::new(),
            watched: BTreeMap::new(),
            hidden: BTreeMap::new(),
            reported: HashMap::new(),
            hasher: RandomState::new(),
        }
    }

    /// Takes in a change from the watch of this node's pods; returns the change to report.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many changes, the ones this is about"
    )]
    pub fn take_own(&mut self, change: Change) -> Option<Change> {
        let key = match change {
            Change::Pod(pod) => {
                let key = pod.key.clone();
                self.hidden.remove(&key);
                self.own.insert(key.clone(), pod);
                key
            }
            Change::PodGone(key) => {
                if let Some(gone) = self.own.remove(&key) {
                    self.hidden.insert(key.clone(), gone);
                    self.unhide(&key);
                }
                key
            }
            other => return Some(other),
        };
        self.report(&key)
    }

    /// Takes in a change from the watch of all pods; returns the change to report.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many changes, the ones this is about"
    )]
    pub fn take_watched(&mut self, change: Change) -> Option<Change> {
        let key = match change {
            Change::Pod(pod) => {
                let key = pod.key.clone();
                self.watched.insert(key.clone(), pod);
                key
            }
            Change::PodGone(key) => {
                self.watched.remove(&key);
                key
            }
            other => return Some(other),
        };
        self.unhide(&key);
        self.report(&key)
    }

    /// Takes in the pods of a slice, with its `resourceVersion`; empty: the slice was deleted. Returns the changes to
    /// report.
    pub fn take_slice(&mut self, number: SliceNumber, version: u64, pods: Vec<Pod>) -> Vec<Change> {
        let pods: BTreeMap<Key, Pod> = pods.into_iter().map(|pod| (pod.key.clone(), pod)).collect();
        let before = self.slices.get(&number).into_iter().flat_map(|slice| slice.pods.keys());
        let keys: BTreeSet<Key> = before.chain(pods.keys()).cloned().collect();
        let hash_of = |view: &Self, key: &Key| view.hasher.hash_one(view.sliced(key));
        let hashes: Vec<u64> = keys.iter().map(|key| hash_of(self, key)).collect();
        if pods.is_empty() {
            self.slices.remove(&number);
        } else {
            self.slices.insert(number, Slice { version, pods });
        }
        keys.iter().for_each(|key| self.place(key, number));
        let changed = keys.into_iter().zip(hashes);
        let changed = changed.filter(|(key, hash)| hash_of(self, key) != *hash);
        let changed: Vec<Key> = changed.map(|(key, _)| key).collect();
        changed.iter().for_each(|key| self.unhide(key));
        changed.iter().filter_map(|key| self.report(key)).collect()
    }

    /// Decides which slice of a pod counts, after a change of one.
    fn place(&mut self, key: &Key, changed: SliceNumber) {
        let mut numbers = self.also.remove(key).unwrap_or_default();
        numbers.extend(self.places.remove(key));
        numbers.insert(changed);
        let version = |number: &SliceNumber| {
            let slice = self.slices.get(number)?;
            slice.pods.contains_key(key).then_some((slice.version, *number))
        };
        numbers.retain(|number| version(number).is_some());
        let Some(newest) = numbers.iter().copied().max_by_key(version) else { return };
        self.places.insert(key.clone(), newest);
        numbers.remove(&newest);
        if !numbers.is_empty() {
            self.also.insert(key.clone(), numbers);
        }
    }

    /// Returns a pod's entry in slices.
    fn sliced(&self, key: &Key) -> Option<&Pod> {
        self.slices.get(self.places.get(key)?)?.pods.get(key)
    }

    /// Removes the slices other than these, after a list; returns the changes to report.
    pub fn retain_slices(&mut self, is_there: impl Fn(SliceNumber) -> bool) -> Vec<Change> {
        let gone: Vec<SliceNumber> =
            self.slices.keys().copied().filter(|number| !is_there(*number)).collect();
        gone.iter().flat_map(|number| self.take_slice(*number, 0, Vec::new())).collect()
    }

    /// Reports pods of slices from now on. Returns the changes to report.
    pub fn start(&mut self) -> Vec<Change> {
        self.is_started = true;
        self.report_all()
    }

    /// Uses the watch of all pods from now on; its list must be complete; returns the changes to report.
    pub fn follow_pods(&mut self) -> Vec<Change> {
        self.origin = PeerOrigin::Pods;
        self.is_started = true;
        self.report_all()
    }

    /// Uses slices from now on, which must contain every change that the watch of all pods had; returns the changes to
    /// report.
    pub fn follow_slices(&mut self) -> Vec<Change> {
        self.origin = PeerOrigin::Slices;
        let watched = std::mem::take(&mut self.watched);
        let changes = self.report_all();
        watched.keys().for_each(|key| self.unhide(key));
        changes
    }

    /// Forgets the watch of all pods, which ended before it was used.
    pub fn forget_watched(&mut self) {
        if self.origin == PeerOrigin::Slices {
            self.watched.clear();
        }
    }

    /// Returns the origin of the pods of other nodes.
    #[must_use]
    pub const fn origin(&self) -> PeerOrigin {
        self.origin
    }

    /// Returns whether this node has a pod of a namespace.
    #[must_use]
    pub fn has_own_in(&self, namespace: &str) -> bool {
        let first = self.own.range(Key::new(namespace, "")..).next();
        first.is_some_and(|(key, _)| key.namespace == namespace)
    }

    /// Returns the number of known pods.
    #[must_use]
    pub fn len(&self) -> usize {
        self.reported.len()
    }

    /// Whether no pod is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reported.is_empty()
    }

    /// Returns this node's pods with another state in slices, each with a hash of both. A slice that lags differs for a
    /// moment only.
    #[must_use]
    pub fn own_differences(&self, vocabulary: &Vocabulary) -> BTreeMap<Key, u64> {
        let differing = |(key, pod): (&Key, &Pod)| {
            let wanted = vocabulary.reduce(pod);
            // Slices may have more names than the index for a while.
            let sliced = self.sliced(key).and_then(|pod| vocabulary.reduce(pod));
            let hash = self.hasher.hash_one((&wanted, &sliced));
            (wanted != sliced).then(|| (key.clone(), hash))
        };
        self.own.iter().filter_map(differing).collect()
    }

    /// Returns a pod's state.
    fn state(&self, key: &Key) -> Option<&Pod> {
        if let Some(pod) = self.own.get(key) {
            return Some(pod);
        }
        let state = self.state_by_origin(key);
        let gone = self.hidden.get(key);
        // A pod of this node begins and ends with its own watch.
        let state = state.filter(|pod| *pod.node != *self.node);
        state.filter(|pod| gone.is_none_or(|gone| !is_same(pod, gone)))
    }

    fn state_by_origin(&self, key: &Key) -> Option<&Pod> {
        match self.origin {
            PeerOrigin::Pods => self.watched.get(key),
            PeerOrigin::Slices if !self.is_started => None,
            PeerOrigin::Slices => self.sliced(key),
        }
    }

    /// Forgets a deleted pod of this node once the other origin has no entry of it either.
    fn unhide(&mut self, key: &Key) {
        let Some(gone) = self.hidden.get(key) else { return };
        let mut entries = self.sliced(key).into_iter().chain(self.watched.get(key));
        if !entries.any(|pod| is_same(pod, gone)) {
            self.hidden.remove(key);
        }
    }

    /// Returns the change of a pod if its state differs from the reported one.
    fn report(&mut self, key: &Key) -> Option<Change> {
        let Some(pod) = self.state(key) else {
            return self.reported.remove(key).map(|_| Change::PodGone(key.clone()));
        };
        let hash = self.hasher.hash_one(pod);
        let change = Change::Pod(pod.clone());
        let before = self.reported.insert(key.clone(), hash);
        (before != Some(hash)).then_some(change)
    }

    fn report_all(&mut self) -> Vec<Change> {
        let known = self.reported.keys().chain(self.places.keys()).chain(self.watched.keys());
        let keys: BTreeSet<Key> = known.cloned().collect();
        keys.iter().filter_map(|key| self.report(key)).collect()
    }
}

/// Returns whether both are states of one pod, not of two pods with one name. Pods in slices have no uid.
fn is_same(entry: &Pod, gone: &Pod) -> bool {
    let shares_address =
        || gone.all_addresses().any(|own| entry.all_addresses().any(|it| it == own));
    entry.uid == gone.uid || entry.created == gone.created && shares_address()
}
