//! Metrics, counters of denied traffic by workload, and the export to a collector.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use netpold_api::source::SourceStatus;
use netpold_core::lock::{lock, try_lock};
use netpold_engine::denied::{Denied, Kind};
use netpold_engine::events::DropLog;
use netpold_engine::metrics::{Exported, Metrics};
use netpold_engine::observe::{Attributions, Feed, Observer};
use netpold_engine::{Engine, observed};
use netpold_export::{Exporter, Numbers, Unreported};
use tokio::sync::watch;
use tracing::warn;

use crate::config::RunConfig;

/// Wait at the end for the last sweep's events, which are read in intervals.
const LAST_EVENTS: Duration = Duration::from_millis(200);

/// Receivers of events beside watchers and the log.
pub(super) struct Telemetry {
    /// Counters of denied traffic by workload, if they are served.
    denied: Option<Arc<Mutex<Denied>>>,
    exporter: Option<Exporter>,
}

impl Telemetry {
    pub(super) fn new(config: &RunConfig) -> Self {
        let exporter = config.export.clone().map(Exporter::new);
        let most = usize::from(config.denied_series);
        let serves = (config.listen.is_some() || exporter.is_some()) && most > 0;
        let denied = serves.then(|| Arc::new(Mutex::new(Denied::new(most))));
        Self { denied, exporter }
    }

    /// Creates the metrics, which also answer readiness.
    pub(super) fn metrics(
        &self,
        engine: &Arc<Mutex<Engine>>,
        drops: &Arc<Mutex<DropLog>>,
        source: watch::Receiver<SourceStatus>,
    ) -> Metrics {
        let at_work = Arc::clone(engine);
        let snapshot = move || try_lock(&at_work).map(|mut engine| engine.snapshot());
        let mut now = lock(engine);
        let (instruments, first) = (now.instruments().clone(), now.snapshot());
        drop(now);
        let exporter = self.exporter.clone();
        let exported = move || {
            let numbers = exporter.as_ref().map(Exporter::numbers).unwrap_or_default();
            let Numbers { sent, lost, failures, waiting } = numbers;
            Exported { sent, lost, failures, waiting }
        };
        let (drops, denied) = (Arc::clone(drops), self.denied.clone());
        Metrics::new(&instruments, first, snapshot, drops, denied, exported, source)
    }

    /// Starts to export. Call in a runtime.
    pub(super) fn export(&self, metrics: &Arc<Metrics>) {
        if let Some(exporter) = &self.exporter {
            let metrics = Arc::clone(metrics);
            exporter.start(move || metrics.text().ok());
        }
    }

    /// Starts to count denied traffic by workload and to export events, before the first event is read.
    pub(super) fn feed(&self, engine: &Arc<Mutex<Engine>>, observer: &Arc<Observer>) {
        if self.denied.is_none() && !self.exporter.as_ref().is_some_and(Exporter::wants_events) {
            return;
        }
        let denied = self.denied.clone().unwrap_or_else(|| Arc::new(Mutex::new(Denied::new(0))));
        let engine = Arc::clone(engine);
        let dropped = Box::new(move || lock(&engine).dropped_packets());
        let exporter = self.exporter.clone();
        let with_flows = exporter.as_ref().is_some_and(Exporter::wants_flows);
        let sink = move |events: Vec<_>, unreported: Vec<(Kind, u64)>| {
            let Some(exporter) = &exporter else { return };
            let unreported = unreported.into_iter().map(|(kind, count)| {
                let Kind { outcome, direction, reason } = kind;
                Unreported { outcome, direction, reason, count }
            });
            exporter.send(&events, &unreported.collect::<Vec<_>>());
        };
        let feed = Feed::new(Arc::clone(observer), dropped, denied, Box::new(sink), with_flows);
        tokio::spawn(async move {
            let Err(error) = feed.follow().await;
            warn!(%error, "denied traffic is no longer counted by workload, and no longer exported");
        });
    }

    /// Waits a moment for the last records.
    pub(super) async fn finish(&self) {
        if let Some(exporter) = &self.exporter {
            tokio::time::sleep(LAST_EVENTS).await;
            exporter.finish().await;
        }
    }
}

/// Creates the server of events to watchers and metrics.
pub(super) fn observer(
    node: &str,
    engine: &Arc<Mutex<Engine>>,
    drops: &Mutex<DropLog>,
) -> Arc<Observer> {
    let engine = Arc::clone(engine);
    let mut attributions = Attributions::default();
    let resolve =
        move |seen: &[_], filter: &_| observed(&lock(&engine), seen, filter, &mut attributions);
    Arc::new(Observer::new(node.to_owned(), lock(drops).journal(), resolve))
}
