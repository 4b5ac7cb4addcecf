//! Pods by claimed address. Most addresses have one claimant; an entry then holds only the pod, and the address is read
//! from the pod.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::model::Pod;

/// Pods by the addresses that they claim.
#[derive(Clone, Debug, Default)]
pub(super) struct AddressClaims {
    /// One claim per claimed address.
    first: HashTable<Claim>,
    /// Further claimants of an address; no list is empty.
    others: BTreeMap<IpAddr, Vec<Arc<Pod>>>,
    hasher: DefaultHashBuilder,
}

/// A claim of a pod on an address.
#[derive(Clone, Debug)]
struct Claim {
    pod: Arc<Pod>,
    /// Index into the pod's addresses.
    place: usize,
}

impl Claim {
    fn address(&self) -> Option<IpAddr> {
        self.pod.addresses.get(self.place).copied()
    }
}

impl AddressClaims {
    /// The pods that claim an address.
    pub(super) fn pods_at(&self, address: IpAddr) -> impl Iterator<Item = &Arc<Pod>> {
        let is_of = |claim: &Claim| claim.address() == Some(address);
        let first = self.first.find(self.hasher.hash_one(address), is_of);
        let others = first.and_then(|_| self.others.get(&address));
        first.map(|claim| &claim.pod).into_iter().chain(others.into_iter().flatten())
    }

    /// Whether several pods claim an address.
    pub(super) fn is_contested(&self, address: IpAddr) -> bool {
        self.others.contains_key(&address)
    }

    /// Adds the claims of a pod.
    pub(super) fn add(&mut self, pod: &Arc<Pod>) {
        for (place, address) in pod.addresses.iter().enumerate() {
            let hash = |claim: &Claim| self.hasher.hash_one(claim.pod.addresses[claim.place]);
            let is_of = |claim: &Claim| claim.address() == Some(*address);
            match self.first.entry(self.hasher.hash_one(address), is_of, hash) {
                Entry::Occupied(_) => self.others.entry(*address).or_default().push(pod.clone()),
                Entry::Vacant(free) => drop(free.insert(Claim { pod: pod.clone(), place })),
            }
        }
    }

    /// Removes the claims of a pod; must be the same `Arc` that was added.
    pub(super) fn remove(&mut self, pod: &Arc<Pod>) {
        for address in &pod.addresses {
            let is_of = |claim: &Claim| claim.address() == Some(*address);
            let found = self.first.find_entry(self.hasher.hash_one(address), is_of);
            let Ok(mut first) = found else { continue };
            let others = self.others.get_mut(address);
            if !Arc::ptr_eq(&first.get().pod, pod) {
                others.into_iter().for_each(|it| it.retain(|other| !Arc::ptr_eq(other, pod)));
            } else if let Some(other) = others.and_then(Vec::pop) {
                let place = other.addresses.iter().position(|claimed| claimed == address);
                *first.get_mut() = Claim { pod: other, place: place.unwrap_or_default() };
            } else {
                first.remove();
            }
            if self.others.get(address).is_some_and(Vec::is_empty) {
                self.others.remove(address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, addresses: &[u8]) -> Arc<Pod> {
        let addresses = addresses.iter().map(|n| IpAddr::from([10, 0, 0, *n])).collect();
        let key = crate::model::Key::new("a", name);
        Arc::new(Pod { key, addresses, ..Pod::default() })
    }

    fn names(claims: &AddressClaims, address: u8) -> Vec<&str> {
        let mut names: Vec<_> =
            claims.pods_at([10, 0, 0, address].into()).map(|pod| &*pod.key.name).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn whoever_claims_an_address_is_found_until_it_goes() {
        let pods = [pod("x", &[1, 2]), pod("y", &[2]), pod("z", &[2, 3])];
        for gone in 0..pods.len() {
            let mut claims = AddressClaims::default();
            pods.iter().for_each(|pod| claims.add(pod));
            assert_eq!(names(&claims, 1), ["x"]);
            assert_eq!(names(&claims, 2), ["x", "y", "z"]);
            assert!(claims.is_contested([10, 0, 0, 2].into()));
            claims.remove(&pods[gone]);
            let left: Vec<_> = pods.iter().filter(|pod| pod.key != pods[gone].key).collect();
            assert_eq!(names(&claims, 2), [&*left[0].key.name, &*left[1].key.name]);
            claims.remove(left[0]);
            assert_eq!(names(&claims, 2), [&*left[1].key.name]);
            assert!(!claims.is_contested([10, 0, 0, 2].into()));
            claims.remove(left[1]);
            assert!(claims.first.is_empty() && claims.others.is_empty());
        }
    }
}
