//! Attacks around the program of the pod's veth by an `ifb` (see [`crate::attacks::bounce`]) other than whole datagrams:
//! fragments that the kernel rewrites, ARP and neighbour discovery, source routes, checksums. Needs `NET_ADMIN` in the
//! pod.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use netpold_testbed::cluster::{PATIENCE, TestCluster, allow_from, allow_to, isolate};
use netpold_testbed::packet::{frame, ipv4, udp_message};
use netpold_testbed::{
    Cni, Offload, ProbeProtocol, Proxy, TestNode, TestPod, ethernet, require_root,
};

use crate::attacks::bounce::{bounce, bounce_bursts, can_bounce};
use crate::attacks::checksum::becomes;
use crate::attacks::identity::{arp, arrivals, discovery, octets6};
use crate::attacks::refragmented::{PART, fragments6};
use crate::attacks::volley::{BOTH, PACKETS, Sender, Tally, Volley};

const PORT: u16 = 4000;

/// Sends a volley of two-fragment datagrams with options behind the Fragment header, which the kernel rewrites after
/// conntrack's reassembly.
fn parts(pod: &TestPod, (from, to): (IpAddr, IpAddr), volley: Volley) {
    let sender = Sender::pod(pod);
    bounce_bursts(pod, 1600, || {
        for number in 0..PACKETS {
            let payload = volley.payload(number, 2 * PART);
            let ident = 0x1000 + number as u32;
            fragments6(from, to, ident, &payload).iter().for_each(|part| sender.send(part));
        }
    });
}

/// Attacks a pod of either node from a deny-all pod, with its own source and with sources of allowed pods of both
/// nodes.
fn parts_of_a_tracking_node(test: &str, node: usize) {
    let mut cluster = TestCluster::two();
    for (at, name) in [(node, "hostile"), (node, "near"), (node, "friend"), (1 - node, "far")] {
        cluster.add(at, name);
    }
    cluster.add(1 - node, "remote");
    if !can_bounce(cluster.pod("hostile"), test) {
        return;
    }
    for node in &cluster.nodes {
        node.translate(Proxy::Nftables, &[]).unwrap();
    }
    let mut tally = Tally::default();
    for enforced in [false, true] {
        if enforced {
            cluster.policy("hostile", isolate("hostile", &BOTH));
            for (victim, peer) in [("near", "friend"), ("far", "remote")] {
                cluster.policy(victim, allow_from(victim, peer));
            }
            cluster.enforce();
        }
        for victim in ["near", "far"] {
            for source in ["hostile", "friend", "remote"] {
                let [hostile, from, to] = ["hostile", source, victim].map(|name| cluster.pod(name));
                let wire = to.wire("eth0").unwrap();
                let volley = Volley::new();
                parts(hostile, (from.addresses()[1], to.addresses()[1]), volley);
                let what = format!("as {source} to {victim}");
                if enforced {
                    tally.note(&what, volley.leaked(&wire));
                } else {
                    volley.arrives(&wire, &what);
                }
            }
        }
    }
    tally.holds();
    // Fragments of an allowed pod arrive.
    let [friend, near] = ["friend", "near"].map(|name| cluster.pod(name));
    let (wire, volley, sender) = (near.wire("eth0").unwrap(), Volley::new(), Sender::pod(friend));
    for number in 0..PACKETS {
        let payload = volley.payload(number, 2 * PART);
        let ends = (friend.addresses()[1], near.addresses()[1]);
        fragments6(ends.0, ends.1, 0x9000 + number as u32, &payload)
            .iter()
            .for_each(|it| sender.send(it));
    }
    volley.arrives(&wire, "of an allowed pod, by its program");
}

#[test]
fn bounced_parts_on_a_tracking_ptp_node() {
    require_root!();
    parts_of_a_tracking_node("bounced_parts_on_a_tracking_ptp_node", 0);
}

#[test]
fn bounced_parts_on_a_tracking_bridge_node() {
    require_root!();
    parts_of_a_tracking_node("bounced_parts_on_a_tracking_bridge_node", 1);
}

/// Returns whether an address answers the node's ping.
fn reached(node: &TestNode, address: IpAddr) -> bool {
    node.probe(ProbeProtocol::Icmp, address, 0, PATIENCE).connected()
}

/// Returns the MAC address in the node's neighbour table for an address behind its bridge.
fn neighbour(cluster: &TestCluster, address: IpAddr) -> String {
    let node = &cluster.nodes[0];
    let shown = node.command("ip").unwrap().args(["neigh", "show", &address.to_string()]).output();
    let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
    let mut words = shown.split_whitespace().skip_while(|word| *word != "lladdr");
    words.nth(1).unwrap_or_default().to_owned()
}

/// Claims a neighbour's addresses by ARP and neighbour discovery, to the node and to pods.
#[test]
fn bounced_claims_on_a_bridge_node() {
    require_root!();
    let mut cluster =
        TestCluster::one(Cni::Bridge).with_pods(&["hostile", "mute", "victim", "other"]);
    if !can_bounce(cluster.pod("hostile"), "bounced_claims_on_a_bridge_node") {
        return;
    }
    cluster.pod("mute").netns().ip("link add ifb0 type ifb\nlink set ifb0 up\n").unwrap();
    let mut leaks = Vec::new();
    for enforced in [false, true] {
        if enforced {
            cluster.policy("mute", isolate("mute", &BOTH)).enforce();
        }
        for name in ["hostile", "mute"] {
            let [pod, victim, other] = [name, "victim", "other"].map(|name| cluster.pod(name));
            let mac = pod.mac().map(|octet| format!("{octet:02x}")).join(":");
            let own6 = pod.addresses()[1];
            let [theirs4, theirs6] = [victim.addresses()[0], victim.addresses()[1]];
            let rest = [&octets6(theirs6)[..], &[2, 1], &pod.mac()].concat();
            let node = pod.gateway_mac();
            let routers = ["10.1.1.1", "fd00:1:1::1"].map(|a| a.parse::<IpAddr>().unwrap());
            for (family, theirs) in [theirs4, theirs6].into_iter().enumerate() {
                // The node resolves the victim's address anew, without an entry of an earlier claim.
                cluster.nodes[0].netns().ip("neigh flush dev cni0\n").unwrap();
                assert!(reached(&cluster.nodes[0], theirs));
                // Until `locktime` (1 s) is over, the kernel accepts no other MAC by ARP.
                std::thread::sleep(Duration::from_millis(1200));
                let claim = if family == 0 {
                    ethernet(node, pod.mac(), 0x0806, &arp(2, pod.mac(), theirs, routers[0]))
                } else {
                    let claim = discovery(own6, routers[1], 136, [0x60, 0, 0, 0], &rest);
                    frame(node, pod.mac(), &claim)
                };
                let sender = pod.wire("eth0").unwrap();
                // On a busy machine the ifb sends late, or the kernel's lock lasts longer.
                let stolen = (0..5).any(|_| {
                    bounce(pod, || (0..20).for_each(|_| sender.send(&claim).unwrap()));
                    std::thread::sleep(Duration::from_millis(200));
                    neighbour(&cluster, theirs) == mac
                });
                println!("{name} claims {theirs} to the node, with netpold: {enforced}: {stolen}");
                if !enforced {
                    assert!(stolen, "{name} claims {theirs} without netpold");
                } else if stolen {
                    leaks.push(format!("{name} has {theirs}"));
                }
            }
            let wire = other.wire("eth0").unwrap();
            let claims = [
                (0x0806, arp(2, pod.mac(), theirs4, other.addresses()[0])),
                (0x86dd, discovery(own6, other.addresses()[1], 136, [0x60, 0, 0, 0], &rest)),
            ];
            for (kind, claim) in claims {
                let whole = ethernet(other.mac(), pod.mac(), kind, &claim);
                let sender = pod.wire("eth0").unwrap();
                bounce(pod, || (0..20).for_each(|_| sender.send(&whole).unwrap()));
                let seen = arrivals(&wire, &claim, 20);
                println!("{name} claims to a pod, with netpold: {enforced}: {seen} of 20");
                if !enforced {
                    assert!(seen > 10, "{name} claims to a pod without netpold: {seen}");
                } else if seen > 0 {
                    leaks.push(format!("{name} claims to a pod: {seen}"));
                }
            }
        }
    }
    assert!(leaks.is_empty(), "{leaks:#?}");
    // Answers that pass the pod's program reach the node.
    let hostile = cluster.pod("hostile");
    for own in hostile.addresses() {
        assert!(reached(&cluster.nodes[0], *own), "the node reaches {own}");
    }
    cluster.reaches("other", "victim");
}

/// Sends to an allowed peer: with a source route to another pod, and with a checksum that the kernel completes in the
/// destination address.
#[test]
fn bounced_to_an_allowed_peer() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Bridge).with_pods(&["hostile", "peer", "other"]);
    if !can_bounce(cluster.pod("hostile"), "bounced_to_an_allowed_peer") {
        return;
    }
    let at = cluster.pod("peer").host_interface().to_owned();
    cluster.nodes[0].complete_checksums(&at).unwrap();
    let mut leaks = Vec::new();
    for enforced in [false, true] {
        if enforced {
            cluster.policy("hostile", allow_to("hostile", "peer")).enforce();
        }
        let [hostile, peer, other] = ["hostile", "peer", "other"].map(|name| cluster.pod(name));
        let (IpAddr::V4(own), IpAddr::V4(to), IpAddr::V4(beyond)) =
            (hostile.addresses()[0], peer.addresses()[0], other.addresses()[0])
        else {
            panic!("IPv4 first")
        };
        let ends: [SocketAddr; 2] = [(own, 5000).into(), (to, PORT).into()];
        let payload = Volley::new().payload(0, 42);
        let message = udp_message(ends[0], ends[1], &payload);
        let routed = [&[1, 131, 7, 4][..], &beyond.octets()].concat();
        let whole = |options: &[u8]| {
            frame(peer.mac(), hostile.mac(), &ipv4((own, to), 17, (0, 0), options, &message))
        };
        let last = beyond.to_bits() as u16;
        let written = Offload { checksum: Some((20, 12)), ..Offload::default() };
        let moved = becomes(whole(&[]), 20, whole(&[]).len() - 2, last);
        let wire = peer.wire("eth0").unwrap();
        for (what, offload, frame, allowed) in [
            ("a plain datagram", Offload::default(), whole(&[]), true),
            ("one with other options", Offload::default(), whole(&[148, 4, 0, 0]), true),
            ("a route", Offload::default(), whole(&routed), !enforced),
            ("another address", written, moved, !enforced),
        ] {
            let sender = hostile.wire("eth0").unwrap();
            bounce(hostile, || {
                (0..20).for_each(|_| sender.send_with(&offload, &frame).unwrap());
            });
            let seen = arrivals(&wire, &payload[..40], 20);
            println!("{what}, with netpold: {enforced}: {seen} of 20");
            if allowed {
                assert!(seen > 10, "{what}, with netpold: {enforced}: {seen}");
            } else if seen > 0 {
                leaks.push(format!("{what}: {seen}"));
            }
        }
    }
    assert!(leaks.is_empty(), "{leaks:#?}");
}
