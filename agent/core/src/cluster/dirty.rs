//! What an update has to look at.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::Key;

/// What changed since the last update, in terms of what has to be looked at again.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Addresses whose owner, or something of their owner that policy reads, changed.
    pub(crate) addresses: AddressList,
    /// Namespaces in which a policy changed.
    pub(crate) policies: BTreeSet<String>,
    /// Some ClusterNetworkPolicy changed.
    pub(crate) cluster_policies: bool,
    /// Interfaces that changed, came or went.
    pub(crate) interfaces: BTreeSet<u32>,
    /// Some namespace's labels changed.
    pub(crate) namespaces: bool,
    /// Services that changed, or whose backends did.
    pub(crate) services: BTreeSet<Key>,
    /// Addresses that a Service or a Node got or lost, or whose ports changed.
    pub(crate) frontends: BTreeSet<IpAddr>,
    /// Addresses that may be backends of other Services' ports than before.
    pub(crate) backends: BTreeSet<IpAddr>,
}

/// Addresses, some of them several times. Of a cluster's first list it is all that pods have: a vector, unlike a
/// tree, leaves no holes between what stays.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressList(Vec<IpAddr>);

impl AddressList {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &IpAddr> {
        self.0.iter()
    }

    /// Each of them once, in order.
    pub(crate) fn into_sorted(mut self) -> Vec<IpAddr> {
        self.sort();
        self.0
    }

    fn sort(&mut self) {
        self.0.sort_unstable();
        self.0.dedup();
    }
}

impl Extend<IpAddr> for AddressList {
    fn extend<I: IntoIterator<Item = IpAddr>>(&mut self, addresses: I) {
        for address in addresses {
            if self.0.len() == self.0.capacity() {
                // Grows with how many there are, not with how often each was named.
                self.sort();
                self.0.reserve(self.0.len().max(FEW));
            }
            self.0.push(address);
        }
    }
}

impl<'a> Extend<&'a IpAddr> for AddressList {
    fn extend<I: IntoIterator<Item = &'a IpAddr>>(&mut self, addresses: I) {
        self.extend(addresses.into_iter().copied());
    }
}

/// Addresses that there is room for at least.
const FEW: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_takes_the_room_of_what_is_different() {
        let addresses = || (0..100u8).map(|n| IpAddr::from([10, 0, 0, n]));
        let mut list = AddressList::default();
        for _ in 0..1000 {
            list.extend(addresses().rev());
        }
        assert!(list.0.capacity() < 400, "{}", list.0.capacity());
        assert_eq!(list.into_sorted(), addresses().collect::<Vec<_>>());
    }
}
