//! Agents that end in any way and come back.

use netpold_testbed::{Cni, Protocol, require_root};
use nix::sys::signal::Signal;

use crate::cluster::{Cluster, MOMENT, PATIENCE, allow_from, isolate};
use crate::load::{guarded, under_load};

fn again_and_again(signal: Signal) {
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    let end = |cluster: &mut Cluster| cluster.agents[0].end(signal);
    let start = |cluster: &mut Cluster| cluster.restart(0);
    under_load(&mut cluster, &[&end, &start, &end, &start]);
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

#[test]
fn terminated_and_started_again_under_load() {
    if require_root("terminated_and_started_again_under_load") {
        again_and_again(Signal::SIGTERM);
    }
}

#[test]
fn killed_and_started_again_under_load() {
    if require_root("killed_and_started_again_under_load") {
        again_and_again(Signal::SIGKILL);
    }
}

/// What changes while no agent runs is enforced by the next one, and not before.
#[test]
fn the_next_agent_catches_up() {
    if !require_root("the_next_agent_catches_up") {
        return;
    }
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    let to = cluster.pod("server").addresses()[0];
    let mut flow = cluster.flow("friend", Protocol::Tcp, to);
    cluster.agents[0].end(Signal::SIGKILL);
    cluster.policy("from", allow_from("server", "stranger"));
    cluster.add(0, "late");
    cluster.policy("late", isolate("late", &["Ingress", "Egress"]));
    cluster.take("stranger").delete().unwrap();
    cluster.add(0, "stranger");
    cluster.write();
    assert!(flow.ping(PATIENCE), "the old state is in force");
    cluster.denied("stranger", "server");
    cluster.restart(0);
    assert!(!flow.ping(MOMENT), "the new state is in force");
    cluster.reaches("stranger", "server");
    cluster.denied("stranger", "late");
}
