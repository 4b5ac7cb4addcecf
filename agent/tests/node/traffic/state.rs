//! The last good state, enforced at a boot before the source delivers objects.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{ENFORCED, PORT, TestCluster, allow_from, eventually};
use netpold_testbed::{Cni, require_root};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::traffic::load::guarded;
use crate::traffic::uninstall::uninstall;

/// Waits until the state is on disk.
fn wait_kept(cluster: &TestCluster) {
    let file = cluster.agents[0].state().join("last");
    let log = || format!("no state is kept:\n{}", cluster.agents[0].log());
    eventually(ENFORCED, || file.exists(), log);
}

/// Kills the agent and removes the pins, as a reboot does; the state file stays.
fn shut_down(cluster: &mut TestCluster) {
    cluster.agents[0].end(Signal::SIGKILL);
    assert!(uninstall(cluster).status.success());
}

/// Reboots the node; the source has no objects yet.
fn reboot(cluster: &mut TestCluster) {
    shut_down(cluster);
    cluster.reaches("stranger", "server");
    cluster.manifests.remove("state.json").unwrap();
    cluster.agents[0].restart(&cluster.nodes[0]).unwrap();
}

/// Returns whether programs judge every pod with a known interface, and at least one isolated pod: no interface is
/// known before the agent has listed them.
fn restored(status: &Value) -> bool {
    let isolated = |it: &Value| it["isolated"].as_array().is_some_and(|all| !all.is_empty());
    status["problems"].to_string().contains("the last good state is enforced")
        && status["endpoints"].as_array().is_some_and(|all| {
            all.len() >= 3
                && all.iter().all(|e| e["ifindex"].is_null() || !e["hook"].is_null())
                && all.iter().any(|e| isolated(e) && !e["hook"].is_null())
        })
}

#[test]
fn the_last_good_state_is_enforced_at_boot() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    wait_kept(&cluster);
    reboot(&mut cluster);
    cluster.agents[0].wait_for("the last good state", ENFORCED, restored).unwrap();
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
    // The source delivers other objects.
    cluster.without_policy("s").policy("from", allow_from("server", "stranger"));
    cluster.without_policy("f").without_policy("to").enforce();
    cluster.reaches("stranger", "server");
    cluster.denied("friend", "server");
    let status = cluster.agents[0].status().unwrap();
    assert_eq!(status["problems"].as_array().map(Vec::len), Some(0), "{status}");
}

#[test]
fn a_damaged_state_is_logged_and_ignored() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    wait_kept(&cluster);
    let file = cluster.agents[0].state().join("last");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    reboot(&mut cluster);
    cluster.agents[0].wait_for("status", ENFORCED, |_| true).unwrap();
    let log = cluster.agents[0].log();
    assert!(log.contains("starting without it"), "{log}");
    cluster.enforce();
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
}

#[test]
fn a_full_disk_is_reported_and_enforcement_goes_on() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    wait_kept(&cluster);
    let directory = cluster.agents[0].state();
    let small = Some("size=4k");
    mount(Some("none"), &directory, Some("tmpfs"), MsFlags::empty(), small).unwrap();
    fs::write(directory.join("filler"), [1; 4096]).unwrap();
    cluster.policy("other", allow_from("nobody", "friend")).enforce();
    let full = |status: &Value| status["problems"].to_string().contains("os error 28");
    cluster.agents[0].wait_for("the problem of the full disk", ENFORCED, full).unwrap();
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
    umount2(&directory, MntFlags::MNT_DETACH).unwrap();
    let fine = |status: &Value| status["problems"].as_array().is_some_and(Vec::is_empty);
    cluster.agents[0].wait_for("without a problem", ENFORCED, fine).unwrap();
}

/// Configures an unreachable API server, with credentials from a program that never ends.
fn without_api_server(cluster: &mut TestCluster) {
    let file = cluster.directory.path().join("kubeconfig");
    let content = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
        clusters: [{name: c, cluster: {server: 'https://192.0.2.1:6443'}}]\n\
        contexts: [{name: c, context: {cluster: c, user: c}}]\n\
        users: [{name: c, user: {exec: {apiVersion: client.authentication.k8s.io/v1, \
        command: sleep, args: ['1000'], interactiveMode: Never}}}]\n";
    fs::write(&file, content).unwrap();
    cluster.agents[0].set_manifests("");
    cluster.agents[0].set_arguments(&["--kubeconfig", file.to_str().unwrap()]);
}

/// Starts the agent while a pod connects to the server repeatedly. Returns the time of the last successful connection
/// and the time until all programs judge, both since the agent's start.
fn boot(cluster: &mut TestCluster) -> (Duration, Duration) {
    let server = SocketAddr::from((cluster.pod("server").ip4().unwrap(), PORT));
    let netns = std::sync::Arc::clone(cluster.pod("stranger").netns());
    let (stop, connected) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let hammer = || {
                let mut last = None;
                while !stop.load(Ordering::Relaxed) {
                    if TcpStream::connect_timeout(&server, Duration::from_millis(50)).is_ok() {
                        last = Some(Instant::now());
                        connected.store(true, Ordering::Relaxed);
                    }
                }
                last
            };
            netns.run(hammer).unwrap()
        });
        let patience = Instant::now() + ENFORCED;
        while !connected.load(Ordering::Relaxed) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        let start = Instant::now();
        cluster.agents[0].restart(&cluster.nodes[0]).unwrap();
        let back = cluster.agents[0].wait_for("the last good state", ENFORCED, restored);
        let exact = start.elapsed();
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Relaxed);
        back.unwrap();
        let last = client.join().unwrap().expect("nothing is enforced before the agent starts");
        (last.saturating_duration_since(start), exact)
    })
}

/// Enforcement by only the state file and the runtime's data.
#[test]
fn enforcement_is_in_force_at_once_at_boot() {
    const ROUNDS: usize = 10;
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    cluster.keep_neighbour("friend", "server");
    cluster.keep_neighbour("server", "friend");
    wait_kept(&cluster);
    without_api_server(&mut cluster);
    let (mut denied, mut exact): (Vec<_>, Vec<_>) = (0..ROUNDS)
        .map(|_| {
            shut_down(&mut cluster);
            boot(&mut cluster)
        })
        .unzip();
    denied.sort();
    exact.sort();
    println!(
        "from the agent's start to the last connection that policy denies: median {:?}, max {:?}; \
         to all programs in force: median {:?}, max {:?} of {ROUNDS}",
        denied[ROUNDS / 2],
        denied[ROUNDS - 1],
        exact[ROUNDS / 2],
        exact[ROUNDS - 1]
    );
    // Without the early closing, pods would be open for the whole load of the programs.
    assert!(denied[ROUNDS / 2] < exact[ROUNDS / 2], "{denied:?} {exact:?}");
    cluster.denied("stranger", "server");
    cluster.reaches("friend", "server");
}

/// Kills the agent while isolated pods are closed until their programs are loaded: they stay closed, and the next
/// agent opens them.
#[test]
fn an_agent_that_ends_while_pods_are_closed_leaves_them_closed() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    cluster.keep_neighbour("friend", "server");
    cluster.keep_neighbour("server", "friend");
    wait_kept(&cluster);
    shut_down(&mut cluster);
    let manifests = cluster.manifests.directory().to_owned();
    without_api_server(&mut cluster);
    cluster.agents[0].restart(&cluster.nodes[0]).unwrap();
    let deadline = Instant::now() + ENFORCED;
    while !cluster.agents[0].log().contains("isolated pods are closed") {
        assert!(Instant::now() < deadline, "{}", cluster.agents[0].log());
        std::thread::sleep(Duration::from_millis(1));
    }
    cluster.agents[0].end(Signal::SIGKILL);
    cluster.denied("stranger", "server");
    cluster.agents[0].set_manifests(manifests);
    cluster.agents[0].set_arguments(&[]);
    cluster.restart(0);
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    let device = cluster.pod("server").host_interface();
    let show = ["filter", "show", "dev", device, "egress"];
    let filters = cluster.nodes[0].command("tc").unwrap().args(show).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&filters.stdout), "", "no filter is left");
}
