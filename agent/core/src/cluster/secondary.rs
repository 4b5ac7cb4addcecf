//! Addresses of pods on secondary networks, claimed by annotation.
//!
//! Every author of a pod can write the annotation, so a claim is accepted only if it takes no address away: the address
//! is in the operator's blocks for secondary networks ([`SecondaryNetworks`](super::SecondaryNetworks)), outside every node's
//! podCIDR, claimed by one pod alone, and held by no other object.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::address_owner::AddressOwner;
use crate::model::{Key, Pod};

/// Reason why a pod's claim to an address on a secondary network is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimRefusal {
    /// The address is in none of the blocks for secondary networks.
    Elsewhere,
    /// The address belongs to another object.
    Held(AddressOwner),
    /// The address is in a node's podCIDR.
    PodRange,
    /// This other pod claims the same address.
    Contested(Key),
}

impl fmt::Display for ClaimRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elsewhere => f.write_str("it is in no block of --second-networks"),
            Self::Held(AddressOwner::Pod(pod)) => write!(f, "it is an address of pod {pod}"),
            Self::Held(other) => write!(f, "it is an address of {other}"),
            Self::PodRange => f.write_str("it is in a node's podCIDR"),
            Self::Contested(pod) => write!(f, "pod {pod} claims it too, so it counts for neither"),
        }
    }
}

/// Pods by claimed address on a secondary network.
#[derive(Clone, Debug, Default)]
pub(super) struct SecondaryClaims(BTreeMap<IpAddr, Vec<Arc<Pod>>>);

impl SecondaryClaims {
    /// Adds the claims of a pod.
    pub(super) fn add(&mut self, pod: &Arc<Pod>) {
        for address in pod.secondary_addresses() {
            let claimants = self.0.entry(address).or_default();
            // A pod may claim the same address for two of its interfaces.
            if !claimants.iter().any(|other| Arc::ptr_eq(other, pod)) {
                claimants.push(Arc::clone(pod));
            }
        }
    }

    /// Removes the claims of a pod; it must be the same `Arc` that was added.
    pub(super) fn remove(&mut self, pod: &Arc<Pod>) {
        for address in pod.secondary_addresses() {
            if let Some(claimants) = self.0.get_mut(&address) {
                claimants.retain(|other| !Arc::ptr_eq(other, pod));
                if claimants.is_empty() {
                    self.0.remove(&address);
                }
            }
        }
    }

    /// Returns the only pod that claims an address. Terminating pods count only without a claimant that is not
    /// terminating.
    pub(super) fn only(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        let claimants = self.0.get(&address)?;
        let stay = || claimants.iter().filter(|pod| !pod.terminating);
        match stay().count() {
            0 => claimants.first().filter(|_| claimants.len() == 1),
            1 => stay().next(),
            _ => None,
        }
    }

    /// Whether a pod claims an address.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.0.contains_key(&address)
    }

    /// Returns the claimed addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.0.keys().copied()
    }

    /// Returns the pods that claim an address.
    pub(super) fn pods_at(&self, address: IpAddr) -> impl Iterator<Item = &Arc<Pod>> {
        self.0.get(&address).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Cluster;
    use crate::model::{Change, Node, SecondaryInterface, Service};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn pod(name: &str, second: &[&str]) -> Pod {
        let addresses = second.iter().map(|address| ip(address)).collect();
        let interface = SecondaryInterface { addresses, ..SecondaryInterface::default() };
        let key = Key::new("x", name);
        Pod { uid: name.to_owned(), key, secondary: vec![interface], ..Pod::default() }
    }

    fn owner(changes: &[Change], address: &str) -> Option<String> {
        let cluster: Cluster = changes.iter().cloned().collect();
        cluster.owner(ip(address)).map(|pod| pod.key.name.clone())
    }

    #[test]
    fn an_address_belongs_to_the_only_pod_that_claims_it() {
        let (a, b) = (pod("a", &["192.168.0.1", "fd00::1"]), pod("b", &["192.168.0.1"]));
        let one = [Change::Pod(a.clone())];
        assert_eq!(owner(&one, "192.168.0.1").as_deref(), Some("a"));
        assert_eq!(owner(&one, "fd00::1").as_deref(), Some("a"));
        let both = [Change::Pod(a.clone()), Change::Pod(b.clone())];
        assert_eq!(owner(&both, "192.168.0.1"), None);
        let cluster: Cluster = both.iter().cloned().collect();
        let contested = Some(ClaimRefusal::Contested(b.key.clone()));
        assert_eq!(cluster.refused(&a, ip("192.168.0.1")), contested);
        assert_eq!(cluster.refused(&a, ip("fd00::1")), None);
        let leaving = Pod { terminating: true, ..a.clone() };
        let both = [Change::Pod(leaving.clone()), Change::Pod(b.clone())];
        assert_eq!(owner(&both, "192.168.0.1").as_deref(), Some("b"));
        assert_eq!(owner(&[Change::Pod(leaving)], "192.168.0.1").as_deref(), Some("a"));
        let over = Pod { finished: true, ..a.clone() };
        assert_eq!(
            owner(&[Change::Pod(over), Change::Pod(b)], "192.168.0.1").as_deref(),
            Some("b")
        );
        let gone = [Change::Pod(a.clone()), Change::PodGone(a.key)];
        assert_eq!(owner(&gone, "192.168.0.1"), None);
    }

    #[test]
    fn an_address_of_the_status_is_no_claim() {
        let repeating = Pod { addresses: vec![ip("192.168.0.1")], ..pod("a", &["192.168.0.1"]) };
        let cluster: Cluster = [Change::Pod(repeating.clone())].into_iter().collect();
        assert_eq!(cluster.refused(&repeating, ip("192.168.0.1")), None);
        assert_eq!(cluster.secondary_addresses(&repeating).count(), 0);
        assert_eq!(owner(&[Change::Pod(repeating.clone())], "192.168.0.1").as_deref(), Some("a"));
        // The annotation still has an address, so policy covers the interface.
        assert_eq!(repeating.secondary_addresses().count(), 1);
        // The pod as bound to a veth has the addresses of its CNI result alone, and may not send from the status' address
        // at another interface.
        let bound = Pod { addresses: Vec::new(), ..repeating };
        assert_eq!(cluster.secondary_addresses(&bound).count(), 0);
    }

    #[test]
    fn an_address_of_another_object_cannot_be_claimed() {
        let address = "192.168.0.1";
        let claims = Change::Pod(pod("a", &[address, "8.8.8.8"]));
        let has = Pod { secondary: Vec::new(), addresses: vec![ip(address)], ..pod("b", &[]) };
        let node = Node { name: "n".to_owned(), addresses: vec![ip(address)], ..Node::default() };
        let service = Service {
            key: Key::new("x", "web"),
            addresses: vec![ip(address)],
            cluster: vec![ip(address)],
            ports: Vec::new(),
            networks: Vec::new(),
            beyond: Vec::new(),
            unserved: false,
        };
        let range = vec!["192.168.0.0/24".parse().unwrap()];
        let of_pods = Node { name: "m".to_owned(), pod_ranges: range, ..Node::default() };
        let host = Pod { host_network: true, ..has.clone() };
        for (other, expected) in [
            (Change::Pod(has), Some("b")),
            (Change::Pod(host), None),
            (Change::Node(node), None),
            (Change::Service(service), None),
            (Change::Node(of_pods), None),
            (Change::OwnAddresses(vec![ip(address)]), None),
        ] {
            for changes in [[claims.clone(), other.clone()], [other.clone(), claims.clone()]] {
                assert_eq!(owner(&changes, address).as_deref(), expected, "{other:?}");
            }
        }
        assert_eq!(owner(&[claims], "8.8.8.8"), None, "not a private address");
    }
}
