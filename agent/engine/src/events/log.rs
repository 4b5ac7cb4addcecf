//! Latest drops for the status, denials for pods' owners, and the selection of drops for the log.
//!
//! An equal drop is logged at most once per [`QUIET`], with its number of occurrences. Of distinct drops, as in a flood
//! from random sources, at most [`DISTINCT`] are logged in that time, with the number of the others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netpold_ebpf::layout::DropEvent;
use netpold_kube::cluster::DropKey;

use super::dropped::{DropLogLine, Dropped};
use super::journal::Journal;

/// Maximum number of awaited events of probes.
const EXPECTED: usize = 256;
/// Time for which a probe's event is awaited.
const SOON: Duration = Duration::from_secs(2);
/// Maximum number of drops kept for the status.
const KEPT: usize = 64;
/// Time for which a logged drop is not logged again.
pub const QUIET: Duration = Duration::from_secs(10);
/// Maximum number of distinct drops tracked at a time; further new ones are counted and not logged.
const DISTINCT: usize = 128;
/// Maximum number of distinct denials of a pod kept until they are taken.
const DENIED_OF_POD: usize = 4;
/// Maximum number of pods with kept denials.
const DENIED_PODS: usize = 256;

#[derive(Debug)]
struct DropRepeats {
    until: Instant,
    /// Latest drop since the last line, and the number of drops since then.
    unsaid: Option<DropLogLine>,
}

/// The latest drops. Outlives the generations of maps that produce the events.
#[derive(Debug, Default)]
pub struct DropLog {
    recent: VecDeque<Dropped>,
    quiet: BTreeMap<DropKey, DropRepeats>,
    seen: u64,
    suppressed: u64,
    unnamed: u64,
    /// Denials by endpoint number, so that one pod's denials leave room for other pods'.
    denied: BTreeMap<u32, Vec<DropLogLine>>,
    journal: Arc<Journal>,
    /// Expected events of the agent's own probes, each with its deadline.
    expected: VecDeque<(DropEvent, Instant)>,
}

impl DropLog {
    /// Announces the event of a probe that is about to run: one equal event is ignored if it arrives soon.
    pub fn expect(&mut self, event: DropEvent, now: Instant) {
        self.expected.retain(|(_, until)| now < *until);
        if self.expected.len() >= EXPECTED {
            self.expected.pop_front();
        }
        self.expected.push_back((event, now + SOON));
    }

    fn is_expected(&mut self, event: &DropEvent, now: Instant) -> bool {
        let found = DropEvent { reason: 0, suppressed: 0, ..*event };
        let mut expected = self.expected.iter();
        let place = expected.position(|(event, until)| *event == found && now < *until);
        place.is_some_and(|place| self.expected.remove(place).is_some())
    }

    /// Returns the record of all events, for observers.
    #[must_use]
    pub fn journal(&self) -> Arc<Journal> {
        Arc::clone(&self.journal)
    }

    /// Returns the latest drops, oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Dropped> {
        self.recent.iter().cloned().collect()
    }

    /// Returns the number of events read.
    #[must_use]
    pub fn events_read(&self) -> u64 {
        self.seen
    }

    /// Returns the number of events that the kernel suppressed because of its limit.
    #[must_use]
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// Records an event; returns the line to log now.
    pub fn record(&mut self, event: &DropEvent, now: Instant) -> Option<DropLogLine> {
        self.suppressed += u64::from(event.suppressed);
        self.journal.unsent(event.suppressed.into());
        if self.is_expected(event, now) {
            return None;
        }
        self.seen += 1;
        let dropped = Dropped::new(event);
        self.journal.dropped(&dropped);
        self.say_of(dropped, now)
    }

    /// Records a drop without an event of the kernel, as [`DropLog::record`] does.
    pub fn record_drop(&mut self, dropped: Dropped, now: Instant) -> Option<DropLogLine> {
        self.journal.dropped(&dropped);
        self.say_of(dropped, now)
    }

    fn say_of(&mut self, dropped: Dropped, now: Instant) -> Option<DropLogLine> {
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(dropped.clone());
        self.keep_denial(&dropped);
        let key = dropped.key();
        if let Some(quiet) = self.quiet.get_mut(&key) {
            let times = quiet.unsaid.as_ref().map_or(1, |line| line.times + 1);
            let line = DropLogLine { dropped, times };
            if now < quiet.until {
                quiet.unsaid = Some(line);
                return None;
            }
            *quiet = DropRepeats { until: now + QUIET, unsaid: None };
            return Some(line);
        }
        if self.quiet.len() >= DISTINCT {
            self.unnamed += 1;
            return None;
        }
        self.quiet.insert(key, DropRepeats { until: now + QUIET, unsaid: None });
        Some(DropLogLine { dropped, times: 1 })
    }

    fn keep_denial(&mut self, dropped: &Dropped) {
        let is_full =
            self.denied.len() >= DENIED_PODS && !self.denied.contains_key(&dropped.endpoint);
        if is_full || !dropped.is_denial() {
            return;
        }
        let kept = self.denied.entry(dropped.endpoint).or_default();
        if let Some(line) = kept.iter_mut().find(|line| line.dropped.key() == dropped.key()) {
            *line = DropLogLine { dropped: dropped.clone(), times: line.times + 1 };
        } else if kept.len() < DENIED_OF_POD {
            kept.push(DropLogLine { dropped: dropped.clone(), times: 1 });
        }
    }

    /// Takes the denials since the last call, some of each pod.
    pub fn take_denied(&mut self) -> BTreeMap<u32, Vec<DropLogLine>> {
        std::mem::take(&mut self.denied)
    }

    /// Takes the number of drops since the last call beyond [`DISTINCT`].
    pub fn take_unnamed(&mut self) -> u64 {
        std::mem::take(&mut self.unnamed)
    }

    /// Returns the lines of drops with new occurrences at the end of their quiet time; forgets drops without new ones.
    pub fn flush(&mut self, now: Instant) -> Vec<DropLogLine> {
        let mut lines = Vec::new();
        self.quiet.retain(|_, quiet| {
            if now < quiet.until {
                return true;
            }
            quiet.until = now + QUIET;
            quiet.unsaid.take().map(|line| lines.push(line)).is_some()
        });
        lines
    }
}

#[cfg(test)]
pub(super) mod tests {
    use netpold_ebpf::reason::Reason;

    use super::*;

    pub(in crate::events) fn event(endpoint: u32, local_port: u16, remote_port: u16) -> DropEvent {
        let mut remote = [0; 16];
        remote[..4].copy_from_slice(&[10, 0, 0, 9]);
        DropEvent {
            ifindex: 7,
            endpoint,
            reason: Reason::Policy as u8,
            family: 4,
            protocol: 6,
            local_port,
            remote_port,
            remote,
            ..DropEvent::default()
        }
    }

    #[test]
    fn the_same_drop_is_logged_once_in_a_while_with_its_count() {
        let (mut log, start) = (DropLog::default(), Instant::now());
        // The remote port changes from attempt to attempt; the service is the same.
        let times: Vec<_> = (0..5u16)
            .map(|n| log.record(&event(1, 80, 40_000 + n), start).map(|line| line.times))
            .collect();
        assert_eq!(times, [Some(1), None, None, None, None]);
        assert!(log.record(&event(1, 81, 40_000), start).is_some(), "another service");
        assert!(log.record(&event(2, 80, 40_000), start).is_some(), "another pod");
        let mut egress = event(1, 80, 40_000);
        egress.direction = 1;
        assert!(log.record(&egress, start).is_some(), "another direction");
        let later = start + QUIET;
        assert_eq!(log.record(&event(1, 80, 40_005), later).unwrap().times, 5);
        assert_eq!((log.events_read(), log.recent().len()), (9, 9));
    }

    #[test]
    fn what_was_not_said_is_said_at_the_end_and_then_forgotten() {
        let (mut log, start) = (DropLog::default(), Instant::now());
        for _ in 0..3 {
            log.record(&event(1, 80, 1), start);
        }
        log.record(&event(2, 80, 1), start);
        assert_eq!(log.flush(start), []);
        let lines = log.flush(start + QUIET);
        assert_eq!(lines.len(), 1, "nothing is left to say of the other");
        assert_eq!((lines[0].dropped.endpoint, lines[0].times), (1, 2));
        assert_eq!(log.flush(start + 2 * QUIET), []);
        assert!(log.quiet.is_empty());
    }

    #[test]
    fn memory_and_lines_are_bounded() {
        let (mut log, start) = (DropLog::default(), Instant::now());
        let lines = (0..10_000).filter(|&n| log.record(&event(n, 80, 1), start).is_some()).count();
        assert_eq!((lines, log.quiet.len()), (DISTINCT, DISTINCT));
        assert_eq!(log.take_unnamed(), 10_000 - DISTINCT as u64);
        assert_eq!(log.take_unnamed(), 0);
        let recent = log.recent();
        assert_eq!((recent.len(), recent[0].endpoint), (KEPT, 10_000 - KEPT as u32));
        assert_eq!(log.take_denied().len(), DENIED_PODS);
    }

    #[test]
    fn denials_of_one_pod_leave_those_of_others_room() {
        let (mut log, now) = (DropLog::default(), Instant::now());
        for port in 0..100 {
            log.record(&event(1, port, 1), now);
            log.record(&event(1, 0, 1), now);
        }
        log.record(&event(2, 80, 1), now);
        log.record(&DropEvent { reason: Reason::Malformed as u8, ..event(3, 80, 1) }, now);
        let denied = log.take_denied();
        assert_eq!(denied.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(denied[&1].iter().map(|line| line.times).collect::<Vec<_>>(), [101, 1, 1, 1]);
        assert!(log.take_denied().is_empty());
    }
}
