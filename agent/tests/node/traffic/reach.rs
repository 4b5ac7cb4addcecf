//! Reachability over TCP, UDP, SCTP and echo, in both families.

use std::net::{SocketAddr, TcpListener, TcpStream};

use netpold_testbed::cluster::{
    MOMENT, PATIENCE, TestCluster, all_pass, allow_from, allow_to, isolate, none_pass,
};
use netpold_testbed::{Cni, ProbeProtocol, ReachProbe, probe_all, require_root};

const BOTH: [&str; 2] = ["Ingress", "Egress"];

/// Checks on one node: `server` admits `friend` only, and `friend` may send to `server` only.
fn friend_and_stranger(cni: Cni) {
    let mut cluster = TestCluster::one(cni).with_pods(&["server", "friend", "stranger"]);
    cluster.enforce();
    cluster.reaches("stranger", "server");
    cluster.policy("server", allow_from("server", "friend"));
    cluster.policy("friend", allow_to("friend", "server")).enforce();
    cluster.reaches("friend", "server");
    cluster.reaches("server", "friend");
    cluster.reaches("server", "stranger");
    cluster.denied("stranger", "server");
    cluster.denied("friend", "stranger");
    cluster.without_policy("server").without_policy("friend").enforce();
    cluster.reaches("stranger", "server");
    cluster.reaches("friend", "stranger");
}

#[test]
fn policy_on_a_ptp_node() {
    require_root!();
    friend_and_stranger(Cni::Ptp);
}

#[test]
fn policy_on_a_bridge_node() {
    require_root!();
    friend_and_stranger(Cni::Bridge);
}

#[test]
fn policy_between_nodes() {
    require_root!();
    for (here, there) in [(0, 1), (1, 0)] {
        let mut cluster = TestCluster::two();
        cluster.add(here, "server");
        cluster.add(there, "friend");
        cluster.add(there, "stranger");
        cluster.policy("server", allow_from("server", "friend"));
        cluster.policy("friend", allow_to("friend", "server")).enforce();
        cluster.reaches("friend", "server");
        cluster.reaches("server", "stranger");
        cluster.denied("stranger", "server");
        cluster.denied("friend", "stranger");
    }
}

#[test]
fn a_ping_does_not_open_the_way_back() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["a", "b"]);
    cluster.policy("a", isolate("a", &["Ingress"])).enforce();
    let (a, b) = (cluster.pod("a"), cluster.pod("b"));
    for _ in 0..2 {
        all_pass(a, b, b.addresses());
        none_pass(b, a, a.addresses());
    }
    let both = |to| ReachProbe { from: b, protocol: ProbeProtocol::Icmp, to, port: 0 };
    let echoes: Vec<_> = a.addresses().iter().copied().map(both).collect();
    assert!(probe_all(&echoes, MOMENT).iter().all(netpold_testbed::ProbeResult::dropped));
}

#[test]
fn nodes_and_their_own_pods() {
    require_root!();
    let mut cluster = TestCluster::two();
    cluster.add(0, "ptp");
    cluster.add(1, "bridge");
    cluster.policy("ptp", isolate("ptp", &BOTH)).policy("bridge", isolate("bridge", &BOTH));
    cluster.enforce();
    for (number, name) in ["ptp", "bridge"].into_iter().enumerate() {
        let (own, other) = (&cluster.nodes[number], &cluster.nodes[1 - number]);
        let pod = cluster.pod(name);
        all_pass(own, pod, pod.addresses());
        all_pass(pod, own, &own.addresses());
        none_pass(other, pod, pod.addresses());
        none_pass(pod, other, &other.addresses());
        all_pass(pod, pod, pod.addresses());
    }
}

/// The bridge's address belongs to the node, though no object lists it.
#[test]
fn a_pod_reaches_the_bridge_of_its_node() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Bridge).with_pods(&["pod"]);
    cluster.policy("p", isolate("pod", &BOTH)).enforce();
    all_pass(cluster.pod("pod"), &cluster.nodes[0], &cluster.nodes[0].bridge_addresses());
}

/// An ambient mesh gives these sources to the kubelet's probes. Policy names neither source, and the pod sees them,
/// so no rule for the node's address could match.
#[test]
fn probes_that_a_mesh_translates_reach_isolated_pods() {
    const SOURCES: [&str; 2] = ["169.254.7.127", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"];
    require_root!();
    for cni in [Cni::Ptp, Cni::Bridge] {
        let mut cluster = TestCluster::one(cni).with_pods(&["pod", "stranger"]);
        cluster.policy("p", isolate("pod", &BOTH)).enforce();
        let (node, pod) = (&cluster.nodes[0], cluster.pod("pod"));
        let mut rules = "add table inet mesh; \
                         add chain inet mesh out { type nat hook postrouting priority 100; }; "
            .to_owned();
        for (to, (family, source)) in pod.addresses().iter().zip(["ip", "ip6"].iter().zip(SOURCES))
        {
            let of =
                format!("fib saddr type local {family} daddr {to} snat {family} to {source}; ");
            rules += &format!("add rule inet mesh out {of}");
        }
        node.netns().nft(&rules).unwrap();
        for (to, source) in pod.addresses().iter().zip(SOURCES) {
            let to = SocketAddr::new(*to, 8080);
            let listener = pod.run(|| TcpListener::bind(to)).unwrap().unwrap();
            let probe = node.run(|| TcpStream::connect_timeout(&to, PATIENCE));
            let _probe = probe.unwrap().unwrap();
            let (_, from) = listener.accept().unwrap();
            assert_eq!(from.ip().to_string(), source);
        }
        cluster.denied("stranger", "pod");
    }
}
