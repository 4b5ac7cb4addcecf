//! Checksum offload of a packet socket: after the judgement, the kernel writes a checksum at the offset that the
//! socket requests, so the sender chooses 16 bits. Needs a raw socket only.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{NAMESPACE, TestCluster};
use netpold_testbed::packet::{frame, tcp_message, udp_message};
use netpold_testbed::{Cni, Offload, PodSpec, ProbeProtocol, RawSocket, require_root};

use crate::attacks::volley::{PACKETS, Volley, allow_one_port};

/// Port that policy allows; [`DENIED`] is the port that the attack writes into the packets.
const ALLOWED: u16 = 4000;
const DENIED: u16 = 4001;
/// Time in which a leak would arrive.
const LONG_ENOUGH: Duration = Duration::from_millis(500);

/// Sets two bytes at `free` so that the frame's checksum from `start` on is `wanted`.
pub(crate) fn becomes(mut frame: Vec<u8>, start: usize, free: usize, wanted: u16) -> Vec<u8> {
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    frame[free..free + 2].fill(0);
    let words = frame[start..].chunks(2);
    let words = words.map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let sum = fold(fold(words.sum()));
    // Difference to the complement of the wanted bits.
    let missing = fold(u32::from(!wanted) + (0xffff - sum)) as u16;
    let aligned = (free - start).is_multiple_of(2);
    let missing = if aligned { missing } else { missing.swap_bytes() };
    frame[free..free + 2].copy_from_slice(&missing.to_be_bytes());
    frame
}

/// Returns the number of frames of a volley that arrive with `bits` at the offset `at`.
fn arrivals(wire: &RawSocket, payload: &[u8], at: usize, bits: u16) -> usize {
    let (mut seen, deadline) = (0, Instant::now() + LONG_ENOUGH);
    while seen < PACKETS && Instant::now() < deadline {
        match wire.arrived() {
            Some(frame) => {
                let is_its = frame.windows(payload.len()).any(|part| part == payload);
                seen += usize::from(is_its && frame.get(at..at + 2) == Some(&bits.to_be_bytes()));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    seen
}

/// Returns a cluster where `hostile` may send to UDP and TCP port 4000 of `victim`. The kernel completes checksums at
/// the victim's veth.
fn world(cni: Cni) -> TestCluster {
    let mut cluster = TestCluster::one(cni).with_pods(&["hostile", "victim", "other"]);
    let exempt = PodSpec::new(NAMESPACE, "exempt").annotation("netpold.io/check-source", "off");
    cluster.add_as(0, exempt);
    cluster.arguments = ["--source-check-exempt", NAMESPACE].map(str::to_owned).to_vec();
    allow_one_port(&mut cluster, ["UDP", "TCP"], ALLOWED);
    let victim = cluster.pod("victim").host_interface().to_owned();
    cluster.nodes[0].complete_checksums(&victim).unwrap();
    cluster
}

/// Offload request: the first byte of the sum, the offset of the result, and its value.
struct Written {
    what: &'static str,
    protocol: u8,
    start: usize,
    at: usize,
    bits: u16,
}

/// Returns requests that write a port and either address, with sums that begin behind the IP header and in it.
fn ways(to: IpAddr, other: IpAddr) -> Vec<Written> {
    let header = if to.is_ipv4() { 20 } else { 40 };
    let (transport, source) = (14 + header, if to.is_ipv4() { 26 } else { 22 });
    let length = if to.is_ipv4() { 4 } else { 16 };
    let last = match other {
        IpAddr::V4(other) => other.to_bits() as u16,
        IpAddr::V6(other) => other.to_bits() as u16,
    };
    let port =
        |what, protocol, start| Written { what, protocol, start, at: transport + 2, bits: DENIED };
    // Smallest start of a sum that the kernel accepts (virtio_net_hdr_to_skb).
    let first = if to.is_ipv4() { 20 } else { 40 };
    let mut ways = vec![
        port("a UDP port", 17, transport + 2),
        port("a TCP port", 6, transport + 2),
        port("a port, summed from the UDP header on", 17, transport),
        port("a port, summed from the IP header on", 17, first),
        Written {
            what: "the destination's address",
            protocol: 17,
            start: first,
            at: source + 2 * length - 2,
            bits: last,
        },
    ];
    if to.is_ipv4() {
        let (what, at) = ("the source's address", source + length - 2);
        ways.push(Written { what, protocol: 17, start: first, at, bits: last });
    }
    ways
}

fn on(cni: Cni) {
    let mut cluster = world(cni);
    let mut leaks = Vec::new();
    // The first run has no agent: every request must succeed.
    for enforced in [false, true] {
        if enforced {
            cluster.enforce();
        }
        for name in ["hostile", "exempt"] {
            let (pod, victim) = (cluster.pod(name), cluster.pod("victim"));
            let wire = victim.wire("eth0").unwrap();
            let sender = pod.wire("eth0").unwrap();
            let station = if cni == Cni::Bridge { victim.mac() } else { pod.gateway_mac() };
            for family in 0..2 {
                let [own, to, other] =
                    [pod, victim, cluster.pod("other")].map(|pod| pod.addresses()[family]);
                let ends: [SocketAddr; 2] = [(own, 5000).into(), (to, ALLOWED).into()];
                for Written { what, protocol, start, at, bits } in ways(to, other) {
                    let payload = Volley::new().payload(0, 60);
                    let message = if protocol == 17 {
                        udp_message(ends[0], ends[1], &[&payload[..], &[0; 2]].concat())
                    } else {
                        tcp_message(
                            ends[0],
                            ends[1],
                            0x10,
                            (1, 1),
                            &[&payload[..], &[0; 2]].concat(),
                        )
                    };
                    let packet = netpold_testbed::packet::packet(own, to, protocol, &message);
                    let whole = frame(station, pod.mac(), &packet);
                    let free = whole.len() - 2;
                    let whole = becomes(whole, start, free, bits);
                    let offload = Offload {
                        checksum: Some((start as u16, (at - start) as u16)),
                        ..Offload::default()
                    };
                    (0..PACKETS).for_each(|_| sender.send_with(&offload, &whole).unwrap());
                    let seen = arrivals(&wire, &payload, at, bits);
                    println!(
                        "{what} of {name} to {to}, with netpold: {enforced}: {seen} of {PACKETS}"
                    );
                    if !enforced {
                        assert!(seen > PACKETS / 2, "{what} to {to}: {seen} without netpold");
                    } else if seen > 0 {
                        leaks.push(format!("{what} of {name} to {to}: {seen} of {PACKETS}"));
                    }
                }
            }
        }
    }
    assert!(leaks.is_empty(), "{leaks:#?}");
    honest(&cluster);
}

/// Checks legitimate offload, by ordinary sockets and by a packet socket.
fn honest(cluster: &TestCluster) {
    let (pod, victim) = (cluster.pod("hostile"), cluster.pod("victim"));
    victim.serve(ProbeProtocol::Tcp, ALLOWED).unwrap();
    victim.serve(ProbeProtocol::Udp, ALLOWED).unwrap();
    for protocol in [ProbeProtocol::Tcp, ProbeProtocol::Udp] {
        for to in victim.addresses() {
            let patience = netpold_testbed::cluster::PATIENCE;
            let flow = pod.open_flow(protocol, (*to, ALLOWED).into(), patience);
            assert!(flow.unwrap().ping(patience), "{protocol} to {to}");
        }
    }
    let wire = victim.wire("eth0").unwrap();
    let sender = pod.wire("eth0").unwrap();
    for (own, to) in pod.addresses().iter().zip(victim.addresses()) {
        let ends: [SocketAddr; 2] = [(*own, 5000).into(), (*to, ALLOWED).into()];
        let payload = Volley::new().payload(0, 3000);
        let transport = if to.is_ipv4() { 34 } else { 54 };
        // One datagram, three segments, three datagrams, and a sum over the payload, which is not judged.
        let (tcp, udp) = (transport + 20, transport + 8);
        let kind = if to.is_ipv4() { 1 } else { 4 };
        for (what, protocol, length, checksum, segments) in [
            ("one datagram", 17, 200, (transport, 6), None),
            ("segments", 6, 3000, (transport, 16), Some((kind, 1000, tcp))),
            ("datagrams", 17, 3000, (transport, 6), Some((5, 1000, udp))),
            ("a tunnel's", 17, 200, (udp + 40, 16), None),
        ] {
            let payload = &payload[..length];
            let message = if protocol == 17 {
                udp_message(ends[0], ends[1], payload)
            } else {
                tcp_message(ends[0], ends[1], 0x10, (1, 1), payload)
            };
            let packet = netpold_testbed::packet::packet(*own, *to, protocol, &message);
            let whole = frame(pod.gateway_mac(), pod.mac(), &packet);
            let offload = Offload { checksum: Some(checksum), segments };
            (0..PACKETS).for_each(|_| sender.send_with(&offload, &whole).unwrap());
            let seen = arrivals(&wire, &payload[..30], usize::from(transport) + 2, ALLOWED);
            assert!(seen > PACKETS / 2, "{what} to {to}: {seen}");
        }
    }
}

#[test]
fn nothing_is_written_behind_the_judgement_on_a_ptp_node() {
    require_root!();
    on(Cni::Ptp);
}

#[test]
fn nothing_is_written_behind_the_judgement_on_a_bridge_node() {
    require_root!();
    on(Cni::Bridge);
}
