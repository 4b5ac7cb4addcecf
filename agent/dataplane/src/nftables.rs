//! Tables and chains of nftables (`linux/netfilter/nf_tables.h`).

use std::io;

use rtnetlink::packet_core::NLM_F_DUMP;

use crate::netlink::{
    NETFILTER_HEADER, NetfilterChange, ask_netfilter, attributes, change_netfilter,
};

/// Every family.
pub const ALL: u8 = 0;
/// `NFPROTO_NETDEV`
pub(super) const NETDEV: u8 = 5;

/// `NFNL_SUBSYS_NFTABLES` of `linux/netfilter/nfnetlink.h`.
const SUBSYSTEM: u8 = 10;
/// Message types (`NFT_MSG_*`).
pub(super) const NEW_TABLE: u8 = 0;
const GET_TABLE: u8 = 1;
pub(super) const DELETE_TABLE: u8 = 2;
pub(super) const NEW_CHAIN: u8 = 3;
const GET_CHAIN: u8 = 4;
pub(super) const DELETE_CHAIN: u8 = 5;
/// Attributes.
pub(super) const NFTA_TABLE_NAME: u16 = 1;
pub(super) const NFTA_CHAIN_TABLE: u16 = 1;
pub(super) const NFTA_CHAIN_NAME: u16 = 3;

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

fn text(payload: &[u8], wanted: u16) -> Option<&str> {
    let (_, value) = attributes(payload).find(|(kind, _)| *kind == wanted)?;
    std::str::from_utf8(value).ok().map(|text| text.trim_end_matches('\0'))
}

fn dump(request: u8, family: u8, mut each: impl FnMut(&str, &[u8])) -> io::Result<()> {
    let kind = u16::from(SUBSYSTEM) << 8 | u16::from(request);
    let listed = ask_netfilter(kind, NLM_F_DUMP, (family, &[]), |answer| {
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
        2 => "ip",
        3 => "arp",
        NETDEV => "netdev",
        7 => "bridge",
        10 => "ip6",
        _ => "other",
    }
}
