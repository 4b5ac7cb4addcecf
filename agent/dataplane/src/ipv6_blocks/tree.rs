//! Edits of the trees: "painting" gives the addresses of a prefix another word.
//!
//! A node in use changes only words, one by one; where intervals begin or end, a new node replaces it. So each address
//! has its old class until one store, and its new one from then on.

use super::nodes::{ENTRIES, KeyInterval, TreeNodes, Word};
use crate::maps::TableError;

/// The last key.
const LAST: u64 = u64::MAX >> 1;
/// Minimum number of entries in a node other than a root.
const LEAST: usize = 3;
/// Maximum number of nodes that an operation needs: at each level of both trees, two new halves at both ends of the
/// prefix, each with a neighbour.
pub(super) const NEEDED: usize = 256;

/// Half of an address, as the key of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressHalf {
    Upper,
    Lower,
}

/// A prefix and the new word of its addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct RangeUpdate {
    /// The prefix, with host bits of zero.
    pub(super) bits: u128,
    pub(super) len: u8,
    /// New word of the addresses that have no class of a longer prefix.
    pub(super) word: Word,
}

/// Range of keys in a tree.
#[derive(Clone, Copy, Debug)]
struct Keys {
    first: u64,
    last: u64,
}

impl Keys {
    const ALL: Self = Self { first: 0, last: LAST };

    const fn intersects(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl RangeUpdate {
    /// Range of keys that the prefix covers in a tree, and whether it covers their first and second words.
    fn covers(&self, half: AddressHalf) -> (Keys, [bool; 2]) {
        let (bits, len) = match half {
            AddressHalf::Upper => ((self.bits >> 64) as u64, self.len.min(64)),
            AddressHalf::Lower => (self.bits as u64, self.len.saturating_sub(64)),
        };
        let first = bits >> 1;
        if len == 64 {
            let second = bits & 1 == 1;
            return (Keys { first, last: first }, [!second, second]);
        }
        (Keys { first, last: first | LAST >> len }, [true; 2])
    }
}

/// Outcome of painting a node.
enum UpdatedNode {
    /// The node stays in use.
    InPlace,
    /// The node is retired; the entries, in any number, are to replace its own.
    New(Vec<KeyInterval>),
}

/// A child of a node during an edit.
enum UpdatedChild {
    Kept(KeyInterval),
    Anew(Vec<KeyInterval>),
}

/// Gives the addresses of a prefix another word; returns the new word of the root.
pub(super) fn update_range(
    nodes: &mut TreeNodes,
    root: Word,
    paint: &RangeUpdate,
) -> Result<Word, TableError> {
    paint_tree(nodes, root, AddressHalf::Upper, paint)
}

fn paint_tree(
    nodes: &mut TreeNodes,
    root: Word,
    half: AddressHalf,
    paint: &RangeUpdate,
) -> Result<Word, TableError> {
    let mut entries = match root.node() {
        Some(node) => match paint_node(nodes, node, Keys::ALL, half, paint)? {
            UpdatedNode::InPlace => return Ok(root),
            UpdatedNode::New(entries) => entries,
        },
        None => {
            let mut entries = vec![KeyInterval { first: 0, words: [root; 2] }];
            paint_entries(nodes, &mut entries, LAST, half, paint)?;
            entries
        }
    };
    while let [_, _, ..] = entries[..] {
        entries = pack(nodes, &entries, paint.covers(half).0.last)?;
    }
    let Some(KeyInterval { words: [word, _], .. }) = entries.pop() else { return Ok(root) };
    Ok(if half == AddressHalf::Lower && word.node().is_some() { word.lower() } else { word })
}

fn paint_node(
    nodes: &mut TreeNodes,
    node: u32,
    keys: Keys,
    half: AddressHalf,
    paint: &RangeUpdate,
) -> Result<UpdatedNode, TableError> {
    let old = nodes.entries(node, keys.first);
    let is_leaf = old.iter().all(|entry| entry.words[0].child().is_none());
    let new = if is_leaf {
        let mut entries = old.clone();
        paint_entries(nodes, &mut entries, keys.last, half, paint)?;
        entries
    } else {
        paint_children(nodes, &old, keys.last, half, paint)?
    };
    if old.len() != new.len() || old.iter().zip(&new).any(|(old, new)| old.first != new.first) {
        nodes.retire(node);
        return Ok(UpdatedNode::New(new));
    }
    for (index, entry) in new.iter().enumerate().filter(|(index, entry)| old[*index] != **entry) {
        nodes.set(node, index, entry.words)?;
    }
    Ok(UpdatedNode::InPlace)
}

/// Entries of an inner node after its children were painted.
fn paint_children(
    nodes: &mut TreeNodes,
    old: &[KeyInterval],
    last: u64,
    half: AddressHalf,
    paint: &RangeUpdate,
) -> Result<Vec<KeyInterval>, TableError> {
    let (covered, _) = paint.covers(half);
    let mut children = Vec::with_capacity(old.len());
    for (index, entry) in old.iter().enumerate() {
        let last = old.get(index + 1).map_or(last, |next| next.first - 1);
        let keys = Keys { first: entry.first, last };
        let child = entry.words[0].child().filter(|_| keys.intersects(covered));
        let painted = match child {
            Some(child) => paint_node(nodes, child, keys, half, paint)?,
            None => UpdatedNode::InPlace,
        };
        children.push(match painted {
            UpdatedNode::InPlace => UpdatedChild::Kept(*entry),
            UpdatedNode::New(entries) => UpdatedChild::Anew(entries),
        });
    }
    join_small(nodes, &mut children);
    let mut entries = Vec::with_capacity(old.len() + 2);
    for child in children {
        match child {
            UpdatedChild::Kept(entry) => entries.push(entry),
            UpdatedChild::Anew(contents) => entries.extend(pack(nodes, &contents, covered.last)?),
        }
    }
    Ok(entries)
}

/// Joins children that have become too small with a neighbour.
fn join_small(nodes: &mut TreeNodes, children: &mut Vec<UpdatedChild>) {
    let is_small = |child: &UpdatedChild| matches!(child, UpdatedChild::Anew(entries) if entries.len() < LEAST);
    while children.len() > 1 {
        let Some(small) = children.iter().position(is_small) else { return };
        let left = small.saturating_sub(1);
        let mut entries = Vec::new();
        for child in children.drain(left..left + 2) {
            match child {
                UpdatedChild::Anew(more) => entries.extend(more),
                UpdatedChild::Kept(entry) => {
                    if let Some(node) = entry.words[0].child() {
                        entries.extend(nodes.entries(node, entry.first));
                        nodes.retire(node);
                    }
                }
            }
        }
        merge_equal(&mut entries);
        children.insert(left, UpdatedChild::Anew(entries));
    }
}

/// Paints the entries of a leaf with a range up to `last`.
fn paint_entries(
    nodes: &mut TreeNodes,
    entries: &mut Vec<KeyInterval>,
    last: u64,
    half: AddressHalf,
    paint: &RangeUpdate,
) -> Result<(), TableError> {
    let (covered, which) = paint.covers(half);
    let behind = Some(covered.last + 1).filter(|behind| *behind <= last);
    for first in [Some(covered.first), behind].into_iter().flatten() {
        let place = entries.partition_point(|entry| entry.first < first);
        let begins = entries.get(place).is_some_and(|entry| entry.first == first);
        if !begins && let Some(before) = place.checked_sub(1) {
            entries.insert(place, KeyInterval { first, ..entries[before] });
        }
    }
    for entry in entries.iter_mut() {
        if entry.first < covered.first || entry.first > covered.last {
            continue;
        }
        for (word, _) in entry.words.iter_mut().zip(which).filter(|(_, covered)| *covered) {
            *word = paint_word(nodes, *word, half, paint)?;
        }
    }
    merge_equal(entries);
    Ok(())
}

fn paint_word(
    nodes: &mut TreeNodes,
    word: Word,
    half: AddressHalf,
    paint: &RangeUpdate,
) -> Result<Word, TableError> {
    if half == AddressHalf::Upper && (paint.len > 64 || word.node().is_some()) {
        return paint_tree(nodes, word, AddressHalf::Lower, paint);
    }
    Ok(if word.len <= paint.len { paint.word } else { word })
}

/// Merges equal neighbours into one entry.
fn merge_equal(entries: &mut Vec<KeyInterval>) {
    entries.dedup_by(|later, earlier| later.words == earlier.words);
}

/// Packs entries into new nodes; returns the entries of the node above. Nodes fill up before another one begins if
/// entries are added in ascending order.
fn pack(
    nodes: &mut TreeNodes,
    entries: &[KeyInterval],
    painted_last: u64,
) -> Result<Vec<KeyInterval>, TableError> {
    let count = entries.len().div_ceil(ENTRIES);
    let at_the_end = entries.last().is_some_and(|entry| entry.first <= painted_last + 1);
    let mut rest = entries;
    let mut above = Vec::with_capacity(count);
    for node in 0..count {
        let size = if count == 2 && node == 0 && at_the_end {
            rest.len().saturating_sub(LEAST).min(ENTRIES)
        } else {
            rest.len().div_ceil(count - node)
        };
        let (these, others) = rest.split_at(size);
        rest = others;
        if let Some(first) = these.first().map(|entry| entry.first) {
            let word = Word::pointer(nodes.add(these)?);
            above.push(KeyInterval { first, words: [word; 2] });
        }
    }
    Ok(above)
}
