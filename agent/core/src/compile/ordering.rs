//! From the installed to the desired state without an intermediate verdict: which addresses flip before the
//! endpoints' rows, which after them, and which via a temporary class.
//!
//! A packet's stateless verdict is `f(row, class)`. Let an address go from class `a` to `b` while
//! endpoints go from rows `A` to `B`. Classes first shows `A(b)` for a moment, rows first shows
//! `B(a)`; each is fine if it equals `A(a)` or `B(b)` for every endpoint whose rows change, both
//! directions taken together. If neither is, the address takes a temporary class whose column is
//! `A(a)` in the old rows and `B(b)` in the new ones: it flips there, the rows flip, it flips on.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use netpold_ebpf::layout::{CLASS_TRANSLATED, ClassId, ROW_NOT_ISOLATED, untranslated};

use crate::compile::sets::classes::Classes;
use crate::compile::tables::addresses::{AddressTables, Move};
use crate::compile::tables::rows::{RowPair, Rows};
use crate::ops::Op;

/// When addresses flip that go from a class to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlipPhase {
    BeforeRows,
    AfterRows,
    /// To this temporary class before the rows flip, on to the final one after.
    ViaTemporary(ClassId),
}

/// The moves of one update, each with the class of its addresses while the rows flip.
#[derive(Debug)]
pub(crate) struct Plan {
    moves: Vec<Move>,
}

/// Whether and how the moves between two classes can be ordered against the rows.
struct OrderingCheck<'a> {
    rows: &'a Rows,
    words: &'a BTreeSet<(RowPair, RowPair)>,
}

/// Whether what a pod with these rows sends to addresses of a class is marked as translated: only what
/// isolated pods send is, whichever direction that is.
fn marked(rows: RowPair, class: ClassId) -> bool {
    rows != (ROW_NOT_ISOLATED, ROW_NOT_ISOLATED) && class & CLASS_TRANSLATED != 0
}

impl OrderingCheck<'_> {
    /// Ingress, egress, and egress of what was not translated.
    fn columns(&self, word: RowPair, class: ClassId) -> [u32; 3] {
        let column = |row, class| self.rows.column(row, class);
        [column(word.0, class), column(word.1, class), column(word.1, untranslated(class))]
    }

    /// Whether what the changing endpoints see in between is what they see before or after. A
    /// packet that is marked as translated for nothing is only judged once more, but one that would
    /// be marked before or after must be marked in between too.
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

impl Plan {
    /// Orders moves against the change of `words`: rows of the endpoints before and after. Returns
    /// the pairs of classes that need a temporary one.
    pub(crate) fn new(
        mut moves: Vec<Move>,
        words: &BTreeSet<(RowPair, RowPair)>,
        rows: &Rows,
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

    /// Whether some address flips after the rows. Removing a prefix that flipped before is none.
    pub(crate) fn goes_on_after_rows(&self) -> bool {
        self.moves.iter().any(|step| step.between != step.to)
    }

    /// The flips before the rows'. Prefixes that end do so only in [`Plan::after_rows`]; so do new
    /// ones whose addresses wait, but they are written with their old class, lest a wider prefix
    /// take them along.
    pub(crate) fn before_rows(&self, tables: &mut AddressTables, ops: &mut Vec<Op>) {
        let set = self.moves.iter().map(|step| (step.prefix, step.between));
        tables.write(set, std::iter::empty(), ops);
    }

    /// The flips after the rows'; all of them if those before them were left out.
    pub(crate) fn after_rows(&self, all: bool, tables: &mut AddressTables, ops: &mut Vec<Op>) {
        let flips = |step: &&Move| step.stays && (all || step.between != step.to);
        let set = self.moves.iter().filter(flips).map(|step| (step.prefix, step.to));
        let gone = self.moves.iter().filter(|step| !step.stays).map(|step| step.prefix);
        tables.write(set, gone, ops);
    }
}
