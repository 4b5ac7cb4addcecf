//! The address space, partitioned: which atoms each address belongs to.
//!
//! Every place at which what blocks grant changes and every address with atoms of its own is a node; an
//! address that is no node has the group of blocks of the longest node that holds it.

use std::collections::BTreeSet;

use hashbrown::HashSet;
use netpold_ebpf::layout::ClassId;

use crate::compile::sets::classes::Classes;
use crate::compile::sets::set::{AtomId, NO_GROUP, Signature};
use crate::prefix::{Prefix, PrefixMap};

/// A prefix at which membership changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// The group of blocks from here on; `None`: that of the prefix around this one.
    group: Option<AtomId>,
    /// Atoms of the address itself; only single addresses have them.
    own: Signature,
    /// Atoms that follow from other addresses' atoms: frontends and what local pods serve. Only
    /// single addresses have them.
    fronts: Vec<AtomId>,
    /// The class of the node's addresses, counted in [`Classes`]; `None` until it is known.
    pub(crate) class: Option<ClassId>,
}

impl Node {
    fn is_empty(&self) -> bool {
        self.group.is_none() && self.own.is_empty() && self.fronts.is_empty()
    }
}

/// All nodes, and those that have to be looked at again.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) nodes: PrefixMap<Node>,
    touched: BTreeSet<Prefix>,
}

impl Space {
    pub(crate) fn new() -> Self {
        Self { nodes: PrefixMap::new(), touched: BTreeSet::new() }
    }

    /// Sets the atoms of an address itself.
    pub(crate) fn set_host(&mut self, prefix: Prefix, own: Signature) {
        let node = if own.is_empty() {
            self.nodes.get_mut(prefix)
        } else {
            Some(self.nodes.entry(prefix))
        };
        let Some(node) = node.filter(|node| node.own != own) else { return };
        node.own = own;
        self.touched.insert(prefix);
    }

    /// Sets the frontends of an address; returns what it had.
    pub(crate) fn set_fronts(&mut self, prefix: Prefix, fronts: Vec<AtomId>) -> Vec<AtomId> {
        let known = self.nodes.get(prefix).map_or(&[][..], |node| &node.fronts);
        if known == fronts {
            return fronts;
        }
        self.touched.insert(prefix);
        std::mem::replace(&mut self.nodes.entry(prefix).fronts, fronts)
    }

    /// Sets the groups of these prefixes, which come in order: what has its group from one of them is
    /// looked at again.
    pub(crate) fn set_groups(&mut self, groups: &[(Prefix, Option<AtomId>)]) {
        for (prefix, group) in groups {
            self.nodes.entry(*prefix).group = *group;
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
        for (prefix, node) in self.nodes.under(outermost) {
            while open.pop_if(|(outer, _)| !outer.holds(prefix)).is_some() {}
            let is_changed = changed.contains(&prefix);
            if node.group.is_some() || is_changed {
                open.push((prefix, is_changed));
            } else if open.last().is_some_and(|(_, changed)| *changed) {
                self.touched.insert(prefix);
            }
        }
    }

    /// Gives every touched node its class, drops those that ended, and returns the touched
    /// prefixes.
    pub(crate) fn settle(&mut self, classes: &mut Classes) -> Vec<Prefix> {
        let touched: Vec<Prefix> = std::mem::take(&mut self.touched).into_iter().collect();
        for prefix in &touched {
            self.settle_node(*prefix, classes);
        }
        touched
    }

    /// The same for those that have no frontends and are not to be looked at for them (`later`);
    /// the others stay touched. Returns what was looked at, and where atoms of addresses changed.
    pub(crate) fn settle_backends(
        &mut self,
        classes: &mut Classes,
        later: impl Fn(Prefix) -> bool,
    ) -> (Vec<Prefix>, Vec<Prefix>) {
        let (mut settled, mut changed) = (Vec::new(), Vec::new());
        for prefix in std::mem::take(&mut self.touched) {
            let waits = self.nodes.get(prefix).is_some_and(|node| !node.fronts.is_empty());
            if waits || (prefix.is_host() && later(prefix)) {
                self.touched.insert(prefix);
                changed.push(prefix);
                continue;
            }
            if self.settle_node(prefix, classes) {
                changed.push(prefix);
            }
            settled.push(prefix);
        }
        (settled, changed)
    }

    /// Whether the class of the node's addresses may have changed.
    fn settle_node(&mut self, prefix: Prefix, classes: &mut Classes) -> bool {
        let Some(node) = self.nodes.get(prefix) else { return false };
        let (before, mut after) = (node.class, None);
        if node.is_empty() {
            self.nodes.remove(prefix);
        } else {
            after = Some(classes.acquire(self.signature(prefix, true)));
            if let Some(node) = self.nodes.get_mut(prefix).filter(|_| after != before) {
                node.class = after;
            }
        }
        if let Some(class) = before {
            classes.release(class);
        }
        before != after
    }

    /// The atoms of an address, its frontends aside. Nodes that are touched have no class yet, or an
    /// old one.
    pub(crate) fn base(&self, prefix: Prefix, classes: &Classes) -> Signature {
        let known = self.nodes.ancestors(prefix, prefix.len).next();
        let settled =
            known.filter(|(at, node)| node.fronts.is_empty() && !self.touched.contains(at));
        let class = settled.and_then(|(_, node)| classes.signature(node.class?));
        class.cloned().unwrap_or_else(|| self.signature(prefix, false))
    }

    /// The atoms of a node's addresses.
    fn signature(&self, prefix: Prefix, with_fronts: bool) -> Signature {
        let (mut here, mut group) = (None, None);
        for (holder, node) in self.nodes.ancestors(prefix, prefix.len) {
            here = here.or((holder == prefix).then_some(node));
            group = node.group;
            if group.is_some() {
                break;
            }
        }
        let group = group.filter(|group| *group != NO_GROUP);
        let fronts = here.map_or(&[][..], |node| &node.fronts);
        if group.is_none() && (fronts.is_empty() || !with_fronts) {
            return here.map(|node| node.own.clone()).unwrap_or_default();
        }
        let mut atoms = here.map_or_else(Vec::new, |node| node.own.to_vec());
        atoms.extend(group);
        if with_fronts {
            atoms.extend(fronts);
        }
        atoms.sort_unstable();
        atoms.dedup();
        atoms.into()
    }

    /// The class that a prefix's addresses would have without its own node.
    pub(crate) fn parent_class(&self, prefix: Prefix) -> ClassId {
        self.nodes.parent(prefix).and_then(|node| node.class).unwrap_or(0)
    }
}
