//! Numbers of the peer sets in the rules in use. The membership of an address decides its class, so a peer set exists
//! only while rules of some local endpoint refer to it.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;

use crate::compile::sets::set::{HairpinService, NameId, OWN_NODE, PeerSet, SetId};
use crate::model::{Key, Pod, Protocol};

/// The peer sets and port names in use.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    next: u32,
    ids: HashMap<PeerSet, SetId>,
    users: HashMap<SetId, (PeerSet, u32)>,
    /// Peer sets that may have no user.
    idle: BTreeSet<SetId>,
    names: HashMap<NameId, Name>,
    name_ids: HashMap<(Protocol, String), NameId>,
    /// Port names that may have no user.
    idle_names: BTreeSet<NameId>,
    /// Port name, protocol and number behind each [`PeerSet::Named`].
    named: HashMap<SetId, (NameId, Protocol, u16)>,
    /// [`PeerSet::HairpinService`] in use, by Service and sorted by number.
    hairpin: BTreeMap<Key, BTreeMap<SetId, HairpinService>>,
}

/// A named port in egress rules.
#[derive(Debug)]
struct Name {
    name: (Protocol, String),
    users: u32,
    numbers: BTreeMap<u16, SetId>,
}

impl Registry {
    /// The number of a peer set; [`Registry::sweep`] drops it unless it is acquired first.
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

    /// Adds a user of a peer set; true if it is the first.
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

    /// Drops a user of a peer set; true if it was the last.
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

    /// Adds a user of a name; true if it is the first.
    pub(crate) fn acquire_name(&mut self, id: NameId) -> bool {
        self.names.get_mut(&id).is_some_and(|name| {
            name.users += 1;
            name.users == 1
        })
    }

    /// Drops a user of a name; true if it was the last.
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

    /// The peer sets of a named port, one for each number.
    pub(crate) fn sets_of_name(&self, id: NameId) -> impl Iterator<Item = SetId> + '_ {
        self.names.get(&id).into_iter().flat_map(|name| name.numbers.values().copied())
    }

    /// Drops peer sets and names without users.
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
            // Peer sets of names live as long as their names.
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

    /// Hairpin peer sets at a Service's addresses of one family.
    pub(crate) fn served<'a>(
        &'a self,
        service: &Key,
        v6: bool,
    ) -> impl Iterator<Item = SetId> + 'a {
        let all = self.hairpin.get(service).into_iter().flatten();
        all.filter(move |(_, hairpin)| hairpin.v6 == v6).map(|(id, _)| *id)
    }

    /// Content of a peer set; `None` for service targets.
    pub(crate) fn peer_set(&self, id: SetId) -> Option<&PeerSet> {
        self.users.get(&id).map(|(peer_set, _)| peer_set)
    }

    /// Whether egress rules use port names.
    pub(crate) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Port name, protocol and number behind a [`PeerSet::Named`].
    pub(crate) fn named(&self, id: SetId) -> Option<&(NameId, Protocol, u16)> {
        self.named.get(&id)
    }

    /// Adds the peer sets of a pod's named ports, as far as rules use these names.
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
