//! The address space, partitioned: which peer sets each address belongs to.
//!
//! Every place at which what blocks grant changes and every address with peer sets of its own is a
//! entry; an address that is no entry has the group of blocks of the longest entry that holds it.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};
use netpold_ebpf::layout::ClassId;

use crate::compile::sets::classes::Classes;
use crate::compile::sets::set::{Membership, NO_GROUP, SetId};
use crate::prefix::{Around, Prefix, PrefixMap};

/// A prefix at which membership changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixEntry {
    /// The group of blocks from here on; `None`: that of the prefix around this one.
    group: Option<SetId>,
    /// Peer sets of the address itself; only single addresses have them.
    own: Membership,
    /// Peer sets that follow from other addresses' peer sets: service targets and what local pods
    /// serve. Only single addresses have them.
    targets: Vec<SetId>,
    /// The class of the entry's addresses, counted in [`Classes`]; `None` until it is known.
    pub(crate) class: Option<ClassId>,
}

impl PrefixEntry {
    fn is_empty(&self) -> bool {
        self.group.is_none() && self.own.is_empty() && self.targets.is_empty()
    }

    /// Gives the entry its class; none if it ends. `around`: the group of blocks of the prefix around it.
    fn settle(
        &mut self,
        around: Option<SetId>,
        classes: &mut Classes,
        alike: &mut Alike,
    ) -> Option<ClassId> {
        let class = (!self.is_empty()).then(|| self.acquire(around, classes, alike));
        if let Some(before) = std::mem::replace(&mut self.class, class) {
            classes.release(before);
        }
        class
    }

    /// The class of the entry's addresses, for one entry more. `around`: the group of blocks of the prefix around it.
    fn acquire(&self, around: Option<SetId>, classes: &mut Classes, alike: &mut Alike) -> ClassId {
        if !self.targets.is_empty() {
            return classes.acquire(self.membership(around, true));
        }
        match alike.entry((self.own.as_ptr(), self.group.or(around))) {
            Entry::Occupied(known) => {
                classes.acquire_again(*known.get());
                *known.get()
            }
            Entry::Vacant(place) => *place.insert(classes.acquire(self.membership(around, false))),
        }
    }

    /// The peer sets of the entry's addresses. `around`: the group of blocks of the prefix around it.
    fn membership(&self, around: Option<SetId>, with_targets: bool) -> Membership {
        let group = self.group.or(around).filter(|group| *group != NO_GROUP);
        if group.is_none() && (self.targets.is_empty() || !with_targets) {
            return self.own.clone();
        }
        let mut peer_sets = self.own.to_vec();
        peer_sets.extend(group);
        if with_targets {
            peer_sets.extend(&self.targets);
        }
        peer_sets.sort_unstable();
        peer_sets.dedup();
        peer_sets.into()
    }
}

/// All entries, and those that have to be looked at again.
#[derive(Debug)]
pub(crate) struct AddressPartition {
    pub(crate) entries: PrefixMap<PrefixEntry>,
    /// Some of them several times.
    touched: Vec<Prefix>,
    /// Those that are settled after all others, for their service targets.
    waiting: BTreeSet<Prefix>,
}

/// A prefix that was looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settled {
    pub(crate) prefix: Prefix,
    /// The class of its entry; `None`: it is no entry.
    pub(crate) class: Option<ClassId>,
}

/// The classes of entries without service targets, by what they were found by: many have the very same peer sets.
type Alike = HashMap<(*const SetId, Option<SetId>), ClassId>;

impl AddressPartition {
    pub(crate) fn new() -> Self {
        Self { entries: PrefixMap::new(), touched: Vec::new(), waiting: BTreeSet::new() }
    }

    /// Sets the peer sets of an address itself.
    pub(crate) fn set_host(&mut self, prefix: Prefix, own: Membership) {
        let entry = if own.is_empty() {
            self.entries.get_mut(prefix)
        } else {
            Some(self.entries.entry(prefix))
        };
        let same = |known: &Membership| Arc::ptr_eq(known, &own) || *known == own;
        let Some(entry) = entry.filter(|entry| !same(&entry.own)) else { return };
        entry.own = own;
        self.touched.push(prefix);
    }

    /// Sets the service targets of an address; returns what it had.
    pub(crate) fn set_targets(&mut self, prefix: Prefix, targets: Vec<SetId>) -> Vec<SetId> {
        let known = self.entries.get(prefix).map_or(&[][..], |entry| &entry.targets);
        if known == targets {
            return targets;
        }
        self.waiting.insert(prefix);
        std::mem::replace(&mut self.entries.entry(prefix).targets, targets)
    }

    /// Sets the groups of these prefixes, which come in order: what has its group from one of them is
    /// looked at again.
    pub(crate) fn set_groups(&mut self, groups: &[(Prefix, Option<SetId>)]) {
        for (prefix, group) in groups {
            self.entries.entry(*prefix).group = *group;
            self.touched.push(*prefix);
        }
        let changed: HashSet<Prefix> = groups.iter().map(|(prefix, _)| *prefix).collect();
        let mut outermost: Option<Prefix> = None;
        for (prefix, _) in groups {
            if outermost.is_none_or(|outer| !outer.holds(*prefix)) {
                outermost = Some(*prefix);
                self.touch_below(*prefix, &changed);
            }
        }
    }

    fn touch_below(&mut self, outermost: Prefix, changed: &HashSet<Prefix>) {
        let mut open: Vec<(Prefix, bool)> = Vec::new();
        for (prefix, entry) in self.entries.under(outermost) {
            while open.pop_if(|(outer, _)| !outer.holds(prefix)).is_some() {}
            let is_changed = changed.contains(&prefix);
            if entry.group.is_some() || is_changed {
                open.push((prefix, is_changed));
            } else if open.last().is_some_and(|(_, changed)| *changed) {
                self.touched.push(prefix);
            }
        }
    }

    /// Gives every touched entry its class, drops those that ended, and returns what was looked at, in order.
    pub(crate) fn settle(&mut self, classes: &mut Classes) -> Vec<Settled> {
        self.settle_those(classes, |_, _| false, |_| {})
    }

    /// The same for those that have no service targets and are not to be looked at for them (`later`);
    /// the others wait. `changed` is told where peer sets of addresses changed.
    pub(crate) fn settle_backends(
        &mut self,
        classes: &mut Classes,
        later: impl Fn(Prefix) -> bool,
        changed: impl FnMut(Prefix),
    ) -> Vec<Settled> {
        let waits = |prefix: Prefix, entry: Option<&PrefixEntry>| {
            entry.is_some_and(|entry| !entry.targets.is_empty())
                || (prefix.is_host() && later(prefix))
        };
        self.settle_those(classes, waits, changed)
    }

    /// Settles what is touched and does not wait. Names what waits, and what may have another class than before.
    fn settle_those(
        &mut self,
        classes: &mut Classes,
        waits: impl Fn(Prefix, Option<&PrefixEntry>) -> bool,
        mut changed: impl FnMut(Prefix),
    ) -> Vec<Settled> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.extend(std::mem::take(&mut self.waiting));
        touched.sort();
        touched.dedup();
        let mut settled = Vec::with_capacity(touched.len());
        let (mut around, mut alike, mut ended) = (Around::new(), Alike::new(), Vec::new());
        for prefix in touched {
            let group = around.find(&self.entries, prefix, |entry| entry.group);
            let entry = self.entries.get_mut(prefix);
            if waits(prefix, entry.as_deref()) {
                self.waiting.insert(prefix);
                changed(prefix);
                continue;
            }
            let Some(entry) = entry else {
                settled.push(Settled { prefix, class: None });
                continue;
            };
            let before = entry.class;
            let class = entry.settle(group, classes, &mut alike);
            if class.is_none() {
                ended.push(prefix);
            }
            if before != class {
                changed(prefix);
            }
            settled.push(Settled { prefix, class });
        }
        // The last of a page is taken out of it fastest.
        for prefix in ended.into_iter().rev() {
            self.entries.remove(prefix);
        }
        settled
    }

    /// The peer sets of an address, its service targets aside. Nodes that are touched have no class
    /// yet, or an old one.
    pub(crate) fn base(&self, prefix: Prefix, classes: &Classes) -> Membership {
        let known = self.entries.ancestors(prefix, prefix.len).next();
        let settled =
            known.filter(|(at, entry)| entry.targets.is_empty() && !self.waiting.contains(at));
        let class = settled.and_then(|(_, entry)| classes.membership(entry.class?));
        class.cloned().unwrap_or_else(|| self.membership(prefix, self.entries.get(prefix)))
    }

    /// The peer sets of a prefix's addresses, its service targets aside. `here` is its own entry.
    fn membership(&self, prefix: Prefix, here: Option<&PrefixEntry>) -> Membership {
        let group = Around::new().find(&self.entries, prefix, |entry| entry.group);
        match here {
            Some(entry) => entry.membership(group, false),
            None => PrefixEntry::default().membership(group, false),
        }
    }

    /// The class that a prefix's addresses would have without its own entry.
    pub(crate) fn parent_class(&self, prefix: Prefix) -> ClassId {
        self.entries.parent(prefix).and_then(|entry| entry.class).unwrap_or(0)
    }
}
