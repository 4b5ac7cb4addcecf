//! Which addresses belong to which atoms for their own sake: as a pod's, or as the own node's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashSet;

use super::index::Index;
use super::{Atom, AtomId, Atoms, NameId, OWN_NODE};
use crate::cluster::{Cluster, Kin, is_subject};
use crate::compile::classes::Signature;
use crate::model::{Labels, Pod, Protocol, Selector};

impl Atoms {
    /// The atoms an address belongs to for its own sake (not through a block).
    pub(crate) fn of_address(&mut self, cluster: &Cluster, address: IpAddr) -> Signature {
        let mut atoms = Vec::new();
        if cluster.is_own_node(address) && self.is_used(OWN_NODE) {
            atoms.push(OWN_NODE);
        }
        if let Some(pod) = cluster.owner(address) {
            let candidates = self.candidates(cluster, &pod.key.namespace);
            atoms.extend(self.selecting(&candidates, &pod.labels));
            self.ports_of(pod, &mut atoms);
        }
        atoms.sort_unstable();
        atoms.dedup();
        atoms.into()
    }

    /// The same for an address of one of [`Atoms::members`].
    pub(crate) fn of_member(
        &mut self,
        cluster: &Cluster,
        address: IpAddr,
        of_labels: &Signature,
    ) -> Signature {
        // Nobody else has it, and nothing but the labels counts.
        if self.names.is_empty() && !cluster.is_contested(address) && !cluster.is_own_node(address)
        {
            return of_labels.clone();
        }
        self.of_address(cluster, address)
    }

    /// The pod atoms whose namespace part matches a namespace.
    fn candidates(&mut self, cluster: &Cluster, namespace: &str) -> Arc<Index> {
        if let Some(known) = self.candidates.get(namespace) {
            return known.clone();
        }
        let own = self.own_namespace.get(namespace).into_iter().flatten();
        let ids = matching(cluster, namespace, own, &self.any_namespace);
        let found = self.index(ids);
        self.candidates.insert(namespace.to_owned(), found.clone());
        found
    }

    /// The index of these pod atoms.
    fn index(&mut self, ids: Vec<AtomId>) -> Arc<Index> {
        if let Some(known) = self.indexes.get(&ids) {
            return known.clone();
        }
        let index = Arc::new(Index::new(ids.iter().filter_map(|id| match self.atom(*id) {
            Some(Atom::PodsIn(_, pods) | Atom::Pods(_, pods)) => Some((*id, pods)),
            _ => None,
        })));
        self.indexes.insert(ids, index.clone());
        index
    }

    /// The atoms of an index whose pod selector matches.
    fn selecting<'a>(
        &'a self,
        index: &'a Index,
        labels: &'a Labels,
    ) -> impl Iterator<Item = AtomId> + 'a {
        index.possible(labels).filter(|id| {
            matches!(
                self.atom(*id),
                Some(Atom::PodsIn(_, pods) | Atom::Pods(_, pods)) if pods.matches(labels)
            )
        })
    }

    /// The atoms of a pod's port names, as far as rules ask for these names.
    fn ports_of(&mut self, pod: &Pod, atoms: &mut Vec<AtomId>) {
        if self.names.is_empty() {
            return;
        }
        for port in &pod.ports {
            let key = (port.protocol, port.name.clone());
            let Some(id) = self.name_ids.get(&key).copied() else { continue };
            let Some(name) = self.names.get(&id).filter(|name| name.users != 0) else { continue };
            if let Some(id) = name.numbers.get(&port.port) {
                atoms.push(*id);
                continue;
            }
            let atom = self.intern(Atom::Named(key.0, key.1, port.port));
            self.named.insert(atom, (id, port.protocol, port.port));
            if let Some(name) = self.names.get_mut(&id) {
                name.numbers.insert(port.port, atom);
            }
            atoms.push(atom);
        }
    }

    /// The pods that some of these atoms select, each kin with all atoms in use that select it.
    pub(crate) fn members<'a>(
        &mut self,
        cluster: &'a Cluster,
        ids: &[AtomId],
    ) -> Vec<(&'a Kin, Signature)> {
        let mut own: BTreeMap<String, Vec<AtomId>> = BTreeMap::new();
        let mut any: BTreeMap<Selector, BTreeSet<AtomId>> = BTreeMap::new();
        for id in ids {
            match self.atom(*id) {
                Some(Atom::PodsIn(namespace, _)) => {
                    own.entry(namespace.clone()).or_default().push(*id);
                }
                Some(Atom::Pods(namespaces, _)) => {
                    any.entry(namespaces.clone()).or_default().insert(*id);
                }
                _ => {}
            }
        }
        let kinship = cluster.kinship();
        let namespaces: Vec<&str> = if any.is_empty() {
            own.keys().map(String::as_str).collect()
        } else {
            kinship.namespaces().collect()
        };
        let mut members = Vec::new();
        for namespace in namespaces {
            let own = own.get(namespace).into_iter().flatten();
            let ids = matching(cluster, namespace, own, &any);
            if ids.is_empty() {
                continue;
            }
            let index = self.index(ids);
            let candidates = self.candidates(cluster, namespace);
            for kin in kinship.of(namespace) {
                if self.selecting(&index, kin.labels()).next().is_some() {
                    let mut atoms: Vec<AtomId> =
                        self.selecting(&candidates, kin.labels()).collect();
                    atoms.sort_unstable();
                    members.push((kin, atoms.into()));
                }
            }
        }
        members
    }

    /// Addresses of the pods that have a port of one of these names.
    pub(crate) fn members_of_names(&self, cluster: &Cluster, ids: &[NameId]) -> Vec<IpAddr> {
        if ids.is_empty() {
            return Vec::new();
        }
        let names: HashSet<(Protocol, &str)> = ids
            .iter()
            .filter_map(|id| self.name(*id))
            .map(|(protocol, name)| (*protocol, name.as_str()))
            .collect();
        let has = |pod: &&Arc<Pod>| {
            let mut ports = pod.ports.iter();
            is_subject(pod) && ports.any(|p| names.contains(&(p.protocol, p.name.as_str())))
        };
        cluster.pods().values().filter(has).flat_map(|pod| pod.addresses.iter().copied()).collect()
    }
}

/// Those of the pod atoms whose namespace part matches a namespace, in order: its own, and those of
/// the selectors that match its labels.
fn matching<'a>(
    cluster: &Cluster,
    namespace: &str,
    own: impl Iterator<Item = &'a AtomId>,
    any: &'a BTreeMap<Selector, BTreeSet<AtomId>>,
) -> Vec<AtomId> {
    let labels = cluster.namespace_labels(namespace);
    let any = any.iter().filter(|(selector, _)| selector.matches(&labels));
    let mut ids: Vec<AtomId> = own.chain(any.flat_map(|(_, ids)| ids)).copied().collect();
    ids.sort_unstable();
    ids
}
