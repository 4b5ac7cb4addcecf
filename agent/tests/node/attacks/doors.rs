//! Devices that a pod adds to the node's network namespace. `NET_ADMIN` in the initial user namespace allows that
//! (`IFLA_LINK_NETNSID`, `IFLA_NET_NS_FD`), and no CNI result names these devices. The tests add them from the node's
//! side, with the same effect.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netpold_ebpf::layout::DEVICES;
use netpold_testbed::cluster::{ENFORCED, TestCluster, allow_from, isolate};
use netpold_testbed::packet::{frame, udp_packet};
use netpold_testbed::{Cni, Host, TestPod, kernel_version, require_root, skip, skip_before};
use serde_json::Value;

use crate::attacks::volley::{BOTH, PACKETS, Tally, Volley};

const PORT: u16 = 4000;
/// First kernel version in which a program sees the network namespace of a packet's socket.
const SEES_NAMESPACES: (u32, u32) = (6, 15);

fn ends(from: IpAddr, to: IpAddr) -> (SocketAddr, SocketAddr) {
    ((from, 5000).into(), (to, PORT).into())
}

/// Sends a volley out of a pod's device, in frames to the MAC address `station`.
fn send(
    pod: &Host,
    device: &str,
    station: [u8; 6],
    volley: Volley,
    (from, to): (SocketAddr, SocketAddr),
) {
    let wire = pod.wire(device).unwrap();
    let own = pod.hardware_address(device).unwrap();
    for number in 0..PACKETS {
        let packet = udp_packet(from, to, &volley.payload(number, 40));
        // A stacked device returns the error of its lower device if that device drops the frame.
        let _ = wire.send(&frame(station, own, &packet));
    }
}

fn problem(cluster: &mut TestCluster, words: &str) {
    let says = |status: &Value| {
        let mut all = status["problems"].as_array().into_iter().flatten().filter_map(Value::as_str);
        all.any(|problem| problem.contains(words))
    };
    cluster.agents[0].wait_for(words, ENFORCED, says).unwrap();
}

/// Returns a cluster with an agent that has CNI results for the pods.
fn with_results(cni: Cni, pods: &[&str]) -> TestCluster {
    let mut cluster = TestCluster::one(cni).with_pods(pods);
    let results = cluster.directory.path().join("results");
    std::fs::create_dir(&results).unwrap();
    for name in pods {
        let pod = cluster.pod(name);
        let path = results.join(format!("testbed-{}-eth0", pod.uid()));
        std::fs::write(&path, pod.cni_result(pod.uid()).to_string()).unwrap();
    }
    cluster.arguments = vec!["--cni-results".to_owned(), results.to_str().unwrap().to_owned()];
    cluster
}

/// Adds a second veth between a pod and its node, without an address.
fn make_veth(cluster: &TestCluster, pod: &str, index: u32) {
    let there = cluster.pod(pod).netns().path();
    let add = format!(
        "link add name door index {index} type veth peer name net1 netns {}\nlink set door up\n",
        there.display()
    );
    cluster.nodes[0].netns().ip(&add).unwrap();
    cluster.pod(pod).netns().ip("link set net1 up\n").unwrap();
}

/// Sends by a second veth of `hostile`, with the source of the only pod that the victim allows.
fn by_a_second_veth(cni: Cni) {
    let mut cluster = with_results(cni, &["hostile", "friend", "victim"]);
    make_veth(&cluster, "hostile", 9001);
    let door = cluster.nodes[0].hardware_address("door").unwrap();
    let wire = cluster.pod("victim").wire("eth0").unwrap();
    let of = |cluster: &TestCluster, name: &str| cluster.pod(name).ip4().unwrap();
    let ends = ends(of(&cluster, "friend"), of(&cluster, "victim"));
    let volley = Volley::new();
    send(cluster.pod("hostile"), "net1", door, volley, ends);
    volley.arrives(&wire, "without an agent");

    cluster.policy("victim", isolate("victim", &BOTH));
    cluster.policy("friend", allow_from("victim", "friend")).enforce();
    problem(&mut cluster, "interface door leads to pod");
    let mut tally = Tally::default();
    for (what, index) in
        [("that was there", 9001), ("that comes", 9002), ("that comes again", 9001)]
    {
        if what != "that was there" {
            cluster.nodes[0].netns().ip("link del door\n").unwrap();
            make_veth(&cluster, "hostile", index);
        }
        // Before the veth's programs are attached, and after.
        let door = cluster.nodes[0].hardware_address("door").unwrap();
        for pause in [Duration::ZERO, Duration::from_millis(500)] {
            std::thread::sleep(pause);
            let volley = Volley::new();
            send(cluster.pod("hostile"), "net1", door, volley, ends);
            tally.note(&format!("by a veth {what}, after {pause:?}"), volley.leaked(&wire));
        }
    }
    tally.holds();
    cluster.reaches("friend", "victim");
}

#[test]
fn a_second_veth_that_nobody_named_on_a_ptp_node() {
    require_root!();
    by_a_second_veth(Cni::Ptp);
}

/// Adds doors that send before their programs are attached, one after the other, while the agent is busy with them.
#[test]
fn doors_before_their_programs() {
    require_root!();
    const DOORS: u32 = 20;
    let mut cluster = with_results(Cni::Ptp, &["hostile", "friend", "victim"]);
    let of = |cluster: &TestCluster, name: &str| cluster.pod(name).ip4().unwrap();
    let ends = ends(of(&cluster, "friend"), of(&cluster, "victim"));
    let wire = cluster.pod("victim").wire("eth0").unwrap();
    make_veth(&cluster, "hostile", 8999);
    let door = cluster.nodes[0].hardware_address("door").unwrap();
    let volley = Volley::new();
    send(cluster.pod("hostile"), "net1", door, volley, ends);
    volley.arrives(&wire, "without an agent");
    cluster.nodes[0].netns().ip("link del door\n").unwrap();
    cluster.policy("victim", isolate("victim", &BOTH));
    cluster.policy("friend", allow_from("victim", "friend")).enforce();
    cluster.reaches("friend", "victim");
    let mut tally = Tally::default();
    for (round, dead) in [(0, false), (DOORS, true)] {
        if dead {
            cluster
                .agents
                .iter_mut()
                .for_each(|agent| agent.end(nix::sys::signal::Signal::SIGKILL));
        }
        for number in round..round + DOORS {
            // Interface indices of different remainders modulo `DEVICES`, and of one remainder.
            let index = 9000 + if number % 2 == 0 { number } else { number * DEVICES };
            make_veth(&cluster, "hostile", index);
            let door = cluster.nodes[0].hardware_address("door").unwrap();
            let volley = Volley::new();
            send(cluster.pod("hostile"), "net1", door, volley, ends);
            let leaked = volley.leaked(&wire);
            tally.note(&format!("by door {number}, without an agent: {dead}"), leaked);
            cluster.nodes[0].netns().ip("link del door\n").unwrap();
        }
    }
    tally.holds();
}

/// Sends by a macvlan in the node's namespace on top of a link in the pod: frames that the pod's link receives enter
/// the node.
#[test]
fn a_macvlan_of_the_node_on_a_link_in_a_pod() {
    const TEST: &str = "a_macvlan_of_the_node_on_a_link_in_a_pod";
    require_root!();
    let mut cluster = with_results(Cni::Ptp, &["hostile", "friend", "victim"]);
    let (node, hostile) = (&cluster.nodes[0], cluster.pod("hostile"));
    // Both ends of this veth are in the pod.
    hostile
        .netns()
        .ip("link add name in type veth peer name out\nlink set in up\nlink set out up\n")
        .unwrap();
    // `netns` moves the macvlan to the node; its lower link stays in the pod.
    let made = hostile.netns().ip(&format!(
        "link add link in name door netns {} type macvlan mode bridge\n",
        node.netns().path().display()
    ));
    if let Err(e) = made {
        return skip(TEST, format!("no macvlan here: {e:#}"));
    }
    node.netns().ip("link set door up\n").unwrap();
    let door = node.hardware_address("door").unwrap();
    let of = |name: &str| cluster.pod(name).ip4().unwrap();
    let ends = ends(of("friend"), of("victim"));
    let wire = cluster.pod("victim").wire("eth0").unwrap();
    let volley = Volley::new();
    send(hostile, "out", door, volley, ends);
    volley.arrives(&wire, "without an agent");
    cluster.policy("victim", isolate("victim", &BOTH));
    cluster.policy("friend", allow_from("victim", "friend")).enforce();
    problem(&mut cluster, "door on top of a link of another network namespace");
    let mut tally = Tally::default();
    let volley = Volley::new();
    send(cluster.pod("hostile"), "out", door, volley, ends);
    tally.note("by a macvlan", volley.leaked(&wire));
    tally.holds();
    cluster.arguments.push("--trusted-devices=do*".to_owned());
    cluster.agents.clear();
    cluster.enforce();
    let volley = Volley::new();
    send(cluster.pod("hostile"), "out", door, volley, ends);
    volley.arrives(&wire, "by a device that the operator has named");
}

/// Sends by a pod's macvlan on top of the host side of the victim's veth. The kernel refuses a macvlan on a bridge
/// port: a bridge and a macvlan both need the one receive handler of the veth.
#[test]
fn a_macvlan_of_a_pod_on_anothers_veth() {
    const TEST: &str = "a_macvlan_of_a_pod_on_anothers_veth";
    require_root!();
    if kernel_version() < Some(SEES_NAMESPACES) {
        return skip_before(SEES_NAMESPACES, TEST, "no program sees a socket's namespace");
    }
    let add = |cluster: &TestCluster| {
        let (hostile, victim): (&TestPod, &TestPod) =
            (cluster.pod("hostile"), cluster.pod("victim"));
        cluster.nodes[0].netns().ip(&format!(
            "link add link {} name net1 netns {} type macvlan mode bridge\n",
            victim.host_interface(),
            hostile.netns().path().display()
        ))
    };
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["hostile", "friend", "victim"]);
    if let Err(e) = add(&cluster) {
        return skip(TEST, format!("no macvlan here: {e:#}"));
    }
    let (hostile, victim): (&TestPod, &TestPod) = (cluster.pod("hostile"), cluster.pod("victim"));
    hostile.netns().ip("link set net1 up\n").unwrap();
    let of = |name: &str| cluster.pod(name).ip4().unwrap();
    let (ends, mac) = (ends(of("friend"), of("victim")), victim.mac());
    let wire = victim.wire("eth0").unwrap();
    let volley = Volley::new();
    send(hostile, "net1", mac, volley, ends);
    volley.arrives(&wire, "without an agent");
    cluster.policy("victim", isolate("victim", &BOTH));
    cluster.policy("friend", allow_from("victim", "friend")).enforce();
    let volley = Volley::new();
    send(cluster.pod("hostile"), "net1", mac, volley, ends);
    let mut tally = Tally::default();
    tally.note("as an allowed peer", volley.leaked(&wire));
    // An isolated pod must not reach a pod without policy by the macvlan either.
    cluster.without_policy("victim").without_policy("friend");
    cluster.policy("hostile", isolate("hostile", &BOTH)).enforce();
    let volley = Volley::new();
    send(cluster.pod("hostile"), "net1", mac, volley, ends);
    tally.note("to a pod that is not isolated", volley.leaked(&wire));
    tally.holds();
    cluster.reaches("friend", "victim");

    let refused = add(&TestCluster::one(Cni::Bridge).with_pods(&["hostile", "victim"]));
    assert!(
        refused.is_err_and(|e| format!("{e:#}").contains("busy")),
        "a bridge port has no macvlan"
    );
}
