//! The tables as the packet path reads them: single words as of the last update.

use std::net::IpAddr;

use ipnet::Ipv6Net;
use netpold_ebpf::layout::{ClassId, Endpoint, PortWord};
use netpold_ebpf::tables::policy::PolicyTables;

use crate::compile::tables::DesiredTables;
use crate::prefix::Prefix;

/// Width of a column's index within a block.
const COLUMN_BITS: u32 = 8;

impl DesiredTables<'_> {
    /// The endpoint in a slot.
    #[must_use]
    pub fn endpoint(&self, slot: u32) -> Option<&Endpoint> {
        let records = self.tables.endpoints.live.values().filter_map(|live| live.record.as_ref());
        let mut records = records.filter(|(at, _)| *at == slot);
        records.next().map(|(_, record)| record)
    }

    fn column(&self, row: u32, class: u32) -> PortWord {
        self.tables.port_sets.word(self.tables.rows.column(row, class))
    }
}

impl PolicyTables for DesiredTables<'_> {
    fn trie_root(&self, index: u16) -> u32 {
        self.tables.addresses.ipv4_trie.root()[usize::from(index)]
    }

    fn trie_block(&self, block: u32, index: u8) -> u32 {
        let block = self.tables.addresses.ipv4_trie.block(block);
        block.map_or(0, |words| words[usize::from(index)])
    }

    fn host6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.tables.addresses.class_of(Prefix::host(IpAddr::from(*address)))
    }

    fn block6(&self, address: &[u8; 16]) -> Option<ClassId> {
        let nets = (0..=127).rev().filter_map(|len| Ipv6Net::new((*address).into(), len).ok());
        nets.map(|net| net.trunc()).find_map(|net| self.class_of_block6(net))
    }

    fn row_first(&self, row: u32, class: u8) -> PortWord {
        self.column(row, class.into())
    }

    /// A row block belongs to one row, so the row's number and the block's index there identify it.
    fn row_blocks(&self, row: u32, index: u8) -> u32 {
        row << COLUMN_BITS | u32::from(index)
    }

    fn row_block(&self, block: u32, index: u8) -> PortWord {
        let place = block & ((1 << COLUMN_BITS) - 1);
        self.column(block >> COLUMN_BITS, place << COLUMN_BITS | u32::from(index))
    }

    fn bitmap(&self, bitmap: u32, word: u16) -> u64 {
        let ports = self.tables.port_sets.of_bitmap(bitmap);
        ports.map_or(0, |ports| self.tries.bitmap(ports)[usize::from(word)])
    }
}
