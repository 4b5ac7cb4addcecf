//! Conditions and reports that the agent writes to the API: of pods with the readiness gate, of the Node, of
//! policies.

use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};

use netpold_api::crd::{
    NODE_CONDITION, NetworkPolicyStatus, NodeCounts, NodeFailure, NodePolicyStatus, NodeReport,
    PolicyOnNode, PolicyReport,
};
use netpold_engine::publish::{READINESS_GATE, STARTUP_TAINT};
use netpold_testbed::cluster::network_policy;
use netpold_testbed::{KillOnDrop, cluster, without_twins};
use nix::sys::signal::Signal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::apiserver::world::{
    INTERVAL, NAMESPACE, PATIENCE, USER, World, allow_from, binary, isolated, rbac_file,
};

/// Adds the readiness gate to a pod's object.
pub(crate) fn gate(pod: &mut Value) {
    pod["spec"]["readinessGates"] = json!([{ "conditionType": READINESS_GATE }]);
}

/// Waits until the condition holds.
#[track_caller]
pub(crate) fn eventually(world: &World, what: &str, condition: impl FnMut() -> bool) {
    let log = || world.agent.as_ref().map(netpold_testbed::Agent::log).unwrap_or_default();
    cluster::eventually_at(INTERVAL, PATIENCE, condition, || format!("not {what}\n{}", log()));
}

impl World {
    /// Returns an object, or null.
    fn get(&self, kind: &str, name: &str) -> Value {
        self.server.get(kind, NAMESPACE, name).unwrap().unwrap_or_default()
    }

    /// Returns the pod's condition of the readiness gate, or null.
    fn condition(&self, pod: &str) -> Value {
        condition(&self.get("pod", pod), READINESS_GATE)
    }

    #[track_caller]
    fn wait_ready(&self, pod: &str, status: &str) -> Value {
        eventually(self, &format!("{pod}: {status}"), || self.condition(pod)["status"] == status);
        self.condition(pod)
    }

    /// Returns the report of the node, or null.
    fn report(&self) -> Value {
        self.get("nodepolicystatus", "n1")
    }

    /// Returns the entry of a policy in the report, or null.
    fn reported(&self, policy: &str) -> Value {
        let report = self.report();
        let policies = report["status"]["policies"].as_array().map_or(&[][..], Vec::as_slice);
        policies.iter().find(|it| it["name"] == policy).cloned().unwrap_or_default()
    }

    fn generation(&self, policy: &str) -> Value {
        self.get("networkpolicy", policy)["metadata"]["generation"].clone()
    }
}

pub(crate) fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

/// `kubectl get --watch` with its output in a file.
struct Watch {
    _kubectl: KillOnDrop,
    file: std::path::PathBuf,
}

impl Watch {
    fn start(world: &World, pod: &str) -> Self {
        let file = world.server.directory().join("watched");
        let mut kubectl = world.server.kubectl_command().unwrap();
        kubectl.args(["get", "pod", pod, "-n", NAMESPACE, "--watch", "-o"]);
        kubectl.arg("jsonpath={.metadata.resourceVersion} {.status.conditions}{\"\\n\"}");
        let kubectl = kubectl.stdout(File::create(&file).unwrap()).stdin(Stdio::null());
        Self { _kubectl: KillOnDrop(kubectl.spawn().unwrap()), file }
    }

    fn seen(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap()
    }
}

#[test]
fn a_pod_is_ready_no_sooner_than_it_is_enforced() {
    const TEST: &str = "a_pod_is_ready_no_sooner_than_it_is_enforced";
    let Some(mut world) = World::new(TEST) else { return };
    world.add_with("server", gate);
    ["friend", "stranger"].into_iter().for_each(|name| world.add(name));
    world.policy("server", allow_from("server", "friend"));
    assert_eq!(world.condition("server"), Value::Null, "there is no agent");
    world.start_agent();
    let said = world.wait_ready("server", "True");
    assert_eq!(said["reason"], "Enforced", "{said}");
    assert!(!world.reaches("stranger", "server"), "from the moment when it is said");
    assert!(world.reaches("friend", "server"));
    assert_eq!(world.condition("friend"), Value::Null, "without the gate");
    // For a page from etcd, the API server would read the pods of all nodes.
    let requests = world.server.requests(USER).unwrap().into_iter();
    let own = requests.filter(|it| it.verb == "list" && it.uri.contains("nodeName"));
    let own: Vec<String> = own.map(|it| it.uri).collect();
    let is_cached = |uri: &String| uri.contains("resourceVersion=0") && !uri.contains("limit=");
    assert!(!own.is_empty() && own.iter().all(is_cached), "{own:?}");

    // The condition stays True while a new agent takes over, and while a policy changes.
    let watch = Watch::start(&world, "server");
    eventually(&world, "watched", || watch.seen().contains(READINESS_GATE));
    let (agent, node) = (world.agent.as_mut().unwrap(), &world.node);
    agent.restart(node).unwrap();
    world.wait("isolating the server", |status| isolated(status, "server"));
    world.policy("server", allow_from("server", "stranger"));
    world.becomes("stranger", "server", true);
    // Once the condition of the new pod is written, the restarted agent has written all conditions due before it.
    world.add_with("late", gate);
    world.wait_ready("late", "True");
    world.server.kubectl(&["label", "pod", "server", "-n", NAMESPACE, "end=here"]).unwrap();
    let version = world.get("pod", "server")["metadata"]["resourceVersion"].clone();
    eventually(&world, "watched to the end", || watch.seen().contains(version.as_str().unwrap()));
    assert!(!watch.seen().contains("\"False\""), "{}", watch.seen());
    drop(watch);
    assert_eq!(world.condition("server"), said, "not even written again");

    // No condition is written for a new pod while no agent runs.
    world.agent().end(Signal::SIGKILL);
    world.add_with("alone", gate);
    assert_eq!(world.condition("alone"), Value::Null);
    assert_eq!(world.condition("server")["status"], "True", "it is enforced all the same");
    let (agent, node) = (world.agent.as_mut().unwrap(), &world.node);
    agent.restart(node).unwrap();
    world.wait_ready("alone", "True");

    // A pod without its interface is no longer enforced.
    let gone = format!("link del {}\n", world.pod("late").host_interface());
    world.node.netns().ip(&gone).unwrap();
    let said = world.wait_ready("late", "False");
    assert_eq!(said["reason"], "NotJudged", "{said}");
    assert!(said["message"].as_str().unwrap().contains("interface"), "{said}");
}

#[test]
fn the_startup_taint_goes_once_policy_is_in_force() {
    const TEST: &str = "the_startup_taint_goes_once_policy_is_in_force";
    let Some(mut world) = World::new(TEST) else { return };
    world.add("server");
    let taints = |world: &World| -> Vec<String> {
        let node = world.get("node", "n1");
        let all = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        // The API server adds a taint of its own to a Node that has never been ready.
        let keys = all.iter().map(|taint| taint["key"].as_str().unwrap().to_owned());
        let mut keys: Vec<_> = keys.filter(|key| !key.starts_with("node.kubernetes.io/")).collect();
        keys.sort();
        keys
    };
    let taint = |world: &World, key: &str| {
        world.server.kubectl(&["taint", "node", "n1", &format!("{key}=:NoSchedule")]).unwrap();
    };
    taint(&world, "example.com/first");
    taint(&world, STARTUP_TAINT);
    // An agent without the right to list pods enforces nothing.
    let text = std::fs::read_to_string(rbac_file()).unwrap();
    let without =
        text.replace("[namespaces, nodes, pods, services]", "[namespaces, nodes, services]");
    assert_ne!(without, text);
    world.server.apply(&without).unwrap();
    world.start_agent();
    let refused = |status: &Value| status.to_string().contains("cannot list pods");
    world.agent().wait_for("refused", PATIENCE, refused).unwrap();
    // The report has `inSync: false`.
    eventually(&world, "reported", || world.report()["status"]["inSync"] == false);
    assert!(world.report()["status"]["problems"].to_string().contains("not in sync"));
    taint(&world, "example.com/meanwhile");
    let node = world.get("node", "n1");
    assert_eq!(taints(&world).len(), 3, "{node}");
    assert_eq!(condition(&node, NODE_CONDITION), Value::Null);

    world.server.apply(&text).unwrap();
    eventually(&world, "removed", || !taints(&world).iter().any(|key| key == STARTUP_TAINT));
    assert_eq!(taints(&world), ["example.com/first", "example.com/meanwhile"]);
    let of_node = |world: &World| condition(&world.get("node", "n1"), NODE_CONDITION);
    eventually(&world, "True", || of_node(&world)["status"] == "True");
    assert!(of_node(&world)["lastTransitionTime"].is_string());

    // A taint that is added again, as by a kubelet that registers the Node again, is removed again.
    taint(&world, STARTUP_TAINT);
    eventually(&world, "removed again", || taints(&world).len() == 2);
}

/// Checks that a starting agent renews the heartbeat of the Node's condition, and that `uninstall` removes the
/// condition.
#[test]
fn the_nodes_condition_has_a_heartbeat_and_goes_with_netpold() {
    const TEST: &str = "the_nodes_condition_has_a_heartbeat_and_goes_with_netpold";
    let Some(mut world) = World::new(TEST) else { return };
    world.add("server");
    world.start_agent();
    let of_node = |world: &World| condition(&world.get("node", "n1"), NODE_CONDITION);
    eventually(&world, "True", || of_node(&world)["status"] == "True");
    let before = of_node(&world);
    world.agent().end(Signal::SIGTERM);
    let old = "2020-01-01T00:00:00Z";
    let heartbeat = json!({ "type": NODE_CONDITION, "lastHeartbeatTime": old });
    let patch = json!({ "status": { "conditions": [heartbeat] } }).to_string();
    let arguments = ["patch", "node", "n1", "--subresource=status", "--type=strategic", "-p"];
    world.server.kubectl(&[&arguments[..], &[&patch]].concat()).unwrap();
    assert_eq!(of_node(&world)["lastHeartbeatTime"], old);
    let (agent, node) = (world.agent.as_mut().unwrap(), &world.node);
    agent.restart(node).unwrap();
    eventually(&world, "renewed", || of_node(&world)["lastHeartbeatTime"] != old);
    let after = of_node(&world);
    assert_eq!(after["status"], "True");
    assert_eq!(after["lastTransitionTime"], before["lastTransitionTime"]);

    world.agent().end(Signal::SIGTERM);
    let mut uninstall = world.node.command(binary()).unwrap();
    let kubeconfig = world.server.directory().join("agent.kubeconfig");
    without_twins(&mut uninstall).args(["uninstall", "--node-name", "n1", "--kubeconfig"]);
    uninstall.arg(kubeconfig).arg("--bpffs").arg(world.agent().bpffs());
    let done = uninstall.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(said.contains("removed: condition netpold.io/NetworkPolicyReady of Node n1"), "{said}");
    assert_eq!(of_node(&world), Value::Null);
    assert!(world.get("node", "n1")["status"]["addresses"].is_array(), "all else stays");
}

#[test]
fn a_report_follows_the_policies() {
    let Some(mut world) = World::new("a_report_follows_the_policies") else { return };
    ["server", "friend"].into_iter().for_each(|name| world.add(name));
    world.policy("server", allow_from("server", "friend"));
    world.policy("nobody", allow_from("nobody", "friend"));
    world.start_agent();
    let in_force = |world: &World| {
        let said = world.reported("server");
        said["observedGeneration"] == world.generation("server") && said["enforced"] == true
    };
    eventually(&world, "reported", || in_force(&world));
    let report = world.report();
    let uid = world.get("networkpolicy", "server")["metadata"]["uid"].clone();
    assert_eq!((&world.reported("server")["uid"], world.generation("server")), (&uid, json!(1)));
    assert_eq!(report["status"]["policies"].as_array().unwrap().len(), 1, "{report}");
    let owner = &report["metadata"]["ownerReferences"][0];
    let node = world.get("node", "n1");
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Node"), &node["metadata"]["uid"]));
    let status = &report["status"];
    let told = [&status["inSync"], &status["pods"], &status["podsEnforced"]];
    assert_eq!(told, [&json!(true), &json!(2), &json!(2)], "{report}");
    assert_eq!(status["agentVersion"], env!("CARGO_PKG_VERSION"));

    let patch = json!({ "spec": { "policyTypes": ["Ingress", "Egress"] } }).to_string();
    let arguments = ["patch", "networkpolicy", "server", "-n", NAMESPACE, "-p", &patch];
    world.server.kubectl(&arguments).unwrap();
    assert_eq!(world.generation("server"), json!(2));
    eventually(&world, "reported again", || in_force(&world));
    assert!(!world.reaches("server", "friend"), "it is in force");

    // No packet carries an IPv4-mapped address: the policy is in force and grants nothing.
    let mapped = json!({ "ipBlock": { "cidr": "::ffff:10.0.0.0/104" } });
    let server = json!({ "matchLabels": { "app": "server" } });
    let spec = json!({ "podSelector": server, "ingress": [{ "from": [mapped] }] });
    world.store(&[network_policy("server", &spec)]);
    eventually(&world, "reported with a message", || {
        in_force(&world) && world.reported("server")["message"].to_string().contains("IPv4-mapped")
    });

    // The agent recreates a deleted report in full, and renews a report without changes.
    world.server.kubectl(&["delete", "nodepolicystatus", "n1"]).unwrap();
    world.policy("server", allow_from("server", "friend"));
    eventually(&world, "made anew", || in_force(&world));
    eventually(&world, "whole", || !world.report()["status"]["agentVersion"].is_null());
    let renewed = world.report()["status"]["renewTime"].clone();
    eventually(&world, "renewed", || world.report()["status"]["renewTime"] != renewed);
}

/// A ClusterNetworkPolicy without an effect on connections of the test.
const NOTHING_DENIED: &str = "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: everywhere}
spec:
  tier: Baseline
  priority: 500
  subject: {namespaces: {}}
  egress: [{action: Deny, to: [{networks: [192.0.2.1/32]}]}]
";

/// Checks the condition of a policy, the one that deployment pipelines wait for, with three real agents and a real
/// controller.
#[test]
fn a_policy_is_enforcing_when_every_node_enforces_it() {
    let Some(mut world) = World::new("a_policy_is_enforcing_when_every_node_enforces_it") else {
        return;
    };
    crate::apiserver::cluster_policies::install(&world);
    ["server", "friend"].into_iter().for_each(|name| world.add(name));
    world.start_agent();
    let others = [world.add_node(2, "server"), world.add_node(3, "server")];
    // Uses administrator rights; `agent/tests/server/controller` covers the controller's RBAC.
    let mut controller = world.node.command(binary()).unwrap();
    controller.args(["controller", "--identity", "one", "--webhook-listen", "127.0.0.1:8443"]);
    controller.arg("--kubeconfig").arg(world.server.admin());
    let _controller = KillOnDrop(controller.spawn().unwrap());

    world.policy("server", allow_from("server", "friend"));
    let get = ["networkpolicystatus", "server", "-n", NAMESPACE, "--ignore-not-found"];
    let of = |world: &World| {
        let said = world.server.kubectl(&[&["get", "-o", "json"], &get[..]].concat()).unwrap();
        serde_json::from_str::<Value>(&said).unwrap_or_default()
    };
    let says = |world: &World, generation: u64, status: &str, enforced: u64| {
        let object = of(world);
        let enforcing = condition(&object, "Enforcing");
        object["status"]["policyGeneration"] == generation
            && enforcing["status"] == status
            && object["status"]["nodes"]
                == json!({ "desired": 3, "enforced": enforced, "failed": 0 })
    };
    let wait = ["wait", "--for=condition=Enforcing", "networkpolicystatus/server", "--timeout=90s"];
    let wait = [&wait[..], &["-n", NAMESPACE]].concat();
    eventually(&world, "a status of three nodes", || says(&world, 1, "True", 3));
    world.server.kubectl(&wait).unwrap();
    assert!(world.reaches("friend", "server"));
    assert!(others.iter().all(|other| world.reaches_pod("friend", &other.pod)));

    // So is a ClusterNetworkPolicy, by its own conditions.
    world.server.apply(NOTHING_DENIED).unwrap();
    let wait_cluster =
        ["wait", "--for=condition=Enforcing", "clusternetworkpolicy/everywhere", "--timeout=90s"];
    world.server.kubectl(&wait_cluster).unwrap();
    let object = world.get("clusternetworkpolicy", "everywhere");
    assert_eq!(condition(&object, "Enforcing")["message"], "in force on 3 of 3 nodes");

    // A stopped agent does not enforce the edit, so the condition becomes False.
    let signal = |signal: Signal| {
        let pid = nix::unistd::Pid::from_raw(others[0].agent.pid().cast_signed());
        nix::sys::signal::kill(pid, signal).unwrap();
    };
    signal(Signal::SIGSTOP);
    world.policy("server", allow_from("server", "nobody"));
    eventually(&world, "False", || says(&world, 2, "False", 2));
    let table = world.server.kubectl(&[&["get"], &get[..]].concat()).unwrap();
    let row: Vec<_> = table.lines().last().unwrap().split_whitespace().take(5).collect();
    assert_eq!(row, ["server", "False", "2", "3", "0"], "{table}");
    let mut waiting = world.server.kubectl_command().unwrap();
    let mut waiting = KillOnDrop(waiting.args(&wait).stdout(Stdio::null()).spawn().unwrap());
    std::thread::sleep(Duration::from_secs(3));
    assert!(says(&world, 2, "False", 2), "{}", of(&world));
    assert!(waiting.0.try_wait().unwrap().is_none(), "kubectl waits");
    assert!(!world.reaches("friend", "server"));
    assert!(world.reaches_pod("friend", &others[0].pod), "the former policy is in force there");
    signal(Signal::SIGCONT);
    assert!(waiting.0.wait().unwrap().success(), "kubectl has waited for this");
    assert!(says(&world, 2, "True", 3), "{}", of(&world));
    assert!(!world.reaches_pod("friend", &others[0].pod));
}

/// A server refuses every write: enforcement continues, each refusal is logged once, and the writes succeed once
/// allowed.
#[test]
fn an_agent_that_may_say_nothing_enforces() {
    let Some(mut world) = World::new("an_agent_that_may_say_nothing_enforces") else { return };
    world.add_with("server", gate);
    world.add("stranger");
    world.policy("server", json!({ "podSelector": { "matchLabels": { "app": "server" } } }));
    let text = std::fs::read_to_string(rbac_file()).unwrap();
    let mute = text.replace("verbs: [patch]", "verbs: [get]");
    assert_ne!(mute, text);
    world.server.apply(&mute).unwrap();
    world.server.kubectl(&["delete", "crd", "nodepolicystatuses.netpold.io"]).unwrap();
    world.start_agent();
    world.wait("isolating the server", |status| isolated(status, "server"));
    let refused = |world: &World, what: &str| {
        let requests = world.server.requests(USER).unwrap();
        requests.iter().filter(|r| r.verb == "patch" && r.resource == what && r.code >= 400).count()
    };
    let all = ["pods/status", "nodes/status", "nodepolicystatuses/status"];
    eventually(&world, "refused", || all.iter().all(|what| refused(&world, what) >= 2));
    assert!(!world.reaches("stranger", "server"));
    assert_eq!(world.condition("server"), Value::Null);
    let log = world.agent.as_ref().unwrap().log();
    for what in ["cannot patch pods/status", "cannot patch nodes/status"] {
        assert_eq!(log.matches(what).count(), 1, "{what}\n{log}");
    }
    world.server.apply(&text).unwrap();
    world.wait_ready("server", "True");
}

/// The agent writes the condition of each pod once, also on a full node.
#[test]
fn a_full_node_is_told_once() {
    const PODS: usize = 110;
    let Some(mut world) = World::new("a_full_node_is_told_once") else { return };
    let pods: Vec<Value> = (0..PODS)
        .map(|number| {
            let containers = json!([{ "name": "main", "image": "example/main" }]);
            let mut pod = json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": { "namespace": NAMESPACE, "name": format!("pod-{number}") },
                // NetworkPolicies do not apply to pods on the host network.
                "spec": { "nodeName": "n1", "hostNetwork": true, "containers": containers },
            });
            gate(&mut pod);
            pod
        })
        .collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": pods }).to_string();
    world.server.kubectl_with(&["create", "--validate=false", "-f", "-"], &list).unwrap();
    let began = Instant::now();
    world.start_agent();
    let told = |world: &World| {
        let pods = world.get("pod", "");
        let pods = pods["items"].as_array().unwrap().clone();
        pods.iter().filter(|pod| condition(pod, READINESS_GATE)["status"] == "True").count()
    };
    eventually(&world, "all told", || told(&world) == PODS);
    println!("{PODS} pods told in {:?}", began.elapsed());
    let requests = world.server.requests(USER).unwrap();
    assert_eq!(requests.iter().filter(|request| request.resource == "pods/status").count(), PODS);
}

/// Checks that `deploy/base/crds.yaml` has every field of `netpold_api::crd`: a server drops unknown fields.
#[test]
fn every_field_of_both_kinds_is_kept() {
    let Some(world) = World::new("every_field_of_both_kinds_is_kept") else { return };
    let time = json!("2026-11-23T01:02:03Z");
    let policy = PolicyOnNode {
        namespace: NAMESPACE.into(),
        name: "server".into(),
        uid: "0ca9fe4d".into(),
        observed_generation: 7,
        pods: 3,
        enforced: true,
        message: "spec.ingress[0] grants nothing".into(),
    };
    let report = NodeReport {
        agent_version: "0.1.0".into(),
        renew_time: serde_json::from_value(time.clone()).unwrap(),
        desired_revision: i64::from(i32::MAX) + 2,
        enforced_revision: i64::from(i32::MAX) + 1,
        in_sync: true,
        pods: 5,
        pods_enforced: 4,
        policies: vec![policy],
        policies_omitted: 2,
        problems: vec!["something is wrong".into()],
    };
    let metadata = |name: &str| -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        serde_json::from_value(json!({ "name": name })).unwrap()
    };
    let node = NodePolicyStatus { metadata: metadata("n1"), status: Some(report) };
    let read: NodePolicyStatus = kept(&world, "NodePolicyStatus", &node);
    assert_eq!(read.status, node.status);

    let condition = json!({
        "type": "Enforcing",
        "status": "False",
        "observedGeneration": 7,
        "lastTransitionTime": time,
        "reason": "NodesBehind",
        "message": "One node is behind.",
    });
    let failure = NodeFailure {
        node: "n1".into(),
        reason: "AgentGone".into(),
        message: "No word since 01:02:03.".into(),
    };
    let report = PolicyReport {
        policy_generation: 7,
        observed_generation: 1,
        nodes: NodeCounts { desired: 3, enforced: 2, failed: 1 },
        conditions: vec![serde_json::from_value(condition).unwrap()],
        not_enforced: vec![failure],
    };
    let policy = NetworkPolicyStatus { metadata: metadata("server"), status: Some(report) };
    let read: NetworkPolicyStatus = kept(&world, "NetworkPolicyStatus", &policy);
    assert_eq!(read.status, policy.status);
}

/// Writes an object and reads it back.
fn kept<T: Serialize + DeserializeOwned>(world: &World, kind: &str, object: &T) -> T {
    let mut json = serde_json::to_value(object).unwrap();
    assert!(no_blank(&json["status"]), "a field is empty: {json}");
    json["apiVersion"] = json!("netpold.io/v1alpha1");
    json["kind"] = json!(kind);
    json["metadata"]["namespace"] = json!(NAMESPACE);
    let name = json["metadata"]["name"].as_str().unwrap().to_owned();
    world.server.apply(&json.to_string()).unwrap();
    let patch = json!({ "status": json["status"] }).to_string();
    let arguments = ["patch", kind, &name, "-n", NAMESPACE, "--subresource=status"];
    world.server.kubectl(&[&arguments[..], &["--type=merge", "-p", &patch]].concat()).unwrap();
    let read = world.get(&kind.to_lowercase(), &name);
    assert_eq!(read["status"], json["status"]);
    serde_json::from_value(read).unwrap()
}

/// Returns whether every field has a value other than its default.
fn no_blank(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty() && fields.values().all(no_blank),
        Value::Array(items) => !items.is_empty() && items.iter().all(no_blank),
        Value::String(text) => !text.is_empty(),
        Value::Number(number) => number.as_i64() != Some(0),
        Value::Bool(value) => *value,
        Value::Null => false,
    }
}
