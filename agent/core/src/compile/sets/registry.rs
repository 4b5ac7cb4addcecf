//! The sets of addresses that rules in use speak of. An address's class is the set of peer sets it
//! belongs to, so a peer set exists only while some local endpoint's rules name it.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;

use crate::compile::sets::set::{HairpinService, NameId, OWN_NODE, PeerSet, SetId};
use crate::model::{Key, Pod, Protocol};

/// The peer sets in use, and the port names.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    next: u32,
    ids: HashMap<PeerSet, SetId>,
    users: HashMap<SetId, (PeerSet, u32)>,
    /// Peer sets that may have no user any more.
    idle: BTreeSet<SetId>,
    names: HashMap<NameId, Name>,
    name_ids: HashMap<(Protocol, String), NameId>,
    /// Names that may have no user any more.
    idle_names: BTreeSet<NameId>,
    /// Number of the name and port that a [`PeerSet::Named`] stands for.
    named: HashMap<SetId, (NameId, Protocol, u16)>,
    /// [`PeerSet::HairpinService`] in use, by Service and in the order of their numbers.
    hairpin: BTreeMap<Key, BTreeMap<SetId, HairpinService>>,
}

/// A named port that egress rules ask for.
#[derive(Debug)]
struct Name {
    name: (Protocol, String),
    users: u32,
    numbers: BTreeMap<u16, SetId>,
}

impl Registry {
    /// The number of a peer set; it is dropped by [`Registry::sweep`] unless it is acquired before.
    pub(crate) fn intern(&mut self, peer_set: PeerSet) -> SetId {
        if let Some(id) = self.ids.get(&peer_set) {
            return *id;
        }
        let id = if peer_set == PeerSet::OwnNode {
            OWN_NODE
        } else {
            self.next += 1;
            self.next
        };
        self.ids.insert(peer_set.clone(), id);
        self.users.insert(id, (peer_set, 0));
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

    /// Counts a user more of a peer set; true if it is the first.
    pub(crate) fn acquire(&mut self, id: SetId) -> bool {
        let Some((peer_set, users)) = self.users.get_mut(&id) else { return false };
        *users += 1;
        if *users != 1 {
            return false;
        }
        if let PeerSet::HairpinService(hairpin) = peer_set {
            let of_service = self.hairpin.entry(hairpin.service.clone()).or_default();
            of_service.insert(id, hairpin.clone());
        }
        true
    }

    /// Counts a user less of a peer set; true if it was the last.
    pub(crate) fn release(&mut self, id: SetId) -> bool {
        let Some((peer_set, users)) = self.users.get_mut(&id) else { return false };
        *users -= 1;
        if *users != 0 {
            return false;
        }
        self.idle.insert(id);
        if let PeerSet::HairpinService(hairpin) = peer_set
            && let Some(of_service) = self.hairpin.get_mut(&hairpin.service)
        {
            of_service.remove(&id);
            if of_service.is_empty() {
                self.hairpin.remove(&hairpin.service);
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
            for peer_set in name.numbers.values() {
                self.named.remove(peer_set);
            }
            self.idle.extend(name.numbers.values());
            self.name_ids.remove(&name.name);
            self.names.remove(&id);
        }
        for id in std::mem::take(&mut self.idle) {
            // Those of names live as long as these.
            if !self.is_used(id)
                && !self.named.contains_key(&id)
                && let Some((peer_set, _)) = self.users.remove(&id)
            {
                self.ids.remove(&peer_set);
            }
        }
    }

    /// Whether a peer set has a user.
    pub(crate) fn is_used(&self, id: SetId) -> bool {
        self.users.get(&id).is_some_and(|(_, users)| *users != 0)
    }

    /// The peer sets of what local pods serve at a Service's addresses.
    pub(crate) fn served<'a>(
        &'a self,
        service: &Key,
        v6: bool,
    ) -> impl Iterator<Item = SetId> + 'a {
        let all = self.hairpin.get(service).into_iter().flatten();
        all.filter(move |(_, hairpin)| hairpin.v6 == v6).map(|(id, _)| *id)
    }

    /// What a peer set stands for; none for service targets.
    pub(crate) fn peer_set(&self, id: SetId) -> Option<&PeerSet> {
        self.users.get(&id).map(|(peer_set, _)| peer_set)
    }

    /// Whether rules ask for port names.
    pub(crate) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Name and port that an [`PeerSet::Named`] stands for.
    pub(crate) fn named(&self, id: SetId) -> Option<&(NameId, Protocol, u16)> {
        self.named.get(&id)
    }

    /// The peer sets of a pod's port names, as far as rules ask for these names.
    pub(crate) fn ports_of(&mut self, pod: &Pod, peer_sets: &mut Vec<SetId>) {
        if self.names.is_empty() {
            return;
        }
        for port in &pod.ports {
            let key = (port.protocol, port.name.clone());
            let Some(id) = self.name_ids.get(&key).copied() else { continue };
            let Some(name) = self.names.get(&id).filter(|name| name.users != 0) else { continue };
            if let Some(id) = name.numbers.get(&port.port) {
                peer_sets.push(*id);
                continue;
            }
            let peer_set = self.intern(PeerSet::Named(key.0, key.1, port.port));
            self.named.insert(peer_set, (id, port.protocol, port.port));
            if let Some(name) = self.names.get_mut(&id) {
                name.numbers.insert(port.port, peer_set);
            }
            peer_sets.push(peer_set);
        }
    }
}
