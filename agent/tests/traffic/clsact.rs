//! Enforcement by filters below a clsact qdisc, as on kernels before 6.6.

use netpold_testbed::{Cni, require_root};
use nix::sys::signal::Signal;

use crate::cluster::Cluster;
use crate::kernel;
use crate::load::{guarded, under_load};

#[test]
fn clsact_under_load() {
    if !require_root("clsact_under_load") {
        return;
    }
    let mut cluster = guarded(Cni::Ptp);
    cluster.prepare = kernel::without_tcx;
    cluster.enforce();
    let status = cluster.agents[0].status().unwrap();
    assert_eq!(status["endpoints"][1]["hook"], "clsact", "{status}");
    let kill = |cluster: &mut Cluster| cluster.agents[0].end(Signal::SIGKILL);
    let start = |cluster: &mut Cluster| cluster.restart(0);
    under_load(&mut cluster, &[&kill, &start]);
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    cluster.without_policy("s").without_policy("from").enforce();
    cluster.reaches("stranger", "server");
    cluster.denied("stranger", "friend");
}

/// The pod stays but is no longer Kubernetes': so do its filters.
#[test]
fn filters_stay_with_the_veth_of_a_deleted_pod() {
    if !require_root("filters_stay_with_the_veth_of_a_deleted_pod") {
        return;
    }
    let mut cluster = guarded(Cni::Bridge);
    cluster.prepare = kernel::without_tcx;
    cluster.enforce();
    let zombie = cluster.take("friend");
    cluster.deleted.insert(zombie.name().to_owned(), zombie.host_ifindex());
    cluster.enforce();
    let stranger = cluster.pod("stranger");
    crate::cluster::none_pass(&zombie, stranger, stranger.addresses());
    crate::cluster::none_pass(&zombie, &zombie, cluster.pod("server").addresses());
    // Its binding is found again by the filters that are still there.
    cluster.restart(0);
    let stranger = cluster.pod("stranger");
    crate::cluster::none_pass(&zombie, stranger, stranger.addresses());
}
