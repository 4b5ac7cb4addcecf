//! Packets with a source that is not the pod's.

use netpold_testbed::cluster::{NAMESPACE, TestCluster, isolate};
use netpold_testbed::{Cni, PodSpec, TestPod, require_root, udp_frame};
use std::net::IpAddr;

use crate::traffic::udp;

const PORT: u16 = 4000;

/// Sends from another pod's address, then from the pod's own address. Returns the sources that arrive.
fn arrivals(cluster: &TestCluster, sender: &TestPod, pretended: &TestPod) -> Vec<IpAddr> {
    let server = cluster.pod("server");
    let mut arrived = Vec::new();
    for (number, to) in server.addresses().iter().enumerate() {
        let socket = udp::socket(server, *to, PORT);
        let own = sender.addresses()[number];
        for from in [pretended.addresses()[number], own] {
            let (gateway, mac) = (sender.gateway_mac(), sender.mac());
            let (from, to) = ((from, 5000).into(), (*to, PORT).into());
            let frame = udp_frame(gateway, mac, from, to, b"hello").unwrap();
            sender.send_frame("eth0", &frame).unwrap();
        }
        loop {
            let (_, from) = udp::receive(&socket).expect("what has the right source arrives");
            arrived.push(from.ip());
            if from.ip() == own {
                break;
            }
        }
    }
    arrived
}

#[test]
fn spoofed_source_of_an_isolated_pod_is_dropped() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "liar", "victim"]);
    cluster.policy("p", isolate("liar", &["Ingress"])).enforce();
    let (liar, victim) = (cluster.pod("liar"), cluster.pod("victim"));
    assert_eq!(arrivals(&cluster, liar, victim), liar.addresses());
    let status = cluster.agents[0].status().unwrap();
    let drops = status["drops"].as_array().unwrap();
    let counted = drops.iter().find(|d| d["reason"] == "spoofed_source").expect("it is counted");
    assert_eq!((&counted["direction"], &counted["packets"]), (&"egress".into(), &2.into()));
}

/// Asserts the sources that arrive, for an agent with the given arguments.
fn with_arguments(cni: Cni, arguments: &[&str], liar: PodSpec, dropped: bool) {
    let mut cluster = TestCluster::one(cni).with_pods(&["server", "victim"]);
    cluster.add_as(0, liar);
    cluster.arguments = arguments.iter().map(|&word| word.to_owned()).collect();
    cluster.enforce();
    let (liar, victim) = (cluster.pod("liar"), cluster.pod("victim"));
    let both = liar.addresses().iter().zip(victim.addresses()).flat_map(|(l, v)| [*v, *l]);
    let expected = if dropped { liar.addresses().to_vec() } else { both.collect() };
    assert_eq!(arrivals(&cluster, liar, victim), expected, "{arguments:?}, {cni:?}");
}

fn liar() -> PodSpec {
    PodSpec::new(NAMESPACE, "liar")
}

#[test]
fn check_source_of_all_pods_or_of_none() {
    require_root!();
    with_arguments(Cni::Ptp, &[], liar(), true);
    with_arguments(Cni::Bridge, &[], liar(), true);
    for (which, dropped) in [("all", true), ("isolated", false), ("off", false)] {
        with_arguments(Cni::Ptp, &["--check-source", which], liar(), dropped);
    }
}

/// Checks that a pod is exempt only if the operator names its namespace or address.
#[test]
fn only_whom_the_operator_names_is_exempt() {
    require_root!();
    let asking = || liar().annotation("netpold.io/check-source", "off");
    let exempt = "--source-check-exempt";
    with_arguments(Cni::Ptp, &[], asking(), true);
    with_arguments(Cni::Ptp, &[exempt, "kube-system,10.9.0.0/16"], asking(), true);
    with_arguments(Cni::Ptp, &[exempt, NAMESPACE], liar(), true);
    with_arguments(Cni::Ptp, &[exempt, NAMESPACE], asking(), false);
    with_arguments(Cni::Ptp, &[exempt, "kube-system,10.1.1.0/24"], liar(), false);
}
