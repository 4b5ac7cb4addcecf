//! Sizes of the tables, and their growth.
//!
//! Tables begin at the size for a node of a small cluster ([`Capacity::SMALL`], 4 MB). Once one of them is half full,
//! all grow to the size for a large cluster ([`Capacity::default`], 55 MB). A table of domain names that alone is half full
//! grows alone. From then on each table grows alone when an eighth is left. Larger tables need a new generation, which is built while the one in force continues
//! ([`super::successor`]). Tables never shrink.

use std::collections::BTreeSet;

use netpold_core::compile::{CompileError, Compiler};
use netpold_core::ops::{Capacity, Op, Table, TableUse};

/// Largest size of each table. All tables together, in two generations while one replaces the other, stay below the
/// memory limit of the DaemonSet (2 GiB): 192 MiB of bitmaps, 128 of row blocks, 48 of rows, 256 of trie blocks, 144 of
/// the IPv6 tables.
const LARGEST: Capacity = Capacity {
    bitmaps: 24_576,
    row_blocks: 65_536,
    rows: 16_384,
    trie_blocks: 262_144,
    hosts6: 1 << 20,
    blocks6: 262_144,
    names: 262_144,
};

/// Compiles everything for new tables with spare room, and closes policies ([`Compiler::leave_out`]) if no permitted size
/// suffices. An eighth of the tables in `full` stays free, so that the next edits do not fill them again
/// ([`Compiler::keep_reserve`]). The resulting sizes are [`Compiler::capacity`].
///
/// # Errors
/// The state exceeds the numbers that the tables' layout can represent.
pub fn compile_with_room(
    compiler: &mut Compiler,
    capacity: Capacity,
    full: &BTreeSet<Table>,
) -> Result<Vec<Op>, CompileError> {
    let (mut capacity, mut full) = (capacity, full.clone());
    loop {
        match compiler.recompile(capacity, grown) {
            Ok(ops) => {
                compiler.enlarge(roomy(compiler.capacity(), &compiler.fill()));
                let Some(table) = full.iter().copied().find(|it| compiler.keep_reserve(*it)) else {
                    compiler.compare_later();
                    return Ok(ops);
                };
                tracing::error!(%table, "closing policies of the namespaces that use most, to keep room for edits");
                // Done for this table, unless it overflows again.
                full.remove(&table);
            }
            Err(error) if compiler.leave_out(&error) => {
                tracing::error!(%error, "closing policies of the namespaces that use most, to make room");
                let CompileError::Full { table, .. } = error;
                full.insert(table);
            }
            Err(error) => return Err(error),
        }
        capacity = compiler.capacity();
    }
}

/// Returns a capacity with the full table at least doubled; `None` above the table's largest size.
fn grown(capacity: Capacity, error: &CompileError) -> Option<Capacity> {
    let CompileError::Full { table, needed, capacity: had } = error;
    enlarged(capacity, *table, (*needed).max(had.saturating_mul(2)), *needed)
}

/// Sets a table to `size` elements, or to its largest size; `None` if that is less than `least`.
fn enlarged(mut capacity: Capacity, table: Table, size: u32, least: u32) -> Option<Capacity> {
    let (field, largest) = match table {
        Table::Classes => return None,
        Table::Bitmaps => (&mut capacity.bitmaps, LARGEST.bitmaps),
        Table::RowBlocks => (&mut capacity.row_blocks, LARGEST.row_blocks),
        Table::Rows => (&mut capacity.rows, LARGEST.rows),
        Table::TrieBlocks => (&mut capacity.trie_blocks, LARGEST.trie_blocks),
        Table::Hosts6 => (&mut capacity.hosts6, LARGEST.hosts6),
        Table::Blocks6 => (&mut capacity.blocks6, LARGEST.blocks6),
        Table::Names => (&mut capacity.names, LARGEST.names),
    };
    // The configured size may be larger.
    let size = size.min(largest.max(*field));
    (least <= size).then(|| *field = size).map(|()| capacity)
}

/// Returns whether at most an eighth of a table is left.
fn is_crowded(table: &TableUse) -> bool {
    table.used > table.capacity - table.capacity / 8
}

/// Returns whether a table of small size is more than half full.
fn is_outgrown(table: &TableUse) -> bool {
    table.capacity < Capacity::default().capacity_of(table.table) && table.used > table.capacity / 2
}

/// Returns sizes with spare room: at least [`Capacity::default`] for all tables once a small table is outgrown (for the
/// table of names alone if only that one is), and a third more than used for crowded tables.
pub(super) fn roomy(capacity: Capacity, fill: &[TableUse]) -> Capacity {
    let large = Capacity::default();
    let capacity = fill.iter().filter(|fill| is_outgrown(fill)).fold(capacity, |capacity, fill| {
        let names = Capacity { names: large.names, ..capacity };
        capacity.or_more(if fill.table == Table::Names { names } else { large })
    });
    fill.iter().filter(|fill| is_crowded(fill)).fold(capacity, |capacity, fill| {
        let size = fill.used.saturating_add(fill.used / 3).max(capacity.capacity_of(fill.table));
        enlarged(capacity, fill.table, size, fill.capacity).unwrap_or(capacity)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crowded_tables_get_room_up_to_what_they_may_have() {
        let capacity = Capacity { bitmaps: 2000, rows: 16_000, ..Capacity::default() };
        let fill = |table, used| TableUse { table, used, capacity: capacity.capacity_of(table) };
        let of = |fills: &[TableUse]| roomy(capacity, fills);
        assert_eq!(of(&[fill(Table::Bitmaps, 1750), fill(Table::Classes, 65_000)]), capacity);
        assert_eq!(of(&[fill(Table::Bitmaps, 1800)]), Capacity { bitmaps: 2400, ..capacity });
        assert_eq!(of(&[fill(Table::Rows, 16_000)]), Capacity { rows: LARGEST.rows, ..capacity });
        let configured = Capacity { rows: 20_000, ..capacity };
        let full = TableUse { table: Table::Rows, used: 20_000, capacity: 20_000 };
        assert_eq!(roomy(configured, &[full]), configured);
    }

    #[test]
    fn a_node_that_is_not_small_any_more_has_room_everywhere() {
        let small = Capacity::SMALL;
        let of = |table, used| {
            roomy(small, &[TableUse { table, used, capacity: small.capacity_of(table) }])
        };
        assert_eq!(of(Table::Bitmaps, 32), small);
        assert_eq!(of(Table::Bitmaps, 33), Capacity::default());
        assert_eq!(of(Table::Rows, 128), Capacity::default());
        let names = Capacity { names: Capacity::default().names, ..small };
        assert_eq!(of(Table::Names, 512), small);
        assert_eq!(of(Table::Names, 513), names, "names need no room elsewhere");
        let fills = [(Table::Names, 10_000), (Table::Bitmaps, 33)];
        let fills =
            fills.map(|(table, used)| TableUse { table, used, capacity: names.capacity_of(table) });
        assert_eq!(roomy(names, &fills), Capacity::default());
        let grown = Capacity { rows: 4000, ..small };
        let fill = TableUse { table: Table::Bitmaps, used: 64, capacity: 64 };
        assert_eq!(roomy(grown, &[fill]), Capacity { rows: 4000, ..Capacity::default() });
    }

    #[test]
    fn a_full_table_doubles_at_least() {
        let capacity = Capacity { rows: 8, ..Capacity::default() };
        let full = |needed| CompileError::Full { table: Table::Rows, needed, capacity: 8 };
        assert_eq!(grown(capacity, &full(9)), Some(Capacity { rows: 16, ..capacity }));
        assert_eq!(grown(capacity, &full(99)), Some(Capacity { rows: 99, ..capacity }));
        assert_eq!(grown(capacity, &full(LARGEST.rows + 1)), None);
    }
}
