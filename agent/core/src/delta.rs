//! From installed to desired without an in-between: which addresses flip before the endpoints'
//! rows, which after, and which by way of a temporary class.
//!
//! A packet's stateless verdict is `f(row, class)`. Let an address go from class `a` to `b` while
//! endpoints go from rows `A` to `B`. Classes first shows `A(b)` for a moment, rows first shows
//! `B(a)`; each is fine if it equals `A(a)` or `B(b)` for every endpoint whose rows change, both
//! directions taken together. If neither is, the address takes a temporary class whose column is
//! `A(a)` in the old rows and `B(b)` in the new ones: it flips there, the rows flip, it flips on.

pub(crate) mod trie4;

use std::collections::BTreeSet;

use hashbrown::HashMap;
use netpold_ebpf::layout::{CLASS_TRANSLATED, ClassId, ROW_NOT_ISOLATED, untranslated};

use crate::compile::classes::Classes;
use crate::compile::prefix::{Family, Prefix, PrefixMap};
use crate::compile::rows::Rows;
use crate::compile::space::Space;
use crate::ops::Op;
use trie4::Trie4;

/// The addresses of one prefix (those that no longer prefix of the update holds) change class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    prefix: Prefix,
    pub(crate) from: ClassId,
    pub(crate) to: ClassId,
    /// Whether the tables hold the prefix at the end.
    stays: bool,
}

/// Row numbers of an endpoint's two directions.
pub(crate) type RowPair = (u32, u32);

/// When addresses of a [`Move`] flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    BeforeRows,
    AfterRows,
    /// To this temporary class before the rows flip, on to the final one after.
    Through(ClassId),
}

/// The tables that map addresses to classes, as installed.
#[derive(Debug)]
pub(crate) struct AddressTables {
    prefixes: PrefixMap<ClassId>,
    pub(crate) trie4: Trie4,
    /// Most IPv6 addresses and prefixes held at once.
    pub(crate) peak6: (u32, u32),
}

impl AddressTables {
    pub(crate) fn new() -> Self {
        Self { prefixes: PrefixMap::new(), trie4: Trie4::new(), peak6: (0, 0) }
    }

    /// What has to move for the touched prefixes to be as `space` says.
    pub(crate) fn moves(&self, space: &Space, touched: &[Prefix]) -> Vec<Move> {
        let moves = touched.iter().filter_map(|prefix| {
            let (node, parent) = (space.nodes.get(*prefix), space.parent_class(*prefix));
            let to = node.map_or(parent, |node| node.class.unwrap_or(0));
            let stays = node.is_some() && to != parent;
            let installed = self.prefixes.get(*prefix).copied();
            let holder = || self.prefixes.parent(*prefix).copied().unwrap_or(0);
            let from = installed.unwrap_or_else(holder);
            let concerns = installed.is_some() || stays;
            let same = installed.is_some() == stays && from == to;
            (concerns && !same).then_some(Move { prefix: *prefix, from, to, stays })
        });
        moves.collect()
    }

    /// Writes classes and then removes prefixes. New prefixes come longest first, so that none ever
    /// covers addresses that a longer one is still to take; they go shortest first, for the same
    /// reason.
    fn write(&mut self, mut set: Vec<(Prefix, ClassId)>, mut gone: Vec<Prefix>, ops: &mut Vec<Op>) {
        let had_cidr6 = self.prefixes.count(Family::V6).1 != 0;
        set.sort_by_key(|(prefix, _)| (std::cmp::Reverse(prefix.len), *prefix));
        gone.sort_by_key(|prefix| (prefix.len, *prefix));
        if !had_cidr6 && set.iter().any(|(prefix, _)| is_cidr6(*prefix)) {
            ops.push(Op::HasCidr6(true));
        }
        let mut changed = Vec::new();
        for (prefix, class) in set {
            if self.prefixes.insert(prefix, class) == Some(class) {
                continue;
            }
            match prefix.family {
                Family::V4 => changed.push(prefix),
                Family::V6 if prefix.is_host() => ops.push(Op::Host6(prefix.v6(), class)),
                Family::V6 => ops.push(Op::Cidr6(prefix.net6(), class)),
            }
        }
        let (hosts, cidrs) = self.prefixes.count(Family::V6);
        self.peak6 = (self.peak6.0.max(hosts), self.peak6.1.max(cidrs));
        for prefix in &gone {
            if self.prefixes.remove(*prefix).is_none() {
                continue;
            }
            match prefix.family {
                Family::V4 => changed.push(*prefix),
                Family::V6 if prefix.is_host() => ops.push(Op::Host6Gone(prefix.v6())),
                Family::V6 => ops.push(Op::Cidr6Gone(prefix.net6())),
            }
        }
        if self.prefixes.count(Family::V6).1 == 0 && gone.iter().any(|prefix| is_cidr6(*prefix)) {
            ops.push(Op::HasCidr6(false));
        }
        self.trie4.repaint(&self.prefixes, &changed, ops);
    }

    /// The class that is installed for exactly this prefix.
    pub(crate) fn class_of(&self, prefix: Prefix) -> Option<ClassId> {
        self.prefixes.get(prefix).copied()
    }

    /// What is installed of a family.
    pub(crate) fn entries(&self, family: Family) -> impl Iterator<Item = (Prefix, ClassId)> {
        let whole = Prefix { family, bits: 0, len: 0 };
        self.prefixes.under(whole).map(|(prefix, class)| (prefix, *class))
    }

    /// Number of IPv6 addresses and prefixes.
    pub(crate) fn count6(&self) -> (u32, u32) {
        self.prefixes.count(Family::V6)
    }
}

fn is_cidr6(prefix: Prefix) -> bool {
    prefix.family == Family::V6 && !prefix.is_host()
}

/// The moves of one update, each with its turn.
#[derive(Debug)]
pub(crate) struct Plan {
    moves: Vec<(Move, Turn)>,
}

/// Whether and how the moves between two classes can be ordered against the rows.
struct Judge<'a> {
    rows: &'a Rows,
    words: &'a BTreeSet<(RowPair, RowPair)>,
}

/// Whether what a pod with these rows sends to addresses of a class is marked as translated: only what
/// isolated pods send is, whichever direction that is.
fn marked(rows: RowPair, class: ClassId) -> bool {
    rows != (ROW_NOT_ISOLATED, ROW_NOT_ISOLATED) && class & CLASS_TRANSLATED != 0
}

impl Judge<'_> {
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
        moves: Vec<Move>,
        words: &BTreeSet<(RowPair, RowPair)>,
        rows: &Rows,
        classes: &mut Classes,
    ) -> (Self, Vec<(ClassId, ClassId, ClassId)>) {
        let judge = Judge { rows, words };
        let mut turns: HashMap<(ClassId, ClassId), Turn> = HashMap::new();
        let mut through = Vec::new();
        let moves = moves.into_iter().map(|step| {
            let (from, to) = (step.from, step.to);
            let turn = *turns.entry((from, to)).or_insert_with(|| {
                if from == to || judge.safe(from, to, false) {
                    Turn::BeforeRows
                } else if judge.safe(from, to, true) {
                    Turn::AfterRows
                } else {
                    let class = classes.temporary(from, to);
                    through.push((from, to, class));
                    Turn::Through(class)
                }
            });
            (step, turn)
        });
        let moves = moves.collect();
        (Self { moves }, through)
    }

    /// Whether no address moves.
    pub(crate) fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    /// Whether some address flips after the rows. Removing a prefix that flipped before is none.
    pub(crate) fn goes_on_after_rows(&self) -> bool {
        self.moves.iter().any(|(_, turn)| *turn != Turn::BeforeRows)
    }

    /// The flips before the rows'. Prefixes that end do so only in [`Plan::after_rows`]; so do new
    /// ones whose addresses wait, but they are written with their old class, lest a wider prefix
    /// take them along.
    pub(crate) fn before_rows(&self, tables: &mut AddressTables, ops: &mut Vec<Op>) {
        let set = self.moves.iter().map(|(step, turn)| {
            let class = match turn {
                Turn::BeforeRows => step.to,
                Turn::AfterRows => step.from,
                Turn::Through(class) => *class,
            };
            (step.prefix, class)
        });
        tables.write(set.collect(), Vec::new(), ops);
    }

    /// The flips after the rows'; all of them if those before them were left out.
    pub(crate) fn after_rows(&self, all: bool, tables: &mut AddressTables, ops: &mut Vec<Op>) {
        let (stay, go): (Vec<_>, Vec<_>) = self.moves.iter().partition(|(step, _)| step.stays);
        let set = stay.iter().filter(|(_, turn)| all || *turn != Turn::BeforeRows);
        let set = set.map(|(step, _)| (step.prefix, step.to)).collect();
        let gone = go.iter().map(|(step, _)| step.prefix).collect();
        tables.write(set, gone, ops);
    }
}
