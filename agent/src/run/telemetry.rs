//! Metrics, counters of denied traffic by workload, and the export to a collector.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use netpold_api::source::SourceStatus;
use netpold_core::lock::{lock, try_lock};
use netpold_engine::denied::{DeniedCounters, EventKind};
use netpold_engine::events::DropLog;
use netpold_engine::metrics::{Exported, Metrics};
use netpold_engine::observe::{Attributions, Feed, ObserveServer};
use netpold_engine::{Engine, watched_events};
use netpold_export::{ExportNumbers, Exporter, Unreported};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::warn;

use crate::config::RunConfig;

/// Longest wait at the end for the last events.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// Receivers of events other than watchers and the log.
pub(super) struct Telemetry {
    /// Counters of denied traffic by workload, if they are served.
    denied: Option<Arc<Mutex<DeniedCounters>>>,
    exporter: Option<Exporter>,
    /// Reader of events that has not started.
    unstarted_feed: Option<Feed>,
    /// End of the reader of events, and its task.
    feed: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Telemetry {
    pub(super) fn new(config: &RunConfig, exporter: Option<Exporter>) -> Self {
        let most = usize::from(config.denied_series);
        let serves = (config.listen.is_some() || exporter.is_some()) && most > 0;
        let denied = serves.then(|| Arc::new(Mutex::new(DeniedCounters::new(most))));
        Self { denied, exporter, unstarted_feed: None, feed: None }
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
            let ExportNumbers { sent, lost, failures, waiting } = numbers;
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

    /// Records the present totals of packets and flows, and the position after the latest event; later events are
    /// counted by workload and exported. Call before the engine enforces, so that denied traffic counts from the first
    /// packet on.
    pub(super) fn prepare_feed(
        &mut self,
        engine: &Arc<Mutex<Engine>>,
        observer: &Arc<ObserveServer>,
    ) {
        if self.denied.is_none() && !self.exporter.as_ref().is_some_and(Exporter::wants_events) {
            return;
        }
        let denied =
            self.denied.clone().unwrap_or_else(|| Arc::new(Mutex::new(DeniedCounters::new(0))));
        let engine = Arc::clone(engine);
        let dropped = Box::new(move || lock(&engine).dropped_packets());
        let exporter = self.exporter.clone();
        let with_flows = exporter.as_ref().is_some_and(Exporter::wants_flows);
        let sink = move |events: Vec<_>, unreported: Vec<(EventKind, u64)>| {
            let Some(exporter) = &exporter else { return };
            let unreported = unreported.into_iter().map(|(kind, count)| {
                let EventKind { outcome, direction, reason } = kind;
                Unreported { outcome, direction, reason, count }
            });
            exporter.send(&events, &unreported.collect::<Vec<_>>());
        };
        let sink = Box::new(sink);
        self.unstarted_feed =
            Some(Feed::new(Arc::clone(observer), dropped, denied, sink, with_flows));
    }

    /// Starts to count denied traffic by workload and to export events, from the position of [`Telemetry::prepare_feed`].
    /// `take_left` reads the events that are in the kernel's ring. If a former agent may have left them, they are
    /// recorded, but neither counted nor exported one by one.
    pub(super) fn start_feed(&mut self, may_be_former: bool, take_left: impl FnOnce()) {
        take_left();
        let Some(mut feed) = self.unstarted_feed.take() else { return };
        if may_be_former {
            feed.skip();
        }
        let (end, ended) = oneshot::channel();
        let ended = async {
            // Dropping the sender is the signal.
            let _ = ended.await;
        };
        let task = tokio::spawn(async move {
            if let Err(error) = feed.follow(ended).await {
                warn!(%error, "denied traffic is no longer counted by workload, and no longer exported");
            }
        });
        self.feed = Some((end, task));
    }

    /// Passes the last events to the exporter, which sends them after the agent has stopped.
    pub(super) async fn finish(&mut self) {
        let Some((end, task)) = self.feed.take() else { return };
        drop(end);
        let _ = timeout(LAST_EVENTS, task).await;
    }
}

/// Creates the server of events to watchers and metrics.
pub(super) fn observer(
    node: &str,
    engine: &Arc<Mutex<Engine>>,
    drops: &Mutex<DropLog>,
) -> Arc<ObserveServer> {
    let engine = Arc::clone(engine);
    let mut attributions = Attributions::default();
    let resolve = move |seen: &[_], filter: &_| {
        watched_events(&lock(&engine), seen, filter, &mut attributions)
    };
    Arc::new(ObserveServer::new(node.to_owned(), lock(drops).journal(), resolve))
}
