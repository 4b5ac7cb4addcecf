//! What the tables must hold, element by element, for comparing it with what they do hold.

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;
use netpold_ebpf::layout::{ClassId, Endpoint, PortBitmap, PortWord, Row, RowBlock, TrieBlock};

/// What an element holds as of the last update. Elements that no packet can reach hold anything
/// and are not told.
#[derive(Clone, Debug)]
pub enum DesiredElement<'a> {
    /// Words of the trie's root, from an index on.
    TrieRoot(u32, &'a [u32]),
    /// A trie block.
    TrieBlock(u32, &'a TrieBlock),
    /// A row; columns of [`DesiredElement::ANY`] hold anything.
    Row(u32, Box<Row>),
    /// A row block; likewise.
    RowBlock(u32, Box<RowBlock>),
    /// A port bitmap.
    Bitmap(u32, Box<PortBitmap>),
    /// An endpoint slot; `None`: free.
    Endpoint(u32, Option<&'a Endpoint>),
    /// An address of the exact IPv6 table.
    Host6(Ipv6Addr, ClassId),
    /// A prefix of the IPv6 prefix table.
    Cidr6(Ipv6Net, ClassId),
}

impl DesiredElement<'_> {
    /// Stands for whatever a column of a row holds; no port set is this word.
    pub const ANY: PortWord = PortWord::MAX;
}

/// How far a pass over all elements has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    pub(super) section: usize,
    pub(super) next: u32,
}

impl Cursor {
    /// Whether a pass is just to begin.
    #[must_use]
    pub fn is_start(self) -> bool {
        self == Self::default()
    }
}
