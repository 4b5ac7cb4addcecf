//! Node ports at addresses that each node has for itself. The node translates packets to them before it drops those that
//! no wire may carry.

use std::net::IpAddr;

use ipnet::IpNet;
use netpold_testbed::cluster::TestCluster;
use netpold_testbed::services::{NODE_PORT, TestService, provide};
use netpold_testbed::{Cni, Proxy, require_root};
use serde_json::json;

use crate::attacks::volley::{Sender, Tally, Volley};

/// Lets `hostile` send to all addresses but those of `victim`.
fn allow_outside(cluster: &mut TestCluster) {
    let victim = cluster.pod("victim").addresses().to_vec();
    let outside = |all: &str, victim: IpAddr| json!({ "ipBlock": { "cidr": all, "except": [IpNet::from(victim)] } });
    let to = [outside("0.0.0.0/0", victim[0]), outside("::/0", victim[1])];
    let spec = json!({
        "podSelector": { "matchLabels": { "app": "hostile" } },
        "policyTypes": ["Egress"],
        "egress": [{ "to": to }],
    });
    cluster.policy("hostile", spec);
}

fn node_ports(proxy: Proxy, to: &[&str]) {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["hostile", "victim"]);
    cluster.nodes[0].netns().ip("address add 169.254.7.7/32 scope link dev lo\n").unwrap();
    let service = TestService::new(1, "victim").pods(&cluster, &["victim"]).node_port(NODE_PORT);
    provide(&mut cluster, proxy, &[service]);
    let wire = cluster.pod("victim").wire("eth0").unwrap();
    let attack = |cluster: &TestCluster, to: IpAddr| {
        let (pod, volley) = (cluster.pod("hostile"), Volley::new());
        let own = pod.addresses().iter().find(|own| own.is_ipv4() == to.is_ipv4()).unwrap();
        Sender::pod(pod).datagrams(volley, (*own, 5000).into(), (to, NODE_PORT).into());
        volley
    };
    let mut tally = Tally::default();
    for to in to {
        let address = to.parse().unwrap();
        cluster.enforce();
        attack(&cluster, address).arrives(&wire, to);
        allow_outside(&mut cluster);
        cluster.enforce();
        tally.note(to, attack(&cluster, address).leaked(&wire));
        cluster.without_policy("hostile");
    }
    tally.holds();
}

#[test]
fn node_ports_at_a_nodes_own_scopes_by_iptables() {
    require_root!();
    node_ports(Proxy::Iptables, &["127.0.0.1", "127.3.2.1", "169.254.7.7", "fe80::1"]);
}

#[test]
fn node_ports_at_a_nodes_own_scopes_by_nftables() {
    require_root!();
    node_ports(Proxy::Nftables, &["127.0.0.1", "169.254.7.7", "fe80::1"]);
}
