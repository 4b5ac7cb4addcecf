//! Classes of addresses: the IPv4 trie, the tree of IPv6 blocks and the table of IPv6 addresses.

/// Number of the set of peers that an address belongs to. Class 0 is the empty set.
pub type ClassId = u32;
/// Flag of a class word (in the trie or the IPv6 tables): packets to the address may be translated on their way, as
/// with a Service or this node. They are judged again where they reach a local pod or leave the node. Not part of the
/// number.
pub const CLASS_TRANSLATED: ClassId = 1 << 30;
/// Flag of a class word in addition to [`CLASS_TRANSLATED`]: the address is a Service's cluster address, which never
/// begins a flow. Not part of the number.
pub const CLASS_SERVICE: ClassId = 1 << 29;
/// Class with the column of the grants after the translation. A class with [`CLASS_TRANSLATED`] has an even number, and
/// its column is the next one; any other class keeps its own. A packet that still has such an address there was not
/// translated, so only literal grants count.
#[must_use]
#[inline(always)]
pub const fn untranslated(class: ClassId) -> ClassId {
    class | class >> CLASS_TRANSLATED.trailing_zeros() & 1
}
/// Maximum number of classes: 256 blocks of 256 columns in a [`Row`](crate::layout::Row).
pub const MAX_CLASSES: u32 = 65_536;

/// First level of the IPv4 trie: indexed by the upper 16 address bits.
pub type TrieRoot = [u32; 65_536];
/// Second and third level of the IPv4 trie: indexed by the next 8 address bits.
pub type TrieBlock = [u32; 256];
/// Flag of a trie word: its other bits are the index of a [`TrieBlock`]. Without the flag the word is the
/// [`ClassId`].
pub const TRIE_POINTER: u32 = 1 << 31;

/// Keys of a [`Blocks6Node`].
pub const BLOCKS6_KEYS: usize = 7;
/// Flag of a word of the IPv6 block tree: its low bits are the number of a node. Without the flag the word is the
/// [`ClassId`].
pub const BLOCKS6_POINTER: u32 = 1 << 31;
/// Flag in addition to [`BLOCKS6_POINTER`]: the node is the root of a tree over the address's lower half.
pub const BLOCKS6_LOWER: u32 = 1 << 30;
/// Maximum number of nodes of the IPv6 block tree.
pub const BLOCKS6_NODES: u32 = 1 << 24;

/// Node of the IPv6 block tree ([`crate::tables::ipv6_blocks`]), two cache lines. It holds intervals of keys, which
/// are the upper 63 bits of one half of an address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks6Node {
    /// Lower bounds of all intervals but the first, in ascending order; `1 << 63` in unused places.
    pub keys: [u64; BLOCKS6_KEYS],
    /// Zero.
    pub reserved: u64,
    /// Word of each interval, by the half's last bit: a class, the root of a tree over the lower half, or the node
    /// below (then both words are equal).
    pub values: [[u32; 2]; BLOCKS6_KEYS + 1],
}

/// Entries of a bucket of the table of IPv6 addresses.
pub const HOSTS6_WAYS: usize = 3;
/// Addresses of an entry, which differ in their last bits only. Pods mostly get consecutive addresses, and dense
/// entries keep more of them in the CPU's caches.
pub const HOSTS6_GROUP: usize = 4;
/// Mask of [`Hosts6Entry::state`]: one bit for each address in the table.
pub const HOSTS6_VALID: u64 = (1 << HOSTS6_GROUP) - 1;

/// Neighbouring IPv6 addresses and their classes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hosts6Entry {
    /// 32 bits of incarnation in the upper half, which change whenever the entry changes its addresses;
    /// [`HOSTS6_VALID`] in the lower. Only the agent writes it.
    pub state: u64,
    /// First address of the entry, network byte order.
    pub address: [u8; 16],
    /// Class of each valid address.
    pub classes: [ClassId; HOSTS6_GROUP],
}

/// Bucket of the table of IPv6 addresses, two cache lines. The entry of an address is in one of two buckets, by its
/// hash ([`crate::tables::ipv6_hosts`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hosts6Bucket {
    /// The entries.
    pub ways: [Hosts6Entry; HOSTS6_WAYS],
    /// Two bits for each of the bucket's 32 filter bits: how many entries with this first bucket and this filter bit
    /// are in their second bucket. At 0 lookups skip the second bucket; [`HOSTS6_MANY`] never decreases. Only the
    /// agent writes it.
    pub displaced: u64,
}

/// Saturated count in [`Hosts6Bucket::displaced`]: three or more.
pub const HOSTS6_MANY: u64 = 3;

/// Buckets per word of the filter of the table of IPv6 addresses ([`crate::tables::ipv6_hosts`]).
pub const HOSTS6_FILTERED: u32 = u64::BITS / HOSTS6_FILTER_BITS;
/// Bits of the filter per bucket.
pub const HOSTS6_FILTER_BITS: u32 = 32;

const _: () = {
    assert!(size_of::<Blocks6Node>() == 128);
    assert!(size_of::<Hosts6Entry>() == 40 && size_of::<Hosts6Bucket>() == 128);
};
