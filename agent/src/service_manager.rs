//! Word to the service manager, as `sd_notify(3)` describes it.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says that the service is ready, to who asked by `NOTIFY_SOCKET`: a path, or an abstract name after
/// `@`. Nobody asked: nothing.
///
/// # Errors
/// The socket cannot be written to.
pub fn ready() -> io::Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(drop)
}
