//! A pod reaches itself through its own Service, whichever other pods are isolated and however the bridge is
//! configured.

use netpold_testbed::cluster::{TestCluster, isolate};
use netpold_testbed::services::{NODE_PORT, TestService, outcomes, provide};
use netpold_testbed::{Cni, Proxy, require_root};

use crate::attacks::volley::BOTH;

fn itself(cni: Cni, bridge_calls: bool) {
    let mut cluster = TestCluster::one(cni).with_pods(&["alone", "other"]);
    if cni == Cni::Bridge {
        let veth = cluster.pod("alone").host_interface();
        let hairpin = format!("link set {veth} type bridge_slave hairpin on\n");
        cluster.nodes[0].netns().ip(&hairpin).unwrap();
    }
    let own = TestService::new(1, "own").pods(&cluster, &["alone"]).node_port(NODE_PORT);
    let mut sockets = own.sockets();
    sockets.extend(
        cluster.nodes[0].addresses().map(|node| std::net::SocketAddr::from((node, NODE_PORT))),
    );
    provide(&mut cluster, Proxy::Nftables, &[own]);
    if !bridge_calls {
        for key in ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"] {
            let _ = cluster.nodes[0].netns().sysctl(key, "0");
        }
    }
    let mut wrong = Vec::new();
    for directions in [&BOTH[..], &["Ingress"], &["Egress"], &[]] {
        for others in [&[][..], &["Egress"], &["Ingress"]] {
            if !directions.is_empty() {
                cluster.policy("alone", isolate("alone", directions));
            }
            if !others.is_empty() {
                cluster.policy("other", isolate("other", others));
            }
            cluster.enforce();
            let seen = outcomes(cluster.pod("alone"), &sockets);
            let answered: Vec<&str> = seen.keys().map(String::as_str).collect();
            if answered != [cluster.pod("alone").name()] {
                wrong.push(format!("alone {directions:?}, other {others:?}: {seen:?}"));
            }
            if !directions.is_empty() {
                cluster.without_policy("alone");
            }
            if !others.is_empty() {
                cluster.without_policy("other");
            }
        }
    }
    assert!(wrong.is_empty(), "{cni:?}, bridge shown to rules: {bridge_calls}: {wrong:#?}");
}

#[test]
fn a_pod_reaches_itself_by_its_service_on_a_ptp_node() {
    require_root!();
    itself(Cni::Ptp, true);
}

#[test]
fn a_pod_reaches_itself_by_its_service_on_a_bridge_node() {
    require_root!();
    itself(Cni::Bridge, true);
}

#[test]
fn a_pod_reaches_itself_by_its_service_behind_a_bridge_without_netfilter() {
    require_root!();
    itself(Cni::Bridge, false);
}
