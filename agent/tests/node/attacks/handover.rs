//! Packets around a pod's program on a bridge while programs are being attached: by a new agent, or for new pods (other
//! ways around: [`crate::attacks::bounce`]).

use std::net::SocketAddr;

use netpold_testbed::cluster::{NAMESPACE, TestCluster, isolate};
use netpold_testbed::packet::udp_packet;
use netpold_testbed::{PodSpec, TestPod, require_root};
use nix::sys::signal::Signal;

use crate::attacks::bounce::{bounced, can_bounce, tc};
use crate::attacks::volley::{BOTH, Sender, Tally, Volley, pairs};

const PORT: u16 = 4000;
/// Number of packets of a stream, of about 100 bytes each: a hundred a second, for longer than any test takes.
const STREAM: usize = 9_000;
const RATE: &str = "80kbit";

/// Starts a stream around the program of a pod, between each pair of `ends` in turn. `ifb0` sends it in the background.
pub(crate) fn begin_stream(hostile: &TestPod, volley: Volley, ends: &[(SocketAddr, SocketAddr)]) {
    tc(hostile, "qdisc replace dev ifb0 root tbf rate 8kbit burst 400 limit 4000000");
    tc(hostile, "qdisc add dev eth0 clsact");
    tc(
        hostile,
        "filter add dev eth0 egress protocol all u32 match u32 0 0 \
             action mirred egress redirect dev ifb0",
    );
    let sender = Sender::pod(hostile);
    for number in 0..STREAM {
        let (from, to) = ends[number % ends.len()];
        let payload = volley.payload(number, 40);
        sender.send(&udp_packet(from, to, &payload));
    }
    tc(hostile, "qdisc del dev eth0 clsact");
    tc(hostile, &format!("qdisc change dev ifb0 root tbf rate {RATE} burst 2000 limit 4000000"));
}

/// Ends a stream, which must not have come to its end before.
pub(crate) fn end_stream(hostile: &TestPod) {
    let left = hostile.command("tc").unwrap().args(["-s", "qdisc", "show", "dev", "ifb0"]).output();
    let left = String::from_utf8(left.unwrap().stdout).unwrap();
    assert!(left.contains("backlog") && !left.contains(" 0p "), "the stream has ended: {left}");
    tc(hostile, "qdisc del dev ifb0 root");
}

/// Streams from an isolated pod of a bridge to another node while `meanwhile` runs, with the pod's own source and
/// with that of a neighbour that is not isolated.
fn while_programs_change(test: &str, meanwhile: impl FnOnce(&mut TestCluster)) {
    if !require_root(test) {
        return;
    }
    let mut cluster = TestCluster::two();
    for (node, name) in [(1, "hostile"), (1, "near"), (0, "far")] {
        cluster.add(node, name);
    }
    if !can_bounce(cluster.pod("hostile"), test) {
        return;
    }
    let wire = cluster.pod("far").wire("eth0").unwrap();
    let ends =
        ["hostile", "near"].map(|from| pairs(cluster.pod(from), cluster.pod("far"))).concat();
    cluster.enforce();
    let (volley, (from, to)) = (Volley::new(), ends[0]);
    bounced(cluster.pod("hostile"), volley, ((from, 5000).into(), (to, PORT).into()), None);
    volley.arrives(&wire, "without policy");
    cluster.policy("hostile", isolate("hostile", &BOTH)).enforce();
    let volley = Volley::new();
    let sockets = ends.iter().map(|(from, to)| ((*from, 5000).into(), (*to, PORT).into()));
    begin_stream(cluster.pod("hostile"), volley, &sockets.collect::<Vec<_>>());
    meanwhile(&mut cluster);
    end_stream(cluster.pod("hostile"));
    let mut tally = Tally::default();
    tally.note("with its own source and its neighbour's", volley.leaked(&wire));
    tally.holds();
    let (near, far) = (cluster.pod("near"), cluster.pod("far"));
    for (from, to) in pairs(near, far) {
        let volley = Volley::new();
        Sender::pod(near).datagrams(volley, (from, 5000).into(), (to, PORT).into());
        volley.arrives(&wire, "of the neighbour itself");
    }
}

/// Adds pods to the node and the manifests; the agent has yet to attach their programs.
fn add_pods(cluster: &mut TestCluster, numbers: std::ops::Range<u32>) {
    for number in numbers {
        cluster.add_as(1, PodSpec::new(NAMESPACE, &format!("new{number}")));
    }
    cluster.write();
}

/// Starts a new agent, which takes longest to attach the programs of new pods.
#[test]
fn bounced_while_a_new_agent_begins() {
    while_programs_change("bounced_while_a_new_agent_begins", |cluster| {
        cluster.agents[1].end(Signal::SIGKILL);
        add_pods(cluster, 0..4);
        cluster.restart(1);
    });
}

#[test]
fn bounced_while_pods_come() {
    while_programs_change("bounced_while_pods_come", |cluster| {
        add_pods(cluster, 0..8);
        cluster.wait();
    });
}
