//! The workload of a pod, derived from the pod object alone.

use std::ops::RangeInclusive;

use crate::model::Pod;

/// Numbers at the end of a Job's name that count as the time of its run, from 2015 to 2045: minutes since the epoch in a
/// CronJob's Jobs, seconds before Kubernetes 1.21.
const RUNS: [RangeInclusive<u64>; 2] = [23_700_000..=39_500_000, 1_420_000_000..=2_370_000_000];

/// A workload, in the namespace of its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner<'p> {
    /// Kind: `Deployment`, `StatefulSet`, `DaemonSet`, `Job` (also for a CronJob), or a kind from `ownerReferences`.
    pub kind: &'p str,
    /// Name; a Job's is without the number of its run.
    pub name: &'p str,
}

impl<'p> Owner<'p> {
    /// Returns the workload of a controller, by kind and name.
    #[must_use]
    pub fn new(kind: &'p str, name: &'p str) -> Self {
        match kind {
            "Job" => Self { kind, name: without_run(name) },
            // The Jobs of a CronJob are runs of one workload.
            "CronJob" => Self { kind: "Job", name },
            _ => Self { kind, name },
        }
    }
}

/// Returns the workload of a pod: the owner in its manifest, else the one derived from the labels of Kubernetes'
/// controllers and the pod's name.
#[must_use]
pub fn owner(pod: &Pod) -> Option<Owner<'_>> {
    if let Some(workload) = &pod.workload {
        return Some(Owner::new(&workload.kind, &workload.name));
    }
    let name = pod.key.name.as_str();
    let label = |key: &str| pod.labels.get(key).map(String::as_str);
    let before_last = name.rsplit_once('-').map(|(before, _)| before);
    if let Some(job) = label("batch.kubernetes.io/job-name").or_else(|| label("job-name")) {
        return Some(Owner::new("Job", job));
    }
    for (kind, hash) in
        [("Rollout", "rollouts-pod-template-hash"), ("Deployment", "pod-template-hash")]
    {
        if let Some(hash) = label(hash) {
            let above = before_last.and_then(|set| set.strip_suffix(hash)?.strip_suffix('-'));
            return above.map(|name| Owner::new(kind, name));
        }
    }
    let is_of_set = ["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"]
        .into_iter()
        .any(|key| label(key).is_some());
    let revision = label("controller-revision-hash");
    let set = before_last.filter(|_| is_of_set || revision.is_some())?;
    let named_so = revision.is_some_and(|revision| {
        revision.strip_prefix(set).is_some_and(|rest| rest.starts_with('-'))
    });
    let kind = if is_of_set || named_so { "StatefulSet" } else { "DaemonSet" };
    Some(Owner::new(kind, set))
}

/// Strips the time of the run from the name of a CronJob's Job.
fn without_run(job: &str) -> &str {
    let is_run = |end: &str| {
        let number = Some(end).filter(|end| end.bytes().all(|b| b.is_ascii_digit()));
        let number = number.and_then(|digits| digits.parse::<u64>().ok());
        number.is_some_and(|number| RUNS.iter().any(|times| times.contains(&number)))
    };
    job.rsplit_once('-').filter(|(_, end)| is_run(end)).map_or(job, |(name, _)| name)
}

/// Returns whether a pod is of a Job with the time of its run in its name, and no object shows the CronJob that owns it:
/// its [`owner`] is a guess.
#[must_use]
pub fn is_run(pod: &Pod) -> bool {
    job(pod).is_some_and(|job| without_run(job) != job)
}

/// Returns the name of a pod's Job, with the time of its run.
#[must_use]
pub fn job(pod: &Pod) -> Option<&str> {
    let label = |key: &str| pod.labels.get(key).map(String::as_str);
    match &pod.workload {
        Some(workload) if workload.kind != "Job" => None,
        Some(workload) => Some(workload.name.as_str()),
        None => label("batch.kubernetes.io/job-name").or_else(|| label("job-name")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Key, WorkloadRef};

    fn pod(name: &str, labels: &[(&str, &str)]) -> Pod {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Pod { key: Key::new("x", name), labels: labels.collect(), ..Pod::default() }
    }

    #[test]
    fn labels_of_controllers_and_owner_references_tell_the_workload() {
        type LabelPairs = &'static [(&'static str, &'static str)];
        type WorkloadPair = Option<(&'static str, &'static str)>;
        let labelled: [(&str, LabelPairs, WorkloadPair); 13] = [
            ("web-5f6-abcde", &[("rollouts-pod-template-hash", "5f6")], Some(("Rollout", "web"))),
            ("web-5f6-abcde", &[("pod-template-hash", "5f6")], Some(("Deployment", "web"))),
            ("renamed", &[("pod-template-hash", "5f6")], None),
            ("db-0", &[("controller-revision-hash", "db-77")], Some(("StatefulSet", "db"))),
            ("db-1", &[("apps.kubernetes.io/pod-index", "1")], Some(("StatefulSet", "db"))),
            ("log-x7k2p", &[("controller-revision-hash", "77")], Some(("DaemonSet", "log"))),
            ("sync-29380000-x", &[("job-name", "sync-29380000")], Some(("Job", "sync"))),
            ("sync-2024-x", &[("job-name", "sync-2024")], Some(("Job", "sync-2024"))),
            ("sync-20240131-x", &[("job-name", "sync-20240131")], Some(("Job", "sync-20240131"))),
            ("old-1600000000-x", &[("job-name", "old-1600000000")], Some(("Job", "old"))),
            (
                "import-1-x",
                &[("batch.kubernetes.io/job-name", "import-1")],
                Some(("Job", "import-1")),
            ),
            ("web-5f6-abcde", &[("app", "web")], None),
            ("bare", &[], None),
        ];
        for (name, labels, expected) in labelled {
            let pod = pod(name, labels);
            assert_eq!(owner(&pod).map(|owner| (owner.kind, owner.name)), expected, "{name}");
        }
        for (kind, name, expected) in [
            ("Deployment", "web", ("Deployment", "web")),
            ("ReplicaSet", "web-1", ("ReplicaSet", "web-1")),
            ("CronJob", "sync", ("Job", "sync")),
            ("Job", "sync-29380000", ("Job", "sync")),
            ("Rollout", "web", ("Rollout", "web")),
        ] {
            let mut pod = pod("p", &[]);
            let (kind, name) = (kind.to_owned(), name.to_owned());
            pod.workload =
                Some(Box::new(WorkloadRef { kind, name, is_template: false, is_indexed: false }));
            assert_eq!(owner(&pod).map(|owner| (owner.kind, owner.name)), Some(expected));
        }
    }
}
