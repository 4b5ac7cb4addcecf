//! UDP datagrams larger than the MTU.

use netpold_testbed::cluster::{MOMENT, TestCluster, isolate};
use netpold_testbed::{Cni, TestPod, require_root, udp_frame};
use std::net::IpAddr;

use crate::traffic::udp;

const ALLOWED: u16 = 4000;
const DENIED: u16 = 4001;
const LONG: usize = 5000;

fn pairs<'a>(from: &'a TestPod, to: &'a TestPod) -> impl Iterator<Item = (IpAddr, IpAddr)> + 'a {
    from.addresses().iter().copied().zip(to.addresses().iter().copied())
}

fn long_datagrams(cni: Cni) {
    let mut cluster = TestCluster::one(cni).with_pods(&["server", "client"]);
    let port = serde_json::json!({
        "podSelector": { "matchLabels": { "app": "server" } },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{ "ports": [{ "protocol": "UDP", "port": ALLOWED }] }],
    });
    cluster.policy("server", port).policy("client", isolate("client", &["Ingress"])).enforce();
    let (client, server) = (cluster.pod("client"), cluster.pod("server"));
    for (from, to) in pairs(client, server) {
        let here = udp::socket(client, from, 0);
        let allowed = udp::socket(server, to, ALLOWED);
        let denied = udp::socket(server, to, DENIED);
        for number in 0..5 {
            let payload = vec![number; LONG];
            here.send_to(&payload, (to, DENIED)).unwrap();
            here.send_to(&payload, (to, ALLOWED)).unwrap();
            let (received, sender) = udp::receive(&allowed).expect("the allowed datagram");
            assert_eq!(received, payload);
            allowed.send_to(&received, sender).unwrap();
            assert_eq!(udp::receive(&here).expect("the echoed datagram").0, payload);
        }
        denied.set_read_timeout(Some(MOMENT)).unwrap();
        assert_eq!(udp::receive(&denied), None, "to {to}");
    }
}

#[test]
fn long_datagrams_on_a_ptp_node() {
    require_root!();
    long_datagrams(Cni::Ptp);
}

#[test]
fn long_datagrams_on_a_bridge_node() {
    require_root!();
    long_datagrams(Cni::Bridge);
}

/// The kernel reassembles IPv6 fragments with an options header after the Fragment header; policy judges them by the
/// UDP port after the options.
#[test]
fn fragments_with_options_behind_the_fragment_header() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client"]);
    let port = serde_json::json!({
        "podSelector": { "matchLabels": { "app": "server" } },
        "ingress": [{ "ports": [{ "protocol": "UDP", "port": ALLOWED }] }],
    });
    cluster.policy("server", port).enforce();
    let (client, server) = (cluster.pod("client"), cluster.pod("server"));
    let (from, to) = (client.ip6().unwrap(), server.ip6().unwrap());
    let allowed = udp::socket(server, to, ALLOWED);
    let denied = udp::socket(server, to, DENIED);
    let payload = [7_u8; 64];
    for (port, number) in [(DENIED, 1), (ALLOWED, 2)] {
        let whole = udp_frame(
            client.gateway_mac(),
            client.mac(),
            (from, 5000).into(),
            (to, port).into(),
            &payload,
        );
        let whole = whole.unwrap();
        // Destination Options header with padding, then the datagram.
        let body = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &whole[54..]].concat();
        let (first, later) = body.split_at(40);
        for (offset, more, part) in [(0_u16, 1, first), (40, 0, later)] {
            let mut frame = whole[..54].to_vec();
            frame[18..20].copy_from_slice(&(8 + part.len() as u16).to_be_bytes());
            frame[20] = 44;
            frame.extend([60, 0]);
            frame.extend((offset | more).to_be_bytes());
            frame.extend([0, 0, 0, number]);
            frame.extend(part);
            client.send_frame("eth0", &frame).unwrap();
        }
    }
    assert_eq!(udp::receive(&allowed).expect("the allowed datagram").0, payload);
    denied.set_read_timeout(Some(MOMENT)).unwrap();
    assert_eq!(udp::receive(&denied), None);
}
