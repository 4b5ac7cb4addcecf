//! Chains of legacy iptables, as the kernel lists them.
//!
//! Only existing tables are queried: a query creates a missing table.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`, the same for IPv6.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
/// Sizes in bytes: a table's name, `struct ipt_getinfo`, and the header before the entries.
const TABLE_NAME: usize = 32;
const INFO: usize = 84;
const ENTRIES: usize = 40;
/// Offsets of name and data in `struct xt_entry_target`.
const TARGET_NAME: usize = 2;
const TARGET_DATA: usize = 32;
/// Largest table to read, in bytes.
const ENTRIES_MAX: usize = 1 << 30;

/// Address family of legacy iptables.
struct IptablesFamily {
    names: &'static str,
    what: &'static str,
    address_family: AddressFamily,
    level: libc::c_int,
    /// Offset within an entry of the target's offset, followed by the next entry's offset.
    target_offset: usize,
}

const FAMILIES: [IptablesFamily; 2] = [
    IptablesFamily {
        names: "/proc/thread-self/net/ip_tables_names",
        what: "iptables table",
        address_family: AddressFamily::Inet,
        level: libc::SOL_IP,
        target_offset: 88,
    },
    IptablesFamily {
        names: "/proc/thread-self/net/ip6_tables_names",
        what: "ip6tables table",
        address_family: AddressFamily::Inet6,
        level: libc::SOL_IPV6,
        target_offset: 140,
    },
];

/// Calls `each` with the chains of legacy iptables, by table and name.
///
/// # Errors
/// The kernel does not list the tables: this needs `CAP_NET_ADMIN`.
pub(super) fn old_chains(mut each: impl FnMut(&str, &str)) -> io::Result<()> {
    for family in &FAMILIES {
        // Without the kernel module the file does not exist.
        let tables = fs::read_to_string(family.names).unwrap_or_default();
        for table in tables.lines() {
            let shown = format!("{} {table}", family.what);
            chains(&entries(family, table)?, family, |chain| each(&shown, chain));
        }
    }
    Ok(())
}

/// Reads the entries of a table from the kernel.
fn entries(family: &IptablesFamily, table: &str) -> io::Result<Vec<u8>> {
    let socket = socket(family.address_family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut info = vec![0; INFO];
    let name = table.as_bytes();
    if name.len() >= TABLE_NAME {
        return Ok(Vec::new());
    }
    info[..name.len()].copy_from_slice(name);
    option(&socket, family.level, GET_INFO, &mut info)?;
    let size = info.last_chunk().map_or(0, |size| u32::from_ne_bytes(*size));
    if size as usize > ENTRIES_MAX {
        return Err(io::Error::other(format!("table {table} has {size} bytes")));
    }
    let mut entries = vec![0; ENTRIES + size as usize];
    entries[..name.len()].copy_from_slice(name);
    entries[TABLE_NAME..TABLE_NAME + 4].copy_from_slice(&size.to_ne_bytes());
    option(&socket, family.level, GET_ENTRIES, &mut entries)?;
    entries.drain(..ENTRIES);
    Ok(entries)
}

fn option(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &mut [u8],
) -> io::Result<()> {
    let mut length = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes to the value, which is `length` bytes long.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Finds the user-defined chains: each begins with an entry of target ERROR that contains the chain's name.
fn chains(mut entries: &[u8], family: &IptablesFamily, mut each: impl FnMut(&str)) {
    let number = |at: usize, bytes: &[u8]| {
        let number = bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes));
        number.map(usize::from)
    };
    while let (Some(target), Some(next)) =
        (number(family.target_offset, entries), number(family.target_offset + 2, entries))
    {
        let target = entries.get(target..next).unwrap_or_default();
        if target.get(TARGET_NAME..).is_some_and(|name| name.starts_with(b"ERROR\0")) {
            let name = target.get(TARGET_DATA..).unwrap_or_default();
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
            // The table's last entry has target ERROR, too.
            match std::str::from_utf8(&name[..end]) {
                Ok(name) if name != "ERROR" => each(name),
                Ok(_) | Err(_) => {}
            }
        }
        match entries.get(next..) {
            Some(rest) if next > 0 => entries = rest,
            Some(_) | None => return,
        }
    }
}
