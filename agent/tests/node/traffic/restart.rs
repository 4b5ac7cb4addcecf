//! Agents that end in any way and start again.

use netpold_testbed::cluster::{ENFORCED, MOMENT, PATIENCE, TestCluster, allow_from, isolate};
use netpold_testbed::{Cni, ProbeProtocol, require_root};
use nix::sys::signal::Signal;

use crate::traffic::load::{guarded, under_load};

fn again_and_again(signal: Signal) {
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    let end = |cluster: &mut TestCluster| cluster.agents[0].end(signal);
    let start = |cluster: &mut TestCluster| cluster.restart(0);
    under_load(&mut cluster, &[&end, &start, &end, &start]);
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

#[test]
fn terminated_and_started_again_under_load() {
    require_root!();
    again_and_again(Signal::SIGTERM);
}

#[test]
fn killed_and_started_again_under_load() {
    require_root!();
    again_and_again(Signal::SIGKILL);
}

/// Checks that the next agent enforces changes made while no agent runs, and that they have no effect before.
#[test]
fn the_next_agent_catches_up() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    let to = cluster.pod("server").addresses()[0];
    let mut flow = cluster.flow("friend", ProbeProtocol::Tcp, to);
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

/// Restarts the agent without objects, as if the volume with the manifests were not mounted yet.
fn over_an_empty_directory(mut cluster: TestCluster) {
    cluster.manifests.remove("state.json").unwrap();
    cluster.agents[0].restart(&cluster.nodes[0]).unwrap();
    let held = |status: &serde_json::Value| {
        let problem = status["problems"][0].as_str().unwrap_or_default();
        problem.contains("holds no object; an earlier agent's enforcement stays")
            && status["in_sync"] == false
    };
    cluster.agents[0].wait_for("held", ENFORCED, held).unwrap();
    std::thread::sleep(MOMENT);
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    cluster.policy("from", allow_from("server", "stranger")).enforce();
    cluster.reaches("stranger", "server");
    assert!(!held(&cluster.agents[0].status().unwrap()));
}

fn ended() -> TestCluster {
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.policy("from", allow_from("server", "friend")).enforce();
    cluster.agents[0].end(Signal::SIGTERM);
    cluster
}

#[test]
fn an_empty_directory_opens_nothing() {
    require_root!();
    over_an_empty_directory(ended());
}

/// Checks that the agent does not read tables of another layout version, while the programs of that version judge.
#[test]
fn an_empty_directory_opens_nothing_after_an_upgrade() {
    require_root!();
    let cluster = ended();
    let pins = cluster.agents[0].bpffs();
    let entries = std::fs::read_dir(&pins).unwrap().map(|entry| entry.unwrap().file_name());
    let version = entries.into_iter().find(|name| name.to_string_lossy().starts_with('v')).unwrap();
    std::fs::rename(pins.join(version), pins.join("v0")).unwrap();
    over_an_empty_directory(cluster);
    assert!(!pins.join("v0").exists(), "the other version's tables went when they were replaced");
}
