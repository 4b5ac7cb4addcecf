//! Pods whose status has no address yet: known by what their CNI plugin answered.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{Cluster, ENFORCED, PORT};
use netpold_testbed::{Cni, Protocol, require_root};
use serde_json::Value;

use crate::load::guarded;

/// A cluster whose agents look for answers in a directory that is not there yet.
fn cluster() -> (Cluster, PathBuf) {
    let mut cluster = guarded(Cni::Ptp);
    let results = cluster.directory.path().join("results");
    cluster.arguments = ["--cni-results", results.to_str().unwrap()].map(str::to_owned).to_vec();
    (cluster, results)
}

/// As libcni does: in place.
fn answer(cluster: &Cluster, results: &std::path::Path, name: &str) -> PathBuf {
    let pod = cluster.pod(name);
    let path = results.join(format!("testbed-{}-eth0", pod.uid()));
    std::fs::write(&path, pod.cni_result(pod.uid()).to_string()).unwrap();
    path
}

fn is_isolated(name: &'static str) -> impl Fn(&Value) -> bool {
    move |status| {
        let all = status["endpoints"].as_array();
        all.is_some_and(|all| all.iter().any(|e| e["pod"]["name"] == name && !e["hook"].is_null()))
    }
}

#[test]
fn an_answer_of_cni_is_enough() {
    require_root!();
    let (mut cluster, results) = cluster();
    cluster.enforce();
    // The pod is made again, under the same name: its status knows no address.
    drop(cluster.take("server"));
    cluster.add(0, "server");
    cluster.pending.insert("server".to_owned());
    cluster.write();
    cluster.agents[0]
        .wait_for("without the former one", ENFORCED, |status| !is_isolated("server")(status))
        .unwrap();
    std::fs::create_dir(&results).unwrap();
    std::fs::write(results.join("half"), b"{\"kind\":").unwrap();
    std::fs::write(results.join("other"), b"not JSON").unwrap();
    let path = answer(&cluster, &results, "server");
    cluster.wait();
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    // DEL, before the pod is gone: its veth is bound to it. Another pod's policy shows that the agent
    // has looked.
    std::fs::remove_file(path).unwrap();
    cluster.without_policy("f").without_policy("to").write();
    cluster.wait();
    cluster.reaches("stranger", "friend");
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    // The status has the last word, and the first.
    cluster.pending.clear();
    cluster.enforce();
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

/// How long a pod that sends from the beginning gets through, from the answer on: containers start
/// after it.
#[test]
fn from_the_answer_to_policy() {
    require_root!();
    const ROUNDS: usize = 10;
    let (mut cluster, results) = cluster();
    std::fs::create_dir(&results).unwrap();
    cluster.enforce();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        drop(cluster.take("friend"));
        cluster.add(0, "friend");
        cluster.pending.insert("friend".to_owned());
        cluster.write();
        cluster.agents[0]
            .wait_for("without the former one", ENFORCED, |status| !is_isolated("friend")(status))
            .unwrap();
        let to = cluster.pod("stranger").ip4().unwrap();
        let netns = std::sync::Arc::clone(cluster.pod("friend").netns());
        let (stop, began) = (AtomicBool::new(false), AtomicBool::new(false));
        let (last, path) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let socket = netns.run(|| std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
                socket.connect((to, PORT)).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
                let mut last = None;
                while !stop.load(Ordering::Relaxed) {
                    let sent = Instant::now();
                    let answered =
                        socket.send(b"ping").is_ok() && socket.recv(&mut [0; 64]).is_ok();
                    if answered {
                        last = Some(sent);
                        began.store(true, Ordering::Relaxed);
                    }
                }
                last.expect("a pod that nobody knows gets through")
            });
            let patience = Instant::now() + ENFORCED;
            while !began.load(Ordering::Relaxed) && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(1));
            }
            let path = answer(&cluster, &results, "friend");
            let answered = Instant::now();
            let status = cluster.agents[0].wait_for("isolating", ENFORCED, is_isolated("friend"));
            std::thread::sleep(Duration::from_millis(20));
            stop.store(true, Ordering::Relaxed);
            status.unwrap();
            (sender.join().unwrap().saturating_duration_since(answered), path)
        });
        times.push(last);
        let friend = cluster.pod("friend");
        let denied = friend.probe(Protocol::Udp, to, PORT, Duration::from_millis(100));
        assert!(denied.dropped(), "{denied}");
        std::fs::remove_file(path).unwrap();
    }
    times.sort();
    println!(
        "from the CNI plugin's answer to the last packet that policy denies: median {:?}, max {:?} of {ROUNDS}",
        times[ROUNDS / 2],
        times[ROUNDS - 1]
    );
}
