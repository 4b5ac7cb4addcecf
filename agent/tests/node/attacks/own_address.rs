//! Packets to an allowed address, in frames to another station's MAC.

use std::net::IpAddr;

use netpold_testbed::cluster::{TestCluster, allow_to};
use netpold_testbed::packet::{icmp_packet, packet, udp_packet};
use netpold_testbed::{Cni, TestNode, require_root};

use crate::attacks::volley::{PACKETS, Sender, Tally, Volley, try_both};

const BROADCAST: [u8; 6] = [0xff; 6];
/// Payload length; the packets fit an Ethernet frame.
const LONG: usize = 1320;

/// Sends a volley of UDP, ICMP echo and unknown-protocol packets.
fn mixed(sender: &Sender, volley: Volley, from: IpAddr, to: IpAddr) {
    for number in 0..PACKETS {
        let payload = volley.payload(number, LONG);
        let echo = if to.is_ipv4() { (8, 0) } else { (128, 0) };
        sender.send(&match number % 3 {
            0 => udp_packet((from, 5000).into(), (to, 4000).into(), &payload),
            1 => icmp_packet((from, to), echo, [0, 9, 0, 1], &payload),
            _ => packet(from, to, 253, &payload),
        });
    }
}

/// Adds a host behind a port of the bridge, which serves as the uplink.
fn uplink(cluster: &TestCluster) -> TestNode {
    let far = TestNode::new("far", Cni::Ptp, "10.7.0.0/24", "fd00:7::/64").unwrap();
    let there = far.netns().path();
    cluster.nodes[0]
        .netns()
        .ip(&format!(
            "link add uplink type veth peer name uplink netns {}\nlink set uplink master cni0 up\n",
            there.display()
        ))
        .unwrap();
    far.netns().ip("link set uplink up\n").unwrap();
    far
}

#[test]
fn ones_own_address_at_another_station() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Bridge).with_pods(&["hostile", "other"]);
    // Lets forged sources pass at the sender's own interface.
    cluster.arguments = ["--check-source", "off"].map(str::to_owned).to_vec();
    let far = uplink(&cluster);
    let other = cluster.pod("other").wire("eth0").unwrap();
    let outside = far.wire("uplink").unwrap();
    let macs = (cluster.pod("other").mac(), far.hardware_address("uplink").unwrap());
    // The bridge learns the port of the host behind the uplink.
    outside.send(&netpold_testbed::ethernet(BROADCAST, macs.1, 0x88b5, &[0; 46])).unwrap();
    let mut tally = Tally::default();
    let own = cluster.pod("hostile").addresses().to_vec();
    let theirs = cluster.pod("other").addresses().to_vec();
    for (own, theirs) in own.into_iter().zip(theirs) {
        let ways = [
            ("a pod", &other, macs.0),
            ("the uplink", &outside, macs.1),
            ("everybody, a pod", &other, BROADCAST),
            ("everybody, the uplink", &outside, BROADCAST),
        ];
        for (whose, wire, mac) in ways {
            for (from, what) in [(own, "its own"), (theirs, "another's")] {
                let what = format!("to {own} at {whose}'s, from {what}");
                try_both(&mut cluster, (&what, "hostile"), wire, &mut tally, |cluster, volley| {
                    let sender = Sender::pod(cluster.pod("hostile")).to(mac);
                    mixed(&sender, volley, from, own);
                });
            }
        }
    }
    tally.holds();
}

/// Sends to the node's address, which every pod reaches, and to an allowed peer's address.
#[test]
fn an_allowed_address_at_another_station() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Bridge).with_pods(&["hostile", "friend", "other"]);
    let wire = cluster.pod("other").wire("eth0").unwrap();
    let mut tally = Tally::default();
    for family in 0..2 {
        let own = cluster.pod("hostile").addresses()[family];
        let node = cluster.nodes[0].addresses()[family];
        let friend = cluster.pod("friend").addresses()[family];
        for mac in [cluster.pod("other").mac(), BROADCAST] {
            let attack = |cluster: &TestCluster, volley: Volley, to: IpAddr| {
                mixed(&Sender::pod(cluster.pod("hostile")).to(mac), volley, own, to);
            };
            let what = format!("to {node} at {mac:02x?}");
            try_both(&mut cluster, (&what, "hostile"), &wire, &mut tally, |cluster, volley| {
                attack(cluster, volley, node);
            });
            cluster.enforce();
            let volley = Volley::new();
            attack(&cluster, volley, friend);
            let what = format!("to {friend} at {mac:02x?}");
            volley.arrives(&wire, &what);
            cluster.policy("hostile", allow_to("hostile", "friend")).enforce();
            cluster.reaches("hostile", "friend");
            let volley = Volley::new();
            attack(&cluster, volley, friend);
            tally.note(&what, volley.leaked(&wire));
            cluster.without_policy("hostile");
        }
    }
    tally.holds();
}
