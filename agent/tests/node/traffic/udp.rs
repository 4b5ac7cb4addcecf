//! UDP sockets in the namespaces of hosts.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use netpold_testbed::cluster::PATIENCE;
use netpold_testbed::{Host, backlog_drops};

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

/// Sends a question from a connected socket and returns the answer.
///
/// The question is sent once more where no answer arrived and a processor's backlog dropped packets meanwhile: floods
/// of other tests fill the backlogs of all namespaces.
pub(crate) fn exchange(socket: &UdpSocket, question: &[u8]) -> Option<Vec<u8>> {
    let before = backlog_drops().unwrap();
    let attempt = || {
        socket.send(question).unwrap();
        receive(socket).map(|(answer, _)| answer)
    };
    attempt().or_else(|| {
        let dropped = backlog_drops().unwrap() - before;
        (dropped > 0).then(|| println!("the kernel's backlogs dropped {dropped} packets"))?;
        attempt()
    })
}
