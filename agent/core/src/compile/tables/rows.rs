//! Rows: the port set that each direction policy allows to each class, as in the tables.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use netpold_ebpf::layout::{ClassId, ROW_NOT_ISOLATED, Row as RowImage, RowBlock, RowNames};

use crate::compile::rules::direction_policy::DirectionPolicy;
use crate::compile::slots::SlotAllocator;
use crate::compile::tables::element::DesiredElement;
use crate::compile::tables::port_sets::{PORT_SET_ALL, PORT_SET_NONE, PortSetTable};
use crate::ops::Op;
use crate::ports::AllowedPorts;

/// Block index of classes below 256.
const FIRST: u8 = 0;

/// Column of an ended class: no packet reads it, so its content in the table does not matter.
const STALE: u32 = u32::MAX;

/// Row numbers of an endpoint for ingress and egress.
pub(crate) type RowPair = (u32, u32);

/// Port sets by the low 8 bits of the class.
type Columns = [u32; 256];

/// A row and its blocks. A block belongs to one row, so that its columns can be filled in place. The first block, of
/// classes below 256, is part of the row itself and always exists.
#[derive(Debug)]
struct StoredRow {
    direction_policy: Arc<DirectionPolicy>,
    /// In the row of a group of rules with domain names: mark of the group; else empty.
    mark: AllowedPorts,
    /// The list of the rules' domain names, and the rows of their groups, which end with this row.
    names: RowNames,
    words: Box<[u32; 256]>,
    blocks: BTreeMap<u8, Box<Columns>>,
}

/// The rows in use.
#[derive(Debug)]
pub(crate) struct RowTable {
    pub(crate) slots: SlotAllocator,
    pub(crate) block_slots: SlotAllocator,
    rows: BTreeMap<u32, StoredRow>,
    by_policy: HashMap<Arc<DirectionPolicy>, u32>,
    /// Rows not yet written to the tables: changes to them need no operation.
    unwritten: BTreeSet<u32>,
    /// Blocks with classes that ended in the last update.
    emptied: BTreeSet<u8>,
}

impl RowTable {
    pub(crate) fn new() -> Self {
        Self {
            slots: SlotAllocator::new(ROW_NOT_ISOLATED + 1),
            block_slots: SlotAllocator::new(1),
            rows: BTreeMap::new(),
            by_policy: HashMap::new(),
            unwritten: BTreeSet::new(),
            emptied: BTreeSet::new(),
        }
    }

    /// The row of a direction policy.
    pub(crate) fn of_policy(&self, direction_policy: &Arc<DirectionPolicy>) -> Option<u32> {
        self.by_policy.get(direction_policy).copied()
    }

    /// Whether a direction policy's row is in the tables.
    pub(crate) fn is_written(&self, direction_policy: &Arc<DirectionPolicy>) -> bool {
        self.of_policy(direction_policy).is_some_and(|row| !self.is_new(row))
    }

    /// Whether a row is not yet in the tables.
    pub(crate) fn is_new(&self, row: u32) -> bool {
        self.unwritten.contains(&row)
    }

    /// Creates an empty row, which becomes the direction policy's row, also if it had another.
    pub(crate) fn create(&mut self, direction_policy: &Arc<DirectionPolicy>) -> u32 {
        let id = self.create_for(direction_policy, AllowedPorts::default());
        self.by_policy.insert(direction_policy.clone(), id);
        id
    }

    /// Creates an empty row for a group of a direction policy's rules, by the group's mark.
    pub(crate) fn create_for(
        &mut self,
        direction_policy: &Arc<DirectionPolicy>,
        mark: AllowedPorts,
    ) -> u32 {
        let id = self.slots.allocate();
        let row = StoredRow {
            direction_policy: direction_policy.clone(),
            mark,
            names: RowNames::default(),
            words: Box::new([0; 256]),
            blocks: BTreeMap::from([(FIRST, Box::new([PORT_SET_NONE; 256]))]),
        };
        self.rows.insert(id, row);
        self.unwritten.insert(id);
        id
    }

    /// Sets the names of a new row.
    pub(crate) fn set_names(&mut self, id: u32, names: RowNames) {
        if let Some(row) = self.rows.get_mut(&id) {
            row.names = names;
        }
    }

    /// The names of a row.
    pub(crate) fn names(&self, id: u32) -> RowNames {
        self.rows.get(&id).map(|row| row.names).unwrap_or_default()
    }

    /// All rows, their direction policies and marks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Arc<DirectionPolicy>, AllowedPorts)> {
        self.rows.iter().map(|(id, row)| (*id, &row.direction_policy, row.mark))
    }

    /// Port set of a row for a class. A direction that is not isolated allows everything.
    pub(crate) fn column(&self, row: u32, class: ClassId) -> u32 {
        if row == ROW_NOT_ISOLATED {
            return PORT_SET_ALL;
        }
        let block = self.rows.get(&row).and_then(|row| row.blocks.get(&high(class)));
        block.map_or(PORT_SET_NONE, |block| block[low(class)])
    }

    /// The port sets in a row's columns.
    pub(crate) fn port_sets(&self, row: u32) -> BTreeSet<u32> {
        let blocks = self.rows.get(&row).into_iter().flat_map(|row| row.blocks.values());
        blocks.flat_map(|block| block.iter().copied()).collect()
    }

    /// Numbers of a row's blocks; without the first one, which is part of the row.
    pub(crate) fn blocks(&self, row: u32) -> impl Iterator<Item = u32> + '_ {
        let row = self.rows.get(&row).into_iter();
        row.flat_map(|row| {
            let further = row.blocks.keys().filter(|high| **high != FIRST);
            further.map(|high| row.words[usize::from(*high)])
        })
    }

    /// Fills columns of classes that no packet reads yet.
    pub(crate) fn set_columns(
        &mut self,
        id: u32,
        columns: &[(ClassId, u32)],
        sets: &mut PortSetTable,
        ops: &mut Vec<Op>,
    ) {
        let written = !self.is_new(id);
        let Some(row) = self.rows.get_mut(&id) else { return };
        // New blocks are written as a whole before a row word points to them.
        let mut fresh: BTreeSet<u8> = BTreeSet::new();
        for columns in columns.chunk_by(|(one, _), (other, _)| high(*one) == high(*other)) {
            let Some(place) = columns.first().map(|(class, _)| high(*class)) else { continue };
            if !row.blocks.contains_key(&place) {
                if columns.iter().all(|(_, set)| *set == PORT_SET_NONE) {
                    continue;
                }
                row.words[usize::from(place)] = self.block_slots.allocate();
                row.blocks.insert(place, Box::new([PORT_SET_NONE; 256]));
                fresh.insert(place);
            }
            let Some(block) = row.blocks.get_mut(&place) else { continue };
            for (class, set) in columns {
                let column = &mut block[low(*class)];
                if column == set {
                    continue;
                }
                sets.acquire(*set);
                sets.release(*column);
                *column = *set;
                if written && !fresh.contains(&place) {
                    let (column, word) = (low(*class) as u8, sets.word(*set));
                    ops.push(match place {
                        FIRST => Op::RowFirst { row: id, class: column, ports: word },
                        place => Op::RowBlockWord {
                            block: row.words[usize::from(place)],
                            column,
                            ports: word,
                        },
                    });
                }
            }
        }
        for place in fresh.into_iter().filter(|_| written) {
            let (number, block) = (row.words[usize::from(place)], row.blocks.get(&place));
            ops.extend(block.map(|block| Op::RowBlock(number, block_image(block, sets))));
            ops.push(Op::RowWord { row: id, index: place, block: number });
        }
    }

    /// Writes the rows that are not in the tables yet.
    pub(crate) fn write(&mut self, sets: &PortSetTable, ops: &mut Vec<Op>) {
        for id in std::mem::take(&mut self.unwritten) {
            let Some(row) = self.rows.get(&id) else { continue };
            let (blocks, names) = (*row.words, row.names);
            let mut image = Box::new(RowImage { blocks, names, ..RowImage::EMPTY });
            for (high, block) in &row.blocks {
                let block = block_image(block, sets);
                match *high {
                    FIRST => image.first = *block,
                    high => ops.push(Op::RowBlock(row.words[usize::from(high)], block)),
                }
            }
            ops.push(Op::Row(id, image));
        }
    }

    /// Passes the rows with numbers in a range, and their blocks, to `visit`.
    pub(crate) fn expected(
        &self,
        range: Range<u32>,
        sets: &PortSetTable,
        visit: &mut dyn FnMut(DesiredElement<'_>),
    ) {
        if range.contains(&ROW_NOT_ISOLATED) {
            // The block to which rows point where they have none of their own.
            visit(DesiredElement::RowBlock(0, Box::new([0; 256])));
        }
        let image = |block: &Columns| {
            Box::new(
                block.map(|set| if set == STALE { DesiredElement::ANY } else { sets.word(set) }),
            )
        };
        for (id, row) in self.rows.range(range) {
            let (blocks, names) = (*row.words, row.names);
            let mut whole = Box::new(RowImage { blocks, names, ..RowImage::EMPTY });
            for (high, block) in &row.blocks {
                match *high {
                    FIRST => whole.first = *image(block),
                    high => {
                        let number = row.words[usize::from(high)];
                        visit(DesiredElement::RowBlock(number, image(block)));
                    }
                }
            }
            visit(DesiredElement::Row(*id, whole));
        }
    }

    /// At the end of an update of endpoints: retires the rows that are neither in `used` nor of their groups. Returns
    /// the lists of names that they had.
    pub(crate) fn retire_unused(
        &mut self,
        used: &BTreeSet<u32>,
        sets: &mut PortSetTable,
    ) -> Vec<u32> {
        let groups: BTreeSet<u32> = used.iter().flat_map(|id| self.names(*id).rows).collect();
        let is_used = |id: &u32| used.contains(id) || groups.contains(id);
        let unused: Vec<u32> = self.rows.keys().filter(|id| !is_used(id)).copied().collect();
        let lists = unused.iter().map(|id| self.names(*id).list).filter(|list| *list != 0);
        let lists = lists.collect();
        for id in unused {
            self.retire(id, sets);
        }
        lists
    }

    /// At the end of an update: releases the columns of these classes, which no longer exist.
    pub(crate) fn classes_ended(&mut self, retired: &[ClassId], sets: &mut PortSetTable) {
        for row in self.rows.values_mut() {
            for classes in retired.chunk_by(|one, other| high(*one) == high(*other)) {
                let block = classes.first().and_then(|class| row.blocks.get_mut(&high(*class)));
                let Some(block) = block else { continue };
                for class in classes {
                    sets.release(std::mem::replace(&mut block[low(*class)], STALE));
                }
            }
        }
        self.emptied.extend(retired.iter().map(|class| high(*class)).filter(|high| *high != FIRST));
    }

    /// Begins an update: removes blocks without live columns from rows. Not done when their classes ended, because a
    /// packet in flight may have read such a class before, and that update does not wait for packets.
    pub(crate) fn begin(&mut self, ops: &mut Vec<Op>) {
        for high in std::mem::take(&mut self.emptied) {
            let dead = |set: &u32| matches!(*set, PORT_SET_NONE | STALE);
            for (id, row) in &mut self.rows {
                if row.blocks.get(&high).is_some_and(|block| block.iter().all(dead)) {
                    row.blocks.remove(&high);
                    self.block_slots.retire(std::mem::take(&mut row.words[usize::from(high)]));
                    ops.push(Op::RowWord { row: *id, index: high, block: 0 });
                }
            }
        }
    }

    fn retire(&mut self, id: u32, sets: &mut PortSetTable) {
        let Some(row) = self.rows.remove(&id) else { return };
        self.unwritten.remove(&id);
        if self.by_policy.get(&row.direction_policy) == Some(&id) {
            self.by_policy.remove(&row.direction_policy);
        }
        for (high, block) in &row.blocks {
            block.iter().for_each(|set| sets.release(*set));
            if *high != FIRST {
                self.block_slots.retire(row.words[usize::from(*high)]);
            }
        }
        self.slots.retire(id);
    }
}

/// Columns as in the tables.
fn block_image(columns: &Columns, sets: &PortSetTable) -> Box<RowBlock> {
    Box::new(columns.map(|set| sets.word(set)))
}

/// Upper 8 bits of the class's number; the flags of the word are above 16 bits.
fn high(class: ClassId) -> u8 {
    (class >> 8) as u8
}

fn low(class: ClassId) -> usize {
    (class & 255) as usize
}
