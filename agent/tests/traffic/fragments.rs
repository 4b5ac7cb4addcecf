//! Datagrams that do not fit into one packet.

use netpold_testbed::{Cni, Pod, require_root};
use std::net::IpAddr;

use crate::cluster::{Cluster, MOMENT, isolate};
use crate::udp;

const ALLOWED: u16 = 4000;
const DENIED: u16 = 4001;
const LONG: usize = 5000;

fn pairs<'a>(from: &'a Pod, to: &'a Pod) -> impl Iterator<Item = (IpAddr, IpAddr)> + 'a {
    from.addresses().iter().copied().zip(to.addresses().iter().copied())
}

fn long_datagrams(cni: Cni) {
    let mut cluster = Cluster::one(cni).with_pods(&["server", "client"]);
    let port = serde_json::json!({
        "podSelector": { "matchLabels": { "app": "server" } },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{ "ports": [{ "protocol": "UDP", "port": ALLOWED }] }],
    });
    cluster.policy("server", port).policy("client", isolate("client", &["Ingress"])).enforce();
    let (client, server) = (cluster.pod("client"), cluster.pod("server"));
    for (from, to) in pairs(client, server) {
        let here = udp::socket(client, from, 0);
        let allowed = udp::socket(server, to, ALLOWED);
        let denied = udp::socket(server, to, DENIED);
        for number in 0..5 {
            let payload = vec![number; LONG];
            here.send_to(&payload, (to, DENIED)).unwrap();
            here.send_to(&payload, (to, ALLOWED)).unwrap();
            let (received, sender) = udp::receive(&allowed).expect("the allowed datagram");
            assert_eq!(received, payload);
            allowed.send_to(&received, sender).unwrap();
            assert_eq!(udp::receive(&here).expect("its answer").0, payload);
        }
        denied.set_read_timeout(Some(MOMENT)).unwrap();
        assert_eq!(udp::receive(&denied), None, "to {to}");
    }
}

#[test]
fn long_datagrams_on_a_ptp_node() {
    if require_root("long_datagrams_on_a_ptp_node") {
        long_datagrams(Cni::Ptp);
    }
}

#[test]
fn long_datagrams_on_a_bridge_node() {
    if require_root("long_datagrams_on_a_bridge_node") {
        long_datagrams(Cni::Bridge);
    }
}
