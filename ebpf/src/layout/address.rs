//! Classes of addresses: the IPv4 trie, the tree of IPv6 blocks and the table of IPv6 addresses.

/// Number of the set of peers an address belongs to. Class 0 is "no set at all".
pub type ClassId = u32;
/// A class word (in the trie, the IPv6 tables) with this bit set: packets to the address may be
/// translated on their way, as those to a Service or to the own node, so what the source's row allows
/// is judged again where the packet reaches a local pod or leaves the node. Not part of the number.
pub const CLASS_TRANSLATED: ClassId = 1 << 30;
/// A class word with this bit set beside [`CLASS_TRANSLATED`]: the addresses are Services' cluster
/// addresses, from which nobody begins a flow. Not part of the number.
pub const CLASS_SERVICE: ClassId = 1 << 29;
/// The class whose column says what is allowed behind the place of translation: of one with
/// [`CLASS_TRANSLATED`], whose number is even, the next, of any other the same. A packet that has an
/// address of such a class there was not translated, so it is judged by what was granted literally.
#[must_use]
#[inline(always)]
pub const fn untranslated(class: ClassId) -> ClassId {
    class | class >> CLASS_TRANSLATED.trailing_zeros() & 1
}
/// Highest number of classes: 256 blocks of 256 columns in a [`Row`](crate::layout::Row).
pub const MAX_CLASSES: u32 = 65_536;

/// First level of the IPv4 trie: indexed by the upper 16 address bits.
pub type TrieRoot = [u32; 65_536];
/// Second and third level of the IPv4 trie: indexed by the next 8 address bits.
pub type TrieBlock = [u32; 256];
/// A trie word with this bit set points to the [`TrieBlock`] in its other bits; without it the
/// word is the [`ClassId`].
pub const TRIE_POINTER: u32 = 1 << 31;

/// Keys of a [`Blocks6Node`].
pub const BLOCKS6_KEYS: usize = 7;
/// A word of the tree of IPv6 blocks with this bit set leads to the node whose number is in its low bits;
/// without it the word is the [`ClassId`].
pub const BLOCKS6_POINTER: u32 = 1 << 31;
/// Beside [`BLOCKS6_POINTER`]: that node is the root of a tree over the address's lower half.
pub const BLOCKS6_LOWER: u32 = 1 << 30;
/// Highest number of nodes of the tree of IPv6 blocks.
pub const BLOCKS6_NODES: u32 = 1 << 24;

/// A node of the tree of IPv6 blocks ([`crate::tables::ipv6_blocks`]), two cache lines: intervals of keys, which
/// are the upper 63 bits of one half of an address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks6Node {
    /// Where intervals begin, in ascending order, but for the first one; `1 << 63` where there are no more.
    pub keys: [u64; BLOCKS6_KEYS],
    /// Zero.
    pub reserved: u64,
    /// What each interval leads to, by the half's last bit: a class, a tree over the lower half, or, both the same, the
    /// node below.
    pub values: [[u32; 2]; BLOCKS6_KEYS + 1],
}

/// Entries of a bucket of the table of IPv6 addresses.
pub const HOST6_WAYS: usize = 3;
/// Addresses of an entry, which differ in their last bits only: pods' addresses are mostly given out one after the
/// other, and the fewer cache lines hold them the more of them are in the CPU's caches.
pub const HOST6_GROUP: usize = 4;
/// [`Hosts6Entry::state`]: for each address, whether it is in the table.
pub const HOST6_VALID: u64 = (1 << HOST6_GROUP) - 1;

/// Neighbouring IPv6 addresses and their classes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hosts6Entry {
    /// From the top: 32 bits that change whenever the entry is other addresses', and [`HOST6_VALID`]. Only the agent
    /// writes it.
    pub state: u64,
    /// The first of the addresses, network byte order.
    pub address: [u8; 16],
    /// Class of each address that is valid.
    pub classes: [ClassId; HOST6_GROUP],
}

/// A bucket of the table of IPv6 addresses: two cache lines. An address' entry is in one of two, by
/// its hash ([`crate::tables::ipv6_hosts`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hosts6Bucket {
    /// The entries.
    pub ways: [Hosts6Entry; HOST6_WAYS],
    /// For each of the bucket's bits in the filter, two bits: how many entries, of which this is the first bucket
    /// and that have that bit, are in their second one. While it is none, nobody looks there for such an address;
    /// [`HOSTS6_MANY`] stays. Only the agent writes it.
    pub displaced: u64,
}

/// [`Hosts6Bucket::displaced`]: three or more.
pub const HOSTS6_MANY: u64 = 3;

/// Buckets of the table of IPv6 addresses that have their bits in one word of its filter
/// ([`crate::tables::ipv6_hosts`]).
pub const HOSTS6_FILTERED: u32 = u64::BITS / HOSTS6_FILTER_BITS;
/// Bits of the filter for each bucket.
pub const HOSTS6_FILTER_BITS: u32 = 32;

const _: () = {
    assert!(size_of::<Blocks6Node>() == 128);
    assert!(size_of::<Hosts6Entry>() == 40 && size_of::<Hosts6Bucket>() == 128);
};
