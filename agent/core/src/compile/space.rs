//! The address space, partitioned: which atoms each address belongs to.
//!
//! Every boundary of a block in use and every address with atoms of its own is a node; an address
//! that is no node belongs to the blocks of the longest node that holds it.

use std::collections::BTreeSet;
use std::sync::Arc;

use netpold_ebpf::layout::ClassId;

use crate::compile::classes::Classes;
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
    own: Vec<AtomId>,
    /// The class of the node's addresses, counted in [`Classes`]; `None` until it is known.
    pub(crate) class: Option<ClassId>,
}

impl Node {
    fn is_empty(&self) -> bool {
        self.adds.is_empty() && self.cuts.is_empty() && self.own.is_empty()
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
    pub(crate) fn set_host(&mut self, prefix: Prefix, own: Vec<AtomId>) {
        let known = self.nodes.get(prefix).map_or(&[][..], |node| &node.own);
        if known == own {
            return;
        }
        self.nodes.entry(prefix).own = own;
        self.touched.insert(prefix);
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

    fn touch_block(&mut self, block: &IpBlock) {
        self.touched.extend(self.nodes.under(Prefix::net(block.cidr)).map(|(prefix, _)| prefix));
        // An exception wider than its block is a node outside it.
        self.touched.extend(block.except.iter().map(|except| Prefix::net(*except)));
    }

    /// Gives every touched node its class, drops those that ended, and returns the touched
    /// prefixes.
    pub(crate) fn settle(&mut self, classes: &mut Classes) -> BTreeSet<Prefix> {
        let touched = std::mem::take(&mut self.touched);
        for prefix in &touched {
            let Some(node) = self.nodes.get(*prefix) else { continue };
            let before = node.class;
            if node.is_empty() {
                self.nodes.remove(*prefix);
            } else {
                let class = classes.acquire(self.signature(*prefix));
                if let Some(node) = self.nodes.get_mut(*prefix) {
                    node.class = Some(class);
                }
            }
            if let Some(class) = before {
                classes.release(class);
            }
        }
        touched
    }

    /// The atoms of a node's addresses.
    fn signature(&self, prefix: Prefix) -> Arc<[AtomId]> {
        let mut atoms = Vec::new();
        let mut cut: Vec<AtomId> = Vec::new();
        for (_, node) in self.nodes.ancestors(prefix, prefix.len) {
            atoms.extend(&node.adds);
            cut.extend(&node.cuts);
        }
        atoms.retain(|atom| !cut.contains(atom));
        if let Some(node) = self.nodes.get(prefix) {
            atoms.extend(&node.own);
        }
        atoms.sort_unstable();
        atoms.dedup();
        atoms.into()
    }

    /// The class of a prefix's addresses as far as no longer node holds them.
    pub(crate) fn class(&self, prefix: Prefix) -> ClassId {
        self.nodes.longest(prefix).and_then(|node| node.class).unwrap_or(0)
    }

    /// The class that a prefix's addresses would have without its own node.
    pub(crate) fn parent_class(&self, prefix: Prefix) -> ClassId {
        self.nodes.parent(prefix).and_then(|node| node.class).unwrap_or(0)
    }
}
