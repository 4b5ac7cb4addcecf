//! Binds each veth to a pod, once for the life of the veth, by evidence that the pod cannot write.
//!
//! Evidence, the strongest first:
//! - The node names the pod: the CNI plugin's result lists the veth, or a host route leads to the pod's address through
//!   it.
//! - Where neither exists (bridges without kept results), the first addresses seen inside the veth's namespace bind an
//!   unbound veth to an unbound pod.
//! - A further veth of a namespace with a bound veth belongs to the same pod. Where CNI results are kept for the pod, a
//!   result or a host route must name the further veth, or it is denied.
//!
//! The hardware address from which the pod's frames must come is the one in the CNI result, else the one seen inside
//! when the veth was bound first.
//!
//! A binding ends with the veth, when the node names another pod and the binding rests on weaker evidence, or when the
//! pod is gone from the API and the node names another one. Later changes inside the namespace never move a binding;
//! they are reported as problems. So this is the only part of the core with a history; the compiler sees only its
//! result.

mod claims;
mod problems;
mod veth;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::model::{Bound, Change, Interface, InterfaceOwner, Key, Pod, Standing, uid_hash};
use claims::VethClaims;
use veth::{Binding, HeldVeth, Proof, as_judged, is_mirrored};

pub use problems::BindingProblem;
pub use veth::{CniResult, Inherited, Veth, mirrored_uid};

/// All veths and their pods.
#[derive(Debug, Default)]
pub struct Bindings {
    claims: VethClaims,
    inherited: BTreeMap<u32, Inherited>,
    remembered: Vec<Arc<Pod>>,
    gone: Vec<u32>,
    stale: bool,
}

impl Bindings {
    /// Sets the bindings of an earlier agent, by interface index, and the pods of this node which that agent knew, in
    /// case the API no longer lists them. Must be called before any other method.
    pub fn inherit(&mut self, bound: BTreeMap<u32, Inherited>, remembered: Vec<Pod>) {
        self.inherited = bound;
        self.remembered = remembered.into_iter().map(Arc::new).collect();
    }

    /// Adds a veth, or replaces its attributes.
    pub fn set_veth(&mut self, veth: Veth) {
        self.stale = true;
        let before = self.claims.veths.remove(&veth.index);
        let same = before.filter(|held| held.veth.incarnation == veth.incarnation);
        let mut held = same.unwrap_or_else(|| HeldVeth {
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

    /// Removes a veth.
    pub fn remove_veth(&mut self, index: u32) {
        self.stale = true;
        self.inherited.remove(&index);
        self.gone.extend(self.claims.veths.remove(&index).map(|held| held.veth.index));
    }

    /// Replaces all CNI results; sorted by write time, the latest last.
    pub fn set_cni_results(&mut self, results: Vec<CniResult>) {
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

    /// Marks the bindings stale if the change can affect them; called before or after the cluster applies it.
    pub fn mark_stale(&mut self, change: &Change, cluster: &Cluster) {
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

    /// Whether a deleted pod is still bound, so that its address may pass to another pod.
    fn any_deleted(&self) -> bool {
        let mut bindings = self.claims.veths.values().filter_map(|held| held.binding.as_ref());
        bindings.any(|binding| binding.bound.standing == Standing::Deleted)
    }

    /// Binds veths by all known evidence; returns the changes of interfaces since the last call.
    pub fn bind_veths(&mut self, cluster: &Cluster) -> Vec<Change> {
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
        let owners: Vec<(u32, InterfaceOwner)> = self
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

    /// Pods gone from the API that still have a veth, in their last known state.
    pub fn deleted(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let bindings = self.claims.veths.values().filter_map(|held| held.binding.as_ref());
        let own = bindings.map(|binding| &binding.bound).filter(|bound| !bound.is_secondary);
        own.filter(|bound| bound.standing == Standing::Deleted).map(|bound| &bound.pod)
    }

    /// The further veths of pods.
    pub fn secondary(&self) -> impl Iterator<Item = (&Veth, &Bound)> {
        let bound = self.claims.veths.values();
        let bound = bound.filter_map(|held| Some((&held.veth, &held.binding.as_ref()?.bound)));
        bound.filter(|(_, bound)| bound.is_secondary)
    }

    /// Restores the bindings of an earlier agent to the same pods.
    fn recognise(&mut self, cluster: &Cluster) {
        if self.claims.veths.values().all(|held| held.inherited.is_none()) {
            return;
        }
        let here = |pod: &&Arc<Pod>| pod.node == cluster.node_name() && !pod.host_network;
        let listed: Vec<&Arc<Pod>> = cluster.pods().values().filter(here).collect();
        for held in self.claims.veths.values_mut() {
            let Some(Inherited { uid_hash: hash, .. }) = held.inherited.take() else { continue };
            // Users can forge the annotation behind a mirrored uid, and the hash is not secret: the mirror of a static
            // pod counts only if a CNI result on this node names the pod.
            let is_it = |pod: &&Arc<Pod>| {
                uid_hash(&pod.uid) == hash
                    && (!is_mirrored(pod)
                        || self.claims.results.iter().any(|result| result.is_of(pod)))
            };
            let known = listed.iter().copied().chain(&self.remembered).find(is_it);
            let bound = known.map(|pod| {
                let (pod, standing) = as_judged(pod);
                Bound { pod, standing, is_secondary: false, station: None }
            });
            held.lost = bound.is_none();
            held.binding = bound.map(|bound| Binding { bound, by: Proof::Inside });
        }
        self.separate();
    }

    /// Picks the primary veth of each pod to which an earlier agent had bound several: one that a host route or a CNI
    /// result names, else one with the pod's addresses inside, else the lowest index.
    fn separate(&mut self) {
        let mut own: BTreeMap<(Key, String), (u8, u32)> = BTreeMap::new();
        let rank = |held: &HeldVeth, pod: &Pod| {
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
            let Some(pod) = bound.filter(|bound| !bound.is_secondary).map(|b| &b.pod) else {
                continue;
            };
            let this = (rank(held, pod), held.veth.index);
            let best = own.entry((pod.key.clone(), pod.uid.clone())).or_insert(this);
            *best = this.min(*best);
        }
        for held in self.claims.veths.values_mut().filter(|held| held.told.is_none()) {
            let Some(binding) = &mut held.binding else { continue };
            let pod = &binding.bound.pod;
            let first = own.get(&(pod.key.clone(), pod.uid.clone()));
            binding.bound.is_secondary = first.is_some_and(|(_, index)| *index != held.veth.index);
        }
    }

    /// Problems of all bindings, as of the last [`Bindings::bind_veths`].
    #[must_use]
    pub fn problems(&self, cluster: &Cluster) -> Vec<BindingProblem> {
        problems::of_claims(&self.claims, cluster)
    }
}

#[cfg(test)]
mod tests;
