//! Marks by pods whose devices netpold does not know, or that no interface of the node received
//! (issue 12, 9 and 1).

use netpold_ebpf::layout::{endpoint_slot, mark};
use netpold_testbed::packet::{frame, udp_packet};
use netpold_testbed::{Cni, Host, PodSpec, Wire, require_root, skip};

use crate::cluster::{Cluster, ENFORCED, NAMESPACE, isolate};
use crate::volley::{BOTH, PACKETS, Sender, Tally, Volley};

const PORT: u16 = 4000;

/// The mark of `victim`'s own packets.
fn forged(cluster: &Cluster) -> u16 {
    mark(endpoint_slot(cluster.pod("victim").host_ifindex(), 0), 1) as u16
}

/// A pod that netpold was never told of.
fn of_an_unknown_veth(test: &str, cni: Cni) {
    let mut cluster = Cluster::one(cni).with_pods(&["victim"]);
    let zombie = cluster.nodes[0].add_pod(&PodSpec::new(NAMESPACE, "zombie")).unwrap();
    let wire = cluster.pod("victim").wire("eth0").unwrap();
    let mut tally = Tally::default();
    cluster.enforce();
    let at_it = |status: &serde_json::Value| {
        status["devices"].to_string().contains(zombie.host_interface())
    };
    cluster.agents[0].wait_for("at the zombie's veth", ENFORCED, at_it).unwrap();
    for stained in [false, true] {
        let _stain = match zombie.stain("eth0", forged(&cluster)) {
            Ok(stain) => stained.then_some(stain),
            Err(e) => return skip(test, format!("no TCX here: {e:#}")),
        };
        for (from, to) in crate::volley::pairs(&zombie, cluster.pod("victim")) {
            let ends = ((from, 5000).into(), (to, PORT).into());
            let volley = Volley::new();
            Sender::pod(&zombie).datagrams(volley, ends.0, ends.1);
            volley.arrives(&wire, "without policy");
            cluster.policy("victim", isolate("victim", &BOTH)).enforce();
            let volley = Volley::new();
            Sender::pod(&zombie).datagrams(volley, ends.0, ends.1);
            tally.note(&format!("to {to}, stained: {stained}"), volley.leaked(&wire));
            cluster.without_policy("victim").enforce();
        }
    }
    tally.holds();
}

#[test]
fn marks_of_an_unknown_pod_on_a_ptp_node() {
    if require_root("marks_of_an_unknown_pod_on_a_ptp_node") {
        of_an_unknown_veth("marks_of_an_unknown_pod_on_a_ptp_node", Cni::Ptp);
    }
}

#[test]
fn marks_of_an_unknown_pod_on_a_bridge_node() {
    if require_root("marks_of_an_unknown_pod_on_a_bridge_node") {
        of_an_unknown_veth("marks_of_an_unknown_pod_on_a_bridge_node", Cni::Bridge);
    }
}

/// A pod's further interface on top of the bridge: no interface of the node receives what it sends.
#[test]
fn a_macvlan_on_the_bridge_is_not_the_node() {
    const TEST: &str = "a_macvlan_on_the_bridge_is_not_the_node";
    if !require_root(TEST) {
        return;
    }
    let mut cluster = Cluster::one(Cni::Bridge).with_pods(&["victim", "hostile"]);
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
    for stained in [false, true] {
        for family in 0..2 {
            cluster.enforce();
            let victim = cluster.pod("victim");
            let (to, mac) = (victim.addresses()[family], victim.mac());
            let hostile: &Host = cluster.pod("hostile");
            let out = hostile.wire("net1").unwrap();
            let own = hostile.hardware_address("net1").unwrap();
            let from = cluster.pod("hostile").addresses()[family];
            let _stain = stained.then(|| hostile.stain("net1", forged(&cluster)).unwrap());
            let send = |out: &Wire, volley: Volley| {
                for number in 0..PACKETS {
                    let payload = volley.payload(number, 40);
                    let packet = udp_packet((from, 5000).into(), (to, PORT).into(), &payload);
                    out.send(&frame(mac, own, &packet)).unwrap();
                }
            };
            let volley = Volley::new();
            send(&out, volley);
            volley.arrives(&wire, "without policy");
            cluster.policy("victim", isolate("victim", &BOTH)).enforce();
            let volley = Volley::new();
            send(&out, volley);
            tally.note(&format!("to {to}, stained: {stained}"), volley.leaked(&wire));
            cluster.without_policy("victim");
        }
    }
    tally.holds();
}
