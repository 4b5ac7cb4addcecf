//! Pods that are created, deleted and changed, and their attached programs.

use std::fs;

use netpold_testbed::cluster::{ENFORCED, NAMESPACE, PATIENCE, TestCluster, allow_from, isolate};
use netpold_testbed::{Agent, Cni, PodSpec, ProbeProtocol, require_root};
use serde_json::Value;

/// Returns a cluster with a server that allows ingress from `friend` only.
fn guarded(cni: Cni) -> TestCluster {
    let mut cluster = TestCluster::one(cni).with_pods(&["server", "friend", "stranger"]);
    cluster.policy("server", allow_from("server", "friend")).enforce();
    cluster
}

/// Returns the names of the pinned links of an interface.
fn links(agent: &Agent, ifindex: u32) -> Vec<String> {
    let names = fs::read_dir(agent.bpffs().join("links")).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with(&format!("{ifindex}-"))).collect();
    names.sort();
    names
}

fn come_go_and_change(cni: Cni) {
    let mut cluster = guarded(cni);
    let spec = PodSpec::new(NAMESPACE, "second-friend").label("app", "friend");
    cluster.add_as(0, spec);
    cluster.add(0, "second-stranger");
    cluster.enforce();
    cluster.reaches("second-friend", "server");
    cluster.denied("second-stranger", "server");

    cluster.pod_mut("second-stranger").set_labels(&[("app", "friend")]);
    cluster.pod_mut("friend").set_labels(&[("app", "enemy")]);
    cluster.enforce();
    cluster.reaches("second-stranger", "server");
    cluster.denied("friend", "server");

    let former = cluster.pod("second-friend").addresses().to_vec();
    let other = match cni {
        Cni::Ptp => ["10.1.1.99", "fd00:1:1::99"],
        Cni::Bridge => ["10.1.1.98", "fd00:1:1::98"],
    };
    let other = other.map(|address| address.parse().unwrap());
    cluster.pod_mut("second-friend").change_addresses(&other).unwrap();
    cluster.pod_mut("stranger").change_addresses(&former).unwrap();
    cluster.enforce();
    cluster.reaches("second-friend", "server");
    cluster.denied("stranger", "server");
}

#[test]
fn pods_of_a_ptp_node_come_go_and_change() {
    require_root!();
    come_go_and_change(Cni::Ptp);
}

#[test]
fn pods_of_a_bridge_node_come_go_and_change() {
    require_root!();
    come_go_and_change(Cni::Bridge);
}

#[test]
fn a_server_that_changes_address_stays_isolated() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    let other = ["10.1.1.77", "fd00:1:1::77"].map(|address| address.parse().unwrap());
    cluster.pod_mut("server").change_addresses(&other).unwrap();
    cluster.enforce();
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

/// A pod with the address, the interface index and even the name of a former pod gets neither its flows nor its policy.
#[test]
fn nothing_is_inherited() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    let friend = cluster.take("friend");
    let (addresses, index) = (friend.addresses().to_vec(), friend.host_ifindex());
    friend.delete().unwrap();
    let successor = PodSpec::new(NAMESPACE, "heir").label("app", "heir");
    cluster.add_as(0, successor.addresses(&addresses).ifindex(index));
    cluster.enforce();
    cluster.denied("heir", "server");

    let server = cluster.take("server");
    let (addresses, index) = (server.addresses().to_vec(), server.host_ifindex());
    server.delete().unwrap();
    let free = PodSpec::new(NAMESPACE, "server").label("app", "free");
    cluster.add_as(0, free.addresses(&addresses).ifindex(index));
    cluster.enforce();
    cluster.reaches("heir", "server");
    cluster.reaches("stranger", "server");
}

#[test]
fn programs_leave_with_the_pod() {
    require_root!();
    let mut cluster = guarded(Cni::Bridge);
    let (gone, stays) = (cluster.take("friend"), cluster.pod("server").host_ifindex());
    let index = gone.host_ifindex();
    let both = |index| vec![format!("{index}-egress"), format!("{index}-ingress")];
    assert_eq!(links(&cluster.agents[0], index), both(index));
    gone.delete().unwrap();
    cluster.enforce();
    assert_eq!(links(&cluster.agents[0], index), Vec::<String>::new());
    assert_eq!(links(&cluster.agents[0], stays), both(stays));
    cluster.denied("stranger", "server");
}

/// The flows of a deleted pod are removed; without that, the entry of an established connection would stay for days.
#[test]
fn flows_end_with_their_pod() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "mirror", "friend"]);
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    for name in ["server", "mirror"] {
        cluster.policy(name, allow_from(name, "friend"));
    }
    cluster.enforce();
    let addresses = |name: &str| cluster.pod(name).addresses().to_vec();
    let addresses = [addresses("server"), addresses("mirror")].concat();
    let mut flows: Vec<_> =
        addresses.iter().map(|to| cluster.flow("friend", ProbeProtocol::Tcp, *to)).collect();
    let tracked = |status: &Value, count: u64| {
        let families = status["conntrack"].as_array().map_or(&[][..], Vec::as_slice);
        families.len() == 2 && families.iter().all(|family| family["used"] == count)
    };
    cluster.agents[0].wait_for("tracking both", ENFORCED, |s| tracked(s, 2)).unwrap();
    cluster.take("mirror").delete().unwrap();
    cluster.enforce();
    cluster.agents[0].wait_for("tracking one", ENFORCED, |s| tracked(s, 1)).unwrap();
    for flow in &mut flows[..addresses.len() / 2] {
        assert!(flow.ping(PATIENCE), "the flows of the other pod go on");
    }
}

/// Deletes a pod's object while the pod remains: its veth stays under the same policy and is not a device of the node.
/// The programs are removed with the veth.
fn programs_stay_with_the_veth(arguments: &[&str]) {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    cluster.policy("stranger", isolate("stranger", &["Egress"])).enforce();
    let devices = |cluster: &TestCluster| cluster.agents[0].status().unwrap()["devices"].clone();
    let zombie = cluster.take("stranger");
    let index = zombie.host_ifindex();
    cluster.deleted.insert(zombie.name().to_owned(), index);
    cluster.enforce();
    assert_eq!(devices(&cluster), serde_json::json!([]));
    assert_eq!(links(&cluster.agents[0], index).len(), 2);
    netpold_testbed::cluster::none_pass(
        &zombie,
        cluster.pod("friend"),
        cluster.pod("friend").addresses(),
    );
    cluster.deleted.clear();
    zombie.delete().unwrap();
    cluster.enforce();
    assert_eq!(links(&cluster.agents[0], index), Vec::<String>::new());
}

#[test]
fn programs_stay_with_the_veth_of_a_deleted_pod() {
    require_root!();
    programs_stay_with_the_veth(&[]);
}

#[test]
fn programs_stay_with_the_veth_where_devices_are_left_alone() {
    require_root!();
    programs_stay_with_the_veth(&["--node-devices=none"]);
}
