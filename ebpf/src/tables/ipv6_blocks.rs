//! The classes of IPv6 blocks: a search tree in an array that the agent writes while packets are judged.
//!
//! The blocks cut the address space into intervals, each with the class of its longest prefix. A tree
//! over the upper 63 bits of an address finds its interval; bit 63 chooses one of the two words that the
//! interval has. That is a class, or leads to a tree over the next 63 bits, of blocks longer than /64,
//! whose words the last bit chooses. With 63 bits a comparison is a subtraction and a shift, without a
//! jump, so that a lookup takes as long as the trees are deep, whatever they hold: the kernel's
//! `LPM_TRIE` takes a step, and a cache line that is read nowhere else, for each bit that two blocks part at.
//!
//! The keys of a node that can be reached never change, and each of its words changes at once: the agent
//! writes a new node beside the old one, and then the one word that leads there. A reader that came by the
//! old word finds what was there before, as the agent waits for it before it uses the old node again.

use crate::{
    flow::memory::Memory,
    layout::{BLOCKS6_KEYS, BLOCKS6_LOWER, BLOCKS6_NODES, BLOCKS6_POINTER, Blocks6Node, ClassId},
};

/// Nodes on the way to a class at the most: two trees of [`BLOCKS6_NODES`] nodes, of which all but the
/// roots have three children.
pub const DEPTH: usize = 32;

const VALUES: usize = core::mem::offset_of!(Blocks6Node, values) / 8;

/// The class of an address (words in memory order), from the word of the root on. `node` gives the first
/// word of a node; a node that there is none of ends the search with class 0.
///
/// # Safety
/// Each node must be a [`Blocks6Node`] in memory as [`Memory`] asks.
#[must_use]
#[inline(always)]
pub unsafe fn class<M: Memory>(
    memory: &M,
    root: u32,
    address: [u64; 2],
    node: impl Fn(u32) -> Option<*const u64>,
) -> ClassId {
    let mut half = u64::from_be(address[0]);
    let mut word = root;
    for _ in 0..DEPTH {
        if word & BLOCKS6_POINTER == 0 {
            return word;
        }
        if word & BLOCKS6_LOWER != 0 {
            half = u64::from_be(address[1]);
        }
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
    // The line of the words is on its way while the keys are compared.
    // SAFETY: a word of the node.
    let _ = unsafe { memory.load(node.add(VALUES)) };
    let mut index = BLOCKS6_KEYS as u64;
    for place in 0..BLOCKS6_KEYS {
        // SAFETY: a key of the node.
        let begin = unsafe { memory.load(node.add(place)) };
        // One less for each interval that begins behind the key.
        index -= key.wrapping_sub(begin) >> 63;
    }
    let index = memory.opaque(index as usize, key) & BLOCKS6_KEYS;
    // SAFETY: a pair of words of the node; the verifier holds us to it.
    unsafe { memory.load(node.add(VALUES + index)) }
}
