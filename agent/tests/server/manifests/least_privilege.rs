//! Write access of an agent: its own node only, and only the fields that agents write.

use serde_json::{Value, json};

use crate::manifests::expressions::Expressions;
use crate::manifests::rendered::{can_render, find, option, render};

const AGENT: &str = "system:serviceaccount:netpold-system:netpold";

fn policy(name: &str) -> Expressions {
    Expressions::of(find(&option("least-privilege"), "ValidatingAdmissionPolicy", name))
}

/// Returns a request of an agent that runs on a node, according to its token.
fn request(node: &str) -> Value {
    let extra = json!({ "authentication.kubernetes.io/node-name": [node] });
    json!({ "operation": "UPDATE", "userInfo": { "username": AGENT, "extra": extra } })
}

/// Asserts the messages about a change of an object by a request; without messages, the change must pass.
#[track_caller]
fn judged(
    policy: &Expressions,
    request: &Value,
    old: &Value,
    change: &dyn Fn(&mut Value),
    says: &[&str],
) {
    let mut new = old.clone();
    change(&mut new);
    let messages = policy.refusals(&[("request", request), ("object", &new), ("oldObject", old)]);
    assert_eq!(messages.len(), says.len(), "{messages:?} of {new}");
    for (message, says) in messages.iter().zip(says) {
        assert!(message.contains(says), "{message:?} has not {says:?}");
    }
}

fn condition(kind: &str, status: &str) -> Value {
    let time = "2026-11-23T00:00:00Z";
    json!({ "type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": time })
}

fn conditions(object: &mut Value) -> &mut Vec<Value> {
    object["status"]["conditions"].as_array_mut().unwrap()
}

type Change = &'static dyn Fn(&mut Value);

/// Returns a pod of node n1 as reported by the kubelet.
fn pod() -> Value {
    json!({
        "metadata": { "name": "web", "namespace": "shop", "labels": { "app": "web" } },
        "spec": { "nodeName": "n1", "readinessGates": [{ "conditionType": "netpold.io/network-ready" }] },
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }],
            "conditions": [
                condition("PodScheduled", "True"),
                condition("ContainersReady", "True"),
                condition("Ready", "False"),
            ],
        },
    })
}

#[test]
fn agents_set_their_condition_of_pods_on_their_node() {
    if !can_render("agents_set_their_condition_of_pods_on_their_node") {
        return;
    }
    let (policy, ours) = (policy("netpold-agent-pods"), "netpold.io/network-ready");
    let good: [Change; 5] = [
        &|_| (),
        &|pod| conditions(pod).push(condition("netpold.io/network-ready", "True")),
        &|pod| conditions(pod).insert(0, condition("netpold.io/network-ready", "False")),
        // A strategic merge may reorder conditions.
        &|pod| conditions(pod).reverse(),
        &|pod| pod["metadata"]["managedFields"] = json!([{ "manager": "netpold" }]),
    ];
    for change in good {
        judged(&policy, &request("n1"), &pod(), change, &[]);
    }
    let mut has_one = pod();
    conditions(&mut has_one).push(condition(ours, "True"));
    judged(
        &policy,
        &request("n1"),
        &has_one,
        &|pod| conditions(pod)[3]["status"] = json!("False"),
        &[],
    );
    judged(&policy, &request("n1"), &has_one, &|pod| _ = conditions(pod).pop(), &[]);
    // A pod without a status of the kubelet.
    let mut fresh = pod();
    fresh["status"] = json!({});
    let first: Change = &|pod| {
        pod["status"]["conditions"] = json!([condition("netpold.io/network-ready", "False")]);
    };
    judged(&policy, &request("n1"), &fresh, first, &[]);
    fresh.as_object_mut().unwrap().remove("status");
    let first: Change = &|pod| {
        pod["status"] = json!({ "conditions": [condition("netpold.io/network-ready", "False")] });
    };
    judged(&policy, &request("n1"), &fresh, first, &[]);
}

#[test]
fn agents_change_nothing_else_of_pods() {
    if !can_render("agents_change_nothing_else_of_pods") {
        return;
    }
    let policy = policy("netpold-agent-pods");
    let other_condition = "no condition of a pod but netpold.io/network-ready";
    let other_field = "nothing in a pod's status but conditions";
    let metadata = "labels, annotations, finalizers or owners";
    let forged: [(Change, &str); 13] = [
        (&|pod| conditions(pod)[2]["status"] = json!("True"), other_condition),
        (&|pod| conditions(pod)[2]["message"] = json!("x"), other_condition),
        (&|pod| _ = conditions(pod).remove(0), other_condition),
        (&|pod| conditions(pod).push(condition("DisruptionTarget", "True")), other_condition),
        (&|pod| pod["status"]["conditions"] = json!([]), other_condition),
        (&|pod| pod["status"]["phase"] = json!("Failed"), other_field),
        (&|pod| pod["status"]["podIPs"][0]["ip"] = json!("10.0.0.9"), other_field),
        (&|pod| _ = pod["status"].as_object_mut().unwrap().remove("podIP"), other_field),
        (&|pod| pod["status"]["reason"] = json!("Evicted"), other_field),
        (&|pod| pod["metadata"]["labels"]["app"] = json!("db"), metadata),
        (&|pod| pod["metadata"]["annotations"] = json!({ "a": "b" }), metadata),
        (&|pod| pod["metadata"]["finalizers"] = json!(["a/b"]), metadata),
        (&|pod| _ = pod["metadata"].as_object_mut().unwrap().remove("labels"), metadata),
    ];
    for (change, says) in forged {
        judged(&policy, &request("n1"), &pod(), change, &[says]);
    }
    let set: Change = &|pod| conditions(pod).push(condition("netpold.io/network-ready", "True"));
    let both = |pod: &mut Value| {
        set(pod);
        pod["status"]["phase"] = json!("Succeeded");
    };
    judged(&policy, &request("n1"), &pod(), &both, &[other_field]);
}

/// Sends changes that only the node's own agent may make.
#[test]
fn agents_of_other_nodes_are_refused_with_both_names() {
    if !can_render("agents_of_other_nodes_are_refused_with_both_names") {
        return;
    }
    let pods = policy("netpold-agent-pods");
    let set: Change = &|pod| conditions(pod).push(condition("netpold.io/network-ready", "True"));
    let says = r#"the netpold agent of node "n2" may not write the status of a pod on node "n1""#;
    judged(&pods, &request("n2"), &pod(), set, &[says]);
    let mut unscheduled = pod();
    unscheduled["spec"].as_object_mut().unwrap().remove("nodeName");
    judged(&pods, &request("n1"), &unscheduled, set, &[r#"on node """#]);

    let take_off: Change = &|node| _ = taints(node).remove(0);
    let says = r#"the netpold agent of node "n2" may not write node "n1""#;
    judged(&policy("netpold-agent-nodes"), &request("n2"), &node(), take_off, &[says]);
}

/// Sends requests with a copied Secret, with a token requested without a pod, and through an API server that does not
/// report the node.
#[test]
fn tokens_that_name_no_node_write_nothing() {
    if !can_render("tokens_that_name_no_node_write_nothing") {
        return;
    }
    let no_extra = json!({ "operation": "UPDATE", "userInfo": { "username": AGENT } });
    let mut no_node = request("n1");
    no_node["userInfo"]["extra"] =
        json!({ "authentication.kubernetes.io/pod-name": ["netpold-x"] });
    let mut empty = request("");
    empty["operation"] = json!("UPDATE");
    for request in [no_extra, no_node, empty] {
        let says = &["names no node"];
        judged(&policy("netpold-agent-pods"), &request, &pod(), &|_| (), says);
        judged(&policy("netpold-agent-nodes"), &request, &node(), &|_| (), says);
        judged(&policy("netpold-agent-reports"), &request, &report("n1"), &|_| (), says);
    }
}

#[test]
fn nobody_else_is_concerned() {
    if !can_render("nobody_else_is_concerned") {
        return;
    }
    let forge: Change = &|object| object["metadata"]["labels"] = json!({ "forged": "yes" });
    for user in
        ["system:node:n2", "system:serviceaccount:netpold-system:netpold-controller", "admin"]
    {
        let request = json!({ "operation": "UPDATE", "userInfo": { "username": user } });
        judged(&policy("netpold-agent-pods"), &request, &pod(), forge, &[]);
        judged(&policy("netpold-agent-nodes"), &request, &node(), forge, &[]);
        judged(&policy("netpold-agent-reports"), &request, &report("n1"), forge, &[]);
    }
}

/// Returns node n1 as registered.
fn node() -> Value {
    json!({
        "metadata": { "name": "n1", "labels": { "kubernetes.io/os": "linux" } },
        "spec": {
            "podCIDR": "10.0.0.0/24",
            "taints": [
                { "key": "netpold.io/agent-not-ready", "effect": "NoSchedule" },
                { "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" },
            ],
        },
        "status": {
            "capacity": { "pods": "110" },
            "conditions": [condition("Ready", "False"), condition("MemoryPressure", "False")],
        },
    })
}

fn taints(node: &mut Value) -> &mut Vec<Value> {
    node["spec"]["taints"].as_array_mut().unwrap()
}

#[test]
fn agents_take_their_taint_off_and_set_their_condition() {
    if !can_render("agents_take_their_taint_off_and_set_their_condition") {
        return;
    }
    let policy = policy("netpold-agent-nodes");
    let good: [Change; 4] = [
        &|_| (),
        &|node| _ = taints(node).remove(0),
        &|node| conditions(node).push(condition("netpold.io/NetworkPolicyReady", "True")),
        &|node| {
            conditions(node).insert(0, condition("netpold.io/NetworkPolicyReady", "False"));
            taints(node).remove(0);
        },
    ];
    for change in good {
        judged(&policy, &request("n1"), &node(), change, &[]);
    }
    let mut last = node();
    taints(&mut last).pop();
    let gone: Change = &|node| _ = node["spec"].as_object_mut().unwrap().remove("taints");
    judged(&policy, &request("n1"), &last, gone, &[]);
    let mut ready = node();
    conditions(&mut ready).push(condition("netpold.io/NetworkPolicyReady", "True"));
    judged(
        &policy,
        &request("n1"),
        &ready,
        &|node| conditions(node)[2]["status"] = json!("False"),
        &[],
    );
}

#[test]
fn agents_change_nothing_else_of_nodes() {
    if !can_render("agents_change_nothing_else_of_nodes") {
        return;
    }
    let policy = policy("netpold-agent-nodes");
    let added = "may not add or change a taint";
    let taken = "no taint off a node but netpold.io/agent-not-ready";
    let spec = "nothing in a node's spec but its taints";
    let other_condition = "no condition of a node but netpold.io/NetworkPolicyReady";
    let status = "nothing in a node's status but conditions";
    let metadata = "labels, annotations, finalizers or owners";
    let forged: [(Change, &[&str]); 15] = [
        (&|node| _ = taints(node).remove(1), &[taken]),
        (&|node| node["spec"]["taints"] = json!([]), &[taken]),
        (&|node| taints(node).push(json!({ "key": "a", "effect": "NoExecute" })), &[added]),
        (&|node| taints(node)[1]["effect"] = json!("NoExecute"), &[added, taken]),
        (&|node| taints(node)[0]["effect"] = json!("NoExecute"), &[added]),
        (&|node| taints(node)[0]["value"] = json!("x"), &[added]),
        (&|node| node["spec"]["unschedulable"] = json!(true), &[spec]),
        (&|node| node["spec"]["podCIDR"] = json!("10.9.0.0/24"), &[spec]),
        (&|node| conditions(node)[0]["status"] = json!("True"), &[other_condition]),
        (&|node| _ = conditions(node).remove(0), &[other_condition]),
        (&|node| conditions(node).push(condition("DiskPressure", "True")), &[other_condition]),
        (&|node| node["status"]["capacity"]["pods"] = json!("0"), &[status]),
        (&|node| node["status"]["addresses"] = json!([{ "address": "10.9.0.9" }]), &[status]),
        (&|node| node["metadata"]["labels"]["node-role.kubernetes.io/x"] = json!(""), &[metadata]),
        (&|node| node["metadata"]["annotations"] = json!({ "a": "b" }), &[metadata]),
    ];
    for (change, says) in forged {
        judged(&policy, &request("n1"), &node(), change, says);
    }
}

/// The controller's RBAC covers the whole status of every Node.
#[test]
fn the_controller_sets_one_condition_of_nodes_to_unknown() {
    if !can_render("the_controller_sets_one_condition_of_nodes_to_unknown") {
        return;
    }
    let (policy, ours) = (policy("netpold-controller-nodes"), "netpold.io/NetworkPolicyReady");
    let user = format!("{AGENT}-controller");
    let request = json!({ "operation": "UPDATE", "userInfo": { "username": user } });
    let mut ready = node();
    conditions(&mut ready).push(condition(ours, "True"));
    let good: [Change; 3] = [
        &|_| (),
        &|node| conditions(node)[2] = condition("netpold.io/NetworkPolicyReady", "Unknown"),
        // A strategic merge may reorder conditions.
        &|node| conditions(node).reverse(),
    ];
    for change in good {
        judged(&policy, &request, &ready, change, &[]);
    }
    let other_condition = "and change no other condition";
    let status = "nothing in a node's status but conditions";
    let metadata = "labels, annotations, finalizers or owners";
    let forged: [(Change, &str); 9] = [
        (&|node| conditions(node)[2]["status"] = json!("False"), other_condition),
        (&|node| conditions(node)[2]["message"] = json!("x"), other_condition),
        (&|node| _ = conditions(node).pop(), other_condition),
        (&|node| conditions(node)[0]["status"] = json!("Unknown"), other_condition),
        (&|node| conditions(node).push(condition("DiskPressure", "Unknown")), other_condition),
        (&|node| node["status"]["addresses"] = json!([{ "address": "10.9.0.9" }]), status),
        (&|node| node["status"]["capacity"]["pods"] = json!("0"), status),
        (&|node| node["metadata"]["labels"]["a"] = json!("b"), metadata),
        (&|node| node["metadata"]["annotations"] = json!({ "a": "b" }), metadata),
    ];
    for (change, says) in forged {
        judged(&policy, &request, &ready, change, &[says]);
    }
    let first: Change =
        &|node| conditions(node).push(condition("netpold.io/NetworkPolicyReady", "Unknown"));
    judged(&policy, &request, &node(), first, &[other_condition]);
    let mut agent = request;
    agent["userInfo"]["username"] = json!(AGENT);
    let forge: Change = &|node| node["status"]["capacity"]["pods"] = json!("0");
    judged(&policy, &agent, &ready, forge, &[]);
}

fn report(node: &str) -> Value {
    json!({ "metadata": { "name": node }, "status": { "inSync": true } })
}

#[test]
fn agents_report_for_their_node_only() {
    if !can_render("agents_report_for_their_node_only") {
        return;
    }
    let policy = policy("netpold-agent-reports");
    let says = |of: &str, operation: &str| {
        let mut request = request("n1");
        request["operation"] = json!(operation);
        let (new, old) = match operation {
            "CREATE" => (report(of), Value::Null),
            "DELETE" => (Value::Null, report(of)),
            _ => (report(of), report(of)),
        };
        policy.refusals(&[("request", &request), ("object", &new), ("oldObject", &old)])
    };
    for operation in ["CREATE", "UPDATE", "DELETE"] {
        assert_eq!(says("n1", operation), [""; 0]);
        let refused =
            r#"the netpold agent of node "n1" may not write the NodePolicyStatus of node "n2""#;
        assert_eq!(says("n2", operation), [refused]);
    }
}

/// Checks that the policies cover all write access that RBAC grants to agents, except Events.
#[test]
fn the_policies_cover_what_agents_may_write() {
    if !can_render("the_policies_cover_what_agents_may_write") {
        return;
    }
    let (base, overlay) = (render("base"), option("least-privilege"));
    let list = |value: &Value| {
        let all = value.as_array().cloned().unwrap_or_default();
        all.into_iter().map(|it| it.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut bound = Vec::new();
    let is_of_agents = |object: &&Value| {
        let name = object["metadata"]["name"].as_str();
        object["kind"] == "ValidatingAdmissionPolicy"
            && name.is_some_and(|name| name.starts_with("netpold-agent-"))
    };
    for policy in overlay.iter().filter(is_of_agents) {
        let spec = &policy["spec"];
        assert_eq!(spec["failurePolicy"], "Fail");
        let account =
            find(&base, "DaemonSet", "netpold")["spec"]["template"]["spec"]["serviceAccountName"]
                .as_str()
                .unwrap();
        assert!(
            spec["matchConditions"][0]["expression"]
                .as_str()
                .unwrap()
                .ends_with(&format!(":{account}'"))
        );
        for rule in spec["matchConstraints"]["resourceRules"].as_array().unwrap() {
            let group = rule["apiGroups"][0].as_str().unwrap().to_owned();
            bound.extend(list(&rule["resources"]).into_iter().map(|it| (group.clone(), it)));
        }
    }
    for rule in find(&base, "ClusterRole", "netpold")["rules"].as_array().unwrap() {
        let reads = ["get", "list", "watch"];
        if list(&rule["verbs"]).iter().all(|verb| reads.contains(&verb.as_str())) {
            continue;
        }
        for group in list(&rule["apiGroups"]) {
            for resource in list(&rule["resources"]).into_iter().filter(|it| it != "events") {
                assert!(bound.contains(&(group.clone(), resource.clone())), "{group} {resource}");
            }
        }
    }
}
