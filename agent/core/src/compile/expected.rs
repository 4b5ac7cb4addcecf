//! What the tables must hold, element by element, for comparing it with what they do hold.

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;
use netpold_ebpf::layout::{
    ClassId, ENDPOINT_SLOTS, Endpoint, PortBitmap, PortWord, Row, RowBlock, TrieBlock,
};

use crate::compile::Compiler;
use crate::compile::prefix::{Family, Prefix};

/// Words of the trie's root that are told at once.
const ROOT_CHUNK: u32 = 256;

/// What an element holds as of the last update. Elements that no packet can reach hold anything
/// and are not told.
#[derive(Clone, Debug)]
pub enum Expected<'a> {
    /// Words of the trie's root, from an index on.
    TrieRoot(u32, &'a [u32]),
    /// A trie block.
    TrieBlock(u32, &'a TrieBlock),
    /// A row; columns of [`Expected::ANY`] hold anything.
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
    /// Whether that one has entries.
    HasCidr6(bool),
}

impl Expected<'_> {
    /// Stands for whatever a column of a row holds; no port set is this word.
    pub const ANY: PortWord = PortWord::MAX;
}

/// How far a pass over all elements has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    section: usize,
    next: u32,
}

impl Cursor {
    /// Whether a pass is just to begin.
    #[must_use]
    pub fn is_start(self) -> bool {
        self == Self::default()
    }
}

/// How many elements a section has.
type Count = fn(&Compiler) -> u32;
/// Tells the elements of a section whose numbers are in a range.
type Tell = fn(&Compiler, std::ops::Range<u32>, &mut dyn FnMut(Expected<'_>));

/// The sections of a pass: how many elements, and how they are told.
const SECTIONS: [(Count, Tell); 6] = [
    (|_| 65_536 / ROOT_CHUNK, Compiler::expected_root),
    (|compiler| compiler.tables.trie4.ids.needed(), Compiler::expected_trie),
    (|compiler| compiler.rows.ids.needed(), Compiler::expected_rows),
    (|compiler| compiler.sets.bitmap_ids.needed(), Compiler::expected_bitmaps),
    (|_| ENDPOINT_SLOTS, Compiler::expected_endpoints),
    (Compiler::count6, Compiler::expected_v6),
];

impl Compiler {
    /// Elements that a pass goes through.
    #[must_use]
    pub fn expected_elements(&self) -> u32 {
        SECTIONS.iter().map(|(count, _)| count(self)).sum()
    }

    /// Tells what the next `budget` elements hold, and how far that is; after the last one the
    /// next pass begins. What is told is what the tables hold only if the last update was written.
    pub fn expected(
        &self,
        mut cursor: Cursor,
        mut budget: u32,
        tell: &mut dyn FnMut(Expected<'_>),
    ) -> Cursor {
        while budget > 0 {
            let Some((count, section)) = SECTIONS.get(cursor.section) else {
                return Cursor::default();
            };
            let end = count(self).min(cursor.next.saturating_add(budget));
            let next = cursor.next.min(end);
            section(self, next..end, tell);
            budget -= end - next;
            cursor.next = end;
            if end == count(self) {
                cursor = Cursor { section: cursor.section + 1, next: 0 };
            }
        }
        if cursor.section == SECTIONS.len() { Cursor::default() } else { cursor }
    }

    /// The class that the exact IPv6 table has for an address.
    #[must_use]
    pub fn expected_host6(&self, address: Ipv6Addr) -> Option<ClassId> {
        self.tables.class_of(Prefix::host(address.into()))
    }

    /// The class that the IPv6 prefix table has for a prefix.
    #[must_use]
    pub fn expected_cidr6(&self, net: Ipv6Net) -> Option<ClassId> {
        let prefix = Prefix::net(net.into());
        (!prefix.is_host()).then(|| self.tables.class_of(prefix)).flatten()
    }

    fn count6(&self) -> u32 {
        let (hosts, cidrs) = self.tables.count6();
        // One more for the flag.
        hosts + cidrs + 1
    }

    fn expected_root(&self, range: std::ops::Range<u32>, tell: &mut dyn FnMut(Expected<'_>)) {
        for chunk in range {
            let first = chunk * ROOT_CHUNK;
            let words = self.tables.trie4.root();
            tell(Expected::TrieRoot(first, &words[first as usize..][..ROOT_CHUNK as usize]));
        }
    }

    fn expected_trie(&self, range: std::ops::Range<u32>, tell: &mut dyn FnMut(Expected<'_>)) {
        for id in range {
            if let Some(block) = self.tables.trie4.block(id) {
                tell(Expected::TrieBlock(id, block));
            }
        }
    }

    fn expected_rows(&self, range: std::ops::Range<u32>, tell: &mut dyn FnMut(Expected<'_>)) {
        self.rows.expected(range, &self.sets, tell);
    }

    fn expected_bitmaps(&self, range: std::ops::Range<u32>, tell: &mut dyn FnMut(Expected<'_>)) {
        self.sets.expected(range, &self.atoms.tries, tell);
    }

    fn expected_endpoints(&self, range: std::ops::Range<u32>, tell: &mut dyn FnMut(Expected<'_>)) {
        let records = self.endpoints.live.values().filter_map(|live| live.record.as_ref());
        let records: std::collections::BTreeMap<u32, &Endpoint> =
            records.map(|(slot, record)| (*slot, record)).collect();
        for slot in range {
            tell(Expected::Endpoint(slot, records.get(&slot).copied()));
        }
    }

    fn expected_v6(&self, range: std::ops::Range<u32>, tell: &mut dyn FnMut(Expected<'_>)) {
        if range.start == 0 && range.end > 0 {
            tell(Expected::HasCidr6(self.tables.count6().1 != 0));
        }
        let (skip, last) = (range.start.saturating_sub(1), range.end.saturating_sub(1));
        let all = self.tables.entries(Family::V6);
        for (prefix, class) in all.skip(skip as usize).take((last - skip) as usize) {
            tell(if prefix.is_host() {
                Expected::Host6(prefix.v6(), class)
            } else {
                Expected::Cidr6(prefix.net6(), class)
            });
        }
    }
}
