//! Flows of pods that no policy selects: recorded if the namespace has the label, without a change of enforcement.

use std::time::Duration;

use netpold_testbed::cluster::{NAMESPACE, PATIENCE, PORT, TestCluster, eventually, isolate};
use netpold_testbed::{Cni, PodSpec, ProbeProtocol, namespace, require_root};
use serde_json::Value;

use crate::traffic::observe::{events, kind};
use crate::traffic::udp::socket;

/// Port of datagrams that are sent while no namespace has the label for records.
const BEFORE: u16 = 7777;
const PROTOCOLS: [ProbeProtocol; 4] =
    [ProbeProtocol::Tcp, ProbeProtocol::Udp, ProbeProtocol::Sctp, ProbeProtocol::Icmp];

fn probe(cluster: &TestCluster, from: &str, protocol: ProbeProtocol, patience: Duration) -> bool {
    let to = cluster.pod("server").ip4().unwrap();
    cluster.pod(from).probe(protocol, to, PORT, patience).connected()
}

fn flows(cluster: &TestCluster) -> Vec<Value> {
    events(cluster, &["--verdict", "allow"])
}

/// Returns the pods of the status that are observed.
fn observed(cluster: &TestCluster) -> Vec<String> {
    let output = cluster.agents[0].command(&["status", "-o", "json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pods = status["endpoints"].as_array().unwrap().iter();
    let pods = pods.filter(|pod| pod["observed"] == true);
    pods.map(|pod| pod["pod"]["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn flows_without_policy_are_recorded_where_the_label_asks_for_them() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client"]);
    cluster.add_as(0, PodSpec::new("elsewhere", "stranger").label("app", "stranger"));
    cluster.objects = vec![namespace("elsewhere", &[])];
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    cluster.enforce();
    let (client, server) =
        (cluster.pod("client").ip4().unwrap(), cluster.pod("server").ip4().unwrap());
    let early = socket(cluster.pod("client"), client, 0);
    early.send_to(b"x", (server, BEFORE)).unwrap();
    assert!(probe(&cluster, "client", ProbeProtocol::Tcp, PATIENCE));
    assert_eq!(observed(&cluster), [""; 0]);

    cluster.labels = vec![("netpold.io/observe", "flows")];
    cluster.enforce();
    assert_eq!(observed(&cluster), ["client", "server"]);
    for protocol in PROTOCOLS {
        assert!(probe(&cluster, "client", protocol, PATIENCE), "{protocol}");
    }
    assert!(probe(&cluster, "stranger", ProbeProtocol::Tcp, PATIENCE));
    let of = |pod: &str, direction: &str, peer: &str, protocol: ProbeProtocol| {
        let owned = str::to_owned;
        (owned("allow"), owned(pod), owned(direction), owned(peer), protocol.to_string())
    };
    let both = |protocol| {
        [of("server", "ingress", "client", protocol), of("client", "egress", "server", protocol)]
    };
    let mut expected: Vec<_> = PROTOCOLS.into_iter().flat_map(both).collect();
    expected.push(of("server", "ingress", "stranger", ProbeProtocol::Tcp));
    let seen = || flows(&cluster).iter().map(kind).collect::<Vec<_>>();
    let all = || expected.iter().all(|kind| seen().contains(kind));
    eventually(PATIENCE, all, || format!("{expected:#?} are not all in {:#?}", flows(&cluster)));
    for event in flows(&cluster) {
        let pod = event["pod"]["name"].as_str().unwrap();
        assert_ne!(pod, "stranger", "its namespace has no label: {event}");
        assert_ne!(event["port"], BEFORE, "sent before the label: {event}");
        if event["reason"] != "node" && event["pod"]["namespace"] == NAMESPACE {
            assert_eq!(event["reason"], "not_isolated", "{event}");
            assert!(event["explanation"].to_string().contains("no policy"), "{event}");
            // Only the client and the stranger begin flows.
            let direction = if pod == "server" { "ingress" } else { "egress" };
            assert_eq!(event["direction"], direction, "{event}");
        }
    }

    // A policy removes the pod from the observed ones, and is enforced as usual.
    cluster.policy("server", isolate("server", &["Ingress"]));
    cluster.enforce();
    assert_eq!(observed(&cluster), ["client"]);
    for protocol in PROTOCOLS {
        assert!(!probe(&cluster, "client", protocol, Duration::from_millis(300)), "{protocol}");
    }
}
