//! Tables that host tests share.

use netpold_ebpf::layout::{PORTS_EVERY, Row, TRIE_POINTER};
use netpold_testkit::node::NodeTables;

/// Row that allows nothing.
pub(crate) const NOBODY: u32 = 1;
/// Row that allows 10.0.1.0/24 everything.
pub(crate) const CLIENTS: u32 = 2;

/// The rows [`NOBODY`] and [`CLIENTS`] and what they need, without an endpoint.
pub(crate) fn tables() -> NodeTables {
    let mut tables = NodeTables::new(16);
    let mut block = [0; 256];
    block[1] = 1;
    tables.policy.trie_root[0x0a00] = TRIE_POINTER;
    tables.policy.trie_blocks.push(block);
    let mut admits = Row::EMPTY;
    admits.first[1] = PORTS_EVERY;
    tables.policy.rows.extend([Row::EMPTY, admits]);
    tables
}
