//! VXLAN devices in network 9, and one by which a pod sends to itself.

use std::net::UdpSocket;

use netpold_testbed::TestPod;

/// UDP port of the devices.
pub(crate) const PORT: u16 = 8472;
/// Header of a packet in network 9 (RFC 7348 section 5).
pub(crate) const HEADER: [u8; 8] = [8, 0, 0, 0, 0, 0, 9, 0];
/// Address of the device.
pub(crate) const MAC: [u8; 6] = [0x0a, 0x58, 9, 0, 0, 1];
/// Another address in the network.
pub(crate) const PEER_MAC: [u8; 6] = [0x0a, 0x58, 9, 0, 0, 2];

/// Gives a pod the device `vxlan9`, which unpacks the pod's own datagrams.
pub(crate) fn add(pod: &TestPod) {
    let made = pod.netns().ip(&format!(
        "link add vxlan9 address 0a:58:09:00:00:01 type vxlan id 9 local 127.0.0.1 \
         dstport {PORT} nolearning\n\
         link set vxlan9 up\n"
    ));
    made.unwrap();
}

/// Returns a pod's socket to its device.
pub(crate) fn socket(pod: &TestPod) -> UdpSocket {
    let open = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = pod.run(open).unwrap();
    socket.connect(("127.0.0.1", PORT)).unwrap();
    socket
}
