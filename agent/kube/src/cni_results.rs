//! Addresses of this node's pods before the API server has them.
//!
//! The kubelet writes a pod's addresses into its status after creating the sandbox, often after the containers run, and
//! not at all while the API server is away. A container runtime has them earlier: libcni stores the results of the CNI
//! plugins before the first container starts. A pod of this node without an address in its status gets the addresses
//! of that result; once the status has some, the status alone counts.
//!
//! The addresses on further networks that a pod of this node claims count only if a result contains them, provided that
//! results are stored for the pod: anyone who may write the pod may write the annotation.

pub mod cache;
pub mod static_pods;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_core::model::{Change, Key, Pod, SecondaryInterface};

use cache::CniResult;

/// This node's pods, and their CNI results.
#[derive(Debug)]
pub struct CniAddresses {
    node: String,
    results: Vec<CniResult>,
    /// Pods as the source reports them.
    pods: BTreeMap<Key, Pod>,
    /// Pods of the last good state that the source has not mentioned yet. Their addresses may be from before a boot, so
    /// a result takes precedence.
    kept: BTreeSet<Key>,
    /// Addresses from results, for pods that lack them in the status.
    given: BTreeMap<Key, Vec<IpAddr>>,
    /// Further interfaces with proven addresses, in place of the annotation's.
    proven: BTreeMap<Key, Vec<SecondaryInterface>>,
}

/// Values that replace the ones of the objects.
#[derive(Debug)]
struct ReplacedValues {
    addresses: BTreeMap<Key, Vec<IpAddr>>,
    secondary: BTreeMap<Key, Vec<SecondaryInterface>>,
}

impl CniAddresses {
    /// Creates the addresses of the node of this name.
    #[must_use]
    pub fn new(node: String) -> Self {
        Self {
            node,
            results: Vec::new(),
            pods: BTreeMap::new(),
            kept: BTreeSet::new(),
            given: BTreeMap::new(),
            proven: BTreeMap::new(),
        }
    }

    /// Takes in the last good state, before the first batch of the source.
    pub fn restored(&mut self, objects: &[Change]) {
        for object in objects {
            if let Change::Pod(pod) = object
                && pod.node == self.node
                && !pod.host_network
            {
                self.kept.insert(pod.key.clone());
                self.pods.insert(pod.key.clone(), pod.clone());
            }
        }
    }

    /// Completes the pods in a source's changes, and adds other pods with addresses that change as a result.
    pub fn complete(&mut self, changes: &mut Vec<Change>) {
        let mut said = BTreeSet::new();
        for change in &*changes {
            if let Change::Pod(Pod { key, .. }) | Change::PodGone(key) = change {
                self.kept.remove(key);
            }
            if let Change::Pod(pod) = change
                && pod.node == self.node
                && !pod.host_network
            {
                self.pods.insert(pod.key.clone(), pod.clone());
                said.insert(pod.key.clone());
            } else if let Change::Pod(Pod { key, .. }) | Change::PodGone(key) = change {
                self.pods.remove(key);
            }
        }
        let before = self.recompute();
        for change in changes.iter_mut() {
            if let Change::Pod(pod) = change
                && let Some(addresses) = self.given.get(&pod.key)
            {
                pod.addresses.clone_from(addresses);
            }
            if let Change::Pod(pod) = change
                && let Some(second) = self.proven.get(&pod.key)
            {
                pod.secondary.clone_from(second);
            }
        }
        changes
            .extend(self.changed(&before).filter(|pod| !said.contains(&pod.key)).map(Change::Pod));
    }

    /// Replaces all results; returns the pods that change as a result.
    pub fn set_results(&mut self, results: Vec<CniResult>) -> Vec<Change> {
        self.results = results;
        let before = self.recompute();
        self.changed(&before).map(Change::Pod).collect()
    }

    /// Recomputes all replacements; returns the previous ones.
    fn recompute(&mut self) -> ReplacedValues {
        let second = self.prove();
        ReplacedValues { addresses: self.give_addresses(), secondary: second }
    }

    /// Recomputes the proven addresses on further networks; returns the previous ones.
    fn prove(&mut self) -> BTreeMap<Key, Vec<SecondaryInterface>> {
        let claiming = self.pods.values().filter(|pod| !pod.secondary.is_empty());
        let proven = claiming.filter_map(|pod| {
            let mut results = self.results.iter().filter(|result| result.is_of(pod)).peekable();
            results.peek()?;
            let further = results.filter(|result| result.further);
            let answered: BTreeSet<IpAddr> =
                further.flat_map(|result| result.addresses.iter().copied()).collect();
            let mut second = pod.secondary.clone();
            for interface in &mut second {
                interface.addresses.retain(|address| answered.contains(address));
            }
            (second != pod.secondary).then(|| (pod.key.clone(), second))
        });
        let proven = proven.collect();
        std::mem::replace(&mut self.proven, proven)
    }

    /// Recomputes the addresses from results; returns the previous ones.
    fn give_addresses(&mut self) -> BTreeMap<Key, Vec<IpAddr>> {
        let taken: BTreeSet<IpAddr> = self
            .pods
            .values()
            .filter(|pod| !pod.finished && !pod.terminating && !self.kept.contains(&pod.key))
            .flat_map(|pod| pod.addresses.iter().copied())
            .collect();
        let waiting = self.pods.values().filter(|pod| {
            !pod.finished && (pod.addresses.is_empty() || self.kept.contains(&pod.key))
        });
        let given = waiting.filter_map(|pod| {
            // The last result counts: a failed sandbox is created again.
            let own = self.results.iter().rev().filter(|result| !result.further);
            let result = own.into_iter().find(|result| result.is_of(pod))?;
            // A stale result does not take away another pod's address.
            let free = result.addresses.iter().all(|address| !taken.contains(address));
            free.then(|| (pod.key.clone(), result.addresses.clone()))
        });
        let mut given: BTreeMap<Key, Vec<IpAddr>> = given.collect();
        // An address from before the boot belongs to another pod now.
        let now: BTreeSet<IpAddr> = given.values().flatten().copied().collect();
        let stale = self.kept.iter().filter(|key| {
            !given.contains_key(*key)
                && self.pods.get(*key).is_some_and(|p| p.addresses.iter().any(|a| now.contains(a)))
        });
        let stale: Vec<Key> = stale.cloned().collect();
        given.extend(stale.into_iter().map(|key| (key, Vec::new())));
        std::mem::replace(&mut self.given, given)
    }

    /// Returns the pods with addresses or further interfaces that differ from before.
    fn changed<'a>(&'a self, before: &'a ReplacedValues) -> impl Iterator<Item = Pod> + 'a {
        let differs = |pod: &&Pod| {
            before.addresses.get(&pod.key) != self.given.get(&pod.key)
                || before.secondary.get(&pod.key) != self.proven.get(&pod.key)
        };
        self.pods.values().filter(differs).map(|pod| {
            let addresses = self.given.get(&pod.key).unwrap_or(&pod.addresses).clone();
            let second = self.proven.get(&pod.key).unwrap_or(&pod.secondary).clone();
            Pod { addresses, secondary: second, ..pod.clone() }
        })
    }
}

#[cfg(test)]
mod tests;
