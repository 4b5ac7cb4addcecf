//! Packets behind an IPv6 routing header at its last segment, which the node unpacks on the interface that they came by
//! (`SRv6`, RFC 8986 section 4.13; RPL, RFC 6554), with sources of the pod's choice.

use std::net::{IpAddr, Ipv6Addr};

use netpold_testbed::cluster::{TestCluster, allow_from, allow_to};
use netpold_testbed::packet::{ipv6, udp_packet};
use netpold_testbed::{Cni, TestPod, require_root};

use crate::attacks::volley::{PACKETS, Sender, Tally, Volley, pairs};

const PORT: u16 = 4000;
/// Types of routing headers. The kernel unpacks only IPv6 behind the first one.
const RPL: u8 = 3;
const SRV6: u8 = 4;

fn six(address: IpAddr) -> Ipv6Addr {
    let IpAddr::V6(address) = address else { panic!("IPv6 only") };
    address
}

/// Returns a cluster on a node that takes routing headers, where `victim` allows `friend` only, and `hostile` may send
/// to `victim` and the node.
fn world(cni: Cni) -> TestCluster {
    let cluster = TestCluster::one(cni).with_pods(&["victim", "friend", "hostile"]);
    let netns = cluster.nodes[0].netns();
    let bridge = (cni == Cni::Bridge).then_some("cni0");
    for device in ["all", cluster.pod("hostile").host_interface()].into_iter().chain(bridge) {
        for key in ["seg6_enabled", "rpl_seg_enabled"] {
            netns.sysctl(&format!("ipv6/conf/{device}/{key}"), "1").unwrap();
        }
    }
    cluster
}

/// Sends a volley in a pod's own name to the node, with a packet from `claimed` to `to` behind the routing header.
fn routed(pod: &TestPod, node: IpAddr, volley: Volley, kind: u8, (claimed, to): (IpAddr, IpAddr)) {
    let out = Sender::pod(pod);
    let next = if to.is_ipv4() { 4 } else { 41 };
    // One segment, which is the node, and none left.
    let header = [&[next, 2, kind, 0, 0, 0, 0, 0][..], &six(node).octets()].concat();
    for number in 0..PACKETS {
        let inner =
            udp_packet((claimed, 5000).into(), (to, PORT).into(), &volley.payload(number, 40));
        let own = six(pod.addresses()[1]);
        out.send(&ipv6((own, six(node)), 43, &[&header[..], &inner].concat()));
    }
}

/// Checks that the packets arrive without an agent, and counts those that do with policy.
fn unpacked(cni: Cni, tally: &mut Tally) {
    let mut cluster = world(cni);
    for policy in [None, Some(false), Some(true)] {
        if let Some(isolated) = policy {
            cluster.policy("victim", allow_from("victim", "friend"));
            if isolated {
                cluster.policy("hostile", allow_to("hostile", "victim"));
            }
            cluster.enforce();
        }
        let (hostile, victim) = (cluster.pod("hostile"), cluster.pod("victim"));
        let wire = victim.wire("eth0").unwrap();
        let node = cluster.nodes[0].addresses()[1];
        for ends in pairs(cluster.pod("friend"), victim) {
            let types = if ends.0.is_ipv4() { &[SRV6][..] } else { &[SRV6, RPL] };
            for &kind in types {
                let what = format!("type {kind}, as {}, {cni:?}, isolated: {policy:?}", ends.0);
                let volley = Volley::new();
                routed(hostile, node, volley, kind, ends);
                if policy.is_none() {
                    volley.arrives(&wire, &what);
                } else {
                    tally.note(&what, volley.leaked(&wire));
                }
            }
        }
    }
}

#[test]
fn unpacked_behind_a_routing_header_on_a_ptp_node() {
    require_root!();
    let mut tally = Tally::default();
    unpacked(Cni::Ptp, &mut tally);
    tally.holds();
}

#[test]
fn unpacked_behind_a_routing_header_on_a_bridge_node() {
    require_root!();
    let mut tally = Tally::default();
    unpacked(Cni::Bridge, &mut tally);
    tally.holds();
}
