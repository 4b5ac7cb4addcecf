//! Pods of two clusters, grouped as the workloads that they are of.
//!
//! Manifests need not have owners, and owners are not among the objects that are read. Pods of one workload
//! have equal labels, apart from those that their controller gives to each revision or pod.

use std::collections::{BTreeMap, HashMap};

use netpold_core::cluster::Cluster;
use netpold_core::model::{Key, Pod};

/// Labels that controllers add to pods.
const OF_CONTROLLERS: [&str; 4] = [
    "pod-template-hash",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
];

/// Pods of a namespace with equal labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// `namespace/name`, where the name is that of the pods' controller as far as it can be told.
    pub name: String,
    /// Its pods before and after.
    pub pods: [Vec<Key>; 2],
}

impl Workload {
    /// Pairs of pods that stand for each other: those of the same name, or if there are none, each of
    /// before with each of after.
    #[must_use]
    pub fn counterparts(&self) -> Vec<(&Key, &Key)> {
        let [before, after] = &self.pods;
        let same: Vec<_> =
            before.iter().filter(|key| after.contains(key)).map(|key| (key, key)).collect();
        if !same.is_empty() {
            return same;
        }
        before.iter().flat_map(|b| after.iter().map(move |a| (b, a))).collect()
    }
}

type Group<'c> = (&'c str, Vec<(&'c str, &'c str)>);

/// Namespace and labels; pods without labels are of no workload but themselves.
fn group(pod: &Pod) -> Group<'_> {
    let labels = pod.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let mut labels: Vec<_> = labels.filter(|(key, _)| !OF_CONTROLLERS.contains(key)).collect();
    if labels.is_empty() {
        labels.push(("", &pod.key.name));
    }
    (&pod.key.namespace, labels)
}

/// The name of a pod's controller, as far as the pod's labels and name tell it.
fn owner(pod: &Pod) -> &str {
    let name = pod.key.name.as_str();
    let cut = |name: &'_ str| name.rsplit_once('-').map(|(owner, _)| owner.len());
    let length = if let Some(hash) = pod.labels.get("pod-template-hash") {
        cut(name)
            .filter(|end| name[..*end].ends_with(&format!("-{hash}")))
            .map(|end| end - hash.len() - 1)
    } else if pod.labels.contains_key("controller-revision-hash") {
        cut(name)
    } else {
        None
    };
    length.map_or(name, |length| &name[..length])
}

/// The workloads of two clusters, by name. A pod whose labels change is of the workload whose labels it has
/// after.
pub(super) fn workloads(clusters: [&Cluster; 2]) -> Vec<Workload> {
    let [before, after] = clusters
        .map(|cluster| cluster.pods().values().filter(|pod| !pod.host_network && !pod.finished));
    let now: HashMap<&Key, Group<'_>> = after.clone().map(|pod| (&pod.key, group(pod))).collect();
    let mut groups: BTreeMap<Group<'_>, [Vec<&Pod>; 2]> = BTreeMap::new();
    for pod in before {
        let group = now.get(&pod.key).cloned().unwrap_or_else(|| group(pod));
        groups.entry(group).or_default()[0].push(pod);
    }
    for pod in after {
        groups.entry(group(pod)).or_default()[1].push(pod);
    }
    let name = |pods: &[Vec<&Pod>; 2]| {
        // The latest pods name it: those of before may have had another owner.
        let all = if pods[1].is_empty() { &pods[0] } else { &pods[1] };
        let first = all[0];
        let shared = all.iter().all(|pod| owner(pod) == owner(first));
        let name = if shared { owner(first) } else { &first.key.name };
        (format!("{}/{name}", first.key.namespace), first.key.to_string())
    };
    let mut taken: HashMap<String, u32> = HashMap::new();
    for pods in groups.values() {
        *taken.entry(name(pods).0).or_default() += 1;
    }
    let mut all: Vec<Workload> = groups
        .values()
        .map(|pods| {
            let (short, full) = name(pods);
            let name = if taken[&short] == 1 { short } else { full };
            Workload {
                name,
                pods: pods.each_ref().map(|p| p.iter().map(|p| p.key.clone()).collect()),
            }
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
                (w.name, pairs)
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
    fn names_that_two_would_have_are_those_of_pods() {
        let before = cluster(&[
            ("web-1-aaaaa", &[("v", "1"), ("pod-template-hash", "1")]),
            ("web-2-bbbbb", &[("v", "2"), ("pod-template-hash", "2")]),
        ]);
        let expected = [("x/web-1-aaaaa", 1), ("x/web-2-bbbbb", 1)];
        assert_eq!(names(&before, &before), expected.map(|(name, pairs)| (name.to_owned(), pairs)));
    }
}
