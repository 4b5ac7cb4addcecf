//! Removal of netpold from a node.

use std::path::Path;
use std::process::Output;

use netpold_testbed::cluster::{TestCluster, allow_from, binary};
use netpold_testbed::{Cni, require_root, without_twins};
use nix::sys::signal::Signal;

use crate::traffic::kernel;

/// Runs `netpold uninstall` in the node's network namespace, the only place from which filters are found.
pub(crate) fn uninstall(cluster: &TestCluster) -> Output {
    let mut command = cluster.nodes[0].command(binary()).unwrap();
    without_twins(&mut command).arg("uninstall").arg("--bpffs").arg(cluster.agents[0].bpffs());
    (cluster.prepare)(&mut command);
    command.output().unwrap()
}

#[test]
fn uninstall_takes_everything_away_but_not_under_a_running_agent() {
    require_root!();
    takes_everything_away(TestCluster::one(Cni::Bridge));
}

#[test]
fn uninstall_takes_filters_away() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Bridge);
    cluster.prepare = kernel::without_tcx;
    takes_everything_away(cluster);
}

fn takes_everything_away(cluster: TestCluster) {
    let mut cluster = cluster.with_pods(&["server", "friend", "stranger"]);
    cluster.policy("server", allow_from("server", "friend")).enforce();
    let refused = uninstall(&cluster);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("another netpold agent is running on this pin root"), "{said}");
    cluster.denied("stranger", "server");

    cluster.agents[0].end(Signal::SIGTERM);
    cluster.denied("stranger", "server");
    let done = uninstall(&cluster);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("removed: 7 programs"), "three pods, two directions; the bridge: {said}");
    cluster.reaches("stranger", "server");
    let tables =
        cluster.nodes[0].command("nft").unwrap().args(["list", "tables"]).output().unwrap();
    let tables = String::from_utf8(tables.stdout).unwrap();
    assert!(!tables.contains("netpold"), "{tables}");
    let left = std::fs::read_dir(cluster.agents[0].bpffs()).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // The kernel's own files at the top of a bpffs.
    assert!(
        left.into_iter().all(|name| Path::new(&name).extension().is_some_and(|it| it == "debug")),
        "pins"
    );
}
