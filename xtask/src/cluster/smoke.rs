//! Enforcement of policy in the cluster, on one node and across nodes, and correctness of the reported status: each
//! check runs once, as soon as the policy's status is `Enforcing`.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::common::wait;
use super::images::BUSYBOX;
use super::kubectl::Kubectl;
use super::state::NODES;
use crate::step;

const NAMESPACE: &str = "netpold-smoke";
const GATE: &str = "netpold.io/network-ready";
const PATIENCE: Duration = Duration::from_mins(3);
/// Name and node of each pod: the server, a client on the same node, a client on the other node.
const PODS: [(&str, &str); 3] = [("server", NODES[0]), ("near", NODES[0]), ("far", NODES[1])];
const CLIENTS: [&str; 2] = ["near", "far"];

/// Runs the checks, and removes their namespace.
///
/// # Errors
/// A check failed; the error names it.
pub(super) fn run(kubectl: &Kubectl) -> Result<()> {
    step::title("smoke: a server, a client beside it, one on the other node");
    kubectl.check_in(NAMESPACE, "smoke", checks)
}

fn checks(kubectl: &Kubectl) -> Result<()> {
    let labels = json!({ "netpold.io/readiness-gate": "enabled" });
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE, "labels": labels },
    });
    kubectl.apply(&namespace.to_string())?;
    wait_gates(kubectl, NAMESPACE)?;
    for (name, node) in PODS {
        kubectl.apply(&pod(name, node).to_string())?;
    }
    kubectl.apply(&service().to_string())?;
    ready(kubectl)?;
    let targets = targets(kubectl)?;
    let expect = |when: &str, near: bool, far: bool| {
        CLIENTS
            .into_iter()
            .zip([near, far])
            .try_for_each(|(client, passes)| check(kubectl, when, client, &targets, passes))
    };
    expect("no policy", true, true)?;
    in_force(kubectl, "deny", &policy("deny", json!([])))?;
    expect("default deny", false, false)?;
    in_force(kubectl, "allow", &policy("allow", from("near")))?;
    expect("near is allowed", true, false)?;
    in_force(kubectl, "allow", &policy("allow", from("far")))?;
    expect("far is allowed instead", false, true)
}

fn pod(name: &str, node: &str) -> Value {
    let serve = "echo hello > /tmp/index.html; exec /busybox httpd -f -p 8080 -h /tmp";
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "namespace": NAMESPACE, "name": name, "labels": { "app": name } },
        "spec": {
            // Assigned by the scheduler, which respects the startup taint; `nodeName` would bypass it.
            "nodeSelector": { "kubernetes.io/hostname": node },
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "busybox",
                "image": BUSYBOX,
                "imagePullPolicy": "Never",
                "command": ["/busybox", "sh", "-c", serve],
                "readinessProbe": { "tcpSocket": { "port": 8080 }, "periodSeconds": 1 },
            }],
        },
    })
}

fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "namespace": NAMESPACE, "name": "server" },
        "spec": {
            "selector": { "app": "server" },
            "ipFamilyPolicy": "PreferDualStack",
            "ports": [{ "port": 80, "targetPort": 8080 }],
        },
    })
}

fn policy(name: &str, ingress: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "namespace": NAMESPACE, "name": name },
        "spec": { "podSelector": { "matchLabels": { "app": "server" } }, "policyTypes": ["Ingress"], "ingress": ingress },
    })
}

fn from(app: &str) -> Value {
    json!([{ "from": [{ "podSelector": { "matchLabels": { "app": app } } }] }])
}

/// Waits until new pods get the readiness gate: API servers apply a new admission policy after a delay.
pub(super) fn wait_gates(kubectl: &Kubectl, namespace: &str) -> Result<()> {
    let mut pod = pod("gate", NODES[0]);
    pod["metadata"]["namespace"] = json!(namespace);
    let pod = pod.to_string();
    wait("the readiness gate of new pods", PATIENCE, || {
        let arguments = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
        ensure!(kubectl.run_with(&arguments, &pod)?.contains(GATE), "a new pod has no {GATE}");
        Ok(())
    })
}

/// Waits until all pods are ready, including the readiness gate.
fn ready(kubectl: &Kubectl) -> Result<()> {
    let start = Instant::now();
    wait("ready pods", PATIENCE, || {
        for (name, _) in PODS {
            let pod = kubectl.run(&["get", "pod", "-n", NAMESPACE, name, "-o", "json"])?;
            let pod: Value = serde_json::from_str(&pod)?;
            for kind in [GATE, "Ready"] {
                let condition = condition(&pod["status"], kind)
                    .with_context(|| format!("pod {name} has no condition {kind}"))?;
                ensure!(
                    condition["status"] == "True",
                    "{kind} of pod {name}: {} {}",
                    condition["reason"],
                    condition["message"]
                );
            }
        }
        Ok(())
    })?;
    step::note(&format!("{GATE} and Ready of all pods: True after {:.1?}", start.elapsed()));
    Ok(())
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Returns `ADDRESS PORT` of the server and of its Service, in each family.
fn targets(kubectl: &Kubectl) -> Result<Vec<String>> {
    let get = |kind: &str, path: &str, port: &str| -> Result<Vec<String>> {
        let path = format!("jsonpath={{{path}}}");
        let found = kubectl.run(&["get", kind, "-n", NAMESPACE, "server", "-o", &path])?;
        Ok(found.split_whitespace().map(|address| format!("{address} {port}")).collect())
    };
    let pods = get("pod", ".status.podIPs[*].ip", "8080")?;
    let services = get("service", ".spec.clusterIPs[*]", "80")?;
    ensure!(pods.len() == services.len(), "addresses {pods:?}, of the Service {services:?}");
    Ok([pods, services].concat())
}

/// Applies a policy and waits until its status is `Enforcing`.
fn in_force(kubectl: &Kubectl, name: &str, policy: &Value) -> Result<()> {
    kubectl.apply(&policy.to_string())?;
    let path = ["-n", NAMESPACE, "-o", "jsonpath={.metadata.generation}"];
    let generation = kubectl.run(&[&["get", "networkpolicy", name][..], &path].concat())?;
    let start = Instant::now();
    wait(&format!("status of policy {name}"), PATIENCE, || {
        let status =
            kubectl.run(&["get", "networkpolicystatus", name, "-n", NAMESPACE, "-o", "json"])?;
        let status: Value = serde_json::from_str(&status)?;
        let status = &status["status"];
        let seen = status["policyGeneration"].to_string();
        ensure!(seen == generation, "of generation {seen}, not {generation}");
        let enforcing = condition(status, "Enforcing").context("no condition Enforcing")?;
        ensure!(enforcing["status"] == "True", "{enforcing}");
        Ok(())
    })?;
    step::note(&format!("policy {name}: Enforcing after {:.1?}", start.elapsed()));
    Ok(())
}

/// Sends requests from a client to all targets in parallel, and compares the results.
fn check(
    kubectl: &Kubectl,
    when: &str,
    client: &str,
    targets: &[String],
    passes: bool,
) -> Result<()> {
    let mut script = String::new();
    for target in targets {
        // nc instead of wget: busybox's static wget crashes without the libraries for name lookups.
        let ask = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | /busybox nc -w 2 {target}");
        let _ = write!(
            script,
            "{{ {ask} | /busybox grep -q ^hello && echo {target} passes || echo {target} dropped; }} & "
        );
    }
    script += "wait";
    let answers =
        kubectl.run(&["exec", "-n", NAMESPACE, client, "--", "/busybox", "sh", "-c", &script])?;
    let wanted = if passes { "passes" } else { "dropped" };
    for target in targets {
        let answer = answers.lines().find_map(|line| line.strip_prefix(&format!("{target} ")));
        if answer != Some(wanted) {
            bail!("{when}: from {client} to {target}: {answer:?}, not {wanted}");
        }
    }
    step::note(&format!("{when}: {client} to server: {wanted} ({} ways)", targets.len()));
    Ok(())
}
