//! Flows that stay open while policies change and time passes.

use std::time::{Duration, Instant};

use netpold_testbed::cluster::{MOMENT, PATIENCE, TestCluster, allow_from, allow_to, isolate};
use netpold_testbed::{Cni, ProbeProtocol, TestFlow, require_root};
use serde_json::json;

const BOTH: [&str; 2] = ["Ingress", "Egress"];

/// Opens TCP and UDP flows to the server in both families.
fn flows(cluster: &TestCluster, from: &str) -> Vec<(String, TestFlow)> {
    let mut flows = Vec::new();
    for to in cluster.pod("server").addresses() {
        for protocol in [ProbeProtocol::Tcp, ProbeProtocol::Udp] {
            flows.push((format!("{protocol} to {to}"), cluster.flow(from, protocol, *to)));
        }
    }
    flows
}

#[track_caller]
fn go_on(flows: &mut [(String, TestFlow)], why: &str) {
    for (name, flow) in flows {
        assert!(flow.ping(PATIENCE), "{name} goes on: {why}");
    }
}

#[track_caller]
fn are_cut(flows: &mut [(String, TestFlow)], why: &str) {
    for (name, flow) in flows {
        assert!(!flow.ping(MOMENT), "{name} is cut: {why}");
    }
}

#[test]
fn ingress_policy_cuts_and_keeps() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client"]);
    cluster.enforce();
    let mut flows = flows(&cluster, "client");
    cluster.policy("p", allow_from("server", "client")).enforce();
    go_on(&mut flows, "a policy came that allows it");
    let any = json!({ "podSelector": {}, "ingress": [{}] });
    cluster.policy("q", any).without_policy("p").enforce();
    go_on(&mut flows, "another policy allows it");
    cluster.policy("q", isolate("server", &["Ingress"])).enforce();
    are_cut(&mut flows, "nothing allows it");
    cluster.policy("p", allow_from("server", "client")).enforce();
    go_on(&mut flows, "it is allowed again");
}

#[test]
fn egress_policy_cuts_and_keeps() {
    require_root!();
    let mut cluster = TestCluster::two().with_pods(&["server"]);
    cluster.add(1, "client");
    cluster.policy("p", isolate("server", &BOTH)).policy("q", allow_from("server", "client"));
    cluster.enforce();
    let mut flows = flows(&cluster, "client");
    cluster.policy("c", allow_to("client", "server")).enforce();
    go_on(&mut flows, "the client may talk to the server");
    cluster.policy("c", allow_to("client", "client")).enforce();
    are_cut(&mut flows, "the client may talk to others only");
    cluster.policy("d", allow_to("client", "server")).enforce();
    go_on(&mut flows, "both together allow it");
}

#[test]
fn replies_reach_a_client_that_becomes_isolated() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Bridge).with_pods(&["server", "client"]);
    cluster.enforce();
    let mut flows = flows(&cluster, "client");
    cluster.policy("p", isolate("client", &["Ingress"])).enforce();
    go_on(&mut flows, "the client began it");
    cluster.denied("server", "client");
}

/// Outlasts a sweep of conntrack, which the agent runs every ten seconds.
#[test]
fn flows_survive_sweeps() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client"]);
    cluster.policy("p", isolate("client", &BOTH)).policy("q", allow_to("client", "server"));
    cluster.policy("s", isolate("server", &["Egress"])).enforce();
    let (mut busy, mut quiet) = (flows(&cluster, "client"), flows(&cluster, "client"));
    let two_sweeps = Instant::now() + Duration::from_secs(22);
    while Instant::now() < two_sweeps {
        go_on(&mut busy, "it never stopped");
        std::thread::sleep(Duration::from_millis(100));
    }
    go_on(&mut quiet, "it is within its time-out");
    go_on(&mut busy, "it never stopped");
    let status = cluster.agents[0].status().unwrap();
    assert!(status["conntrack"][0]["used"].as_u64() >= Some(4), "{}", status["conntrack"]);
}
