//! Content of the peer slices: which pods and names they should have, and which of them differ on the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use netpold_api::peer_slice::{PeerSliceSpec, PeerVocabulary};
use netpold_core::cluster::ObjectKey;
use netpold_core::model::{Change, Key, Pod};
use netpold_slices::{Packing, Placement, SliceNumber, Vocabulary, encode};

use crate::peer_due::{DueSlice, DueSlices};
use crate::peer_names::PeerNames;

/// Time from the first change of a slice to its write: simultaneous changes are gathered meanwhile.
const SOON: Duration = Duration::from_millis(50);
/// Shortest time between two writes of a slice: further changes are gathered meanwhile.
const GATHER: Duration = Duration::from_millis(300);
/// Pause before a slice is written again after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Pods, names, and the slices to write.
#[derive(Debug, Default)]
pub(super) struct PeerPacking {
    pods: BTreeMap<Key, Pod>,
    /// `resourceVersion` up to which changes of pods are known.
    version: u64,
    names: PeerNames,
    /// Names to which the pods in `packing` are reduced.
    reduced: Vocabulary,
    packing: Packing,
    /// Slices to write.
    due: DueSlices,
    /// Slices that are being written.
    in_flight: BTreeMap<SliceNumber, SliceInFlight>,
    /// Beginnings of the last writes, for [`GATHER`].
    begun: BTreeMap<SliceNumber, Instant>,
    /// Whether the last write was of a slice with changed pods; others get every second write.
    was_urgent: bool,
}

/// Slice that is being written.
#[derive(Debug)]
struct SliceInFlight {
    due: DueSlice,
    /// Slices that wait for this state of it.
    before: BTreeSet<SliceNumber>,
}

impl PeerPacking {
    /// Takes in a change of an object.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many changes, the ones this is about"
    )]
    pub(super) fn apply_change(&mut self, change: Change, now: Instant) {
        let key = ObjectKey::of(&change);
        match change {
            Change::Pod(pod) => {
                match self.reduced.reduce(&pod) {
                    Some(reduced) => {
                        let placed = self.packing.set(reduced);
                        self.set_due(placed, now);
                    }
                    None => self.remove(&pod.key, now),
                }
                self.pods.insert(pod.key.clone(), pod);
            }
            Change::PodGone(key) => {
                self.remove(&key, now);
                self.pods.remove(&key);
            }
            Change::Policy(policy) => {
                let names = Vocabulary::of_policy(&policy);
                self.names.set(key, Some((policy.key.namespace, names)));
            }
            Change::ClusterPolicy(policy) => {
                let names = Vocabulary::of_cluster_policy(&policy);
                self.names.set(key, Some((String::new(), names)));
            }
            Change::PolicyGone(_) | Change::ClusterPolicyGone(_) => self.names.set(key, None),
            _ => {}
        }
    }

    /// Takes in that all changes of pods up to a `resourceVersion` were taken in.
    pub(super) fn set_version(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    fn remove(&mut self, key: &Key, now: Instant) {
        if let Some(number) = self.packing.remove(key) {
            self.mark_due(number, now);
        }
    }

    /// Has a slice written because of its pods.
    pub(super) fn mark_due(&mut self, number: SliceNumber, now: Instant) {
        self.change_due(number, now, |due| _ = due.since.get_or_insert(now));
    }

    /// Has a slice written in which another than this controller wrote.
    pub(super) fn mark_foreign(&mut self, number: SliceNumber, now: Instant) {
        self.change_due(number, now, |due| {
            due.since.get_or_insert(now);
            (due.version, due.lacks_names) = (0, true);
        });
    }

    fn change_due(
        &mut self,
        number: SliceNumber,
        now: Instant,
        change: impl FnOnce(&mut DueSlice),
    ) {
        let version = self.version;
        let soon = now + SOON;
        let at = self.begun.get(&number).map_or(soon, |begun| soon.max(*begun + GATHER));
        self.due.change(number, || DueSlice::new(at, version), change);
    }

    fn set_due(&mut self, placed: Placement, now: Instant) {
        placed.slices().for_each(|number| self.mark_due(number, now));
        if let Placement::Moved { from, to } = placed {
            self.change_due(from, now, |due| _ = due.after.insert(to));
            if self.in_flight.contains_key(&from) {
                self.change_due(to, now, |due| _ = due.behind.insert(from));
            }
        }
    }

    /// Continues with the slices of the last writer, the newest first: their places of pods, and its names.
    pub(super) fn take_over(
        &mut self,
        found: Vec<(SliceNumber, Vec<Pod>)>,
        index: &PeerVocabulary,
        now: Instant,
    ) {
        let mut names = Vocabulary::default();
        for pod in found.iter().flat_map(|(_, pods)| pods) {
            names.label_keys.extend(pod.labels.iter().map(|(key, _)| key.clone()));
            names.port_names.extend(pod.ports.iter().map(|port| port.name.clone()));
        }
        let (packing, changed, moved) = Packing::take_over(found);
        self.packing = packing;
        self.due = DueSlices::default();
        self.in_flight.clear();
        changed.into_iter().for_each(|number| self.mark_due(number, now));
        moved.into_iter().for_each(|moved| self.set_due(moved, now));
        self.names.take_over(index, &names, now);
        self.reduced = self.names.of_slices();
        let (pods, reduced) = (&self.pods, &self.reduced);
        let is_there = |key: &Key| pods.get(key).is_some_and(|pod| reduced.reduce(pod).is_some());
        let gone = self.packing.retain(is_there);
        gone.into_iter().for_each(|number| self.mark_due(number, now));
        self.reduce(now, true);
        // Nothing is known of the state that the slices have.
        self.due.change_all(|due| (due.version, due.lacks_names) = (0, true));
    }

    /// Decides about the names; reduces the pods to those of slices.
    pub(super) fn look_at_names(&mut self, now: Instant) {
        let are_written =
            !self.due.lack_names() && !self.in_flight.values().any(|write| write.due.lacks_names);
        self.names.decide_names(are_written, now);
        let names = self.names.of_slices();
        if names != self.reduced {
            self.reduced = names;
            self.reduce(now, false);
        }
    }

    fn reduce(&mut self, now: Instant, is_urgent: bool) {
        let reduced = self.pods.values().filter_map(|pod| self.reduced.reduce(pod));
        let placed: Vec<Placement> = reduced.map(|pod| self.packing.set(pod)).collect();
        for placed in placed {
            if is_urgent || matches!(placed, Placement::Moved { .. }) {
                self.set_due(placed, now);
            }
            for number in placed.slices() {
                self.change_due(number, now, |due| due.lacks_names = true);
            }
        }
    }

    /// Begins to write the next slice; returns its content, `None` if it is to be deleted. Slices with changed pods come first,
    /// the oldest change before others; if there are others too, they get every second write.
    pub(super) fn begin_write(
        &mut self,
        now: Instant,
        may_write: impl Fn(SliceNumber) -> bool,
    ) -> Option<(SliceNumber, Option<PeerSliceSpec>)> {
        let is_free =
            |number: SliceNumber| !self.in_flight.contains_key(&number) && may_write(number);
        let number = self.due.next(now, self.was_urgent, is_free)?;
        let due = self.due.remove(number)?;
        self.was_urgent = due.since.is_some();
        let before = self.due.waiting_for(number);
        self.in_flight.insert(number, SliceInFlight { due, before });
        self.begun.retain(|_, begun| now.saturating_duration_since(*begun) < GATHER);
        self.begun.insert(number, now);
        Some((number, self.packing.slice(number).map(|pods| encode(pods.values()))))
    }

    /// Takes in the end of a write.
    pub(super) fn end_write(&mut self, number: SliceNumber, is_written: bool, now: Instant) {
        let Some(write) = self.in_flight.remove(&number) else { return };
        if is_written {
            return self.due.end_write(number, &write.before);
        }
        self.due.end_write(number, &BTreeSet::new());
        let again = DueSlice { at: now + RETRY, ..write.due };
        self.due.change(number, || again.clone(), |due| due.merge(again.clone()));
    }

    /// Returns the time for which the oldest change of a pod has waited for its slice's write.
    pub(super) fn delay(&self, now: Instant) -> Duration {
        let in_flight = self.in_flight.values().filter_map(|write| write.due.since);
        let oldest = in_flight.chain(self.due.oldest()).min();
        oldest.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Returns the `resourceVersion` up to which changes of pods are in the slices on the API server.
    pub(super) fn written_version(&self) -> u64 {
        let pods = self.unwritten().filter(|due| due.since.is_some());
        pods.map(|due| due.version).min().unwrap_or(self.version)
    }

    fn unwritten(&self) -> impl Iterator<Item = &DueSlice> {
        self.due.values().chain(self.in_flight.values().map(|write| &write.due))
    }

    /// Whether nothing is to be written.
    pub(super) fn is_idle(&self) -> bool {
        self.due.is_empty() && self.in_flight.is_empty()
    }

    /// Returns the content of the index.
    pub(super) fn index(&self) -> PeerVocabulary {
        self.names.index()
    }
}

#[cfg(test)]
mod tests {
    use netpold_core::model::{Peer, Requirement, Selector};
    use netpold_slices::MAX_PODS;
    use netpold_testkit::objects;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn policy(name: &str, label: &str) -> Change {
        let pods = Selector { requirements: vec![Requirement::Exists(label.into())] };
        let peers = Some(vec![Peer::Pods { namespaces: None, pods }]);
        let rules = Some(vec![objects::rule(peers, None)]);
        Change::Policy(objects::policy("x", name, Selector::default(), rules, None))
    }

    fn pod(number: usize, a: &str) -> Change {
        let labels = [("a", a), ("b", "2"), ("c", "3")];
        let address = format!("10.0.{}.{}", number / 250, number % 250 + 1);
        Change::Pod(objects::pod("x", &format!("p{number:05}"), &labels, &[&address]))
    }

    fn packing(pods: usize, now: Instant) -> PeerPacking {
        let mut packing = PeerPacking::default();
        (0..pods).for_each(|number| packing.apply_change(pod(number, "1"), now));
        packing
    }

    fn begin(packing: &mut PeerPacking, now: Instant) -> Option<SliceNumber> {
        packing.begin_write(now, |_| true).map(|(number, _)| number)
    }

    /// Writes everything, as if no request failed; returns the numbers of slices written.
    fn write(packing: &mut PeerPacking, now: Instant) -> Vec<SliceNumber> {
        let mut written = Vec::new();
        for step in 1..4 {
            let now = now + step * SECOND;
            packing.look_at_names(now);
            while let Some(number) = begin(packing, now + GATHER) {
                packing.end_write(number, true, now);
                written.push(number);
            }
        }
        written
    }

    fn slice(packing: &PeerPacking, number: SliceNumber) -> PeerSliceSpec {
        encode(packing.packing.slice(number).unwrap().values())
    }

    fn labels(packing: &PeerPacking) -> Vec<String> {
        slice(packing, 0).labels[0].iter().map(|(key, _)| key.clone()).collect()
    }

    fn slices(count: usize) -> usize {
        count * MAX_PODS - 1
    }

    #[test]
    fn the_index_has_a_name_once_all_slices_have_it() {
        let now = Instant::now();
        let mut packing = packing(slices(3), now);
        packing.apply_change(policy("p", "a"), now);
        packing.look_at_names(now);
        let later = now + SECOND;
        assert_eq!((begin(&mut packing, now), begin(&mut packing, later)), (None, Some(0)));
        assert_eq!((begin(&mut packing, later), begin(&mut packing, later)), (Some(1), Some(2)));
        packing.end_write(0, true, later);
        packing.end_write(1, true, later);
        packing.end_write(2, false, later);
        packing.look_at_names(later);
        assert_eq!(packing.index().label_keys.len(), 0, "slice 2 lacks it");
        assert_eq!(begin(&mut packing, later), None, "pause");
        assert_eq!(write(&mut packing, later), [2]);
        assert_eq!((packing.index().label_keys.len(), labels(&packing)), (1, vec!["a".into()]));
        assert!(packing.is_idle());
    }

    #[test]
    fn a_change_is_written_soon_and_the_next_ones_are_gathered() {
        let now = Instant::now();
        let mut packing = packing(2, now);
        packing.apply_change(policy("p", "a"), now);
        write(&mut packing, now);
        let now = now + 10 * SECOND;
        packing.apply_change(pod(0, "x"), now);
        let first = now + SOON;
        assert_eq!((begin(&mut packing, now), begin(&mut packing, first)), (None, Some(0)));
        packing.end_write(0, true, first);
        packing.apply_change(pod(1, "x"), first);
        assert_eq!(begin(&mut packing, first + GATHER / 2), None);
        packing.apply_change(pod(0, "y"), first + GATHER / 2);
        assert_eq!(begin(&mut packing, first + GATHER), Some(0));
    }

    #[test]
    fn a_new_leader_writes_only_what_differs() {
        let now = Instant::now();
        let mut first = packing(slices(3), now);
        first.apply_change(policy("p", "a"), now);
        write(&mut first, now);
        let found: Vec<_> =
            (0..3).map(|n| (n, netpold_slices::decode(&slice(&first, n)).unwrap())).collect();
        for (pods, written) in [(slices(3), vec![]), (slices(3) - 1, vec![2])] {
            let mut next = packing(pods, now);
            next.apply_change(policy("p", "a"), now);
            next.take_over(found.clone(), &first.index(), now);
            assert_eq!(write(&mut next, now), written);
            assert_eq!(next.index(), first.index());
        }
    }

    #[test]
    fn a_pod_that_moves_is_in_its_new_slice_before_it_leaves_the_other() {
        let now = Instant::now();
        let mut packing = packing(3, now);
        packing.apply_change(policy("p", "a"), now);
        write(&mut packing, now);
        let (now, large) = (now + 10 * SECOND, "x".repeat(3000));
        packing.apply_change(pod(2, "changed"), now);
        assert_eq!(begin(&mut packing, now + SECOND), Some(0), "an earlier change of the pod");
        packing.apply_change(pod(2, &large), now);
        let now = now + 2 * SECOND;
        assert_eq!(begin(&mut packing, now), None, "that write could take effect later");
        packing.end_write(0, true, now);
        assert_eq!(begin(&mut packing, now), Some(1));
        packing.end_write(1, false, now);
        assert_eq!(begin(&mut packing, now), None, "the pod is not there yet");
        let now = now + 2 * SECOND;
        assert_eq!((begin(&mut packing, now), begin(&mut packing, now)), (Some(1), None));
        packing.end_write(1, true, now);
        assert_eq!(begin(&mut packing, now), Some(0));
    }

    #[test]
    fn changes_of_pods_and_of_names_do_not_wait_for_each_other() {
        let now = Instant::now();
        let mut packing = packing(slices(4), now);
        packing.apply_change(policy("q", "a"), now);
        write(&mut packing, now);
        let now = now + 10 * SECOND;
        packing.apply_change(policy("p", "b"), now);
        packing.look_at_names(now);
        packing.apply_change(pod(slices(4), "new"), now);
        packing.apply_change(pod(slices(4) - 1, "old"), now + SECOND);
        packing.apply_change(pod(MAX_PODS, "old"), now + SECOND);
        let now = now + 2 * SECOND;
        let order: Vec<_> = std::iter::from_fn(|| begin(&mut packing, now)).collect();
        assert_eq!(order, [0, 3, 2, 1]);
    }

    #[test]
    fn the_delay_and_the_version_are_those_of_the_oldest_change_that_is_not_written() {
        let now = Instant::now();
        let mut packing = packing(slices(2), now);
        packing.set_version(10);
        packing.apply_change(policy("p", "a"), now);
        write(&mut packing, now);
        assert_eq!((packing.delay(now), packing.written_version()), (Duration::ZERO, 10));
        packing.apply_change(pod(0, "x"), now);
        packing.set_version(20);
        packing.apply_change(pod(MAX_PODS, "x"), now + SECOND);
        packing.set_version(30);
        let later = now + 2 * SECOND;
        assert_eq!((packing.delay(later), packing.written_version()), (2 * SECOND, 10));
        assert_eq!(begin(&mut packing, later), Some(0));
        assert_eq!((packing.delay(later), packing.written_version()), (2 * SECOND, 10));
        packing.end_write(0, true, later);
        assert_eq!((packing.delay(later), packing.written_version()), (SECOND, 20));
        packing.apply_change(policy("q", "b"), later);
        packing.look_at_names(later);
        assert_eq!(begin(&mut packing, later), Some(1));
        packing.end_write(1, true, later);
        assert_eq!((packing.delay(later), packing.written_version()), (Duration::ZERO, 30));
        assert!(!packing.is_idle(), "names alone delay no heartbeat");
    }
}
