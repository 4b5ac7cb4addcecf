//! Addresses of the cluster's pods, for the webhook.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

/// Number of pods per pod address, without pods that use their node's address.
#[derive(Debug, Default)]
pub(super) struct PodAddresses(RwLock<HashMap<IpAddr, usize>>);

impl PodAddresses {
    /// Replaces the addresses of a pod.
    pub(super) fn change(&self, before: &[IpAddr], after: &[IpAddr]) {
        let mut counts = self.0.write().unwrap_or_else(PoisonError::into_inner);
        after.iter().for_each(|address| *counts.entry(*address).or_default() += 1);
        for address in before {
            if let Some(count) = counts.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(address);
                }
            }
        }
    }

    /// Returns whether a pod has the address.
    pub(super) fn contain(&self, address: IpAddr) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(&address)
    }
}
