//! Deletes all entries of a node's own conntrack, as if they had expired.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut};
use nix::errno::Errno;

use crate::host::Host;

/// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = 1 << 8 | 2;
const REQUEST_AND_ACK: u16 = 5;
const LENGTH: usize = 20;

impl Host {
    /// Deletes all entries of this node's conntrack, as `conntrack -F` does.
    ///
    /// # Errors
    /// Errors of nfnetlink.
    pub fn forget_connections(&self) -> Result<()> {
        self.run(flush)?
    }
}

fn flush() -> Result<()> {
    // SAFETY: a plain system call without pointers.
    let socket = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_NETFILTER)
    };
    let socket = Errno::result(socket).context("socket(NETLINK_NETFILTER)")?;
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // struct nlmsghdr, struct nfgenmsg of any family.
    let mut request = Vec::with_capacity(LENGTH);
    request.put_u32_ne(LENGTH as u32);
    request.put_u16_ne(DELETE);
    request.put_u16_ne(REQUEST_AND_ACK);
    request.resize(LENGTH, 0);
    let mut answer = [0_u8; 64];
    // SAFETY: the buffer has `LENGTH` bytes.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), LENGTH, 0) };
    Errno::result(sent).context("nfnetlink")?;
    let (buffer, room) = (answer.as_mut_ptr().cast(), answer.len());
    // SAFETY: the buffer has `room` bytes.
    let length = unsafe { libc::recv(socket.as_raw_fd(), buffer, room, 0) };
    let length = Errno::result(length).context("nfnetlink")?;
    ensure!(length >= LENGTH as isize, "nfnetlink answers {length} bytes");
    let error = (&answer[16..]).get_i32_ne();
    ensure!(error == 0, "nfnetlink: {}", Errno::from_raw(-error));
    Ok(())
}
