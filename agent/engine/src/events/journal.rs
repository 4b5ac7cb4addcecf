//! Recent drops and flows for observers: a bounded record that each observer reads at its own pace.
//!
//! Writers never wait for a reader. A reader that falls behind by more than the record's size loses the oldest events
//! and receives their number.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use netpold_api::events::{LostEvents, TrafficVerdict};
use netpold_core::lock::lock;
use netpold_core::model::Direction;
use netpold_dataplane::conntrack::EndpointFlow;
use netpold_ebpf::reason::Reason;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};

use super::dropped::{Dropped, unix_millis};

/// Maximum number of drops and audited flows kept, and of new flows kept: about a megabyte each.
const KEPT: usize = 8192;

/// An observed drop or flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEvent {
    /// Outcome of the packet or flow.
    pub outcome: TrafficVerdict,
    /// The dropped packet; for a flow, its addresses and ports.
    pub packet: Dropped,
}

impl JournalEvent {
    /// Creates the event of a new flow, which passed for a reason.
    pub(crate) fn flow(tuple: &EndpointFlow, direction: Direction, reason: Reason) -> Self {
        let packet =
            Dropped { reason: reason.as_str(), ..Dropped::audited(tuple, direction, None) };
        Self { outcome: TrafficVerdict::Allow, packet }
    }
}

/// Position up to which an observer has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalCursor {
    drops: u64,
    flows: u64,
    unsent: u64,
    unreported: u64,
}

#[derive(Debug, Default)]
struct EventRing {
    /// Number of the oldest event kept.
    first: u64,
    kept: VecDeque<JournalEvent>,
}

impl EventRing {
    fn push(&mut self, seen: JournalEvent) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
            self.first += 1;
        }
        self.kept.push_back(seen);
    }

    fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    fn since(&self, unix_millis: u64) -> u64 {
        let before = self.kept.partition_point(|seen| seen.packet.unix_millis < unix_millis);
        self.first + before as u64
    }

    /// Reads up to `most` events and moves the cursor past them; returns the number of events missed.
    fn read(&self, cursor: &mut u64, most: usize, into: &mut Vec<JournalEvent>) -> u64 {
        let from = (*cursor).max(self.first);
        let missed = from - *cursor;
        let skip = usize::try_from(from - self.first).unwrap_or(usize::MAX);
        let before = into.len();
        into.extend(self.kept.iter().skip(skip).take(most).cloned());
        *cursor = from + (into.len() - before) as u64;
        missed
    }
}

/// Numbers of flows of a sweep that are not reported individually: above the per-sweep limit, or closed before the
/// sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreportedFlows {
    /// Flows that audited policies would deny.
    pub audited: u64,
    /// New flows.
    pub opened: u64,
}

#[derive(Debug, Default)]
struct EventRings {
    /// Drops and audited flows; new flows do not displace them.
    drops: EventRing,
    flows: EventRing,
    /// Totals of [`LostEvents::kernel`] and [`LostEvents::flows`].
    unsent: u64,
    unreported: u64,
    /// Flows since the start, reported or not.
    totals: UnreportedFlows,
}

/// The record of recent events.
#[derive(Debug, Default)]
pub struct Journal {
    rings: Mutex<EventRings>,
    news: Notify,
    /// Number of requests to read the kernel's ring to its end.
    asked: watch::Sender<u64>,
    /// Number of the last such request that was fulfilled.
    met: watch::Sender<u64>,
}

impl Journal {
    fn rings(&self) -> MutexGuard<'_, EventRings> {
        lock(&self.rings)
    }

    /// Records a dropped packet or an audited flow.
    pub(crate) fn dropped(&self, packet: &Dropped) {
        let outcome = if packet.is_audit() { TrafficVerdict::Audit } else { TrafficVerdict::Deny };
        let mut rings = self.rings();
        rings.totals.audited += u64::from(packet.is_audit());
        rings.drops.push(JournalEvent { outcome, packet: packet.clone() });
        drop(rings);
        self.news.notify_waiters();
    }

    /// Records drops without an event of the kernel.
    pub(super) fn unsent(&self, drops: u64) {
        self.rings().unsent += drops;
    }

    /// Returns the numbers of all flows since the start, reported or not.
    #[must_use]
    pub fn totals(&self) -> UnreportedFlows {
        self.rings().totals
    }

    /// Records new flows of a sweep, and the numbers of flows not reported individually.
    pub fn flows(&self, flows: Vec<JournalEvent>, unreported: UnreportedFlows) {
        if flows.is_empty() && unreported == UnreportedFlows::default() {
            return;
        }
        // All flows get the same time, taken here, so that the record stays in the order of time.
        let now = unix_millis();
        let mut rings = self.rings();
        rings.unreported += unreported.audited + unreported.opened;
        rings.totals.audited += unreported.audited;
        rings.totals.opened += unreported.opened + flows.len() as u64;
        for mut seen in flows {
            seen.packet.unix_millis = now;
            rings.flows.push(seen);
        }
        drop(rings);
        self.news.notify_waiters();
    }

    /// Returns the position for an observer of future events, or of all kept events since a time.
    #[must_use]
    pub fn cursor(&self, since: Option<u64>) -> JournalCursor {
        let rings = self.rings();
        let at = |ring: &EventRing| since.map_or_else(|| ring.end(), |since| ring.since(since));
        let (drops, flows) = (at(&rings.drops), at(&rings.flows));
        JournalCursor { drops, flows, unsent: rings.unsent, unreported: rings.unreported }
    }

    /// Returns the next events, at most `most` of each kind, in the order of time, and the losses since the last call.
    /// Skips flows unless `with_flows`.
    #[must_use]
    pub fn read(
        &self,
        cursor: &mut JournalCursor,
        with_flows: bool,
        most: usize,
    ) -> (Vec<JournalEvent>, LostEvents) {
        let rings = self.rings();
        let mut seen = Vec::new();
        let mut lost = LostEvents { kernel: rings.unsent - cursor.unsent, ..LostEvents::default() };
        cursor.unsent = rings.unsent;
        lost.slow = rings.drops.read(&mut cursor.drops, most, &mut seen);
        if with_flows {
            lost.slow += rings.flows.read(&mut cursor.flows, most, &mut seen);
            lost.flows = rings.unreported - cursor.unreported;
        }
        cursor.unreported = rings.unreported;
        drop(rings);
        seen.sort_by_key(|seen| seen.packet.unix_millis);
        (seen, lost)
    }

    /// Waits until the kernel's ring was read to its end after this call: earlier events are then recorded.
    pub async fn read_up(&self) {
        let mut number = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        // `self` owns the sender, so the channel stays open.
        let _ = self.met.subscribe().wait_for(|met| *met >= number).await;
    }

    /// Returns the requests of [`Journal::read_up`], for the reader of the ring.
    pub(crate) fn requests(&self) -> watch::Receiver<u64> {
        let mut requests = self.asked.subscribe();
        requests.mark_changed();
        requests
    }

    /// Notes that the ring was read to its end after this request.
    pub(crate) fn was_read(&self, request: u64) {
        self.met.send_replace(request);
    }

    /// Returns a future that completes at the first new event after this call.
    pub fn changed(&self) -> Notified<'_> {
        self.news.notified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(endpoint: u32) -> JournalEvent {
        let remote = [10, 0, 0, 9].into();
        let (local_port, remote_port, protocol) = (80, 4000, 6);
        let tuple = EndpointFlow { endpoint, remote, local_port, remote_port, protocol };
        JournalEvent::flow(&tuple, Direction::Ingress, Reason::Allowed)
    }

    fn endpoints(seen: &[JournalEvent]) -> Vec<u32> {
        seen.iter().map(|seen| seen.packet.endpoint).collect()
    }

    #[test]
    fn a_watcher_that_is_slow_loses_the_oldest_and_is_told_how_many() {
        let journal = Journal::default();
        let mut cursor = journal.cursor(None);
        let drop = |endpoint| {
            journal.unsent(2);
            journal.dropped(&Dropped { endpoint, ..flow(0).packet });
        };
        (0..3).for_each(drop);
        let (seen, lost) = journal.read(&mut cursor, false, 2);
        assert_eq!(
            (endpoints(&seen), lost),
            (vec![0, 1], LostEvents { kernel: 6, ..LostEvents::default() })
        );
        (3..KEPT as u32 + 5).for_each(drop);
        let (seen, lost) = journal.read(&mut cursor, false, usize::MAX);
        assert_eq!((seen.len(), seen[0].packet.endpoint), (KEPT, 5));
        assert_eq!(lost.slow, 3);
        assert_eq!(journal.read(&mut cursor, false, 9), (Vec::new(), LostEvents::default()));
        assert_eq!(journal.rings().drops.kept.len(), KEPT);
    }

    const UNTOLD: UnreportedFlows = UnreportedFlows { audited: 3, opened: 4 };

    #[test]
    fn new_flows_displace_no_drops_and_are_for_those_who_want_them() {
        let journal = Journal::default();
        let mut early = journal.cursor(None);
        journal.dropped(&flow(1).packet);
        journal.flows((0..2 * KEPT as u32).map(flow).collect(), UNTOLD);
        let mut all = journal.cursor(Some(0));
        let (seen, lost) = journal.read(&mut early, false, 9);
        assert_eq!((endpoints(&seen), lost), (vec![1], LostEvents::default()));
        let (seen, _) = journal.read(&mut all, true, usize::MAX);
        assert_eq!(seen.len(), 1 + KEPT);
        assert!(seen.is_sorted_by_key(|seen| seen.packet.unix_millis));
        let mut later = journal.cursor(Some(u64::MAX));
        journal.flows(Vec::new(), UNTOLD);
        let totals = UnreportedFlows { audited: 6, opened: 8 + 2 * KEPT as u64 };
        assert_eq!(journal.totals(), totals);
        let (seen, lost) = journal.read(&mut later, true, 9);
        assert_eq!((seen, lost), (Vec::new(), LostEvents { flows: 7, ..LostEvents::default() }));
    }
}
