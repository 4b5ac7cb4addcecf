//! Host ends of the node's veths, and the addresses behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::{Interface, InterfaceOwner};

/// All interfaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interfaces {
    by_index: BTreeMap<u32, Interface>,
    /// Interface indexes by address behind the interface.
    links: BTreeMap<IpAddr, BTreeSet<u32>>,
}

impl Interfaces {
    /// Interfaces by index.
    pub(super) fn by_index(&self) -> &BTreeMap<u32, Interface> {
        &self.by_index
    }

    /// Indexes of the interfaces with this address behind them.
    pub(crate) fn with(&self, address: IpAddr) -> impl Iterator<Item = u32> {
        self.links.get(&address).into_iter().flatten().copied()
    }

    /// Indexes of the pods' interfaces on secondary networks.
    pub(crate) fn secondary(&self) -> impl Iterator<Item = u32> {
        let is_second = |interface: &Interface| match &interface.owner {
            InterfaceOwner::Pod(bound) => bound.is_secondary,
            InterfaceOwner::Unbound | InterfaceOwner::Denied => false,
        };
        self.by_index.iter().filter(move |(_, it)| is_second(it)).map(|(index, _)| *index)
    }

    /// Sets or removes (`None`) an interface. Returns whether it changed.
    pub(super) fn set(&mut self, index: u32, new: Option<Interface>) -> bool {
        if self.by_index.get(&index) == new.as_ref() {
            return false;
        }
        for address in new.iter().flat_map(addresses_behind) {
            self.links.entry(address).or_default().insert(index);
        }
        let old = match &new {
            Some(new) => self.by_index.insert(index, new.clone()),
            None => self.by_index.remove(&index),
        };
        let stays =
            |a: &IpAddr| new.as_ref().is_some_and(|new| addresses_behind(new).any(|it| it == *a));
        for address in old.iter().flat_map(addresses_behind).filter(|a| !stays(a)) {
            if let Some(indexes) = self.links.get_mut(&address) {
                indexes.remove(&index);
                if indexes.is_empty() {
                    self.links.remove(&address);
                }
            }
        }
        true
    }
}

/// Returns the addresses of pods on which an interface's endpoint depends.
fn addresses_behind(interface: &Interface) -> impl Iterator<Item = IpAddr> {
    let (own, second) = match &interface.owner {
        InterfaceOwner::Pod(bound) => {
            (&bound.pod.addresses[..], Some(&bound.pod).filter(|_| bound.is_secondary))
        }
        InterfaceOwner::Unbound => (&interface.addresses[..], None),
        InterfaceOwner::Denied => (&[][..], None),
    };
    own.iter().copied().chain(second.into_iter().flat_map(|pod| pod.secondary_addresses()))
}
