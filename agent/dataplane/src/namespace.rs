//! Cookie of the node's network namespace, by which programs recognize the node's own sockets.

use std::io;
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::bpf::sys;

/// `BPF_FUNC_get_netns_cookie` of linux/bpf.h.
const GET_NETNS_COOKIE: i32 = 122;

/// Cookie of the calling thread's network namespace (`SO_NETNS_COOKIE`, kernel 5.14); `None` if classifiers cannot
/// read the cookie of a packet's socket (6.15).
#[must_use]
pub(super) fn cookie() -> Option<u64> {
    check_helper().and_then(|()| own_cookie()).ok()
}

/// Checks that a classifier may call the helper, by loading one: `call 122; r0 = 0; exit`.
fn check_helper() -> io::Result<()> {
    let ask = sys::instruction(0x85, 0, 0, 0, GET_NETNS_COOKIE);
    let leave = [sys::instruction(0xb7, 0, 0, 0, 0), sys::instruction(0x95, 0, 0, 0, 0)];
    sys::classifier(&[ask, leave[0], leave[1]]).map(drop)
}

fn own_cookie() -> io::Result<u64> {
    let any = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let (mut cookie, mut length) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the option is a word of that length.
    let result = unsafe {
        libc::getsockopt(
            any.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}
