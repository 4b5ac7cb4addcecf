//! The last good state, at a boot before the source has said anything.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use netpold_testbed::{Cni, require_root, without_twins};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::cluster::{Cluster, ENFORCED, allow_from, binary};
use crate::load::guarded;

/// Waits until the state is on disk and newer than some time.
fn wait_kept(cluster: &Cluster) {
    let file = cluster.agents[0].state().join("last");
    let deadline = Instant::now() + ENFORCED;
    while !file.exists() {
        assert!(Instant::now() < deadline, "no state is kept:\n{}", cluster.agents[0].log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What a reboot leaves of netpold: the state's file and no pin. The source has nothing to say yet.
fn reboot(cluster: &mut Cluster) {
    cluster.agents[0].end(Signal::SIGKILL);
    let mut command = Command::new(binary());
    without_twins(&mut command).arg("uninstall").arg("--bpffs").arg(cluster.agents[0].bpffs());
    assert!(command.output().unwrap().status.success());
    cluster.reaches("stranger", "server");
    cluster.manifests.remove("state.json").unwrap();
    cluster.agents[0].restart(&cluster.nodes[0]).unwrap();
}

fn restored(status: &Value) -> bool {
    status["problems"].to_string().contains("the last good state is enforced")
        && status["endpoints"].as_array().is_some_and(|all| {
            all.len() >= 3 && all.iter().all(|e| e["ifindex"].is_null() || !e["hook"].is_null())
        })
}

#[test]
fn the_last_good_state_is_enforced_at_boot() {
    if !require_root("the_last_good_state_is_enforced_at_boot") {
        return;
    }
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    wait_kept(&cluster);
    reboot(&mut cluster);
    cluster.agents[0].wait_for("back at its last state", ENFORCED, restored).unwrap();
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
    // The source comes, with other objects.
    cluster.without_policy("s").policy("from", allow_from("server", "stranger"));
    cluster.without_policy("f").without_policy("to").enforce();
    cluster.reaches("stranger", "server");
    cluster.denied("friend", "server");
    let status = cluster.agents[0].status().unwrap();
    assert_eq!(status["problems"].as_array().map(Vec::len), Some(0), "{status}");
}

#[test]
fn a_damaged_state_is_said_and_left_alone() {
    if !require_root("a_damaged_state_is_said_and_left_alone") {
        return;
    }
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    wait_kept(&cluster);
    let file = cluster.agents[0].state().join("last");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    reboot(&mut cluster);
    cluster.agents[0].wait_for("there", ENFORCED, |_| true).unwrap();
    let log = cluster.agents[0].log();
    assert!(log.contains("begins without it"), "{log}");
    cluster.enforce();
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
}

#[test]
fn a_full_disk_is_said_and_enforcement_goes_on() {
    if !require_root("a_full_disk_is_said_and_enforcement_goes_on") {
        return;
    }
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    wait_kept(&cluster);
    let directory = cluster.agents[0].state();
    let small = Some("size=4k");
    mount(Some("none"), &directory, Some("tmpfs"), MsFlags::empty(), small).unwrap();
    fs::write(directory.join("filler"), [1; 4096]).unwrap();
    cluster.policy("other", allow_from("nobody", "friend")).enforce();
    let full = |status: &Value| status["problems"].to_string().contains("os error 28");
    cluster.agents[0].wait_for("aware of the full disk", ENFORCED, full).unwrap();
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
    umount2(&directory, MntFlags::MNT_DETACH).unwrap();
    let fine = |status: &Value| status["problems"].as_array().is_some_and(Vec::is_empty);
    cluster.agents[0].wait_for("without a problem", ENFORCED, fine).unwrap();
}
