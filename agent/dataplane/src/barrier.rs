//! Barriers: nftables chains that drop every packet at a hook.
//!
//! Attaching the first program to a TCX hook waits for the kernel's RTNL lock and holds it for an RCU grace period, so
//! the closings of many new veths wait for each other: up to seconds on a busy node, where a CNI plugin sets the route
//! of a pod after some 14 ms. nftables needs neither, so a barrier drops packets at the hook until its program is
//! attached.
//!
//! A barrier is a base chain of family netdev with the policy drop, at the ingress or egress (kernel 5.16,
//! `CONFIG_NETFILTER_EGRESS`) of one device, in a table of netpold. It outlives the process.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::sync::Mutex;

use netpold_core::lock::lock;
use netpold_core::model::Direction;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};

use super::hook::Hook;
use crate::netlink::{
    NETFILTER_HEADER, NLA_F_NESTED, NetfilterChange, ask_netfilter, attribute, change_netfilter,
};

/// The table of all barriers.
pub const TABLE: &CStr = c"netpold-barriers";

/// `NFNL_SUBSYS_NFTABLES` of `linux/netfilter/nfnetlink.h`.
const NFTABLES: u8 = 10;
/// `NFPROTO_NETDEV` of `linux/netfilter.h`.
const NETDEV: u8 = 5;
/// Message types (`NFT_MSG_*`) and attributes of `linux/netfilter/nf_tables.h`.
const NEW_TABLE: u8 = 0;
const DELETE_TABLE: u8 = 2;
const NEW_CHAIN: u8 = 3;
const GET_CHAIN: u8 = 4;
const DELETE_CHAIN: u8 = 5;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_HOOK_DEV: u16 = 3;
/// `NF_DROP`
const DROP: u32 = 0;
/// Priority before all chains with a usual priority.
const PRIORITY: i32 = i32::MIN + 1;

/// The barriers of this network namespace.
#[derive(Debug)]
pub(super) struct Barriers {
    raised: Mutex<BTreeSet<Hook>>,
}

impl Barriers {
    /// The barriers that an earlier process left.
    pub(super) fn find() -> Self {
        let found = list().unwrap_or_else(|error| {
            tracing::debug!(%error, "no nftables: new veths are closed by TC alone");
            BTreeSet::new()
        });
        Self { raised: Mutex::new(found) }
    }

    /// The hooks with a barrier.
    pub(super) fn hooks(&self) -> BTreeSet<Hook> {
        lock(&self.raised).clone()
    }

    /// Drops every packet at a hook until [`Barriers::lower`].
    ///
    /// # Errors
    /// The kernel has no such chains, or the interface is gone.
    pub(super) fn raise(&self, hook: Hook) -> io::Result<()> {
        let mut raised = lock(&self.raised);
        if raised.contains(&hook) {
            return Ok(());
        }
        let device = device_name(hook.ifindex)?;
        let table = (NEW_TABLE, NLM_F_CREATE, NETDEV, name(NFTA_TABLE_NAME, TABLE));
        let chain = new_chain(hook, &device);
        match change_netfilter(NFTABLES, &[table, chain]) {
            // A barrier of another process.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => result?,
        }
        raised.insert(hook);
        Ok(())
    }

    /// Removes the barrier of a hook, if there is one.
    pub(super) fn lower(&self, hook: Hook) {
        let mut raised = lock(&self.raised);
        if !raised.contains(&hook) {
            return;
        }
        match change_netfilter(NFTABLES, &[(DELETE_CHAIN, 0, NETDEV, chain_name(hook))]) {
            // Kernels remove the chain of a device that is gone.
            Err(error) if error.kind() != io::ErrorKind::NotFound => tracing::warn!(
                %error, ifindex = hook.ifindex, direction = %hook.direction,
                "an interface stays closed: its nftables chain cannot be removed; tried again"
            ),
            _ => _ = raised.remove(&hook),
        }
    }
}

/// Removes all barriers of this network namespace.
///
/// # Errors
/// The kernel refuses.
pub fn remove_all() -> io::Result<()> {
    let table = (DELETE_TABLE, 0, NETDEV, name(NFTA_TABLE_NAME, TABLE));
    match change_netfilter(NFTABLES, &[table]) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A kernel without nftables.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Ok(())
        }
        result => result,
    }
}

fn list() -> io::Result<BTreeSet<Hook>> {
    let mut found = BTreeSet::new();
    let kind = u16::from(NFTABLES) << 8 | u16::from(GET_CHAIN);
    ask_netfilter(kind, NLM_F_DUMP, (NETDEV, &[]), |chain| {
        let text = |wanted| {
            let (_, value) =
                chain.attributes(NETFILTER_HEADER).find(|(kind, _)| *kind == wanted)?;
            CStr::from_bytes_until_nul(value).ok()
        };
        if text(NFTA_CHAIN_TABLE) == Some(TABLE) {
            let name = text(NFTA_CHAIN_NAME).and_then(|name| name.to_str().ok());
            found.extend(name.and_then(Hook::from_file_name));
        }
    })?;
    Ok(found)
}

fn new_chain(hook: Hook, device: &CStr) -> NetfilterChange {
    // `NF_NETDEV_INGRESS` and `NF_NETDEV_EGRESS`.
    let number: u32 = match hook.direction {
        Direction::Egress => 0,
        Direction::Ingress => 1,
    };
    let place = [
        attribute(NFTA_HOOK_HOOKNUM, &number.to_be_bytes()),
        attribute(NFTA_HOOK_PRIORITY, &PRIORITY.to_be_bytes()),
        name(NFTA_HOOK_DEV, device),
    ];
    let parts = [
        chain_name(hook),
        attribute(NFTA_CHAIN_HOOK | NLA_F_NESTED, &place.concat()),
        attribute(NFTA_CHAIN_POLICY, &DROP.to_be_bytes()),
        name(NFTA_CHAIN_TYPE, c"filter"),
    ];
    (NEW_CHAIN, NLM_F_CREATE | NLM_F_EXCL, NETDEV, parts.concat())
}

fn chain_name(hook: Hook) -> Vec<u8> {
    let mut chain = hook.file_name().into_bytes();
    chain.push(0);
    [name(NFTA_CHAIN_TABLE, TABLE), attribute(NFTA_CHAIN_NAME, &chain)].concat()
}

fn name(kind: u16, value: &CStr) -> Vec<u8> {
    attribute(kind, value.to_bytes_with_nul())
}

/// Returns the name of an interface; needs no RTNL lock.
fn device_name(ifindex: u32) -> io::Result<std::ffi::CString> {
    nix::net::if_::if_indextoname(ifindex).map_err(Into::into)
}
