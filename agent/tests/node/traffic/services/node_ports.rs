//! Node ports of the pod's own node and of another node, and clients from outside.

use netpold_testbed::cluster::{TestCluster, isolate};
use netpold_testbed::services::{NOBODY, NODE_PORT, TestService, answer, may_reach, provide};
use netpold_testbed::{Proxy, require_root};
use serde_json::json;

use super::backends::two_nodes;

fn sockets(cluster: &TestCluster, node: usize, port: u16) -> [std::net::SocketAddr; 2] {
    cluster.nodes[node].addresses().map(|address| (address, port).into())
}

fn node_ports(proxy: Proxy) {
    let mut cluster = two_nodes();
    let all = ["friend1", "enemy1", "friend2", "enemy2"];
    let mixed = TestService::new(1, "mixed").pods(&cluster, &all).node_port(NODE_PORT);
    let bad =
        TestService::new(2, "bad").pods(&cluster, &["enemy1", "enemy2"]).node_port(NODE_PORT + 1);
    let friends = ["friend1", "friend2"];
    let good = TestService::new(3, "good").pods(&cluster, &friends).node_port(NODE_PORT + 2);
    let waiting = TestService::new(4, "waiting").pods(&cluster, &friends).node_port(NODE_PORT + 3);
    let waiting = waiting.not_ready(&cluster, "enemy1");
    provide(&mut cluster, proxy, &[mixed, bad, good, waiting]);
    cluster.enforce();
    for (here, client) in [(0, "client1"), (1, "client2")] {
        let client = cluster.pod(client);
        let of = |node, port| sockets(&cluster, node, port);
        answer(client, &of(here, NODE_PORT), &["", "friend1", "friend2"]);
        answer(client, &of(here, NODE_PORT + 1), NOBODY);
        answer(client, &of(here, NODE_PORT + 3), &friends);
        // netpold does not see the other node's translation, so every backend must be allowed.
        answer(client, &of(1 - here, NODE_PORT), NOBODY);
        answer(client, &of(1 - here, NODE_PORT + 1), NOBODY);
        answer(client, &of(1 - here, NODE_PORT + 2), &friends);
        answer(client, &of(1 - here, NODE_PORT + 3), NOBODY);
    }
    // A client that may reach the other node may reach all its node ports.
    let blocks = cluster.nodes[1].addresses().map(|address| {
        let length = if address.is_ipv4() { 32 } else { 128 };
        json!({ "ipBlock": { "cidr": format!("{address}/{length}") } })
    });
    let spec = json!({ "podSelector": { "matchLabels": { "app": "client" } },
                       "policyTypes": ["Egress"], "egress": [{ "to": blocks }] });
    cluster.policy("client", spec).enforce();
    answer(cluster.pod("client1"), &sockets(&cluster, 1, NODE_PORT), &all);
}

#[test]
fn services_at_node_ports_by_nftables() {
    require_root!();
    node_ports(Proxy::Nftables);
}

#[test]
fn services_at_node_ports_by_iptables() {
    require_root!();
    node_ports(Proxy::Iptables);
}

/// Isolates the backend's egress: it still answers. Answers to clients that the node masquerades go to the node,
/// which translates them back.
#[test]
fn services_answer_clients_from_outside() {
    require_root!();
    let mut cluster = TestCluster::two();
    cluster.add(0, "server");
    cluster.add(1, "server2");
    let one = TestService::new(1, "one").pods(&cluster, &["server"]).node_port(NODE_PORT);
    let two = TestService::new(2, "two").pods(&cluster, &["server2"]).node_port(NODE_PORT + 1);
    provide(&mut cluster, Proxy::Nftables, &[one, two]);
    cluster.policy("server", isolate("server", &["Egress"]));
    cluster.policy("server2", isolate("server2", &["Egress"])).enforce();
    for (client, node) in [(1, 0), (0, 1)] {
        // By the backend's node, and by the node without a backend.
        let client = &cluster.nodes[client];
        answer(client, &sockets(&cluster, node, NODE_PORT), &["server"]);
        answer(client, &sockets(&cluster, node, NODE_PORT + 1), &["server2"]);
    }
    cluster.policy("server", may_reach("server", &["nobody"])).enforce();
    answer(&cluster.nodes[1], &sockets(&cluster, 0, NODE_PORT), &["server"]);
}
