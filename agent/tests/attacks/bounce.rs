//! Packets that a pod's own `ifb` sends on: they ask the kernel to skip the next TC hook, which is the
//! host's (issue 12, 2). A pod needs NET_ADMIN in its namespace for it.

use std::net::SocketAddr;
use std::time::Duration;

use netpold_ebpf::layout::{endpoint_slot, mark};
use netpold_testbed::{Cni, Host, Pod, require_root, skip};

use crate::cluster::{Cluster, isolate};
use crate::volley::{BOTH, Sender, Tally, Volley, pairs, try_both};

const PORT: u16 = 4000;

fn tc(pod: &Host, arguments: &str) {
    let done = pod.command("tc").unwrap().args(arguments.split(' ')).output().unwrap();
    assert!(done.status.success(), "tc {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Whether the kernel has what it takes.
pub(crate) fn can_bounce(pod: &Pod, test: &str) -> bool {
    let made = pod.netns().ip("link add ifb0 type ifb\nlink set ifb0 up\n");
    if let Err(e) = &made {
        skip(test, format!("no ifb here: {e:#}"));
    }
    made.is_ok()
}

/// Sends a volley by way of `ifb0`: held up there until eth0 has no filter any more, so that the wish
/// to skip one is still there when the host's turn comes. `stain`: with the mark of another pod.
pub(crate) fn bounced(
    pod: &Pod,
    volley: Volley,
    (from, to): (SocketAddr, SocketAddr),
    stain: Option<u16>,
) {
    let stain = stain.map(|value| pod.stain("eth0", value).unwrap());
    tc(pod, "qdisc replace dev ifb0 root tbf rate 8kbit burst 400 limit 1000000");
    tc(pod, "qdisc add dev eth0 clsact");
    tc(
        pod,
        "filter add dev eth0 egress protocol all u32 match u32 0 0 \
             action mirred egress redirect dev ifb0",
    );
    Sender::pod(pod).datagrams(volley, from, to);
    drop(stain);
    tc(pod, "qdisc del dev eth0 clsact");
    tc(pod, "qdisc change dev ifb0 root tbf rate 1gbit burst 100000 limit 1000000");
    // What is held has its time of the old rate.
    std::thread::sleep(Duration::from_millis(200));
}

/// From a pod that may send nothing; `far`: the victim is on the other node.
fn around_the_hook(test: &str, node: usize, far: bool) {
    let mut cluster = Cluster::two();
    cluster.add(node, "hostile");
    cluster.add(if far { 1 - node } else { node }, "victim");
    if !can_bounce(cluster.pod("hostile"), test) {
        return;
    }
    let wire = cluster.pod("victim").wire("eth0").unwrap();
    let mut tally = Tally::default();
    let ends = pairs(cluster.pod("hostile"), cluster.pod("victim"));
    for (from, to) in ends {
        let what = format!("to {to}");
        let ends = ((from, 5000).into(), (to, PORT).into());
        try_both(&mut cluster, (&what, "hostile"), &wire, &mut tally, |cluster, volley| {
            bounced(cluster.pod("hostile"), volley, ends, None);
        });
    }
    tally.holds();
}

#[test]
fn bounced_to_a_pod_on_a_ptp_node() {
    if require_root("bounced_to_a_pod_on_a_ptp_node") {
        around_the_hook("bounced_to_a_pod_on_a_ptp_node", 0, false);
    }
}

#[test]
#[ignore = "open: issue 12 number 2"]
fn bounced_to_a_pod_on_a_bridge_node() {
    if require_root("bounced_to_a_pod_on_a_bridge_node") {
        around_the_hook("bounced_to_a_pod_on_a_bridge_node", 1, false);
    }
}

#[test]
fn bounced_off_a_ptp_node() {
    if require_root("bounced_off_a_ptp_node") {
        around_the_hook("bounced_off_a_ptp_node", 0, true);
    }
}

#[test]
#[ignore = "open: issue 12 number 2"]
fn bounced_off_a_bridge_node() {
    if require_root("bounced_off_a_bridge_node") {
        around_the_hook("bounced_off_a_bridge_node", 1, true);
    }
}

/// The receiver is isolated as well, and the packets have its own mark.
fn with_a_mark(test: &str, cni: Cni) {
    let mut cluster = Cluster::one(cni).with_pods(&["hostile", "victim"]);
    if !can_bounce(cluster.pod("hostile"), test) {
        return;
    }
    let slot = endpoint_slot(cluster.pod("victim").host_ifindex(), 0);
    let forged = mark(slot, 1) as u16;
    if let Err(e) = cluster.pod("hostile").stain("eth0", forged) {
        return skip(test, format!("no TCX here: {e:#}"));
    }
    let wire = cluster.pod("victim").wire("eth0").unwrap();
    let mut tally = Tally::default();
    let ends = pairs(cluster.pod("hostile"), cluster.pod("victim"));
    for (from, to) in ends {
        let ends = ((from, 5000).into(), (to, PORT).into());
        for hostile in [false, true] {
            if hostile {
                cluster.policy("hostile", isolate("hostile", &BOTH));
            }
            cluster.policy("victim", isolate("victim", &BOTH)).enforce();
            let volley = Volley::new();
            bounced(cluster.pod("hostile"), volley, ends, Some(forged));
            let what = format!("to {to}, sender isolated: {hostile}");
            tally.note(&what, volley.leaked(&wire));
            cluster.without_policy("victim");
        }
        cluster.without_policy("hostile").enforce();
        let volley = Volley::new();
        bounced(cluster.pod("hostile"), volley, ends, None);
        volley.arrives(&wire, "without policy");
    }
    tally.holds();
}

#[test]
fn bounced_with_a_mark_on_a_ptp_node() {
    if require_root("bounced_with_a_mark_on_a_ptp_node") {
        with_a_mark("bounced_with_a_mark_on_a_ptp_node", Cni::Ptp);
    }
}

#[test]
fn bounced_with_a_mark_on_a_bridge_node() {
    if require_root("bounced_with_a_mark_on_a_bridge_node") {
        with_a_mark("bounced_with_a_mark_on_a_bridge_node", Cni::Bridge);
    }
}
