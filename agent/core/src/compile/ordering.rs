//! Orders an update without intermediate verdicts: an address flips before the rows of the endpoints, after them, or
//! via a temporary class.
//!
//! A packet's stateless verdict is `f(row, class)`. Let an address change from class `a` to `b` while endpoints change
//! from rows `A` to `B`. Classes first exposes `A(b)` for a moment, rows first exposes `B(a)`. Either order is safe if
//! the exposed verdict equals `A(a)` or `B(b)` for every endpoint with changing rows, both directions taken together.
//! If neither is safe, the address takes a temporary class with column `A(a)` in the old rows and `B(b)` in the new
//! ones: the address flips to it, then the rows flip, then the address flips to `b`.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use netpold_ebpf::layout::{CLASS_TRANSLATED, ClassId, ROW_NOT_ISOLATED, untranslated};

use crate::compile::sets::classes::Classes;
use crate::compile::tables::addresses::{AddressTables, ClassMove};
use crate::compile::tables::rows::{RowPair, RowTable};
use crate::ops::Op;

/// When an address flips from one class to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlipPhase {
    BeforeRows,
    AfterRows,
    /// Flips to this temporary class before the rows flip, and to the final class after.
    ViaTemporary(ClassId),
}

/// The moves of one update; `between` of each move is the address's class while the rows flip.
#[derive(Debug)]
pub(crate) struct MovePlan {
    moves: Vec<ClassMove>,
}

/// Decides whether moves between two classes may come before or after the flip of rows.
struct OrderingCheck<'a> {
    rows: &'a RowTable,
    words: &'a BTreeSet<(RowPair, RowPair)>,
}

/// Whether packets from a pod with these rows to addresses of a class are marked as translated. Packets of a pod are
/// marked if the pod is isolated in at least one direction.
fn marked(rows: RowPair, class: ClassId) -> bool {
    rows != (ROW_NOT_ISOLATED, ROW_NOT_ISOLATED) && class & CLASS_TRANSLATED != 0
}

impl OrderingCheck<'_> {
    /// Columns of a class in the rows of ingress, egress, and egress for untranslated packets; then the list of domain
    /// names, and the columns of its groups.
    fn columns(&self, word: RowPair, class: ClassId) -> Vec<u32> {
        let column = |row, class| self.rows.column(row, class);
        let (egress, names) = (word.1, self.rows.names(word.1));
        let own =
            [column(word.0, class), column(egress, class), column(egress, untranslated(class))];
        let groups = names.rows.into_iter().take_while(|row| *row != 0);
        own.into_iter().chain([names.list]).chain(groups.map(|row| column(row, class))).collect()
    }

    /// Whether the verdicts of every changing endpoint equal those before or those after the update while one half of
    /// the update is applied. A superfluous mark only costs a second judgement, so in between a packet may be marked,
    /// but a packet marked in the equal state must be marked.
    fn safe(&self, from: ClassId, to: ClassId, rows_first: bool) -> bool {
        self.words.iter().all(|(old, new)| {
            let between = if rows_first { (*new, from) } else { (*old, to) };
            let like = |word: RowPair, class: ClassId| {
                self.columns(between.0, between.1) == self.columns(word, class)
                    && marked(between.0, between.1) >= marked(word, class)
            };
            like(*old, from) || like(*new, to)
        })
    }
}

impl MovePlan {
    /// Orders moves against the change of `words`, the row pairs of endpoints before and after. Returns the pairs of
    /// classes that need a temporary class, as `(from, to, temporary)`.
    pub(crate) fn new(
        mut moves: Vec<ClassMove>,
        words: &BTreeSet<(RowPair, RowPair)>,
        rows: &RowTable,
        classes: &mut Classes,
    ) -> (Self, Vec<(ClassId, ClassId, ClassId)>) {
        let check = OrderingCheck { rows, words };
        let mut phases: HashMap<(ClassId, ClassId), FlipPhase> = HashMap::new();
        let mut via_temporary = Vec::new();
        for step in &mut moves {
            let (from, to) = (step.from, step.to);
            let phase = *phases.entry((from, to)).or_insert_with(|| {
                if from == to || check.safe(from, to, false) {
                    FlipPhase::BeforeRows
                } else if check.safe(from, to, true) {
                    FlipPhase::AfterRows
                } else {
                    let class = classes.temporary(from, to);
                    via_temporary.push((from, to, class));
                    FlipPhase::ViaTemporary(class)
                }
            });
            step.between = match phase {
                FlipPhase::BeforeRows => to,
                FlipPhase::AfterRows => from,
                FlipPhase::ViaTemporary(class) => class,
            };
        }
        (Self { moves }, via_temporary)
    }

    /// Whether no address moves.
    pub(crate) fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    /// Whether an address flips after the rows. The removal of a prefix that flipped before the rows is not a flip.
    pub(crate) fn flips_after_rows(&self) -> bool {
        self.moves.iter().any(|step| step.between != step.to)
    }

    /// Writes the flips that precede the flip of rows. [`MovePlan::after_rows`] removes prefixes. New prefixes that flip
    /// later are written with their old class here, so that a flip of the enclosing prefix does not change them.
    pub(crate) fn before_rows(&self, tables: &mut AddressTables, ops: &mut Vec<Op>) {
        let set = self.moves.iter().map(|step| (step.prefix, step.between));
        tables.write(set, std::iter::empty(), ops);
    }

    /// Writes the flips that follow the flip of rows, and removes prefixes; `all`: [`MovePlan::before_rows`] was skipped,
    /// so all flips are written.
    pub(crate) fn after_rows(&self, all: bool, tables: &mut AddressTables, ops: &mut Vec<Op>) {
        let flips = |step: &&ClassMove| step.stays && (all || step.between != step.to);
        let set = self.moves.iter().filter(flips).map(|step| (step.prefix, step.to));
        let gone = self.moves.iter().filter(|step| !step.stays).map(|step| step.prefix);
        tables.write(set, gone, ops);
    }
}
