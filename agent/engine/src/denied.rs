//! Denied packets, and flows that audited policies would deny, counted by workload.
//!
//! The kernel counts every dropped packet by direction and reason, and reports some of them one by one. A reported
//! packet is counted in the series of its workload; the others are counted in one series per direction and reason
//! without workload. So the sum over the series of a direction and reason is the kernel's number, and no packet is
//! attributed to a workload without a report. The same holds for audited flows, which the sweep of the flow table
//! counts.

mod series;

use std::collections::BTreeMap;
use std::time::Instant;

use netpold_api::events::{AUDIT, TrafficVerdict};
use netpold_api::observe::ObservedEvent;
use netpold_core::model::Direction;
use netpold_ebpf::reason::Reason;

use series::Series;
pub use series::SeriesLabels;

use crate::events::UnreportedFlows;

/// Events with one common total.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventKind {
    /// Outcome.
    pub outcome: TrafficVerdict,
    /// Direction of a drop; flows have a common total of both directions.
    pub direction: Option<Direction>,
    /// Reason, as in [`ObservedEvent::reason`].
    pub reason: String,
}

/// Numbers of all packets or flows by kind, reported or not.
pub type Totals = BTreeMap<EventKind, u64>;

impl EventKind {
    fn from_event(event: &ObservedEvent) -> Self {
        match event.verdict {
            TrafficVerdict::Deny => Self {
                outcome: TrafficVerdict::Deny,
                direction: Some(event.direction),
                reason: event.reason.clone(),
            },
            TrafficVerdict::Audit => Self::audited(),
            TrafficVerdict::Allow => Self::allowed(),
        }
    }

    fn audited() -> Self {
        Self { outcome: TrafficVerdict::Audit, direction: None, reason: AUDIT.to_owned() }
    }

    fn allowed() -> Self {
        let reason = Reason::Allowed.as_str().to_owned();
        Self { outcome: TrafficVerdict::Allow, direction: None, reason }
    }
}

/// Returns the totals of the kernel's packet counters and of the sweeps' flows. Drops of packets that a bridge floods
/// are not denials and have no events.
#[must_use]
pub fn totals(dropped: &[(Direction, Reason, u64)], flows: UnreportedFlows) -> Totals {
    let dropped = dropped.iter().filter(|(_, reason, _)| *reason != Reason::Flooded);
    let dropped = dropped.map(|(direction, reason, packets)| {
        let (direction, reason) = (Some(*direction), reason.as_str().to_owned());
        (EventKind { outcome: TrafficVerdict::Deny, direction, reason }, *packets)
    });
    dropped
        .chain([(EventKind::audited(), flows.audited), (EventKind::allowed(), flows.opened)])
        .collect()
}

/// Numbers of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct KindCounts {
    /// Total at the start.
    base: u64,
    /// Total when it was last read.
    total: u64,
    /// Events received.
    reported: u64,
    /// Packets or flows that were certainly not reported.
    unreported: u64,
    /// Events received that no series counts.
    unnamed: u64,
}

/// Numbers since the agent's start.
#[derive(Debug)]
pub struct DeniedCounters {
    series: Series,
    tallies: BTreeMap<EventKind, KindCounts>,
}

impl DeniedCounters {
    /// Creates counters with at most `most` series.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { series: Series::new(most), tallies: BTreeMap::new() }
    }

    /// Begins to count, before the first event is read.
    pub fn begin(&mut self, totals: Totals) {
        let tally = |total| KindCounts { base: total, total, ..KindCounts::default() };
        self.tallies = totals.into_iter().map(|(kind, total)| (kind, tally(total))).collect();
    }

    /// Counts events.
    pub fn count(&mut self, events: &[ObservedEvent], now: Instant) {
        for event in events {
            let tally = self.tallies.entry(EventKind::from_event(event)).or_default();
            tally.reported += 1;
            if event.verdict == TrafficVerdict::Allow {
                continue;
            }
            let Some(labels) = SeriesLabels::from_event(event) else {
                tally.unnamed += 1;
                continue;
            };
            if let Some((displaced, value)) = self.series.count(labels, now) {
                let direction = Some(displaced.direction);
                let kind = match displaced.outcome {
                    TrafficVerdict::Deny => EventKind {
                        outcome: TrafficVerdict::Deny,
                        direction,
                        reason: displaced.reason,
                    },
                    TrafficVerdict::Audit | TrafficVerdict::Allow => EventKind::audited(),
                };
                self.tallies.entry(kind).or_default().unnamed += value;
            }
        }
    }

    /// Takes new totals. Returns, by kind, how many packets and flows of the previous totals were not reported: events
    /// of the others have arrived since. Call once all events that existed at the previous call are counted.
    pub fn account_totals(&mut self, totals: Totals) -> Vec<(EventKind, u64)> {
        let mut news = Vec::new();
        for (kind, total) in totals {
            let tally = self.tallies.entry(kind.clone()).or_default();
            let counted = tally.total.saturating_sub(tally.base);
            let unreported = counted.saturating_sub(tally.reported);
            if unreported > tally.unreported {
                news.push((kind, unreported - tally.unreported));
                tally.unreported = unreported;
            }
            tally.total = total;
        }
        news
    }

    /// Returns the series with a workload.
    pub fn named(&self) -> impl Iterator<Item = (&SeriesLabels, u64)> {
        self.series.iter()
    }

    /// Returns the numbers of denied packets and audited flows without a series of their own, by kind.
    pub fn others(&self) -> impl Iterator<Item = (&EventKind, u64)> {
        let denied = self.tallies.iter().filter(|(kind, _)| kind.outcome != TrafficVerdict::Allow);
        denied.map(|(kind, tally)| (kind, tally.unreported + tally.unnamed))
    }
}

#[cfg(test)]
mod tests {
    use netpold_api::samples::event;
    use netpold_api::workload::WorkloadName;

    use super::*;

    fn event_of(workload: &str) -> ObservedEvent {
        let workload = Some(WorkloadName { kind: "Deployment".into(), name: workload.into() });
        ObservedEvent { workload, ..event(0) }
    }

    fn packets(policy: u64) -> Totals {
        let dropped = [
            (Direction::Ingress, Reason::Policy, policy),
            (Direction::Ingress, Reason::Flooded, 1000),
        ];
        totals(&dropped, UnreportedFlows { audited: policy / 10, opened: 0 })
    }

    fn sum(denied: &DeniedCounters, outcome: TrafficVerdict) -> u64 {
        let named = denied.named().filter(|(labels, _)| labels.outcome == outcome);
        let others = denied.others().filter(|(kind, _)| kind.outcome == outcome);
        named.map(|(_, n)| n).sum::<u64>() + others.map(|(_, n)| n).sum::<u64>()
    }

    #[test]
    fn the_sum_is_the_kernels_number_and_never_falls() {
        let (mut denied, now) = (DeniedCounters::new(2), Instant::now());
        denied.begin(packets(100));
        let mut last = 0;
        let mut reach = |denied: &DeniedCounters, at_least| {
            let sum = sum(denied, TrafficVerdict::Deny);
            assert!(sum >= last.max(at_least), "{sum}");
            last = sum;
        };
        // Of 50 packets, 20 are reported, some only after the totals were read.
        assert_eq!(denied.account_totals(packets(150)), []);
        denied.count(&vec![event_of("web"); 20], now);
        reach(&denied, 20);
        let news = denied.account_totals(packets(150));
        let kinds: Vec<_> = news.iter().map(|(kind, n)| (kind.reason.as_str(), *n)).collect();
        assert_eq!(kinds, [("policy", 30), ("audit", 5)]);
        reach(&denied, 50);
        // More series than permitted, and a pod without a name.
        denied.count(&["a", "b", "c"].map(event_of), now);
        denied.count(&[ObservedEvent { pod: None, ..event_of("web") }], now);
        reach(&denied, 54);
        denied.account_totals(packets(154));
        assert_eq!(denied.account_totals(packets(154)), []);
        assert_eq!((sum(&denied, TrafficVerdict::Deny), denied.named().count()), (54, 2));
        assert_eq!(sum(&denied, TrafficVerdict::Audit), 5);
    }

    #[test]
    fn audited_flows_have_series_of_their_own() {
        let mut denied = DeniedCounters::new(10);
        denied.begin(packets(0));
        let audited = ObservedEvent {
            verdict: TrafficVerdict::Audit,
            reason: AUDIT.into(),
            ..event_of("web")
        };
        let allowed = ObservedEvent { verdict: TrafficVerdict::Allow, ..event_of("web") };
        denied.count(&[audited, event_of("web"), allowed], Instant::now());
        let outcomes: Vec<_> = denied.named().map(|(labels, n)| (labels.outcome, n)).collect();
        assert_eq!(outcomes, [(TrafficVerdict::Deny, 1), (TrafficVerdict::Audit, 1)]);
    }
}
