//! Raw Ethernet frames, for what no well-behaved socket would send.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;

use crate::icmp::checksum;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const UDP: u8 = 17;

/// An Ethernet frame around a payload.
#[must_use]
pub fn ethernet(destination: [u8; 6], source: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&destination[..], &source, &ethertype.to_be_bytes(), payload].concat()
}

/// A UDP datagram in IPv4 or IPv6 in Ethernet, with valid checksums, from any address one likes.
///
/// # Errors
/// When the addresses are of different families.
pub fn udp_frame(
    destination_mac: [u8; 6],
    source_mac: [u8; 6],
    from: SocketAddr,
    to: SocketAddr,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let length = (8 + payload.len()) as u16;
    let mut udp = [from.port(), to.port(), length, 0].map(u16::to_be_bytes).concat();
    udp.extend(payload);
    let (ethertype, header) = match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            let ends = [from.ip().octets(), to.ip().octets()].concat();
            (ETHERTYPE_IPV4, ipv4_header(&ends, &mut udp))
        }
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            let ends = [from.ip().octets(), to.ip().octets()].concat();
            (ETHERTYPE_IPV6, ipv6_header(&ends, &mut udp))
        }
        _ => bail!("{from} and {to} are of different families"),
    };
    Ok(ethernet(destination_mac, source_mac, ethertype, &[header, udp].concat()))
}

fn ipv4_header(ends: &[u8], udp: &mut [u8]) -> Vec<u8> {
    fill_udp_checksum(ends, udp);
    let total = (20 + udp.len()) as u16;
    let mut header = vec![0x45, 0];
    header.extend(total.to_be_bytes());
    header.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
    header.extend(ends);
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    header
}

fn ipv6_header(ends: &[u8], udp: &mut [u8]) -> Vec<u8> {
    fill_udp_checksum(ends, udp);
    let mut header = vec![0x60, 0, 0, 0];
    header.extend((udp.len() as u16).to_be_bytes());
    header.extend([UDP, 64]);
    header.extend(ends);
    header
}

fn fill_udp_checksum(ends: &[u8], udp: &mut [u8]) {
    let length = (udp.len() as u16).to_be_bytes();
    let covered = [ends, &[0, UDP], &length, udp].concat();
    let sum = checksum(&covered);
    // RFC 768: an all-zero checksum would mean that there is none.
    let sum = if sum == 0 { u16::MAX } else { sum };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
}

/// Sends a frame out of an interface of the calling thread's namespace.
pub(crate) fn send(interface: &str, frame: &[u8]) -> Result<()> {
    let index = if_nametoindex(interface).with_context(|| format!("no interface {interface}"))?;
    // SAFETY: a plain system call without pointers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    let socket = Errno::result(socket).context("socket(AF_PACKET)")?;
    // SAFETY: the descriptor is new and ours alone.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all zeroes is a valid sockaddr_ll.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as u16;
    to.sll_ifindex = index as i32;
    // SAFETY: buffer and address are valid for the lengths given.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const to).cast(),
            size_of_val(&to) as u32,
        )
    };
    Errno::result(sent).with_context(|| format!("cannot send a frame out of {interface}"))?;
    Ok(())
}
