//! UDP sockets in the namespaces of hosts.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use netpold_testbed::Host;
use netpold_testbed::cluster::PATIENCE;

/// Returns a socket in a host's namespace, bound to one of the host's addresses.
pub(crate) fn socket(host: &Host, address: IpAddr, port: u16) -> UdpSocket {
    let socket = host.run(|| UdpSocket::bind(SocketAddr::new(address, port))).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Returns the next datagram that arrives.
pub(crate) fn receive(socket: &UdpSocket) -> Option<(Vec<u8>, SocketAddr)> {
    let mut buffer = vec![0; 65_536];
    let (length, from) = socket.recv_from(&mut buffer).ok()?;
    buffer.truncate(length);
    Some((buffer, from))
}
