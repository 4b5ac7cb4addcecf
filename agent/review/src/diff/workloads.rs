//! Pods of two clusters, grouped by workload.
//!
//! The workload of a pod is its owner if the object names one. Otherwise the pods of a namespace with equal labels are
//! one workload; labels that controllers set per revision or pod do not count. A workload of one cluster only is then
//! matched with one of the other cluster by labels that releases do not change, and by name.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use netpold_client::offline::{is_generated, is_run, owner};
use netpold_core::cluster::Cluster;
use netpold_core::labels::{OF_PODS, OF_RELEASES};
use netpold_core::model::{Key, Pod};

/// Pods of a namespace that form a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedWorkload {
    /// `namespace/name`, where the name is that of the pods' controller if it can be determined.
    pub name: String,
    /// Pods of the workload before and after.
    pub pods: [Vec<Key>; 2],
    /// Indexes of corresponding pods before and after.
    pairs: Vec<(usize, usize)>,
}

impl ComparedWorkload {
    /// Returns pairs of corresponding pods. A pod after the change corresponds to the pod before of the same name, else
    /// to the pods before with its labels, else to every pod before.
    #[must_use]
    pub fn counterparts(&self) -> Vec<(&Key, &Key)> {
        let [before, after] = &self.pods;
        self.pairs.iter().map(|(b, a)| (&before[*b], &after[*a])).collect()
    }
}

pub(super) type LabelList<'c> = Vec<(&'c str, &'c str)>;

/// Common property of a workload's pods, apart from the namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum WorkloadKey<'c> {
    /// Kind and name.
    Owner(&'c str, &'c str),
    /// Name of a Job without the number of its run, and the labels of the pods: nothing else shows that two Jobs are runs
    /// of one workload.
    Run(&'c str, LabelList<'c>),
    Labels(LabelList<'c>),
}

/// Pods of a workload, before and after.
type WorkloadPods<'c> = [Vec<&'c Pod>; 2];

fn labels<'p>(pod: &'p Pod, dropped: &[&[&str]]) -> LabelList<'p> {
    let labels = pod.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    labels.filter(|(key, _)| !dropped.iter().any(|keys| keys.contains(key))).collect()
}

/// Returns namespace and workload of a pod; a pod without owner and labels is a workload of its own.
pub(super) fn group(pod: &Pod) -> (&str, WorkloadKey<'_>) {
    let group = match owner(pod) {
        Some(owner) if is_run(pod) => WorkloadKey::Run(owner.name, labels(pod, &[&OF_PODS])),
        Some(owner) => WorkloadKey::Owner(owner.kind, owner.name),
        None => {
            let mut labels = labels(pod, &[&OF_PODS]);
            if labels.is_empty() {
                labels.push(("", &pod.key.name));
            }
            WorkloadKey::Labels(labels)
        }
    };
    (&pod.key.namespace, group)
}

/// Strips up to two generated or numeric suffixes from a pod's name.
fn base(name: &str) -> &str {
    let mut base = name;
    for _ in 0..2 {
        if let Some((before, end)) = base.rsplit_once('-')
            && is_generated(end)
        {
            base = before;
        }
    }
    base
}

/// Properties by which a workload before and one after may be the same, most reliable first.
const KIN: [for<'p> fn(&WorkloadKey<'p>, &'p Pod) -> LabelList<'p>; 3] = [
    |_, pod| labels(pod, &[&OF_PODS]),
    |_, pod| labels(pod, &[&OF_PODS, &OF_RELEASES]),
    |group, pod| match group {
        // Users choose the names of workloads: no part of one is generated.
        WorkloadKey::Owner(_, name) | WorkloadKey::Run(name, _) => vec![("", name)],
        WorkloadKey::Labels(_) => vec![("", base(&pod.key.name))],
    },
];

/// Joins a workload of before with one of after, if they alone share a property of [`KIN`].
fn join_kin<'c>(groups: &mut BTreeMap<(&'c str, WorkloadKey<'c>), WorkloadPods<'c>>) {
    for kin in KIN {
        let mut alike: BTreeMap<_, [Vec<(&'c str, WorkloadKey<'c>)>; 2]> = BTreeMap::new();
        for (key, pods) in groups.iter() {
            let side = match pods.each_ref().map(Vec::is_empty) {
                [false, true] => 0,
                [true, false] => 1,
                [true, true] | [false, false] => continue,
            };
            let shared = kin(&key.1, pods[side][0]);
            if !shared.is_empty() {
                alike.entry((key.0, shared)).or_default()[side].push(key.clone());
            }
        }
        for [before, after] in alike.into_values() {
            if let ([before], [after]) = (&before[..], &after[..])
                && let Some([pods, _]) = groups.remove(before)
                && let Some(joined) = groups.get_mut(after)
            {
                joined[0] = pods;
            }
        }
    }
}

/// Returns the indexes of corresponding pods, see [`ComparedWorkload::counterparts`].
fn pairs([before, after]: &WorkloadPods<'_>) -> Vec<(usize, usize)> {
    let places: HashMap<&Key, usize> = (0..).zip(before).map(|(b, pod)| (&pod.key, b)).collect();
    let own: Vec<LabelList<'_>> = before.iter().map(|pod| labels(pod, &[&OF_PODS])).collect();
    let mut pairs = Vec::new();
    for (a, pod) in after.iter().enumerate() {
        if let Some(b) = places.get(&pod.key) {
            pairs.push((*b, a));
            continue;
        }
        let labels = labels(pod, &[&OF_PODS]);
        let is_alike = |b: &usize| own[*b] == labels;
        let any = (0..before.len()).any(|b| is_alike(&b));
        pairs.extend((0..before.len()).filter(|b| !any || is_alike(b)).map(|b| (b, a)));
    }
    pairs
}

/// Returns the workloads of two clusters, by name. A pod with changed labels belongs to its workload after the change.
pub(super) fn workloads(clusters: [&Cluster; 2]) -> Vec<Arc<ComparedWorkload>> {
    let pods = clusters.map(|cluster| cluster.pods().values().map(|pod| &**pod).collect());
    workloads_of(pods).into_iter().map(Arc::new).collect()
}

/// Returns the workloads of the pods before and after a change, like [`workloads`].
pub(super) fn workloads_of(pods: [Vec<&Pod>; 2]) -> Vec<ComparedWorkload> {
    let [before, after] = pods.map(|pods| pods.into_iter().filter(|pod| !pod.finished));
    let now: HashMap<&Key, (&str, WorkloadKey<'_>)> =
        after.clone().map(|pod| (&pod.key, group(pod))).collect();
    let mut groups: BTreeMap<(&str, WorkloadKey<'_>), WorkloadPods<'_>> = BTreeMap::new();
    for pod in before {
        let group = now.get(&pod.key).cloned().unwrap_or_else(|| group(pod));
        groups.entry(group).or_default()[0].push(pod);
    }
    for pod in after {
        groups.entry(group(pod)).or_default()[1].push(pod);
    }
    join_kin(&mut groups);
    let name = |(namespace, group): &(&str, WorkloadKey<'_>), pods: &WorkloadPods<'_>| {
        // The pods after the change give the name: those before may have had another owner.
        let first = pods[1].first().or(pods[0].first());
        let full = first.map_or_else(String::new, |pod| pod.key.to_string());
        match group {
            WorkloadKey::Owner(kind, name) => {
                let kind = kind.to_lowercase();
                (format!("{namespace}/{name}"), format!("{namespace}/{kind}.{name}"))
            }
            WorkloadKey::Run(name, _) => (format!("{namespace}/{name}"), full),
            WorkloadKey::Labels(_) => (full.clone(), full),
        }
    };
    let mut taken: HashMap<String, u32> = HashMap::new();
    for (group, pods) in &groups {
        *taken.entry(name(group, pods).0).or_default() += 1;
    }
    let mut all: Vec<ComparedWorkload> = groups
        .iter()
        .map(|(group, pods)| {
            let (short, full) = name(group, pods);
            let name = if taken[&short] == 1 { short } else { full };
            let keys = |pods: &Vec<&Pod>| pods.iter().map(|pod| pod.key.clone()).collect();
            ComparedWorkload { name, pairs: pairs(pods), pods: pods.each_ref().map(keys) }
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

#[cfg(test)]
mod tests {
    use netpold_core::model::Change;
    use netpold_testkit::objects;

    use super::*;

    fn cluster(pods: &[(&str, &[(&str, &str)])]) -> Cluster {
        pods.iter()
            .map(|(name, labels)| Change::Pod(objects::pod("x", name, labels, &[])))
            .collect()
    }

    fn names(before: &Cluster, after: &Cluster) -> Vec<(String, usize)> {
        let all = workloads([before, after]);
        all.into_iter()
            .map(|w| {
                let pairs = w.counterparts().len();
                (w.name.clone(), pairs)
            })
            .collect()
    }

    #[test]
    fn a_rollout_is_one_workload() {
        let replica = |hash: &'static str| vec![("app", "web"), ("pod-template-hash", hash)];
        let before = cluster(&[
            ("web-5f6-aaaaa", &replica("5f6")),
            ("web-5f6-bbbbb", &replica("5f6")),
            (
                "db-0",
                &[
                    ("app", "db"),
                    ("controller-revision-hash", "db-7"),
                    ("apps.kubernetes.io/pod-index", "0"),
                ],
            ),
            (
                "db-1",
                &[
                    ("app", "db"),
                    ("controller-revision-hash", "db-7"),
                    ("apps.kubernetes.io/pod-index", "1"),
                ],
            ),
            ("bare", &[]),
            ("other", &[]),
        ]);
        let after = cluster(&[
            ("web-77-ccccc", &replica("77")),
            ("db-1", &[("app", "db"), ("controller-revision-hash", "db-8")]),
            ("bare", &[("new", "label")]),
            ("other", &[]),
        ]);
        let expected = [("x/bare", 1), ("x/db", 1), ("x/other", 1), ("x/web", 2)];
        assert_eq!(names(&before, &after), expected.map(|(name, pairs)| (name.to_owned(), pairs)));
    }

    #[test]
    fn a_new_version_and_a_new_run_are_the_same_workload() {
        type NamedPod = (&'static str, &'static [(&'static str, &'static str)]);
        let cases: [(NamedPod, NamedPod, &str); 5] = [
            // Releases change labels, revisions change names.
            (
                ("web-1f-aaaaa", &[("app", "web"), ("v", "1"), ("pod-template-hash", "1f")]),
                ("web-2f-bbbbb", &[("app", "web"), ("v", "2"), ("pod-template-hash", "2f")]),
                "x/web",
            ),
            (
                ("a", &[("app", "web"), ("app.kubernetes.io/version", "1")]),
                ("b", &[("app", "web"), ("app.kubernetes.io/version", "2")]),
                "x/b",
            ),
            (
                ("sync-28000001-x", &[("job-name", "sync-28000001"), ("controller-uid", "1")]),
                ("sync-28000061-y", &[("job-name", "sync-28000061"), ("controller-uid", "2")]),
                "x/sync",
            ),
            (
                ("load-1-x", &[("job-name", "load-1"), ("app", "load")]),
                ("load-2-y", &[("job-name", "load-2"), ("app", "load")]),
                "x/load-2",
            ),
            (
                ("web-5f6d7c8b9-bcdfg", &[("tag", "1")]),
                ("web-77c9d5b4f-fghjk", &[("tag", "2")]),
                "x/web-77c9d5b4f-fghjk",
            ),
        ];
        for (before, after, name) in cases {
            let [before, after] = [before, after].map(|pod| cluster(&[pod]));
            assert_eq!(names(&before, &after), [(name.to_owned(), 1)]);
        }
    }

    #[test]
    fn words_at_the_end_of_names_are_not_generated() {
        type LabelSlice = &'static [(&'static str, &'static str)];
        let of_deployment: LabelSlice = &[("tag", "1"), ("pod-template-hash", "5f6")];
        for (before, after) in [
            (
                ("web-front", &[("tag", "1")] as LabelSlice),
                ("web-admin", &[("tag", "2")] as LabelSlice),
            ),
            (
                ("web-front-5f6-bcdfg", of_deployment),
                ("web-admin-5f6-bcdfg", &[("tag", "2"), ("pod-template-hash", "5f6")]),
            ),
            (
                ("import-2024-x", &[("tag", "1"), ("job-name", "import-2024")]),
                ("import-2025-x", &[("tag", "2"), ("job-name", "import-2025")]),
            ),
        ] {
            let [one, other] = [before, after].map(|pod| cluster(&[pod]));
            assert_eq!(names(&one, &other).len(), 2, "{before:?} {after:?}");
        }
    }

    #[test]
    fn jobs_with_equal_labels_only_are_runs_of_one_workload() {
        let run =
            |number: &'static str, app: &'static str| vec![("job-name", number), ("app", app)];
        let both = cluster(&[
            ("sync-28000001-x", &run("sync-28000001", "a")),
            ("sync-28000061-x", &run("sync-28000061", "a")),
            ("sync-28000121-x", &run("sync-28000121", "b")),
        ]);
        let expected = [("x/sync-28000001-x", 2), ("x/sync-28000121-x", 1)];
        assert_eq!(names(&both, &both), expected.map(|(name, pairs)| (name.to_owned(), pairs)));
    }

    #[test]
    fn what_may_be_either_is_matched_with_neither() {
        let before = cluster(&[("a", &[("app", "web"), ("chart", "1")])]);
        let after = cluster(&[
            ("b", &[("app", "web"), ("chart", "2")]),
            ("c", &[("app", "web"), ("chart", "3")]),
        ]);
        let all = names(&before, &after);
        assert_eq!(all, ["x/a", "x/b", "x/c"].map(|name| (name.to_owned(), 0)));
    }

    #[test]
    fn a_pod_of_a_revision_that_is_there_is_held_against_its_own() {
        let revision = |number: &'static str| vec![("v", number), ("pod-template-hash", number)];
        let before = cluster(&[("web-1-aaaaa", &revision("1")), ("web-2-bbbbb", &revision("2"))]);
        let after = cluster(&[("web-2-bbbbb", &revision("2")), ("web-2-ccccc", &revision("2"))]);
        let [workload] = &workloads([&before, &after])[..] else { panic!() };
        let pairs: Vec<String> =
            workload.counterparts().iter().map(|(b, a)| format!("{} {}", b.name, a.name)).collect();
        assert_eq!(pairs, ["web-2-bbbbb web-2-bbbbb", "web-2-bbbbb web-2-ccccc"]);
    }

    #[test]
    fn names_that_two_would_have_are_those_of_their_kinds() {
        let cluster = cluster(&[
            ("web-1-aaaaa", &[("pod-template-hash", "1")]),
            ("web-0", &[("controller-revision-hash", "web-7")]),
        ]);
        let expected = [("x/deployment.web", 1), ("x/statefulset.web", 1)];
        assert_eq!(
            names(&cluster, &cluster),
            expected.map(|(name, pairs)| (name.to_owned(), pairs))
        );
    }
}
