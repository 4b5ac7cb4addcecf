//! Figures of many runs, and tables of them.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// What a measurement finds.
pub(crate) struct Found<T> {
    /// Of each thing that was measured.
    pub(crate) figures: Vec<T>,
    /// What could not be measured, and why.
    pub(crate) refused: Vec<String>,
}

/// Minimum and median of many runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
}

impl Spread {
    /// Of samples.
    pub(crate) fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
        Self { min: at(0), median: at(sorted.len() / 2) }
    }

    /// Of samples less those of an empty run: minimum less minimum, median less median.
    pub(crate) fn over(samples: &[f64], empty: &[f64]) -> Self {
        let (all, empty) = (Self::of(samples), Self::of(empty));
        Self { min: all.min - empty.min, median: all.median - empty.median }
    }
}

/// Highest and median of many runs, of what is better the more it is.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Rate {
    pub(crate) best: f64,
    pub(crate) median: f64,
}

impl Rate {
    /// Of samples.
    pub(crate) fn of(samples: &[f64]) -> Self {
        let median = Spread::of(samples).median;
        Self { best: samples.iter().copied().fold(f64::NAN, f64::max), median }
    }

    /// The time that one takes.
    pub(crate) fn time(self) -> Spread {
        Spread { min: self.best.recip(), median: self.median.recip() }
    }
}

pub(crate) fn spread(spread: Spread) -> String {
    format!("{:.1} / {:.1}", spread.min, spread.median)
}

pub(crate) fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header.to_vec());
    rows.for_each(|row| _ = table.add_row(row));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    say(&table.to_string());
}

#[expect(clippy::print_stdout, reason = "the benchmark's output")]
pub(crate) fn say(text: &str) {
    println!("{text}");
}
