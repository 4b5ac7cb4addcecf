//! Desired contents of the tables, element by element, to compare with the installed ones.

use std::net::Ipv6Addr;

use crate::model::DomainName;
use ipnet::Ipv6Net;
use netpold_ebpf::layout::{ClassId, Endpoint, PortBitmap, PortWord, Row, RowBlock, TrieBlock};

/// Desired content of an element as of the last update. Elements that no packet can reach have arbitrary content and
/// are left out.
#[derive(Clone, Debug)]
pub enum DesiredElement<'a> {
    /// Words of the trie's root from an index on.
    TrieRoot(u32, &'a [u32]),
    /// A trie block.
    TrieBlock(u32, &'a TrieBlock),
    /// A row; columns with [`DesiredElement::ANY`] have arbitrary content.
    Row(u32, Box<Row>),
    /// A row block; columns with [`DesiredElement::ANY`] have arbitrary content.
    RowBlock(u32, Box<RowBlock>),
    /// A port bitmap.
    Bitmap(u32, Box<PortBitmap>),
    /// An endpoint slot; `None` if free.
    Endpoint(u32, Option<&'a Endpoint>),
    /// An address of the exact IPv6 table.
    Host6(Ipv6Addr, ClassId),
    /// A prefix of the IPv6 prefix table.
    Block6(Ipv6Net, ClassId),
    /// A name of a list, with a bit for each group of rules.
    Name(u32, &'a DomainName, u32),
}

impl DesiredElement<'_> {
    /// Matches any content of a column; no port set has this word.
    pub const ANY: PortWord = PortWord::MAX;
}

/// Position in a pass over all elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    pub(super) section: usize,
    pub(super) next: u32,
}

impl Cursor {
    /// Whether the position is the start of a pass.
    #[must_use]
    pub fn is_start(self) -> bool {
        self == Self::default()
    }
}
