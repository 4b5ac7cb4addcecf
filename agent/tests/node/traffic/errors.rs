//! ICMP errors about flows that policy allows.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Instant;

use netpold_testbed::cluster::{MOMENT, PATIENCE, TestCluster, allow_from, allow_to, isolate};
use netpold_testbed::{Cni, ProbeProtocol, ProbeResult, require_root};

use crate::traffic::udp;

const BOTH: [&str; 2] = ["Ingress", "Egress"];
const CLOSED: u16 = 9;

fn port_unreachable(cni: Cni) {
    let mut cluster = TestCluster::one(cni).with_pods(&["server", "client"]);
    cluster.policy("c", isolate("client", &BOTH)).policy("to", allow_to("client", "server"));
    cluster.policy("s", isolate("server", &BOTH)).policy("from", allow_from("server", "client"));
    cluster.enforce();
    for to in cluster.pod("server").addresses() {
        let result = cluster.pod("client").probe(ProbeProtocol::Udp, *to, CLOSED, PATIENCE);
        assert_eq!(result, ProbeResult::Refused, "{to}: the error came back");
    }
    for to in cluster.pod("client").addresses() {
        let result = cluster.pod("server").probe(ProbeProtocol::Udp, *to, CLOSED, MOMENT);
        assert_eq!(result, ProbeResult::Timeout, "{to}: not allowed that way");
    }
}

#[test]
fn port_unreachable_on_a_ptp_node() {
    require_root!();
    port_unreachable(Cni::Ptp);
}

#[test]
fn port_unreachable_on_a_bridge_node() {
    require_root!();
    port_unreachable(Cni::Bridge);
}

/// Learns a path MTU: the last hop, on the other node, has a small MTU, and its router reports it to the isolated
/// sender. The sender's node has no flow with that router.
#[test]
fn path_mtu_is_learnt() {
    require_root!();
    const NARROW: libc::c_int = 1300;
    let mut cluster = TestCluster::two().with_pods(&["server"]);
    cluster.add(1, "client");
    cluster.policy("c", isolate("client", &BOTH)).policy("to", allow_to("client", "server"));
    cluster.enforce();
    let last_hop = format!("link set {} mtu {NARROW}\n", cluster.pod("server").host_interface());
    cluster.nodes[0].netns().ip(&last_hop).unwrap();
    let (client, server) = (cluster.pod("client"), cluster.pod("server"));
    for (from, to) in client.addresses().iter().zip(server.addresses()) {
        let socket = udp::socket(client, *from, 0);
        socket.connect((*to, 4000)).unwrap();
        never_fragment(&socket, *from);
        let deadline = Instant::now() + PATIENCE;
        while mtu(&socket, *from) != NARROW {
            assert!(Instant::now() < deadline, "{to}: still {}", mtu(&socket, *from));
            match socket.send(&[0; 1400]) {
                Err(e) if e.raw_os_error() == Some(libc::EMSGSIZE) => {}
                Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionRefused, "{e}"),
                Ok(_) => std::thread::yield_now(),
            }
        }
    }
}

fn option(address: IpAddr, v4: libc::c_int, v6: libc::c_int) -> (libc::c_int, libc::c_int) {
    if address.is_ipv4() { (libc::IPPROTO_IP, v4) } else { (libc::IPPROTO_IPV6, v6) }
}

fn never_fragment(socket: &UdpSocket, address: IpAddr) {
    let (level, name) = option(address, libc::IP_MTU_DISCOVER, libc::IPV6_MTU_DISCOVER);
    let always: libc::c_int = libc::IP_PMTUDISC_DO;
    // SAFETY: the value is an int, as both options require.
    let result = unsafe {
        let value = (&raw const always).cast();
        libc::setsockopt(socket.as_raw_fd(), level, name, value, size_of_val(&always) as u32)
    };
    assert_eq!(result, 0);
    socket.set_nonblocking(true).unwrap();
}

/// Returns the path MTU in the sender's kernel.
fn mtu(socket: &UdpSocket, address: IpAddr) -> libc::c_int {
    let (level, name) = option(address, libc::IP_MTU, libc::IPV6_MTU);
    let (mut mtu, mut length): (libc::c_int, _) = (0, size_of::<libc::c_int>() as u32);
    // SAFETY: value and length are locals of the right types.
    let result = unsafe {
        let value = (&raw mut mtu).cast();
        libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut length)
    };
    assert_eq!(result, 0);
    mtu
}
