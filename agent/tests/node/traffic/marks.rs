//! Marks from foreign programs: a pod with a program of its own writes `skb->tc_index`.

use netpold_ebpf::layout::{endpoint_slot, mark};
use netpold_testbed::cluster::{
    MOMENT, NAMESPACE, PORT, TestCluster, all_pass, allow_from, isolate, none_pass,
};
use netpold_testbed::{Cni, PodSpec, require_root};

/// Marks every packet of `hostile` as sent by `server` itself; a trusted mark would let them in as the server's own.
fn forged(cni: Cni) {
    let mut cluster = TestCluster::one(cni).with_pods(&["server", "friend", "hostile", "isolated"]);
    cluster.policy("server", allow_from("server", "friend"));
    cluster.policy("isolated", isolate("isolated", &["Egress"])).enforce();
    // Numbers of endpoints are consecutive, and a mark distinguishes seven.
    for id in 0..7 {
        let forge = |name: &str, of: &str| {
            let slot = endpoint_slot(cluster.pod(of).host_ifindex(), 0);
            cluster.pod(name).set_tc_index("eth0", mark(slot, id) as u16)
        };
        let marker = match forge("hostile", "server") {
            Ok(marker) => marker,
            Err(e) => return println!("SKIPPED forged marks: no TCX here: {e:#}"),
        };
        cluster.denied("hostile", "server");
        // Nor does the mark of an isolated pod block the packets of another.
        cluster.reaches("hostile", "friend");
        drop(marker);
        let _stain = forge("hostile", "isolated").unwrap();
        cluster.reaches("hostile", "friend");
        let _other = forge("isolated", "server").unwrap();
        cluster.denied("isolated", "server");
    }
}

#[test]
fn a_pod_on_a_ptp_node_cannot_forge_a_mark() {
    require_root!();
    forged(Cni::Ptp);
}

#[test]
fn a_pod_on_a_bridge_node_cannot_forge_a_mark() {
    require_root!();
    forged(Cni::Bridge);
}

/// Sends marked packets from a container without an object and from another node.
#[test]
fn nobody_whom_netpold_does_not_know_can_forge_a_mark() {
    require_root!();
    let mut cluster = TestCluster::two();
    cluster.add(0, "server");
    cluster.policy("server", isolate("server", &["Ingress"])).enforce();
    let zombie = cluster.nodes[0].add_pod(&PodSpec::new(NAMESPACE, "zombie")).unwrap();
    let server = cluster.pod("server");
    // Number of the first endpoint.
    let forged = mark(endpoint_slot(server.host_ifindex(), 0), 1) as u16;
    let marker = match zombie.set_tc_index("eth0", forged) {
        Ok(marker) => marker,
        Err(e) => return eprintln!("SKIPPED forged marks: no TCX here: {e:#}"),
    };
    let devices = |status: &serde_json::Value| status["devices"].as_array().map(Vec::len);
    cluster.agents[0]
        .wait_for("at two devices", netpold_testbed::cluster::ENFORCED, |status| {
            devices(status) == Some(2)
        })
        .unwrap();
    let server = cluster.pod("server");
    none_pass(&zombie, server, server.addresses());
    drop(marker);
    let _stain = cluster.nodes[1].set_tc_index(&cluster.link(1), forged).unwrap();
    none_pass(&cluster.nodes[1], server, server.addresses());
    let to = server.addresses()[0];
    let own = cluster.nodes[0].probe(netpold_testbed::ProbeProtocol::Tcp, to, PORT, MOMENT * 10);
    assert!(own.connected(), "the server is there: {own}");
    all_pass(&cluster.nodes[0], server, server.addresses());
}
