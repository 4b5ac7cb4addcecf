//! The address space, partitioned: which atoms each address belongs to.
//!
//! Every boundary of a block in use and every address with atoms of its own is a node; an address
//! that is no node belongs to the blocks of the longest node that holds it.

use std::collections::BTreeSet;

use netpold_ebpf::layout::ClassId;

use crate::compile::classes::{Classes, Signature};
use crate::compile::groups::Groups;
use crate::compile::peers::AtomId;
use crate::compile::prefix::{Prefix, PrefixMap};
use crate::model::IpBlock;

/// A prefix at which membership changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// Blocks whose `cidr` this is.
    adds: Vec<AtomId>,
    /// Blocks of which this is an exception.
    cuts: Vec<AtomId>,
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
        [&self.adds, &self.cuts, &self.fronts].iter().all(|atoms| atoms.is_empty())
            && self.own.is_empty()
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

    /// Adds a block: all that it holds is looked at again.
    pub(crate) fn add_block(&mut self, block: &IpBlock, atom: AtomId) {
        let cidr = Prefix::net(block.cidr);
        self.nodes.entry(cidr).adds.push(atom);
        for except in &block.except {
            self.nodes.entry(Prefix::net(*except)).cuts.push(atom);
        }
        self.touch_block(block);
    }

    /// Removes a block.
    pub(crate) fn remove_block(&mut self, block: &IpBlock, atom: AtomId) {
        if let Some(node) = self.nodes.get_mut(Prefix::net(block.cidr)) {
            node.adds.retain(|a| *a != atom);
        }
        for except in &block.except {
            if let Some(node) = self.nodes.get_mut(Prefix::net(*except)) {
                node.cuts.retain(|a| *a != atom);
            }
        }
        self.touch_block(block);
    }

    /// The addresses of a block are looked at again.
    pub(crate) fn touch_block(&mut self, block: &IpBlock) {
        self.touched.extend(self.nodes.under(Prefix::net(block.cidr)).map(|(prefix, _)| prefix));
        // An exception wider than its block is a node outside it.
        self.touched.extend(block.except.iter().map(|except| Prefix::net(*except)));
    }

    /// Gives every touched node its class, drops those that ended, and returns the touched
    /// prefixes.
    pub(crate) fn settle(&mut self, classes: &mut Classes, groups: &Groups) -> Vec<Prefix> {
        let touched: Vec<Prefix> = std::mem::take(&mut self.touched).into_iter().collect();
        for prefix in &touched {
            self.settle_node(*prefix, classes, groups);
        }
        touched
    }

    /// The same for those that have no frontends and are not to be looked at for them (`later`);
    /// the others stay touched. Returns what was looked at, and where atoms of addresses changed.
    pub(crate) fn settle_backends(
        &mut self,
        classes: &mut Classes,
        groups: &Groups,
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
            if self.settle_node(prefix, classes, groups) {
                changed.push(prefix);
            }
            settled.push(prefix);
        }
        (settled, changed)
    }

    /// Whether the class of the node's addresses may have changed.
    fn settle_node(&mut self, prefix: Prefix, classes: &mut Classes, groups: &Groups) -> bool {
        let Some(node) = self.nodes.get(prefix) else { return false };
        let (before, mut after) = (node.class, None);
        if node.is_empty() {
            self.nodes.remove(prefix);
        } else {
            after = Some(classes.acquire(self.signature(prefix, true, groups)));
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
    pub(crate) fn base(&self, prefix: Prefix, classes: &Classes, groups: &Groups) -> Signature {
        let known = self.nodes.ancestors(prefix, prefix.len).next();
        let settled =
            known.filter(|(at, node)| node.fronts.is_empty() && !self.touched.contains(at));
        let class = settled.and_then(|(_, node)| classes.signature(node.class?));
        class.cloned().unwrap_or_else(|| self.signature(prefix, false, groups))
    }

    /// The atoms of a node's addresses.
    fn signature(&self, prefix: Prefix, with_fronts: bool, groups: &Groups) -> Signature {
        let mut atoms = Vec::new();
        let mut cut: Vec<AtomId> = Vec::new();
        let mut here = None;
        for (holder, node) in self.nodes.ancestors(prefix, prefix.len) {
            atoms.extend(&node.adds);
            cut.extend(&node.cuts);
            here = here.or((holder == prefix).then_some(node));
        }
        if let Some(node) = here.filter(|node| atoms.is_empty() && node.fronts.is_empty()) {
            return node.own.clone();
        }
        atoms.retain(|atom| !cut.contains(atom));
        // Only now: an exception cuts its own block, not the others of the group.
        atoms.iter_mut().for_each(|atom| *atom = groups.of(*atom));
        if let Some(node) = here {
            atoms.extend(node.own.iter());
            if with_fronts {
                atoms.extend(&node.fronts);
            }
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
