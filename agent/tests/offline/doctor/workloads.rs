//! Pods that exist only at times, and pods on the host network.

use super::{CLUSTER, examine, places, policy};

const NONE: [&str; 0] = [];

/// Returns the findings for the cluster plus these objects, with policies for and from `app: backup`.
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
        "{{apiVersion: v1, kind: Pod, metadata: {{name: backup-1, namespace: '{namespace}', labels: {{app: backup}}}}, spec: \
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
        ("v1", "ReplicationController"),
        ("argoproj.io/v1alpha1", "Rollout"),
        ("apps.kruise.io/v1alpha1", "CloneSet"),
        ("apps.openshift.io/v1", "DeploymentConfig"),
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
    // A block in addition to the selector names the addresses.
    for (block, status) in [("10.0.0.0/24", 0), ("10.0.1.0/24", 1)] {
        let from = format!(
            "podSelector: {{matchLabels: {{app: web}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: backup}}}}}}, \
             {{ipBlock: {{cidr: {block}}}}}]}}]"
        );
        let (found, report) =
            examine(&format!("{CLUSTER}{}{}", pod("x", host[0], "Running"), policy("p", &from)));
        assert_eq!(found, status, "{report:#?}");
    }
    // One pod that is not on the host network suffices, and the others are information.
    let twin =
        pod("x", "", "Running").replace("backup-1", "backup-2").replace("10.0.0.9", "10.0.0.8");
    let partly = ["peer-partly-on-host-network"];
    assert_eq!(finds(&format!("{}{twin}", pod("x", host[0], "Running"))), partly);
}

/// References of a chart to objects outside the chart are not findings.
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
    let namespace = |name: &str| {
        format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}\n---\n")
    };
    let node = format!("{node}{}", namespace("x"));
    assert_eq!(examine(&format!("{chart}{node}{from}")).0, 0, "the objects of one namespace");
    let node = format!("{node}{}", namespace("kube-system"));
    assert_eq!(examine(&format!("{chart}{node}{from}")).0, 1, "of a cluster everything is known");
}

/// An export of one namespace lacks the pods of others, such as the name server's.
#[test]
fn peers_of_namespaces_that_are_not_among_the_objects() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: x, labels: {app: web}}, spec: {nodeName: n1, containers: \
               [{name: c}]}, status: {podIP: 10.0.0.1}}\n---\n";
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: x}}\n---\n";
    let to = |selectors: &str| {
        let spec = format!(
            "podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{{{selectors}}}]}}]"
        );
        policy("p", &spec)
    };
    let named = |name: &str| {
        format!("namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {name}}}}}")
    };
    for (selectors, status) in [
        (named("kube-system"), 0),
        (
            format!(
                "{}, podSelector: {{matchLabels: {{k8s-app: kube-dns}}}}",
                named("kube-system")
            ),
            0,
        ),
        ("namespaceSelector: {matchLabels: {team: a}}".to_owned(), 0),
        ("namespaceSelector: {}, podSelector: {matchLabels: {app: db}}".to_owned(), 0),
        (format!("{}, podSelector: {{matchLabels: {{app: db}}}}", named("x")), 1),
        ("podSelector: {matchLabels: {app: db}}".to_owned(), 1),
    ] {
        for namespace in ["", namespace] {
            let dns = policy(
                "dns",
                "podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 53, protocol: UDP}]}]",
            );
            let (found, report) = examine(&format!("{namespace}{pod}{dns}{}", to(&selectors)));
            assert_eq!(found, status, "{selectors}: {report:#?}");
        }
    }
}

/// Rules for optional components, as in the policies of Strimzi and Argo CD.
#[test]
fn peers_beside_others_need_not_run() {
    let finds = |peers: &str| {
        let spec =
            format!("podSelector: {{matchLabels: {{app: web}}}}, ingress: [{{from: [{peers}]}}]");
        examine(&format!("{CLUSTER}{}", policy("p", &spec))).0
    };
    let absent = "{podSelector: {matchLabels: {app: exporter}}}";
    assert_eq!(finds(absent), 1);
    assert_eq!(finds(&format!("{{podSelector: {{matchLabels: {{app: silent}}}}}}, {absent}")), 0);
    assert_eq!(finds(&format!("{{ipBlock: {{cidr: 203.0.113.0/24}}}}, {absent}")), 1);
    let elsewhere = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: 'y'}}}, {podSelector: {matchLabels: {app: client}}}";
    assert_eq!(finds(elsewhere), 1, "two peers where one was meant");
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
