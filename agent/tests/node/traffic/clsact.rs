//! Enforcement by filters below a clsact qdisc, as on kernels before 6.6.

use netpold_testbed::cluster::{ENFORCED, TestCluster};
use netpold_testbed::{Cni, require_root};
use nix::sys::signal::Signal;

use crate::traffic::hooks;
use crate::traffic::kernel;
use crate::traffic::load::{guarded, under_load};

#[test]
fn clsact_under_load() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.prepare = kernel::without_tcx;
    cluster.enforce();
    let status = cluster.agents[0].status().unwrap();
    assert_eq!(status["endpoints"][1]["hook"], "clsact", "{status}");
    let kill = |cluster: &mut TestCluster| cluster.agents[0].end(Signal::SIGKILL);
    let start = |cluster: &mut TestCluster| cluster.restart(0);
    under_load(&mut cluster, &[&kill, &start]);
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    cluster.without_policy("s").without_policy("from").enforce();
    cluster.reaches("stranger", "server");
    cluster.denied("stranger", "friend");
}

/// Deletes a pod's object while the pod's veth remains: its filters remain too.
#[test]
fn filters_stay_with_the_veth_of_a_deleted_pod() {
    require_root!();
    let mut cluster = guarded(Cni::Bridge);
    cluster.prepare = kernel::without_tcx;
    cluster.enforce();
    let zombie = cluster.take("friend");
    cluster.deleted.insert(zombie.name().to_owned(), zombie.host_ifindex());
    cluster.enforce();
    let stranger = cluster.pod("stranger");
    netpold_testbed::cluster::none_pass(&zombie, stranger, stranger.addresses());
    netpold_testbed::cluster::none_pass(&zombie, &zombie, cluster.pod("server").addresses());
    // The new agent finds the pod's binding again by the remaining filters.
    cluster.restart(0);
    let stranger = cluster.pod("stranger");
    netpold_testbed::cluster::none_pass(&zombie, stranger, stranger.addresses());
}

/// Adds a filter with the same first priority as netpold's, so that the kernel runs it first.
#[test]
fn a_filter_put_in_front_is_put_behind() {
    const TC_ACT_OK: i32 = 0;
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.prepare = kernel::without_tcx;
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    cluster.enforce();
    let pin = cluster.agents[0].bpffs().join("accept");
    hooks::pin(TC_ACT_OK, &pin).unwrap();
    for (pod, side) in [("server", "egress"), ("stranger", "ingress")] {
        let device = cluster.pod(pod).host_interface();
        let add = ["filter", "add", "dev", device, side, "prio", "1", "bpf", "da", "object-pinned"];
        let added = cluster.nodes[0].command("tc").unwrap().args(add).arg(&pin).status().unwrap();
        assert!(added.success());
    }
    let first = |status: &serde_json::Value| status["repaired"]["order"].as_u64() >= Some(2);
    cluster.agents[0].wait_for("first again", ENFORCED, first).unwrap();
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
    let status = cluster.agents[0].status().unwrap();
    let problems = status["problems"].as_array().unwrap();
    // The accepting filter now follows netpold's, and the status names its effect there.
    let other = |problem: &&serde_json::Value| !problem.to_string().contains("lost skb->tc_index");
    assert_eq!(problems.iter().find(other), None);
}
