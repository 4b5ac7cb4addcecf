//! Encapsulated packets to the node's own tunnel device: VXLAN, the only tunnel in this kernel.

use std::net::{IpAddr, SocketAddr};

use netpold_testbed::cluster::{TestCluster, allow_from, isolate};
use netpold_testbed::packet::{frame, udp_packet};
use netpold_testbed::{Cni, require_root};

use crate::attacks::tunnel;
use crate::attacks::volley::{BOTH, PACKETS, Sender, Tally, Volley, pairs};

const PORT: u16 = 4000;

/// Returns a cluster where `victim` allows `friend` only, `mute` may send nothing and `hostile` is unrestricted.
fn world(cni: Cni) -> TestCluster {
    let pods = ["victim", "friend", "hostile", "mute", "free"];
    let cluster = TestCluster::one(cni).with_pods(&pods);
    let [node, _] = cluster.nodes[0].addresses();
    cluster.nodes[0]
        .netns()
        .ip(&format!(
            "link add vxlan9 address 0a:58:09:00:00:01 type vxlan id 9 local {node} \
             dstport {} learning\n\
             link set vxlan9 up\n\
             address add 172.31.9.1/24 dev vxlan9\n\
             address add fd00:9::1/64 dev vxlan9 nodad\n",
            tunnel::PORT
        ))
        .unwrap();
    cluster
}

/// Sends a volley of `sender` in VXLAN; `ends` are the inner source and destination.
fn wrapped(cluster: &TestCluster, volley: Volley, sender: &str, ends: (IpAddr, IpAddr)) {
    let pod = cluster.pod(sender);
    let [node, _] = cluster.nodes[0].addresses();
    let outer: SocketAddr = (pod.addresses()[0], 5000).into();
    let (claimed, to) = ends;
    let out = Sender::pod(pod);
    for number in 0..PACKETS {
        let payload = volley.payload(number, 40);
        let inner = udp_packet((claimed, 5000).into(), (to, PORT).into(), &payload);
        let mut datagram = tunnel::HEADER.to_vec();
        datagram.extend(frame(tunnel::MAC, tunnel::PEER_MAC, &inner));
        out.send(&udp_packet(outer, (node, tunnel::PORT).into(), &datagram));
    }
}

/// Checks that each way (sender, claimed source, receiver) arrives without an agent, and counts its leaks with policy.
fn decapsulated(cni: Cni, ways: &[[&str; 3]], tally: &mut Tally) {
    let mut cluster = world(cni);
    for policy in [false, true] {
        if policy {
            cluster.policy("victim", allow_from("victim", "friend"));
            cluster.policy("mute", isolate("mute", &BOTH)).enforce();
        }
        for [sender, claimed, to] in ways {
            let wire = cluster.pod(to).wire("eth0").unwrap();
            for (claimed, to) in pairs(cluster.pod(claimed), cluster.pod(to)) {
                let what = format!("{sender} as {claimed} to {to}, {cni:?}");
                let volley = Volley::new();
                wrapped(&cluster, volley, sender, (claimed, to));
                if policy {
                    tally.note(&what, volley.leaked(&wire));
                } else {
                    volley.arrives(&wire, &what);
                }
            }
        }
    }
}

#[test]
fn forged_by_way_of_the_nodes_tunnel() {
    require_root!();
    let mut tally = Tally::default();
    for cni in [Cni::Ptp, Cni::Bridge] {
        decapsulated(cni, &[["hostile", "friend", "victim"]], &mut tally);
    }
    tally.holds();
}

#[test]
fn the_nodes_tunnel_is_no_way_out() {
    require_root!();
    let ways = [["mute", "mute", "free"], ["mute", "friend", "free"], ["mute", "friend", "victim"]];
    let mut tally = Tally::default();
    for cni in [Cni::Ptp, Cni::Bridge] {
        decapsulated(cni, &ways, &mut tally);
    }
    tally.holds();
}
