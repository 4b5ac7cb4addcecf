//! Tables of domain names: [`NameTables`].

use crate::{
    layout::{DoubtPlace, NameKey},
    names::{ignored::IgnoredAnswer, work::Work},
    tables::Tables,
};

/// A table of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameTable {
    /// Addresses that pods resolved.
    Learned,
    /// Questions that pods asked.
    Asked,
}

/// The tables of domain names: BPF maps in the kernel, plain memory in tests. The last functions are the steps of others:
/// functions of their own in the kernel, which the verifier checks once.
pub trait NameTables: Tables {
    /// Working memory.
    fn work(&self) -> Option<Work>;
    /// Jiffies, all 64 bits.
    fn jiffies(&self) -> u64;
    /// Which answers of an address count: [`crate::layout::RESOLVES`] and [`crate::layout::RESOLVES_OVER_TCP`], or 0.
    fn resolver(&self, address: &[u64; 2]) -> u32;
    /// Groups of a list's name, a bit for each; 0 if the list does not have it.
    fn groups(&self, key: &NameKey) -> u32;
    /// First word of a bucket.
    fn name_bucket(&self, store: NameTable, index: u32) -> Option<*mut u64>;
    /// First word of a bucket of connections, see [`crate::layout::StreamBucket`].
    fn stream_bucket(&self, index: u32) -> Option<*mut u64>;
    /// First word of the bytes of the connection at a place, see [`crate::layout::StreamBytes`].
    fn stream_bytes(&self, slot: u32) -> Option<*mut u64>;
    /// A word of doubts about an endpoint's ports, see [`crate::layout::doubt_place`].
    fn doubts(&self, place: DoubtPlace) -> Option<*mut u64>;
    /// Number of the list of names of an egress row.
    fn names_of(&self, row: u32) -> u32;
    /// Row of a group of an egress row's rules.
    fn row_of(&self, row: u32, group: u32) -> u32;
    /// Counts an answer, or a part of it, that opens no address.
    fn count_ignored(&self, reason: IgnoredAnswer);

    /// [`read_name`](crate::names::name::read_name)
    fn read_name(&self, work: Work, at: u32) -> u32;
    /// [`read_some`](crate::names::name::read_some)
    fn read_some(&self, work: Work) -> u32;
    /// [`hash_some`](crate::names::name::hash_some)
    fn hash_some(&self, work: Work, list: u32) -> bool;
    /// [`find`](crate::names::store::find)
    fn find(&self, work: Work, store: NameTable) -> u32;
    /// [`survey`](crate::names::store::survey)
    fn survey(&self, work: Work, store: NameTable);
    /// [`rank_way`](crate::names::store::rank_way)
    fn rank_way(&self, work: Work, store: NameTable, index: u32);
    /// [`record_doubt`](crate::names::doubt::record_doubt)
    fn record_doubt(&self, asker: u64);
}
