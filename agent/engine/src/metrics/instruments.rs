//! Counters and timers of the engine.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of durations in seconds. A small update takes a millisecond or less, besides the 1 ms that gathers a
/// burst; a duration above the last bound is a fault.
const BUCKETS: [f64; 14] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];

/// Counters and histograms of updates. Clones share their values.
#[derive(Clone, Debug)]
pub struct Instruments {
    programming: Histogram,
    compile: Histogram,
    apply: Histogram,
    updates: Counter,
    failures: Counter,
    generations: Counter,
}

impl Default for Instruments {
    fn default() -> Self {
        let durations = || Histogram::new(BUCKETS);
        Self {
            programming: durations(),
            compile: durations(),
            apply: durations(),
            updates: Counter::default(),
            failures: Counter::default(),
            generations: Counter::default(),
        }
    }
}

impl Instruments {
    /// Counts an update that came into force, and its duration since the first change was noticed.
    pub(crate) fn enforced(&self, since_noticed: Option<Duration>) {
        self.updates.inc();
        if let Some(duration) = since_noticed {
            self.programming.observe(duration.as_secs_f64());
        }
    }

    /// Counts a failed update.
    pub(crate) fn failed(&self) {
        self.failures.inc();
    }

    /// Counts a new generation: all content was written into new tables.
    pub(crate) fn new_generation(&self) {
        self.generations.inc();
    }

    /// Times a compilation.
    pub(crate) fn compiling<T>(&self, work: impl FnOnce() -> T) -> T {
        timed(&self.compile, work)
    }

    /// Times writing to the kernel.
    pub(crate) fn applying<T>(&self, work: impl FnOnce() -> T) -> T {
        timed(&self.apply, work)
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "programming_duration_seconds",
            "Time from noticing a change of an object to enforcing it on this node",
            self.programming.clone(),
        );
        registry.register(
            "compile_duration_seconds",
            "Time to compile an update",
            self.compile.clone(),
        );
        registry.register(
            "apply_duration_seconds",
            "Time to write an update to the kernel's tables",
            self.apply.clone(),
        );
        registry.register("updates", "Updates enforced", self.updates.clone());
        registry.register(
            "update_failures",
            "Updates that the kernel refused or that did not fit; each is retried",
            self.failures.clone(),
        );
        registry.register(
            "generations",
            "Times that all content was written to new tables: start, growth, recovery, large policies",
            self.generations.clone(),
        );
    }
}

fn timed<T>(histogram: &Histogram, work: impl FnOnce() -> T) -> T {
    let start = std::time::Instant::now();
    let result = work();
    histogram.observe(start.elapsed().as_secs_f64());
    result
}
