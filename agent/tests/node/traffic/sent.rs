//! XDP at the pods' veths, in front of the TC programs that judge egress.

mod cost;
pub(crate) mod tap;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use netpold_testbed::cluster::{ENFORCED, TestCluster, allow_to, isolate};
use netpold_testbed::{Cni, require_root};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::traffic::hooks::attach_xdp;
use crate::traffic::uninstall::uninstall;
use tap::sees_the_denied;

const XDP: [&str; 4] = ["--pod-egress-hook", "xdp", "--readback", "1"];

/// Returns a cluster where `client` may send to `server` only.
fn guarded(cni: Cni) -> TestCluster {
    let mut cluster = TestCluster::one(cni).with_pods(&["server", "client", "other"]);
    cluster.arguments = XDP.map(str::to_owned).into();
    cluster.policy("client", allow_to("client", "server"));
    cluster
}

/// Returns the mode of XDP at each pod with an interface, by name.
fn modes(status: &Value) -> Vec<(String, Option<String>)> {
    let endpoints = status["endpoints"].as_array().unwrap().iter();
    let endpoints = endpoints.filter(|endpoint| endpoint["interface"].is_string());
    let of = |endpoint: &Value| {
        let mode = endpoint["xdp"].as_str().map(str::to_owned);
        (endpoint["pod"]["name"].as_str().unwrap().to_owned(), mode)
    };
    endpoints.map(of).collect()
}

#[track_caller]
fn all_native(cluster: &TestCluster) {
    let status = cluster.agents[0].status().unwrap();
    let modes = modes(&status);
    assert!(
        modes.len() == 3 && modes.iter().all(|(_, m)| m.as_deref() == Some("native")),
        "{status}"
    );
}

#[track_caller]
fn holds(cluster: &TestCluster) {
    cluster.reaches("client", "server");
    cluster.reaches("server", "client");
    cluster.denied("client", "other");
}

fn dropped(status: &Value) -> u64 {
    let drops = status["drops"].as_array().unwrap().iter();
    let ours = drops.filter(|drop| drop["reason"] == "policy" && drop["direction"] == "egress");
    ours.filter_map(|drop| drop["packets"].as_u64()).sum()
}

/// Returns the pins of XDP links at pods.
fn pins(cluster: &TestCluster) -> Vec<PathBuf> {
    let links = std::fs::read_dir(cluster.agents[0].bpffs().join("links"));
    let paths = links.into_iter().flatten().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_string_lossy().contains("-pod-")).collect()
}

/// Returns whether a device of the node has an XDP program.
fn has_xdp(cluster: &TestCluster) -> bool {
    let links = cluster.nodes[0].command("ip").unwrap().args(["-d", "link"]).output().unwrap();
    assert!(links.status.success());
    String::from_utf8_lossy(&links.stdout).contains("prog/xdp")
}

#[test]
fn xdp_drops_what_pods_may_not_send() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    all_native(&cluster);
    let before = dropped(&cluster.agents[0].status().unwrap());
    holds(&cluster);
    assert!(!sees_the_denied(&cluster));
    let status = cluster.agents[0].status().unwrap();
    assert!(dropped(&status) > before, "{status}");
    assert!(status["recent_drops"].to_string().contains("egress"), "{status}");

    // A new pod of the same name gets XDP, and the link of the former pod is removed.
    cluster.take("client").delete().unwrap();
    cluster.add(0, "client");
    cluster.enforce();
    all_native(&cluster);
    holds(&cluster);
    assert_eq!(pins(&cluster).len(), 3);

    // XDP outlives the agent, and the next agent takes it over.
    cluster.agents[0].end(Signal::SIGKILL);
    assert!(has_xdp(&cluster));
    holds(&cluster);
    cluster.restart(0);
    all_native(&cluster);
    holds(&cluster);

    // Another process removes one program.
    std::fs::remove_file(&pins(&cluster)[0]).unwrap();
    let repaired = |status: &Value| status["repaired"]["programs"] == 1;
    cluster.agents[0].wait_for("repaired", ENFORCED, repaired).unwrap();
    all_native(&cluster);

    // The next agent runs without XDP.
    cluster.agents[0].end(Signal::SIGTERM);
    cluster.agents[0].set_arguments(&[]);
    cluster.restart(0);
    assert!(modes(&cluster.agents[0].status().unwrap()).iter().all(|(_, mode)| mode.is_none()));
    assert!(pins(&cluster).is_empty() && !has_xdp(&cluster));
    assert!(sees_the_denied(&cluster), "TC drops it behind");
    holds(&cluster);
}

#[test]
fn uninstall_takes_xdp_away_too() {
    require_root!();
    let mut cluster = guarded(Cni::Bridge);
    cluster.enforce();
    all_native(&cluster);
    holds(&cluster);
    cluster.agents[0].end(Signal::SIGTERM);
    let done = uninstall(&cluster);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        said.contains("removed: 10 programs"),
        "three pods, three programs; the bridge: {said}"
    );
    assert!(!has_xdp(&cluster));
    cluster.reaches("client", "other");
}

/// Attaches a foreign program to one pod's veth, and sets an MTU above one page at the veths of two other pods.
#[test]
fn xdp_is_in_nobodys_way() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    let _theirs = attach_xdp(&cluster, "client").unwrap();
    for pod in ["server", "other"] {
        let pod = cluster.pod(pod);
        let host = format!("link set {} mtu 9000\n", pod.host_interface());
        cluster.nodes[0].netns().ip(&host).unwrap();
        pod.netns().ip("link set eth0 mtu 9000\n").unwrap();
    }
    cluster.enforce();
    let status = cluster.agents[0].status().unwrap();
    let expected = [("client", None), ("other", Some("native")), ("server", Some("native"))];
    let expected = expected.map(|(pod, mode)| (pod.to_owned(), mode.map(str::to_owned)));
    assert_eq!(modes(&status), expected, "{status}");
    let problems = status["problems"].to_string();
    let veth = cluster.pod("client").host_interface();
    assert!(problems.contains(&format!("--pod-egress-hook xdp at {veth}: ")), "{problems}");
    assert!(problems.contains("TC programs judge these packets instead"), "{problems}");
    holds(&cluster);
    cluster.policy("other", isolate("other", &["Egress"])).enforce();
    cluster.denied("other", "server");
    cluster.without_policy("other").enforce();
    stream(&cluster, "other", "server");
}

/// Checks that eight megabytes arrive unchanged.
fn stream(cluster: &TestCluster, from: &str, to: &str) {
    const BYTES: usize = 8 << 20;
    let server = cluster.pod(to);
    let address = server.ip4().unwrap();
    let listener = server.run(|| TcpListener::bind((address, 5001)).unwrap()).unwrap();
    let sent: Vec<u8> = (0..BYTES).map(|number| (number / 7) as u8).collect();
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            all
        });
        let connect = || TcpStream::connect((address, 5001)).unwrap();
        let mut stream = cluster.pod(from).run(connect).unwrap();
        stream.write_all(&sent).unwrap();
        drop(stream);
        receiver.join().unwrap()
    });
    assert!(received == sent, "{} of {BYTES} bytes", received.len());
}
