//! The host sides of the node's veths, and the addresses behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::{Interface, Owner};

/// Every interface.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    by_index: BTreeMap<u32, Interface>,
    /// Interfaces by the addresses behind them.
    links: BTreeMap<IpAddr, BTreeSet<u32>>,
}

impl Interfaces {
    /// Interfaces by index.
    pub(super) fn by_index(&self) -> &BTreeMap<u32, Interface> {
        &self.by_index
    }

    /// Interfaces with an address behind them.
    pub(crate) fn with(&self, address: IpAddr) -> impl Iterator<Item = u32> {
        self.links.get(&address).into_iter().flatten().copied()
    }

    /// Sets or removes (`None`) an interface; returns whether it changed.
    pub(super) fn set(&mut self, index: u32, new: Option<Interface>) -> bool {
        if self.by_index.get(&index) == new.as_ref() {
            return false;
        }
        for address in new.iter().flat_map(addresses_behind) {
            self.links.entry(*address).or_default().insert(index);
        }
        let old = match &new {
            Some(new) => self.by_index.insert(index, new.clone()),
            None => self.by_index.remove(&index),
        };
        let stays = |a: &IpAddr| new.as_ref().is_some_and(|new| addresses_behind(new).contains(a));
        for address in old.iter().flat_map(addresses_behind).filter(|a| !stays(a)) {
            if let Some(indexes) = self.links.get_mut(address) {
                indexes.remove(&index);
                if indexes.is_empty() {
                    self.links.remove(address);
                }
            }
        }
        true
    }
}

/// Addresses of the pods on which an interface's endpoint depends.
fn addresses_behind(interface: &Interface) -> &[IpAddr] {
    match &interface.owner {
        Owner::Pod(bound) => &bound.pod.addresses,
        Owner::Unbound => &interface.addresses,
        Owner::Denied => &[],
    }
}
