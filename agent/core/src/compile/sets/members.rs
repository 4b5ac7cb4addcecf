//! Finds the peer sets of an address by its owner: a pod, a node or this node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashSet;

use crate::cluster::{Cluster, LabelGroup, is_subject};
use crate::compile::sets::registry::Registry;
use crate::compile::sets::selector_index::{PodSelectors, matching, selecting};
use crate::compile::sets::set::{Membership, NameId, OWN_NODE, PeerSet, SetId};
use crate::model::{Pod, Protocol, Selector};

/// The peer sets in use, and an index to find those of a pod.
#[derive(Debug, Default)]
pub(crate) struct PeerSets {
    pub(crate) registry: Registry,
    selectors: PodSelectors,
    /// Peer sets of nodes.
    nodes: BTreeSet<SetId>,
}

impl PeerSets {
    /// Adds a user of a peer set; true if it is the first.
    pub(crate) fn acquire(&mut self, id: SetId) -> bool {
        let is_first = self.registry.acquire(id);
        if let Some(peer_set) = self.registry.peer_set(id).filter(|_| is_first) {
            self.selectors.add(id, peer_set);
            if matches!(peer_set, PeerSet::Nodes(_)) {
                self.nodes.insert(id);
            }
        }
        is_first
    }

    /// Drops a user of a peer set; true if it was the last.
    pub(crate) fn release(&mut self, id: SetId) -> bool {
        let was_last = self.registry.release(id);
        if let Some(peer_set) = self.registry.peer_set(id).filter(|_| was_last) {
            self.selectors.remove(id, peer_set);
            self.nodes.remove(&id);
        }
        was_last
    }

    /// Drops peer sets without users.
    pub(crate) fn sweep(&mut self) {
        self.registry.sweep();
        self.selectors.sweep();
    }

    /// Drops state derived from namespace labels, which have changed.
    pub(crate) fn namespaces_changed(&mut self) {
        self.selectors.forget();
    }

    /// Peer sets of an address by its owner, without block groups.
    pub(crate) fn of_address(&mut self, cluster: &Cluster, address: IpAddr) -> Membership {
        let mut peer_sets = Vec::new();
        if cluster.is_own_node(address) && self.registry.is_used(OWN_NODE) {
            peer_sets.push(OWN_NODE);
        }
        if !self.nodes.is_empty() && cluster.nodes.is_listed(address) {
            peer_sets.extend(self.nodes.iter().filter(|id| {
                matches!(self.registry.peer_set(**id),
                    Some(PeerSet::Nodes(nodes)) if cluster.nodes.is_selected(nodes, address))
            }));
        }
        if let Some(pod) = cluster.owner(address) {
            let candidates = self.selectors.candidates(cluster, &pod.key.namespace, &self.registry);
            peer_sets.extend(selecting(&self.registry, &candidates, &pod.labels));
            self.registry.ports_of(pod, &mut peer_sets);
        }
        peer_sets.sort_unstable();
        peer_sets.dedup();
        peer_sets.into()
    }

    /// Peer sets of an address of one of [`PeerSets::members`].
    pub(crate) fn of_member(
        &mut self,
        cluster: &Cluster,
        address: IpAddr,
        of_labels: &Membership,
    ) -> Membership {
        // The address has no other owner, so only the labels count.
        if !self.registry.has_names()
            && !cluster.pods.is_contested(address)
            && !cluster.pods.is_claimed_second(address)
            && !cluster.is_own_node(address)
            && (self.nodes.is_empty() || !cluster.nodes.is_listed(address))
        {
            return of_labels.clone();
        }
        self.of_address(cluster, address)
    }

    /// The pods that these peer sets select, each group with all peer sets in use that select it.
    pub(crate) fn members<'a>(
        &mut self,
        cluster: &'a Cluster,
        ids: &[SetId],
    ) -> Vec<(&'a LabelGroup, Membership)> {
        let mut own: BTreeMap<String, Vec<SetId>> = BTreeMap::new();
        let mut any: BTreeMap<Selector, BTreeSet<SetId>> = BTreeMap::new();
        for id in ids {
            match self.registry.peer_set(*id) {
                Some(PeerSet::PodsIn(namespace, _)) => {
                    own.entry(namespace.clone()).or_default().push(*id);
                }
                Some(PeerSet::Pods(namespaces, _)) => {
                    any.entry(namespaces.clone()).or_default().insert(*id);
                }
                _ => {}
            }
        }
        let pods_by_labels = cluster.pods.by_labels();
        let namespaces: Vec<&str> = if any.is_empty() {
            own.keys().map(String::as_str).collect()
        } else {
            pods_by_labels.namespaces().collect()
        };
        let mut members = Vec::new();
        let mut memberships: HashSet<Membership> = HashSet::new();
        for namespace in namespaces {
            let own = own.get(namespace).into_iter().flatten();
            let ids = matching(cluster, namespace, own, &any);
            if ids.is_empty() {
                continue;
            }
            let index = self.selectors.index(ids, &self.registry);
            let candidates = self.selectors.candidates(cluster, namespace, &self.registry);
            for group in pods_by_labels.groups_in(namespace) {
                if selecting(&self.registry, &index, group.labels()).next().is_some() {
                    let mut peer_sets: Vec<SetId> =
                        selecting(&self.registry, &candidates, group.labels()).collect();
                    peer_sets.sort_unstable();
                    let equal = memberships.get_or_insert_with(&peer_sets[..], |it| it.into());
                    members.push((group, equal.clone()));
                }
            }
        }
        members
    }

    /// Addresses of pods that have a port with one of these names.
    pub(crate) fn members_of_names(&self, cluster: &Cluster, ids: &[NameId]) -> Vec<IpAddr> {
        if ids.is_empty() {
            return Vec::new();
        }
        let names: HashSet<(Protocol, &str)> = ids
            .iter()
            .filter_map(|id| self.registry.name(*id))
            .map(|(protocol, name)| (*protocol, name.as_str()))
            .collect();
        let has = |pod: &&Arc<Pod>| {
            let mut ports = pod.ports.iter();
            is_subject(pod) && ports.any(|p| names.contains(&(p.protocol, p.name.as_str())))
        };
        cluster.pods().values().filter(has).flat_map(|pod| pod.all_addresses()).collect()
    }
}
