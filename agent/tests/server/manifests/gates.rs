//! Admission policies of the readiness gate and the startup taint: matching pods and nodes get them exactly once.

use serde_json::{Value, json};

use crate::manifests::expressions::Expressions;
use crate::manifests::rendered::{can_render, find, option};

const GATE: &str = "netpold.io/network-ready";
const TAINT: &str = "netpold.io/agent-not-ready";

/// Returns a mutating policy, after a check that its two API versions have the same expressions.
fn policy(overlay: &str) -> Expressions {
    let of = |overlay: &str| {
        let objects = option(overlay);
        find(&objects, "MutatingAdmissionPolicy", &format!("netpold-{}", base(overlay))).clone()
    };
    let (stable, beta) = (of(overlay), of(&format!("{overlay}-v1beta1")));
    assert_eq!(stable["spec"], beta["spec"]);
    assert_eq!(stable["apiVersion"], "admissionregistration.k8s.io/v1");
    assert_eq!(beta["apiVersion"], "admissionregistration.k8s.io/v1beta1");
    Expressions::of(&stable)
}

fn base(overlay: &str) -> &str {
    overlay.trim_end_matches("-v1beta1")
}

fn pod(spec: Value) -> Value {
    let mut pod = json!({ "metadata": { "name": "x", "namespace": "shop" }, "spec": spec });
    pod["spec"]["containers"] = json!([{ "name": "main" }]);
    pod
}

#[test]
fn pods_get_the_gate_once() {
    if !can_render("pods_get_the_gate_once") {
        return;
    }
    let policy = policy("readiness-gate");
    let (ours, other) = (json!({ "conditionType": GATE }), json!({ "conditionType": "a.b/c" }));
    for (gates, then) in [
        (Value::Null, json!([ours])),
        (json!([]), json!([ours])),
        (json!([other]), json!([other, ours])),
        (json!([ours]), json!([ours])),
        (json!([ours, other]), json!([ours, other])),
    ] {
        let mut new = pod(json!({ "nodeSelector": { "disk": "fast" } }));
        if !gates.is_null() {
            new["spec"]["readinessGates"] = gates;
        }
        let mut wanted = new.clone();
        wanted["spec"]["readinessGates"] = then;
        let once = policy.mutated(&new);
        assert_eq!(once, wanted, "no other change");
        assert_eq!(policy.mutated(&once), once);
    }
}

#[test]
fn pods_whose_condition_no_agent_writes_get_no_gate() {
    if !can_render("pods_whose_condition_no_agent_writes_get_no_gate") {
        return;
    }
    let policy = policy("readiness-gate");
    let mirror = {
        let mut pod = pod(json!({}));
        pod["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "0" });
        pod
    };
    for untouched in [
        pod(json!({ "hostNetwork": true })),
        pod(json!({ "os": { "name": "windows" } })),
        pod(json!({ "nodeSelector": { "kubernetes.io/os": "windows" } })),
        mirror,
    ] {
        assert_eq!(policy.mutated(&untouched), untouched);
    }
    for ordinary in [
        pod(json!({ "hostNetwork": false, "os": { "name": "linux" } })),
        pod(json!({ "nodeSelector": { "kubernetes.io/os": "linux" } })),
    ] {
        assert_eq!(policy.mutated(&ordinary)["spec"]["readinessGates"][0]["conditionType"], GATE);
    }
}

#[test]
fn new_nodes_get_the_taint_once() {
    if !can_render("new_nodes_get_the_taint_once") {
        return;
    }
    let policy = policy("startup-taint");
    let node = |labels: Value, spec: Value| json!({ "metadata": { "name": "n1", "labels": labels }, "spec": spec });
    let linux = json!({ "kubernetes.io/os": "linux" });
    let ours = json!({ "key": TAINT, "effect": "NoSchedule" });
    let other = json!({ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" });
    for (taints, then) in [
        (Value::Null, json!([ours])),
        (json!([other]), json!([other, ours])),
        (json!([ours, other]), json!([ours, other])),
        // The taint as set by a flag of the kubelet, with an effect that the operator chose.
        (
            json!([{ "key": TAINT, "effect": "NoExecute" }]),
            json!([{ "key": TAINT, "effect": "NoExecute" }]),
        ),
    ] {
        let spec = if taints.is_null() { json!({}) } else { json!({ "taints": taints }) };
        let once = policy.mutated(&node(linux.clone(), spec));
        assert_eq!(once["spec"]["taints"], then);
        assert_eq!(policy.mutated(&once), once);
    }
    let bare = json!({ "metadata": { "name": "n1" }, "spec": {} });
    assert_eq!(policy.mutated(&bare)["spec"]["taints"], json!([ours]));
    for without_agent in
        [json!({ "kubernetes.io/os": "windows" }), json!({ "type": "virtual-kubelet" })]
    {
        let node = node(without_agent, json!({}));
        assert_eq!(policy.mutated(&node), node, "no agent would remove the taint");
    }
}

/// Policy and webhook match the same pods, and neither blocks the creation of a pod.
#[test]
fn gates_are_added_in_labelled_namespaces() {
    if !can_render("gates_are_added_in_labelled_namespaces") {
        return;
    }
    let policy = option("readiness-gate");
    let policy = &find(&policy, "MutatingAdmissionPolicy", "")["spec"];
    let webhook = option("readiness-gate-webhook");
    let webhook = &find(&webhook, "MutatingWebhookConfiguration", "netpold-readiness-gate");
    assert_eq!(webhook["webhooks"].as_array().unwrap().len(), 1);
    let webhook = &webhook["webhooks"][0];
    let label = json!({ "netpold.io/readiness-gate": "enabled" });
    assert_eq!(policy["matchConstraints"]["namespaceSelector"]["matchLabels"], label);
    assert_eq!(webhook["namespaceSelector"]["matchLabels"], label);
    for rule in [&policy["matchConstraints"]["resourceRules"][0], &webhook["rules"][0]] {
        assert_eq!(rule["operations"], json!(["CREATE"]));
        assert_eq!(rule["resources"], json!(["pods"]));
    }
    assert_eq!(policy["failurePolicy"], "Ignore");
    assert_eq!(webhook["failurePolicy"], "Ignore");
    assert_eq!(webhook["clientConfig"]["caBundle"], Value::Null, "the controller writes it");
    let service = &webhook["clientConfig"]["service"];
    assert_eq!(
        service,
        &json!({
            "name": "netpold-controller", "namespace": "netpold-system",
            "path": "/mutate-pods", "port": 443,
        })
    );
}
