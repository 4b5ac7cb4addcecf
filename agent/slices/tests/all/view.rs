//! The view of an agent over random series: the truth changes, and its watches and the slices follow later, each with
//! its own delay. No pod's state is ever replaced by an older one, and in the end the view equals the truth.
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::wildcard_enum_match_arm, reason = "of the many changes, those of pods")]

use std::collections::BTreeMap;

use netpold_core::model::{Change, Key, Pod};
use netpold_slices::{Packing, PeerOrigin, PeerView, Vocabulary};
use netpold_testkit::objects;
use proptest::prelude::*;

const NODE: &str = "own";

#[derive(Clone, Debug)]
enum Step {
    /// The pod with this number changes; on this node or on another one.
    Set(u8, bool),
    /// The pod is removed.
    Remove(u8),
    /// The watch of this node's pods receives this many changes.
    Own(u8),
    /// The watch of all pods receives this many changes, while it is followed.
    Watch(u8),
    /// The controller receives this many changes, and writes slices; the agent gets them at once.
    Write(u8),
    /// The controller's heartbeat arrives.
    Beat,
    /// The agent begins to change the origin of pods.
    Switch,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..12_u8, any::<bool>()).prop_map(|(pod, own)| Step::Set(pod, own)),
        2 => (0..12_u8).prop_map(Step::Remove),
        4 => (1..4_u8).prop_map(Step::Own),
        4 => (1..4_u8).prop_map(Step::Watch),
        4 => (1..4_u8).prop_map(Step::Write),
        1 => Just(Step::Beat),
        1 => Just(Step::Switch),
    ];
    prop::collection::vec(step, 0..150)
}

/// Watch with its place in the history; a change's version is its place.
#[derive(Default)]
struct Place(usize);

impl Place {
    fn next(&mut self, history: &[Change]) -> Option<Change> {
        let change = history.get(self.0)?;
        self.0 += 1;
        Some(change.clone())
    }
}

fn key(change: &Change) -> Key {
    match change {
        Change::Pod(pod) => pod.key.clone(),
        Change::PodGone(key) => key.clone(),
        other => unreachable!("{other:?}"),
    }
}

struct World {
    /// Changes of pods; the version of a change is its place.
    history: Vec<Change>,
    truth: BTreeMap<Key, Pod>,
    own: Place,
    watch: Place,
    controller: Place,
    controllers: BTreeMap<Key, Pod>,
    packing: Packing,
    vocabulary: Vocabulary,
    view: PeerView,
    /// The pods as the engine knows them.
    reported: BTreeMap<Key, Pod>,
    /// Whether the agent takes in no further changes of the watch of all pods, since slices will replace it.
    is_frozen: bool,
    /// `resourceVersion` of the last slice written.
    written: u64,
    /// Latest reported version of each pod.
    versions: BTreeMap<Key, u64>,
}

impl World {
    fn new() -> Self {
        let mut view = PeerView::new(NODE.into());
        assert!(view.start().is_empty());
        let label_keys = ["version".to_owned()].into();
        Self {
            history: Vec::new(),
            truth: BTreeMap::new(),
            own: Place::default(),
            watch: Place::default(),
            controller: Place::default(),
            controllers: BTreeMap::new(),
            packing: Packing::default(),
            vocabulary: Vocabulary { label_keys, ..Vocabulary::default() },
            view,
            reported: BTreeMap::new(),
            is_frozen: false,
            written: 0,
            versions: BTreeMap::new(),
        }
    }

    fn change(&mut self, number: u8, own: Option<bool>) {
        let name = format!("p{number}");
        let key = Key::new("x", &name);
        let Some(own) = own else {
            if self.truth.remove(&key).is_some() {
                self.history.push(Change::PodGone(key));
            }
            return;
        };
        let version = self.history.len().to_string();
        let labels = [("version", &*version), ("other", "x")];
        let mut pod = objects::pod("x", &name, &labels, &[&format!("10.0.0.{}", number + 1)]);
        // A pod keeps its node and its creation for its life.
        let before = self.truth.get(&key);
        let is_own = before.map_or(own, |pod| &*pod.node == NODE);
        pod.created = before.map_or(self.history.len() as i64, |pod| pod.created);
        pod.uid = format!("{key} {}", pod.created);
        pod.node = if is_own { NODE } else { "other" }.into();
        self.truth.insert(key, pod.clone());
        self.history.push(Change::Pod(pod));
    }

    fn report(&mut self, changes: impl IntoIterator<Item = Change>) -> Result<(), TestCaseError> {
        for change in changes {
            let key = key(&change);
            let version = match &change {
                Change::Pod(pod) => pod.labels.get("version").unwrap().parse().unwrap(),
                _ => 0,
            };
            let own = self.view_is_own(&key);
            if let Change::Pod(pod) = change {
                let last = self.versions.entry(key.clone()).or_default();
                prop_assert!(own || version >= *last, "{key}: {version} after {last}");
                *last = version.max(*last);
                self.reported.insert(key, pod);
            } else {
                self.reported.remove(&key);
            }
        }
        Ok(())
    }

    /// Whether some version of the pod ran on this node: two watches deliver it.
    fn view_is_own(&self, key: &Key) -> bool {
        self.history.iter().any(
            |change| matches!(change, Change::Pod(pod) if pod.key == *key && &*pod.node == NODE),
        )
    }

    fn own(&mut self) -> Result<(), TestCaseError> {
        let Some(change) = self.own.next(&self.history) else { return Ok(()) };
        let is_own = match &change {
            Change::Pod(pod) => &*pod.node == NODE,
            _ => true,
        };
        let comes = if is_own { self.view.take_own(change) } else { None };
        self.report(comes)
    }

    fn watch(&mut self) -> Result<(), TestCaseError> {
        if self.view.origin() != PeerOrigin::Pods || self.is_frozen {
            return Ok(());
        }
        let change = self.watch.next(&self.history);
        let comes = change.and_then(|change| self.view.take_watched(change));
        self.report(comes)
    }

    fn write(&mut self, count: u8) -> Result<(), TestCaseError> {
        let mut touched = std::collections::BTreeSet::new();
        for _ in 0..count {
            let Some(change) = self.controller.next(&self.history) else { break };
            let reduced = match &change {
                Change::Pod(pod) => self.vocabulary.reduce(pod),
                _ => None,
            };
            match reduced {
                Some(pod) => touched.extend(self.packing.set(pod).slices()),
                None => touched.extend(self.packing.remove(&key(&change))),
            }
            match change {
                Change::Pod(pod) => drop(self.controllers.insert(pod.key.clone(), pod)),
                other => drop(self.controllers.remove(&key(&other))),
            }
        }
        for number in touched {
            let pods = self.packing.slice(number).into_iter().flat_map(|pods| pods.values());
            let pods = pods.cloned().collect();
            self.written += 1;
            let changes = self.view.take_slice(number, self.written, pods);
            self.report(changes)?;
        }
        Ok(())
    }

    fn beat(&mut self) -> Result<(), TestCaseError> {
        if self.is_frozen && self.controller.0 >= self.watch.0 {
            self.is_frozen = false;
            let changes = self.view.follow_slices();
            self.report(changes)?;
        }
        Ok(())
    }

    fn switch(&mut self) -> Result<(), TestCaseError> {
        let changes = match self.view.origin() {
            PeerOrigin::Pods => {
                self.is_frozen = true;
                Vec::new()
            }
            PeerOrigin::Slices => {
                // The list has the present state.
                self.watch = Place(self.history.len());
                for pod in self.truth.values().cloned().collect::<Vec<_>>() {
                    let change = self.view.take_watched(Change::Pod(pod));
                    self.report(change)?;
                }
                self.view.follow_pods()
            }
        };
        self.report(changes)
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Set(number, own) => self.change(*number, Some(*own)),
            Step::Remove(number) => self.change(*number, None),
            Step::Own(count) => (0..*count).try_for_each(|_| self.own())?,
            Step::Watch(count) => (0..*count).try_for_each(|_| self.watch())?,
            Step::Write(count) => self.write(*count)?,
            Step::Beat => self.beat()?,
            Step::Switch => self.switch()?,
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..=self.history.len() {
            self.own()?;
            self.watch()?;
            self.write(1)?;
        }
        self.beat()
    }

    /// The pods that the agent should know.
    fn wanted(&self) -> BTreeMap<Key, Pod> {
        let all = self.truth.iter().filter_map(|(key, pod)| {
            let whole = &*pod.node == NODE || self.view.origin() == PeerOrigin::Pods;
            let pod = if whole { Some(pod.clone()) } else { self.vocabulary.reduce(pod) };
            pod.map(|pod| (key.clone(), pod))
        });
        all.collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_state_is_older_than_the_one_before_and_the_last_is_the_truth(steps in steps()) {
        let mut world = World::new();
        steps.iter().try_for_each(|step| world.step(step))?;
        world.finish()?;
        prop_assert_eq!(&world.reported, &world.wanted());
        // The other origin has the same pods.
        world.switch()?;
        world.finish()?;
        prop_assert_eq!(&world.reported, &world.wanted());
    }
}

/// A slice cannot change a pod of this node, regardless of its content.
#[test]
fn own_pods_are_those_of_their_watch() {
    let mut view = PeerView::new(NODE.into());
    let other = vec![objects::pod("x", "other", &[], &["10.0.0.2"])];
    assert!(view.take_slice(1, 1, other.clone()).is_empty(), "it may be of any age");
    assert_eq!(view.start(), [Change::Pod(other[0].clone())]);
    assert_eq!(view.take_slice(1, 1, Vec::new()).len(), 1);
    let mut own = objects::pod("x", "p", &[("app", "a")], &["10.0.0.1"]);
    own.node = NODE.into();
    let vocabulary = Vocabulary { label_keys: ["app".to_owned()].into(), ..Vocabulary::default() };
    assert_eq!(view.take_own(Change::Pod(own.clone())), Some(Change::Pod(own.clone())));
    let mut forged = vocabulary.reduce(&own).unwrap();
    assert!(view.take_slice(0, 1, vec![forged.clone()]).is_empty());
    assert!(view.own_differences(&vocabulary).is_empty());
    forged.labels = objects::pod("x", "p", &[("app", "admin")], &[]).labels;
    assert!(view.take_slice(0, 1, vec![forged]).is_empty());
    assert_eq!(view.own_differences(&vocabulary).len(), 1);
    let gone = Change::PodGone(own.key.clone());
    assert_eq!(view.take_own(gone.clone()), Some(gone));
    assert!(view.is_empty(), "its entry in the slice is old");
    assert!(view.take_slice(0, 1, Vec::new()).is_empty());
}

/// A pod that two slices have is the one of the newer slice, and stays until both have lost it.
#[test]
fn of_two_slices_with_a_pod_the_newer_counts() {
    let mut view = PeerView::new(NODE.into());
    view.start();
    let pod = |label: &str| objects::pod("x", "p", &[("app", label)], &["10.0.0.1"]);
    assert_eq!(view.take_slice(0, 5, vec![pod("a")]), [Change::Pod(pod("a"))]);
    assert_eq!(view.take_slice(1, 6, vec![pod("b")]), [Change::Pod(pod("b"))]);
    assert_eq!(view.take_slice(2, 4, vec![pod("old")]), []);
    assert_eq!(view.take_slice(0, 0, Vec::new()), [], "it moved");
    assert_eq!(view.take_slice(2, 4, vec![pod("other")]), []);
    assert_eq!(view.take_slice(1, 7, Vec::new()), [Change::Pod(pod("other"))]);
    assert_eq!(view.take_slice(2, 8, vec![pod("c")]), [Change::Pod(pod("c"))]);
    let gone = Change::PodGone(pod("c").key);
    assert_eq!(view.take_slice(2, 9, Vec::new()), [gone]);
    assert!(view.is_empty());
}

/// A hostNetwork pod, or one with claims, has its node in slices.
#[test]
fn a_pod_of_the_own_node_begins_with_its_own_watch() {
    let mut view = PeerView::new(NODE.into());
    view.start();
    let mut own = objects::pod("x", "p", &[], &["10.0.0.1"]);
    (own.node, own.host_network) = (NODE.into(), true);
    assert_eq!(view.take_slice(0, 1, vec![own.clone()]), []);
    assert_eq!(view.take_own(Change::Pod(own.clone())), Some(Change::Pod(own.clone())));
    let mut other = own.clone();
    (other.key, other.node) = (Key::new("x", "q"), "other".into());
    let changes = view.take_slice(0, 2, vec![own, other.clone()]);
    assert_eq!(changes, [Change::Pod(other)]);
}
