//! Labels that do not identify a workload.

/// Labels that controllers set differently on each revision or pod.
pub const OF_PODS: [&str; 10] = [
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-generation",
    "pod-template-hash",
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
