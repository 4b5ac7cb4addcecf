//! Tables, chains, rules and sets of nftables (`linux/netfilter/nf_tables.h`).

pub(super) mod expression;

use std::ffi::CStr;
use std::io;

use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_DUMP};

use crate::netlink::{
    NETFILTER_HEADER, NetfilterChange, ask_netfilter, attribute, attributes, change_netfilter,
};

/// Every family.
pub const ALL: u8 = 0;
/// `NFPROTO_*`
pub(super) const IPV4: u8 = 2;
pub(super) const NETDEV: u8 = 5;
pub(super) const IPV6: u8 = 10;

/// `NFNL_SUBSYS_NFTABLES` of `linux/netfilter/nfnetlink.h`.
const SUBSYSTEM: u8 = 10;
/// Message types (`NFT_MSG_*`).
pub(super) const NEW_TABLE: u8 = 0;
pub(super) const GET_TABLE: u8 = 1;
pub(super) const DELETE_TABLE: u8 = 2;
pub(super) const NEW_CHAIN: u8 = 3;
pub(super) const GET_CHAIN: u8 = 4;
pub(super) const DELETE_CHAIN: u8 = 5;
pub(super) const NEW_RULE: u8 = 6;
pub(super) const GET_RULE: u8 = 7;
pub(super) const NEW_SET: u8 = 9;
pub(super) const NEW_ELEMENT: u8 = 12;
pub(super) const GET_ELEMENT: u8 = 13;
pub(super) const DELETE_ELEMENT: u8 = 14;
/// Attributes.
pub(super) const NFTA_TABLE_NAME: u16 = 1;
pub(super) const NFTA_TABLE_FLAGS: u16 = 2;
pub(super) const NFTA_TABLE_HANDLE: u16 = 4;
pub(super) const NFTA_CHAIN_TABLE: u16 = 1;
pub(super) const NFTA_CHAIN_HANDLE: u16 = 2;
pub(super) const NFTA_CHAIN_NAME: u16 = 3;
pub(super) const NFTA_CHAIN_HOOK: u16 = 4;
pub(super) const NFTA_CHAIN_POLICY: u16 = 5;
pub(super) const NFTA_CHAIN_TYPE: u16 = 7;
pub(super) const NFTA_HOOK_HOOKNUM: u16 = 1;
pub(super) const NFTA_HOOK_PRIORITY: u16 = 2;
pub(super) const NFTA_HOOK_DEV: u16 = 3;
pub(super) const NFTA_LIST_ELEM: u16 = 1;
pub(super) const NFTA_DATA_VALUE: u16 = 1;
/// Verdicts `NF_*`.
pub(super) const DROP: u32 = 0;
pub(super) const ACCEPT: u32 = 1;
/// Priority of a base chain before all chains with a usual priority.
pub(super) const FIRST: i32 = i32::MIN + 1;

/// Calls `each` with the tables of every family, by family and name.
///
/// # Errors
/// The kernel does not list the tables: this needs `CAP_NET_ADMIN`.
pub fn tables(mut each: impl FnMut(&str, &str)) -> io::Result<()> {
    dump(GET_TABLE, ALL, |family, payload| {
        if let Some(table) = text(payload, NFTA_TABLE_NAME) {
            each(family, table);
        }
    })
}

/// Calls `each` with the chains of a family (`NFPROTO_*`, or [`ALL`]), by family, table and name. Chains of iptables-nft are
/// included.
///
/// # Errors
/// As [`tables`].
pub fn chains(family: u8, mut each: impl FnMut(&str, &str, &str)) -> io::Result<()> {
    dump(GET_CHAIN, family, |family, payload| {
        let (table, chain) = (text(payload, NFTA_CHAIN_TABLE), text(payload, NFTA_CHAIN_NAME));
        if let (Some(table), Some(chain)) = (table, chain) {
            each(family, table, chain);
        }
    })
}

/// Makes changes in one transaction.
///
/// # Errors
/// The kernel's error for the first change that it refuses, or the socket's.
pub(super) fn change(changes: &[NetfilterChange]) -> io::Result<()> {
    change_netfilter(SUBSYSTEM, changes)
}

/// Removes a table of a family, if there is one.
///
/// # Errors
/// The kernel refuses.
pub(super) fn remove_table(family: u8, table: &CStr) -> io::Result<()> {
    match change(&[(DELETE_TABLE, 0, family, name(NFTA_TABLE_NAME, table))]) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A kernel without nftables.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Ok(())
        }
        result => result,
    }
}

/// Returns the attributes of one object: type and value.
///
/// # Errors
/// No such object, or the kernel refuses.
pub(super) fn get(request: u8, family: u8, of: &[u8]) -> io::Result<Vec<(u16, Vec<u8>)>> {
    let mut found = Vec::new();
    ask_netfilter(message_type(request), NLM_F_ACK, (family, of), |answer| {
        let attributes = answer.attributes(NETFILTER_HEADER);
        found.extend(attributes.map(|(kind, value)| (kind, value.to_vec())));
    })?;
    Ok(found)
}

/// Calls `each` with the attributes of every listed object.
///
/// # Errors
/// No such table, or the kernel refuses.
pub(super) fn list(
    request: u8,
    family: u8,
    of: &[u8],
    mut each: impl FnMut(&[u8]),
) -> io::Result<()> {
    ask_netfilter(message_type(request), NLM_F_DUMP, (family, of), |answer| {
        each(answer.payload.get(NETFILTER_HEADER..).unwrap_or_default());
    })
}

/// Encodes a name as an attribute.
pub(super) fn name(kind: u16, value: &CStr) -> Vec<u8> {
    attribute(kind, value.to_bytes_with_nul())
}

fn text(payload: &[u8], wanted: u16) -> Option<&str> {
    let (_, value) = attributes(payload).find(|(kind, _)| *kind == wanted)?;
    std::str::from_utf8(value).ok().map(|text| text.trim_end_matches('\0'))
}

fn message_type(request: u8) -> u16 {
    u16::from(SUBSYSTEM) << 8 | u16::from(request)
}

fn dump(request: u8, family: u8, mut each: impl FnMut(&str, &[u8])) -> io::Result<()> {
    let listed = ask_netfilter(message_type(request), NLM_F_DUMP, (family, &[]), |answer| {
        let family = family_name(answer.payload.first().copied().unwrap_or(0));
        each(family, answer.payload.get(NETFILTER_HEADER..).unwrap_or_default());
    });
    match listed {
        // A kernel without nftables has nothing to list.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        listed => listed,
    }
}

/// Returns the name that `nft` uses for an `NFPROTO_*` number.
fn family_name(number: u8) -> &'static str {
    match number {
        1 => "inet",
        IPV4 => "ip",
        3 => "arp",
        NETDEV => "netdev",
        7 => "bridge",
        IPV6 => "ip6",
        _ => "other",
    }
}
