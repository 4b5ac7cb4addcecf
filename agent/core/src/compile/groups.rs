//! Blocks that no spec tells apart share a group, and addresses have groups where they would have
//! blocks: a list of 100,000 blocks makes one class, not 100,000.
//!
//! What every spec in use grants a block is its key; blocks with equal keys are one group. When a
//! policy is edited, its spec gives way to another and the keys of all its blocks change, but what
//! they have in common does not: such a group keeps its number, and only blocks that part from it
//! or join it are looked at again. In the rows of specs that stay, a group that keeps its number
//! keeps its meaning too, since these specs' parts of the keys stay the same.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;

use crate::compile::peers::AtomId;
use crate::compile::spec::{Grant, Spec};

/// Set in the numbers of groups.
const GROUP: AtomId = 1 << 30;

/// Number of a spec in use; never reused.
pub(crate) type SpecId = u32;

/// What specs grant a block: by spec, in order, the number of one of its grants.
type Key = Vec<(SpecId, u32)>;

#[derive(Debug)]
struct Group {
    key: Key,
    members: u32,
    /// One of them: it stands for all.
    like: AtomId,
}

/// The groups in use.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    next: AtomId,
    keys: HashMap<AtomId, Key>,
    of: HashMap<AtomId, AtomId>,
    groups: HashMap<AtomId, Group>,
    by_key: BTreeMap<Key, AtomId>,
    /// Blocks whose key changed since the last settling.
    dirty: BTreeSet<AtomId>,
    /// Some group has lost all its blocks since the last sweep.
    idle: bool,
}

impl Groups {
    /// A spec is in use from now on. `is_block` tells which of its atoms are blocks.
    pub(crate) fn acquire(&mut self, id: SpecId, spec: &Spec, is_block: impl Fn(AtomId) -> bool) {
        let mut grants: HashMap<&Grant, u32> = HashMap::new();
        for (atom, grant) in spec.peers.iter().filter(|(atom, _)| is_block(**atom)) {
            let next = grants.len() as u32;
            let number = *grants.entry(grant).or_insert(next);
            self.keys.entry(*atom).or_default().push((id, number));
            self.dirty.insert(*atom);
        }
    }

    /// A spec is not in use any more.
    pub(crate) fn release(&mut self, id: SpecId, spec: &Spec) {
        for atom in spec.peers.keys() {
            if let Some(key) = self.keys.get_mut(atom) {
                key.retain(|(spec, _)| *spec != id);
                self.dirty.insert(*atom);
            }
        }
    }

    /// Groups the blocks anew. Returns those that came to another group, and not those that are
    /// gone or new.
    pub(crate) fn settle(&mut self) -> Vec<AtomId> {
        let dirty = std::mem::take(&mut self.dirty);
        let orphaned = self.leave(&dirty);
        let mut by_key: BTreeMap<Key, Vec<AtomId>> = BTreeMap::new();
        for atom in &dirty {
            match self.keys.get(atom) {
                Some(key) if !key.is_empty() => by_key.entry(key.clone()).or_default().push(*atom),
                _ => {
                    self.keys.remove(atom);
                    self.of.remove(atom);
                }
            }
        }
        let mut moved = Vec::new();
        for (key, atoms) in by_key {
            let group = self.group_for(&key, &atoms);
            self.join(group, key, &atoms, &mut moved);
        }
        self.adopt(orphaned);
        moved
    }

    /// Takes blocks out of their groups' counts. Returns groups that have to find another block to
    /// stand for them.
    fn leave(&mut self, blocks: &BTreeSet<AtomId>) -> BTreeSet<AtomId> {
        let mut orphaned = BTreeSet::new();
        let mut left: BTreeSet<AtomId> = BTreeSet::new();
        for atom in blocks {
            let Some(id) = self.of.get(atom) else { continue };
            let Some(group) = self.groups.get_mut(id) else { continue };
            group.members -= 1;
            left.insert(*id);
            if group.like == *atom {
                orphaned.insert(*id);
            }
        }
        for id in left {
            if let Some(group) = self.groups.get(&id).filter(|group| group.members == 0) {
                self.by_key.remove(&group.key);
                self.idle = true;
            }
        }
        orphaned
    }

    /// The group of a key: the one there is, else that which most of the blocks come from if nobody
    /// stayed in it, else a new one.
    fn group_for(&mut self, key: &Key, blocks: &[AtomId]) -> AtomId {
        if let Some(id) = self.by_key.get(key) {
            return *id;
        }
        let mut from: BTreeMap<AtomId, u32> = BTreeMap::new();
        for id in blocks.iter().filter_map(|atom| self.of.get(atom)) {
            if self.groups.get(id).is_some_and(|group| group.members == 0) {
                *from.entry(*id).or_default() += 1;
            }
        }
        let most = from.into_iter().max_by_key(|(id, count)| (*count, std::cmp::Reverse(*id)));
        most.map_or_else(
            || {
                self.next += 1;
                self.next | GROUP
            },
            |(id, _)| id,
        )
    }

    fn join(&mut self, id: AtomId, key: Key, blocks: &[AtomId], moved: &mut Vec<AtomId>) {
        let Some(first) = blocks.first() else { return };
        let group =
            self.groups.entry(id).or_insert(Group { key: Key::new(), members: 0, like: *first });
        if group.members == 0 {
            group.key.clone_from(&key);
            group.like = *first;
            self.by_key.insert(key, id);
        }
        group.members += blocks.len() as u32;
        for atom in blocks {
            if self.of.insert(*atom, id).is_some_and(|before| before != id) {
                moved.push(*atom);
            }
        }
    }

    /// Finds groups whose standing block left another.
    fn adopt(&mut self, mut orphaned: BTreeSet<AtomId>) {
        orphaned.retain(|id| {
            self.groups
                .get(id)
                .is_some_and(|group| group.members != 0 && self.of.get(&group.like) != Some(id))
        });
        if orphaned.is_empty() {
            return;
        }
        let mut least: BTreeMap<AtomId, AtomId> = BTreeMap::new();
        for (atom, id) in self.of.iter().filter(|(_, id)| orphaned.contains(id)) {
            least.entry(*id).and_modify(|least| *least = (*least).min(*atom)).or_insert(*atom);
        }
        for (id, atom) in least {
            if let Some(group) = self.groups.get_mut(&id) {
                group.like = atom;
            }
        }
    }

    /// What an atom is in a signature: a block's group, anything else itself.
    pub(crate) fn of(&self, atom: AtomId) -> AtomId {
        self.of.get(&atom).copied().unwrap_or(atom)
    }

    /// The atom that specs grant to what is in a signature.
    pub(crate) fn like(&self, id: AtomId) -> AtomId {
        if !is_group(id) {
            return id;
        }
        self.groups.get(&id).map_or(id, |group| group.like)
    }

    /// The blocks of a group.
    pub(crate) fn members(&self, id: AtomId) -> impl Iterator<Item = AtomId> {
        self.of.iter().filter(move |(_, group)| **group == id).map(|(atom, _)| *atom)
    }

    /// Ends the update: forgets groups without blocks.
    pub(crate) fn sweep(&mut self) {
        if std::mem::take(&mut self.idle) {
            self.groups.retain(|_, group| group.members != 0);
        }
    }
}

/// Whether this is the number of a group.
pub(crate) fn is_group(id: AtomId) -> bool {
    id & GROUP != 0
}
