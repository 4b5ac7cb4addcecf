//! Use of rules by traffic, as listed by `netpold rules`.

use std::time::{Duration, Instant};

use netpold_testbed::cluster::{PATIENCE, PORT, TestCluster};
use netpold_testbed::{Cni, ProbeProtocol, require_root};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::traffic::udp::{receive, socket};

fn rules(cluster: &TestCluster, arguments: &[&str]) -> Vec<Value> {
    let rules = [&["rules", "-o", "json"], arguments].concat();
    let output = cluster.agents[0].command(&rules).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    answer["rules"].as_array().unwrap().clone()
}

/// Waits until the rules have these numbers of flows.
#[track_caller]
fn flows(cluster: &TestCluster, expected: &[u64]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let rules = rules(cluster, &[]);
        let flows: Vec<u64> = rules.iter().map(|rule| rule["flows"].as_u64().unwrap()).collect();
        let used = rules.iter().map(|rule| rule["last_used"].is_u64());
        if flows == expected {
            assert!(used.eq(expected.iter().map(|flows| *flows > 0)), "{rules:?}");
            return;
        }
        assert!(Instant::now() < deadline, "{flows:?} are not {expected:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_flow_marks_its_rule_and_no_other() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    let from = |app: &str| json!([{ "podSelector": { "matchLabels": { "app": app } } }]);
    let policy = json!({
        "podSelector": { "matchLabels": { "app": "server" } },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            { "from": from("friend"), "ports": [{ "protocol": "UDP", "port": 5353 }] },
            { "from": from("friend"), "ports": [{ "port": PORT }] },
            { "from": from("stranger") },
        ],
        "egress": [{ "to": from("friend") }],
    });
    cluster.policy("rules", policy).enforce();
    flows(&cluster, &[0, 0, 0, 0]);
    // One datagram and its answer, which take less time than a sweep.
    let to = cluster.pod("server").ip4().unwrap();
    let from = cluster.pod("friend").ip4().unwrap();
    let server = socket(cluster.pod("server"), to, 5353);
    let friend = socket(cluster.pod("friend"), from, 4000);
    friend.send_to(b"?", (to, 5353)).unwrap();
    let (_, asked) = receive(&server).unwrap();
    server.send_to(b"!", asked).unwrap();
    assert!(receive(&friend).is_some());
    flows(&cluster, &[1, 0, 0, 0]);
    let probe = |cluster: &TestCluster| {
        cluster.pod("friend").probe(ProbeProtocol::Tcp, to, PORT, PATIENCE).connected()
    };
    assert!(probe(&cluster));
    flows(&cluster, &[1, 1, 0, 0]);

    // The next agent continues the counts; a killed agent has not saved the last minute.
    cluster.agents[0].end(Signal::SIGTERM);
    assert!(probe(&cluster), "enforced without an agent, and seen by the next");
    cluster.restart(0);
    flows(&cluster, &[1, 2, 0, 0]);
    assert_eq!(rules(&cluster, &["--unused", "0s"]).len(), 4);
    assert_eq!(rules(&cluster, &["--unused", "1d"]), [] as [Value; 0], "not watched that long");
    assert_eq!(rules(&cluster, &["-n", "elsewhere"]), [] as [Value; 0]);
}
