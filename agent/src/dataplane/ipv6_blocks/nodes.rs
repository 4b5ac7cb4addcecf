//! The nodes of the tree: in the map, and a copy that nobody else changes.

use netpold_ebpf::layout::{
    BLOCKS6_KEYS, BLOCKS6_LOWER, BLOCKS6_NODES, BLOCKS6_POINTER, Blocks6Node,
};

use crate::bpf::mmap::{MappedArray, MmapError};
use crate::dataplane::maps::{TableError, at};

/// The map.
pub(super) const NAME: &str = "BLOCKS6";
/// Entries that a node has room for.
pub(super) const ENTRIES: usize = BLOCKS6_KEYS + 1;
/// The key of an entry that a node does not have.
const NO_KEY: u64 = 1 << 63;

/// What an interval leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    /// As programs read it.
    pub(super) value: u32,
    /// Of a class: length of the prefix that gives it; 0 also where none does.
    pub(super) len: u8,
}

impl Word {
    /// Leads to a node.
    pub(super) const fn pointer(node: u32) -> Self {
        Self { value: BLOCKS6_POINTER | node, len: 0 }
    }

    /// Leads to the root of a tree over the lower half.
    pub(super) const fn lower(self) -> Self {
        Self { value: self.value | BLOCKS6_LOWER, ..self }
    }

    /// The node that it leads to.
    pub(super) const fn node(self) -> Option<u32> {
        if self.value & BLOCKS6_POINTER == 0 {
            return None;
        }
        Some(self.value & (BLOCKS6_NODES - 1))
    }

    /// The node of the same tree that it leads to.
    pub(super) const fn child(self) -> Option<u32> {
        if self.value & BLOCKS6_LOWER == 0 { self.node() } else { None }
    }
}

/// An interval of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its first key.
    pub(super) first: u64,
    /// Where it leads, by the bit below the key's.
    pub(super) words: [Word; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Copied {
    node: Blocks6Node,
    lens: [[u8; 2]; ENTRIES],
}

impl Copied {
    fn new(entries: &[Entry]) -> Self {
        let mut copied = Self::default();
        let firsts = entries.iter().skip(1).map(|entry| entry.first);
        for (key, first) in copied.node.keys.iter_mut().zip(firsts.chain(std::iter::repeat(NO_KEY)))
        {
            *key = first;
        }
        for (index, entry) in entries.iter().take(ENTRIES).enumerate() {
            copied.set(index, entry.words);
        }
        copied
    }

    fn set(&mut self, index: usize, words: [Word; 2]) {
        self.node.values[index] = words.map(|word| word.value);
        self.lens[index] = words.map(|word| word.len);
    }

    /// Its entries, if it begins at a key.
    fn entries(&self, first: u64) -> Vec<Entry> {
        let keys = self.node.keys.iter().copied().take_while(|key| *key != NO_KEY);
        let words =
            self.node.values.iter().zip(&self.lens).map(|(values, lens)| {
                [0, 1].map(|half| Word { value: values[half], len: lens[half] })
            });
        let entries = std::iter::once(first).chain(keys).zip(words);
        entries.map(|(first, words)| Entry { first, words }).collect()
    }
}

/// All nodes there are.
#[derive(Debug)]
pub(super) struct Nodes {
    map: MappedArray<Blocks6Node>,
    /// Of each node that ever was in use.
    copies: Vec<Copied>,
    free: Vec<u32>,
    /// Nothing leads there after the operation that is being carried out.
    leaving: Vec<u32>,
    /// Nothing leads there; a program that came there before may still read them.
    retired: Vec<u32>,
    /// Returns when no such program is left.
    wait: fn(),
    /// The next node to be audited.
    audited: usize,
}

impl Nodes {
    pub(super) fn new(map: MappedArray<Blocks6Node>, wait: fn()) -> Self {
        let (copies, free, leaving, retired) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { map, copies, free, leaving, retired, wait, audited: 0 }
    }

    /// Begins an operation that needs up to so many nodes.
    pub(super) fn begin(&mut self, needed: usize) -> Result<(), TableError> {
        self.retired.append(&mut self.leaving);
        if self.left() < needed && !self.retired.is_empty() {
            (self.wait)();
            self.free.append(&mut self.retired);
        }
        if self.left() < needed { Err(TableError::Full { name: NAME }) } else { Ok(()) }
    }

    fn left(&self) -> usize {
        self.map.elements() as usize - self.copies.len() + self.free.len()
    }

    /// A node's entries; it begins at a key.
    pub(super) fn entries(&self, node: u32, first: u64) -> Vec<Entry> {
        self.copies.get(node as usize).map(|copied| copied.entries(first)).unwrap_or_default()
    }

    /// A new node, which nothing leads to yet.
    pub(super) fn add(&mut self, entries: &[Entry]) -> Result<u32, TableError> {
        let copied = Copied::new(entries);
        let node = match self.free.pop() {
            Some(node) => node,
            None => {
                self.copies.push(Copied::default());
                self.copies.len() as u32 - 1
            }
        };
        self.copies[node as usize] = copied;
        self.map.write_element(node, &copied.node).map_err(at(NAME))?;
        Ok(node)
    }

    /// Nothing leads to a node any more, once the operation is carried out.
    pub(super) fn retire(&mut self, node: u32) {
        self.leaving.push(node);
    }

    /// Has an entry of a node that is in use lead elsewhere, by one store.
    pub(super) fn set(
        &mut self,
        node: u32,
        index: usize,
        words: [Word; 2],
    ) -> Result<(), TableError> {
        let Some(copied) = self.copies.get_mut(node as usize) else { return Ok(()) };
        let before = copied.node.values[index];
        copied.set(index, words);
        let [first, second] = copied.node.values[index];
        if before == [first, second] {
            return Ok(());
        }
        let offset = std::mem::offset_of!(Blocks6Node, values) + index * size_of::<[u32; 2]>();
        let both = u64::from(first) | u64::from(second) << 32;
        self.map.store_u64(node, offset, both).map_err(at(NAME))
    }

    /// Compares the next nodes with what they must hold, and puts right those that differ; how many.
    pub(super) fn audit(&mut self, count: usize) -> Result<u64, MmapError> {
        let mut wrong = 0;
        for copied in self.copies.iter().skip(self.audited).take(count) {
            let node = self.audited as u32;
            if self.map.read(node)? != copied.node {
                self.map.write_element(node, &copied.node)?;
                wrong += 1;
            }
            self.audited += 1;
        }
        if self.audited >= self.copies.len() {
            self.audited = 0;
        }
        Ok(wrong)
    }

    /// Nodes that something leads to.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.copies.len() - self.free.len() - self.retired.len() - self.leaving.len()
    }

    /// Nodes that the last operation has left.
    #[cfg(test)]
    pub(super) fn leaving(&self) -> usize {
        self.leaving.len()
    }

    #[cfg(test)]
    pub(super) fn map(&self) -> &MappedArray<Blocks6Node> {
        &self.map
    }
}
