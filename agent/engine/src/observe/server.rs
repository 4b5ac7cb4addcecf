//! Agent side of `netpold observe`: one task per watcher reads the journal at the watcher's pace.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netpold_api::events::LostEvents;
use netpold_api::filter::{EventFilter, ObserveRequest};
use netpold_api::observe::{ObserveLine, ObservedEvent};
use netpold_core::lock::lock;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use crate::events::{Journal, JournalCursor, JournalEvent, UnreportedFlows, unix_millis};
use crate::lines::{LineSender, line};

/// Maximum number of concurrent watchers; a further one replaces the oldest.
const WATCHERS: usize = 16;
/// Maximum number of drops, and of flows, per batch; `resolve` holds the engine's lock for a batch.
const BATCH: usize = 256;
/// Pause between batches; the next batch has all events of the pause.
const PAUSE: Duration = Duration::from_millis(50);

type Resolve = Box<dyn FnMut(&[JournalEvent], &EventFilter) -> (Vec<ObservedEvent>, u64) + Send>;

/// Server for watchers.
pub struct ObserveServer {
    node: String,
    journal: Arc<Journal>,
    /// Builds events with names; returns them and the number of events without attribution.
    resolve: Mutex<Resolve>,
    /// End signals of the watchers, in order of arrival.
    watchers: Arc<Mutex<VecDeque<Arc<Notify>>>>,
}

/// Slot of a watcher, freed on drop.
struct WatcherSlot {
    all: Arc<Mutex<VecDeque<Arc<Notify>>>>,
    end: Arc<Notify>,
}

impl Drop for WatcherSlot {
    fn drop(&mut self) {
        lock(&self.all).retain(|other| !Arc::ptr_eq(other, &self.end));
    }
}

impl ObserveServer {
    /// Creates a server for a journal; `resolve` builds the events that a filter admits, and returns them with the
    /// number of events without attribution.
    pub fn new(
        node: String,
        journal: Arc<Journal>,
        resolve: impl FnMut(&[JournalEvent], &EventFilter) -> (Vec<ObservedEvent>, u64) + Send + 'static,
    ) -> Self {
        let resolve = Mutex::new(Box::new(resolve) as Resolve);
        Self { node, journal, resolve, watchers: Arc::default() }
    }

    /// Serves a watcher until the watcher disconnects, another watcher replaces it, or all requested events are sent.
    /// The stream covers every event after the call, not only after the first poll of the returned future.
    ///
    /// # Errors
    /// The watcher has disconnected.
    pub fn serve(
        self: Arc<Self>,
        request: ObserveRequest,
        lines: LineSender,
    ) -> impl Future<Output = io::Result<()>> {
        let since = request.since.map(|millis| unix_millis().saturating_sub(millis));
        let cursor = self.journal.cursor(since);
        let slot = self.slot();
        async move {
            tokio::select! {
                sent = self.send(&lines, cursor, &request) => sent,
                () = lines.closed() => Ok(()),
                () = slot.end.notified() => Ok(()),
            }
        }
    }

    fn slot(&self) -> WatcherSlot {
        let end = Arc::<Notify>::default();
        let mut watchers = lock(&self.watchers);
        if watchers.len() >= WATCHERS
            && let Some(first) = watchers.pop_front()
        {
            first.notify_one();
        }
        watchers.push_back(Arc::clone(&end));
        WatcherSlot { all: Arc::clone(&self.watchers), end }
    }

    async fn send(
        self: &Arc<Self>,
        lines: &LineSender,
        mut cursor: JournalCursor,
        request: &ObserveRequest,
    ) -> io::Result<()> {
        loop {
            let changed = self.journal.changed();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let Some(text) = self.next(&mut cursor, &request.filter).await? else {
                if !request.follow {
                    return Ok(());
                }
                changed.await;
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            lines.send(text).await?;
            if request.follow {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Returns the next lines, empty if the filter admits no new event; `None` if there are no new events.
    async fn next(
        self: &Arc<Self>,
        cursor: &mut JournalCursor,
        filter: &EventFilter,
    ) -> io::Result<Option<Vec<u8>>> {
        let node = self.node.clone();
        let lines = move |events, lost| lines(node, events, lost);
        self.read(cursor, filter, lines).await?.transpose()
    }

    /// Returns the position for a reader of future events.
    pub(super) fn cursor(&self) -> JournalCursor {
        self.journal.cursor(None)
    }

    /// Waits for new events.
    pub(super) async fn changed(&self) {
        self.journal.changed().await;
    }

    /// Waits until the journal has all events that the kernel has written so far.
    pub(super) async fn read_up(&self) {
        self.journal.read_up().await;
    }

    /// Returns the numbers of audited and of new flows so far, whether or not reported one by one.
    pub(super) fn flow_totals(&self) -> UnreportedFlows {
        self.journal.totals()
    }

    /// Reads the next events that a filter admits and calls `with` on them, on a thread for blocking calls. Returns the
    /// result of `with`; `None` if there are no new events.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        cursor: &mut JournalCursor,
        filter: &EventFilter,
        with: impl FnOnce(Vec<ObservedEvent>, LostEvents) -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        let (seen, lost) = self.journal.read(cursor, filter.wants_flows(), BATCH);
        if seen.is_empty() && lost.is_none() {
            return Ok(None);
        }
        let (this, filter) = (Arc::clone(self), filter.clone());
        // `resolve` waits for the engine's lock, which a compile or a write of tables may hold.
        let result = spawn_blocking(move || {
            let (events, unattributed) = lock(&this.resolve)(&seen, &filter);
            with(events, lost.and(LostEvents { unattributed, ..LostEvents::default() }))
        });
        result.await.map_err(io::Error::other).map(Some)
    }
}

fn lines(node: String, events: Vec<ObservedEvent>, lost: LostEvents) -> io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    for event in events {
        lines.extend(line(&ObserveLine::Event(Box::new(event)))?);
    }
    if !lost.is_none() {
        lines.extend(line(&ObserveLine::Lost { node, lost })?);
    }
    Ok(lines)
}
