//! Agents that end in any way and come back.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use netpold_testbed::{Cni, Protocol, require_root};
use nix::sys::signal::Signal;

use crate::cluster::{Cluster, MOMENT, PATIENCE, allow_from, allow_to, isolate};

const BOTH: [&str; 2] = ["Ingress", "Egress"];

/// A server for `friend` alone; `friend` is isolated too, so it needs conntrack for the answers.
fn guarded() -> Cluster {
    let mut cluster = Cluster::one(Cni::Ptp).with_pods(&["server", "friend", "stranger"]);
    cluster.policy("s", isolate("server", &BOTH)).policy("from", allow_from("server", "friend"));
    cluster.policy("f", isolate("friend", &BOTH)).policy("to", allow_to("friend", "server"));
    cluster.enforce();
    cluster
}

/// Ends the agent and starts it again, with traffic all the time.
fn under_load(signal: Signal) {
    let mut cluster = guarded();
    let addresses = cluster.pod("server").addresses().to_vec();
    let mut open: Vec<_> = addresses
        .iter()
        .flat_map(|to| [Protocol::Tcp, Protocol::Udp].map(|p| cluster.flow("friend", p, *to)))
        .collect();
    let (stop, pings, probes) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let stranger = cluster.take("stranger");
    let (stopped, pinged, probed) = (&stop, &pings, &probes);
    std::thread::scope(|scope| {
        // Stops the others also when something here panics.
        let _stop = StopOnDrop(stopped);
        let friend = scope.spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                assert!(open.iter_mut().all(|flow| flow.ping(PATIENCE)), "a flow broke");
                pinged.fetch_add(1, Ordering::Relaxed);
            }
        });
        let stranger = scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                leaks_nothing(&stranger, &addresses);
                probed.fetch_add(1, Ordering::Relaxed);
            }
        });
        more(pinged, 20);
        cluster.agents[0].end(signal);
        more(pinged, 20);
        more(probed, 2);
        // The pod is only taken out of the map: it is to stay in the manifest.
        cluster.agents[0].restart(&cluster.nodes[0]).unwrap();
        cluster.agents[0].wait_enforced(crate::cluster::ENFORCED).unwrap();
        more(pinged, 20);
        more(probed, 2);
        stopped.store(true, Ordering::Relaxed);
        friend.join().unwrap();
        stranger.join().unwrap();
    });
    println!("{} rounds of pings, {} of probes", pings.into_inner(), probes.into_inner());
    cluster.reaches("friend", "server");
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn leaks_nothing(from: &netpold_testbed::Pod, addresses: &[IpAddr]) {
    crate::cluster::none_pass(from, from, addresses);
}

/// Waits until a counter has grown by so much.
fn more(counter: &AtomicU32, by: u32) {
    let goal = counter.load(Ordering::Relaxed) + by;
    let deadline = std::time::Instant::now() + PATIENCE * 3;
    while counter.load(Ordering::Relaxed) < goal {
        assert!(std::time::Instant::now() < deadline, "traffic has stopped");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn terminated_and_started_again_under_load() {
    if require_root("terminated_and_started_again_under_load") {
        under_load(Signal::SIGTERM);
    }
}

#[test]
fn killed_and_started_again_under_load() {
    if require_root("killed_and_started_again_under_load") {
        under_load(Signal::SIGKILL);
    }
}

/// What changes while no agent runs is enforced by the next one, and not before.
#[test]
fn the_next_agent_catches_up() {
    if !require_root("the_next_agent_catches_up") {
        return;
    }
    let mut cluster = guarded();
    let to = cluster.pod("server").addresses()[0];
    let mut flow = cluster.flow("friend", Protocol::Tcp, to);
    cluster.agents[0].end(Signal::SIGKILL);
    cluster.policy("from", allow_from("server", "stranger"));
    cluster.add(0, "late");
    cluster.policy("late", isolate("late", &BOTH));
    let gone = cluster.take("stranger");
    gone.delete().unwrap();
    cluster.add(0, "stranger");
    cluster.write();
    assert!(flow.ping(PATIENCE), "the old state is in force");
    cluster.denied("stranger", "server");
    cluster.restart(0);
    assert!(!flow.ping(MOMENT), "the new state is in force");
    cluster.reaches("stranger", "server");
    cluster.denied("stranger", "late");
}
