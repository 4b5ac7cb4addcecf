//! Nodes of the tree: in the map, and as a private copy.

use netpold_ebpf::layout::{
    BLOCKS6_KEYS, BLOCKS6_LOWER, BLOCKS6_NODES, BLOCKS6_POINTER, Blocks6Node,
};

use crate::bpf::mmap::{MappedArray, MmapError};
use crate::maps::{TableError, at};

/// Name of the map.
pub(super) const NAME: &str = "BLOCKS6";
/// Number of entries in a full node.
pub(super) const ENTRIES: usize = BLOCKS6_KEYS + 1;
/// Key of an unused entry.
const NO_KEY: u64 = 1 << 63;

/// Word of an interval: a class, or a pointer to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    /// Value that programs read.
    pub(super) value: u32,
    /// For a class, the length of its prefix; 0 also without one.
    pub(super) len: u8,
}

impl Word {
    /// Pointer to a node.
    pub(super) const fn pointer(node: u32) -> Self {
        Self { value: BLOCKS6_POINTER | node, len: 0 }
    }

    /// Pointer to the root of a tree over the lower half.
    pub(super) const fn lower(self) -> Self {
        Self { value: self.value | BLOCKS6_LOWER, ..self }
    }

    /// Node that the word points to.
    pub(super) const fn node(self) -> Option<u32> {
        if self.value & BLOCKS6_POINTER == 0 {
            return None;
        }
        Some(self.value & (BLOCKS6_NODES - 1))
    }

    /// Node of the same tree that the word points to.
    pub(super) const fn child(self) -> Option<u32> {
        if self.value & BLOCKS6_LOWER == 0 { self.node() } else { None }
    }
}

/// An interval of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyInterval {
    /// First key of the interval.
    pub(super) first: u64,
    /// Words of the interval, by the bit below the key's.
    pub(super) words: [Word; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct NodeCopy {
    node: Blocks6Node,
    lens: [[u8; 2]; ENTRIES],
}

impl NodeCopy {
    fn new(entries: &[KeyInterval]) -> Self {
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

    /// Entries of the node, with the first key of its range.
    fn entries(&self, first: u64) -> Vec<KeyInterval> {
        let keys = self.node.keys.iter().copied().take_while(|key| *key != NO_KEY);
        let words =
            self.node.values.iter().zip(&self.lens).map(|(values, lens)| {
                [0, 1].map(|half| Word { value: values[half], len: lens[half] })
            });
        let entries = std::iter::once(first).chain(keys).zip(words);
        entries.map(|(first, words)| KeyInterval { first, words }).collect()
    }
}

/// All nodes.
#[derive(Debug)]
pub(super) struct TreeNodes {
    map: MappedArray<Blocks6Node>,
    /// Copies of all nodes that ever were in use.
    copies: Vec<NodeCopy>,
    free: Vec<u32>,
    /// Nodes that become unreachable with the current operation.
    leaving: Vec<u32>,
    /// Unreachable nodes that programs may still read.
    retired: Vec<u32>,
    /// Function that returns once no program reads these any more.
    wait: fn(),
    /// Next node to audit.
    audited: usize,
}

impl TreeNodes {
    pub(super) fn new(map: MappedArray<Blocks6Node>, wait: fn()) -> Self {
        let (copies, free, leaving, retired) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { map, copies, free, leaving, retired, wait, audited: 0 }
    }

    /// Begins an operation that needs up to `needed` nodes.
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

    /// Entries of a node, with the first key of its range.
    pub(super) fn entries(&self, node: u32, first: u64) -> Vec<KeyInterval> {
        self.copies.get(node as usize).map(|copied| copied.entries(first)).unwrap_or_default()
    }

    /// Adds a node, which is not reachable yet.
    pub(super) fn add(&mut self, entries: &[KeyInterval]) -> Result<u32, TableError> {
        let copied = NodeCopy::new(entries);
        let node = match self.free.pop() {
            Some(node) => node,
            None => {
                self.copies.push(NodeCopy::default());
                self.copies.len() as u32 - 1
            }
        };
        self.copies[node as usize] = copied;
        self.map.write_element(node, &copied.node).map_err(at(NAME))?;
        Ok(node)
    }

    /// Retires a node that becomes unreachable with the current operation.
    pub(super) fn retire(&mut self, node: u32) {
        self.leaving.push(node);
    }

    /// Changes the words of an entry of a reachable node, by one store.
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

    /// Compares the next nodes with their desired content, and repairs differences; returns their number.
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

    /// Number of reachable nodes.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.copies.len() - self.free.len() - self.retired.len() - self.leaving.len()
    }

    /// Number of nodes that the last operation has retired.
    #[cfg(test)]
    pub(super) fn leaving(&self) -> usize {
        self.leaving.len()
    }

    #[cfg(test)]
    pub(super) fn map(&self) -> &MappedArray<Blocks6Node> {
        &self.map
    }
}
