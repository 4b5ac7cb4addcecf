//! The stateless judgement: class of the remote address, row of the endpoint, port set.
//!
//! Compiled for the kernel, where [`PolicyTables`] reads BPF maps, and for tests, where it reads
//! plain memory. A read outside a table (which no agent writes) answers 0: no class, no port set,
//! nothing allowed.

use crate::layout::{
    ClassId, PORT_SET_ALL, PORT_SET_NONE, PORTS_ALL, PORTS_NONE, PortSet, TRIE_POINTER,
};

/// Reads of the tables that policy compiles to.
pub trait PolicyTables {
    /// Word of the IPv4 trie's root.
    fn trie_root(&self, index: u16) -> u32;
    /// Word of a trie block.
    fn trie_block(&self, block: u32, index: u8) -> u32;
    /// Class of an IPv6 address in the exact table.
    fn host6(&self, address: &[u8; 16]) -> Option<ClassId>;
    /// Class of an IPv6 address by longest prefix.
    fn cidr6(&self, address: &[u8; 16]) -> Option<ClassId>;
    /// Word of a row: the row block of `class >> 8`.
    fn row(&self, row: u32, index: u8) -> u32;
    /// Word of a row block: the port set of `class & 255`.
    fn row_block(&self, block: u32, index: u8) -> u32;
    /// A port set.
    fn port_set(&self, set: u32) -> PortSet;
    /// What a port set says of a protocol: [`PORTS_NONE`], [`PORTS_ALL`] or a bitmap.
    #[inline(always)]
    fn ports(&self, set: u32, protocol: u8) -> u32 {
        let ports = self.port_set(set);
        [ports.tcp, ports.udp, ports.sctp, ports.other][port_word(protocol)]
    }
    /// Word `port >> 6` of a bitmap.
    fn bitmap(&self, bitmap: u32, word: u16) -> u64;
}

/// Which word of a [`PortSet`] is about a protocol.
#[must_use]
#[inline(always)]
pub const fn port_word(protocol: u8) -> usize {
    match protocol {
        6 => 0,
        17 => 1,
        132 => 2,
        _ => 3,
    }
}

/// Class of an IPv4 address (`u32::from_be_bytes`).
#[must_use]
#[inline(always)]
pub fn class4<T: PolicyTables>(tables: &T, address: u32) -> ClassId {
    let mut word = tables.trie_root((address >> 16) as u16);
    if word & TRIE_POINTER != 0 {
        word = tables.trie_block(word & !TRIE_POINTER, (address >> 8) as u8);
        if word & TRIE_POINTER != 0 {
            word = tables.trie_block(word & !TRIE_POINTER, address as u8);
        }
    }
    word
}

/// Class of an IPv6 address (network byte order).
#[must_use]
#[inline(always)]
pub fn class6<T: PolicyTables>(tables: &T, address: &[u8; 16]) -> ClassId {
    match tables.host6(address) {
        Some(class) => class,
        None => tables.cidr6(address).unwrap_or(0),
    }
}

/// Whether a row (not [`crate::layout::ROW_NOT_ISOLATED`]) allows a class this protocol and
/// destination port. For protocols without ports `port` is not read.
#[must_use]
#[inline(always)]
pub fn row_allows<T: PolicyTables>(
    tables: &T,
    row: u32,
    class: ClassId,
    protocol: u8,
    port: u16,
) -> bool {
    let block = tables.row(row, (class >> 8) as u8);
    let set = tables.row_block(block, class as u8);
    match set {
        PORT_SET_NONE => false,
        PORT_SET_ALL => true,
        _ => port_set_allows(tables, set, protocol, port),
    }
}

/// Whether a port set allows a protocol and destination port.
#[must_use]
#[inline(always)]
pub fn port_set_allows<T: PolicyTables>(tables: &T, set: u32, protocol: u8, port: u16) -> bool {
    match tables.ports(set, protocol) {
        PORTS_NONE => false,
        PORTS_ALL => true,
        bitmap => tables.bitmap(bitmap, port >> 6) >> (port & 63) & 1 != 0,
    }
}
