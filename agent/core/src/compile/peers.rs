//! Atoms: the sets of addresses that rules in use speak of. An address's class is the set of atoms
//! it belongs to, so an atom exists only while some local endpoint's rules name it.

mod index;
mod members;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap};
use ipnet::IpNet;
use serde::Serialize;

use crate::compile::frontends::{Frontends, is_frontends};
use crate::compile::groups::{Groups, is_group};
use crate::compile::tries::Tries;
use crate::model::{Key, Protocol, Selector};
use index::Index;

/// Number of an atom; never reused.
pub(crate) type AtomId = u32;
/// Number of a named port that egress rules ask for; never reused.
pub(crate) type NameId = u32;

/// Number of [`Atom::OwnNode`], so that one is first in every signature that has it.
pub(crate) const OWN_NODE: AtomId = 0;

/// A set of addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Atom {
    /// The own node's addresses.
    OwnNode,
    /// Addresses of the pods of one namespace that a selector matches.
    PodsIn(String, Selector),
    /// Addresses of the pods that the second selector matches, in the namespaces that the first
    /// matches.
    Pods(Selector, Selector),
    /// Addresses that blocks grant the same as this prefix, which is the first of them.
    Blocks(IpNet),
    /// Addresses of the pods that have this container port name with this number.
    Named(Protocol, String, u16),
    /// Addresses at which a local pod reaches itself.
    Serves(Serves),
    /// Addresses that lead to these backends: of a Service, or of nodes. Sorted.
    Frontends(Vec<Frontend>),
}

/// The addresses of a Service at which some local pod is a backend of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Serves {
    /// The Service.
    pub service: Key,
    /// Whether it is about IPv6 addresses.
    pub v6: bool,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// A port of an address that is translated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Frontend {
    /// Protocol of the port.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// Whether another node chooses the backend.
    pub elsewhere: bool,
    /// The sets that each backend's address belongs to, and the backend's port.
    pub backends: BTreeSet<(BTreeSet<Atom>, u16)>,
}

impl Atom {
    /// The addresses that a pod peer of a policy in `namespace` stands for.
    pub(crate) fn of_pods(namespaces: Option<&Selector>, pods: &Selector, namespace: &str) -> Self {
        match namespaces {
            None => Self::PodsIn(namespace.to_owned(), pods.clone()),
            Some(namespaces) => Self::Pods(namespaces.clone(), pods.clone()),
        }
    }
}

/// The atoms in use.
#[derive(Debug, Default)]
pub(crate) struct Atoms {
    next: u32,
    ids: HashMap<Atom, AtomId>,
    users: HashMap<AtomId, (Atom, u32)>,
    /// Atoms that may have no user any more.
    idle: BTreeSet<AtomId>,
    names: HashMap<NameId, Name>,
    name_ids: HashMap<(Protocol, String), NameId>,
    /// Names that may have no user any more.
    idle_names: BTreeSet<NameId>,
    /// Number of the name and port that a [`Atom::Named`] stands for.
    pub(crate) named: HashMap<AtomId, (NameId, Protocol, u16)>,
    /// [`Atom::Serves`] in use, by Service and in the order of their numbers.
    serves: BTreeMap<Key, BTreeMap<AtomId, Serves>>,
    pub(crate) frontends: Frontends,
    pub(crate) groups: Groups,
    pub(crate) tries: Tries,
    pub(crate) hasher: DefaultHashBuilder,
    /// Atoms of classes looked at for rows, ever.
    pub(crate) work: u64,
    own_namespace: HashMap<String, BTreeSet<AtomId>>,
    /// By the selector of namespaces: each is held against a namespace once. None is empty.
    any_namespace: BTreeMap<Selector, BTreeSet<AtomId>>,
    /// By namespace, the pod atoms whose namespace part matches it.
    candidates: HashMap<String, Arc<Index>>,
    /// Namespaces that the same atoms match, as those of one team, have one index.
    indexes: HashMap<Vec<AtomId>, Arc<Index>>,
}

/// A named port that egress rules ask for.
#[derive(Debug)]
struct Name {
    name: (Protocol, String),
    users: u32,
    numbers: BTreeMap<u16, AtomId>,
}

impl Atoms {
    /// The number of an atom; it is dropped by [`Atoms::sweep`] unless it is acquired before.
    pub(crate) fn intern(&mut self, atom: Atom) -> AtomId {
        if let Some(id) = self.ids.get(&atom) {
            return *id;
        }
        let id = if atom == Atom::OwnNode {
            OWN_NODE
        } else {
            self.next += 1;
            self.next
        };
        self.ids.insert(atom.clone(), id);
        self.users.insert(id, (atom, 0));
        self.idle.insert(id);
        id
    }

    /// The number of a named port.
    pub(crate) fn intern_name(&mut self, protocol: Protocol, name: &str) -> NameId {
        let name = (protocol, name.to_owned());
        if let Some(id) = self.name_ids.get(&name) {
            return *id;
        }
        self.next += 1;
        self.name_ids.insert(name.clone(), self.next);
        self.names.insert(self.next, Name { name, users: 0, numbers: BTreeMap::new() });
        self.idle_names.insert(self.next);
        self.next
    }

    /// Counts a user more of an atom; true if it is the first.
    pub(crate) fn acquire(&mut self, id: AtomId) -> bool {
        let Some((atom, users)) = self.users.get_mut(&id) else { return false };
        *users += 1;
        if *users != 1 {
            return false;
        }
        match atom {
            Atom::PodsIn(namespace, _) => {
                self.own_namespace.entry(namespace.clone()).or_default().insert(id);
                self.candidates.remove(namespace);
            }
            Atom::Pods(namespaces, _) => {
                self.any_namespace.entry(namespaces.clone()).or_default().insert(id);
                self.forget_candidates();
            }
            Atom::Serves(serves) => {
                let of_service = self.serves.entry(serves.service.clone()).or_default();
                of_service.insert(id, serves.clone());
            }
            _ => {}
        }
        true
    }

    /// Counts a user less of an atom; true if it was the last.
    pub(crate) fn release(&mut self, id: AtomId) -> bool {
        let Some((atom, users)) = self.users.get_mut(&id) else { return false };
        *users -= 1;
        if *users != 0 {
            return false;
        }
        self.idle.insert(id);
        match atom {
            Atom::PodsIn(namespace, _) => {
                if let Some(ids) = self.own_namespace.get_mut(namespace) {
                    ids.remove(&id);
                }
                self.candidates.remove(namespace);
            }
            Atom::Pods(namespaces, _) => {
                if let Some(ids) = self.any_namespace.get_mut(namespaces) {
                    ids.remove(&id);
                    if ids.is_empty() {
                        self.any_namespace.remove(namespaces);
                    }
                }
                self.forget_candidates();
            }
            Atom::Serves(serves) => {
                if let Some(of_service) = self.serves.get_mut(&serves.service) {
                    of_service.remove(&id);
                    if of_service.is_empty() {
                        self.serves.remove(&serves.service);
                    }
                }
            }
            _ => {}
        }
        true
    }

    /// Counts a user more of a name; true if it is the first.
    pub(crate) fn acquire_name(&mut self, id: NameId) -> bool {
        self.names.get_mut(&id).is_some_and(|name| {
            name.users += 1;
            name.users == 1
        })
    }

    /// Counts a user less of a name; true if it was the last.
    pub(crate) fn release_name(&mut self, id: NameId) -> bool {
        let is_last = self.names.get_mut(&id).is_some_and(|name| {
            name.users -= 1;
            name.users == 0
        });
        if is_last {
            self.idle_names.insert(id);
        }
        is_last
    }

    /// Protocol and name of a named port.
    pub(crate) fn name(&self, id: NameId) -> Option<&(Protocol, String)> {
        self.names.get(&id).map(|name| &name.name)
    }

    /// Forgets what has no user.
    pub(crate) fn sweep(&mut self) {
        for id in std::mem::take(&mut self.idle_names) {
            let Some(name) = self.names.get(&id).filter(|name| name.users == 0) else { continue };
            for atom in name.numbers.values() {
                self.named.remove(atom);
            }
            self.idle.extend(name.numbers.values());
            self.name_ids.remove(&name.name);
            self.names.remove(&id);
        }
        for id in std::mem::take(&mut self.idle) {
            // Those of names live as long as these.
            if !self.is_used(id)
                && !self.named.contains_key(&id)
                && let Some((atom, _)) = self.users.remove(&id)
            {
                self.ids.remove(&atom);
            }
        }
        self.indexes.retain(|_, index| Arc::strong_count(index) > 1);
    }

    /// Whether an atom has a user.
    pub(crate) fn is_used(&self, id: AtomId) -> bool {
        self.users.get(&id).is_some_and(|(_, users)| *users != 0)
    }

    /// The atoms of what local pods serve at a Service's addresses.
    pub(crate) fn served<'a>(
        &'a self,
        service: &Key,
        v6: bool,
    ) -> impl Iterator<Item = AtomId> + 'a {
        let all = self.serves.get(service).into_iter().flatten();
        all.filter(move |(_, serves)| serves.v6 == v6).map(|(id, _)| *id)
    }

    /// What stands for an atom of a signature: frontends in full, of a group its first prefix.
    pub(crate) fn content(&self, id: AtomId) -> Option<Atom> {
        if is_group(id) {
            return self.groups.first(id).map(|prefix| Atom::Blocks(prefix.to_net()));
        }
        if !is_frontends(id) {
            return self.atom(id).cloned();
        }
        let named = |atoms: &[AtomId]| atoms.iter().filter_map(|id| self.content(*id)).collect();
        let fronts = self.frontends.of(&[id])?;
        let fronts = fronts.iter().map(|front| Frontend {
            protocol: front.protocol,
            port: front.port,
            elsewhere: front.elsewhere,
            backends: front.backends.iter().map(|(atoms, port)| (named(atoms), *port)).collect(),
        });
        Some(Atom::Frontends(fronts.collect()))
    }

    /// What an atom stands for; none for frontends.
    pub(crate) fn atom(&self, id: AtomId) -> Option<&Atom> {
        self.users.get(&id).map(|(atom, _)| atom)
    }

    /// Namespace labels changed: forget what was derived from them.
    pub(crate) fn namespaces_changed(&mut self) {
        self.forget_candidates();
    }

    fn forget_candidates(&mut self) {
        self.candidates.clear();
        self.indexes.clear();
    }
}
