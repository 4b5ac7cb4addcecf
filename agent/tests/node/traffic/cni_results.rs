//! Pods without an address in their status, recognised by the results of their CNI plugin.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{ENFORCED, PORT, TestCluster};
use netpold_testbed::{Cni, Netns, require_root};
use serde_json::Value;

use crate::traffic::load::guarded;

/// Returns a cluster with agents that look for results in a directory that does not exist yet.
fn cluster() -> (TestCluster, PathBuf) {
    let mut cluster = guarded(Cni::Ptp);
    let results = cluster.directory.path().join("results");
    cluster.arguments = ["--cni-results", results.to_str().unwrap()].map(str::to_owned).to_vec();
    (cluster, results)
}

/// Writes a pod's result in place, as libcni does.
fn answer(cluster: &TestCluster, results: &std::path::Path, name: &str) -> PathBuf {
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
    // The pod is created again under the same name, without an address in its status.
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
    // CNI DEL comes before the end of the pod; the veth stays bound to the pod. The policy of another pod shows that
    // the agent has read the directory again.
    std::fs::remove_file(path).unwrap();
    cluster.without_policy("f").without_policy("to").write();
    cluster.wait();
    cluster.reaches("stranger", "friend");
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
    // The addresses in the status take precedence over the result.
    cluster.pending.clear();
    cluster.enforce();
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

/// A pod that sends from its start reaches no pod before its CNI plugin's result, then exactly the pods that policy
/// allows.
#[test]
fn from_the_answer_to_the_first_packet() {
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
        let [allowed, denied] = ["server", "stranger"].map(|to| cluster.pod(to).ip4().unwrap());
        let netns = std::sync::Arc::clone(cluster.pod("friend").netns());
        let stop = AtomicBool::new(false);
        let (first, path) = std::thread::scope(|scope| {
            let begin = |to| {
                let (netns, stop) = (&netns, &stop);
                scope.spawn(move || first_answer(netns, to, stop))
            };
            let (server, stranger) = (begin(allowed), begin(denied));
            std::thread::sleep(Duration::from_millis(100));
            let answered = Instant::now();
            let path = answer(&cluster, &results, "friend");
            let first = server.join().unwrap().expect("the server answers");
            std::thread::sleep(Duration::from_millis(20));
            stop.store(true, Ordering::Relaxed);
            assert_eq!(stranger.join().unwrap(), None, "policy denies it");
            assert!(first > answered, "a pod that nobody knows is closed");
            (first.saturating_duration_since(answered), path)
        });
        times.push(first);
        std::fs::remove_file(path).unwrap();
    }
    times.sort();
    println!(
        "from the CNI plugin's answer to the first packet that policy allows: median {:?}, max {:?} of {ROUNDS}",
        times[ROUNDS / 2],
        times[ROUNDS - 1]
    );
}

/// Returns the time at which the first answered packet was sent.
fn first_answer(netns: &Netns, to: IpAddr, stop: &AtomicBool) -> Option<Instant> {
    let socket = netns.run(|| std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    socket.connect((to, PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let end = Instant::now() + ENFORCED;
    while !stop.load(Ordering::Relaxed) && Instant::now() < end {
        let sent = Instant::now();
        if socket.send(b"ping").is_ok() && socket.recv(&mut [0; 64]).is_ok() {
            return Some(sent);
        }
    }
    None
}
