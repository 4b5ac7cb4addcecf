//! Classes of IPv6 blocks: a search tree in an array that the agent writes while packets are judged.
//!
//! The blocks cut the address space into intervals, each with the class of its longest prefix. A tree over the upper
//! 63 bits of an address finds the interval, and bit 63 selects one of its two words. The word is a class, or the root
//! of a tree over the next 63 bits, for blocks longer than /64, where the last bit selects the word. With 63 bits a
//! comparison is a subtraction and a shift, without a branch, so the cost of a lookup depends on the depth of the
//! trees alone. The kernel's `LPM_TRIE` takes a step, with a cache line of its own, for each bit at which two blocks
//! differ.
//!
//! The keys of a reachable node never change, and each of its words changes at once: the agent writes a new node
//! beside the old one, then the one word that leads there. A reader that followed the old word finds the previous
//! contents, since the agent waits for such readers before it reuses the old node.

use crate::{
    flow::memory::Memory,
    layout::{BLOCKS6_KEYS, BLOCKS6_LOWER, BLOCKS6_NODES, BLOCKS6_POINTER, Blocks6Node, ClassId},
};

/// Maximum number of nodes on the way to a class: two trees of [`BLOCKS6_NODES`] nodes, in which all but the roots have
/// at least three children.
pub const DEPTH: usize = 32;

const VALUES: usize = core::mem::offset_of!(Blocks6Node, values) / 8;

/// The class of an address (words in memory order), starting at the root word. `node` returns the first word of a
/// node; a missing node ends the search with class 0.
///
/// # Safety
/// Each node must be a [`Blocks6Node`] in memory that meets the conditions of [`Memory`].
#[must_use]
#[inline(always)]
pub unsafe fn class<M: Memory>(
    memory: &M,
    root: u32,
    address: [u64; 2],
    node: impl Fn(u32) -> Option<*const u64>,
) -> ClassId {
    let halves = address.map(u64::from_be);
    let mut half = halves[0];
    let mut word = root;
    for _ in 0..DEPTH {
        if word & BLOCKS6_POINTER == 0 {
            return word;
        }
        // Selects without a branch, which the verifier would follow at each node; hidden, or the compiler adds one.
        let lower = memory.opaque(((word / BLOCKS6_LOWER) & 1) as usize, half) as u64;
        half ^= (half ^ halves[1]) & lower.wrapping_neg();
        let Some(node) = node(word & (BLOCKS6_NODES - 1)) else { return 0 };
        // SAFETY: as the caller promises.
        let words = unsafe { search(memory, node, half >> 1) };
        // Two words of 32 bits: on a little-endian machine the first is the lower half.
        word = (words >> ((half & 1) * 32)) as u32;
    }
    0
}

/// The two words of a key's interval in a node.
///
/// # Safety
/// As [`class`].
#[inline(always)]
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a node's words are read under one promise"
)]
unsafe fn search<M: Memory>(memory: &M, node: *const u64, key: u64) -> u64 {
    // Prefetches the cache line of the words while the keys are compared.
    // SAFETY: a word of the node.
    let _ = unsafe { memory.load(node.add(VALUES)) };
    let mut index = BLOCKS6_KEYS as u64;
    for place in 0..BLOCKS6_KEYS {
        // SAFETY: a key of the node.
        let begin = unsafe { memory.load(node.add(place)) };
        // Subtracts 1 for each interval that begins after the key.
        index -= key.wrapping_sub(begin) >> 63;
    }
    let index = memory.opaque(index as usize, key) & BLOCKS6_KEYS;
    // SAFETY: a pair of words of the node, by the mask that the verifier checks too.
    unsafe { memory.load(node.add(VALUES + index)) }
}
