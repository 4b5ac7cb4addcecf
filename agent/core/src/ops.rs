//! What an update writes: operations on the dataplane's tables, in the order they must happen.
//!
//! Each operation is either a write to a place that no packet reads yet, or one aligned word (or
//! one atomic map element) that flips from the old meaning to the new. Applying a list in order,
//! with any packets in between, never shows a mixture.

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;
use netpold_ebpf::layout::{
    ClassId, Endpoint, MAX_CLASSES, PortBitmap, PortWord, Row, RowBlock, TrieBlock,
};
use serde::Serialize;

/// One operation. Indexes are element numbers of the map concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fill a bitmap that is not in use.
    Bitmap(u32, Box<PortBitmap>),
    /// Fill a row block that is not in use.
    RowBlock(u32, Box<RowBlock>),
    /// Flip one column of a row block in use: block, column, what is allowed.
    RowBlockWord(u32, u8, PortWord),
    /// Fill a row that is not in use.
    Row(u32, Box<Row>),
    /// Flip one column of a row in use: row, class below 256, what is allowed.
    RowFirst(u32, u8, PortWord),
    /// Flip one word of a row in use: row, `class >> 8` (not 0), row block.
    RowWord(u32, u8, u32),
    /// Fill a trie block that is not in use.
    TrieBlock(u32, Box<TrieBlock>),
    /// Flip one word of a trie block in use: block, index, trie word.
    TrieWord(u32, u8, u32),
    /// Flip one word of the trie's root: upper 16 address bits, trie word.
    TrieRootWord(u16, u32),
    /// Set the class of one IPv6 address (exact table).
    Host6(Ipv6Addr, ClassId),
    /// Remove an IPv6 address from the exact table.
    Host6Gone(Ipv6Addr),
    /// Set the class of an IPv6 prefix (longest match, asked when the exact table has no entry).
    Cidr6(Ipv6Net, ClassId),
    /// Remove an IPv6 prefix.
    Cidr6Gone(Ipv6Net),
    /// Fill a free endpoint slot; `ifindex` is written last.
    Endpoint(u32, Box<Endpoint>),
    /// Flip the rows word of an endpoint slot.
    EndpointRows(u32, u64),
    /// Change addresses, flags, `id` and `uid_hash` of an endpoint slot: the new element, with the
    /// same `ifindex` and `rows`. Only address slots that are not valid before may differ, and the
    /// flags word is flipped last. Another `id` means another pod instance behind the interface.
    EndpointAddrs(u32, Box<Endpoint>),
    /// Free an endpoint slot.
    EndpointGone(u32),
    /// Wait until every packet whose judgement began before is judged. A packet reads its
    /// endpoint's rows first and its class later: without this, one that read the old rows could
    /// meet a class that is only right with the new ones.
    Grace,
}

/// Where operations go: the kernel's maps, or plain memory in tests.
pub trait TableWriter {
    /// Why an operation was refused.
    type Error: std::error::Error;
    /// Carry out one operation.
    ///
    /// # Errors
    /// The table is full or the kernel refused; nothing of this operation is in effect then.
    fn write(&mut self, op: &Op) -> Result<(), Self::Error>;
}

/// Sizes of the tables in elements; a delta that would need more is refused as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Port bitmaps, the two reserved ones included.
    pub bitmaps: u32,
    /// Row blocks, the empty one included.
    pub row_blocks: u32,
    /// Rows, number 0 included.
    pub rows: u32,
    /// Trie blocks.
    pub trie_blocks: u32,
    /// IPv6 addresses.
    pub hosts6: u32,
    /// IPv6 prefixes.
    pub cidrs6: u32,
}

/// For most nodes of a cluster of 100,000 pods.
impl Default for Capacity {
    fn default() -> Self {
        Self {
            bitmaps: 1024,
            row_blocks: 4096,
            rows: 2048,
            trie_blocks: 16_384,
            hosts6: 131_072,
            cidrs6: 16_384,
        }
    }
}

impl Capacity {
    /// For a node of thirty pods in a cluster of a thousand, which use less than half: 4 MB.
    pub const SMALL: Self = Self {
        bitmaps: 64,
        row_blocks: 256,
        rows: 128,
        trie_blocks: 1024,
        hosts6: 8192,
        cidrs6: 512,
    };

    /// Each size or the other's, whichever is larger.
    #[must_use]
    pub fn or_more(self, other: Self) -> Self {
        Self {
            bitmaps: self.bitmaps.max(other.bitmaps),
            row_blocks: self.row_blocks.max(other.row_blocks),
            rows: self.rows.max(other.rows),
            trie_blocks: self.trie_blocks.max(other.trie_blocks),
            hosts6: self.hosts6.max(other.hosts6),
            cidrs6: self.cidrs6.max(other.cidrs6),
        }
    }

    /// Elements that a table has.
    #[must_use]
    pub fn of(&self, table: Table) -> u32 {
        match table {
            Table::Classes => MAX_CLASSES,
            Table::Bitmaps => self.bitmaps,
            Table::RowBlocks => self.row_blocks,
            Table::Rows => self.rows,
            Table::TrieBlocks => self.trie_blocks,
            Table::Hosts6 => self.hosts6,
            Table::Cidrs6 => self.cidrs6,
        }
    }
}

/// Used and available elements of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fill {
    /// Name of the table.
    pub table: Table,
    /// Elements in use, reserved and quarantined ones included.
    pub used: u32,
    /// Elements there are.
    pub capacity: u32,
}

/// A table of limited size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Table {
    /// Columns of a row; cannot grow.
    Classes,
    /// `Capacity::bitmaps`
    Bitmaps,
    /// `Capacity::row_blocks`
    RowBlocks,
    /// `Capacity::rows`
    Rows,
    /// `Capacity::trie_blocks`
    TrieBlocks,
    /// `Capacity::hosts6`
    Hosts6,
    /// `Capacity::cidrs6`
    Cidrs6,
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Classes => "classes",
            Self::Bitmaps => "port bitmaps",
            Self::RowBlocks => "row blocks",
            Self::Rows => "rows",
            Self::TrieBlocks => "IPv4 trie blocks",
            Self::Hosts6 => "IPv6 addresses",
            Self::Cidrs6 => "IPv6 prefixes",
        })
    }
}

impl Table {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 7] = [
        Self::Classes,
        Self::Bitmaps,
        Self::RowBlocks,
        Self::Rows,
        Self::TrieBlocks,
        Self::Hosts6,
        Self::Cidrs6,
    ];
}
