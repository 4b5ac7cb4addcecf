//! Connections between pods of two nodes: both agents report each connection, and the command lists it once.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use netpold_testbed::cluster::{MOMENT, eventually};
use netpold_testbed::{
    Agent, AgentOptions, Cni, Kubelet, PodSpec, ProbeProtocol, TestFlow, TestNode, link_nodes,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{agent_pod, container, netpold, running, stderr};
use crate::apiserver::world::{
    NAMESPACE, PATIENCE, PORT, World, allow_from, binary, isolated, network_policy,
};

/// Address and port of both ends, in the format of the command.
type Ends = (String, String);

/// Returns the ends of all connections in one list of the output, with duplicates.
fn ends(groups: &Value) -> Vec<Ends> {
    let groups = groups.as_array().unwrap().iter();
    let all = groups.flat_map(|group| group["connections"].as_array().unwrap());
    let end = |it: &Value, side: &str| it[side].as_str().unwrap().to_owned();
    all.map(|it| (end(it, "from"), end(it, "to"))).collect()
}

/// Returns the connections among `ours` that a change would cut.
fn cuts(world: &World, policy: &Value, ours: &BTreeSet<Ends>) -> Vec<Ends> {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("change.json");
    fs::write(&file, policy.to_string()).unwrap();
    let change = ["diff", "-f", file.to_str().unwrap(), "--live", "-o", "json"];
    let output = netpold(&world.server, &world.server.admin(), &change);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let diff: Value = serde_json::from_slice(&output.stdout).unwrap();
    let live = &diff["live"];
    for node in ["node n1:", "node n6:"] {
        assert!(!live["problems"].to_string().contains(node), "{live}");
    }
    ends(&live["cut"]).into_iter().filter(|it| ours.contains(it)).collect()
}

/// Adds a second node with a pod `far`; the pod `near` is on the first node.
pub(super) fn connections_are_named_once(world: &mut World) {
    let node = TestNode::new("n6", Cni::Ptp, "10.9.2.0/24", "fd00:9:2::/64").unwrap();
    [&world.control, &world.node].into_iter().for_each(|it| link_nodes(it, &node).unwrap());
    world.create(node.manifest());
    let kubeconfig = world.server.directory().join("agent.kubeconfig");
    let options = AgentOptions {
        binary: binary().into(),
        manifests: PathBuf::new(),
        arguments: vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()],
    };
    let mut agent = Agent::start(&node, options).unwrap();
    let kubelet = Kubelet::start(&node).unwrap();
    world.create(agent_pod("netpold-f", "n6", running()));
    kubelet.runs("netpold-system/netpold-f/netpold", container(&agent.socket()));

    world.add("near");
    let far = node.add_pod(&PodSpec::new(NAMESPACE, "far").label("app", "far")).unwrap();
    far.serve(ProbeProtocol::Tcp, PORT).unwrap();
    world.create(far.manifest());
    world.policy("far", allow_from("far", "near"));
    let to_far = json!({ "podSelector": { "matchLabels": { "app": "far" } } });
    let near = |egress: Value| {
        json!({
            "podSelector": { "matchLabels": { "app": "near" } },
            "policyTypes": ["Egress"],
            "egress": egress,
        })
    };
    // Isolates the sender, so that its agent has a conntrack entry too.
    world.policy("near", near(json!([{ "to": [to_far] }])));
    let enforced = |status: &Value| Agent::enforces(status) && isolated(status, "far");
    agent.wait_for("isolating far", PATIENCE, enforced).unwrap();
    world.wait("isolating near", |status| {
        let all = status["endpoints"].as_array().unwrap();
        all.iter().any(|it| it["pod"]["name"] == "near" && it["isolated"] == json!(["egress"]))
    });

    let open = |address: &std::net::IpAddr| -> (Ends, TestFlow) {
        let to = SocketAddr::new(*address, PORT);
        let mut flow = world.pod("near").open_flow(ProbeProtocol::Tcp, to, PATIENCE).unwrap();
        assert!(flow.ping(PATIENCE));
        ((flow.local().unwrap().to_string(), to.to_string()), flow)
    };
    let mut flows: Vec<(Ends, TestFlow)> = far.addresses().iter().map(open).collect();
    let ours: BTreeSet<Ends> = flows.iter().map(|(ends, _)| ends.clone()).collect();
    assert_eq!(ours.len(), 2, "over both families");
    let all: Vec<Ends> = ours.iter().cloned().collect();
    let sorted = |mut found: Vec<Ends>| {
        found.sort();
        found
    };
    // Changes the sender's policy, then the receiver's.
    assert_eq!(sorted(cuts(world, &network_policy("near", &near(json!([]))), &ours)), all);
    let closed = json!({ "podSelector": { "matchLabels": { "app": "far" } } });
    assert_eq!(sorted(cuts(world, &network_policy("far", &closed), &ours)), all);
    let same = network_policy("far", &json!({ "podSelector": {}, "ingress": [{}] }));
    assert_eq!(cuts(world, &same, &ours), []);
    assert!(flows.iter_mut().all(|(_, flow)| flow.ping(PATIENCE)), "diff changes nothing");
    world.policy("far", closed);
    let cut = || !flows.iter_mut().any(|(_, flow)| flow.ping(MOMENT));
    eventually(PATIENCE, cut, || format!("the named connections are cut\n{}", agent.log()));
}
