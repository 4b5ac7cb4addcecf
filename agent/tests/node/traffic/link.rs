//! No link-layer message and no source route of a pod bypasses policy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{
    MOMENT, NAMESPACE, PATIENCE, TestCluster, allow_from, allow_to, isolate,
};
use netpold_testbed::{Cni, PodSpec, TestPod, ethernet, packet, require_root, udp_frame};

use crate::traffic::sent::tap::tap;

const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Socket that receives every frame of a pod's interface.
struct Sniffer(UdpSocket);

impl Sniffer {
    fn at(pod: &TestPod) -> Self {
        let index = pod.ifindex("eth0").unwrap().expect("eth0");
        let tap = pod.run(|| tap(index as i32).unwrap()).unwrap();
        tap.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        Self(tap)
    }

    /// Returns whether a frame that contains these bytes arrives within a time.
    fn sees(&self, wanted: &[u8], patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut frame = [0_u8; 2048];
        while Instant::now() < deadline {
            let Ok(length) = self.0.recv(&mut frame) else { continue };
            if frame[..length].windows(wanted.len()).any(|part| part == wanted) {
                return true;
            }
        }
        false
    }
}

/// Sent frame, and the bytes that identify it.
struct Sent {
    name: &'static str,
    frame: Vec<u8>,
    by: Vec<u8>,
}

/// Frames of a pod, each with a unique number in its bytes.
struct Frames<'a> {
    pod: &'a TestPod,
    to: [u8; 6],
    all: Vec<Sent>,
}

impl<'a> Frames<'a> {
    fn of(pod: &'a TestPod, to: [u8; 6]) -> Self {
        Self { pod, to, all: Vec::new() }
    }

    fn marker(&self) -> [u8; 6] {
        [0xde, 0xad, 0xbe, 0xef, 0x5a, self.all.len() as u8]
    }

    fn add(&mut self, name: &'static str, ethertype: u16, payload: &[u8]) {
        let by = self.marker().to_vec();
        assert!(payload.windows(6).any(|part| part == by), "{name} has its number");
        let frame = ethernet(self.to, self.pod.mac(), ethertype, payload);
        self.all.push(Sent { name, frame, by });
    }

    /// Returns the names of the frames that a sniffer receives; the last frame of all must pass.
    fn seen_by(&self, sniffer: &Sniffer) -> Vec<&'static str> {
        let mut seen = Vec::new();
        for sent in &self.all {
            self.pod.send_frame("eth0", &sent.frame).unwrap();
            if sniffer.sees(&sent.by, MOMENT) {
                seen.push(sent.name);
            }
        }
        seen
    }

    fn names(&self) -> Vec<&'static str> {
        self.all.iter().map(|sent| sent.name).collect()
    }
}

fn ip4(pod: &TestPod) -> Ipv4Addr {
    let Some(IpAddr::V4(address)) = pod.ip4() else { panic!("an IPv4 address") };
    address
}

fn ip6(pod: &TestPod) -> Ipv6Addr {
    let Some(IpAddr::V6(address)) = pod.ip6() else { panic!("an IPv6 address") };
    address
}

fn ipv6(from: Ipv6Addr, to: Ipv6Addr, next: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, hops]);
    packet.extend([from.octets(), to.octets()].concat());
    packet.extend(payload);
    packet
}

/// Builds an advertisement of an address, with a number as link-layer address.
fn advertisement(of: Ipv6Addr, number: [u8; 6]) -> Vec<u8> {
    [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &of.octets(), &[2, 1], &number].concat()
}

fn solicitation(of: Ipv6Addr, number: [u8; 6]) -> Vec<u8> {
    [&[135, 0, 0, 0, 0, 0, 0, 0][..], &of.octets(), &[1, 1], &number].concat()
}

/// Builds an ARP answer, with a number as the target's hardware address.
fn arp(number: [u8; 6], from: (&TestPod, Ipv4Addr), to: Ipv4Addr, padding: usize) -> Vec<u8> {
    let (pod, own) = from;
    let head = [0, 1, 8, 0, 6, 4, 0, 2];
    let mut packet = [&head[..], &pod.mac(), &own.octets(), &number, &to.octets()].concat();
    packet.resize(28 + padding, 0);
    packet
}

/// Builds a listener report of one group, after the required router alert option.
fn report(number: [u8; 6], more: usize) -> Vec<u8> {
    let alert = [58, 0, 5, 2, 0, 0, 1, 0];
    let mut message = [&alert[..], &[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0xff, 2]].concat();
    message.extend([0; 8]);
    message.extend(number);
    message.resize(message.len() + more, 0);
    message
}

/// Well-formed neighbour discovery to a host beyond the node: the node routes the messages of a pod without policy;
/// messages of an isolated pod do not leave the node.
#[test]
fn neighbour_discovery_of_an_isolated_pod_does_not_leave_the_node() {
    require_root!();
    for node in [0, 1] {
        let mut cluster = TestCluster::two();
        for name in ["free", "mute"] {
            cluster.add(node, name);
        }
        cluster.add(1 - node, "far");
        cluster.policy("mute", isolate("mute", &["Egress"])).enforce();
        let far = cluster.pod("far");
        let sniffer = Sniffer::at(far);
        let to = ip6(far);
        for (name, leaves) in [("free", true), ("mute", false)] {
            let pod = cluster.pod(name);
            let mut frames = Frames::of(pod, pod.gateway_mac());
            let own = ip6(pod);
            let message = advertisement(own, frames.marker());
            frames.add("advertisement", IPV6, &ipv6(own, to, 58, 255, &message));
            let message = solicitation(to, frames.marker());
            frames.add("solicitation", IPV6, &ipv6(own, to, 58, 255, &message));
            let expected = if leaves { frames.names() } else { Vec::new() };
            assert_eq!(frames.seen_by(&sniffer), expected, "{name}");
        }
    }
}

/// Sends link messages between two isolated pods of a bridge.
#[test]
fn isolated_pods_of_a_bridge_have_no_channel_in_link_messages() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Bridge).with_pods(&["mute", "deaf", "other"]);
    cluster.policy("mute", isolate("mute", &["Ingress", "Egress"]));
    cluster.policy("deaf", isolate("deaf", &["Ingress", "Egress"])).enforce();
    let (mute, deaf) = (cluster.pod("mute"), cluster.pod("deaf"));
    let (victim4, victim6) = (ip4(cluster.pod("other")), ip6(cluster.pod("other")));
    let (own4, own6, to6) = (ip4(mute), ip6(mute), ip6(deaf));
    let sniffer = Sniffer::at(deaf);
    let reports: Ipv6Addr = "ff02::16".parse().unwrap();
    let link: Ipv6Addr = "fe80::77".parse().unwrap();

    let mut sound = Frames::of(mute, deaf.mac());
    sound.add("an answer of ARP", ARP, &arp(sound.marker(), (mute, own4), ip4(deaf), 0));
    let message = advertisement(own6, sound.marker());
    sound.add("an advertisement", IPV6, &ipv6(own6, to6, 58, 255, &message));
    sound.add("a report", IPV6, &ipv6(link, reports, 0, 1, &report(sound.marker(), 0)));
    assert_eq!(sound.seen_by(&sniffer), sound.names());

    let mut forged = Frames::of(mute, deaf.mac());
    forged.add("long ARP", ARP, &arp(forged.marker(), (mute, own4), ip4(deaf), 1372));
    forged.add("ARP of another", ARP, &arp(forged.marker(), (mute, victim4), ip4(deaf), 0));
    let tagged = [&[0, 7, 8, 6][..], &arp(forged.marker(), (mute, own4), ip4(deaf), 1000)].concat();
    forged.add("long tagged ARP", 0x8100, &tagged);
    forged.add("a long report", IPV6, &ipv6(link, reports, 0, 1, &report(forged.marker(), 1300)));
    let direct = &report(forged.marker(), 0)[8..];
    forged.add("a report without an alert", IPV6, &ipv6(link, reports, 58, 1, direct));
    let message = advertisement(victim6, forged.marker());
    forged.add("a claim", IPV6, &ipv6(own6, to6, 58, 255, &message));
    let message = [advertisement(own6, forged.marker()), vec![0; 1200]].concat();
    forged.add("a long advertisement", IPV6, &ipv6(own6, to6, 58, 255, &message));
    let message = solicitation(to6, forged.marker());
    forged.add("a solicitation of another", IPV6, &ipv6(victim6, to6, 58, 255, &message));
    let message = [&[137, 0, 0, 0, 0, 0, 0, 0][..], &forged.marker(), &[0; 500]].concat();
    forged.add("a redirect", IPV6, &ipv6(link, to6, 58, 255, &message));
    assert_eq!(forged.seen_by(&sniffer), Vec::<&str>::new());
}

/// Isolated pods with empty neighbour caches resolve each other again, and the only allowed flow passes.
#[test]
fn isolated_pods_find_each_other() {
    require_root!();
    for cni in [Cni::Bridge, Cni::Ptp] {
        let mut cluster = TestCluster::one(cni).with_pods(&["server", "friend", "stranger"]);
        let mut both = allow_from("server", "friend");
        both["policyTypes"] = serde_json::json!(["Ingress", "Egress"]);
        cluster.policy("server", both);
        cluster.policy("friend", allow_to("friend", "server"));
        cluster.policy("deaf", isolate("friend", &["Ingress"])).enforce();
        for _ in 0..2 {
            cluster.reaches("friend", "server");
            cluster.denied("stranger", "server");
            for name in ["server", "friend", "stranger"] {
                cluster.pod(name).netns().ip("neigh flush dev eth0\n").unwrap();
            }
            cluster.nodes[0].netns().ip("neigh flush all\n").unwrap();
        }
        let drops = cluster.agents[0].status().unwrap()["drops"].clone();
        let wrong = ["spoofed_source", "malformed", "truncated"];
        let of = |drop: &serde_json::Value| wrong.contains(&drop["reason"].as_str().unwrap());
        assert!(!drops.as_array().unwrap().iter().any(of), "{drops}");
    }
}

/// Claims the address of an allowed pod from a pod without policy.
#[test]
fn no_pod_of_a_bridge_claims_anothers_address() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Bridge).with_pods(&["server", "liar", "friend"]);
    let gateway = PodSpec::new(NAMESPACE, "gateway").annotation("netpold.io/check-source", "off");
    cluster.add_as(0, gateway);
    cluster.arguments = ["--source-check-exempt", NAMESPACE].map(str::to_owned).to_vec();
    cluster.policy("server", allow_from("server", "friend")).enforce();
    let (server, friend) = (cluster.pod("server"), cluster.pod("friend"));
    let sniffer = Sniffer::at(server);
    for (name, passes) in [("liar", false), ("gateway", true)] {
        let pod = cluster.pod(name);
        let mut frames = Frames::of(pod, server.mac());
        frames.add("ARP", ARP, &arp(frames.marker(), (pod, ip4(friend)), ip4(server), 0));
        let message = advertisement(ip6(friend), frames.marker());
        frames.add("a claim", IPV6, &ipv6(ip6(pod), ip6(server), 58, 255, &message));
        let hidden = [&[58, 0, 1, 4, 0, 0, 0, 0], &advertisement(ip6(friend), frames.marker())[..]];
        let (own, to) = (ip6(pod), ip6(server));
        frames.add("a hidden claim", IPV6, &ipv6(own, to, 60, 255, &hidden.concat()));
        let expected = if passes { vec!["ARP", "a claim"] } else { Vec::new() };
        assert_eq!(frames.seen_by(&sniffer), expected, "{name}");
    }
}

/// Sends packets to the pod's own node, which every pod may reach, with a source route onwards to a denied pod.
#[test]
fn a_route_beyond_the_destination_is_not_taken() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "free", "mute"]);
    cluster.policy("mute", isolate("mute", &["Egress"])).enforce();
    let node = &cluster.nodes[0];
    let [IpAddr::V4(node4), IpAddr::V6(node6)] = node.addresses() else { panic!("addresses") };
    for name in ["free", "mute"] {
        let veth = cluster.pod(name).host_interface();
        for device in ["all", veth] {
            node.netns().sysctl(&format!("ipv4/conf/{device}/accept_source_route"), "1").unwrap();
            node.netns().sysctl(&format!("ipv6/conf/{device}/seg6_enabled"), "1").unwrap();
        }
    }
    let server = cluster.pod("server");
    let sniffer = Sniffer::at(server);
    for (name, passes) in [("free", true), ("mute", false)] {
        let pod = cluster.pod(name);
        let mut frames = Frames::of(pod, pod.gateway_mac());
        // Segment routing header (RFC 8754): one segment left, list in reverse order.
        let lists = [ip6(server).octets(), node6.octets()].concat();
        let head = [17, 4, 4, 1, 1, 0, 0, 0];
        let udp = [&[0x30, 0x39, 0x30, 0x39, 0, 14, 0, 0][..], &frames.marker()].concat();
        let routed = [&head[..], &lists, &udp].concat();
        frames.add("segments left", IPV6, &ipv6(ip6(pod), node6, 43, 64, &routed));
        // Loose source route (RFC 791).
        let udp = [&[0x30, 0x39, 0x30, 0x39, 0, 14, 0, 0][..], &frames.marker()].concat();
        let options = [&[131, 7, 4][..], &ip4(server).octets(), &[0]].concat();
        let packet = packet::ipv4((ip4(pod), node4), 17, (1, 0), &options, &udp);
        frames.add("a source route", IPV4, &packet);
        // With the source check, a packet that cannot be parsed completely is dropped.
        let expected = if passes { vec!["a source route"] } else { Vec::new() };
        assert_eq!(frames.seen_by(&sniffer), expected, "{name}");
    }
}

/// A bridge floods frames to an unknown MAC address to every pod; the frames do not count as traffic of the pods.
#[test]
fn flooded_frames_are_no_traffic_of_a_pod() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Bridge).with_pods(&["sender", "deaf"]);
    cluster.policy("deaf", isolate("deaf", &["Ingress", "Egress"])).enforce();
    let sender = cluster.pod("sender");
    let before = cluster.agents[0].status().unwrap()["recent_drops"].clone();
    for (from, last) in sender.addresses().iter().zip(["10.1.1.200", "fd00:1:1::200"]) {
        let (from, to) = ((*from, 4000).into(), (last.parse::<IpAddr>().unwrap(), 80).into());
        let frame = udp_frame([2, 0, 0, 0, 0, 9], sender.mac(), from, to, b"for another").unwrap();
        for _ in 0..3 {
            sender.send_frame("eth0", &frame).unwrap();
        }
    }
    let flooded = |status: &serde_json::Value| {
        let of = |drop: &&serde_json::Value| drop["reason"] == "flooded";
        let drops = status["drops"].as_array().unwrap();
        drops.iter().find(of).is_some_and(|drop| drop["packets"] == 6)
    };
    let status =
        cluster.agents[0].wait_for("the count of flooded frames", PATIENCE, flooded).unwrap();
    assert_eq!(status["recent_drops"], before, "no pod is named");
    assert!(status["drops"].as_array().unwrap().iter().all(|drop| drop["reason"] != "policy"));
    // The same frames, addressed to the pod, are its own traffic.
    let (sender, deaf) = (cluster.pod("sender"), cluster.pod("deaf"));
    let to = (deaf.addresses()[0], 80).into();
    let from = (sender.addresses()[0], 4000).into();
    let frame = udp_frame(deaf.mac(), sender.mac(), from, to, b"for it").unwrap();
    sender.send_frame("eth0", &frame).unwrap();
    let reported =
        |status: &serde_json::Value| status["recent_drops"].to_string().contains("policy");
    cluster.agents[0].wait_for("the recent drop", PATIENCE, reported).unwrap();
}
