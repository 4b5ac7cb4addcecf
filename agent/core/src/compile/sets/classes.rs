//! Classes: numbers of the distinct sets of atoms that addresses belong to.
//!
//! The word that stands for a class in every table of addresses is its number and, if packets to
//! its addresses may be translated, [`CLASS_TRANSLATED`]. That bit follows from the set of atoms; it
//! is set here, is part of every [`ClassId`] from here on, and rows leave it out. Such a class has
//! two numbers and so two columns: the second one's is what [`untranslated`] says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use netpold_ebpf::layout::{CLASS_SERVICE, CLASS_TRANSLATED, ClassId, untranslated};

use crate::compile::sets::set::{AtomId, OWN_NODE, Signature, is_cluster_address, is_frontends};
use crate::compile::slots::Ids;

/// The bits of a class word that are no part of its number.
const FLAGS: ClassId = CLASS_TRANSLATED | CLASS_SERVICE;

/// [`CLASS_TRANSLATED`] if packets to addresses of these atoms may be translated: the own node's
/// (its node ports) and those that have frontends; [`CLASS_SERVICE`] too if they are Services' cluster
/// addresses.
fn translated(signature: &[AtomId]) -> ClassId {
    let own_node = signature.first() == Some(&OWN_NODE);
    match signature.last() {
        _ if own_node => CLASS_TRANSLATED,
        Some(id) if is_cluster_address(*id) => FLAGS,
        Some(id) if is_frontends(*id) => CLASS_TRANSLATED,
        _ => 0,
    }
}

/// The classes in use. Class 0 is the empty set, always there.
#[derive(Debug)]
pub(crate) struct Classes {
    pub(crate) ids: Ids,
    by_signature: HashMap<Signature, ClassId>,
    /// Signature and number of nodes.
    live: BTreeMap<ClassId, (Signature, u32)>,
    /// Classes that came to be in this update, temporary ones not included.
    new: BTreeSet<ClassId>,
    /// Classes that lost their last node in this update (some may have got another since).
    idle: BTreeSet<ClassId>,
    temporary: Vec<ClassId>,
}

impl Classes {
    pub(crate) fn new() -> Self {
        let empty: Signature = Arc::from([]);
        Self {
            ids: Ids::new(1),
            by_signature: HashMap::from([(empty.clone(), 0)]),
            live: BTreeMap::from([(0, (empty, 1))]),
            new: BTreeSet::new(),
            idle: BTreeSet::new(),
            temporary: Vec::new(),
        }
    }

    /// The class of a signature, for one node more.
    pub(crate) fn acquire(&mut self, signature: Signature) -> ClassId {
        if let Some(class) = self.by_signature.get(&signature) {
            if let Some((_, nodes)) = self.live.get_mut(class) {
                *nodes += 1;
            }
            return *class;
        }
        let class = self.number(translated(&signature));
        self.by_signature.insert(signature.clone(), class);
        self.live.insert(class, (signature, 1));
        self.new.insert(class);
        class
    }

    fn number(&mut self, translated: ClassId) -> ClassId {
        match translated {
            0 => self.ids.take(),
            flags => self.ids.take_pair() | flags,
        }
    }

    /// One node less.
    pub(crate) fn release(&mut self, class: ClassId) {
        if let Some((_, nodes)) = self.live.get_mut(&class) {
            *nodes -= 1;
            if *nodes == 0 {
                self.idle.insert(class);
            }
        }
    }

    /// A class for the time of this update, between two others.
    pub(crate) fn temporary(&mut self, from: ClassId, to: ClassId) -> ClassId {
        let class = self.number((from | to) & CLASS_TRANSLATED);
        self.temporary.push(class);
        class
    }

    /// Classes that came to be in this update and their signatures.
    pub(crate) fn take_new(&mut self) -> Vec<(ClassId, Signature)> {
        let new = std::mem::take(&mut self.new);
        new.into_iter()
            .filter_map(|class| Some((class, self.live.get(&class)?.0.clone())))
            .collect()
    }

    /// All classes and their signatures, those that end with this update included.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClassId, &Signature)> {
        self.live.iter().map(|(class, (signature, _))| (*class, signature))
    }

    /// Atoms of a class.
    pub(crate) fn signature(&self, class: ClassId) -> Option<&Signature> {
        self.live.get(&class).map(|(signature, _)| signature)
    }

    /// Ends the update: retires the classes without nodes and the temporary ones, and returns their
    /// columns.
    pub(crate) fn sweep(&mut self) -> Vec<ClassId> {
        let mut retired = std::mem::take(&mut self.temporary);
        for class in std::mem::take(&mut self.idle) {
            if self.live.get(&class).is_some_and(|(_, nodes)| *nodes == 0)
                && let Some((signature, _)) = self.live.remove(&class)
            {
                self.by_signature.remove(&signature);
                retired.push(class);
            }
        }
        for class in retired.clone() {
            if class & CLASS_TRANSLATED == 0 {
                self.ids.retire(class);
            } else {
                self.ids.retire_pair(class & !FLAGS);
                retired.push(untranslated(class));
            }
        }
        retired
    }
}
