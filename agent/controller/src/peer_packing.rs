//! Content of the peer slices: which pods and names they should have, and which of them differ on the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use netpold_api::peer_slice::{PeerSliceSpec, PeerVocabulary};
use netpold_core::cluster::ObjectKey;
use netpold_core::model::{Change, Key, Pod};
use netpold_slices::{MAX_NAMES, Packing, SliceNumber, Vocabulary, encode};

/// Time for which a name stays in the vocabulary after the last policy with it: an agent may know of the policy's end
/// later.
const KEPT: Duration = Duration::from_mins(10);
/// Most slices of one cycle that change by names alone, so that changes of pods do not wait for them.
const BY_NAMES: usize = 50;

/// Names of a policy, with its namespace.
type NamesOfPolicy = (String, Vocabulary);

/// Pods, names, and the slices to write.
#[derive(Debug, Default)]
pub(super) struct PeerPacking {
    pods: BTreeMap<Key, Pod>,
    policies: BTreeMap<ObjectKey, NamesOfPolicy>,
    are_policies_new: bool,
    packing: Packing,
    /// Names to which the pods in `packing` are reduced; contains `goal`.
    names: Vocabulary,
    /// Names that the index should have.
    goal: Vocabulary,
    is_full: bool,
    /// Start of the time in which the goal has names that no policy has.
    superfluous: Option<Instant>,
    /// Slices to write because pods changed.
    urgent: BTreeSet<SliceNumber>,
    /// Slices to write because names changed.
    by_names: BTreeSet<SliceNumber>,
}

impl PeerPacking {
    /// Takes in a change of an object.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many changes, the ones this is about"
    )]
    pub(super) fn take(&mut self, change: Change) {
        let key = ObjectKey::of(&change);
        match change {
            Change::Pod(pod) => {
                let touched = match self.names.reduce(&pod) {
                    Some(reduced) => self.packing.set(reduced),
                    None => self.packing.remove(&pod.key).into_iter().collect(),
                };
                self.urgent.extend(touched);
                self.pods.insert(pod.key.clone(), pod);
            }
            Change::PodGone(key) => {
                self.urgent.extend(self.packing.remove(&key));
                self.pods.remove(&key);
            }
            Change::Policy(policy) => {
                let names = Vocabulary::of_policy(&policy);
                self.set_policy(key, Some((policy.key.namespace, names)));
            }
            Change::ClusterPolicy(policy) => {
                let names = Vocabulary::of_cluster_policy(&policy);
                self.set_policy(key, Some((String::new(), names)));
            }
            Change::PolicyGone(_) | Change::ClusterPolicyGone(_) => self.set_policy(key, None),
            _ => {}
        }
    }

    fn set_policy(&mut self, key: ObjectKey, names: Option<NamesOfPolicy>) {
        let before = match names.clone() {
            Some(names) => self.policies.insert(key, names),
            None => self.policies.remove(&key),
        };
        self.are_policies_new |= before != names;
    }

    /// Continues with the slices of the last writer: their places of pods, and its names.
    pub(super) fn take_over(
        &mut self,
        found: impl IntoIterator<Item = (SliceNumber, Vec<Pod>)>,
        index: Option<&PeerVocabulary>,
        now: Instant,
    ) {
        let (packing, changed) = Packing::take_over(found);
        self.packing = packing;
        self.urgent = changed;
        self.by_names.clear();
        self.goal = index.map(Vocabulary::from).unwrap_or_default();
        self.names = self.goal.clone();
        self.superfluous = None;
        self.are_policies_new = true;
        self.look_at_names(now);
        let (pods, names) = (&self.pods, &self.names);
        let is_there = |key: &Key| pods.get(key).is_some_and(|pod| names.reduce(pod).is_some());
        self.urgent.extend(self.packing.retain(is_there));
        for pod in pods.values().filter_map(|pod| names.reduce(pod)) {
            self.urgent.extend(self.packing.set(pod));
        }
    }

    /// Decides about the names; reduces the pods to more names where policies have new ones.
    pub(super) fn look_at_names(&mut self, now: Instant) {
        let is_due = self.superfluous.is_some_and(|since| now.duration_since(since) >= KEPT);
        if !std::mem::take(&mut self.are_policies_new) && !is_due {
            return;
        }
        let all = self.policies.values().map(|(namespace, names)| (namespace.as_str(), names));
        let (needed, is_complete) = Vocabulary::of_all(all);
        self.is_full = !is_complete;
        let mut kept = self.goal.clone();
        kept.extend(needed.clone());
        let is_more = kept != needed;
        if is_more && !is_due && kept.len() <= MAX_NAMES {
            self.superfluous.get_or_insert(now);
            self.goal = kept;
        } else {
            self.superfluous = None;
            self.goal = needed;
        }
        if !self.names.covers(&self.goal) {
            let mut names = self.names.clone();
            names.extend(self.goal.clone());
            self.reduce_to(names);
        }
    }

    fn reduce_to(&mut self, names: Vocabulary) {
        self.names = names;
        for pod in self.pods.values() {
            if let Some(pod) = self.names.reduce(pod) {
                self.by_names.extend(self.packing.set(pod));
            }
        }
    }

    /// Reduces the pods to the names of the index, once it is written: until then agents may use the others.
    pub(super) fn index_is_written(&mut self, vocabulary: &PeerVocabulary) {
        if Vocabulary::from(vocabulary) == self.goal && self.names != self.goal {
            self.reduce_to(self.goal.clone());
        }
    }

    /// Removes and returns the slices to write now.
    pub(super) fn take_due(&mut self) -> BTreeSet<SliceNumber> {
        let mut due = std::mem::take(&mut self.urgent);
        self.by_names.retain(|number| !due.contains(number));
        let some: Vec<SliceNumber> = self.by_names.iter().take(BY_NAMES).copied().collect();
        some.iter().for_each(|number| _ = self.by_names.remove(number));
        due.extend(some);
        due
    }

    /// Puts a slice back that could not be written.
    pub(super) fn put_back(&mut self, number: SliceNumber) {
        self.urgent.insert(number);
    }

    /// Returns the content of a slice; `None`: it is to be deleted.
    pub(super) fn content(&self, number: SliceNumber) -> Option<PeerSliceSpec> {
        self.packing.slice(number).map(|pods| encode(pods.values()))
    }

    /// Returns the content of the index, if every slice has its names.
    pub(super) fn index(&self) -> Option<PeerVocabulary> {
        let Vocabulary { label_keys, port_names } = self.goal.clone();
        let index = PeerVocabulary { label_keys, port_names, is_full: self.is_full };
        self.by_names.is_empty().then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use netpold_core::model::{Peer, Requirement, Selector};
    use netpold_testkit::objects;

    use super::*;

    fn policy(name: &str, label: &str) -> Change {
        let pods = Selector { requirements: vec![Requirement::Exists(label.into())] };
        let peers = Some(vec![Peer::Pods { namespaces: None, pods }]);
        let rules = Some(vec![objects::rule(peers, None)]);
        Change::Policy(objects::policy("x", name, Selector::default(), rules, None))
    }

    fn packing(pods: usize) -> PeerPacking {
        let mut packing = PeerPacking::default();
        for number in 0..pods {
            let labels = [("a", "1"), ("b", "2"), ("c", "3")];
            let address = format!("10.0.{}.{}", number / 250, number % 250 + 1);
            let pod = objects::pod("x", &format!("p{number:05}"), &labels, &[&address]);
            packing.take(Change::Pod(pod));
        }
        packing
    }

    /// Writes everything, as if no request failed; returns the numbers of slices written.
    fn write(packing: &mut PeerPacking, now: Instant) -> Vec<usize> {
        packing.look_at_names(now);
        let mut written = Vec::new();
        loop {
            let due = packing.take_due();
            if !due.is_empty() {
                written.push(due.len());
                continue;
            }
            if let Some(index) = packing.index() {
                packing.index_is_written(&index);
            }
            if packing.by_names.is_empty() {
                return written;
            }
        }
    }

    fn labels(packing: &PeerPacking) -> Vec<String> {
        let content = packing.content(0).unwrap();
        content.labels[0].iter().map(|(key, _)| key.clone()).collect()
    }

    #[test]
    fn names_come_at_once_and_go_late() {
        let now = Instant::now();
        let mut packing = packing(120);
        packing.take(policy("p", "a"));
        assert_eq!(write(&mut packing, now), [3]);
        assert_eq!(labels(&packing), ["a"]);
        packing.take(policy("q", "b"));
        packing.look_at_names(now);
        assert_eq!(packing.index(), None, "the slices lack it");
        assert_eq!(write(&mut packing, now), [3]);
        assert_eq!(packing.index().unwrap().label_keys.len(), 2);
        packing.take(Change::PolicyGone(Key::new("x", "p")));
        assert!(write(&mut packing, now + Duration::from_secs(1)).is_empty());
        assert_eq!(labels(&packing), ["a", "b"]);
        assert_eq!(write(&mut packing, now + KEPT + Duration::from_secs(2)), [3]);
        assert_eq!(labels(&packing), ["b"]);
        assert!(write(&mut packing, now + KEPT * 2).is_empty());
    }

    #[test]
    fn a_new_leader_writes_only_what_differs() {
        let now = Instant::now();
        let mut first = packing(120);
        first.take(policy("p", "a"));
        write(&mut first, now);
        let index = first.index().unwrap();
        let slices = || (0..3).map(|number| first.content(number).unwrap());
        let found: Vec<(SliceNumber, Vec<Pod>)> =
            (0..).zip(slices().map(|spec| netpold_slices::decode(&spec).unwrap())).collect();
        let mut second = packing(120);
        second.take(policy("p", "a"));
        second.take_over(found.clone(), Some(&index), now);
        assert!(write(&mut second, now).is_empty());
        let mut third = packing(119);
        third.take(policy("p", "a"));
        third.take_over(found, Some(&index), now);
        assert_eq!(write(&mut third, now), [1]);
    }

    #[test]
    fn a_vocabulary_without_room_is_marked() {
        let mut packing = packing(1);
        for number in 0..=MAX_NAMES {
            packing.take(policy(&format!("p{number}"), &format!("l{number}")));
        }
        write(&mut packing, Instant::now());
        let index = packing.index().unwrap();
        assert_eq!((index.label_keys.len(), index.is_full), (MAX_NAMES, true));
    }
}
