//! Datagrams with their local address: a node has several addresses, and a connected socket rejects replies from an
//! address other than its peer's.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrLike,
    SockaddrStorage, recvmsg, sendmsg, setsockopt, sockopt,
};
use socket2::Socket;

/// A received datagram; its payload is in the caller's buffer.
pub(crate) struct ReceivedDatagram {
    pub(crate) length: usize,
    pub(crate) from: SocketAddr,
    local: Option<IpAddr>,
}

/// Makes the kernel report the local address of each datagram.
pub(crate) fn tell_local(socket: &Socket, v6: bool) -> nix::Result<()> {
    if v6 {
        setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)
    } else {
        setsockopt(socket, sockopt::Ipv4PacketInfo, &true)
    }
}

/// Receives without waiting. An IPv4 peer of a dual-stack socket appears as a mapped address, which [`reply`] accepts
/// unchanged.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "an enum of another crate, open to further variants"
)]
pub(crate) fn receive(socket: &Socket, buffer: &mut [u8]) -> nix::Result<Option<ReceivedDatagram>> {
    let mut control = nix::cmsg_space!(libc::in6_pktinfo, libc::in_pktinfo);
    let mut slices = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags)?;
    let local = message.cmsgs()?.find_map(|part| match part {
        ControlMessageOwned::Ipv6PacketInfo(i) => {
            Some(IpAddr::V6(Ipv6Addr::from(i.ipi6_addr.s6_addr)))
        }
        ControlMessageOwned::Ipv4PacketInfo(i) => {
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(i.ipi_addr.s_addr))))
        }
        _ => None,
    });
    let from = message.address.as_ref().and_then(address);
    Ok(from.map(|from| ReceivedDatagram { length: message.bytes, from, local }))
}

/// Sends a reply to the source of a datagram, from the datagram's destination address.
pub(crate) fn reply(socket: &Socket, to: &ReceivedDatagram, payload: &[u8]) -> nix::Result<()> {
    match (to.from, to.local) {
        (SocketAddr::V4(peer), Some(IpAddr::V4(local))) => {
            let source = libc::in_addr { s_addr: u32::from(local).to_be() };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: source, ipi_addr: source };
            send(socket, payload, &[ControlMessage::Ipv4PacketInfo(&info)], &SockaddrIn::from(peer))
        }
        (SocketAddr::V6(peer), Some(IpAddr::V6(local))) => {
            let source = libc::in6_addr { s6_addr: local.octets() };
            let info = libc::in6_pktinfo { ipi6_addr: source, ipi6_ifindex: 0 };
            let peer = SockaddrIn6::from(peer);
            send(socket, payload, &[ControlMessage::Ipv6PacketInfo(&info)], &peer)
        }
        (SocketAddr::V4(peer), _) => send(socket, payload, &[], &SockaddrIn::from(peer)),
        (SocketAddr::V6(peer), _) => send(socket, payload, &[], &SockaddrIn6::from(peer)),
    }
}

fn send(
    socket: &Socket,
    payload: &[u8],
    control: &[ControlMessage<'_>],
    to: &impl SockaddrLike,
) -> nix::Result<()> {
    let slices = [IoSlice::new(payload)];
    sendmsg(socket.as_raw_fd(), &slices, control, MsgFlags::MSG_DONTWAIT, Some(to)).map(drop)
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = storage.as_sockaddr_in() {
        return Some(SocketAddr::V4(SocketAddrV4::new(v4.ip(), v4.port())));
    }
    let v6 = storage.as_sockaddr_in6()?;
    Some(SocketAddr::V6(SocketAddrV6::new(v6.ip(), v6.port(), 0, v6.scope_id())))
}
