//! Well-known labels.

/// Label that the API server sets on every Namespace, with the Namespace's name.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Labels that controllers set differently on each revision or pod.
pub const OF_PODS: [&str; 11] = [
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    COMPLETION_INDEX,
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-generation",
    "pod-template-hash",
    "rollouts-pod-template-hash",
    "statefulset.kubernetes.io/pod-name",
];
/// Labels of a Job's pods; their value is the Job's name.
pub const JOB_NAME: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];
/// Label of an Indexed Job's pods with the pod's index (Kubernetes 1.28).
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Label of a `StatefulSet`'s pods with the pod's name.
pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// Label of a `StatefulSet`'s pods with the number at the end of the pod's name (Kubernetes 1.28).
pub const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
/// Labels that change with each release of a workload's chart.
pub const OF_RELEASES: [&str; 5] = [
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "chart",
    "helm.sh/chart",
    "heritage",
];

/// Labels that the controllers of a kind set on every pod, with values that the pod template does not have.
const OF_KINDS: [(&str, &[&str]); 6] = [
    ("Deployment", &["pod-template-hash"]),
    ("Rollout", &["rollouts-pod-template-hash"]),
    (
        "StatefulSet",
        &[
            "apps.kubernetes.io/pod-index",
            "controller-revision-hash",
            "statefulset.kubernetes.io/pod-name",
        ],
    ),
    ("DaemonSet", &["controller-revision-hash", "pod-template-generation"]),
    ("Job", &["batch.kubernetes.io/controller-uid", "controller-uid"]),
    (
        "CronJob",
        &[
            "batch.kubernetes.io/controller-uid",
            "batch.kubernetes.io/job-name",
            "controller-uid",
            "job-name",
        ],
    ),
];

/// Labels that the controllers of this kind add to every pod of a workload, with values that differ by pod or revision.
/// Empty for a kind without such labels.
#[must_use]
pub(crate) fn set_by_controller(kind: &str) -> &'static [&'static str] {
    OF_KINDS.iter().find(|(of, _)| *of == kind).map_or(&[], |(_, labels)| labels)
}

/// Returns whether the controllers of a workload, given by kind and name, may set a label to a value.
#[must_use]
pub fn may_be_set_to((kind, name): (&str, &str), label: &str, value: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let rest = || value.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    match kind {
        "StatefulSet" if label == POD_NAME => rest().is_some_and(is_number),
        "StatefulSet" if label == POD_INDEX => is_number(value),
        "Job" | "CronJob" if label == COMPLETION_INDEX => is_number(value),
        // A run that a user starts has another suffix than the controller's.
        "CronJob" if JOB_NAME.contains(&label) => rest().is_some(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_kinds_are_labels_of_pods() {
        for label in OF_KINDS.iter().flat_map(|(_, labels)| *labels) {
            assert!(OF_PODS.contains(label), "{label}");
        }
        assert_eq!(set_by_controller("Deployment"), ["pod-template-hash"]);
        assert!(set_by_controller("ReplicationController").is_empty());
    }

    #[test]
    fn values_of_labels_contain_the_workloads_name() {
        let (db, nightly) = (("StatefulSet", "db"), ("CronJob", "nightly"));
        for (workload, label, value, expected) in [
            (db, POD_NAME, "db-0", true),
            (db, POD_NAME, "db-12", true),
            (db, POD_NAME, "db-", false),
            (db, POD_NAME, "db-x", false),
            (db, POD_NAME, "bd-0", false),
            (db, POD_INDEX, "3", true),
            (db, POD_INDEX, "db-3", false),
            (db, "controller-revision-hash", "x", true),
            (nightly, "job-name", "nightly-29384756", true),
            (nightly, JOB_NAME[0], "nightly-by-hand", true),
            (nightly, "job-name", "other", false),
            (nightly, COMPLETION_INDEX, "3", true),
            (nightly, COMPLETION_INDEX, "three", false),
            (nightly, "job-name", "nightly", false),
            (nightly, "controller-uid", "other", true),
        ] {
            assert_eq!(may_be_set_to(workload, label, value), expected, "{label} {value}");
        }
    }
}
