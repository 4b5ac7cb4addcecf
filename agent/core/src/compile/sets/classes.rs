//! Classes: numbers of the distinct memberships of addresses.
//!
//! The word of a class in every table of addresses is its number, plus [`CLASS_TRANSLATED`] if packets to its addresses
//! may be translated. That bit follows from the membership; it is set here, is part of every [`ClassId`] from here on,
//! and is ignored by rows. A class with the bit has two numbers and so two columns; the second one is for
//! [`untranslated`] packets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use netpold_ebpf::layout::{CLASS_SERVICE, CLASS_TRANSLATED, ClassId, untranslated};

use crate::compile::sets::set::{Membership, OWN_NODE, SetId, is_cluster_address, is_targets};
use crate::compile::slots::SlotAllocator;

/// Bits of a class word that are not part of the number.
const FLAGS: ClassId = CLASS_TRANSLATED | CLASS_SERVICE;

/// [`CLASS_TRANSLATED`] for memberships of addresses to which packets may be translated: this node's (node ports) and
/// those with service targets. Plus [`CLASS_SERVICE`] for cluster addresses of Services.
fn translated(membership: &[SetId]) -> ClassId {
    let own_node = membership.first() == Some(&OWN_NODE);
    match membership.last() {
        _ if own_node => CLASS_TRANSLATED,
        Some(id) if is_cluster_address(*id) => FLAGS,
        Some(id) if is_targets(*id) => CLASS_TRANSLATED,
        _ => 0,
    }
}

/// The classes in use. Class 0 is the empty membership and always exists.
#[derive(Debug)]
pub(crate) struct Classes {
    pub(crate) slots: SlotAllocator,
    by_membership: HashMap<Membership, ClassId>,
    /// Membership and number of entries.
    live: BTreeMap<ClassId, (Membership, u32)>,
    /// Classes created in this update, without temporary ones.
    new: BTreeSet<ClassId>,
    /// Classes that lost their last entry in this update; some may have gained one since.
    idle: BTreeSet<ClassId>,
    temporary: Vec<ClassId>,
}

impl Classes {
    pub(crate) fn new() -> Self {
        let empty: Membership = Arc::from([]);
        Self {
            slots: SlotAllocator::new(1),
            by_membership: HashMap::from([(empty.clone(), 0)]),
            live: BTreeMap::from([(0, (empty, 1))]),
            new: BTreeSet::new(),
            idle: BTreeSet::new(),
            temporary: Vec::new(),
        }
    }

    /// The class of a membership; counts one more entry.
    pub(crate) fn acquire(&mut self, membership: Membership) -> ClassId {
        if let Some(class) = self.by_membership.get(&membership) {
            if let Some((_, nodes)) = self.live.get_mut(class) {
                *nodes += 1;
            }
            return *class;
        }
        let class = self.number(translated(&membership));
        self.by_membership.insert(membership.clone(), class);
        self.live.insert(class, (membership, 1));
        self.new.insert(class);
        class
    }

    /// Counts one more entry for a class that was just acquired.
    pub(crate) fn acquire_again(&mut self, class: ClassId) {
        if let Some((_, nodes)) = self.live.get_mut(&class) {
            *nodes += 1;
        }
    }

    fn number(&mut self, translated: ClassId) -> ClassId {
        match translated {
            0 => self.slots.allocate(),
            flags => self.slots.take_pair() | flags,
        }
    }

    /// Counts one entry less for a class.
    pub(crate) fn release(&mut self, class: ClassId) {
        if let Some((_, nodes)) = self.live.get_mut(&class) {
            *nodes -= 1;
            if *nodes == 0 {
                self.idle.insert(class);
            }
        }
    }

    /// A class between two others, for the duration of this update.
    pub(crate) fn temporary(&mut self, from: ClassId, to: ClassId) -> ClassId {
        let class = self.number((from | to) & CLASS_TRANSLATED);
        self.temporary.push(class);
        class
    }

    /// Classes created in this update, with their memberships.
    pub(crate) fn take_new(&mut self) -> Vec<(ClassId, Membership)> {
        let new = std::mem::take(&mut self.new);
        new.into_iter()
            .filter_map(|class| Some((class, self.live.get(&class)?.0.clone())))
            .collect()
    }

    /// All classes with their memberships, including those that end with this update.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClassId, &Membership)> {
        self.live.iter().map(|(class, (membership, _))| (*class, membership))
    }

    /// Membership of a class.
    pub(crate) fn membership(&self, class: ClassId) -> Option<&Membership> {
        self.live.get(&class).map(|(membership, _)| membership)
    }

    /// Ends the update: retires classes without entries and temporary classes; returns their columns.
    pub(crate) fn sweep(&mut self) -> Vec<ClassId> {
        let mut retired = std::mem::take(&mut self.temporary);
        for class in std::mem::take(&mut self.idle) {
            if self.live.get(&class).is_some_and(|(_, nodes)| *nodes == 0)
                && let Some((membership, _)) = self.live.remove(&class)
            {
                self.by_membership.remove(&membership);
                retired.push(class);
            }
        }
        for class in retired.clone() {
            if class & CLASS_TRANSLATED == 0 {
                self.slots.retire(class);
            } else {
                self.slots.retire_pair(class & !FLAGS);
                retired.push(untranslated(class));
            }
        }
        retired
    }
}
