//! End of a flow: real, and forged by another pod.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use netpold_testbed::cluster::{MOMENT, PATIENCE, TestCluster, allow_from, isolate};
use netpold_testbed::{Cni, TestPod, packet, require_root};

use crate::traffic::udp;

const BOTH: [&str; 2] = ["Ingress", "Egress"];
/// Port above the range of client ports: no packet midstream creates an entry.
const HIGH: u16 = 64_000;
const TCP: u8 = 6;
const FIN: u8 = 0x01;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Builds a segment from any address.
fn segment(sender: &TestPod, [from, to]: [SocketAddr; 2], sequence: u32, flags: u8) -> Vec<u8> {
    let segment = packet::tcp_message(from, to, flags, (sequence, 1), &[]);
    let packet = packet::packet(from.ip(), to.ip(), TCP, &segment);
    packet::frame(sender.gateway_mac(), sender.mac(), &packet)
}

/// Sends one byte from one end to the other.
#[track_caller]
fn says(mut from: &TcpStream, mut to: &TcpStream, why: &str) {
    let mut heard = [0];
    from.write_all(b"x").expect(why);
    to.read_exact(&mut heard).expect(why);
}

/// Sends resets and FINs from the client's address and port by another pod, with any sequence numbers.
#[test]
fn forged_ends_cut_no_connection() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client", "forger"]);
    // The source check would drop forged sources before this test's code path.
    cluster.arguments = vec!["--check-source".into(), "off".into()];
    cluster.policy("s", isolate("server", &BOTH)).policy("from", allow_from("server", "client"));
    cluster.enforce();
    let (server, forger) = (cluster.pod("server"), cluster.pod("forger"));
    let to = SocketAddr::new(server.ip4().unwrap(), HIGH);
    let listener = server.run(|| TcpListener::bind(to)).unwrap().unwrap();
    let client = cluster.pod("client").run(|| TcpStream::connect_timeout(&to, PATIENCE));
    let client = client.unwrap().unwrap();
    let (served, from) = listener.accept().unwrap();
    for stream in [&client, &served] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    says(&client, &served, "it is open");
    says(&served, &client, "it is open");
    for flags in [RST, RST | ACK, FIN | ACK] {
        for guess in 0..8_u32 {
            let frame = segment(forger, [from, to], guess << 29 | 0x0123_4567, flags);
            forger.send_frame("eth0", &frame).unwrap();
        }
        // Longer than the ten seconds for which netpold keeps a closed flow.
        std::thread::sleep(Duration::from_secs(12));
        says(&served, &client, "the server's next word arrives");
        says(&client, &served, "and the client's");
        says(&served, &client, "and its answer");
    }
}

/// Checks that a flow ends once the node's own conntrack has dropped it.
#[test]
fn no_flow_is_kept_longer_than_the_kernel_keeps_it() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client"]);
    let keep = |cluster: &TestCluster, seconds: &str| {
        cluster.nodes[0].netns().sysctl("netfilter/nf_conntrack_udp_timeout", seconds)
    };
    if keep(&cluster, "2").is_err() {
        return eprintln!("SKIPPED: this kernel has no conntrack");
    }
    cluster.arguments = vec!["--readback".into(), "1".into()];
    cluster.policy("s", isolate("server", &BOTH)).policy("from", allow_from("server", "client"));
    cluster.enforce();
    let (server, client) = (cluster.pod("server"), cluster.pod("client"));
    for (number, to) in server.addresses().iter().enumerate() {
        let there = udp::socket(server, *to, HIGH);
        let here = udp::socket(client, client.addresses()[number], HIGH);
        // Returns whether the server's packets still arrive after some seconds of silence.
        let outlives = |silence: Duration| {
            here.set_read_timeout(Some(PATIENCE)).unwrap();
            here.send_to(b"question", (*to, HIGH)).unwrap();
            let (_, from) = udp::receive(&there).expect("it is allowed");
            there.send_to(b"answer", from).unwrap();
            udp::receive(&here).expect("it is answered");
            std::thread::sleep(silence);
            let _ = there.send_to(b"late", from);
            here.set_read_timeout(Some(MOMENT)).unwrap();
            udp::receive(&here).is_some()
        };
        keep(&cluster, "2").unwrap();
        std::thread::sleep(Duration::from_secs(3));
        assert!(!outlives(Duration::from_secs(4)), "{to}: the kernel's two seconds");
        keep(&cluster, "60").unwrap();
        std::thread::sleep(Duration::from_secs(3));
        assert!(outlives(Duration::from_secs(4)), "{to}: the agent follows");
    }
}
