//! Traffic that a bridge with an isolated pod must not lose on its way to the node: of pods, of other ports, of new
//! pods (the counterpart of [`crate::attacks::bounce`]).

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{ENFORCED, NAMESPACE, TestCluster, all_pass, allow_to};
use netpold_testbed::packet::{frame, udp_packet};
use netpold_testbed::{Host, PodSpec, TestPod, require_root};
use nix::sys::signal::Signal;

use crate::attacks::volley::{PACKETS, Sender, Volley};

const PORT: u16 = 4000;
/// MAC address of a station behind a port of the bridge that belongs to no pod.
const STATION: [u8; 6] = [0x0a, 0x58, 9, 0, 0, 9];

/// Returns `mute` and `free` on a bridge, and `far` on another node; `mute` may send to `far` only.
fn world() -> TestCluster {
    let mut cluster = TestCluster::two();
    cluster.add(0, "far");
    cluster.add(1, "mute");
    cluster.add(1, "free");
    cluster.policy("mute", allow_to("mute", "far"));
    cluster
}

fn ends(from: &str, to: IpAddr) -> (SocketAddr, SocketAddr) {
    ((from.parse::<IpAddr>().unwrap(), 5000).into(), (to, PORT).into())
}

/// Asserts the verdicts of the policy, which hold with an agent and without.
fn allowed(cluster: &TestCluster) {
    cluster.reaches("mute", "far");
    cluster.reaches("far", "mute");
    cluster.reaches("free", "far");
    cluster.reaches("free", "mute");
    cluster.denied("mute", "free");
    let mute = cluster.pod("mute");
    all_pass(&cluster.nodes[1], mute, mute.addresses());
}

/// Sends frames to the node's MAC for a pod of the same bridge: the node routes them back out by the bridge.
fn by_the_node_and_back(cluster: &TestCluster) {
    let (free, mute) = (cluster.pod("free"), cluster.pod("mute"));
    let wire = mute.wire("eth0").unwrap();
    for (from, to) in crate::attacks::volley::pairs(free, mute) {
        let volley = Volley::new();
        Sender::pod(free).datagrams(volley, (from, 5000).into(), (to, PORT).into());
        volley.arrives(&wire, &format!("by the node to {to} on the same bridge"));
    }
}

#[test]
fn pods_of_a_bridge_with_an_isolated_pod() {
    require_root!();
    let mut cluster = world();
    cluster.enforce();
    allowed(&cluster);
    by_the_node_and_back(&cluster);
    cluster.agents[1].end(Signal::SIGKILL);
    allowed(&cluster);
    by_the_node_and_back(&cluster);
    cluster.restart(1);
    allowed(&cluster);
}

/// Adds a tap device; frames written to the file enter the node by it.
fn tap(node: &Host, name: &str) -> File {
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    const TAP_WITHOUT_HEADER: i16 = 0x1002;
    let mut request = [0_u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&TAP_WITHOUT_HEADER.to_ne_bytes());
    let open = || {
        let file = File::options().read(true).write(true).open("/dev/net/tun")?;
        // SAFETY: the request is a struct ifreq, which is 40 bytes long.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, request.as_ptr()) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
    };
    node.run(open).unwrap().unwrap()
}

/// Sends frames from ports without a known pod: the port of an unknown pod, of a tunnel and of a tap.
#[test]
fn other_ports_of_a_bridge_with_an_isolated_pod() {
    require_root!();
    let mut cluster = world();
    let nodes = [0, 1].map(|n| cluster.nodes[n].addresses()[0]);
    for (n, master) in [(0, ""), (1, "master cni0")] {
        let (own, other) = (nodes[n], nodes[1 - n]);
        let made = cluster.nodes[n].netns().ip(&format!(
            "link add vxlan9 type vxlan id 9 local {own} remote {other} dstport 8472\n\
             link set vxlan9 {master} up\n"
        ));
        made.unwrap();
    }
    let mut station = tap(&cluster.nodes[1], "tap9");
    cluster.nodes[1].netns().ip("link set tap9 master cni0 up\n").unwrap();
    let zombie = cluster.nodes[1].add_pod(&PodSpec::new(NAMESPACE, "zombie")).unwrap();
    cluster.enforce();
    let judged = ["vxlan9", "tap9", zombie.host_interface()].map(ToOwned::to_owned);
    let at_all = |status: &serde_json::Value| {
        let devices = status["devices"].to_string();
        judged.iter().all(|device| devices.contains(device))
    };
    cluster.agents[1].wait_for("at the bridge's ports", ENFORCED, at_all).unwrap();
    let far = cluster.pod("far");
    let wire = far.wire("eth0").unwrap();
    let bridge = cluster.pod("mute").gateway_mac();
    let tunnel = cluster.nodes[0].wire("vxlan9").unwrap();
    for (to, from) in far.addresses().iter().zip(["10.1.2.201", "fd00:1:2::201"]) {
        let (from, to) = ends(from, *to);
        let all = |volley: Volley| {
            (0..PACKETS)
                .map(move |n| frame(bridge, STATION, &udp_packet(from, to, &volley.payload(n, 40))))
        };
        let volley = Volley::new();
        all(volley).for_each(|frame| station.write_all(&frame).unwrap());
        volley.arrives(&wire, &format!("of a station at a tap to {to}"));
        let volley = Volley::new();
        all(volley).for_each(|frame| tunnel.send(&frame).unwrap());
        volley.arrives(&wire, &format!("of a station at a tunnel to {to}"));
    }
    for (from, to) in crate::attacks::volley::pairs(&zombie, far) {
        let volley = Volley::new();
        Sender::pod(&zombie).datagrams(volley, (from, 5000).into(), (to, PORT).into());
        volley.arrives(&wire, &format!("of a pod that nobody knows to {to}"));
    }
    allowed(&cluster);
}

/// Sends a packet a millisecond until one arrives; returns the time until then.
fn first_arrival(pod: &TestPod, far: &TestPod) -> Duration {
    let (wire, sender, begin) = (far.wire("eth0").unwrap(), Sender::pod(pod), Instant::now());
    let ends = ((pod.addresses()[0], 5000).into(), (far.addresses()[0], PORT).into());
    let (mut number, payload) = (0, Volley::new().payload(0, 40));
    while begin.elapsed() < ENFORCED {
        sender.send(&udp_packet(ends.0, ends.1, &payload));
        number += 1;
        std::thread::sleep(Duration::from_millis(1));
        while let Some(frame) = wire.arrived() {
            if frame.windows(payload.len()).any(|part| part == payload) {
                println!("the first of {number} packets arrives after {:?}", begin.elapsed());
                return begin.elapsed();
            }
        }
    }
    panic!("nothing of {number} packets arrives")
}

/// Packets of a new pod drop until the agent has attached its programs. Without an agent they pass at once.
#[test]
fn pods_that_come_to_a_bridge_with_an_isolated_pod() {
    const AT_ONCE: Duration = Duration::from_millis(200);
    require_root!();
    let mut cluster = world();
    cluster.enforce();
    let mut came = Vec::new();
    for number in 0..10 {
        let spec = PodSpec::new(NAMESPACE, &format!("new{number}"));
        let pod = cluster.nodes[1].add_pod(&spec).unwrap();
        let took = first_arrival(&pod, cluster.pod("far"));
        assert!(took < Duration::from_secs(5), "{took:?}");
        came.push(pod);
    }
    cluster.agents[1].end(Signal::SIGKILL);
    for number in 10..15 {
        let spec = PodSpec::new(NAMESPACE, &format!("new{number}"));
        let pod = cluster.nodes[1].add_pod(&spec).unwrap();
        assert!(first_arrival(&pod, cluster.pod("far")) < AT_ONCE, "without an agent");
        came.push(pod);
    }
    allowed(&cluster);
    cluster.restart(1);
    for pod in &came {
        assert!(first_arrival(pod, cluster.pod("far")) < AT_ONCE, "it has a program");
    }
}
