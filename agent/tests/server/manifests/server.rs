//! Objects on a real API server, and their effects there. Where the server is version 1.20, the tests convert kinds that
//! it serves only as betas. They do not create admission policies, which are newer.

use std::process::Command;

use netpold_testbed::{ApiServer, require_apiserver};
use serde_json::{Value, json};

use crate::manifests::rendered::{can_render, chart, find, option, render, switches};

const NAMESPACE: &str = "netpold-system";
const AGENT: &str = "system:serviceaccount:netpold-system:netpold";
const CONTROLLER: &str = "system:serviceaccount:netpold-system:netpold-controller";

fn create(server: &ApiServer, object: &Value) -> Result<String, String> {
    let created =
        server.kubectl_with(&["create", "--validate=false", "-f", "-"], &object.to_string());
    created.map_err(|error| format!("{error:#}"))
}

fn get(server: &ApiServer, arguments: &[&str]) -> Value {
    let said = server.kubectl(&[&["get", "-o", "json"], arguments].concat()).unwrap();
    serde_json::from_str(&said).unwrap()
}

/// Returns whether the server is older than the API versions in `deploy/`: `policy/v1` came with Kubernetes 1.21.
fn is_old(server: &ApiServer) -> bool {
    let answer = server.kubectl(&["get", "--raw", "/apis/policy/v1"]);
    let answer = answer.map_err(|error| format!("{error:#}"));
    is_not_served(&answer).unwrap()
}

/// Returns whether the server answered that it does not serve a path (404).
///
/// # Errors
/// The server refused the request, or did not answer.
fn is_not_served(answer: &Result<String, String>) -> Result<bool, &str> {
    match answer {
        Ok(_) => Ok(false),
        Err(error) if error.contains("Error from server (NotFound)") => Ok(true),
        Err(error) => Err(error),
    }
}

/// Only the server's own answer shows its age: not a refused request, and no lost connection. The texts are kubectl's.
#[test]
fn an_error_of_kubectl_is_not_an_old_server() {
    let is_old = |error: &str| is_not_served(&Err(error.to_owned())).map_err(str::to_owned);
    assert_eq!(is_not_served(&Ok("{}".to_owned())), Ok(false));
    let absent = "Error from server (NotFound): the server could not find the requested resource";
    assert_eq!(is_old(absent), Ok(true));
    for other in [
        "Error from server (Forbidden): forbidden: User \"x\" cannot get path \"/apis/policy/v1\"",
        "error: You must be logged in to the server (Unauthorized)",
        "The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?",
        "Unable to connect to the server: dial tcp 192.0.2.1:6443: i/o timeout",
        "Error from server (ServiceUnavailable): the server is currently unable to handle the request",
        "No such file or directory (os error 2)",
    ] {
        assert_eq!(is_old(other), Err(other.to_owned()));
    }
}

/// Runs all checks on one server, since a start takes seconds.
#[test]
fn the_objects_do_what_they_are_for() {
    let name = "the_objects_do_what_they_are_for";
    if !require_apiserver(name) || !can_render(name) {
        return;
    }
    let server = ApiServer::start().unwrap();
    let old = is_old(&server);
    for object in render("base") {
        create(&server, &if old { older(object) } else { object }).unwrap();
    }
    let tenant =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "tenant" } });
    create(&server, &tenant).unwrap();
    every_value_is_accepted(&server, old);
    for object in option("readiness-gate-webhook") {
        create(&server, &object).unwrap();
    }
    let set = get(&server, &["daemonset", "netpold", "-n", NAMESPACE]);
    let security =
        |set: &Value| set["spec"]["template"]["spec"]["containers"][0]["securityContext"].clone();
    let mut wanted = security(find(&render("base"), "DaemonSet", "netpold"));
    if old {
        // Added in 1.30.
        wanted.as_object_mut().unwrap().remove("appArmorProfile").unwrap();
    }
    assert_eq!(security(&set), wanted);
    only_agents_run_in_their_namespace(&server, &set);
    tenants_policies_are_bounded(&server);
    agents_have_a_priority_level(&server, old);
}

/// Returns an object of the base or of the chart as Kubernetes 1.20 accepts it.
fn older(mut object: Value) -> Value {
    if object["kind"] == "PodDisruptionBudget" {
        object["apiVersion"] = json!("policy/v1beta1");
    }
    if object["kind"] == "DaemonSet" {
        // Version 1.20 lacks maxSurge (added in 1.25), without which maxUnavailable must not be 0.
        object["spec"]["updateStrategy"]["rollingUpdate"] = json!({ "maxUnavailable": "10%" });
    }
    // Added in 1.30. Server-side apply refuses unknown fields.
    for kind in ["initContainers", "containers"] {
        let containers = object.pointer_mut(&format!("/spec/template/spec/{kind}"));
        for container in containers.and_then(Value::as_array_mut).into_iter().flatten() {
            let context = container.get_mut("securityContext").and_then(Value::as_object_mut);
            context.map(|context| context.remove("appArmorProfile"));
        }
    }
    object
}

/// Values needed in addition to the options' switches, as arguments of `--set`.
const VALUES: [&str; 15] = [
    "image.repository=registry.example/netpold,image.tag=v1,imagePullSecrets[0].name=registry",
    "image.digest=sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "commonLabels.team=network,log.level=debug,log.format=text,crds.install=false",
    "agent.mountBpffs=true,agent.cniResults=/run/cni/results,agent.staticPods=/etc/manifests/pods",
    "agent.checkSource=isolated,agent.sourceCheckExempt={10.0.0.0/8},agent.newPods=deny",
    "agent.deny=reject,agent.observeFlows=all,agent.secondInterfaces=off,agent.deniedSeries=0",
    "agent.watchNodes=own,agent.clusterNetworkPolicies=off,agent.nodeDevices={eth0}",
    "agent.peers=slices,controller.peerSlices=true,controller.replicas=1",
    "agent.xdpUplink={eth0},agent.xdpUplinkDrops=all,agent.podEgressHook=xdp,agent.markBit=27",
    "agent.listen.address=127.0.0.1,agent.listen.port=9418,agent.readback=60,agent.apiTimeout=30",
    "agent.otlp.endpoint=https://collector:4318,agent.otlp.headersSecret=h,agent.otlp.caConfigMap=c",
    "agent.extraEnv[0].name=A,controller.extraEnv[0].name=A",
    "agent.updateStrategy.maxSurge=1,agent.podLabels.a=b,agent.podAnnotations.c=d",
    "readinessGate.mode=webhook,controller.webhook.clients={10.0.0.1},controller.webhook.clientCaConfigMap=c",
    "uninstall=true",
];

/// Applies each rendering of [`VALUES`] and of the options' switches, without storing it.
fn every_value_is_accepted(server: &ApiServer, old: bool) {
    for values in VALUES.into_iter().chain(switches()) {
        let objects = chart(values).into_iter().filter(|object| is_served(object, old));
        let items: Vec<_> =
            objects.map(|object| if old { older(object) } else { object }).collect();
        assert!(items.len() > 5, "{values}: {items:?}");
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
        let apply = ["apply", "--server-side", "--force-conflicts", "--dry-run=server"];
        let applied =
            server.kubectl_with(&[&apply[..], &["--validate=false", "-f", "-"]].concat(), &list);
        assert!(applied.is_ok(), "{values}: {applied:#?}");
    }
}

/// Returns whether the tests' API server has the kind in this version by default.
fn is_served(object: &Value, old: bool) -> bool {
    let group = object["apiVersion"].as_str().unwrap();
    let kind = object["kind"].as_str().unwrap();
    let of_an_operator = group.starts_with("monitoring.coreos.com/");
    let of_a_definition = kind == "ClusterNetworkPolicy";
    let beta = group == "admissionregistration.k8s.io/v1beta1";
    let newer = kind.contains("AdmissionPolicy") || group.starts_with("flowcontrol.");
    !(of_an_operator || of_a_definition || beta || (old && newer))
}

/// Returns a pod as the DaemonSet controller would create it.
fn agent_pod(set: &Value, name: &str) -> Value {
    let template = &set["spec"]["template"];
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": template["metadata"]["labels"] },
        "spec": template["spec"],
    })
}

/// Initialises quotas as the quota controller does, which does not run here.
fn count_quotas(server: &ApiServer, namespace: &str) {
    for mut quota in
        get(server, &["resourcequota", "-n", namespace])["items"].as_array().unwrap().clone()
    {
        let hard = quota["spec"]["hard"].clone();
        let used = hard.as_object().unwrap().keys().map(|k| (k.clone(), json!("0")));
        let used: serde_json::Map<_, _> = used.collect();
        quota["status"] = json!({ "hard": hard, "used": used });
        let name = quota["metadata"]["name"].as_str().unwrap();
        let path = format!("/api/v1/namespaces/{namespace}/resourcequotas/{name}/status");
        server.kubectl_with(&["replace", "--raw", &path, "-f", "-"], &quota.to_string()).unwrap();
    }
}

fn only_agents_run_in_their_namespace(server: &ApiServer, set: &Value) {
    for object in option("quotas") {
        create(server, &object).unwrap();
    }
    count_quotas(server, NAMESPACE);
    create(server, &agent_pod(set, "agent")).unwrap();
    let used = get(server, &["resourcequota", "critical-pods", "-n", NAMESPACE]);
    assert_eq!(used["status"]["used"]["pods"], "1", "counted by the quota for agents");

    let mut other = agent_pod(set, "other");
    other["spec"]["priorityClassName"] = Value::Null;
    let error = create(server, &other).unwrap_err();
    assert!(error.contains("exceeded quota: no-other-pods"), "{error}");
    other["spec"]["priorityClassName"] = json!("system-cluster-critical");
    create(server, &other).unwrap();
    let used = get(server, &["resourcequota", "critical-pods", "-n", NAMESPACE]);
    assert_eq!(used["status"]["used"]["pods"], "2", "the controller's");

    let mut small = agent_pod(set, "small");
    small["spec"]["containers"][0]["resources"] = json!({ "limits": { "memory": "8Mi" } });
    let error = create(server, &small).unwrap_err();
    assert!(error.contains("minimum memory usage per Container is 16Mi"), "{error}");
    let mut plain = agent_pod(set, "plain");
    plain["spec"]["containers"][0]["resources"] = Value::Null;
    create(server, &plain).unwrap();
    let plain = get(server, &["pod", "plain", "-n", NAMESPACE]);
    let resources = &plain["spec"]["containers"][0]["resources"];
    assert_eq!(resources["requests"]["memory"], "64Mi", "{resources}");
    assert_eq!(resources["limits"]["memory"], "256Mi", "{resources}");
}

fn tenants_policies_are_bounded(server: &ApiServer) {
    let mut quota = option("tenant-quota").remove(0);
    let hard = &mut quota["spec"]["hard"]["count/networkpolicies.networking.k8s.io"];
    assert_eq!(*hard, "100");
    *hard = json!("2");
    quota["metadata"]["namespace"] = json!("tenant");
    create(server, &quota).unwrap();
    count_quotas(server, "tenant");
    let policy = |name: &str| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": name, "namespace": "tenant" }, "spec": { "podSelector": {} },
        })
    };
    create(server, &policy("one")).unwrap();
    create(server, &policy("two")).unwrap();
    let error = create(server, &policy("three")).unwrap_err();
    assert!(error.contains("exceeded quota: network-policies"), "{error}");
}

/// Creates the kinds, on an old server as its version v1beta1, in which the shares have another name.
fn agents_have_a_priority_level(server: &ApiServer, old: bool) {
    let beta = |mut object: Value| {
        object["apiVersion"] = json!("flowcontrol.apiserver.k8s.io/v1beta1");
        if let Some(limited) = object["spec"]["limited"].as_object_mut() {
            let shares = limited.remove("nominalConcurrencyShares").unwrap();
            limited.insert("assuredConcurrencyShares".to_owned(), shares);
            limited.remove("lendablePercent").unwrap();
        }
        object
    };
    for object in option("api-protection") {
        create(server, &if old { beta(object) } else { object }).unwrap();
    }
    let uid = |kind: &str, name: &str| {
        get(server, &[kind, name])["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let group = |schema: &str, level: &str| {
        (uid("flowschema", schema), uid("prioritylevelconfiguration", level))
    };
    let report = server.directory().join("report.json");
    std::fs::write(&report, r#"{"apiVersion": "netpold.io/v1alpha1", "kind": "NodePolicyStatus"}"#)
        .unwrap();
    let reports = "/apis/netpold.io/v1alpha1/nodepolicystatuses";
    let write = ["create", "--raw", reports, "-f", report.to_str().unwrap(), "--as", AGENT];
    let read = ["get", "pods", "-A", "--as", AGENT];
    let status = group("netpold-status", "netpold-status");
    for (request, wanted) in [
        (&read[..], &group("netpold", "netpold")),
        (&write, &status),
        (
            &["get", "pods", "-A", "--as", CONTROLLER],
            &group("netpold-controller", "netpold-status"),
        ),
    ] {
        // The server applies new levels after a moment.
        let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
        while classified(server, request) != *wanted {
            assert!(std::time::Instant::now() < deadline, "{request:?} has no level of its own");
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }
    let other = ["get", "pods", "-A", "--as", "system:serviceaccount:default:default"];
    let level = classified(server, &other).1;
    assert!(level != status.1 && level != group("netpold", "netpold").1, "others have not");
}

/// Returns flow schema and priority level of a request, from the headers of the answer.
fn classified(server: &ApiServer, arguments: &[&str]) -> (String, String) {
    let mut command: Command = server.kubectl_command().unwrap();
    let output = command.args(arguments).arg("-v=8").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
    let header = |name: &str| {
        let mut lines = said.lines().filter_map(|line| line.split_once(name));
        lines
            .next_back()
            .map(|(_, value)| value.trim_matches([':', ' ', '"']).to_owned())
            .unwrap_or_default()
    };
    (header("x-kubernetes-pf-flowschema-uid"), header("x-kubernetes-pf-prioritylevel-uid"))
}
