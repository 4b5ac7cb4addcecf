//! Notification of the service manager, as in `sd_notify(3)`.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports readiness to the socket in `NOTIFY_SOCKET`: a path, or an abstract name after `@`. Does nothing without the
/// variable.
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
