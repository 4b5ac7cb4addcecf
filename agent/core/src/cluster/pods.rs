//! Pods, and which of them has an address.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::cluster::label_groups::PodsByLabels;
use crate::cluster::small_vec::SmallVec;
use crate::model::{Key, Pod};

/// Every pod.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    by_key: BTreeMap<Key, Arc<Pod>>,
    /// The same pods, but for those that policy ignores.
    by_labels: PodsByLabels,
    /// Pods that claim an address.
    claims: HashMap<IpAddr, SmallVec<Arc<Pod>>>,
    /// Addresses that several pods claim.
    contested: BTreeSet<IpAddr>,
}

impl Pods {
    /// Pods by key.
    pub(super) fn by_key(&self) -> &BTreeMap<Key, Arc<Pod>> {
        &self.by_key
    }

    /// The pods that policy does not ignore, by namespace and labels.
    pub(crate) fn by_labels(&self) -> &PodsByLabels {
        &self.by_labels
    }

    /// The pod that has an address, as [`Pod::created`] says.
    pub(super) fn owner(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        self.claims.get(&address)?.iter().max_by_key(|pod| precedence(pod))
    }

    /// Whether several pods claim an address.
    pub(crate) fn is_contested(&self, address: IpAddr) -> bool {
        self.contested.contains(&address)
    }

    /// The pods that claim an address.
    pub(crate) fn claimants(&self, address: IpAddr) -> impl Iterator<Item = &Arc<Pod>> {
        self.claims.get(&address).into_iter().flat_map(SmallVec::iter)
    }

    /// A pod now is this, or is gone. Returns what it was.
    pub(super) fn set(&mut self, key: &Key, new: Option<&Arc<Pod>>) -> Option<Arc<Pod>> {
        let old = self.by_key.get(key).cloned();
        if let Some(pod) = old.as_ref().filter(|pod| is_subject(pod)) {
            self.by_labels.remove(pod);
            self.unclaim(pod);
        }
        match new {
            Some(pod) => {
                if is_subject(pod) {
                    self.by_labels.add(pod);
                    self.claim(pod);
                }
                self.by_key.insert(key.clone(), pod.clone());
            }
            None => drop(self.by_key.remove(key)),
        }
        old
    }

    fn claim(&mut self, pod: &Arc<Pod>) {
        for address in &pod.addresses {
            let claims = self.claims.entry(*address);
            let more = claims.and_modify(|pods| {
                pods.push(pod.clone());
                self.contested.insert(*address);
            });
            more.or_insert_with(|| SmallVec::one(pod.clone()));
        }
    }

    fn unclaim(&mut self, pod: &Pod) {
        for address in &pod.addresses {
            let Some(pods) = self.claims.get_mut(address) else { continue };
            if pods.remove(|claimant| claimant.key == pod.key) {
                self.claims.remove(address);
            } else if pods.is_one() {
                self.contested.remove(address);
            }
        }
    }
}

/// Of several pods that claim an address, the greatest has it: see [`Pod::created`].
pub(crate) fn precedence(pod: &Pod) -> impl Ord + use<'_> {
    (Reverse(pod.terminating), pod.created, &pod.key)
}

/// Whether policy can select a pod or match it as a peer.
#[must_use]
pub fn is_subject(pod: &Pod) -> bool {
    !pod.host_network && !pod.finished
}
