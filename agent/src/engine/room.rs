//! How large tables are, and become.
//!
//! They begin as small as a node of a small cluster needs ([`Capacity::SMALL`], 3 MB), and grow in a generation of
//! their own while the one in force goes on ([`super::successor`]): small ones when they are half full, so that an
//! ordinary edit always finds room, those of [`Capacity::default`] and more when an eighth is left. They never shrink.

use netpold_core::compile::{CompileError, Compiler};
use netpold_core::ops::{Capacity, Fill, Op, Table};

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

/// Compiles everything for new tables with room to spare; the largest policies are closed if they cannot be large
/// enough. The sizes are [`Compiler::capacity`].
///
/// # Errors
/// It does not fit into what the tables' layout can number.
pub fn install(compiler: &mut Compiler, capacity: Capacity) -> Result<Vec<Op>, CompileError> {
    let mut capacity = capacity;
    loop {
        match compiler.reinstall_grown(capacity, grown) {
            Ok(ops) => {
                compiler.enlarge(roomy(compiler.capacity(), &compiler.fill()));
                return Ok(ops);
            }
            Err(error) if compiler.leave_out(&error) => {
                tracing::error!(%error, "the largest policies are closed to make room");
                capacity = compiler.capacity();
            }
            Err(error) => return Err(error),
        }
    }
}

/// At least twice the size of the table that was full; `None` where that is beyond what a table may have.
fn grown(capacity: Capacity, error: &CompileError) -> Option<Capacity> {
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

/// What a table needs that has little room left: four times what it uses, once a small one is half full; a third
/// more than it uses, once a large one has an eighth left.
fn wanted(fill: &Fill) -> Option<u32> {
    let large = Capacity::default().of(fill.table);
    let size = if fill.capacity < large {
        (fill.used > fill.capacity / 2).then(|| fill.used.saturating_mul(4).min(large))
    } else {
        let crowded = fill.used > fill.capacity - fill.capacity / 8;
        crowded.then(|| fill.used.saturating_add(fill.used / 3))
    };
    size.map(|size| size.max(fill.capacity))
}

/// Sizes with room for what comes.
pub(super) fn roomy(capacity: Capacity, fill: &[Fill]) -> Capacity {
    fill.iter().fold(capacity, |capacity, fill| {
        let size = wanted(fill);
        let larger = size.and_then(|size| enlarged(capacity, fill.table, size, fill.capacity));
        larger.unwrap_or(capacity)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crowded_tables_get_room_up_to_what_they_may_have() {
        let capacity = Capacity { bitmaps: 2000, rows: 16_000, ..Capacity::default() };
        let fill = |table, used| Fill { table, used, capacity: capacity.of(table) };
        let of = |fills: &[Fill]| roomy(capacity, fills);
        assert_eq!(of(&[fill(Table::Bitmaps, 1750), fill(Table::Classes, 65_000)]), capacity);
        assert_eq!(of(&[fill(Table::Bitmaps, 1800)]), Capacity { bitmaps: 2400, ..capacity });
        assert_eq!(of(&[fill(Table::Rows, 16_000)]), Capacity { rows: LARGEST.rows, ..capacity });
        let configured = Capacity { rows: 20_000, ..capacity };
        let full = Fill { table: Table::Rows, used: 20_000, capacity: 20_000 };
        assert_eq!(roomy(configured, &[full]), configured);
    }

    #[test]
    fn small_tables_grow_when_they_are_half_full() {
        let capacity = Capacity { rows: 2000, ..Capacity::SMALL };
        let fill = |table, used| Fill { table, used, capacity: capacity.of(table) };
        let of = |table, used| roomy(capacity, &[fill(table, used)]);
        assert_eq!(of(Table::Bitmaps, 32), capacity);
        assert_eq!(of(Table::Bitmaps, 33), Capacity { bitmaps: 132, ..capacity });
        assert_eq!(of(Table::Rows, 1001), Capacity { rows: 2048, ..capacity }, "large");
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
