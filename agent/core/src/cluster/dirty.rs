//! The parts of the cluster's state that the next update must evaluate again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::Key;

/// Parts of the cluster that changed since the last update.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Addresses with a new owner, or with a changed field of the owner on which policies depend.
    pub(crate) addresses: AddressList,
    /// Namespaces in which a policy changed.
    pub(crate) policies: BTreeSet<String>,
    /// Whether a ClusterNetworkPolicy changed.
    pub(crate) cluster_policies: bool,
    /// Interfaces that were added, changed or removed.
    pub(crate) interfaces: BTreeSet<u32>,
    /// Whether labels of a namespace changed.
    pub(crate) namespaces: bool,
    /// Services that changed, or with changed backends.
    pub(crate) services: BTreeSet<Key>,
    /// Addresses that a Service or Node gained or lost, or with changed ports.
    pub(crate) frontends: BTreeSet<IpAddr>,
    /// Addresses that may have become a backend of a Service port, or ceased to be one, by the Service's namespace.
    pub(crate) backends: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl Dirty {
    /// Marks backends of a Service of this namespace.
    pub(crate) fn add_backends<'a>(
        &mut self,
        namespace: &str,
        addresses: impl Iterator<Item = &'a IpAddr>,
    ) {
        let mut addresses = addresses.peekable();
        if addresses.peek().is_some() {
            self.backends.entry(namespace.to_owned()).or_default().extend(addresses);
        }
    }
}

/// List of addresses, with duplicates. After the first listing of a cluster the list holds all pod addresses. It is a
/// vector, because a tree of that size would fragment the heap when it is freed.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressList(Vec<IpAddr>);

impl AddressList {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &IpAddr> {
        self.0.iter()
    }

    /// The distinct addresses, in order.
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
                // Memory grows with the number of distinct addresses, not with the number of insertions.
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

/// Minimum capacity to reserve.
const FEW: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_distinct_addresses_only() {
        let addresses = || (0..100u8).map(|n| IpAddr::from([10, 0, 0, n]));
        let mut list = AddressList::default();
        for _ in 0..1000 {
            list.extend(addresses().rev());
        }
        assert!(list.0.capacity() < 400, "{}", list.0.capacity());
        assert_eq!(list.into_sorted(), addresses().collect::<Vec<_>>());
    }
}
