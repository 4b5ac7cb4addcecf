//! Policies in audit mode (`netpold.io/enforcement: audit`): everything passes, and would-be denials are reported.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{NAMESPACE, PATIENCE, TestCluster};
use netpold_testbed::{Cni, require_root};
use serde_json::{Value, json};

/// Returns policies where only friends reach the server, and strangers reach no friend.
fn policies(enforcement: &str) -> Vec<Value> {
    let annotations = json!({ "netpold.io/enforcement": enforcement });
    let app = |app: &str| json!({ "matchLabels": { "app": app } });
    let pods = |of: &str| json!({ "namespaceSelector": {}, "podSelector": app(of) });
    vec![
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": { "namespace": NAMESPACE, "name": "friends", "annotations": annotations },
            "spec": {
                "podSelector": app("server"),
                "ingress": [{ "from": [{ "podSelector": app("friend") }] }],
            },
        }),
        json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha2",
            "kind": "ClusterNetworkPolicy",
            "metadata": { "name": "strangers", "annotations": annotations },
            "spec": {
                "tier": "Admin",
                "priority": 10,
                "subject": { "pods": pods("stranger") },
                "egress": [{ "action": "Deny", "to": [{ "pods": pods("friend") }] }],
            },
        }),
    ]
}

/// Returns pod, direction, protocol and peer of each reported would-be denial. The latest have a text, which must
/// name the policy.
fn audited(cluster: &TestCluster) -> BTreeSet<(String, String, String, IpAddr)> {
    let status = cluster.agents[0].status().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = status["recent_drops"].as_array().unwrap().iter();
    all.filter(|drop| drop["reason"] == "audit")
        .map(|drop| {
            let (pod, direction) = (text(&drop["pod"]), text(&drop["direction"]));
            let packet = text(&drop["packet"]);
            let (protocol, sides) = packet.split_once(' ').unwrap();
            let (from, to) = sides.split_once(" to ").unwrap();
            let remote = if direction == "ingress" { from } else { to };
            let socket = remote.parse::<std::net::SocketAddr>();
            let remote = socket.map_or_else(|_| remote.parse().unwrap(), |it| it.ip());
            let why = drop["explanation"].to_string();
            let policy = if direction == "ingress" { "shop/friends" } else { "strangers" };
            assert!(why == "[]" || why.contains(policy) && why.contains("denied"), "{drop}");
            (pod, direction, protocol.to_owned(), remote)
        })
        .collect()
}

#[test]
fn what_policies_on_trial_would_deny_passes_and_is_told() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    cluster.objects = policies("audit");
    cluster.enforce();
    let status = cluster.agents[0].status().unwrap();
    let isolated = status["endpoints"].as_array().unwrap().iter();
    assert!(isolated.clone().all(|endpoint| endpoint["isolated"] == json!([])), "{status}");
    for (from, to) in [("friend", "server"), ("stranger", "server"), ("stranger", "friend")] {
        cluster.reaches(from, to);
    }
    let expected: BTreeSet<_> =
        [("shop/server", "ingress", "stranger"), ("shop/stranger", "egress", "friend")]
            .into_iter()
            .flat_map(|(pod, direction, other)| {
                let addresses = cluster.pod(other).addresses().to_vec();
                addresses.into_iter().flat_map(move |address| {
                    let icmp = if address.is_ipv4() { "ICMP" } else { "ICMPv6" };
                    [icmp, "TCP", "UDP", "SCTP"].map(|protocol| {
                        (pod.to_owned(), direction.to_owned(), protocol.to_owned(), address)
                    })
                })
            })
            .collect();
    let deadline = Instant::now() + PATIENCE;
    while audited(&cluster) != expected && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(audited(&cluster), expected);
    let status = cluster.agents[0].status().unwrap();
    let latest = &status["recent_drops"][0];
    assert_ne!(latest["explanation"], json!([]), "{latest}");

    // The same policies, enforced, drop exactly these flows.
    cluster.objects = policies("enforce");
    cluster.enforce();
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    cluster.denied("stranger", "friend");
    assert_eq!(audited(&cluster), expected, "nothing else was told");
}
