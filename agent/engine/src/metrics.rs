//! The metrics at `/metrics`, in `OpenMetrics` text.
//!
//! Three sources: [`Instruments`] that the engine updates, a [`Snapshot`] of the engine at the scrape, and the process
//! itself. A scrape never waits for the engine: while the engine writes, the last snapshot is served. No label names a
//! pod or an address. Labels name audited policies, 500 of them at most, and workloads with denied traffic in a bounded
//! number of series ([`DeniedCounters`]). So the number of series is bounded for every cluster. deploy/metrics.md lists all
//! metrics.

mod denied;
mod exported;
mod instruments;
mod process;
mod snapshot;
mod watches;
mod writer;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use netpold_api::source::SourceStatus;
use netpold_core::lock::lock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

pub use exported::Exported;
pub use instruments::Instruments;
use process::ProcessCollector;
pub use snapshot::{ByDirection, EndpointCounts, Snapshot};
use writer::MetricWriter;

use crate::denied::DeniedCounters;
use crate::events::DropLog;

/// All metrics of an agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    observed: Arc<ScrapedParts>,
}

impl Metrics {
    /// Creates the metrics of these parts of an agent. `first` is served until `snapshot` returns another one;
    /// `snapshot` returns `None` while the engine is busy. `denied`: counters by workload, if there are any.
    /// `exported` returns the numbers of the export.
    #[must_use]
    pub fn new(
        instruments: &Instruments,
        first: Snapshot,
        snapshot: impl Fn() -> Option<Snapshot> + Send + Sync + 'static,
        drops: Arc<Mutex<DropLog>>,
        denied: Option<Arc<Mutex<DeniedCounters>>>,
        exported: impl Fn() -> Exported + Send + Sync + 'static,
        source: watch::Receiver<SourceStatus>,
    ) -> Self {
        let mut registry = Registry::default();
        let netpold = registry.sub_registry_with_prefix("netpold");
        let build = [("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)];
        netpold.register(
            "build",
            "Version and architecture of the running agent",
            Info::new(build),
        );
        instruments.register(netpold);
        let snapshot = Box::new(snapshot);
        let last = Mutex::new((first, Instant::now()));
        let observed = Arc::new(ScrapedParts {
            snapshot,
            drops,
            denied,
            exported: Box::new(exported),
            source,
            last,
        });
        netpold.register_collector(Box::new(Arc::clone(&observed)));
        registry.register_collector(Box::new(ProcessCollector::default()));
        Self { registry, observed }
    }

    /// Returns all metrics as text.
    ///
    /// # Errors
    /// A metric cannot be written, which is a bug of this program.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry).map(|()| text)
    }

    /// Returns the reasons why the agent is not ready; empty if it is ready. A ready agent knows all objects and
    /// enforces them, except for the latest changes.
    #[must_use]
    pub fn not_ready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        reasons.extend(watches::not_ready(&self.observed.source.borrow()));
        reasons.extend(self.observed.snapshot().not_ready);
        reasons
    }
}

/// Parts of the agent that a scrape reads.
struct ScrapedParts {
    snapshot: Box<dyn Fn() -> Option<Snapshot> + Send + Sync>,
    drops: Arc<Mutex<DropLog>>,
    denied: Option<Arc<Mutex<DeniedCounters>>>,
    exported: Box<dyn Fn() -> Exported + Send + Sync>,
    source: watch::Receiver<SourceStatus>,
    /// The last snapshot, and the earliest time of the next one.
    last: Mutex<(Snapshot, Instant)>,
}

/// Snapshots block the engine for at most 1/`SHARE` of the time, at any rate of scrapes.
const SHARE: u32 = 20;

/// Required by the registry.
impl fmt::Debug for ScrapedParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").finish_non_exhaustive()
    }
}

impl ScrapedParts {
    /// Returns a new snapshot; the previous one while the engine is busy, or before the next one is due.
    fn snapshot(&self) -> Snapshot {
        let mut last = lock(&self.last);
        let began = Instant::now();
        if began >= last.1
            && let Some(fresh) = (self.snapshot)()
        {
            *last = (fresh, Instant::now() + began.elapsed() * SHARE);
        }
        last.0.clone()
    }

    fn write_events(&self, writer: &mut MetricWriter<'_>) -> fmt::Result {
        let (seen, suppressed) = {
            let drops = lock(&self.drops);
            (drops.events_read(), drops.suppressed())
        };
        writer.counter(
            "drop_events",
            "Dropped packets that the kernel reported one by one",
            seen,
        )?;
        writer.counter(
            "drop_events_suppressed",
            "Dropped packets that the kernel counted without reporting them, to keep its limit",
            suppressed,
        )
    }
}

impl Collector for ScrapedParts {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = MetricWriter::new(encoder);
        watches::write(&self.source.borrow(), &mut writer)?;
        self.write_events(&mut writer)?;
        if let Some(denied) = &self.denied {
            denied::write(&lock(denied), &mut writer)?;
        }
        (self.exported)().write(&mut writer)?;
        self.snapshot().write(&mut writer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    /// Each snapshot blocks the engine for five milliseconds.
    #[test]
    fn scrapes_without_end_leave_the_engine_most_of_the_time() {
        const TAKES: Duration = Duration::from_millis(5);
        let taken = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&taken);
        let snapshot = move || {
            count.fetch_add(1, Ordering::Relaxed);
            sleep(TAKES);
            Some(Snapshot::default())
        };
        let observed = ScrapedParts {
            snapshot: Box::new(snapshot),
            drops: Arc::default(),
            denied: None,
            exported: Box::new(Exported::default),
            source: watch::channel(SourceStatus::default()).1,
            last: Mutex::new((Snapshot::default(), Instant::now())),
        };
        let began = Instant::now();
        while taken.load(Ordering::Relaxed) < 4 {
            drop(observed.snapshot());
        }
        assert!(began.elapsed() >= TAKES * SHARE * 3, "four in {:?}", began.elapsed());
    }
}
