//! `netpold learn`: from traffic under a policy in audit mode to enforced policies.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{NAMESPACE, PATIENCE, PORT, TestCluster, binary, eventually};
use netpold_testbed::{ProbeProtocol, require_root, without_twins};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

fn learn(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    without_twins(&mut command)
        .arg("learn")
        .args(["-n", NAMESPACE])
        .args(arguments)
        .output()
        .unwrap()
}

/// Returns the records of a node's agent.
fn recorded(cluster: &TestCluster, node: usize) -> Value {
    let socket = cluster.agents[node].socket().to_str().unwrap().to_owned();
    let output = learn(&["-o", "json", "--socket", &socket]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns workload, direction, peer and port of each record.
fn kinds(answer: &Value) -> Vec<String> {
    let app = |workload: &Value| workload["labels"]["app"].as_str().unwrap_or("?").to_owned();
    let flows = answer["flows"].as_array().unwrap().iter();
    let kinds = flows.map(|flow| {
        let peer = &flow["peer"];
        let peer = peer.get("workload").map_or_else(|| peer.to_string(), app);
        let direction = flow["direction"].as_str().unwrap();
        let (protocol, port) = (flow["protocol"].as_str().unwrap(), &flow["port"]);
        format!("{} {direction} {peer} {protocol} {port}", app(&flow["workload"]))
    });
    kinds.collect()
}

fn connects(cluster: &TestCluster, from: &str, to: &str) -> bool {
    let address = cluster.pod(to).ip4().unwrap();
    cluster.pod(from).probe(ProbeProtocol::Tcp, address, PORT, PATIENCE).connected()
}

/// Writes the answers of both nodes to files.
fn files(cluster: &TestCluster) -> Vec<PathBuf> {
    let file = |node: usize| {
        let file = cluster.directory.path().join(format!("recorded-{node}"));
        std::fs::write(&file, recorded(cluster, node).to_string()).unwrap();
        file
    };
    (0..cluster.agents.len()).map(file).collect()
}

#[test]
fn policies_are_learned_and_put_in_force() {
    require_root!();
    let mut cluster = TestCluster::two().with_pods(&["server", "client", "stranger"]);
    cluster.add(1, "far");
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    let prepare = learn(&["--prepare"]);
    let prepare: Value = serde_saphyr::from_slice(&prepare.stdout).unwrap();
    cluster.objects = vec![prepare];
    cluster.enforce();
    assert!(connects(&cluster, "client", "server") && connects(&cluster, "far", "server"));
    let expected = [
        [
            "client egress server TCP 80",
            "server ingress client TCP 80",
            "server ingress far TCP 80",
        ],
        ["far egress server TCP 80", "", ""],
    ];
    let expected =
        expected.map(|of| of.into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>());
    let now = || [0, 1].map(|node| kinds(&recorded(&cluster, node)));
    eventually(PATIENCE, || now() == expected, || format!("{:?} is not {expected:?}", now()));
    let before = recorded(&cluster, 0)["flows"].clone();
    assert!(before.as_array().unwrap().iter().all(|flow| flow["on_trial"] == 1), "{before}");

    // The next agent continues with the same records.
    cluster.agents[0].end(Signal::SIGTERM);
    cluster.restart(0);
    assert_eq!(recorded(&cluster, 0)["flows"], before);

    let files: Vec<String> = files(&cluster).iter().map(|f| f.display().to_string()).collect();
    let manifests = cluster.manifests.directory().display().to_string();
    let output = learn(&["--manifests", &manifests, "--records", &files.join(","), "-o", "json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.as_ref()), (Some(0), ""));
    let learned: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&learned["denied"], &learned["unseen"]), (&json!([]), &json!([])), "{learned}");
    let mut policies = learned["policies"]["items"].as_array().unwrap().clone();
    assert_eq!(policies.len(), 4, "{learned}");

    // In audit mode the learned policies deny nothing; enforced, they deny flows that were not recorded.
    cluster.objects = policies.clone();
    cluster.enforce();
    assert!(connects(&cluster, "client", "server") && connects(&cluster, "stranger", "far"));
    for policy in &mut policies {
        policy["metadata"].as_object_mut().unwrap().remove("annotations");
    }
    cluster.objects = policies;
    cluster.enforce();
    assert!(connects(&cluster, "client", "server") && connects(&cluster, "far", "server"));
    cluster.denied("stranger", "server");
    cluster.denied("server", "client");
    cluster.denied("stranger", "far");

    // A denied flow is recorded as denied, and yields no rule.
    let deadline = Instant::now() + PATIENCE;
    let denied = loop {
        let answer = recorded(&cluster, 0);
        let flows = answer["flows"].as_array().unwrap().iter();
        let denied: Vec<Value> = flows.filter(|flow| flow["flows"] == 0).cloned().collect();
        if !denied.is_empty() {
            break denied;
        }
        assert!(Instant::now() < deadline, "no denied flow is recorded: {answer}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(denied.iter().all(|flow| flow["denied"].as_u64().unwrap() > 0), "{denied:?}");
    let socket = cluster.agents[0].socket().to_str().unwrap().to_owned();
    let output = learn(&["--manifests", &manifests, "--socket", &socket]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("# Denied when observed, and still denied:"), "{text}");
}
