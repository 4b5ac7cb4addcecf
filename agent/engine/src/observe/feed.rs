//! The agent's own reader of all events: counts them by workload and passes them on.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netpold_api::events::TrafficVerdict;
use netpold_api::filter::EventFilter;
use netpold_api::observe::ObservedEvent;
use netpold_core::lock::lock;
use netpold_core::model::Direction;
use netpold_ebpf::reason::Reason;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, timeout};

use super::server::ObserveServer;
use crate::denied::{DeniedCounters, EventKind, Totals, totals};
use crate::events::JournalCursor;

/// Interval between reads of the totals.
const SETTLED: Duration = Duration::from_secs(1);
/// Longest wait for the reader of the ring, which logs lines and may wait for the engine's lock.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between reads; the next read has all events of the pause.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of batches read without a pause; together, the journal's size.
const BATCHES: u32 = 32;

/// Receiver of events, and of the numbers of packets and flows that were not reported one by one.
pub type EventSink = Box<dyn Fn(Vec<ObservedEvent>, Vec<(EventKind, u64)>) + Send + Sync>;
/// Reader of the kernel's packet counters; waits for the engine's lock.
pub type DroppedPackets = Box<dyn Fn() -> Vec<(Direction, Reason, u64)> + Send + Sync>;

/// Reader of all events.
pub struct Feed {
    observer: Arc<ObserveServer>,
    dropped: Arc<DroppedPackets>,
    denied: Arc<Mutex<DeniedCounters>>,
    sink: Arc<EventSink>,
    filter: EventFilter,
    cursor: JournalCursor,
}

impl Feed {
    /// Creates the reader of events from now on, before the ring of drop events is read. `with_flows`: reads new flows
    /// too.
    #[must_use]
    pub fn new(
        observer: Arc<ObserveServer>,
        dropped: DroppedPackets,
        denied: Arc<Mutex<DeniedCounters>>,
        sink: EventSink,
        with_flows: bool,
    ) -> Self {
        let verdicts =
            TrafficVerdict::ALL.into_iter().filter(|it| with_flows || *it != TrafficVerdict::Allow);
        let filter = EventFilter { verdicts: verdicts.collect(), ..EventFilter::default() };
        let cursor = observer.cursor();
        lock(&denied).begin(totals(&dropped(), observer.flow_totals()));
        Self { observer, dropped: Arc::new(dropped), denied, sink: Arc::new(sink), filter, cursor }
    }

    /// Skips the events so far. The kernel's totals of [`Feed::new`] contain events that a former agent left in the
    /// ring, so these events are not part of the increase.
    pub fn skip(&mut self) {
        self.cursor = self.observer.cursor();
    }

    /// Reads events until `end`, then the events that exist at `end`.
    ///
    /// # Errors
    /// The runtime ends.
    pub async fn follow(mut self, end: impl Future<Output = ()>) -> io::Result<()> {
        let mut settle = tokio::time::interval(SETTLED);
        settle.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(end);
        loop {
            let observer = Arc::clone(&self.observer);
            tokio::select! {
                () = &mut end => {
                    // A packet counts as unreported only after two reads of the totals.
                    self.read_totals().await?;
                    return self.read_totals().await;
                }
                _ = settle.tick() => self.read_totals().await?,
                () = observer.changed() => {
                    self.drain().await?;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reads the pending events, at most [`BATCHES`] batches; returns whether none is left.
    async fn drain(&mut self) -> io::Result<bool> {
        for _ in 0..BATCHES {
            let (denied, sink) = (Arc::clone(&self.denied), Arc::clone(&self.sink));
            let with = move |events: Vec<ObservedEvent>, _| {
                lock(&denied).count(&events, Instant::now());
                sink(events, Vec::new());
            };
            if self.observer.read(&mut self.cursor, &self.filter, with).await?.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the totals, then every event until now, however late this task runs: no packet is both an event and
    /// unreported.
    async fn read_totals(&mut self) -> io::Result<()> {
        let (dropped, flows) = (Arc::clone(&self.dropped), self.observer.flow_totals());
        let packets = spawn_blocking(move || dropped()).await.map_err(io::Error::other)?;
        let mut totals: Totals = totals(&packets, flows);
        totals.retain(|kind, _| self.filter.verdicts.contains(&kind.outcome));
        // After the timeout, packets of the unread ring count as packets without events.
        let _ = timeout(PATIENCE, self.observer.read_up()).await;
        while !self.drain().await? {}
        let unreported = lock(&self.denied).account_totals(totals);
        if !unreported.is_empty() {
            (self.sink)(Vec::new(), unreported);
        }
        Ok(())
    }
}
