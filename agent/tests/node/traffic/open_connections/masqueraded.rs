//! Connections with the node's address to a Service with backends outside: the kernel's conntrack holds the backend
//! of each.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;

use netpold_testbed::cluster::{MOMENT, PATIENCE, PORT, TestCluster, network_policy};
use netpold_testbed::services::{SERVICE_PORT, TestService, provide};
use netpold_testbed::{Cni, ProbeProtocol, Proxy, TestFlow, TestNode, link_nodes, require_root};
use serde_json::{Value, json};

use super::{Pair, netpold, pairs, spec};

/// Enough connections that both backends get some, except with probability 1 in 2^23.
const CONNECTIONS: usize = 24;

fn blocks(nodes: &[TestNode]) -> Vec<Value> {
    let addresses = nodes.iter().map(|node| node.addresses()[0]);
    addresses.map(|at| json!({ "ipBlock": { "cidr": format!("{at}/32") } })).collect()
}

#[test]
fn connections_with_the_nodes_address_are_named() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["client"]);
    let far = [7, 8].map(|number| {
        let cidrs = [format!("10.{number}.0.0/24"), format!("fd00:{number}::/64")];
        let node = TestNode::new(&format!("far{number}"), Cni::Ptp, &cidrs[0], &cidrs[1]).unwrap();
        link_nodes(&cluster.nodes[0], &node).unwrap();
        node.serve(ProbeProtocol::Tcp, PORT).unwrap();
        node
    });
    cluster.nodes[0].masquerade(&["10.1.0.0/16", "fd00:1::/32"]).unwrap();
    let service =
        TestService::new(1, "outside").addresses(&far.each_ref().map(|it| it.addresses()[0]));
    provide(&mut cluster, Proxy::Nftables, std::slice::from_ref(&service));
    let policy = |to: Vec<Value>| spec("client", &["Egress"], "egress", json!([{ "to": to }]));
    cluster.policy("client", policy(blocks(&far))).enforce();
    let to = SocketAddr::new(service.cluster_ips()[0], SERVICE_PORT);
    let open = || -> (Pair, TestFlow) {
        let mut flow = cluster.pod("client").open_flow(ProbeProtocol::Tcp, to, PATIENCE).unwrap();
        assert!(flow.ping(PATIENCE));
        ((flow.local().unwrap(), to), flow)
    };
    let mut flows: Vec<(Pair, TestFlow)> = (0..CONNECTIONS).map(|_| open()).collect();

    let change = network_policy("client", &policy(blocks(&far[..1])));
    let file = cluster.directory.path().join("change.json");
    fs::write(&file, change.to_string()).unwrap();
    let manifests = cluster.manifests.directory().to_str().unwrap();
    let diff = ["diff", "--manifests", manifests, "-f", file.to_str().unwrap(), "--live"];
    let (_, text) = netpold(&[&diff[..], &["-o", "json"]].concat(), &cluster.agents[0]);
    let live = serde_json::from_str::<Value>(&text).unwrap()["live"].clone();
    assert_eq!((&live["unsure"], &live["problems"]), (&json!([]), &json!([])), "{live}");
    let named = pairs(&live["cut"]);
    let backend = SocketAddr::new(far[1].addresses()[0], PORT).to_string();
    let groups = live["cut"].as_array().unwrap().iter();
    let all = groups.flat_map(|group| group["connections"].as_array().unwrap());
    assert!(all.into_iter().all(|it| it["to"] == backend), "{live}");

    cluster.policy("client", policy(blocks(&far[..1]))).enforce();
    let cut = flows.iter_mut().filter_map(|(pair, flow)| (!flow.ping(MOMENT)).then_some(*pair));
    let cut: BTreeSet<Pair> = cut.collect();
    assert!(!cut.is_empty() && cut.len() < CONNECTIONS, "{} of {CONNECTIONS}", cut.len());
    assert_eq!(cut, named);
}
