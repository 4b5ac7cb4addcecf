//! Messages about links (`linux/if_link.h`).

use super::attributes;

/// Length of `struct ifinfomsg`.
pub const LINK_HEADER: usize = 16;
/// Hardware address.
pub const IFLA_ADDRESS: u16 = 1;
/// Name.
pub const IFLA_IFNAME: u16 = 3;
/// Index of the underlying link, or of a veth's peer.
pub const IFLA_LINK: u16 = 5;
/// Index of the device that a port belongs to.
pub const IFLA_MASTER: u16 = 10;
/// Kinds of a link, see [`link_kind`] and [`master_kind`].
pub const IFLA_LINKINFO: u16 = 18;
/// Counters: `struct rtnl_link_stats64`.
pub const IFLA_STATS64: u16 = 23;
/// Identifier of the namespace of [`IFLA_LINK`].
pub const IFLA_LINK_NETNSID: u16 = 37;
/// Identifier of the namespace that a link moved to (kernel 4.15).
pub const IFLA_NEW_NETNSID: u16 = 45;

const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_SLAVE_KIND: u16 = 4;

/// Returns the kind of a link, such as `veth`, by its [`IFLA_LINKINFO`]; empty without one.
#[must_use]
pub fn link_kind(info: &[u8]) -> String {
    info_text(info, IFLA_INFO_KIND)
}

/// Returns the kind of the device that a port belongs to, such as `bridge`, by the port's [`IFLA_LINKINFO`]; empty
/// without one.
#[must_use]
pub fn master_kind(info: &[u8]) -> String {
    info_text(info, IFLA_INFO_SLAVE_KIND)
}

fn info_text(info: &[u8], wanted: u16) -> String {
    let found = attributes(info).find(|(kind, _)| *kind == wanted);
    found.map(|(_, value)| text(value)).unwrap_or_default()
}

/// Returns the text of an attribute, which ends with a zero.
#[must_use]
pub fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}
