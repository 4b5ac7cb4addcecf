//! Marks: forged on packets of an unknown pod's veth or on packets without a receiving interface of the node, and
//! erased on the node.

use std::time::Duration;

use netpold_ebpf::layout::{endpoint_slot, mark};
use netpold_testbed::cluster::{ENFORCED, NAMESPACE, PORT as SERVED, TestCluster, isolate};
use netpold_testbed::packet::{frame, udp_packet};
use netpold_testbed::services::{NOBODY, TestService, answer, may_reach, provide};
use netpold_testbed::{Cni, Host, PodSpec, Proxy, RawSocket, require_root, skip};

use serde_json::Value;

use crate::attacks::bounce::{bounced, can_bounce};
use crate::attacks::volley::{BOTH, PACKETS, Sender, Tally, Volley, pairs};

const PORT: u16 = 4000;

/// Returns the mark of the victim's own packets.
fn forged(cluster: &TestCluster) -> u16 {
    mark(endpoint_slot(cluster.pod("victim").host_ifindex(), 0), 1) as u16
}

/// Sends volleys of a pod without an object.
fn of_an_unknown_veth(test: &str, cni: Cni) {
    let mut cluster = TestCluster::one(cni).with_pods(&["victim"]);
    let zombie = cluster.nodes[0].add_pod(&PodSpec::new(NAMESPACE, "zombie")).unwrap();
    let wire = cluster.pod("victim").wire("eth0").unwrap();
    let mut tally = Tally::default();
    cluster.enforce();
    let at_it = |status: &Value| status["devices"].to_string().contains(zombie.host_interface());
    cluster.agents[0].wait_for("at the zombie's veth", ENFORCED, at_it).unwrap();
    for is_marked in [false, true] {
        let _marker = match zombie.set_tc_index("eth0", forged(&cluster)) {
            Ok(marker) => is_marked.then_some(marker),
            Err(e) => return skip(test, format!("no TCX here: {e:#}")),
        };
        for (from, to) in pairs(&zombie, cluster.pod("victim")) {
            let ends = ((from, 5000).into(), (to, PORT).into());
            let volley = Volley::new();
            Sender::pod(&zombie).datagrams(volley, ends.0, ends.1);
            volley.arrives(&wire, "without policy");
            cluster.policy("victim", isolate("victim", &BOTH)).enforce();
            let volley = Volley::new();
            Sender::pod(&zombie).datagrams(volley, ends.0, ends.1);
            tally.note(&format!("to {to}, marked: {is_marked}"), volley.leaked(&wire));
            cluster.without_policy("victim").enforce();
        }
    }
    tally.holds();
}

#[test]
fn marks_of_an_unknown_pod_on_a_ptp_node() {
    require_root!();
    of_an_unknown_veth("marks_of_an_unknown_pod_on_a_ptp_node", Cni::Ptp);
}

#[test]
fn marks_of_an_unknown_pod_on_a_bridge_node() {
    require_root!();
    of_an_unknown_veth("marks_of_an_unknown_pod_on_a_bridge_node", Cni::Bridge);
}

/// Sends by a pod's macvlan on top of the bridge: the packets have no receiving interface of the node.
#[test]
fn a_macvlan_on_the_bridge_is_not_the_node() {
    const TEST: &str = "a_macvlan_on_the_bridge_is_not_the_node";
    require_root!();
    let mut cluster = TestCluster::one(Cni::Bridge).with_pods(&["victim", "hostile"]);
    let there = cluster.pod("hostile").netns().path();
    let made = cluster.nodes[0].netns().ip(&format!(
        "link add link cni0 name net1 netns {} type macvlan mode bridge\n",
        there.display()
    ));
    if let Err(e) = made {
        return skip(TEST, format!("no macvlan here: {e:#}"));
    }
    cluster.pod("hostile").netns().ip("link set net1 up\n").unwrap();
    let wire = cluster.pod("victim").wire("eth0").unwrap();
    let mut tally = Tally::default();
    for is_marked in [false, true] {
        for family in 0..2 {
            if is_marked || family > 0 {
                cluster.enforce();
            }
            let victim = cluster.pod("victim");
            let (to, mac) = (victim.addresses()[family], victim.mac());
            let hostile: &Host = cluster.pod("hostile");
            let out = hostile.wire("net1").unwrap();
            let own = hostile.hardware_address("net1").unwrap();
            let from = cluster.pod("hostile").addresses()[family];
            let _marker =
                is_marked.then(|| hostile.set_tc_index("net1", forged(&cluster)).unwrap());
            let send = |out: &RawSocket, volley: Volley| {
                for number in 0..PACKETS {
                    let payload = volley.payload(number, 40);
                    let packet = udp_packet((from, 5000).into(), (to, PORT).into(), &payload);
                    out.send(&frame(mac, own, &packet)).unwrap();
                }
            };
            let volley = Volley::new();
            send(&out, volley);
            if cluster.agents.is_empty() {
                volley.arrives(&wire, "without an agent");
            } else {
                // Before 6.15 netpold cannot distinguish these packets from those that come from outside.
                println!("without policy: {} arrive", volley.leaked(&wire));
            }
            cluster.policy("victim", isolate("victim", &BOTH)).enforce();
            let volley = Volley::new();
            send(&out, volley);
            tally.note(&format!("to {to}, marked: {is_marked}"), volley.leaked(&wire));
            cluster.without_policy("victim");
        }
    }
    tally.holds();
}

/// Time within which the agent reports a problem.
const NOTICED: Duration = Duration::from_secs(10);

/// Returns a cluster with a readback every second; the default is ten seconds.
fn looked_after(cni: Cni, pods: &[&str]) -> TestCluster {
    let mut cluster = TestCluster::one(cni).with_pods(pods);
    cluster.arguments = ["--readback", "1"].map(str::to_owned).to_vec();
    cluster
}

fn problems(status: &Value) -> Vec<&str> {
    status["problems"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Waits until the agent has checked every endpoint once and reports no problem.
fn settled(cluster: &mut TestCluster) {
    cluster.agents[0].wait_for("content", ENFORCED, |status| problems(status).is_empty()).unwrap();
    std::thread::sleep(Duration::from_secs(2));
}

/// Waits until a reported problem contains all `words`.
fn said(cluster: &mut TestCluster, words: &[&str]) {
    let has = |status: &Value| {
        problems(status).iter().any(|problem| words.iter().all(|word| problem.contains(word)))
    };
    cluster.agents[0].wait_for(&words.join(", "), NOTICED, has).unwrap();
}

/// Adds a foreign rule that clears the mark of all forwarded packets: the agent reports it while it is there.
/// Verdicts between pods stay exact; packets that need the mark for their verdict drop.
fn erased(cni: Cni) {
    let mut cluster = looked_after(cni, &["client", "good", "bad"]);
    let services = [
        TestService::new(1, "good").pods(&cluster, &["good"]),
        TestService::new(2, "bad").pods(&cluster, &["bad"]),
    ];
    let [good, bad] = [services[0].sockets(), services[1].sockets()];
    provide(&mut cluster, Proxy::Nftables, &services);
    cluster.policy("client", may_reach("client", &["good"])).enforce();
    let backend = |cluster: &TestCluster, name: &str| {
        let addresses = cluster.pod(name).addresses().iter();
        addresses.map(|address| (*address, SERVED).into()).collect::<Vec<_>>()
    };
    // Where an answer of the Service leaves, its source is no longer the backend's address.
    let exact = |cluster: &TestCluster, answers: &[&str]| {
        answer(cluster.pod("client"), &good, answers);
        answer(cluster.pod("client"), &bad, NOBODY);
        answer(cluster.pod("client"), &backend(cluster, "good"), &["good"]);
        cluster.denied("client", "bad");
        cluster.reaches("good", "bad");
    };
    exact(&cluster, &["good"]);
    settled(&mut cluster);
    cluster.nodes[0].netns().nft(ERASER).unwrap();
    exact(&cluster, NOBODY);
    said(&mut cluster, &["lost bit 28 of skb->mark on this node", "shop/client", "shop/good"]);
    let log = cluster.agents[0].log();
    assert!(log.contains("packets of pods without proof"), "{log}");
    // Without the mark, an isolated pod's answer is not recognised as one.
    cluster.policy("good", isolate("good", &["Egress"])).enforce();
    answer(cluster.pod("client"), &backend(&cluster, "good"), NOBODY);
    cluster.without_policy("good").enforce();
    cluster.nodes[0].netns().nft("delete table inet other").unwrap();
    settled(&mut cluster);
    exact(&cluster, &["good"]);
}

const ERASER: &str = "add table inet other; \
                      add chain inet other passing { type filter hook forward priority 0; }; \
                      add rule inet other passing meta mark set 0";

#[test]
fn a_rule_that_erases_marks_is_named_on_a_ptp_node() {
    require_root!();
    erased(Cni::Ptp);
}

#[test]
fn a_rule_that_erases_marks_is_named_on_a_bridge_node() {
    require_root!();
    erased(Cni::Bridge);
}

/// Bypasses the program from inside a pod: the report names that pod and no rule of the node.
#[test]
fn a_pod_that_goes_round_its_program_is_named() {
    const TEST: &str = "a_pod_that_goes_round_its_program_is_named";
    require_root!();
    let mut cluster = looked_after(Cni::Ptp, &["hostile", "victim", "other"]);
    if !can_bounce(cluster.pod("hostile"), TEST) {
        return;
    }
    cluster.enforce();
    settled(&mut cluster);
    cluster.reaches("other", "victim");
    let (from, to) = pairs(cluster.pod("hostile"), cluster.pod("victim"))[0];
    let ends = ((from, 5000).into(), (to, PORT).into());
    bounced(cluster.pod("hostile"), Volley::new(), ends, None);
    said(&mut cluster, &["packets of pod shop/hostile", "without having passed netpold's program"]);
    let status = cluster.agents[0].status().unwrap();
    let accused: Vec<&str> = problems(&status);
    assert!(accused.len() == 1 && !accused[0].contains("shop/other"), "{accused:?}");
}

/// Adds a tc filter behind netpold's program, as bandwidth tools do, that clears the mark in `tc_index`.
#[test]
fn a_filter_that_erases_tc_index_is_named() {
    const TEST: &str = "a_filter_that_erases_tc_index_is_named";
    require_root!();
    let mut cluster = looked_after(Cni::Ptp, &["client", "server"]);
    cluster.enforce();
    settled(&mut cluster);
    let veth = cluster.pod("client").host_interface().to_owned();
    for arguments in [
        format!("qdisc add dev {veth} clsact"),
        format!("filter add dev {veth} ingress protocol all u32 match u32 0 0 flowid 1:0"),
    ] {
        let mut tc = cluster.nodes[0].command("tc").unwrap();
        let done = tc.args(arguments.split(' ')).output().unwrap();
        if !done.status.success() {
            return skip(TEST, String::from_utf8_lossy(&done.stderr));
        }
    }
    cluster.reaches("client", "server");
    said(&mut cluster, &["lost skb->tc_index on this node", "shop/client"]);
}
