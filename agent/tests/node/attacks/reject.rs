//! Rejections of denied packets (`netpold.io/deny: reject`): no packet makes netpold send an answer to a host other
//! than the sender, and no packet of a pod passes as such an answer.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use netpold_ebpf::judge::proof::DEFAULT_BIT;
use netpold_ebpf::layout::REJECTION;
use netpold_testbed::cluster::{NAMESPACE, TestCluster, isolate, network_policy};
use netpold_testbed::packet::{
    frame, icmp_packet, ipv4, packet, tcp_message, udp_packet, unreachable_packet,
};
use netpold_testbed::{Cni, PodSpec, RawSocket, require_root, skip};
use serde_json::{Value, json};

use crate::attacks::volley::{BOTH, PACKETS, Sender, Tally, Volley, pairs, try_both};

/// Number of packets of each kind.
const EACH: usize = 20;
/// Time in which an answer would arrive.
const LONG_ENOUGH: Duration = Duration::from_millis(400);
const PORTS: (u16, u16) = (4000, 4001);
const RST: u8 = 4;
const UDP: u8 = 17;

/// A policy that isolates an app and rejects denied packets.
fn rejecting(app: &str) -> Value {
    let mut policy = network_policy(&format!("rejects-{app}"), &isolate(app, &BOTH));
    policy["metadata"]["annotations"] = json!({ "netpold.io/deny": "reject" });
    policy
}

/// A cluster without limits on answers. All traffic of `hostile` and `victim` is denied and rejected.
fn cluster(mut cluster: TestCluster) -> TestCluster {
    let rates = ["--reject-rate", "1000000", "--reject-node-rate", "1000000"];
    cluster.arguments = rates.map(str::to_owned).into();
    cluster.objects = ["hostile", "victim"].map(rejecting).into();
    cluster.enforce();
    cluster
}

/// Whether a frame is a TCP reset, or the ICMP error "administratively prohibited".
fn is_answer(frame: &[u8]) -> bool {
    let at = |place: usize| frame.get(place).copied().unwrap_or_default();
    let (protocol, message, error) = match (at(12), at(13)) {
        (8, 0) => (at(23), 34, [3, 13]),
        (0x86, 0xdd) => (at(20), 54, [1, 1]),
        _ => return false,
    };
    match protocol {
        6 => at(message + 13) & RST != 0,
        1 | 58 => [at(message), at(message + 1)] == error,
        _ => false,
    }
}

/// Number of answers that arrive at these interfaces within [`LONG_ENOUGH`].
fn answers(wires: &[RawSocket]) -> usize {
    let (mut count, began) = (0, Instant::now());
    while began.elapsed() < LONG_ENOUGH {
        for wire in wires {
            while let Some(frame) = wire.arrived() {
                count += usize::from(is_answer(&frame));
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    count
}

/// Packets between two addresses that must get no answer, by kind; `forged`: a third address of the family.
fn silent(from: IpAddr, to: IpAddr, forged: IpAddr) -> Vec<(&'static str, Vec<u8>)> {
    let [source, destination] = [SocketAddr::new(from, PORTS.0), SocketAddr::new(to, PORTS.1)];
    let datagram = udp_packet(source, destination, b"x");
    let group: IpAddr = match to {
        IpAddr::V4(_) => [224, 0, 0, 251].into(),
        IpAddr::V6(_) => "ff02::fb".parse().unwrap(),
    };
    let reset = tcp_message(source, destination, RST, (1, 2), &[]);
    let mut truncated = datagram.clone();
    truncated.truncate(datagram.len() - 4);
    let later = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4((from, to), UDP, (7, 100), &[], &[0; 40]),
        _ => packet(from, to, 44, &[&[UDP, 0, 3, 0x20, 0, 0, 0, 7], &[0; 40][..]].concat()),
    };
    let with_options = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            ipv4((from, to), UDP, (0, 0), &[1; 4], &datagram[20..])
        }
        _ => packet(from, to, 60, &[&[UDP, 0, 1, 4, 0, 0, 0, 0], &datagram[40..]].concat()),
    };
    let unknown = if from.is_ipv4() { (40, 0) } else { (100, 0) };
    let nowhere = udp_packet(destination, source, b"x");
    vec![
        ("a forged source", udp_packet((forged, PORTS.0).into(), destination, b"x")),
        ("a group", udp_packet(source, (group, PORTS.1).into(), b"x")),
        ("an ICMP error", unreachable_packet(from, to, &nowhere)),
        ("unknown ICMP", icmp_packet((from, to), unknown, [0; 4], &[])),
        ("a reset", packet(from, to, 6, &reset)),
        ("a truncated packet", truncated),
        ("a later fragment", later),
        ("IPv4 options, or an extension header", with_options),
    ]
}

/// Asserts that a plain datagram and a SYN are answered; sends each kind of [`silent`] and counts the answers.
fn volleys(
    sender: &Sender,
    wires: &[RawSocket],
    (from, to, forged): (IpAddr, IpAddr, IpAddr),
    tally: &mut Tally,
) {
    let [source, destination] = [SocketAddr::new(from, PORTS.0), SocketAddr::new(to, PORTS.1)];
    let syn = packet(from, to, 6, &tcp_message(source, destination, 2, (1, 0), &[]));
    for plain in [udp_packet(source, destination, b"x"), syn] {
        (0..EACH).for_each(|_| sender.send(&plain));
        let seen = answers(wires);
        assert!(seen >= EACH * 9 / 10, "{seen} answers from {to} to {from}");
    }
    for (what, packet) in silent(from, to, forged) {
        (0..EACH).for_each(|_| sender.send(&packet));
        tally.note(&format!("{what} from {from} to {to}"), answers(wires));
    }
}

/// Packets of a pod, denied at the pod's own interface: neither the sender, nor the receiver, nor the owner of the
/// forged address gets an answer.
fn from_a_pod(cni: Cni) {
    let cluster = cluster(TestCluster::one(cni).with_pods(&["hostile", "victim", "other"]));
    let mut tally = Tally::default();
    let wires = ["hostile", "victim", "other"].map(|name| cluster.pod(name).wire("eth0").unwrap());
    let hostile = cluster.pod("hostile");
    let forged = cluster.pod("other").addresses();
    for ((from, to), forged) in pairs(hostile, cluster.pod("victim")).into_iter().zip(forged) {
        volleys(&Sender::pod(hostile), &wires, (from, to, *forged), &mut tally);
        let datagram = udp_packet((from, PORTS.0).into(), (to, PORTS.1).into(), b"x");
        let all = hostile.wire("eth0").unwrap();
        for _ in 0..EACH {
            all.send(&frame([0xff; 6], hostile.mac(), &datagram)).unwrap();
        }
        tally.note(&format!("a broadcast frame, to {to}"), answers(&wires));
        let plain = frame(hostile.gateway_mac(), hostile.mac(), &datagram);
        let tagged = [&plain[..12], &[0x81, 0, 0, 0], &plain[12..]].concat();
        (0..EACH).for_each(|_| all.send(&tagged).unwrap());
        tally.note(&format!("a VLAN-tagged frame, to {to}"), answers(&wires));
    }
    tally.holds();
}

#[test]
fn denied_packets_of_a_ptp_nodes_pod_that_get_no_answer() {
    require_root!();
    from_a_pod(Cni::Ptp);
}

#[test]
fn denied_packets_of_a_bridge_nodes_pod_that_get_no_answer() {
    require_root!();
    from_a_pod(Cni::Bridge);
}

/// Packets from outside, denied at the receiver's interface. The forged sources are the address of a pod on the
/// receiver's node, and an address that the node routes to another interface.
#[test]
fn denied_packets_from_outside_that_get_no_answer() {
    require_root!();
    for (node, outside) in [(0, 1), (1, 0)] {
        let mut two = TestCluster::two();
        ["victim", "other"].into_iter().for_each(|name| two.add(node, name));
        two.add(outside, "far");
        let cluster = cluster(two);
        let mut tally = Tally::default();
        let wires = [
            cluster.nodes[outside].wire(&cluster.link(outside)).unwrap(),
            cluster.pod("other").wire("eth0").unwrap(),
        ];
        let victim = cluster.pod("victim");
        for (family, to) in victim.addresses().iter().enumerate() {
            let from = cluster.nodes[outside].addresses()[family];
            let forged = cluster.pod("other").addresses()[family];
            let sender = Sender::node(&cluster, outside);
            volleys(&sender, &wires, (from, *to, forged), &mut tally);
            if node == 0 {
                let elsewhere = route_elsewhere(&cluster, family);
                let ends = ((elsewhere, PORTS.0).into(), (*to, PORTS.1).into());
                (0..EACH).for_each(|_| sender.send(&udp_packet(ends.0, ends.1, b"x")));
                tally.note(
                    &format!("a source that is routed elsewhere, {elsewhere}"),
                    answers(&wires),
                );
            }
        }
        tally.holds();
    }
}

/// Routes an address to the pod `other` on its node, and returns the address.
fn route_elsewhere(cluster: &TestCluster, family: usize) -> IpAddr {
    let elsewhere = ["203.0.113.77", "2001:db8:77::77"][family].parse().unwrap();
    let other = cluster.pod("other");
    let device = other.host_interface();
    let station = other.mac().map(|byte| format!("{byte:02x}")).join(":");
    let batch = format!(
        "route add {elsewhere} dev {device}\nneigh replace {elsewhere} lladdr {station} dev {device}\n"
    );
    cluster.nodes[0].netns().ip(&batch).unwrap();
    elsewhere
}

/// On a bridge, a pod that is exempt from the source check sends via the node with another pod's address. At the
/// receiver's interface only the address identifies the sender, so while a pod of the node is exempt, no packet is
/// answered.
#[test]
fn no_answer_goes_to_a_pod_that_an_exempt_pod_impersonates() {
    require_root!();
    for exempt in [false, true] {
        let mut one = TestCluster::one(Cni::Bridge).with_pods(&["victim", "other"]);
        let spec = PodSpec::new(NAMESPACE, "exempt");
        let off = spec.clone().annotation("netpold.io/check-source", "off");
        one.add_as(0, if exempt { off } else { spec });
        one.arguments = ["--source-check-exempt", NAMESPACE].map(str::to_owned).to_vec();
        one.objects = vec![rejecting("victim")];
        one.enforce();
        let wires = ["exempt", "other"].map(|name| one.pod(name).wire("eth0").unwrap());
        let mut tally = Tally::default();
        for (family, to) in one.pod("victim").addresses().iter().enumerate() {
            let [own, forged] = ["exempt", "other"].map(|name| one.pod(name).addresses()[family]);
            let sender = Sender::pod(one.pod("exempt"));
            let packet = |from| udp_packet((from, PORTS.0).into(), (*to, PORTS.1).into(), b"x");
            (0..EACH).for_each(|_| sender.send(&packet(own)));
            let seen = answers(&wires[..1]);
            assert!((seen > 0) != exempt, "{seen} answers to {own}, exempt: {exempt}");
            (0..EACH).for_each(|_| sender.send(&packet(forged)));
            tally.note(&format!("from {forged} to {to}"), answers(&wires));
        }
        tally.holds();
    }
}

/// A program of a pod marks packets as answers and passes them to the node's end of the veth by `bpf_redirect_peer`, which
/// keeps the marks. Needs `CAP_BPF` too.
#[test]
fn no_packet_that_a_pods_program_hands_over_passes_as_an_answer() {
    const TEST: &str = "no_packet_that_a_pods_program_hands_over_passes_as_an_answer";
    const PROOF: u32 = 1 << DEFAULT_BIT;
    require_root!();
    for cni in [Cni::Ptp, Cni::Bridge] {
        let mut cluster = TestCluster::one(cni).with_pods(&["hostile", "victim"]);
        let (hostile, victim) = (cluster.pod("hostile"), cluster.pod("victim"));
        let wire = victim.wire("eth0").unwrap();
        let station = if cni == Cni::Bridge { victim.mac() } else { hostile.gateway_mac() };
        let address = station.map(|octet| format!("{octet:02x}")).join(":");
        let made = hostile.netns().ip(&format!(
            "link add name into type veth peer name inner address {address}\n\
             link set into up\n\
             link set inner up\n"
        ));
        made.unwrap();
        hostile.netns().wait_running("into").unwrap();
        let eth0 = hostile.ifindex("eth0").unwrap().unwrap();
        let marks = (PROOF, REJECTION as u16);
        let _program = match hostile.redirect_peer_marked("inner", eth0, marks) {
            Ok(program) => program,
            Err(e) => return skip(TEST, format!("no TCX here: {e:#}")),
        };
        let mut tally = Tally::default();
        let attack = |cluster: &TestCluster, volley: Volley| {
            let (hostile, victim) = (cluster.pod("hostile"), cluster.pod("victim"));
            let sender = hostile.wire("into").unwrap();
            for number in 0..PACKETS {
                let [from, to] = [hostile, victim].map(|pod| pod.addresses()[0]);
                let payload = volley.payload(number, 40);
                let packet = udp_packet((from, PORTS.0).into(), (to, PORTS.1).into(), &payload);
                sender.send(&frame(station, hostile.mac(), &packet)).unwrap();
            }
        };
        let what = format!("{cni:?}: handed over");
        let volley = Volley::new();
        attack(&cluster, volley);
        volley.arrives(&wire, &what);
        // The proof alone is a forgery, whatever policy allows.
        for isolated in [false, true] {
            if isolated {
                cluster.policy("hostile", isolate("hostile", &BOTH));
            }
            let volley = Volley::new();
            attack(cluster.enforce(), volley);
            tally.note(&what, volley.leaked(&wire));
        }
        tally.holds();
    }
}

/// A pod sends packets with the mark of answers in `skb->tc_index`.
#[test]
fn no_packet_of_a_pod_passes_as_an_answer() {
    const TEST: &str = "no_packet_of_a_pod_passes_as_an_answer";
    require_root!();
    for cni in [Cni::Ptp, Cni::Bridge] {
        let mut cluster = TestCluster::one(cni).with_pods(&["hostile", "victim"]);
        let wire = cluster.pod("victim").wire("eth0").unwrap();
        let _stain = match cluster.pod("hostile").set_tc_index("eth0", REJECTION as u16) {
            Ok(marker) => marker,
            Err(e) => return skip(TEST, format!("no TCX here: {e:#}")),
        };
        let mut tally = Tally::default();
        for app in ["hostile", "victim"] {
            let attack = |cluster: &TestCluster, volley: Volley| {
                let (hostile, victim) = (cluster.pod("hostile"), cluster.pod("victim"));
                for (from, to) in pairs(hostile, victim).into_iter().take(1) {
                    let ends = ((from, PORTS.0).into(), (to, PORTS.1).into());
                    Sender::pod(hostile).datagrams(volley, ends.0, ends.1);
                }
            };
            try_both(
                &mut cluster,
                (&format!("{cni:?}: {app} isolated"), app),
                &wire,
                &mut tally,
                attack,
            );
        }
        tally.holds();
    }
}
