//! Contents of the kernel's tables as of the last update.
//!
//! [`addresses`] map an address to its class, IPv4 by [`ipv4_trie`]. [`rows`] hold the ports that a direction policy
//! allows to each class, as [`port_sets`]. [`endpoints`] map an interface to its rows.

pub(crate) mod addresses;
pub(crate) mod element;
pub(crate) mod endpoints;
mod ipv4_trie;
mod lookup;
pub(crate) mod names;
pub(crate) mod port_sets;
pub(crate) mod resolvers;
pub(crate) mod rows;

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;
use netpold_ebpf::layout::{ClassId, ENDPOINT_SLOTS, Endpoint};

use crate::compile::sets::classes::Classes;
use crate::compile::slots::SlotAllocator;
use crate::ops::{Capacity, Table, TableUse};
use crate::options::Options;
use crate::ports::tries::Tries;
use crate::prefix::{IpFamily, Prefix};
use addresses::AddressTables;
use element::{Cursor, DesiredElement};
use endpoints::Endpoints;
use names::Names;
use port_sets::PortSetTable;
use rows::RowTable;

/// All tables.
#[derive(Debug)]
pub(crate) struct TableSet {
    pub(crate) addresses: AddressTables,
    pub(crate) port_sets: PortSetTable,
    pub(crate) rows: RowTable,
    pub(crate) endpoints: Endpoints,
    pub(crate) names: Names,
}

impl TableSet {
    /// Empty tables.
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            addresses: AddressTables::new(),
            port_sets: PortSetTable::new(),
            rows: RowTable::new(),
            endpoints: Endpoints::new(options),
            names: Names::new(),
        }
    }

    /// Empties the tables. Endpoints keep their numbers.
    pub(crate) fn forget(&mut self) {
        self.addresses = AddressTables::new();
        self.port_sets = PortSetTable::new();
        self.rows = RowTable::new();
        self.endpoints.forget();
        self.names = Names::new();
    }

    /// Frees retired elements: no packet reads them any more.
    pub(crate) fn grace_passed(&mut self) {
        self.port_sets.slots.grace_passed();
        self.port_sets.bitmap_slots.grace_passed();
        self.rows.slots.grace_passed();
        self.rows.block_slots.grace_passed();
        self.names.slots.grace_passed();
        self.addresses.ipv4_trie.slots.grace_passed();
        self.endpoints.grace_passed();
    }

    /// Used and available elements of every table.
    pub(crate) fn fill(&self, classes: &Classes, capacity: &Capacity) -> Vec<TableUse> {
        let fill = |table| {
            let (used, _) = self.elements(table, classes);
            TableUse { table, used, capacity: capacity.capacity_of(table) }
        };
        Table::ALL.map(fill).to_vec()
    }

    /// Used elements of a table, and the number it must have.
    pub(crate) fn elements(&self, table: Table, classes: &Classes) -> (u32, u32) {
        let of = |slots: &SlotAllocator| (slots.used(), slots.needed());
        let (count, peak) = (self.addresses.ipv6_count(), self.addresses.ipv6_peak);
        match table {
            Table::Classes => of(&classes.slots),
            Table::Bitmaps => of(&self.port_sets.bitmap_slots),
            Table::RowBlocks => of(&self.rows.block_slots),
            Table::Rows => of(&self.rows.slots),
            Table::TrieBlocks => of(&self.addresses.ipv4_trie.slots),
            Table::Hosts6 => (count.0, peak.0),
            Table::Blocks6 => (count.1, peak.1),
            Table::Names => (self.names.count(), self.names.count()),
        }
    }
}

/// Words of the trie's root per element.
const ROOT_CHUNK: u32 = 256;

/// Desired contents of all elements, to compare with the installed ones, or for lookups like those of the packet path.
#[derive(Clone, Copy, Debug)]
pub struct DesiredTables<'a> {
    pub(crate) tables: &'a TableSet,
    pub(crate) tries: &'a Tries,
}

/// Number of elements of a section.
type Count = fn(&DesiredTables<'_>) -> u32;
/// Passes the elements of a section with indexes in a range to a callback.
type ElementCallback =
    fn(&DesiredTables<'_>, std::ops::Range<u32>, &mut dyn FnMut(DesiredElement<'_>));

/// Sections of a pass, in order.
const SECTIONS: [(Count, ElementCallback); 7] = [
    (|_| 65_536 / ROOT_CHUNK, |all, range, visit| all.visit_root(range, visit)),
    (
        |all| all.tables.addresses.ipv4_trie.slots.needed(),
        |all, range, visit| all.visit_trie(range, visit),
    ),
    (|all| all.tables.rows.slots.needed(), |all, range, visit| all.visit_rows(range, visit)),
    (
        |all| all.tables.port_sets.bitmap_slots.needed(),
        |all, range, visit| all.visit_bitmaps(range, visit),
    ),
    (|_| ENDPOINT_SLOTS, |all, range, visit| all.visit_endpoints(range, visit)),
    (|all| all.ipv6_count(), |all, range, visit| all.visit_v6(range, visit)),
    (|all| all.tables.names.count(), |all, range, visit| all.tables.names.visit(range, visit)),
];

impl DesiredTables<'_> {
    /// Number of elements in a pass.
    #[must_use]
    pub fn count(&self) -> u32 {
        SECTIONS.iter().map(|(count, _)| count(self)).sum()
    }

    /// Passes the next `budget` elements to `visit`, and returns the position after them. The position after the last
    /// element is the start. The elements equal the installed ones only if the last update was written.
    pub fn visit(
        &self,
        mut cursor: Cursor,
        mut budget: u32,
        visit: &mut dyn FnMut(DesiredElement<'_>),
    ) -> Cursor {
        while budget > 0 {
            let Some((count, section)) = SECTIONS.get(cursor.section) else {
                return Cursor::default();
            };
            let end = count(self).min(cursor.next.saturating_add(budget));
            let next = cursor.next.min(end);
            section(self, next..end, visit);
            budget -= end - next;
            cursor.next = end;
            if end == count(self) {
                cursor = Cursor { section: cursor.section + 1, next: 0 };
            }
        }
        if cursor.section == SECTIONS.len() { Cursor::default() } else { cursor }
    }

    /// Whether the exact IPv6 table contains an address.
    #[must_use]
    pub fn has_host6(&self, address: Ipv6Addr) -> bool {
        self.tables.addresses.class_of(Prefix::host(address.into())).is_some()
    }

    /// Class of a prefix in the IPv6 prefix table.
    pub(crate) fn class_of_block6(&self, net: Ipv6Net) -> Option<ClassId> {
        let prefix = Prefix::net(net.into());
        (!prefix.is_host()).then(|| self.tables.addresses.class_of(prefix)).flatten()
    }

    /// Whether the IPv6 prefix table contains a prefix.
    #[must_use]
    pub fn has_block6(&self, net: Ipv6Net) -> bool {
        self.class_of_block6(net).is_some()
    }

    fn ipv6_count(&self) -> u32 {
        let (hosts, cidrs) = self.tables.addresses.ipv6_count();
        hosts + cidrs
    }

    fn visit_root(&self, range: std::ops::Range<u32>, visit: &mut dyn FnMut(DesiredElement<'_>)) {
        for chunk in range {
            let first = chunk * ROOT_CHUNK;
            let words = self.tables.addresses.ipv4_trie.root();
            visit(DesiredElement::TrieRoot(first, &words[first as usize..][..ROOT_CHUNK as usize]));
        }
    }

    fn visit_trie(&self, range: std::ops::Range<u32>, visit: &mut dyn FnMut(DesiredElement<'_>)) {
        for id in range {
            if let Some(block) = self.tables.addresses.ipv4_trie.block(id) {
                visit(DesiredElement::TrieBlock(id, block));
            }
        }
    }

    fn visit_rows(&self, range: std::ops::Range<u32>, visit: &mut dyn FnMut(DesiredElement<'_>)) {
        self.tables.rows.expected(range, &self.tables.port_sets, visit);
    }

    fn visit_bitmaps(
        &self,
        range: std::ops::Range<u32>,
        visit: &mut dyn FnMut(DesiredElement<'_>),
    ) {
        self.tables.port_sets.expected(range, self.tries, visit);
    }

    fn visit_endpoints(
        &self,
        range: std::ops::Range<u32>,
        visit: &mut dyn FnMut(DesiredElement<'_>),
    ) {
        let records = self.tables.endpoints.live.values().filter_map(|live| live.record.as_ref());
        let records: std::collections::BTreeMap<u32, &Endpoint> =
            records.map(|(slot, record)| (*slot, record)).collect();
        for slot in range {
            visit(DesiredElement::Endpoint(slot, records.get(&slot).copied()));
        }
    }

    fn visit_v6(&self, range: std::ops::Range<u32>, visit: &mut dyn FnMut(DesiredElement<'_>)) {
        let all = self.tables.addresses.entries(IpFamily::V6);
        for (prefix, class) in all.skip(range.start as usize).take(range.len()) {
            visit(if prefix.is_host() {
                DesiredElement::Host6(prefix.v6(), class)
            } else {
                DesiredElement::Block6(prefix.net6(), class)
            });
        }
    }
}
