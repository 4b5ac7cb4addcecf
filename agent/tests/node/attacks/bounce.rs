//! Packets redirected by a pod's own `ifb`, which the kernel lets skip the next TC hook: the host's. Needs
//! `NET_ADMIN` in the pod.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netpold_ebpf::layout::{endpoint_slot, mark};
use netpold_testbed::cluster::{TestCluster, isolate};
use netpold_testbed::{Cni, Host, TestPod, require_root, skip};
use nix::sys::signal::Signal;

use crate::attacks::volley::{BOTH, Sender, Tally, Volley, pairs, try_both};

const PORT: u16 = 4000;

pub(crate) fn tc(pod: &Host, arguments: &str) {
    let done = pod.command("tc").unwrap().args(arguments.split(' ')).output().unwrap();
    assert!(done.status.success(), "tc {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Returns whether the kernel has `ifb`: adds `ifb0` to the pod, or skips the test.
pub(crate) fn can_bounce(pod: &TestPod, test: &str) -> bool {
    let made = pod.netns().ip("link add ifb0 type ifb\nlink set ifb0 up\n");
    if let Err(e) = &made {
        skip(test, format!("no ifb here: {e:#}"));
    }
    made.is_ok()
}

/// Sends a volley by `ifb0` (see [`bounce`]). `tc_index` is that of the packets: another pod's mark.
pub(crate) fn bounced(
    pod: &TestPod,
    volley: Volley,
    (from, to): (SocketAddr, SocketAddr),
    tc_index: Option<u16>,
) {
    let marker = tc_index.map(|value| pod.set_tc_index("eth0", value).unwrap());
    bounce(pod, || Sender::pod(pod).datagrams(volley, from, to));
    drop(marker);
}

/// Redirects the packets that `send` sends by eth0 to `ifb0`, so that they skip the host's hook. `ifb0` holds them
/// until eth0's filter is gone, which would use up their `tc_skip_classify`.
pub(crate) fn bounce(pod: &TestPod, send: impl FnOnce()) {
    bounce_bursts(pod, 400, send);
}

/// Does the same as [`bounce`] for packets of up to `burst` bytes: the token bucket passes the first `burst` bytes at
/// once.
pub(crate) fn bounce_bursts(pod: &TestPod, burst: usize, send: impl FnOnce()) {
    tc(pod, &format!("qdisc replace dev ifb0 root tbf rate 8kbit burst {burst} limit 1000000"));
    tc(pod, "qdisc add dev eth0 clsact");
    tc(
        pod,
        "filter add dev eth0 egress protocol all u32 match u32 0 0 \
             action mirred egress redirect dev ifb0",
    );
    send();
    tc(pod, "qdisc del dev eth0 clsact");
    tc(pod, "qdisc change dev ifb0 root tbf rate 1gbit burst 100000 limit 1000000");
    // The timer of the first held packet was set at the old rate.
    std::thread::sleep(Duration::from_millis(200));
}

/// Sends volleys of a pod without allowed peers; `far`: to a victim on the other node.
fn around_the_hook(test: &str, node: usize, far: bool) {
    let mut cluster = TestCluster::two();
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
    require_root!();
    around_the_hook("bounced_to_a_pod_on_a_ptp_node", 0, false);
}

#[test]
fn bounced_to_a_pod_on_a_bridge_node() {
    require_root!();
    around_the_hook("bounced_to_a_pod_on_a_bridge_node", 1, false);
}

#[test]
fn bounced_off_a_ptp_node() {
    require_root!();
    around_the_hook("bounced_off_a_ptp_node", 0, true);
}

#[test]
fn bounced_off_a_bridge_node() {
    require_root!();
    around_the_hook("bounced_off_a_bridge_node", 1, true);
}

/// Sends volleys with forged sources: an unused address of the bridge's network, an external address, and the address
/// of an unrestricted neighbour. `dead`: once the pod is isolated, the agents are killed.
fn with_anothers_source(test: &str, dead: bool) {
    let mut cluster = TestCluster::two();
    cluster.add(1, "hostile");
    cluster.add(1, "free");
    cluster.add(1, "near");
    cluster.add(0, "far");
    if !can_bounce(cluster.pod("hostile"), test) {
        return;
    }
    let nobodys = ["10.1.2.77", "fd00:1:2::77"].map(|a| a.parse::<IpAddr>().unwrap());
    let elsewhere = ["203.0.113.7", "2001:db8::7"].map(|a| a.parse::<IpAddr>().unwrap());
    let of = |pod: &TestPod| [pod.addresses()[0], pod.addresses()[1]];
    let free = of(cluster.pod("free"));
    let sources = [("nobody's", nobodys), ("elsewhere", elsewhere), ("a neighbour's", free)];
    let mut tally = Tally::default();
    for policy in [None, Some(false), Some(true)] {
        if let Some(isolated) = policy {
            if isolated {
                cluster.policy("hostile", isolate("hostile", &BOTH));
            }
            cluster.enforce();
            if dead && isolated {
                cluster.agents.iter_mut().for_each(|agent| agent.end(Signal::SIGKILL));
            }
        }
        for (what, sources) in sources {
            // A bridge's packets without proof drop with an endpoint's source while policy isolates a pod of the
            // bridge, and with any other source while the agent lives.
            let passes = match policy {
                None => true,
                Some(false) => what == "a neighbour's",
                Some(true) => dead && what != "a neighbour's",
            };
            for victim in ["near", "far"] {
                let wire = cluster.pod(victim).wire("eth0").unwrap();
                for (from, to) in sources.into_iter().zip(of(cluster.pod(victim))) {
                    let what = format!("{what} {from} to {victim}, isolated: {policy:?}");
                    let volley = Volley::new();
                    let ends = ((from, 5000).into(), (to, PORT).into());
                    bounced(cluster.pod("hostile"), volley, ends, None);
                    if passes {
                        volley.arrives(&wire, &what);
                    } else {
                        tally.note(&what, volley.leaked(&wire));
                    }
                }
            }
        }
    }
    tally.holds();
}

#[test]
fn bounced_with_anothers_source_on_a_bridge_node() {
    require_root!();
    with_anothers_source("bounced_with_anothers_source_on_a_bridge_node", false);
}

/// Programs outlive the agent: packets with an endpoint's source and without proof still drop.
#[test]
fn bounced_with_a_neighbours_source_while_no_agent_runs() {
    require_root!();
    with_anothers_source("bounced_with_a_neighbours_source_while_no_agent_runs", true);
}

/// Sends volleys to an isolated victim, with the victim's own mark.
fn with_a_mark(test: &str, cni: Cni) {
    let mut cluster = TestCluster::one(cni).with_pods(&["hostile", "victim"]);
    if !can_bounce(cluster.pod("hostile"), test) {
        return;
    }
    let slot = endpoint_slot(cluster.pod("victim").host_ifindex(), 0);
    let forged = mark(slot, 1) as u16;
    if let Err(e) = cluster.pod("hostile").set_tc_index("eth0", forged) {
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
    require_root!();
    with_a_mark("bounced_with_a_mark_on_a_ptp_node", Cni::Ptp);
}

#[test]
fn bounced_with_a_mark_on_a_bridge_node() {
    require_root!();
    with_a_mark("bounced_with_a_mark_on_a_bridge_node", Cni::Bridge);
}

/// Sends to itself in a victim's name, then to the victim: an answer to a flow that the victim never began.
fn answers_to_itself(test: &str, node: usize, victims: &[&str]) {
    let mut cluster = TestCluster::two();
    cluster.add(node, "hostile");
    cluster.add(node, "near");
    cluster.add(1 - node, "far");
    if !can_bounce(cluster.pod("hostile"), test) {
        return;
    }
    let mut tally = Tally::default();
    for enforced in [false, true] {
        if enforced {
            cluster.policy("hostile", isolate("hostile", &["Egress"])).enforce();
        }
        for &victim in victims {
            let hostile = cluster.pod("hostile");
            let [own, wire] = [hostile, cluster.pod(victim)].map(|pod| pod.wire("eth0").unwrap());
            for (from, to) in pairs(hostile, cluster.pod(victim)) {
                let (from, to) = (SocketAddr::new(from, 5000), SocketAddr::new(to, PORT));
                let what = format!("to {victim} at {to}");
                let (request, answer) = (Volley::new(), Volley::new());
                bounced(hostile, request, (to, from), None);
                if !enforced {
                    request.arrives(&own, &format!("to itself as {to}"));
                }
                Sender::pod(hostile).datagrams(answer, from, to);
                if enforced {
                    tally.note(&what, answer.leaked(&wire));
                } else {
                    answer.arrives(&wire, &what);
                }
            }
        }
    }
    tally.holds();
}

#[test]
fn bounced_to_itself_in_anothers_name_on_a_ptp_node() {
    require_root!();
    answers_to_itself("bounced_to_itself_in_anothers_name_on_a_ptp_node", 0, &["near", "far"]);
}

#[test]
fn bounced_to_itself_in_anothers_name_on_a_bridge_node() {
    require_root!();
    // A source that is routed elsewhere does not pass the bridge's reverse path filter.
    answers_to_itself("bounced_to_itself_in_anothers_name_on_a_bridge_node", 1, &["near"]);
}
