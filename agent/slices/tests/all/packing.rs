//! Properties of packing, over random series of changes.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use netpold_core::model::{Key, Pod};
use netpold_slices::{MAX_PODS, Packing, Placement, SliceNumber, Vocabulary, encode};
use netpold_testkit::objects;
use proptest::prelude::*;

/// A change of the pod with a number.
#[derive(Clone, Debug)]
enum Step {
    /// The pod gets this label.
    Set(u16, u8),
    /// The pod is removed.
    Remove(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let set = (0..250_u16, 0..3_u8).prop_map(|(pod, label)| Step::Set(pod, label));
    let remove = (0..250_u16).prop_map(Step::Remove);
    prop::collection::vec(prop_oneof![3 => set, 1 => remove], 0..400)
}

fn key(number: u16) -> Key {
    Key::new("x", format!("p{number}"))
}

fn pod(number: u16, label: u8) -> Pod {
    let address = format!("10.0.{}.{}", number >> 8, number & 255);
    let labels = [("app", &*format!("a{label}")), ("other", "x")];
    let pod = objects::pod("x", &format!("p{number}"), &labels, &[&address]);
    let label_keys = ["app".to_owned()].into();
    Vocabulary { label_keys, ..Vocabulary::default() }.reduce(&pod).unwrap()
}

/// The slices by number, with their pods in order.
fn slices(packing: &Packing) -> BTreeMap<SliceNumber, Vec<Pod>> {
    let pods = |pods: &BTreeMap<Key, Pod>| pods.values().cloned().collect();
    packing.slices().map(|(number, of)| (number, pods(of))).collect()
}

fn apply(packing: &mut Packing, step: &Step) -> Vec<SliceNumber> {
    match step {
        Step::Set(number, label) => packing.set(pod(*number, *label)).slices().collect(),
        Step::Remove(number) => packing.remove(&key(*number)).into_iter().collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn one_change_touches_one_slice_and_every_pod_is_in_one(steps in steps()) {
        let (mut packing, mut pods) = (Packing::default(), BTreeMap::new());
        let mut before = slices(&packing);
        for step in &steps {
            match step {
                Step::Set(number, label) => drop(pods.insert(key(*number), pod(*number, *label))),
                Step::Remove(number) => drop(pods.remove(&key(*number))),
            }
            let touched = apply(&mut packing, step);
            let after = slices(&packing);
            let numbers: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
            let changed: Vec<_> =
                numbers.into_iter().filter(|number| before.get(number) != after.get(number)).collect();
            prop_assert_eq!(&changed, &touched);
            before = after;
        }
        prop_assert!(before.values().all(|of| (1..=MAX_PODS).contains(&of.len())));
        let all: Vec<Pod> = before.into_values().flatten().collect();
        prop_assert_eq!(all.len(), pods.len());
        let all: BTreeMap<Key, Pod> = all.into_iter().map(|pod| (pod.key.clone(), pod)).collect();
        prop_assert_eq!(all, pods);
    }

    /// The indexes of the packing find the same slice as a search through all slices.
    #[test]
    fn a_new_pod_gets_the_newest_slice_with_room_beside_pods_like_it(steps in steps()) {
        let mut packing = Packing::default();
        for step in &steps {
            let before = slices(&packing);
            let touched = apply(&mut packing, step);
            let Step::Set(number, label) = step else { continue };
            if before.values().flatten().any(|pod| pod.key == key(*number)) {
                continue;
            }
            let labels = &pod(*number, *label).labels;
            let with_room = || before.iter().filter(|(_, of)| of.len() < MAX_PODS);
            let is_alike = |of: &[Pod]| of.iter().any(|pod| pod.labels == *labels);
            let newest = |(number, _): (&SliceNumber, _)| *number;
            let alike = with_room().rfind(|(_, of)| is_alike(of)).map(newest);
            let any = || with_room().next_back().map(newest);
            let unused = || (0..=SliceNumber::MAX).find(|number| !before.contains_key(number));
            let expected = alike.or_else(any).or_else(unused);
            prop_assert_eq!(touched, Vec::from_iter(expected));
        }
    }

    #[test]
    fn a_new_writer_goes_on_where_the_last_one_ended(steps in steps(), more in steps()) {
        let mut packing = Packing::default();
        steps.iter().for_each(|step| _ = apply(&mut packing, step));
        let (mut taken, changed, _) = Packing::take_over(slices(&packing));
        prop_assert_eq!(&taken, &packing);
        prop_assert!(changed.is_empty());
        for step in more {
            prop_assert_eq!(apply(&mut taken, &step), apply(&mut packing, &step));
        }
    }

    #[test]
    fn a_new_writer_repairs_any_slices(found in prop::collection::vec(
        (0..6_u32, prop::collection::vec(0..300_u16, 0..250)), 0..6,
    )) {
        let found: BTreeMap<SliceNumber, Vec<Pod>> = found
            .into_iter()
            .map(|(number, of)| (number, of.into_iter().map(|number| pod(number, 0)).collect()))
            .collect();
        let names: BTreeSet<Key> = found.values().flatten().map(|pod| pod.key.clone()).collect();
        let (packing, mut changed, moved) = Packing::take_over(found.clone());
        for moved in moved {
            let Placement::Moved { from, to } = moved else { unreachable!("{moved:?}") };
            prop_assert!(to > from);
            changed.extend([from, to]);
        }
        let after = slices(&packing);
        prop_assert!(after.values().all(|of| (1..=MAX_PODS).contains(&of.len())));
        let all: Vec<Key> = after.values().flatten().map(|pod| pod.key.clone()).collect();
        prop_assert_eq!(all.len(), names.len());
        prop_assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), names);
        for (number, of) in &found {
            let mut sorted = of.clone();
            sorted.sort_by(|a, b| a.key.cmp(&b.key));
            let same = after.get(number) == Some(&sorted);
            prop_assert!(same || changed.contains(number), "slice {}", number);
        }
    }
}

#[test]
fn pods_fill_slices_and_keep_their_places() {
    let mut packing = Packing::default();
    let max = u16::try_from(MAX_PODS).unwrap();
    (0..max * 5 / 2).for_each(|number| _ = packing.set(pod(number, 0)));
    let lengths = |packing: &Packing| slices(packing).values().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(&packing), [MAX_PODS, MAX_PODS, MAX_PODS / 2]);
    assert_eq!(packing.remove(&key(max * 3 / 2)), Some(1));
    assert_eq!(packing.set(pod(300, 0)), Placement::In(2), "the newest slice with room");
    assert_eq!(packing.set(pod(301, 0)), Placement::In(2));
    assert_eq!(packing.set(pod(1, 1)), Placement::In(0), "a change");
    assert_eq!(packing.set(pod(1, 1)), Placement::Unchanged);
    let gone = packing.retain(|key| *key != self::key(1) && *key != self::key(301));
    assert_eq!(gone, BTreeSet::from([0, 2]));
    assert_eq!(lengths(&packing), [MAX_PODS - 1, MAX_PODS - 1, MAX_PODS / 2 + 1]);
    assert_eq!(packing.set(pod(302, 0)), Placement::In(2));
}

/// A tenant's pod with many labels that policies name adds nothing to the changes of other pods.
#[test]
fn a_large_pod_has_a_slice_of_its_own() {
    let mut packing = Packing::default();
    (0..10).for_each(|number| _ = packing.set(pod(number, 0)));
    let mut large = pod(3, 0);
    large.labels.insert("app".into(), "x".repeat(3000));
    assert_eq!(packing.set(large.clone()), Placement::Moved { from: 0, to: 1 });
    assert_eq!(packing.set(pod(20, 0)), Placement::In(0));
    large.labels.insert("app".into(), "y".repeat(3000));
    assert_eq!(packing.set(large), Placement::In(1));
    assert_eq!(packing.set(pod(3, 0)), Placement::In(1), "it stays");
    assert_eq!(packing.set(pod(21, 0)), Placement::In(1), "another one joins it");
}

/// Pods whose labels grow leave their slice before it is large.
#[test]
fn a_slice_has_a_bounded_size() {
    let mut packing = Packing::default();
    (0..100).for_each(|number| _ = packing.set(pod(number, 0)));
    for number in 0..100 {
        let mut grown = pod(number, 0);
        grown.labels.insert("app".into(), format!("{number:02000}").as_str().into());
        packing.set(grown);
    }
    let sizes: Vec<usize> = packing
        .slices()
        .map(|(_, pods)| serde_json::to_string(&encode(pods.values())).unwrap().len())
        .collect();
    assert!(sizes.iter().all(|size| *size < 40_000), "{sizes:?}");
    assert!(sizes.len() < 80, "{sizes:?}");
    assert_eq!(packing.slices().map(|(_, pods)| pods.len()).sum::<usize>(), 100);
}

/// Full slices cost no search: with labels that no policy names, all pods of a namespace are alike.
#[test]
fn the_time_for_a_pod_does_not_depend_on_the_number_of_pods_like_it() {
    const PODS: usize = 60_000;
    let took = |namespaces: usize| {
        let begin = Instant::now();
        let mut packing = Packing::default();
        for number in 0..PODS {
            let (namespace, name) = (format!("n{}", number % namespaces), format!("p{number}"));
            packing.set(objects::pod(&namespace, &name, &[], &["10.0.0.1"]));
        }
        (0..PODS / 20).for_each(|number| {
            let number = number * 16;
            let key = Key::new(format!("n{}", number % namespaces), format!("p{number}"));
            packing.remove(&key);
        });
        begin.elapsed()
    };
    // The best of three: other tests run meanwhile.
    let best = |namespaces| (0..3).map(|_| took(namespaces)).min().unwrap();
    let (few, many) = (best(1), best(1_000));
    assert!(few < many * 4, "{few:?} in one namespace, {many:?} in a thousand");
}
