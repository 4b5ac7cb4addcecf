//! The stateless judgement: class of the remote address, row of the endpoint, port set.
//!
//! Compiled for the kernel, where [`PolicyTables`] reads BPF maps, and for tests, where it reads plain memory. A read
//! outside a table (no agent writes such an index) returns 0: no class, no port set, nothing allowed.

use crate::{
    layout::{ClassId, PORTS_ALL, PORTS_NONE, PORTS_ONE, PortWord, TRIE_POINTER, ports_of},
    trace::Step,
};

/// Reads of the tables of compiled policy.
pub trait PolicyTables {
    /// Word of the IPv4 trie's root.
    fn trie_root(&self, index: u16) -> u32;
    /// Word of a trie block.
    fn trie_block(&self, block: u32, index: u8) -> u32;
    /// Class of an IPv6 address in the exact table.
    fn host6(&self, address: &[u8; 16]) -> Option<ClassId>;
    /// Class of an IPv6 address by longest prefix.
    fn block6(&self, address: &[u8; 16]) -> Option<ClassId>;
    /// Ports that a row allows a class below 256.
    fn row_first(&self, row: u32, class: u8) -> PortWord;
    /// Row block of `class >> 8`, which is not 0.
    fn row_blocks(&self, row: u32, index: u8) -> u32;
    /// Word of a row block: the ports allowed to `class & 255`.
    fn row_block(&self, block: u32, index: u8) -> PortWord;
    /// Word `port >> 6` of a bitmap.
    fn bitmap(&self, bitmap: u32, word: u16) -> u64;
    /// [`row_allows`] outside of the fast path: a separate function in the kernel, which the verifier checks once.
    #[inline(always)]
    fn row_allows(&self, row: u32, class: ClassId, protocol: u8, port: u16) -> bool
    where
        Self: Sized,
    {
        row_allows(self, row, class, protocol, port)
    }
    /// Whether [`PolicyTables::row_allows`] also judges new flows.
    const ROWS_BY_CALL: bool = false;
    /// Whether steps are recorded: only in the traced programs, see [`crate::trace`]. Code that serves the trace alone
    /// depends on this constant, so that all other programs stay the same to the instruction.
    const TRACED: bool = false;
    /// Records a step of a judgement.
    #[inline(always)]
    fn record_step(&self, _step: Step, _first: u64, _second: u64) {}
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
        None => tables.block6(address).unwrap_or(0),
    }
}

/// Ports that a row (not [`crate::layout::ROW_NOT_ISOLATED`]) allows a class.
#[must_use]
#[inline(always)]
pub fn row_word<T: PolicyTables>(tables: &T, row: u32, class: ClassId) -> PortWord {
    match (class >> 8) as u8 {
        0 => tables.row_first(row, class as u8),
        high => tables.row_block(tables.row_blocks(row, high), class as u8),
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
    let word = row_word(tables, row, class);
    if T::TRACED {
        tables.record_step(Step::Row, u64::from(row) | u64::from(class) << 32, word);
        let allowed = word != 0 && word_allows(tables, word, protocol, port);
        let asked = u64::from(protocol) | u64::from(port) << 8;
        tables.record_step(Step::Ports, asked | u64::from(allowed) << 32, word);
        return allowed;
    }
    // Most denied packets are of a class with an empty port set.
    word != 0 && word_allows(tables, word, protocol, port)
}

/// Whether a word of a row allows a protocol and destination port.
#[inline(always)]
fn word_allows<T: PolicyTables>(tables: &T, word: PortWord, protocol: u8, port: u16) -> bool {
    match ports_of(word, protocol) {
        PORTS_NONE => false,
        PORTS_ALL => true,
        one if one & PORTS_ONE != 0 => one as u16 == port,
        bitmap => tables.bitmap(bitmap, port >> 6) >> (port & 63) & 1 != 0,
    }
}
