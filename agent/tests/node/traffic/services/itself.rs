//! Pod that reaches itself through its own Service.

use netpold_testbed::cluster::{TestCluster, isolate};
use netpold_testbed::services::{NODE_PORT, TestService, answer, provide};
use netpold_testbed::{Cni, Proxy, require_root};

/// Returns a node with a hairpin bridge, as with the bridge plugin's `hairpinMode`: packets of a pod to itself are
/// translated before they are bridged.
fn hairpin(cni: Cni) -> TestCluster {
    let cluster = TestCluster::one(cni).with_pods(&["alone", "other"]);
    if cni == Cni::Bridge {
        let veth = cluster.pod("alone").host_interface();
        let hairpin = format!("link set {veth} type bridge_slave hairpin on\n");
        cluster.nodes[0].netns().ip(&hairpin).unwrap();
    }
    cluster
}

/// Isolates the pod in both directions without rules; other pods do not answer.
fn itself(cni: Cni, proxy: Proxy) {
    let mut cluster = hairpin(cni);
    let own = TestService::new(1, "own").pods(&cluster, &["alone"]).node_port(NODE_PORT);
    let shared = TestService::new(2, "shared").pods(&cluster, &["alone", "other"]);
    let services = [own, shared];
    provide(&mut cluster, proxy, &services);
    cluster.policy("alone", isolate("alone", &["Ingress", "Egress"])).enforce();
    let [own, shared] = services;
    let alone = cluster.pod("alone");
    answer(alone, &own.sockets(), &["alone"]);
    answer(alone, &shared.sockets(), &["", "alone"]);
    let node_ports = cluster.nodes[0].addresses().map(|address| (address, NODE_PORT).into());
    answer(alone, &node_ports, &["alone"]);
    // The masquerade opens nothing to other pods.
    answer(cluster.pod("other"), &own.sockets(), &[""]);
    cluster.policy("alone", isolate("alone", &["Ingress"])).enforce();
    answer(cluster.pod("alone"), &own.sockets(), &["alone"]);
    answer(cluster.pod("other"), &own.sockets(), &[""]);
}

#[test]
fn services_of_the_pod_itself_on_a_ptp_node() {
    require_root!();
    itself(Cni::Ptp, Proxy::Nftables);
    itself(Cni::Ptp, Proxy::Iptables);
}

#[test]
fn services_of_the_pod_itself_on_a_bridge_node() {
    require_root!();
    itself(Cni::Bridge, Proxy::Nftables);
    itself(Cni::Bridge, Proxy::Iptables);
}
