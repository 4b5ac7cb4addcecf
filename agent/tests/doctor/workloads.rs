//! Pods that exist only at times, and pods on the host network.

use super::{CLUSTER, examine, places, policy};

const NONE: [&str; 0] = [];

/// Returns the findings for these objects beside the cluster, with policies for and from `app: backup`.
fn finds(more: &str) -> Vec<String> {
    let about = policy("about", "podSelector: {matchLabels: {app: backup}}");
    let from = policy(
        "from",
        "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: backup}}}]}]",
    );
    let (_, report) = examine(&format!("{CLUSTER}{more}{about}{from}"));
    places(&report).keys().map(ToString::to_string).collect()
}

fn pod(namespace: &str, spec: &str, phase: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: backup-1, namespace: {namespace}, labels: {{app: backup}}}}, spec: \
         {{nodeName: n1, containers: [{{name: c}}]{spec}}}, status: {{phase: {phase}, podIP: 10.0.0.9}}}}\n---\n"
    )
}

fn template(version: &str, kind: &str, spec: &str) -> String {
    let metadata = "metadata: {labels: {app: backup}}";
    let template = format!("template: {{{metadata}, spec: {{containers: [{{name: c}}]{spec}}}}}");
    let spec = match kind {
        "CronJob" => format!("jobTemplate: {{spec: {{{template}}}}}"),
        _ => template,
    };
    format!(
        "{{apiVersion: {version}, kind: {kind}, metadata: {{name: backup, namespace: x}}, spec: {{{spec}}}}}\n---\n"
    )
}

#[test]
fn workloads_between_runs() {
    assert_eq!(finds(""), ["peer-without-pods", "selects-nothing"]);
    for phase in ["Succeeded", "Failed", "Running", "Pending"] {
        assert_eq!(finds(&pod("x", "", phase)), NONE, "{phase}");
    }
    assert_eq!(
        finds(&pod("y", "", "Succeeded")),
        ["peer-without-pods", "selects-nothing"],
        "of another namespace"
    );
    for (version, kind) in [
        ("apps/v1", "Deployment"),
        ("apps/v1", "StatefulSet"),
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "DaemonSet"),
        ("batch/v1", "Job"),
        ("batch/v1", "CronJob"),
    ] {
        assert_eq!(finds(&template(version, kind, "")), NONE, "{kind}");
    }
}

#[test]
fn pods_on_the_hosts_network_are_named_by_blocks() {
    let host = [", hostNetwork: true"];
    let both = ["peer-on-host-network", "selects-host-network"];
    assert_eq!(finds(&pod("x", host[0], "Running")), both);
    assert_eq!(finds(&template("apps/v1", "DaemonSet", host[0])), both);
    let (_, report) = {
        let from = "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: \
                    backup}}}]}]";
        examine(&format!("{CLUSTER}{}{}", pod("y", host[0], "Running"), policy("p", from)))
    };
    assert_eq!(
        places(&report)["peer-on-host-network"],
        [
            "NetworkPolicy x/p: spec.ingress[0].from[0]: pods app=backup of namespaces of any labels; Pod y/backup-1 at 10.0.0.9/32"
        ]
    );
    // One pod that is not on the host network suffices.
    let twin =
        pod("x", "", "Running").replace("backup-1", "backup-2").replace("10.0.0.9", "10.0.0.8");
    assert_eq!(finds(&format!("{}{twin}", pod("x", host[0], "Running"))), NONE);
}

/// References of a chart to objects outside the chart are no findings.
#[test]
fn peers_outside_of_a_chart() {
    let chart = "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: x, labels: {app: web}}, spec: {containers: [{name: c}]}}\n---\n";
    let from = policy(
        "p",
        "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}]",
    );
    let (status, report) = examine(&format!("{chart}{from}"));
    assert_eq!(
        (status, places(&report).keys().copied().collect::<Vec<_>>()),
        (0, vec!["peer-without-pods"])
    );
    let node = "{apiVersion: v1, kind: Node, metadata: {name: n1}}\n---\n";
    assert_eq!(examine(&format!("{chart}{node}{from}")).0, 0, "labels of namespaces are unknown");
    let node = format!("{node}{{apiVersion: v1, kind: Namespace, metadata: {{name: x}}}}\n---\n");
    assert_eq!(examine(&format!("{chart}{node}{from}")).0, 1, "of a cluster everything is known");
}

/// The controller sets labels on the pods of a template, which the template lacks.
#[test]
fn labels_of_controllers() {
    let finds = |kind: &str, label: &str| {
        let objects = template("apps/v1", kind, "");
        let selected =
            policy("p", &format!("podSelector: {{matchLabels: {{app: backup, {label}}}}}"));
        let (_, report) = examine(&format!("{CLUSTER}{objects}{selected}"));
        places(&report).contains_key("selects-nothing")
    };
    assert!(!finds("StatefulSet", "statefulset.kubernetes.io/pod-name: backup-0"));
    assert!(!finds("Deployment", "pod-template-hash: 5f6"));
    assert!(finds("Deployment", "statefulset.kubernetes.io/pod-name: backup-0"));
    assert!(finds("StatefulSet", "statefulset.kubernetes.io/pod-name: backup-0, tier: db"));
}
