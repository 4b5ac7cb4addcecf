//! The IPv4 trie: turns prefixes with classes into word flips.
//!
//! Every flip moves all addresses below a word from the old class to the new one. The order of flips within one stage
//! does not matter (the caller orders the stages). So words of blocks in use are flipped one by one, and a new block is
//! complete before a word points to it.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use netpold_ebpf::layout::{ClassId, TRIE_POINTER, TrieBlock};

use crate::compile::slots::SlotAllocator;
use crate::ops::Op;
use crate::prefix::{IpFamily, Prefix, PrefixMap};

/// The trie as installed in the tables.
#[derive(Debug)]
pub(crate) struct Ipv4Trie {
    pub(crate) slots: SlotAllocator,
    root: Vec<u32>,
    blocks: HashMap<u32, Box<TrieBlock>>,
}

/// Parts of the address space with changed classes.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// Upper 16 bits of each /16 to repaint as a whole.
    roots: BTreeSet<u32>,
    /// Each /24 to repaint alone.
    leaves: Vec<Prefix>,
}

impl Changed {
    /// Adds an IPv4 prefix with a changed class.
    pub(crate) fn add(&mut self, prefix: Prefix) {
        if prefix.len <= 24 {
            let last = Prefix { bits: prefix.last(), ..prefix }.v4() >> 16;
            self.roots.extend((prefix.v4() >> 16)..=last);
            return;
        }
        let leaf = prefix.truncate(24);
        if self.leaves.last() != Some(&leaf) {
            self.leaves.push(leaf);
        }
    }
}

/// Desired content of a /24.
enum Leaf {
    Class(ClassId),
    Block(Box<TrieBlock>),
}

impl Ipv4Trie {
    pub(crate) fn new() -> Self {
        Self { slots: SlotAllocator::new(0), root: vec![0; 65_536], blocks: HashMap::new() }
    }

    /// Words of the root.
    pub(crate) fn root(&self) -> &[u32] {
        &self.root
    }

    /// A block in use.
    pub(crate) fn block(&self, id: u32) -> Option<&TrieBlock> {
        self.blocks.get(&id).map(|block| &**block)
    }

    /// Brings the trie to the state of `classes`, which differ from it only in the `changed` parts.
    pub(crate) fn repaint(
        &mut self,
        classes: &PrefixMap<ClassId>,
        changed: Changed,
        ops: &mut Vec<Op>,
    ) {
        let Changed { roots, mut leaves } = changed;
        let outlines = (roots.len() > OUTLINED).then(|| Outlines::new(classes));
        for root in &roots {
            self.paint_root(*root as u16, outlines.as_ref(), classes, ops);
        }
        leaves.sort_unstable();
        leaves.dedup();
        for prefix in leaves.into_iter().filter(|leaf| !roots.contains(&(leaf.v4() >> 16))) {
            self.set_leaf(prefix.v4() >> 8, leaf(classes, prefix), ops);
        }
    }

    /// Repaints a /16.
    fn paint_root(
        &mut self,
        index: u16,
        outlines: Option<&Outlines>,
        classes: &PrefixMap<ClassId>,
        ops: &mut Vec<Op>,
    ) {
        let bits = u128::from(index) << 112;
        let whole = Prefix { family: IpFamily::V4, bits, len: 16 };
        let (base, is_plain) = match outlines {
            Some(outlines) => outlines.class_at(index),
            None => {
                let is_plain = classes.under(whole).all(|(prefix, _)| prefix.len <= 16);
                (classes.longest(whole).copied().unwrap_or(0), is_plain)
            }
        };
        if is_plain {
            self.set_root(index, base, ops);
            return;
        }
        let middles = middles(classes, whole, base);
        if let Some(block) = pointer(self.root[usize::from(index)]) {
            for (middle, leaf) in (0u8..=255).zip(middles) {
                self.set_middle(block, middle, leaf, ops);
            }
            if let Some(class) = self.uniform(block) {
                self.set_root(index, class, ops);
            }
            return;
        }
        if let Some(class) = one_class(&middles) {
            self.set_root(index, class, ops);
            return;
        }
        let mut words = Box::new([0; 256]);
        for (word, leaf) in words.iter_mut().zip(middles) {
            *word = match leaf {
                Leaf::Class(class) => class,
                Leaf::Block(content) => self.add(content, ops) | TRIE_POINTER,
            };
        }
        let block = self.add(words, ops) | TRIE_POINTER;
        self.root[usize::from(index)] = block;
        ops.push(Op::TrieRootWord { index, word: block });
    }

    /// Sets a whole /16 to one class.
    fn set_root(&mut self, index: u16, class: ClassId, ops: &mut Vec<Op>) {
        let word = &mut self.root[usize::from(index)];
        let before = std::mem::replace(word, class);
        if before == class {
            return;
        }
        ops.push(Op::TrieRootWord { index, word: class });
        self.retire(before);
    }

    /// Sets the content of a /24 (upper 24 bits).
    fn set_leaf(&mut self, index: u32, leaf: Leaf, ops: &mut Vec<Op>) {
        let (root, middle) = ((index >> 8) as u16, (index & 255) as u8);
        let word = self.root[usize::from(root)];
        let Some(block) = pointer(word) else {
            if matches!(leaf, Leaf::Class(class) if class == word) {
                return;
            }
            // The /16 had one class: replaced by a block with that class in every word.
            let block = self.add(Box::new([word; 256]), ops);
            self.root[usize::from(root)] = block | TRIE_POINTER;
            self.set_middle(block, middle, leaf, ops);
            ops.push(Op::TrieRootWord { index: root, word: block | TRIE_POINTER });
            return;
        };
        self.set_middle(block, middle, leaf, ops);
        if let Some(class) = self.uniform(block) {
            self.set_root(root, class, ops);
        }
    }

    /// Sets one word of a second-level block.
    fn set_middle(&mut self, block: u32, index: u8, leaf: Leaf, ops: &mut Vec<Op>) {
        let word = self.word(block, index);
        match (pointer(word), leaf) {
            (_, Leaf::Class(class)) if word == class => {}
            (_, Leaf::Class(class)) => {
                self.set_word(block, index, class, ops);
                self.retire(word);
            }
            (None, Leaf::Block(content)) => {
                let leaf = self.add(content, ops);
                self.set_word(block, index, leaf | TRIE_POINTER, ops);
            }
            (Some(leaf), Leaf::Block(content)) => {
                let Some(words) = self.blocks.get_mut(&leaf) else { return };
                for (index, (word, class)) in (0u8..=255).zip(words.iter_mut().zip(content.iter()))
                {
                    if *word != *class {
                        *word = *class;
                        ops.push(Op::TrieWord { block: leaf, index, word: *class });
                    }
                }
            }
        }
    }

    fn word(&self, block: u32, index: u8) -> u32 {
        self.blocks.get(&block).map_or(0, |words| words[usize::from(index)])
    }

    fn set_word(&mut self, block: u32, index: u8, word: u32, ops: &mut Vec<Op>) {
        if let Some(words) = self.blocks.get_mut(&block) {
            words[usize::from(index)] = word;
            ops.push(Op::TrieWord { block, index, word });
        }
    }

    /// Adds a complete block.
    fn add(&mut self, content: Box<TrieBlock>, ops: &mut Vec<Op>) -> u32 {
        let block = self.slots.allocate();
        ops.push(Op::TrieBlock(block, content.clone()));
        self.blocks.insert(block, content);
        block
    }

    /// The class of a block with the same class in all words.
    fn uniform(&self, block: u32) -> Option<ClassId> {
        let words = self.blocks.get(&block)?;
        (words[0] & TRIE_POINTER == 0 && words.iter().all(|word| *word == words[0]))
            .then_some(words[0])
    }

    /// Retires the block to which a word points.
    fn retire(&mut self, word: u32) {
        let Some(block) = pointer(word) else { return };
        if let Some(words) = self.blocks.remove(&block) {
            self.slots.retire(block);
            words.iter().for_each(|word| self.retire(*word));
        }
    }
}

/// The block to which a word points.
fn pointer(word: u32) -> Option<u32> {
    (word & TRIE_POINTER != 0).then_some(word & !TRIE_POINTER)
}

/// Number of /16s from which all outlines are computed at once.
const OUTLINED: usize = 1024;

/// Outline of every /16: its class by prefixes of up to 16 bits, and whether it contains no prefix longer than 16 bits.
struct Outlines {
    classes: Vec<ClassId>,
    is_plain: Vec<bool>,
}

impl Outlines {
    fn new(classes: &PrefixMap<ClassId>) -> Self {
        let mut all = Self { classes: vec![0; 65_536], is_plain: vec![true; 65_536] };
        let every = Prefix { family: IpFamily::V4, bits: 0, len: 0 };
        // A prefix comes before those it contains, so the longest is painted last.
        for (prefix, class) in classes.under(every) {
            let first = (prefix.v4() >> 16) as usize;
            match 16u32.checked_sub(prefix.len.into()) {
                Some(bits) => all.classes[first..first + (1 << bits)].fill(*class),
                None => all.is_plain[first] = false,
            }
        }
        all
    }

    fn class_at(&self, index: u16) -> (ClassId, bool) {
        (self.classes[usize::from(index)], self.is_plain[usize::from(index)])
    }
}

/// Desired contents of the 256 /24s in a /16.
fn middles(classes: &PrefixMap<ClassId>, whole: Prefix, base: ClassId) -> Vec<Leaf> {
    let mut middles: Vec<Leaf> = (0..256).map(|_| Leaf::Class(base)).collect();
    let mut divided: BTreeSet<Prefix> = BTreeSet::new();
    for (prefix, class) in classes.under(whole).filter(|(prefix, _)| prefix.len > 16) {
        if prefix.len > 24 {
            divided.insert(prefix.truncate(24));
            continue;
        }
        let first = (prefix.v4() >> 8 & 255) as usize;
        let size = 1usize << (24 - prefix.len);
        middles[first..first + size].iter_mut().for_each(|leaf| *leaf = Leaf::Class(*class));
    }
    for prefix in divided {
        middles[(prefix.v4() >> 8 & 255) as usize] = leaf(classes, prefix);
    }
    middles
}

/// The class of all /24s, if they have the same.
fn one_class(middles: &[Leaf]) -> Option<ClassId> {
    let [Leaf::Class(class), others @ ..] = middles else { return None };
    let same = |leaf: &Leaf| matches!(leaf, Leaf::Class(other) if other == class);
    others.iter().all(same).then_some(*class)
}

/// Desired content of a /24.
fn leaf(classes: &PrefixMap<ClassId>, prefix: Prefix) -> Leaf {
    let base = classes.longest(prefix).copied().unwrap_or(0);
    let mut words: Option<Box<TrieBlock>> = None;
    // A prefix comes before those it contains, so the longest is painted last.
    for (inner, class) in classes.under(prefix).filter(|(inner, _)| inner.len > 24) {
        let words = words.get_or_insert_with(|| Box::new([base; 256]));
        let first = (inner.v4() & 255) as usize;
        let size = 1usize << (32 - inner.len);
        words[first..first + size].fill(*class);
    }
    match words {
        None => Leaf::Class(base),
        Some(words) if words.iter().all(|word| *word == words[0]) => Leaf::Class(words[0]),
        Some(words) => Leaf::Block(words),
    }
}
