//! The workload of a pod, derived from the pod object alone.

use std::ops::RangeInclusive;

use netpold_core::cluster::Cluster;
use netpold_core::model::{Key, Pod};
use netpold_core::probe::Party;

use netpold_core::labels::OF_PODS;

/// Numbers at the end of a Job's name that count as the time of its run, from 2015 to 2045: minutes since the epoch in a
/// CronJob's Jobs, seconds before Kubernetes 1.21.
const RUNS: [RangeInclusive<u64>; 2] = [23_700_000..=39_500_000, 1_420_000_000..=2_370_000_000];
/// Characters of generated names: `k8s.io/apimachinery/pkg/util/rand`.
const GENERATED: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Least and greatest length of a generated part of a name: a suffix, and the hash of a pod template.
const GENERATED_LENGTH: (usize, usize) = (5, 10);
/// Most pods that an error names.
const NAMED: usize = 5;
/// Short names of the kinds, as in kubectl.
const SHORT: [(&str, &str); 7] = [
    ("deploy", "Deployment"),
    ("sts", "StatefulSet"),
    ("ds", "DaemonSet"),
    ("rs", "ReplicaSet"),
    ("rc", "ReplicationController"),
    ("job", "Job"),
    ("cj", "CronJob"),
];

/// A workload, in the namespace of its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner<'p> {
    /// Kind: `Deployment`, `StatefulSet`, `DaemonSet`, `Job` (also for a CronJob), or a kind from `ownerReferences`.
    pub kind: &'p str,
    /// Name; a Job's is without the number of its run.
    pub name: &'p str,
}

impl<'p> Owner<'p> {
    fn new(kind: &'p str, name: &'p str) -> Self {
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
    if let Some(hash) = label("pod-template-hash") {
        let deployment = before_last.and_then(|set| set.strip_suffix(hash)?.strip_suffix('-'));
        return deployment.map(|name| Owner::new("Deployment", name));
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
pub(super) fn without_run(job: &str) -> &str {
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
pub(super) fn job(pod: &Pod) -> Option<&str> {
    let label = |key: &str| pod.labels.get(key).map(String::as_str);
    match &pod.workload {
        Some(workload) if workload.kind != "Job" => None,
        Some(workload) => Some(workload.name.as_str()),
        None => label("batch.kubernetes.io/job-name").or_else(|| label("job-name")),
    }
}

/// Returns whether Kubernetes may have generated a part of a name between hyphens, or it is a number.
#[must_use]
pub fn is_generated(part: &str) -> bool {
    let (least, most) = GENERATED_LENGTH;
    let has_digit = part.bytes().any(|b| b.is_ascii_digit());
    let is_number = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    is_number
        || part.bytes().all(|b| GENERATED.contains(&b))
            && (part.len() == least || has_digit && (least..=most).contains(&part.len()))
}

/// Returns the kind for a word that kubectl accepts: `deployment`, `deploy` or `deployments`.
fn kind(word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    let singular = word.strip_suffix('s').unwrap_or(&word);
    SHORT.into_iter().find_map(|(short, kind)| {
        let full = kind.to_ascii_lowercase();
        (word == short || word == full || singular == full).then_some(kind)
    })
}

/// Returns the pods of a workload that is named in place of a pod: `shop/web`, or `deployment/web` in the namespace
/// `own`. Finished pods are included only if there are no others.
#[must_use]
pub fn pods_named<'c>(cluster: &'c Cluster, key: &Key, own: &str) -> Vec<&'c Pod> {
    let of = |namespace: &str, is_meant: &dyn Fn(Owner<'_>) -> bool| -> Vec<&'c Pod> {
        let pods = cluster.pods_in(namespace).map(|pod| &**pod);
        let pods = pods.filter(|pod| owner(pod).is_some_and(is_meant));
        let (finished, live): (Vec<&Pod>, Vec<&Pod>) = pods.partition(|pod| pod.finished);
        if live.is_empty() { finished } else { live }
    };
    let name = key.name.as_str();
    let found = of(&key.namespace, &|owner| owner.name == name);
    match kind(&key.namespace) {
        Some(kind) if found.is_empty() => of(own, &|owner| owner == Owner::new(kind, name)),
        Some(_) | None => found,
    }
}

/// Resolves one side of a question to a pod: the pod of that name, else one of the workload's, see [`pods_named`].
///
/// # Errors
/// The workload's pods differ in properties that policies depend on.
pub fn resolve(cluster: &Cluster, party: Party, own: &str) -> Result<Party, String> {
    let Party::Pod(key) = &party else { return Ok(party) };
    if cluster.pods().get(key).is_some() {
        return Ok(party);
    }
    let pods = pods_named(cluster, key, own);
    let [first, others @ ..] = &pods[..] else { return Ok(party) };
    let traits = |pod: &Pod| {
        let labels = pod.labels.iter().filter(|(key, _)| !OF_PODS.contains(&key.as_str()));
        let labels: Vec<_> = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
        (labels, pod.ports.clone(), pod.host_network)
    };
    if others.iter().any(|pod| traits(pod) != traits(first)) {
        let names: Vec<String> = pods.iter().take(NAMED).map(|pod| pod.key.to_string()).collect();
        return Err(format!(
            "the pods of {key} differ in labels, ports or network: name one of them, as {}",
            names.join(", ")
        ));
    }
    Ok(Party::Pod(first.key.clone()))
}

#[cfg(test)]
mod tests {
    use netpold_core::model::WorkloadRef;
    use netpold_testkit::objects;

    use super::*;

    #[test]
    fn labels_of_controllers_and_owner_references_tell_the_workload() {
        type Labels = &'static [(&'static str, &'static str)];
        type Workload = Option<(&'static str, &'static str)>;
        let labelled: [(&str, Labels, Workload); 12] = [
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
            let pod = objects::pod("x", name, labels, &[]);
            assert_eq!(owner(&pod).map(|owner| (owner.kind, owner.name)), expected, "{name}");
        }
        for (kind, name, expected) in [
            ("Deployment", "web", ("Deployment", "web")),
            ("ReplicaSet", "web-1", ("ReplicaSet", "web-1")),
            ("CronJob", "sync", ("Job", "sync")),
            ("Job", "sync-29380000", ("Job", "sync")),
            ("Rollout", "web", ("Rollout", "web")),
        ] {
            let mut pod = objects::pod("x", "p", &[], &[]);
            let (kind, name) = (kind.to_owned(), name.to_owned());
            pod.workload = Some(Box::new(WorkloadRef { kind, name, is_template: false }));
            assert_eq!(owner(&pod).map(|owner| (owner.kind, owner.name)), Some(expected));
        }
    }

    #[test]
    fn kinds_are_named_as_kubectl_takes_them() {
        for word in ["deployment", "deployments", "deploy", "Deployment"] {
            assert_eq!(kind(word), Some("Deployment"), "{word}");
        }
        assert_eq!((kind("cronjobs"), kind("sts")), (Some("CronJob"), Some("StatefulSet")));
        assert_eq!((kind("shop"), kind("")), (None, None));
    }
}
