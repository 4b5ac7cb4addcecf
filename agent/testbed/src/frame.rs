//! Raw Ethernet frames, for packets that sockets do not send.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;

/// An Ethernet frame around a payload.
#[must_use]
pub fn ethernet(destination: [u8; 6], source: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&destination[..], &source, &ethertype.to_be_bytes(), payload].concat()
}

/// Sends a frame out of an interface of the calling thread's namespace.
pub(crate) fn send(interface: &str, frame: &[u8]) -> Result<()> {
    let index = if_nametoindex(interface).with_context(|| format!("no interface {interface}"))?;
    // SAFETY: a plain system call without pointers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    let socket = Errno::result(socket).context("socket(AF_PACKET)")?;
    // SAFETY: the descriptor is new and has no other owner.
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
