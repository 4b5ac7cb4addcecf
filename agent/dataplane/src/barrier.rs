//! Barriers: nftables chains that drop every packet at a hook.
//!
//! Attaching the first program to a TCX hook waits for the kernel's RTNL lock and holds it for an RCU grace period, so
//! the closings of many new veths wait for each other, up to seconds on a busy node, while a CNI plugin sets the route
//! of a pod after some 14 ms. nftables needs neither the lock nor the grace period, so a barrier drops packets at the
//! hook until the program is attached.
//!
//! A barrier is a base chain of family netdev with the policy drop, at the ingress or egress (kernel 5.16,
//! `CONFIG_NETFILTER_EGRESS`) of one device, in a table of netpold. A barrier outlives the process.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::io;
use std::sync::Mutex;

use netpold_core::lock::lock;
use netpold_core::model::Direction;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use super::hook::Hook;
use super::nftables::{
    self, DELETE_CHAIN, DROP, FIRST, NETDEV, NEW_CHAIN, NEW_TABLE, NFTA_CHAIN_HOOK,
    NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_CHAIN_TABLE, NFTA_CHAIN_TYPE, NFTA_HOOK_DEV,
    NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_TABLE_NAME, name,
};
use crate::netlink::{NLA_F_NESTED, NetfilterChange, attribute};

/// The table of all barriers.
const TABLE: &CStr = c"netpold-barriers";

/// The barriers of this network namespace.
#[derive(Debug)]
pub(super) struct Barriers {
    raised: Mutex<BTreeMap<Hook, Barrier>>,
}

/// A barrier, as recorded by this process. Another process may have removed it.
#[derive(Debug, Default)]
struct Barrier {
    /// Name of the device; `None`: an earlier process has raised the barrier.
    device: Option<CString>,
    /// Whether the removal of the barrier has failed.
    overdue: bool,
}

impl Barriers {
    /// The barriers that an earlier process left.
    pub(super) fn find() -> Self {
        let found = list().unwrap_or_else(|error| {
            tracing::debug!(%error, "no nftables: new veths are closed by TC alone");
            BTreeSet::new()
        });
        let raised = found.into_iter().map(|hook| (hook, Barrier::default())).collect();
        Self { raised: Mutex::new(raised) }
    }

    /// The hooks with a barrier.
    pub(super) fn hooks(&self) -> BTreeSet<Hook> {
        lock(&self.raised).keys().copied().collect()
    }

    /// Drops every packet at a hook until [`Barriers::lower`].
    ///
    /// # Errors
    /// The kernel has no such chains, or the interface is gone.
    pub(super) fn raise(&self, hook: Hook) -> io::Result<()> {
        let mut raised = lock(&self.raised);
        let device = device_name(hook.ifindex)?;
        let (new, renewed) = (creation(hook, &device), renewal(hook, &device));
        // Another process may have removed or raised the barrier.
        let (first, second, expected) = if raised.contains_key(&hook) {
            (renewed, new, io::ErrorKind::NotFound)
        } else {
            (new, renewed, io::ErrorKind::AlreadyExists)
        };
        match nftables::change(&first) {
            Err(error) if error.kind() == expected => nftables::change(&second)?,
            result => result?,
        }
        raised.insert(hook, Barrier { device: Some(device), overdue: false });
        Ok(())
    }

    /// Raises the barrier of a hook again if the device has been renamed. A barrier that another process has removed
    /// stays removed.
    ///
    /// # Errors
    /// As [`Barriers::raise`].
    pub(super) fn rename(&self, hook: Hook) -> io::Result<()> {
        let mut raised = lock(&self.raised);
        let Some(barrier) = raised.get_mut(&hook).filter(|barrier| !barrier.overdue) else {
            return Ok(());
        };
        let device = device_name(hook.ifindex)?;
        if barrier.device.as_ref() == Some(&device) {
            return Ok(());
        }
        match nftables::change(&renewal(hook, &device)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => _ = raised.remove(&hook),
            result => {
                result?;
                barrier.device = Some(device);
            }
        }
        Ok(())
    }

    /// Removes the barrier of a hook, if there is one.
    pub(super) fn lower(&self, hook: Hook) {
        lower(&mut lock(&self.raised), hook);
    }

    /// Removes the barriers that could not be removed before.
    pub(super) fn lower_overdue(&self) {
        let mut raised = lock(&self.raised);
        let overdue = raised.iter().filter(|(_, barrier)| barrier.overdue);
        let overdue: Vec<Hook> = overdue.map(|(hook, _)| *hook).collect();
        overdue.into_iter().for_each(|hook| lower(&mut raised, hook));
    }
}

fn lower(raised: &mut BTreeMap<Hook, Barrier>, hook: Hook) {
    let Some(barrier) = raised.get_mut(&hook) else { return };
    match nftables::change(&[delete_chain(hook)]) {
        // NotFound: another process has removed the chain, or the kernel has (up to 6.13) together with the device.
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            if !std::mem::replace(&mut barrier.overdue, true) {
                tracing::warn!(
                    %error, ifindex = hook.ifindex, direction = %hook.direction,
                    "an interface stays closed: its nftables chain cannot be removed; will retry"
                );
            }
        }
        _ => _ = raised.remove(&hook),
    }
}

/// Removes all barriers of this network namespace.
///
/// # Errors
/// The kernel refuses.
pub fn remove_all() -> io::Result<()> {
    nftables::remove_table(NETDEV, TABLE)
}

fn list() -> io::Result<BTreeSet<Hook>> {
    let mut found = BTreeSet::new();
    nftables::chains(NETDEV, |_, table, chain| {
        if Ok(table) == TABLE.to_str() {
            found.extend(Hook::from_file_name(chain));
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
        attribute(NFTA_HOOK_PRIORITY, &FIRST.to_be_bytes()),
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

/// Creates a chain, and the table if it does not exist.
fn creation(hook: Hook, device: &CStr) -> [NetfilterChange; 2] {
    let table = (NEW_TABLE, NLM_F_CREATE, NETDEV, name(NFTA_TABLE_NAME, TABLE));
    [table, new_chain(hook, device)]
}

/// Replaces a chain in one transaction, so that packets are dropped throughout.
fn renewal(hook: Hook, device: &CStr) -> [NetfilterChange; 2] {
    [delete_chain(hook), new_chain(hook, device)]
}

fn delete_chain(hook: Hook) -> NetfilterChange {
    (DELETE_CHAIN, 0, NETDEV, chain_name(hook))
}

fn chain_name(hook: Hook) -> Vec<u8> {
    let mut chain = hook.file_name().into_bytes();
    chain.push(0);
    [name(NFTA_CHAIN_TABLE, TABLE), attribute(NFTA_CHAIN_NAME, &chain)].concat()
}

/// Returns the name of an interface; needs no RTNL lock.
fn device_name(ifindex: u32) -> io::Result<CString> {
    nix::net::if_::if_indextoname(ifindex).map_err(Into::into)
}
