//! The sets of addresses that rules in use speak of. An address's class is the set of atoms it belongs to,
//! so an atom exists only while some local endpoint's rules name it.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;

use crate::compile::sets::set::{Atom, AtomId, NameId, OWN_NODE, Serves};
use crate::model::{Key, Pod, Protocol};

/// The atoms in use, and the port names.
#[derive(Debug, Default)]
pub(crate) struct Registry {
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
    named: HashMap<AtomId, (NameId, Protocol, u16)>,
    /// [`Atom::Serves`] in use, by Service and in the order of their numbers.
    serves: BTreeMap<Key, BTreeMap<AtomId, Serves>>,
}

/// A named port that egress rules ask for.
#[derive(Debug)]
struct Name {
    name: (Protocol, String),
    users: u32,
    numbers: BTreeMap<u16, AtomId>,
}

impl Registry {
    /// The number of an atom; it is dropped by [`Registry::sweep`] unless it is acquired before.
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
        if let Atom::Serves(serves) = atom {
            let of_service = self.serves.entry(serves.service.clone()).or_default();
            of_service.insert(id, serves.clone());
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
        if let Atom::Serves(serves) = atom
            && let Some(of_service) = self.serves.get_mut(&serves.service)
        {
            of_service.remove(&id);
            if of_service.is_empty() {
                self.serves.remove(&serves.service);
            }
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

    /// What an atom stands for; none for frontends.
    pub(crate) fn atom(&self, id: AtomId) -> Option<&Atom> {
        self.users.get(&id).map(|(atom, _)| atom)
    }

    /// Whether rules ask for port names.
    pub(crate) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Name and port that an [`Atom::Named`] stands for.
    pub(crate) fn named(&self, id: AtomId) -> Option<&(NameId, Protocol, u16)> {
        self.named.get(&id)
    }

    /// The atoms of a pod's port names, as far as rules ask for these names.
    pub(crate) fn ports_of(&mut self, pod: &Pod, atoms: &mut Vec<AtomId>) {
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
}
