//! The tasks that send records, and their handle. A caller that hands records over never waits for a collector.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use netpold_api::events::TrafficVerdict;
use netpold_api::observe::ObservedEvent;
use prost::Message as _;
use tokio::runtime::Builder;
use tokio::time::{MissedTickBehavior, interval_at, sleep, timeout};
use tracing::{info, warn};

use crate::client::{CollectorAddress, CollectorClient, RequestFailure, RetryAdvice};
use crate::logs::{self, Unreported};
use crate::metrics::{self, StartTimes};
use crate::queue::ExportQueue;
use crate::wire::{LogsRequest, ResourceLogs, ScopeLogs, resource, scope};

/// Maximum number of records per request.
const BATCH: usize = 512;
/// Time in which records are gathered for a request.
const GATHERED: Duration = Duration::from_millis(500);
/// Shortest and longest pause after a failure.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Longest wait at the agent's end for records that are not sent yet.
const FINISH: Duration = Duration::from_secs(2);

/// Settings of the export.
#[derive(Clone, Debug)]
pub struct ExportSettings {
    /// Collector.
    pub endpoint: CollectorAddress,
    /// Name of the node.
    pub node: String,
    /// Verdicts of the exported events; empty: no events.
    pub verdicts: Vec<TrafficVerdict>,
    /// Interval of the metrics, if they are exported.
    pub metrics: Option<Duration>,
}

/// Numbers since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportNumbers {
    /// Log records that a collector accepted.
    pub sent: u64,
    /// Log records lost: the queue was full, or the collector refused them.
    pub lost: u64,
    /// Failed requests.
    pub failures: u64,
    /// Log records that wait to be sent.
    pub waiting: u64,
}

#[derive(Debug, Default)]
struct ExportCounters {
    sent: AtomicU64,
    lost: AtomicU64,
    failures: AtomicU64,
    is_failing: AtomicBool,
}

/// Handle of the export. Clones share it.
#[derive(Clone, Debug)]
pub struct Exporter {
    settings: Arc<ExportSettings>,
    queue: Arc<ExportQueue>,
    counters: Arc<ExportCounters>,
}

impl Exporter {
    /// Creates the handle; nothing is sent before [`Exporter::start`].
    #[must_use]
    pub fn new(settings: ExportSettings) -> Self {
        Self { settings: Arc::new(settings), queue: Arc::default(), counters: Arc::default() }
    }

    /// Starts the tasks. `text` returns the metrics in `OpenMetrics` text. Call in a runtime.
    pub fn start(&self, text: impl Fn() -> Option<String> + Send + 'static) {
        if self.wants_events() {
            tokio::spawn(self.clone().send_logs());
        }
        if let Some(every) = self.settings.metrics {
            tokio::spawn(self.clone().send_metrics(every, text));
        }
    }

    /// Returns whether any events are exported.
    #[must_use]
    pub fn wants_events(&self) -> bool {
        !self.settings.verdicts.is_empty()
    }

    /// Returns whether new flows are exported.
    #[must_use]
    pub fn wants_flows(&self) -> bool {
        self.settings.verdicts.contains(&TrafficVerdict::Allow)
    }

    /// Queues events, and numbers of packets and flows without an event. Never waits; counts records for which the
    /// queue has no room.
    pub fn send(&self, events: &[ObservedEvent], unreported: &[Unreported]) {
        let now = logs::now();
        let wants = |outcome| self.settings.verdicts.contains(&outcome);
        let events = events.iter().filter(|event| wants(event.verdict));
        let events = events.map(|event| logs::record(event, now));
        let unreported = unreported.iter().filter(|of| wants(of.outcome));
        let unreported = unreported.map(|of| logs::unreported(of, now));
        let records: Vec<_> = events.chain(unreported).map(|it| it.encode_to_vec()).collect();
        if !records.is_empty() {
            let lost = self.queue.push(records);
            self.counters.lost.fetch_add(lost, Ordering::Relaxed);
        }
    }

    /// Returns the numbers since the start.
    #[must_use]
    pub fn numbers(&self) -> ExportNumbers {
        let counters = &*self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ExportNumbers {
            sent: read(&counters.sent),
            lost: read(&counters.lost),
            failures: read(&counters.failures),
            waiting: self.queue.len() as u64,
        }
    }

    /// Sends the records that wait, once the runtime of [`Exporter::start`] has ended; for two seconds at most. Blocks.
    pub fn finish(&self) {
        self.queue.put_back();
        if self.queue.len() == 0 {
            return;
        }
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
        let _ = runtime
            .block_on(async { timeout(FINISH, self.send_waiting(&mut self.sender())).await });
        // A DNS lookup may still be running.
        runtime.shutdown_background();
    }

    fn sender(&self) -> (CollectorClient, Duration) {
        (CollectorClient::new(self.settings.endpoint.clone()), PAUSES[0])
    }

    async fn send_logs(self) {
        let mut sender = self.sender();
        loop {
            self.queue.filled().await;
            sleep(GATHERED).await;
            self.send_waiting(&mut sender).await;
        }
    }

    /// Sends all records that wait. `pause`: the pause after the next failure.
    async fn send_waiting(&self, (client, pause): &mut (CollectorClient, Duration)) {
        loop {
            let (records, lost) = self.queue.take_oldest(BATCH);
            if records.is_empty() && lost == 0 {
                break;
            }
            self.send_batch(client, pause, records, lost).await;
            self.queue.done();
        }
    }

    /// Sends records until the collector has taken or refused them. Every failure is followed by a pause, which doubles
    /// until a request succeeds: also a refusal, since every batch may be refused, and so may the number of lost
    /// records.
    async fn send_batch(
        &self,
        client: &mut CollectorClient,
        pause: &mut Duration,
        records: Vec<Bytes>,
        lost: u64,
    ) {
        let number = records.len() as u64;
        let mut log_records = records;
        if lost > 0 {
            log_records.push(logs::lost(lost, logs::now()).encode_to_vec().into());
        }
        let scope_logs = vec![ScopeLogs { scope: Some(scope()), log_records }];
        let resource = Some(resource(&self.settings.node));
        let request = LogsRequest { resource_logs: vec![ResourceLogs { resource, scope_logs }] };
        loop {
            match client.send("/v1/logs", &request).await {
                Ok((rejected, reason)) => {
                    self.succeeded();
                    *pause = PAUSES[0];
                    let rejected = rejected.min(number);
                    self.counters.sent.fetch_add(number - rejected, Ordering::Relaxed);
                    if rejected > 0 {
                        warn!(rejected, reason, "the collector rejects log records");
                        self.refused(rejected, 0);
                    }
                    return;
                }
                Err(failure) => {
                    self.failed(&failure);
                    let asked = match failure.retry {
                        RetryAdvice::Never => None,
                        RetryAdvice::After(asked) => asked,
                    };
                    sleep(asked.unwrap_or_default().max(*pause).mul_f64(1.0 + random() / 2.0))
                        .await;
                    *pause = (*pause * 2).min(PAUSES[1]);
                    if failure.retry == RetryAdvice::Never {
                        return self.refused(number, lost);
                    }
                }
            }
        }
    }

    /// Counts records that are not sent again. `unsent`: losses that the batch would have reported.
    fn refused(&self, records: u64, unsent: u64) {
        self.counters.lost.fetch_add(records, Ordering::Relaxed);
        self.queue.refused(records + unsent);
    }

    async fn send_metrics(self, every: Duration, text: impl Fn() -> Option<String>) {
        let mut client = CollectorClient::new(self.settings.endpoint.clone());
        let mut starts = StartTimes::new(logs::now());
        // Agents that start together, as in a rollout, do not send together.
        let mut due = interval_at(tokio::time::Instant::now() + every.mul_f64(random()), every);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            due.tick().await;
            let Some(text) = text() else { continue };
            let request = metrics::request(&self.settings.node, &text, &mut starts, logs::now());
            match client.send("/v1/metrics", &request).await {
                Ok((0, _)) => self.succeeded(),
                Ok((rejected, reason)) => {
                    warn!(rejected, reason, "the collector rejects data points");
                }
                // The next export has the sums of this one.
                Err(failure) => self.failed(&failure),
            }
        }
    }

    fn failed(&self, failure: &RequestFailure) {
        self.counters.failures.fetch_add(1, Ordering::Relaxed);
        if !self.counters.is_failing.swap(true, Ordering::Relaxed) {
            let RequestFailure { reason, retry } = failure;
            warn!(reason, retried = *retry != RetryAdvice::Never, "cannot export to the collector");
        }
    }

    fn succeeded(&self) {
        if self.counters.is_failing.swap(false, Ordering::Relaxed) {
            info!("exports to the collector again");
        }
    }
}

/// Returns a random number from 0 to 1, which spreads the requests of different agents over time.
fn random() -> f64 {
    f64::from(RandomState::new().hash_one(0) as u32) / f64::from(u32::MAX)
}
