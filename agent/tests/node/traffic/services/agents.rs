//! Programs at the node's devices: left out, without an agent, and as filters.

use netpold_testbed::cluster::{ENFORCED, TestCluster};
use netpold_testbed::services::{TestService, answer, provide};
use netpold_testbed::{Proxy, require_root};
use nix::sys::signal::Signal;

use super::backends::two_nodes;
use crate::traffic::kernel;

const BACKENDS: [&str; 4] = ["friend1", "enemy1", "friend2", "enemy2"];

/// Returns a cluster with a Service of friends and enemies on both nodes, in force.
fn mixed(mut cluster: TestCluster) -> (TestCluster, TestService) {
    let mixed = TestService::new(1, "mixed").pods(&cluster, &BACKENDS);
    provide(&mut cluster, Proxy::Nftables, std::slice::from_ref(&mixed));
    cluster.enforce();
    (cluster, mixed)
}

#[track_caller]
fn friends_alone(cluster: &TestCluster, service: &TestService) {
    for client in ["client1", "client2"] {
        answer(cluster.pod(client), &service.sockets(), &["", "friend1", "friend2"]);
    }
}

/// Shows the purpose of the programs at devices: with `--node-devices=none`, netpold judges egress at the pod only.
#[test]
fn services_where_devices_are_left_alone() {
    require_root!();
    let mut cluster = two_nodes();
    cluster.arguments = vec!["--node-devices=none".into()];
    // A real wire would drop the mark, but between namespaces of one machine it reaches the other node.
    let wires: Result<Vec<_>, _> =
        (0..2).map(|node| cluster.nodes[node].set_tc_index(&cluster.link(node), 0)).collect();
    let _wires = match wires {
        Ok(wires) => wires,
        Err(e) => return eprintln!("SKIPPED devices left alone: no TCX here: {e:#}"),
    };
    let (cluster, mixed) = mixed(cluster);
    answer(cluster.pod("client1"), &mixed.sockets(), &["", "friend1", "friend2", "enemy2"]);
    answer(cluster.pod("client2"), &mixed.sockets(), &["", "friend1", "enemy1", "friend2"]);
}

/// Runs XDP in front of both sides: it passes answers and packets that are judged a second time.
#[test]
fn services_behind_xdp() {
    require_root!();
    let mut cluster = two_nodes();
    let arguments = ["--pod-egress-hook", "xdp", "--xdp-uplink", "link*"];
    cluster.arguments = arguments.map(str::to_owned).into();
    let (cluster, mixed) = mixed(cluster);
    friends_alone(&cluster, &mixed);
}

#[test]
fn services_while_the_agent_is_gone_and_back() {
    require_root!();
    let (mut cluster, mixed) = mixed(two_nodes());
    for node in 0..2 {
        cluster.agents[node].end(Signal::SIGKILL);
        friends_alone(&cluster, &mixed);
        cluster.restart(node);
    }
    friends_alone(&cluster, &mixed);
}

/// Checks that a link of a device is restored after an operator unpinned it, as for a pod.
#[test]
fn services_after_a_devices_program_was_removed() {
    require_root!();
    let (mut cluster, mixed) = mixed(two_nodes());
    let name = cluster.agents[0].status().unwrap()["devices"][0].as_str().unwrap().to_owned();
    let ifindex = cluster.nodes[0].ifindex(&name).unwrap().unwrap();
    let pin = cluster.agents[0].bpffs().join(format!("links/{ifindex}-ingress"));
    match std::fs::remove_file(&pin) {
        Ok(()) => {}
        Err(e) => return eprintln!("SKIPPED a device's program removed: no TCX link here: {e}"),
    }
    let repaired = |status: &serde_json::Value| status["repairs"] == 1;
    cluster.agents[0].wait_for("repaired", ENFORCED, repaired).unwrap();
    friends_alone(&cluster, &mixed);
}

#[test]
fn services_with_filters_below_clsact() {
    require_root!();
    let mut cluster = two_nodes();
    cluster.prepare = kernel::without_tcx;
    let (cluster, mixed) = mixed(cluster);
    let status = cluster.agents[0].status().unwrap();
    assert_eq!(status["endpoints"][1]["hook"], "clsact", "{status}");
    friends_alone(&cluster, &mixed);
}
