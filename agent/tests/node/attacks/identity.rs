//! The sender's identity in frames that are hard to read or carry no IP packet: behind VLAN tags, in the source MAC, in
//! probes for a free address. Needs a raw socket only.

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{NAMESPACE, TestCluster, eventually, isolate};
use netpold_testbed::packet::{frame, icmp_packet, udp_packet};
use netpold_testbed::{Cni, PodSpec, RawSocket, TestPod, ethernet, require_root};

use crate::attacks::volley::{BOTH, PACKETS, Sender, Volley};

/// Function that builds the frame that a pod sends, and the packet in it.
type Frame<'f> = &'f dyn Fn(&TestPod) -> (Vec<u8>, Vec<u8>);

const PORT: u16 = 4000;
const BROADCAST: [u8; 6] = [0xff; 6];
const ARP: u16 = 0x0806;
/// VLAN tags, of which the kernel strips any number.
const TAGS: [[u8; 4]; 2] = [[0x81, 0, 0, 0], [0x88, 0xa8, 0, 0]];
/// Time in which a leak would arrive.
const LONG_ENOUGH: Duration = Duration::from_millis(300);

/// Returns a cluster with pods on a bridge: `hostile` may send anything in its own name, `mute` nothing. `exempt` has
/// no source check, so its frames show the effect of an attack.
fn world() -> TestCluster {
    let mut cluster =
        TestCluster::one(Cni::Bridge).with_pods(&["victim", "other", "hostile", "mute"]);
    let exempt = PodSpec::new(NAMESPACE, "exempt").annotation("netpold.io/check-source", "off");
    cluster.add_as(0, exempt);
    cluster.arguments = ["--source-check-exempt", NAMESPACE].map(str::to_owned).to_vec();
    cluster.policy("mute", isolate("mute", &BOTH)).enforce();
    cluster
}

/// Attacking pods, each with whether netpold passes its frames.
const ATTACKERS: [(&str, bool); 3] = [("exempt", true), ("hostile", false), ("mute", false)];

/// Builds an ARP packet from operation, sender's MAC and address, and target's address.
pub(crate) fn arp(operation: u8, station: [u8; 6], own: IpAddr, target: IpAddr) -> Vec<u8> {
    let (IpAddr::V4(own), IpAddr::V4(target)) = (own, target) else { panic!("IPv4 only") };
    let header = [0, 1, 8, 0, 6, 4, 0, operation];
    [&header[..], &station, &own.octets(), &[0; 6], &target.octets()].concat()
}

/// Builds a neighbour discovery message.
pub(crate) fn discovery(from: IpAddr, to: IpAddr, kind: u8, word: [u8; 4], rest: &[u8]) -> Vec<u8> {
    let mut packet = icmp_packet((from, to), (kind, 0), word, rest);
    packet[7] = 255;
    packet
}

pub(crate) fn octets6(address: IpAddr) -> [u8; 16] {
    let IpAddr::V6(address) = address else { panic!("IPv6 only") };
    address.octets()
}

/// Builds a solicitation from the unspecified address. Returns it with the MAC address of the solicited group.
fn probe6(target: IpAddr) -> ([u8; 6], Vec<u8>) {
    let octets = octets6(target);
    let [.., a, b, c] = octets;
    let group = IpAddr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
    let packet = discovery(IpAddr::from([0; 16]), group, 135, [0; 4], &octets);
    ([0x33, 0x33, 0xff, a, b, c], packet)
}

/// Returns the number of frames that contain `bytes`; returns early once `enough` have arrived.
pub(crate) fn arrivals(wire: &RawSocket, bytes: &[u8], enough: usize) -> usize {
    let (mut seen, deadline) = (0, Instant::now() + LONG_ENOUGH);
    while seen < enough && Instant::now() < deadline {
        match wire.arrived() {
            Some(frame) => {
                seen += usize::from(frame.windows(bytes.len()).any(|part| part == bytes));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    seen
}

/// Sends frames of each attacker and checks the arrivals: all of `exempt`, none of the others. `frame` builds an
/// attacker's frame and the bytes that identify it.
#[track_caller]
fn attack(
    cluster: &TestCluster,
    wire: &RawSocket,
    what: &str,
    frame: impl Fn(&TestPod) -> (Vec<u8>, Vec<u8>),
) -> Result<(), String> {
    const FRAMES: usize = 20;
    for (name, allowed) in ATTACKERS {
        let pod = cluster.pod(name);
        let (frame, known_by) = frame(pod);
        while wire.arrived().is_some() {}
        let sender = pod.wire("eth0").unwrap();
        (0..FRAMES).for_each(|_| sender.send(&frame).unwrap());
        let seen = arrivals(wire, &known_by, FRAMES);
        println!("{what}, {name}: {seen} of {FRAMES}");
        if allowed {
            assert_eq!(seen, FRAMES, "{what}: what is not checked arrives");
        } else if seen > 0 {
            return Err(format!("{what}: {seen} of {FRAMES} of {name} arrive"));
        }
    }
    Ok(())
}

/// Sends forged sources, claims of addresses by ARP and neighbour discovery, and router advertisements behind VLAN
/// tags.
#[test]
fn tags_hide_nothing() {
    require_root!();
    let cluster = world();
    let [victim, other] = ["victim", "other"].map(|name| cluster.pod(name));
    let wire = victim.wire("eth0").unwrap();
    let (to, claimed) = (victim.addresses().to_vec(), other.addresses().to_vec());
    let mut leaks = Vec::new();
    for tags in 0..=7 {
        for kinds in 0..3 {
            let tag = |n: usize| TAGS[if kinds == 2 { n % 2 } else { kinds }];
            let tagged = |station: [u8; 6], own: [u8; 6], kind: u16, packet: &[u8]| {
                let mut all = ethernet(station, own, kind, packet);
                all.splice(12..12, (0..tags).flat_map(tag).collect::<Vec<u8>>());
                (all, packet.to_vec())
            };
            let mut tried = |what: &str, frame: Frame<'_>| {
                let what = format!("{what} behind {tags} tags ({kinds})");
                leaks.extend(attack(&cluster, &wire, &what, frame).err());
            };
            for (from, to) in claimed.iter().zip(&to) {
                let ends: (SocketAddr, SocketAddr) = ((*from, 5000).into(), (*to, PORT).into());
                let forged = udp_packet(ends.0, ends.1, &[7; 40]);
                let kind = if from.is_ipv4() { 0x0800 } else { 0x86dd };
                tried("a forged source", &|pod| tagged(victim.mac(), pod.mac(), kind, &forged));
            }
            tried("ARP", &|pod| {
                let claim = arp(2, pod.mac(), claimed[0], to[0]);
                tagged(victim.mac(), pod.mac(), ARP, &claim)
            });
            tried("an advertisement", &|pod| {
                let target = octets6(claimed[1]);
                let rest = [&target[..], &[2, 1], &pod.mac()].concat();
                let claim = discovery(pod.addresses()[1], to[1], 136, [0x60, 0, 0, 0], &rest);
                tagged(victim.mac(), pod.mac(), 0x86dd, &claim)
            });
            tried("a router", &|pod| {
                let from = "fe80::7".parse().unwrap();
                let advertisement = discovery(from, to[1], 134, [64, 0, 7, 8], &[0; 8]);
                tagged(victim.mac(), pod.mac(), 0x86dd, &advertisement)
            });
        }
    }
    assert!(leaks.is_empty(), "{leaks:#?}");
    // Two tags are allowed on a frame with the pod's own source.
    let hostile = cluster.pod("hostile");
    let own = udp_packet(
        (hostile.addresses()[0], 5000).into(),
        (to[0], PORT).into(),
        &Volley::new().payload(0, 40),
    );
    let mut tagged = frame(victim.mac(), hostile.mac(), &own);
    tagged.splice(12..12, TAGS.concat());
    hostile.wire("eth0").unwrap().send(&tagged).unwrap();
    assert_eq!(arrivals(&wire, &own, 1), 1, "two tags in its own name");
}

/// Sends frames with the victim's source MAC, which would make the bridge send the victim's traffic to the attacker.
#[test]
fn another_station_teaches_the_bridge_nothing() {
    require_root!();
    let cluster = world();
    let [victim, other] = ["victim", "other"].map(|name| cluster.pod(name));
    let (theirs, node) = (victim.mac(), victim.gateway_mac());
    let victims = victim.wire("eth0").unwrap();
    // Teaches the bridge the victim's port before each attack.
    let reminder =
        ethernet(node, theirs, ARP, &arp(1, theirs, victim.addresses()[0], other.addresses()[0]));
    let mut leaks = Vec::new();
    for (name, allowed) in ATTACKERS {
        let pod = cluster.pod(name);
        let (own, at) = (pod.addresses()[0], pod.wire("eth0").unwrap());
        let datagram =
            udp_packet((own, 5000).into(), (other.addresses()[0], PORT).into(), &[7; 40]);
        let attacks = [
            ("a datagram", frame(node, theirs, &datagram)),
            (
                "ARP",
                ethernet(BROADCAST, theirs, ARP, &arp(1, pod.mac(), own, other.addresses()[0])),
            ),
            ("ARP of that station", ethernet(node, theirs, ARP, &arp(2, theirs, own, own))),
            ("ARP from its own", ethernet(node, pod.mac(), ARP, &arp(2, theirs, own, own))),
            ("what is not IP", ethernet(node, theirs, 0x88b5, &[0; 46])),
        ];
        for (what, frame) in attacks {
            // "ARP from its own" forges the MAC in ARP alone: hosts learn it, the bridge does not.
            let teaches = what != "ARP from its own";
            victims.send(&reminder).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            (0..3).for_each(|_| at.send(&frame).unwrap());
            std::thread::sleep(Duration::from_millis(20));
            let volley = Volley::new();
            let ends = ((other.addresses()[0], 5000).into(), (victim.addresses()[0], PORT).into());
            Sender::pod(other).to(theirs).datagrams(volley, ends.0, ends.1);
            let stolen = volley.leaked(&at);
            println!("{what}, {name}: {stolen} of {PACKETS} stolen");
            if allowed && teaches {
                assert!(stolen > PACKETS / 2, "{what}: {stolen}: what is not checked steals");
            } else if !allowed && stolen > 0 {
                leaks.push(format!("{what}, {name}: {stolen}"));
            }
        }
    }
    assert!(leaks.is_empty(), "{leaks:#?}");
    // Hosts learn the MAC that ARP carries.
    let lie = |pod: &TestPod| {
        let own = pod.addresses()[0];
        let packet = arp(2, theirs, own, own);
        (ethernet(victim.mac(), pod.mac(), ARP, &packet), packet)
    };
    attack(&cluster, &victims, "another's station in ARP", lie).unwrap();
}

/// Returns whether duplicate address detection lets a pod have a new IPv6 address.
fn gets(pod: &TestPod, address: &str) -> bool {
    let add = format!("address add {address}/64 dev eth0\n");
    pod.netns().ip(&add).unwrap();
    let flags = || {
        let shown =
            pod.command("ip").unwrap().args(["-6", "address", "show", "dev", "eth0"]).output();
        let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
        let line = shown.lines().find(|line| line.contains(&format!("{address}/")));
        line.unwrap_or_default().to_owned()
    };
    let settled = || !flags().contains("tentative") || flags().contains("dadfailed");
    eventually(Duration::from_secs(20), settled, || format!("{address} stays tentative"));
    let got = !flags().contains("dadfailed");
    pod.netns().ip(&format!("address del {address}/64 dev eth0\n")).unwrap();
    got
}

/// Sends probes for a free address from a pod that does not use the address afterwards.
#[test]
fn nobody_is_kept_from_a_new_address() {
    require_root!();
    let cluster = world();
    let victim = cluster.pod("victim");
    for (key, value) in [("accept_dad", "1"), ("dad_transmits", "3")] {
        victim.netns().sysctl(&format!("ipv6/conf/eth0/{key}"), value).unwrap();
    }
    assert!(gets(victim, "fd00:1:1::f0"), "while nobody asks");
    for (number, (name, allowed)) in ATTACKERS.into_iter().enumerate() {
        let address = format!("fd00:1:1::f{}", number + 1);
        let (station, probe) = probe6(address.parse().unwrap());
        let pod = cluster.pod(name);
        let sender = pod.wire("eth0").unwrap();
        let asked = frame(station, pod.mac(), &probe);
        let got = std::thread::scope(|scope| {
            let (stop, stopped) = mpsc::channel::<()>();
            scope.spawn(move || {
                let pause = Duration::from_millis(5);
                while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    sender.send(&asked).unwrap();
                }
            });
            let got = gets(victim, &address);
            drop(stop);
            got
        });
        println!("{name} asks for {address}: the victim gets it: {got}");
        assert_eq!(got, !allowed, "while {name} asks for it");
    }
    // IPv4: ARP probes, which hosts with RFC 5227 treat as a conflict.
    let wire = victim.wire("eth0").unwrap();
    let nobody = IpAddr::from([0; 4]);
    let question = |pod: &TestPod, address| {
        let packet = arp(1, pod.mac(), nobody, address);
        (ethernet(BROADCAST, pod.mac(), ARP, &packet), packet)
    };
    attack(&cluster, &wire, "ARP for another's", |pod| question(pod, victim.addresses()[0]))
        .unwrap();
    // A pod may probe for its own addresses.
    for name in ["hostile", "mute"] {
        let pod = cluster.pod(name);
        let (own, known_by) = question(pod, pod.addresses()[0]);
        pod.wire("eth0").unwrap().send(&own).unwrap();
        assert_eq!(arrivals(&wire, &known_by, 1), 1, "{name} asks for its own address");
        let (station, probe) = probe6(pod.addresses()[1]);
        pod.wire("eth0").unwrap().send(&frame(station, pod.mac(), &probe)).unwrap();
        assert_eq!(arrivals(&wire, &probe, 1), 1, "{name} asks for its own IPv6 address");
    }
}

/// Sends data from the unspecified address. An ipBlock of the victim's policy would admit it, whoever sends.
#[test]
fn nobodys_data_arrives_nowhere() {
    require_root!();
    let cluster = world();
    let victim = cluster.pod("victim");
    let wire = victim.wire("eth0").unwrap();
    for (nobody, to) in
        [IpAddr::from([0; 4]), IpAddr::from([0; 16])].into_iter().zip(victim.addresses())
    {
        for port in [PORT, 67] {
            let sent = |pod: &TestPod| {
                let own = udp_packet((nobody, 5000).into(), (*to, port).into(), &[7; 40]);
                (frame(victim.mac(), pod.mac(), &own), own)
            };
            attack(&cluster, &wire, &format!("{nobody} to {to}, port {port}"), sent).unwrap();
        }
    }
}
