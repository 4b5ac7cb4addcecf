//! The address space, partitioned by membership.
//!
//! Every place with a change in the grants of blocks, and every address with peer sets of its own, is an entry. Any
//! other address has the block group of the longest entry that contains it.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};
use netpold_ebpf::layout::ClassId;

use crate::compile::sets::classes::Classes;
use crate::compile::sets::set::{Membership, NO_GROUP, SetId, is_targets};
use crate::prefix::{EnclosingEntry, Prefix, PrefixMap};

/// A prefix with a change of membership.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixEntry {
    /// Block group from here on; `None`: the group of the enclosing prefix.
    group: Option<SetId>,
    /// Peer sets of the address itself; only for single addresses.
    own: Membership,
    /// Peer sets that follow from the peer sets of other addresses: service targets and hairpin services. For a network,
    /// an empty service target, which the entries in it without their own have too.
    targets: Vec<SetId>,
    /// Class of the entry's addresses, counted in [`Classes`]; `None` until settled.
    pub(crate) class: Option<ClassId>,
}

impl PrefixEntry {
    fn is_empty(&self) -> bool {
        self.group.is_none() && self.own.is_empty() && self.targets.is_empty()
    }

    /// Updates the class of the entry; `None` if the entry ends.
    fn update_class(
        &mut self,
        around: EnclosingParts,
        classes: &mut Classes,
        alike: &mut SharedClasses,
    ) -> Option<ClassId> {
        let class = (!self.is_empty()).then(|| self.acquire(around, classes, alike));
        if let Some(before) = std::mem::replace(&mut self.class, class) {
            classes.release(before);
        }
        class
    }

    /// Acquires the class of the entry's addresses.
    fn acquire(
        &self,
        around: EnclosingParts,
        classes: &mut Classes,
        alike: &mut SharedClasses,
    ) -> ClassId {
        if !self.targets.is_empty() {
            return classes.acquire(self.membership(around, true));
        }
        let around = EnclosingParts { group: self.group.or(around.group), ..around };
        match alike.entry((self.own.as_ptr(), around)) {
            Entry::Occupied(known) => {
                classes.acquire_again(*known.get());
                *known.get()
            }
            Entry::Vacant(place) => *place.insert(classes.acquire(self.membership(around, true))),
        }
    }

    /// Membership of the entry's addresses.
    fn membership(&self, around: EnclosingParts, with_targets: bool) -> Membership {
        let group = self.group.or(around.group).filter(|group| *group != NO_GROUP);
        let around = around.target.as_slice();
        let targets = match &self.targets[..] {
            _ if !with_targets => &[],
            [] => around,
            own => own,
        };
        if group.is_none() && targets.is_empty() {
            return self.own.clone();
        }
        let mut peer_sets = self.own.to_vec();
        peer_sets.extend(group);
        peer_sets.extend(targets);
        peer_sets.sort_unstable();
        peer_sets.dedup();
        peer_sets.into()
    }
}

/// All entries, and those to settle again.
#[derive(Debug)]
pub(crate) struct AddressPartition {
    pub(crate) entries: PrefixMap<PrefixEntry>,
    /// Prefixes to settle; with duplicates.
    touched: Vec<Prefix>,
    /// Prefixes to settle after all others, because of their service targets.
    waiting: BTreeSet<Prefix>,
}

/// Parts of a membership by the enclosing prefixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct EnclosingParts {
    /// Block group.
    group: Option<SetId>,
    /// Empty service target of a network.
    target: Option<SetId>,
}

/// A prefix that was settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettledPrefix {
    pub(crate) prefix: Prefix,
    /// Class of its entry; `None` if there is no entry.
    pub(crate) class: Option<ClassId>,
}

/// Classes of entries without service targets of their own by the pointer to their peer sets: many entries share one
/// membership.
type SharedClasses = HashMap<(*const SetId, EnclosingParts), ClassId>;

impl AddressPartition {
    pub(crate) fn new() -> Self {
        Self { entries: PrefixMap::new(), touched: Vec::new(), waiting: BTreeSet::new() }
    }

    /// Sets the peer sets of a single address.
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

    /// Sets the service targets of an address; returns the previous ones.
    pub(crate) fn set_targets(&mut self, prefix: Prefix, targets: Vec<SetId>) -> Vec<SetId> {
        let known = self.entries.get(prefix).map_or(&[][..], |entry| &entry.targets);
        if known == targets {
            return targets;
        }
        self.waiting.insert(prefix);
        std::mem::replace(&mut self.entries.entry(prefix).targets, targets)
    }

    /// Sets the service target of a network's addresses; returns the previous one. All entries in the network are settled
    /// again: those with an equal service target of their own differ from the network, or cease to.
    pub(crate) fn set_target_within(
        &mut self,
        network: Prefix,
        target: Option<SetId>,
    ) -> Vec<SetId> {
        let targets: Vec<SetId> = target.into_iter().collect();
        let before = self.set_targets(network, targets.clone());
        if before != targets {
            self.touched.extend(self.entries.under(network).map(|(prefix, _)| prefix));
        }
        before
    }

    /// Sets the groups of these prefixes, given in order; entries that inherit their group from one of them are settled
    /// again.
    pub(crate) fn set_groups(&mut self, groups: &[(Prefix, Option<SetId>)]) {
        for (prefix, group) in groups {
            self.entries.entry(*prefix).group = *group;
            self.touched.push(*prefix);
        }
        let changed: HashSet<Prefix> = groups.iter().map(|(prefix, _)| *prefix).collect();
        let mut outermost: Option<Prefix> = None;
        for (prefix, _) in groups {
            if outermost.is_none_or(|outer| !outer.contains(*prefix)) {
                outermost = Some(*prefix);
                self.touch_below(*prefix, &changed);
            }
        }
    }

    fn touch_below(&mut self, outermost: Prefix, changed: &HashSet<Prefix>) {
        let mut open: Vec<(Prefix, bool)> = Vec::new();
        for (prefix, entry) in self.entries.under(outermost) {
            while open.pop_if(|(outer, _)| !outer.contains(prefix)).is_some() {}
            let is_changed = changed.contains(&prefix);
            if entry.group.is_some() || is_changed {
                open.push((prefix, is_changed));
            } else if open.last().is_some_and(|(_, changed)| *changed) {
                self.touched.push(prefix);
            }
        }
    }

    /// Assigns a class to every touched entry, removes ended ones, and returns the settled prefixes in order.
    pub(crate) fn assign_classes(&mut self, classes: &mut Classes) -> Vec<SettledPrefix> {
        self.assign_those(classes, |_, _| false, |_| {})
    }

    /// Settles entries that have no service targets and are not `later` ones; the others wait. Calls `changed` for
    /// every prefix with a changed membership.
    pub(crate) fn assign_backend_classes(
        &mut self,
        classes: &mut Classes,
        later: impl Fn(Prefix) -> bool,
        changed: impl FnMut(Prefix),
    ) -> Vec<SettledPrefix> {
        let waits = |prefix: Prefix, entry: Option<&PrefixEntry>| {
            entry.is_some_and(|entry| !entry.targets.is_empty())
                || (prefix.is_host() && later(prefix))
        };
        self.assign_those(classes, waits, changed)
    }

    /// Settles touched entries for which `waits` is false. Calls `changed` for waiting entries and for entries with a
    /// new class.
    fn assign_those(
        &mut self,
        classes: &mut Classes,
        waits: impl Fn(Prefix, Option<&PrefixEntry>) -> bool,
        mut changed: impl FnMut(Prefix),
    ) -> Vec<SettledPrefix> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.extend(std::mem::take(&mut self.waiting));
        touched.sort();
        touched.dedup();
        let mut settled = Vec::with_capacity(touched.len());
        let (mut groups, mut targets) = (EnclosingEntry::new(), EnclosingEntry::new());
        let (mut alike, mut ended) = (SharedClasses::new(), Vec::new());
        for prefix in touched {
            let group = groups.find(&self.entries, prefix, |entry| entry.group);
            let target =
                targets.find(&self.entries, prefix, |entry| entry.targets.first().copied());
            let around = EnclosingParts { group, target };
            let entry = self.entries.get_mut(prefix);
            if waits(prefix, entry.as_deref()) {
                self.waiting.insert(prefix);
                changed(prefix);
                continue;
            }
            let Some(entry) = entry else {
                settled.push(SettledPrefix { prefix, class: None });
                continue;
            };
            let before = entry.class;
            let class = entry.update_class(around, classes, &mut alike);
            if class.is_none() {
                ended.push(prefix);
            }
            if before != class {
                changed(prefix);
            }
            settled.push(SettledPrefix { prefix, class });
        }
        // Removing from the end of a page is fastest.
        for prefix in ended.into_iter().rev() {
            self.entries.remove(prefix);
        }
        settled
    }

    /// Membership of an address without its service targets. Does not rely on the class of touched entries, which may
    /// be missing or outdated.
    pub(crate) fn base(&self, prefix: Prefix, classes: &Classes) -> Membership {
        let known = self.entries.ancestors(prefix, prefix.len).next();
        let settled =
            known.filter(|(at, entry)| entry.targets.is_empty() && !self.waiting.contains(at));
        let class = settled.and_then(|(_, entry)| classes.membership(entry.class?));
        let class = class.filter(|it| !it.last().is_some_and(|last| is_targets(*last)));
        class.cloned().unwrap_or_else(|| self.membership(prefix, self.entries.get(prefix)))
    }

    /// Membership of a prefix's addresses without service targets. `here` is the entry of the prefix.
    fn membership(&self, prefix: Prefix, here: Option<&PrefixEntry>) -> Membership {
        let group = EnclosingEntry::new().find(&self.entries, prefix, |entry| entry.group);
        let around = EnclosingParts { group, target: None };
        match here {
            Some(entry) => entry.membership(around, false),
            None => PrefixEntry::default().membership(around, false),
        }
    }

    /// Class that the prefix's addresses would have without its own entry.
    pub(crate) fn parent_class(&self, prefix: Prefix) -> ClassId {
        self.entries.parent(prefix).and_then(|entry| entry.class).unwrap_or(0)
    }
}
