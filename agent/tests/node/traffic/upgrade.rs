//! Agents with another layout of their tables: upgrade and downgrade.

use netpold_ebpf::layout::LAYOUT_VERSION;
use netpold_testbed::cluster::{TestCluster, binary};
use netpold_testbed::{Cni, other_layout, require_root};
use nix::sys::signal::Signal;

use crate::traffic::kernel;
use crate::traffic::load::{guarded, under_load, under_old_load};

/// Function that runs one of the kinds of load.
type Traffic = fn(&mut TestCluster, &[&dyn Fn(&mut TestCluster)]);

fn up_and_down(mut cluster: TestCluster, traffic: Traffic) {
    let other = other_layout::build();
    cluster.enforce();
    let versions = |cluster: &TestCluster| {
        let entries = std::fs::read_dir(cluster.agents[0].bpffs()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with('v')).collect();
        names.sort();
        names
    };
    let own = versions(&cluster);
    let up = |cluster: &mut TestCluster| {
        cluster.agents[0].end(Signal::SIGKILL);
        cluster.agents[0].set_binary(&other);
        cluster.restart(0);
        // Version number that the feature `other-layout` sets.
        let version = format!("v{}", 1000 + LAYOUT_VERSION);
        assert_eq!(versions(cluster), [version], "the former version's tables are gone");
    };
    let down = |cluster: &mut TestCluster| {
        cluster.agents[0].set_binary(binary());
        cluster.restart(0);
        assert_eq!(versions(cluster), own, "the former version's tables are gone");
    };
    traffic(&mut cluster, &[&up, &down, &up, &down]);
    let log = cluster.agents[0].log();
    let carried = log.matches("migrated flows of other tables").count();
    assert!(carried >= 4, "{log}");
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

#[test]
fn upgrade_and_downgrade_across_layouts_under_load() {
    require_root!();
    up_and_down(guarded(Cni::Ptp), under_load);
}

/// XDP of the former version must not drop packets by tables that are no longer updated.
#[test]
fn upgrade_and_downgrade_across_layouts_behind_xdp() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.arguments = ["--pod-egress-hook", "xdp"].map(str::to_owned).into();
    up_and_down(cluster, under_load);
}

#[test]
fn upgrade_and_downgrade_across_layouts_below_clsact() {
    require_root!();
    let mut cluster = guarded(Cni::Bridge);
    cluster.prepare = kernel::without_tcx;
    up_and_down(cluster, under_old_load);
}
