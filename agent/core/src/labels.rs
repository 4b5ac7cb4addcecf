//! Well-known labels.

/// Label that the API server sets on every Namespace, with the Namespace's name.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Labels that controllers set differently on each revision or pod.
pub const OF_PODS: [&str; 11] = [
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-generation",
    "pod-template-hash",
    "rollouts-pod-template-hash",
    "statefulset.kubernetes.io/pod-name",
];
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
pub fn set_by_controller(kind: &str) -> &'static [&'static str] {
    OF_KINDS.iter().find(|(of, _)| *of == kind).map_or(&[], |(_, labels)| labels)
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
}
