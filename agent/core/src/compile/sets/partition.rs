//! The address space, partitioned: which peer sets each address belongs to.
//!
//! Every place at which what blocks grant changes and every address with peer sets of its own is a
//! entry; an address that is no entry has the group of blocks of the longest entry that holds it.

use std::collections::BTreeSet;

use hashbrown::HashSet;
use netpold_ebpf::layout::ClassId;

use crate::compile::sets::classes::Classes;
use crate::compile::sets::set::{Membership, NO_GROUP, SetId};
use crate::prefix::{Prefix, PrefixMap};

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
}

/// All entries, and those that have to be looked at again.
#[derive(Debug)]
pub(crate) struct AddressPartition {
    pub(crate) entries: PrefixMap<PrefixEntry>,
    touched: BTreeSet<Prefix>,
}

impl AddressPartition {
    pub(crate) fn new() -> Self {
        Self { entries: PrefixMap::new(), touched: BTreeSet::new() }
    }

    /// Sets the peer sets of an address itself.
    pub(crate) fn set_host(&mut self, prefix: Prefix, own: Membership) {
        let entry = if own.is_empty() {
            self.entries.get_mut(prefix)
        } else {
            Some(self.entries.entry(prefix))
        };
        let Some(entry) = entry.filter(|entry| entry.own != own) else { return };
        entry.own = own;
        self.touched.insert(prefix);
    }

    /// Sets the service targets of an address; returns what it had.
    pub(crate) fn set_targets(&mut self, prefix: Prefix, targets: Vec<SetId>) -> Vec<SetId> {
        let known = self.entries.get(prefix).map_or(&[][..], |entry| &entry.targets);
        if known == targets {
            return targets;
        }
        self.touched.insert(prefix);
        std::mem::replace(&mut self.entries.entry(prefix).targets, targets)
    }

    /// Sets the groups of these prefixes, which come in order: what has its group from one of them is
    /// looked at again.
    pub(crate) fn set_groups(&mut self, groups: &[(Prefix, Option<SetId>)]) {
        for (prefix, group) in groups {
            self.entries.entry(*prefix).group = *group;
            self.touched.insert(*prefix);
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
                self.touched.insert(prefix);
            }
        }
    }

    /// Gives every touched entry its class, drops those that ended, and returns the touched
    /// prefixes.
    pub(crate) fn settle(&mut self, classes: &mut Classes) -> Vec<Prefix> {
        let touched: Vec<Prefix> = std::mem::take(&mut self.touched).into_iter().collect();
        for prefix in &touched {
            self.settle_entry(*prefix, classes);
        }
        touched
    }

    /// The same for those that have no service targets and are not to be looked at for them (`later`);
    /// the others stay touched. Returns what was looked at, and where peer sets of addresses changed.
    pub(crate) fn settle_backends(
        &mut self,
        classes: &mut Classes,
        later: impl Fn(Prefix) -> bool,
    ) -> (Vec<Prefix>, Vec<Prefix>) {
        let (mut settled, mut changed) = (Vec::new(), Vec::new());
        for prefix in std::mem::take(&mut self.touched) {
            let waits = self.entries.get(prefix).is_some_and(|entry| !entry.targets.is_empty());
            if waits || (prefix.is_host() && later(prefix)) {
                self.touched.insert(prefix);
                changed.push(prefix);
                continue;
            }
            if self.settle_entry(prefix, classes) {
                changed.push(prefix);
            }
            settled.push(prefix);
        }
        (settled, changed)
    }

    /// Whether the class of the entry's addresses may have changed.
    fn settle_entry(&mut self, prefix: Prefix, classes: &mut Classes) -> bool {
        let Some(entry) = self.entries.get(prefix) else { return false };
        let (before, mut after) = (entry.class, None);
        if entry.is_empty() {
            self.entries.remove(prefix);
        } else {
            after = Some(classes.acquire(self.membership(prefix, Some(entry), true)));
            if let Some(entry) = self.entries.get_mut(prefix).filter(|_| after != before) {
                entry.class = after;
            }
        }
        if let Some(class) = before {
            classes.release(class);
        }
        before != after
    }

    /// The peer sets of an address, its service targets aside. Nodes that are touched have no class
    /// yet, or an old one.
    pub(crate) fn base(&self, prefix: Prefix, classes: &Classes) -> Membership {
        let known = self.entries.ancestors(prefix, prefix.len).next();
        let settled =
            known.filter(|(at, entry)| entry.targets.is_empty() && !self.touched.contains(at));
        let class = settled.and_then(|(_, entry)| classes.membership(entry.class?));
        class.cloned().unwrap_or_else(|| self.membership(prefix, self.entries.get(prefix), false))
    }

    /// The peer sets of a prefix's addresses. `here` is its own entry.
    fn membership(
        &self,
        prefix: Prefix,
        here: Option<&PrefixEntry>,
        with_targets: bool,
    ) -> Membership {
        let around = || {
            let mut outer = self.entries.ancestors(prefix, prefix.len.saturating_sub(1));
            outer.find_map(|(_, entry)| entry.group)
        };
        let group = here.and_then(|entry| entry.group).or_else(around);
        let group = group.filter(|group| *group != NO_GROUP);
        let targets = here.map_or(&[][..], |entry| &entry.targets);
        if group.is_none() && (targets.is_empty() || !with_targets) {
            return here.map(|entry| entry.own.clone()).unwrap_or_default();
        }
        let mut peer_sets = here.map_or_else(Vec::new, |entry| entry.own.to_vec());
        peer_sets.extend(group);
        if with_targets {
            peer_sets.extend(targets);
        }
        peer_sets.sort_unstable();
        peer_sets.dedup();
        peer_sets.into()
    }

    /// The class that a prefix's addresses would have without its own entry.
    pub(crate) fn parent_class(&self, prefix: Prefix) -> ClassId {
        self.entries.parent(prefix).and_then(|entry| entry.class).unwrap_or(0)
    }
}
