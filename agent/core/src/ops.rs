//! Operations on the dataplane's tables, in the order in which an update must apply them.
//!
//! Each operation either writes an element that no packet reads yet, or flips one aligned word (or one atomic map
//! element) from the old value to the new. Applying a list in order, with packets at any moment in between, never
//! exposes a mixture of both states.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::Ipv6Net;
use netpold_ebpf::layout::{
    ClassId, Endpoint, MAX_CLASSES, PortBitmap, PortWord, Row, RowBlock, TrieBlock,
};
use serde::Serialize;

use crate::model::DomainName;

/// One operation. Indexes are element numbers of the map concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fill a bitmap that is not in use.
    Bitmap(u32, Box<PortBitmap>),
    /// Fill a row block that is not in use.
    RowBlock(u32, Box<RowBlock>),
    /// Flip one column of a row block in use.
    RowBlockWord {
        /// Row block.
        block: u32,
        /// Column in the block.
        column: u8,
        /// Allowed ports.
        ports: PortWord,
    },
    /// Fill a row that is not in use.
    Row(u32, Box<Row>),
    /// Flip one of the first 256 columns of a row in use.
    RowFirst {
        /// Row.
        row: u32,
        /// Class of the column, below 256.
        class: u8,
        /// Allowed ports.
        ports: PortWord,
    },
    /// Flip the block of 256 columns of a row in use.
    RowWord {
        /// Row.
        row: u32,
        /// `class >> 8` of the columns, not 0.
        index: u8,
        /// Row block.
        block: u32,
    },
    /// Fill a trie block that is not in use.
    TrieBlock(u32, Box<TrieBlock>),
    /// Flip one word of a trie block in use.
    TrieWord {
        /// Trie block.
        block: u32,
        /// Index in the block.
        index: u8,
        /// Trie word.
        word: u32,
    },
    /// Flip one word of the trie's root.
    TrieRootWord {
        /// Upper 16 address bits.
        index: u16,
        /// Trie word.
        word: u32,
    },
    /// Set the class of one IPv6 address (exact table).
    Host6(Ipv6Addr, ClassId),
    /// Remove an IPv6 address from the exact table.
    Host6Gone(Ipv6Addr),
    /// Set the class of an IPv6 prefix (longest match, used if the exact table has no entry).
    Block6(Ipv6Net, ClassId),
    /// Remove an IPv6 prefix.
    Block6Gone(Ipv6Net),
    /// Add a domain name to a list to which no row in use refers.
    Name {
        /// List.
        list: u32,
        /// Domain name.
        name: Box<DomainName>,
        /// A bit for each group of rules.
        groups: u32,
    },
    /// Remove a domain name from a list that no packet reads any more.
    NameGone(u32, Box<DomainName>),
    /// Trust a resolver's answers over UDP and, if true, over TCP.
    Resolver(IpAddr, bool),
    /// Stop trusting a resolver's answers.
    ResolverGone(IpAddr),
    /// Fill a free endpoint slot; `ifindex` is written last.
    Endpoint(u32, Box<Endpoint>),
    /// Flip the rows word of an endpoint slot.
    EndpointRows {
        /// Endpoint slot.
        slot: u32,
        /// Rows word.
        rows: u64,
    },
    /// Change addresses, flags, `id` and `uid_hash` of an endpoint slot: the new element, with the same `ifindex` and
    /// `rows`. Only address slots that were not valid may differ, and the flags word is flipped last. A new `id` means
    /// another pod instance behind the interface.
    EndpointAddrs(u32, Box<Endpoint>),
    /// Free an endpoint slot.
    EndpointGone(u32),
    /// Wait until every packet that is being evaluated has its verdict. A packet reads its endpoint's rows first and
    /// the class later: without the wait, a packet with the old rows could read a class that is valid only with the new
    /// ones.
    Grace,
}

/// Target of operations: the kernel's maps, or memory in tests.
pub trait TableWriter {
    /// Reason why an operation was refused.
    type Error: std::error::Error;
    /// Carry out one operation.
    ///
    /// # Errors
    /// The table is full or the kernel refused; then nothing of this operation is in effect.
    fn write(&mut self, op: &Op) -> Result<(), Self::Error>;
}

/// Sizes of the tables in elements. An update that needs more elements is refused as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Port bitmaps, including the two reserved ones.
    pub bitmaps: u32,
    /// Row blocks, including the empty one.
    pub row_blocks: u32,
    /// Rows, including number 0.
    pub rows: u32,
    /// Trie blocks.
    pub trie_blocks: u32,
    /// IPv6 addresses.
    pub hosts6: u32,
    /// IPv6 prefixes.
    pub blocks6: u32,
    /// Domain names.
    pub names: u32,
}

/// Sizes for most nodes of a cluster of 100,000 pods.
impl Default for Capacity {
    fn default() -> Self {
        Self {
            bitmaps: 1024,
            row_blocks: 4096,
            rows: 2048,
            trie_blocks: 16_384,
            hosts6: 131_072,
            blocks6: 16_384,
            names: 16_384,
        }
    }
}

impl Capacity {
    /// Sizes of a small start, 4 MB: a node with 30 pods in a cluster of 1,000 pods uses less than half.
    pub const SMALL: Self = Self {
        bitmaps: 64,
        row_blocks: 256,
        rows: 128,
        trie_blocks: 1024,
        hosts6: 8192,
        blocks6: 512,
        names: 1024,
    };

    /// Returns the larger of both sizes, for each table.
    #[must_use]
    pub fn or_more(self, other: Self) -> Self {
        Self {
            bitmaps: self.bitmaps.max(other.bitmaps),
            row_blocks: self.row_blocks.max(other.row_blocks),
            rows: self.rows.max(other.rows),
            trie_blocks: self.trie_blocks.max(other.trie_blocks),
            hosts6: self.hosts6.max(other.hosts6),
            blocks6: self.blocks6.max(other.blocks6),
            names: self.names.max(other.names),
        }
    }

    /// Size of a table.
    #[must_use]
    pub fn capacity_of(&self, table: Table) -> u32 {
        match table {
            Table::Classes => MAX_CLASSES,
            Table::Bitmaps => self.bitmaps,
            Table::RowBlocks => self.row_blocks,
            Table::Rows => self.rows,
            Table::TrieBlocks => self.trie_blocks,
            Table::Hosts6 => self.hosts6,
            Table::Blocks6 => self.blocks6,
            Table::Names => self.names,
        }
    }
}

/// Used and available elements of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TableUse {
    /// Name of the table.
    pub table: Table,
    /// Elements in use, including reserved and quarantined ones.
    pub used: u32,
    /// Elements available.
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
    /// `Capacity::blocks6`
    #[serde(rename = "cidrs6")]
    Blocks6,
    /// `Capacity::names`
    Names,
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
            Self::Blocks6 => "IPv6 prefixes",
            Self::Names => "domain names",
        })
    }
}

impl Table {
    /// All tables, in the order in which they are reported.
    pub const ALL: [Self; 8] = [
        Self::Classes,
        Self::Bitmaps,
        Self::RowBlocks,
        Self::Rows,
        Self::TrieBlocks,
        Self::Hosts6,
        Self::Blocks6,
        Self::Names,
    ];
}
