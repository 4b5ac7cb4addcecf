//! Connections between pods of two nodes, listed by both agents, over IPv4 and IPv6.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use netpold_api::flows::FlowsAnswer;
use netpold_core::cluster::Cluster;
use netpold_kube::manifests::read_once;
use netpold_review::diff::live::cuts;
use netpold_testbed::cluster::{MOMENT, PATIENCE, PORT, TestCluster};
use netpold_testbed::{ProbeProtocol, TestFlow, require_root};
use serde_json::json;

use super::{Pair, app, netpold, pairs, spec};

/// Client pods of each node.
const CLIENTS: [&[&str]; 2] = [&["a", "b"], &["c"]];
const SERVERS: [&str; 2] = ["s1", "s2"];

fn objects(cluster: &TestCluster) -> Cluster {
    let (objects, status) = read_once(cluster.manifests.directory()).unwrap();
    assert!(status.in_sync && status.problems.is_empty(), "{:?}", status.problems);
    objects.into_iter().collect()
}

/// Returns the flows of each node.
fn answers(cluster: &TestCluster) -> Vec<FlowsAnswer> {
    let answer = |agent: &netpold_testbed::Agent| {
        let (code, text) = netpold(&["flows", "-o", "json", "--limit", "0"], agent);
        assert_eq!(code, Some(0));
        serde_json::from_str(&text).unwrap()
    };
    cluster.agents.iter().map(answer).collect()
}

#[test]
fn connections_of_two_nodes_are_listed_once() {
    require_root!();
    let mut cluster = TestCluster::two();
    for (node, server) in SERVERS.into_iter().enumerate() {
        CLIENTS[node].iter().for_each(|client| cluster.add(node, client));
        cluster.add(node, server);
    }
    let all = CLIENTS.concat();
    let peers: Vec<_> = all.iter().map(|client| app(client)).collect();
    let both: Vec<_> = SERVERS.iter().map(|server| app(server)).collect();
    for server in SERVERS {
        cluster.policy(server, spec(server, &["Ingress"], "ingress", json!([{ "from": peers }])));
    }
    // Isolates the clients, so that their agents have conntrack entries too.
    for client in &all {
        cluster.policy(client, spec(client, &["Egress"], "egress", json!([{ "to": both }])));
    }
    cluster.enforce();
    let mut open: Vec<(Pair, TestFlow)> = Vec::new();
    for client in &all {
        for server in SERVERS {
            for address in cluster.pod(server).addresses() {
                let to = SocketAddr::new(*address, PORT);
                let mut flow =
                    cluster.pod(client).open_flow(ProbeProtocol::Tcp, to, PATIENCE).unwrap();
                assert!(flow.ping(PATIENCE));
                open.push(((flow.local().unwrap(), to), flow));
            }
        }
    }
    let known: BTreeSet<Pair> = open.iter().map(|(pair, _)| *pair).collect();
    let (before, answers) = (objects(&cluster), answers(&cluster));
    // One agent lists the connection as outgoing, the other as incoming.
    let apart = known.iter().find(|(from, to)| {
        from.ip() == cluster.pod("a").ip6().unwrap() && to.ip() == cluster.pod("s2").ip6().unwrap()
    });
    let (from, _) = apart.unwrap();
    for answer in &answers {
        let ports = answer.flows.iter().flat_map(|flow| [flow.local_port, flow.remote_port]);
        assert!(ports.into_iter().any(|port| port == from.port()), "{}", answer.node);
    }

    // Pod a keeps only its connections to s1; c keeps only those to s2.
    let few = json!([{ "from": [app("b"), app("c")] }]);
    cluster.policy("s2", spec("s2", &["Ingress"], "ingress", few));
    cluster.policy("c", spec("c", &["Egress"], "egress", json!([{ "to": [app("s2")] }])));
    cluster.enforce();
    let found = cuts(&before, &objects(&cluster), &answers);
    assert_eq!((&found.unsure, &found.problems, found.gone), (&vec![], &vec![], 0));
    assert_eq!(found.open, known.len(), "each connection is counted once: {found:?}");
    let listed: usize = found.cut.iter().map(|group| group.connections.len()).sum();
    let named = pairs(&serde_json::to_value(&found.cut).unwrap());
    assert_eq!(listed, named.len(), "each connection is listed once: {:?}", found.cut);
    let cut = open.iter_mut().filter_map(|(pair, flow)| (!flow.ping(MOMENT)).then_some(*pair));
    let cut: BTreeSet<Pair> = cut.collect();
    assert_eq!(cut, named);
    assert_eq!(cut.len(), 4, "a to s2 and c to s1, over both families");
}
