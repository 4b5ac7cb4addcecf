//! Detects regressions: compares a run's figures with the baseline's, beyond the noise of both.
//!
//! Each figure is a ratio to a cost of the same run (the empty program, no filter, the first image), which is similar
//! on different machines. Its noise was measured by the same run: from the minimum of the rounds to their median.
//! Shared machines have phases in which a whole run is slower. So a part with apparently slower figures is measured
//! again by another process, and only a figure that is slower both times is a regression.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::BenchmarkPart;
use crate::figures::say;
use crate::host::{self, Machine};

/// Possible effect of code layout alone on a figure: as a share of the figure, and in the unit of its ratio.
const LAYOUT: (f64, f64) = (0.10, 0.05);

/// A cost relative to another cost of the same run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Greater is slower.
    pub(crate) ratio: f64,
    /// Difference between the median of the rounds and the minimum; for events, between the third quartile and the
    /// median.
    pub(crate) noise: f64,
    /// The cost to which the ratio relates, in nanoseconds, milliseconds or another unit.
    pub(crate) unit: f64,
}

impl Figure {
    /// A cost, and its usual value (median of rounds, or third quartile of events), relative to another cost.
    pub(crate) fn new(cost: f64, unlucky: f64, unit: f64) -> Self {
        Self { ratio: cost / unit, noise: (unlucky - cost).abs() / unit, unit }
    }

    /// Whether the figure is slower beyond the noise of both runs.
    fn is_slower_than(self, was: Self) -> bool {
        let noise = (self.noise + was.noise).max(was.ratio.abs() * LAYOUT.0).max(LAYOUT.1);
        self.ratio > was.ratio + noise
    }
}

/// Figures by name; a name begins with its part of the benchmark.
pub(crate) type Figures = BTreeMap<String, Figure>;

/// `baseline.json`
#[derive(Serialize, Deserialize)]
pub(crate) struct Baseline {
    /// Machine of the measurement.
    pub(crate) machine: Machine,
    pub(crate) figures: Figures,
}

impl Baseline {
    /// Reads a baseline file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a baseline.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| {
            format!("{} is no baseline: make one with --save-baseline", path.display())
        })
    }

    /// Writes a baseline file. Figures of the same processor model that this run did not measure are kept.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn save(mut self, path: &Path) -> Result<Self> {
        if let Ok(mut before) = Self::read(path)
            && before.machine.cpu == self.machine.cpu
        {
            before.figures.append(&mut self.figures);
            self.figures = before.figures;
        }
        host::write(path, &serde_json::to_string_pretty(&self)?)?;
        Ok(self)
    }

    /// Figures that are slower than the baseline's, by name.
    fn slower<'a>(&'a self, now: &'a Figures) -> impl Iterator<Item = (&'a str, Figure, Figure)> {
        now.iter().filter_map(|(name, now)| {
            let was = self.figures.get(name)?;
            now.is_slower_than(*was).then_some((name.as_str(), *now, *was))
        })
    }
}

/// Compares a run with the stored baseline, and measures apparently slower parts again, with `again` as folder.
///
/// # Errors
/// A figure is slower, or the baseline cannot be read.
pub(crate) fn compare(now: &Baseline, path: &Path, again: &Path, quick: bool) -> Result<()> {
    if !path.exists() {
        say(&format!("\nno baseline at {}: nothing to compare with", path.display()));
        return Ok(());
    }
    let baseline = Baseline::read(path)?;
    let known = now.figures.keys().filter(|name| baseline.figures.contains_key(*name)).count();
    let first: Vec<_> = baseline.slower(&now.figures).collect();
    say(&format!("\ncompared with the baseline: {known} figures, {} seem slower", first.len()));
    if first.is_empty() {
        return Ok(());
    }
    if baseline.machine.cpu != now.machine.cpu {
        for (name, now, was) in &first {
            say(&format!("seems slower: {name}: {}", shown(*now, *was)));
        }
        say(&format!(
            "the baseline is of another processor ({}): nothing follows from that; \
             --baseline FILE --save-baseline makes one of this machine",
            baseline.machine.cpu
        ));
        return Ok(());
    }
    let parts: BTreeSet<_> = first.iter().filter_map(|(name, ..)| part(name)).collect();
    let repeated = measure_again(&parts, again, quick)?;
    let both: BTreeSet<_> = first.iter().map(|(name, ..)| *name).collect();
    let slower: Vec<_> =
        baseline.slower(&repeated.figures).filter(|(name, ..)| both.contains(name)).collect();
    for (name, now, was) in &slower {
        say(&format!("SLOWER THAN THE BASELINE: {name}: {}", shown(*now, *was)));
    }
    ensure!(
        slower.is_empty(),
        "{} of {known} figures are slower than {} in two runs",
        slower.len(),
        path.display()
    );
    say("measured once more, and none was slower again");
    Ok(())
}

fn shown(now: Figure, was: Figure) -> String {
    format!(
        "ratio {:.2} (noise {:.2}), was {:.2} (noise {:.2})",
        now.ratio, now.noise, was.ratio, was.noise
    )
}

/// Measures in another process, because the namespaces and the memory of this one are used.
fn measure_again(parts: &BTreeSet<String>, folder: &Path, quick: bool) -> Result<Baseline> {
    say(&format!("measuring once more: {}", parts.iter().cloned().collect::<Vec<_>>().join(", ")));
    let figures = folder.join("figures.json");
    let _ = std::fs::remove_file(&figures);
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--output").arg(folder).arg("--baseline").arg(&figures).arg("--save-baseline");
    command.args(quick.then_some("--quick"));
    command.args(parts.iter().flat_map(|part| ["--part", part.as_str()]));
    let status = command.stdout(std::process::Stdio::null()).status()?;
    ensure!(status.success(), "the second run failed: {status}");
    Baseline::read(&figures)
}

/// Name of the part that measures a figure.
fn part(figure: &str) -> Option<String> {
    let first = figure.split([',', ':']).next()?;
    BenchmarkPart::value_variants().iter().map(|part| part.name()).find(|name| name == first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(ratio: f64, noise: f64) -> Figure {
        Figure { ratio, noise, unit: 20.0 }
    }

    #[test]
    fn slower_is_beyond_the_noise_of_both_runs() {
        assert!(figure(1.3, 0.05).is_slower_than(figure(1.0, 0.05)));
        assert!(!figure(1.3, 0.25).is_slower_than(figure(1.0, 0.05)), "this run's noise");
        assert!(!figure(1.3, 0.05).is_slower_than(figure(1.0, 0.25)), "the baseline's noise");
        assert!(!figure(1.09, 0.0).is_slower_than(figure(1.0, 0.0)), "where code lies in memory");
        assert!(!figure(0.09, 0.0).is_slower_than(figure(0.05, 0.0)), "a nanosecond of twenty");
        assert!(!figure(0.5, 0.0).is_slower_than(figure(1.0, 0.0)), "faster");
    }

    #[test]
    fn each_figure_of_the_committed_baseline_belongs_to_a_part() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("baseline.json");
        let baseline = Baseline::read(&path).unwrap();
        assert!(!baseline.figures.is_empty());
        for name in baseline.figures.keys() {
            assert!(part(name).is_some(), "{name}");
        }
    }

    #[test]
    fn saving_replaces_what_was_measured_and_keeps_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("baseline.json");
        let save = |cpu: &str, name: &str, ratio| {
            let machine = Machine { cpu: cpu.to_owned(), ..Machine::here() };
            let figures = Figures::from([(name.to_owned(), figure(ratio, 0.0))]);
            Baseline { machine, figures }.save(&path).unwrap();
            Baseline::read(&path).unwrap().figures
        };
        save("one", "packet, a", 1.0);
        save("one", "packet, b", 2.0);
        let both = save("one", "packet, a", 3.0);
        assert_eq!(both["packet, a"], figure(3.0, 0.0));
        assert_eq!(both["packet, b"], figure(2.0, 0.0));
        assert_eq!(save("other", "packet, a", 4.0).len(), 1, "of another processor: no mixture");
    }
}
