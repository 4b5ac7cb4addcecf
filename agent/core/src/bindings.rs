//! Which pod a veth belongs to: decided once, for the veth's life, by what the pod cannot write.
//!
//! In the order of their weight:
//! - the node says so: the CNI plugin's result names the veth, or a host route leads to the pod's
//!   address through it;
//! - where neither does (bridges without kept results), the first addresses that were seen behind
//!   the veth: a veth that is bound to nobody is bound to a pod that no veth is bound to;
//! - a further veth of a namespace whose pod is known belongs to that pod. Where the answers of CNI plugins are kept,
//!   one has to name it, or a route of the node: else it is denied.
//!
//! The hardware address that the pod's frames come from is settled with the first binding: the CNI plugin's, else what
//! was behind the veth then.
//!
//! A veth leaves its pod only when it ends, when the node says that it is another's while its own
//! binding is of less weight, or when its pod is gone from the API and the node says that it is
//! another's. What happens inside the namespace later changes nothing and is a problem to report. So
//! this is the one part of the core that has a history; the compiler sees only what came of it.

mod claims;
mod problems;
mod veth;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::model::{Bound, Change, Interface, Key, Owner, Pod, Standing, uid_hash};
use claims::Claims;
use veth::{Binding, Held, Proof, as_judged, is_mirrored};

pub use problems::Problem;
pub use veth::{CniResult, Inherited, Veth, mirrored_uid};

/// All veths and their pods.
#[derive(Debug, Default)]
pub struct Bindings {
    claims: Claims,
    inherited: BTreeMap<u32, Inherited>,
    remembered: Vec<Arc<Pod>>,
    gone: Vec<u32>,
    stale: bool,
}

impl Bindings {
    /// Before all: what an earlier agent had bound, for veths that have been there since, by index;
    /// and the pods of this node that it knew, in case the API has them no more.
    pub fn inherit(&mut self, bound: BTreeMap<u32, Inherited>, remembered: Vec<Pod>) {
        self.inherited = bound;
        self.remembered = remembered.into_iter().map(Arc::new).collect();
    }

    /// A veth now is this.
    pub fn veth_is(&mut self, veth: Veth) {
        self.stale = true;
        let before = self.claims.veths.remove(&veth.index);
        let same = before.filter(|held| held.veth.incarnation == veth.incarnation);
        let mut held = same.unwrap_or_else(|| Held {
            first: Vec::new(),
            binding: None,
            station: self.inherited.get(&veth.index).and_then(|it| it.station),
            inherited: self.inherited.remove(&veth.index),
            lost: false,
            told: None,
            veth: Veth::default(),
        });
        let is_bound = held.inherited.is_some() || held.lost || held.binding.is_some();
        if held.first.is_empty() && !is_bound {
            held.first.clone_from(&veth.inside);
        }
        held.veth = veth;
        self.claims.veths.insert(held.veth.index, held);
    }

    /// A veth is gone.
    pub fn veth_gone(&mut self, index: u32) {
        self.stale = true;
        self.inherited.remove(&index);
        self.gone.extend(self.claims.veths.remove(&index).map(|held| held.veth.index));
    }

    /// What CNI plugins reported, all that is kept now, the last written last.
    pub fn cni_results_are(&mut self, results: Vec<CniResult>) {
        let (further, results): (Vec<_>, Vec<_>) = results.into_iter().partition(|it| it.further);
        let named =
            further.iter().flat_map(|a| a.interfaces.iter().map(|i| (i.clone(), a.clone())));
        let further: BTreeMap<String, CniResult> = named.collect();
        self.stale |= self.claims.results != results || self.claims.further != further;
        self.claims.further = further;
        let places = results.iter().enumerate();
        let named =
            places.flat_map(|(place, a)| a.interfaces.iter().map(move |i| (i.clone(), place)));
        self.claims.naming = named.collect();
        self.claims.results = results;
    }

    /// The cluster's state changes, or is about to.
    pub fn note(&mut self, change: &Change, cluster: &Cluster) {
        let is_local = |pod: &Pod| pod.node == cluster.node_name();
        let before = |key| cluster.pods().get(key).is_some_and(|pod| is_local(pod));
        self.stale |= match change {
            Change::Pod(pod) => is_local(pod) || before(&pod.key) || self.any_deleted(),
            Change::PodGone(key) => before(key) || self.any_deleted(),
            Change::Namespace(_)
            | Change::NamespaceGone(_)
            | Change::Node(_)
            | Change::NodeGone(_)
            | Change::Policy(_)
            | Change::PolicyGone(_)
            | Change::ClusterPolicy(_)
            | Change::ClusterPolicyGone(_)
            | Change::Service(_)
            | Change::ServiceGone(_)
            | Change::EndpointSlice(_)
            | Change::EndpointSliceGone(_)
            | Change::Interface(_)
            | Change::InterfaceGone(_)
            | Change::OwnAddresses(_) => false,
        };
    }

    /// Whether an address of a pod that is gone may become another's.
    fn any_deleted(&self) -> bool {
        let mut bindings = self.claims.veths.values().filter_map(|held| held.binding.as_ref());
        bindings.any(|binding| binding.bound.standing == Standing::Deleted)
    }

    /// Decides, given everything that is known: the changes of interfaces since the last time.
    pub fn settle(&mut self, cluster: &Cluster) -> Vec<Change> {
        if !std::mem::take(&mut self.stale) {
            return Vec::new();
        }
        self.recognise(cluster);
        self.claims.refresh(cluster);
        self.claims.bind_by_the_node(cluster);
        self.claims.bind_by_first_addresses(cluster);
        self.claims.bind_by_namespace();
        self.claims.settle_stations();
        let gone = std::mem::take(&mut self.gone).into_iter().map(Change::InterfaceGone);
        let mut changes: Vec<Change> = gone.collect();
        let owners: Vec<(u32, Owner)> = self
            .claims
            .veths
            .values()
            .map(|held| (held.veth.index, self.claims.owner(held, cluster)))
            .collect();
        for (index, owner) in owners {
            let Some(held) = self.claims.veths.get_mut(&index) else { continue };
            let incarnation = held.veth.incarnation;
            let now = Interface { index, incarnation, addresses: Vec::new(), owner };
            if held.told.as_ref() != Some(&now) {
                held.told = Some(now.clone());
                changes.push(Change::Interface(now));
            }
        }
        changes
    }

    /// The pods that are gone from the API while their veths are there, as they were known last.
    pub fn deleted(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let bindings = self.claims.veths.values().filter_map(|held| held.binding.as_ref());
        let own = bindings.map(|binding| &binding.bound).filter(|bound| !bound.second);
        own.filter(|bound| bound.standing == Standing::Deleted).map(|bound| &bound.pod)
    }

    /// The further veths of pods.
    pub fn second(&self) -> impl Iterator<Item = (&Veth, &Bound)> {
        let bound = self.claims.veths.values();
        let bound = bound.filter_map(|held| Some((&held.veth, &held.binding.as_ref()?.bound)));
        bound.filter(|(_, bound)| bound.second)
    }

    /// Binds what an earlier agent had bound to the same pods.
    fn recognise(&mut self, cluster: &Cluster) {
        if self.claims.veths.values().all(|held| held.inherited.is_none()) {
            return;
        }
        let here = |pod: &&Arc<Pod>| pod.node == cluster.node_name() && !pod.host_network;
        let listed: Vec<&Arc<Pod>> = cluster.pods().values().filter(here).collect();
        for held in self.claims.veths.values_mut() {
            let Some(Inherited { uid_hash: hash, .. }) = held.inherited.take() else { continue };
            // Anybody may write an annotation that makes a uid, and the hash is no secret: the image of
            // a static pod counts if the node has that pod.
            let is_it = |pod: &&Arc<Pod>| {
                uid_hash(&pod.uid) == hash
                    && (!is_mirrored(pod)
                        || self.claims.results.iter().any(|result| result.is_of(pod)))
            };
            let known = listed.iter().copied().chain(&self.remembered).find(is_it);
            let bound = known.map(|pod| {
                let (pod, standing) = as_judged(pod);
                Bound { pod, standing, second: false, station: None }
            });
            held.lost = bound.is_none();
            held.binding = bound.map(|bound| Binding { bound, by: Proof::Inside });
        }
        self.separate();
    }

    /// Of several veths that an earlier agent had bound to one pod, the one that a route or a result
    /// names is its own, else the one with its addresses inside, else the first.
    fn separate(&mut self) {
        let mut own: BTreeMap<(Key, String), (u8, u32)> = BTreeMap::new();
        let rank = |held: &Held, pod: &Pod| {
            let has = |addresses: &[IpAddr]| pod.addresses.iter().any(|a| addresses.contains(a));
            let named = |a: &CniResult| a.is_of(pod) && a.interfaces.contains(&held.veth.name);
            match () {
                () if held.told.is_some() => 0,
                () if self.claims.results.iter().any(named) || has(&held.veth.routed) => 1,
                () if has(&held.veth.inside) => 2,
                () => 3,
            }
        };
        for held in self.claims.veths.values() {
            let bound = held.binding.as_ref().map(|binding| &binding.bound);
            let Some(pod) = bound.filter(|bound| !bound.second).map(|b| &b.pod) else { continue };
            let this = (rank(held, pod), held.veth.index);
            let best = own.entry((pod.key.clone(), pod.uid.clone())).or_insert(this);
            *best = this.min(*best);
        }
        for held in self.claims.veths.values_mut().filter(|held| held.told.is_none()) {
            let Some(binding) = &mut held.binding else { continue };
            let pod = &binding.bound.pod;
            let first = own.get(&(pod.key.clone(), pod.uid.clone()));
            binding.bound.second = first.is_some_and(|(_, index)| *index != held.veth.index);
        }
    }

    /// What is not as it should be, as of the last [`Bindings::settle`].
    #[must_use]
    pub fn problems(&self, cluster: &Cluster) -> Vec<Problem> {
        problems::of_claims(&self.claims, cluster)
    }
}

#[cfg(test)]
mod tests;
