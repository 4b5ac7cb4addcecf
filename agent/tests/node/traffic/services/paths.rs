//! Paths out of the node: masqueraded to outside addresses, through a tunnel, in fragments.

use std::net::IpAddr;

use netpold_testbed::cluster::{MOMENT, PORT, TestCluster, all_pass};
use netpold_testbed::services::{SERVICE_PORT, TestService, answer, may_reach, outcomes, provide};
use netpold_testbed::{Cni, Proxy, TestNode, link_nodes, require_root};
use serde_json::json;

use super::backends::two_nodes;
use crate::traffic::udp;

/// Tests Services without selector and with backends outside the cluster; pods' packets leave with the node's
/// address.
fn outside(cni: Cni) {
    let mut cluster = TestCluster::one(cni).with_pods(&["client"]);
    let far = ["allowed", "other"].map(|name| {
        let number = if name == "allowed" { 7 } else { 8 };
        let cidrs = [format!("10.{number}.0.0/24"), format!("fd00:{number}::/64")];
        let node = TestNode::new(name, Cni::Ptp, &cidrs[0], &cidrs[1]).unwrap();
        link_nodes(&cluster.nodes[0], &node).unwrap();
        netpold_testbed::services::PROTOCOLS.iter().for_each(|p| node.serve(*p, PORT).unwrap());
        node
    });
    cluster.nodes[0].masquerade(&["10.1.0.0/16", "fd00:1::/32"]).unwrap();
    let both: Vec<IpAddr> = far.iter().flat_map(TestNode::addresses).collect();
    let service = TestService::new(1, "outside").addresses(&both);
    provide(&mut cluster, Proxy::Nftables, std::slice::from_ref(&service));
    let blocks = far[0].addresses().map(|address| {
        let length = if address.is_ipv4() { 32 } else { 128 };
        json!({ "ipBlock": { "cidr": format!("{address}/{length}") } })
    });
    let spec =
        json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{ "to": blocks }] });
    cluster.policy("client", spec).enforce();
    let seen = outcomes(cluster.pod("client"), &service.sockets());
    let seen: Vec<&str> = seen.keys().map(String::as_str).collect();
    assert_eq!(seen, ["", "allowed"], "at {cni:?}");
    all_pass_at(&cluster, &far[0]);
}

fn all_pass_at(cluster: &TestCluster, far: &TestNode) {
    far.serve(netpold_testbed::ProbeProtocol::Sctp, PORT).unwrap();
    all_pass(cluster.pod("client"), far, &far.addresses());
}

#[test]
fn services_with_backends_outside() {
    require_root!();
    outside(Cni::Ptp);
    outside(Cni::Bridge);
}

/// Reaches pods of other nodes by VXLAN: netpold judges the pod's packet, not the encapsulating packet.
#[test]
fn services_through_a_tunnel() {
    require_root!();
    let mut cluster = two_nodes();
    cluster.tunnel(0);
    cluster.tunnel(1);
    let all = ["friend1", "enemy1", "friend2", "enemy2"];
    let mixed = TestService::new(1, "mixed").pods(&cluster, &all);
    provide(&mut cluster, Proxy::Nftables, std::slice::from_ref(&mixed));
    cluster.enforce();
    let devices = cluster.agents[0].status().unwrap()["devices"].to_string();
    assert!(devices.contains("vxlan9") && devices.contains("link"), "{devices}");
    for client in ["client1", "client2"] {
        answer(cluster.pod(client), &mixed.sockets(), &["", "friend1", "friend2"]);
    }
    // The tunnel is removed and added again while the agent runs.
    cluster.nodes[0].netns().ip("link del vxlan9\n").unwrap();
    cluster.tunnel(0);
    let there = |status: &serde_json::Value| status["devices"].to_string().contains("vxlan9");
    cluster.agents[0].wait_for("at the tunnel", netpold_testbed::cluster::ENFORCED, there).unwrap();
    answer(cluster.pod("client1"), &mixed.sockets(), &["", "friend1", "friend2"]);
}

/// Sends datagrams larger than one packet through a Service.
#[test]
fn services_get_long_datagrams() {
    const LONG: usize = 5000;
    require_root!();
    let mut cluster = two_nodes();
    let backends = ["friend1", "friend2", "enemy1", "enemy2"];
    let services: Vec<TestService> = (1..)
        .zip(backends)
        .map(|(number, name)| TestService::new(number, name).pods(&cluster, &[name]))
        .collect();
    // The Service's address is allowed for enemies too, so their packets are denied after translation.
    provide(&mut cluster, Proxy::Nftables, &services);
    let blocks = ["10.96.0.0/16", "fd00:96::/64"].map(|c| json!({ "ipBlock": { "cidr": c } }));
    cluster.policy(
        "block",
        json!({ "podSelector": { "matchLabels": { "app": "client" } },
                "policyTypes": ["Egress"], "egress": [{ "to": blocks }] }),
    );
    cluster.policy("client", may_reach("client", &["friend"])).enforce();
    for client in ["client1", "client2"] {
        let client = cluster.pod(client);
        for (service, backend) in services.iter().zip(backends) {
            for (from, to) in client.addresses().iter().zip(service.cluster_ips()) {
                let here = udp::socket(client, *from, 0);
                let payload = vec![b'x'; LONG];
                here.set_read_timeout(Some(MOMENT * 10)).unwrap();
                here.send_to(&payload, (to, SERVICE_PORT)).unwrap();
                if backend.starts_with("enemy") {
                    here.set_read_timeout(Some(MOMENT)).unwrap();
                }
                let answered = udp::receive(&here).is_some();
                let expected = backend.starts_with("friend");
                assert_eq!(answered, expected, "{} to {backend} at {to}", client.name());
            }
        }
    }
}
