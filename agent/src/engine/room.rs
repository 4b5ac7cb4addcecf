//! How large tables are, and become.

use netpold_core::compile::CompileError;
use netpold_core::ops::{Capacity, Fill, Table};

/// No table grows beyond this, so that all of them together, those of two generations while one replaces the
/// other, stay under the memory limit of the DaemonSet (2 GiB): 192 MiB of bitmaps, 128 of row blocks, 48 of rows, 256 of trie blocks, 80 of the IPv6 tables.
const LARGEST: Capacity = Capacity {
    bitmaps: 24_576,
    row_blocks: 65_536,
    rows: 16_384,
    trie_blocks: 262_144,
    hosts6: 1 << 20,
    cidrs6: 262_144,
};

/// At least twice the size of the table that was full; `None` where that is beyond what a table may have.
#[must_use]
pub fn grown(capacity: Capacity, error: &CompileError) -> Option<Capacity> {
    let CompileError::Full { table, needed, capacity: had } = error;
    enlarged(capacity, *table, (*needed).max(had.saturating_mul(2)), *needed)
}

/// A table with `size` elements, or as many as it may have; `None` if these are less than `least`.
fn enlarged(mut capacity: Capacity, table: Table, size: u32, least: u32) -> Option<Capacity> {
    let (field, largest) = match table {
        Table::Classes => return None,
        Table::Bitmaps => (&mut capacity.bitmaps, LARGEST.bitmaps),
        Table::RowBlocks => (&mut capacity.row_blocks, LARGEST.row_blocks),
        Table::Rows => (&mut capacity.rows, LARGEST.rows),
        Table::TrieBlocks => (&mut capacity.trie_blocks, LARGEST.trie_blocks),
        Table::Hosts6 => (&mut capacity.hosts6, LARGEST.hosts6),
        Table::Cidrs6 => (&mut capacity.cidrs6, LARGEST.cidrs6),
    };
    // What was configured may be larger.
    let size = size.min(largest.max(*field));
    (least <= size).then(|| *field = size).map(|()| capacity)
}

/// Whether a table has little room left: an eighth.
fn is_crowded(fill: &Fill) -> bool {
    fill.used > fill.capacity - fill.capacity / 8
}

/// Sizes with room for what comes: tables that are crowded have a third more than they use.
pub(super) fn roomy(capacity: Capacity, fill: &[Fill]) -> Capacity {
    fill.iter().filter(|fill| is_crowded(fill)).fold(capacity, |capacity, fill| {
        let size = fill.used.saturating_add(fill.used / 3).max(fill.capacity);
        enlarged(capacity, fill.table, size, fill.capacity).unwrap_or(capacity)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crowded_tables_get_room_up_to_what_they_may_have() {
        let capacity = Capacity { bitmaps: 1000, rows: 16_000, ..Capacity::default() };
        let fill = |table, used| Fill { table, used, capacity: capacity.of(table) };
        let of = |fills: &[Fill]| roomy(capacity, fills);
        assert_eq!(of(&[fill(Table::Bitmaps, 875), fill(Table::Classes, 65_000)]), capacity);
        assert_eq!(of(&[fill(Table::Bitmaps, 900)]), Capacity { bitmaps: 1200, ..capacity });
        assert_eq!(of(&[fill(Table::Rows, 16_000)]), Capacity { rows: LARGEST.rows, ..capacity });
        let configured = Capacity { rows: 20_000, ..capacity };
        let full = Fill { table: Table::Rows, used: 20_000, capacity: 20_000 };
        assert_eq!(roomy(configured, &[full]), configured);
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
