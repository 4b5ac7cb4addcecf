//! Statistics of repeated runs, and their tables.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Results of a measurement.
pub(crate) struct MeasuredFigures<T> {
    /// One figure per subject.
    pub(crate) figures: Vec<T>,
    /// Subjects that could not be measured, with the reason.
    pub(crate) refused: Vec<String>,
}

/// Minimum and median of many runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
}

impl Spread {
    /// Spread of samples.
    pub(crate) fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
        Self { min: at(0), median: at(sorted.len() / 2) }
    }

    /// Spread of samples minus the spread of an empty run: minimum minus minimum, median minus median.
    pub(crate) fn over(samples: &[f64], empty: &[f64]) -> Self {
        let (all, empty) = (Self::of(samples), Self::of(empty));
        Self { min: all.min - empty.min, median: all.median - empty.median }
    }
}

/// Maximum and median of repeated runs, where more is better.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Rate {
    pub(crate) best: f64,
    pub(crate) median: f64,
}

impl Rate {
    /// Rate of samples.
    pub(crate) fn of(samples: &[f64]) -> Self {
        let median = Spread::of(samples).median;
        Self { best: samples.iter().copied().fold(f64::NAN, f64::max), median }
    }

    /// Time per item.
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
