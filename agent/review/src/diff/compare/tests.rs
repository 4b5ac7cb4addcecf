//! Comparison by direction against the comparison of each pair of classes, over generated clusters.

use netpold_core::model::Change;
use netpold_testkit::generate::{self, Choices};

use super::*;

/// Number of generated clusters, each with an edit.
const CLUSTERS: u64 = 400;

/// Returns the changes as compared by direction and as compared pair by pair, and the number of pairs of classes that
/// were compared by direction.
fn both(clusters: [&Cluster; 2], ranges: &[IpNet]) -> ([Vec<ConnectivityChange>; 2], usize) {
    let ends = ends_of(clusters, workloads(clusters), ranges);
    let port_sets = PortSets::default();
    let peers = [0, 1].map(|side| MatchedPeers::new(clusters[side], &ends, side));
    let explainers = clusters.map(Explainer::new);
    let one_way = Some(OneWays::new(clusters, &peers, &port_sets));
    let changes = [one_way, None].map(|one_way| {
        let asking = Comparison { ends: &ends, explainers, one_way };
        asking.changes(&AtomicBool::new(false)).unwrap()
    });
    let pairs = ends.classes.iter().flat_map(|from| ends.classes.iter().map(move |to| (from, to)));
    let by_direction = pairs.filter(|(from, to)| {
        do_meet(from, to) && !is_unchanged(from, to) && !ends.may_translate(from, to)
    });
    (changes, by_direction.count())
}

fn objects(state: &generate::GeneratedCluster) -> Vec<Change> {
    state.objects.iter().filter(|object| object.is_object()).cloned().collect()
}

/// An edit: some objects removed, changed or added, and in half of the cases the policies of another cluster, too.
fn edited(before: &generate::GeneratedCluster, choices: &mut Choices<'_>) -> Vec<Change> {
    let mut after = objects(&before.mutate(choices));
    if choices.chance(50) {
        let more = objects(&generate::GeneratedCluster::generate(choices));
        let is_policy = |it: &Change| matches!(it, Change::Policy(_) | Change::ClusterPolicy(_));
        after.extend(more.into_iter().filter(is_policy));
    }
    after
}

/// Removes the addresses of some pods, as templates and new pods have none.
fn unaddressed(objects: &mut [Change], choices: &mut Choices<'_>) {
    for object in objects {
        if let Change::Pod(pod) = object
            && choices.chance(30)
        {
            pod.addresses.clear();
        }
    }
}

#[test]
fn directions_joined_are_pairs_judged_one_by_one() {
    let (mut changes, mut some, mut pairs) = (0, 0, 0);
    for seed in 0..CLUSTERS {
        let mut choices = Choices::from_seed(seed);
        let before = generate::GeneratedCluster::generate(&mut choices);
        let mut states = [objects(&before), edited(&before, &mut choices)];
        let ranges: Vec<IpNet> = if choices.chance(30) {
            states.iter_mut().for_each(|state| unaddressed(state, &mut choices));
            vec!["10.0.0.0/8".parse().unwrap(), "fd00::/16".parse().unwrap()]
        } else {
            Vec::new()
        };
        let [before, after] = states.map(|state| state.into_iter().collect::<Cluster>());
        let ([by_direction, by_pair], count) = both([&before, &after], &ranges);
        assert_eq!(by_direction, by_pair, "seed {seed}");
        changes += by_pair.len();
        some += by_pair.iter().filter(|change| change.some).count();
        pairs += count;
    }
    // The samples must contain enough changes, and enough pairs that the directions decide.
    assert!(changes > 8_000 && some > 150 && pairs > 25_000, "{changes}, {some}, {pairs}");
}
