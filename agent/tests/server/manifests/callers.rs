//! Callers that reach the controller's webhook with the option `webhookCallers`, by netpold's own explainer.

use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::manifests::rendered::{can_render, find, option, render};

fn pod(namespace: &str, labels: &Value, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": namespace, "name": "pod", "labels": labels },
        "spec": { "nodeName": "n1", "containers": [{ "name": "main", "image": "example/main" }] },
        "status": { "podIP": address, "phase": "Running" },
    })
}

#[test]
fn no_pod_reaches_the_webhook_and_nodes_do() {
    if !can_render("no_pod_reaches_the_webhook_and_nodes_do") {
        return;
    }
    let base = render("base");
    let template = &find(&base, "Deployment", "netpold-controller")["spec"]["template"];
    let mut objects = vec![
        option("webhook-callers").remove(0),
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" },
            "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }] },
        }),
        pod("netpold-system", &template["metadata"]["labels"], "10.0.0.1"),
        pod("shop", &json!({}), "10.0.0.2"),
        pod("kube-system", &json!({ "k8s-app": "konnectivity-agent" }), "10.0.0.3"),
    ];
    for namespace in ["netpold-system", "shop", "kube-system"] {
        let labels = json!({ "kubernetes.io/metadata.name": namespace });
        let metadata = json!({ "name": namespace, "labels": labels });
        objects.push(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }));
    }
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("all.json"), list.to_string()).unwrap();
    for (from, port, verdict) in [
        ("shop/pod", "8443", "deny"),
        ("kube-system/pod", "8443", "allow"),
        // A node, and an API server outside the cluster.
        ("192.0.2.9", "8443", "allow"),
        ("198.51.100.1", "8443", "allow"),
        ("shop/pod", "9813", "allow"),
    ] {
        let mut explain = Command::new(env!("CARGO_BIN_EXE_netpold"));
        explain.args(["explain", "--from", from, "--to", "netpold-system/pod", "--port", port]);
        explain.args(["--protocol", "TCP", "-o", "json", "--manifests"]).arg(directory.path());
        let output = explain.output().unwrap();
        let said: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(said["verdict"], verdict, "{from} to {port}: {said:#}");
    }
}
