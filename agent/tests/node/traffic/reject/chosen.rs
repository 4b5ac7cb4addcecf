//! Objects with the annotation `netpold.io/deny`, and reports of rejections in status and drops.

use netpold_testbed::cluster::{PATIENCE, TestCluster, isolate};
use netpold_testbed::{Cni, require_root};
use serde_json::{Value, json};

use super::{annotated, refused, rejecting, sockets, unanswered};

fn cluster() -> TestCluster {
    TestCluster::one(Cni::Ptp).with_pods(&["server", "client"])
}

#[test]
fn one_policy_without_reject_makes_denials_silent() {
    require_root!();
    let mut cluster = cluster();
    cluster.objects = vec![
        rejecting("client", "Egress"),
        annotated("other", &isolate("client", &["Egress"]), "drop"),
    ];
    cluster.enforce();
    let to = sockets(cluster.pod("server").addresses());
    unanswered(cluster.pod("client"), &to);
    cluster.objects.pop();
    cluster.policy("plain", isolate("client", &["Egress"])).enforce();
    unanswered(cluster.pod("client"), &to);
    cluster.without_policy("plain").enforce();
    refused(cluster.pod("client"), &to);
}

#[test]
fn the_agents_option_is_the_default_for_policies() {
    require_root!();
    let mut cluster = cluster();
    cluster.arguments = ["--deny", "reject"].map(str::to_owned).into();
    cluster.policy("plain", isolate("client", &["Egress"])).enforce();
    let to = sockets(cluster.pod("server").addresses());
    refused(cluster.pod("client"), &to);
    cluster.objects = vec![annotated("other", &isolate("client", &["Egress"]), "drop")];
    cluster.enforce();
    unanswered(cluster.pod("client"), &to);
}

#[test]
fn an_unknown_value_is_a_problem_and_drops() {
    require_root!();
    let mut cluster = cluster();
    cluster.objects = vec![annotated("wrong", &isolate("client", &["Egress"]), "Reject")];
    cluster.enforce();
    unanswered(cluster.pod("client"), &sockets(cluster.pod("server").addresses()));
    let named = |status: &Value| status.to_string().contains("`Reject` is not drop or reject");
    cluster.agents[0].wait_for("the problem", PATIENCE, named).unwrap();
}

#[test]
fn a_tiers_annotation_applies_to_its_denials() {
    require_root!();
    let mut cluster = cluster();
    let tier = |value: &str| {
        json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
                "metadata": { "name": "tier", "annotations": { "netpold.io/deny": value } },
                "spec": { "tier": "Admin", "priority": 1,
                          "subject": { "pods": { "namespaceSelector": {},
                              "podSelector": { "matchLabels": { "app": "client" } } } },
                          "egress": [{ "action": "Deny", "to": [{ "namespaces": {} }] }] } })
    };
    cluster.objects = vec![tier("reject")];
    cluster.enforce();
    let to = sockets(cluster.pod("server").addresses());
    refused(cluster.pod("client"), &to);
    cluster.objects = vec![tier("drop")];
    cluster.enforce();
    unanswered(cluster.pod("client"), &to);
}

/// The status lists the directions with rejections, and the explanation of a drop reports the rejection.
#[test]
fn status_and_drops_report_answers() {
    require_root!();
    let mut cluster = cluster();
    cluster.objects = vec![rejecting("client", "Egress")];
    cluster.enforce();
    refused(cluster.pod("client"), &sockets(cluster.pod("server").addresses()));
    let reported = |status: &Value| {
        let endpoints = status["endpoints"].as_array().into_iter().flatten();
        let rejects = endpoints.filter(|endpoint| endpoint["rejects"] == json!(["egress"]));
        let drops = status["recent_drops"].to_string();
        rejects.count() == 1 && drops.contains("rejected: the sender gets an error at once")
    };
    cluster.agents[0].wait_for("reports", PATIENCE, reported).unwrap();
}

#[test]
fn a_namespaces_annotation_applies_to_its_policies() {
    require_root!();
    let mut cluster = cluster();
    cluster.policy("plain", isolate("client", &["Egress"]));
    cluster.annotations = vec![("netpold.io/deny", "reject")];
    cluster.enforce();
    let to = sockets(cluster.pod("server").addresses());
    refused(cluster.pod("client"), &to);
    cluster.annotations = vec![("netpold.io/deny", "drop")];
    cluster.enforce();
    unanswered(cluster.pod("client"), &to);
}
