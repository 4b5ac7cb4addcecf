//! Addresses that pods resolved domain names of policy to.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::model::{DomainName, Key};

/// Time left of each address, by pod and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved(BTreeMap<Key, BTreeMap<DomainName, BTreeMap<IpAddr, Duration>>>);

impl Resolved {
    /// Adds an address that a pod resolved a name of its rules to.
    pub fn insert(&mut self, pod: &Key, name: &DomainName, address: IpAddr, left: Duration) {
        let names = self.0.entry(pod.clone()).or_default();
        names.entry(name.clone()).or_default().insert(address, left);
    }

    /// Whether no pod resolved any name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of addresses, of all pods and names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.values().flat_map(BTreeMap::values).map(BTreeMap::len).sum()
    }

    /// Names that a pod resolved to an address.
    pub fn names(&self, pod: &Key, address: IpAddr) -> impl Iterator<Item = &DomainName> {
        let names = self.0.get(pod).into_iter().flatten();
        names.filter(move |(_, found)| found.contains_key(&address)).map(|(name, _)| name)
    }

    /// Time for which an address belongs to a name, for a pod; `None` if it does not.
    pub(super) fn left(&self, pod: &Key, name: &DomainName, address: IpAddr) -> Option<Duration> {
        self.0.get(pod)?.get(name)?.get(&address).copied()
    }

    /// Addresses that a pod resolved a name to.
    pub(super) fn addresses(&self, pod: &Key, name: &DomainName) -> impl Iterator<Item = IpAddr> {
        let names = self.0.get(pod).and_then(|names| names.get(name));
        names.into_iter().flat_map(BTreeMap::keys).copied()
    }
}
