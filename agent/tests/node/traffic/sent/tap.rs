//! Tap of the node's stack: packets of a pod after XDP and before TC judges them.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use netpold_testbed::cluster::{PATIENCE, TestCluster};

use crate::traffic::udp;

const DENIED: &[u8] = b"who sees this?";
const ALLOWED: &[u8] = b"everybody";

/// Returns whether the stack receives a denied packet from `client` to `other`.
pub(super) fn sees_the_denied(cluster: &TestCluster) -> bool {
    let client = cluster.pod("client");
    let index = client.host_ifindex() as libc::c_int;
    let tap = cluster.nodes[0].run(|| tap(index).unwrap()).unwrap();
    tap.set_read_timeout(Some(PATIENCE)).unwrap();
    let socket = udp::socket(client, client.addresses()[0], 0);
    for (to, payload) in [("other", DENIED), ("server", ALLOWED)] {
        socket.send_to(payload, (cluster.pod(to).addresses()[0], 4000)).unwrap();
    }
    let mut seen = false;
    loop {
        let mut frame = [0; 2048];
        let length = tap.recv(&mut frame).expect("what is allowed is seen");
        if frame[..length].ends_with(ALLOWED) {
            return seen;
        }
        seen |= frame[..length].ends_with(DENIED);
    }
}

/// Opens a packet socket at an interface.
pub(crate) fn tap(index: libc::c_int) -> io::Result<UdpSocket> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: a plain system call without pointers.
    let fd = unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        libc::socket(libc::AF_PACKET, kind, protocol.into())
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeroes is a valid sockaddr_ll.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    at.sll_family = libc::AF_PACKET as u16;
    at.sll_protocol = protocol;
    at.sll_ifindex = index;
    // SAFETY: the address has the given length.
    let bound =
        unsafe { libc::bind(socket.as_raw_fd(), (&raw const at).cast(), size_of_val(&at) as u32) };
    // Any socket can be read as a UDP socket.
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket.into()) }
}
