//! A pod that reaches itself through its own Service.

use netpold_testbed::{Cni, Proxy, require_root};

use super::world::{NODE_PORT, Service, answer, provide};
use crate::cluster::{Cluster, isolate};

/// Isolated both ways and allowed nothing; what is not itself does not answer.
fn itself(cni: Cni, proxy: Proxy) {
    let mut cluster = Cluster::one(cni).with_pods(&["alone", "other"]);
    let own = Service::new(1, "own").pods(&cluster, &["alone"]).node_port(NODE_PORT);
    let shared = Service::new(2, "shared").pods(&cluster, &["alone", "other"]);
    let services = [own, shared];
    provide(&mut cluster, proxy, &services);
    cluster.policy("alone", isolate("alone", &["Ingress", "Egress"])).enforce();
    let [own, shared] = services;
    let alone = cluster.pod("alone");
    answer(alone, &own.sockets(), &["alone"]);
    answer(alone, &shared.sockets(), &["", "alone"]);
    let node_ports = cluster.nodes[0].addresses().map(|address| (address, NODE_PORT).into());
    answer(alone, &node_ports, &["alone"]);
    // Its masquerade opens nothing to others.
    answer(cluster.pod("other"), &own.sockets(), &[""]);
}

#[test]
fn services_of_the_pod_itself_on_a_ptp_node() {
    if require_root("services_of_the_pod_itself_on_a_ptp_node") {
        itself(Cni::Ptp, Proxy::Nftables);
        itself(Cni::Ptp, Proxy::Iptables);
    }
}

#[test]
fn services_of_the_pod_itself_on_a_bridge_node() {
    if require_root("services_of_the_pod_itself_on_a_bridge_node") {
        itself(Cni::Bridge, Proxy::Nftables);
        itself(Cni::Bridge, Proxy::Iptables);
    }
}
