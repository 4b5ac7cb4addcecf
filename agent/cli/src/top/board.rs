//! Counts of events.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use netpold_api::events::{LostEvents, TrafficVerdict};
use netpold_api::observe::{ObserveLine, ObservedEvent};
use netpold_core::model::Direction;

use crate::observe::{peer_name, pod_name, why};

/// Largest number of rows in a view; events of others are counted together.
const ROWS: usize = 10_000;
/// Seconds over which a rate is measured.
const WINDOW: usize = 10;

/// View of the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopView {
    /// Dropped packets by pod, peer, port and reason.
    #[default]
    Drops,
    /// Flows that passed, audited ones marked, by pod, peer and port.
    Flows,
    /// Events by pod.
    Pods,
    /// Events by policy.
    Policies,
}

impl TopView {
    /// All views, in the order of their keys.
    pub const ALL: [Self; 4] = [Self::Drops, Self::Flows, Self::Pods, Self::Policies];

    /// Name of the view on the screen.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Drops => "drops",
            Self::Flows => "flows",
            Self::Pods => "pods",
            Self::Policies => "policies",
        }
    }
}

/// Order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowOrder {
    /// By number of events.
    #[default]
    Count,
    /// By number of events in the last seconds.
    Rate,
    /// By time of the last event.
    Last,
    /// By name.
    Name,
}

impl RowOrder {
    /// All orders, in the sequence of the sort key.
    pub const ALL: [Self; 4] = [Self::Count, Self::Rate, Self::Last, Self::Name];

    /// Returns the next order.
    #[must_use]
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or_default();
        Self::ALL[(at + 1) % Self::ALL.len()]
    }
}

/// Row of counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountRow {
    /// Names, one for each name column of the view.
    pub names: Vec<String>,
    /// Numbers of events by verdict: denied, audited, allowed.
    pub counts: [u64; 3],
    /// Time of the last event, in milliseconds since the epoch.
    pub last: i64,
    /// Policy and rule of the last event.
    pub why: String,
    recent: [u32; WINDOW],
}

impl CountRow {
    /// Returns the number of events.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the number of events in the last ten seconds; `now` is in milliseconds since the epoch.
    #[must_use]
    pub fn recent(&self, now: i64) -> u64 {
        let (now, last) = (now.div_euclid(1000), self.last.div_euclid(1000));
        // A node's clock may be ahead.
        let age = usize::try_from((now - last).max(0)).unwrap_or(usize::MAX);
        let live = WINDOW.saturating_sub(age);
        let slot = |ago: usize| (last - ago as i64).rem_euclid(WINDOW as i64) as usize;
        (0..live).map(|ago| u64::from(self.recent[slot(ago)])).sum()
    }

    fn add(&mut self, outcome: TrafficVerdict, at: i64, why: &str) {
        self.counts[outcome as usize] += 1;
        let (second, last) = (at.div_euclid(1000), self.last.div_euclid(1000));
        let slot = |second: i64| second.rem_euclid(WINDOW as i64) as usize;
        if second > last {
            let passed = (second - last).min(WINDOW as i64);
            (0..passed).for_each(|ago| self.recent[slot(second - ago)] = 0);
        }
        if last.max(second) - second < WINDOW as i64 {
            self.recent[slot(second)] += 1;
        }
        if at >= self.last {
            self.last = at;
            why.clone_into(&mut self.why);
        }
    }
}

/// Counts of the events so far.
#[derive(Debug, Default)]
pub struct EventCounts {
    rows: [BTreeMap<Vec<String>, CountRow>; 4],
    /// Numbers of events beyond [`ROWS`], by view.
    others: [u64; 4],
    /// All events.
    pub total: CountRow,
    /// Lost events.
    pub lost: LostEvents,
}

impl EventCounts {
    /// Counts a line of the stream, with printable text.
    pub fn count_line(&mut self, line: &ObserveLine) {
        let event = match line {
            ObserveLine::Event(event) => event,
            ObserveLine::Lost { lost, .. } => {
                self.lost = self.lost.and(*lost);
                return;
            }
        };
        let at = event.time.parse::<Timestamp>().map_or(0, Timestamp::as_millisecond);
        let why = why(&event.attribution);
        self.total.add(event.verdict, at, "");
        let pod = pod_name(event);
        let view =
            if event.verdict == TrafficVerdict::Deny { TopView::Drops } else { TopView::Flows };
        self.add(view, flow(event, pod.clone()), event.verdict, at, &why);
        self.add(TopView::Pods, vec![pod], event.verdict, at, &why);
        for policy in &event.attribution.policies {
            self.add(TopView::Policies, vec![policy.to_string()], event.verdict, at, &why);
        }
    }

    fn add(
        &mut self,
        view: TopView,
        names: Vec<String>,
        outcome: TrafficVerdict,
        at: i64,
        why: &str,
    ) {
        let rows = &mut self.rows[view as usize];
        if rows.len() >= ROWS && !rows.contains_key(&names) {
            self.others[view as usize] += 1;
            return;
        }
        let row = rows
            .entry(names)
            .or_insert_with_key(|names| CountRow { names: names.clone(), ..CountRow::default() });
        row.add(outcome, at, why);
    }

    /// Returns the rows of a view in an order, at most `most`; the number of all rows; and of events without a row.
    #[must_use]
    pub fn rows(
        &self,
        view: TopView,
        (order, reversed): (RowOrder, bool),
        now: i64,
        most: usize,
    ) -> (Vec<&CountRow>, usize, u64) {
        let all = &self.rows[view as usize];
        let mut rows: Vec<&CountRow> = all.values().collect();
        match order {
            // The map sorts rows by name; stable sorts keep this order among equal rows.
            RowOrder::Name => {}
            RowOrder::Count => rows.sort_by_key(|row| Reverse(row.count())),
            RowOrder::Rate => {
                rows.sort_by_cached_key(|row| Reverse((row.recent(now), row.count())));
            }
            RowOrder::Last => rows.sort_by_key(|row| Reverse(row.last)),
        }
        if reversed {
            rows.reverse();
        }
        rows.truncate(most);
        (rows, all.len(), self.others[view as usize])
    }
}

/// Returns the names of a flow's row: pod, peer with an arrow for the direction, protocol and port, reason.
fn flow(event: &ObservedEvent, pod: String) -> Vec<String> {
    let arrow = match event.direction {
        Direction::Ingress => "<-",
        Direction::Egress => "->",
    };
    let protocol = event.protocol.map_or_else(|| "not IP".to_owned(), |it| it.to_string());
    let kind = event.port.map_or_else(|| protocol.clone(), |port| format!("{protocol} {port}"));
    vec![pod, format!("{arrow} {}", peer_name(event)), kind, event.reason.clone()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> i64 {
        1_700_000_000_000 + seconds * 1000
    }

    #[test]
    fn a_rate_is_of_the_last_ten_seconds() {
        let mut row = CountRow::default();
        for second in [0, 0, 5, 9] {
            row.add(TrafficVerdict::Deny, at(second), "");
        }
        let recent = |row: &CountRow, second| row.recent(at(second));
        assert_eq!((recent(&row, 9), recent(&row, 10), recent(&row, 15)), (4, 2, 1));
        assert_eq!((recent(&row, 19), recent(&row, -3)), (0, 4));
        // Late events count in their own second, if it is still within the window.
        row.add(TrafficVerdict::Audit, at(5), "");
        row.add(TrafficVerdict::Audit, at(-5), "");
        assert_eq!((recent(&row, 9), row.count(), row.last), (5, 6, at(9)));
        row.add(TrafficVerdict::Deny, at(100), "");
        assert_eq!(recent(&row, 100), 1);
    }

    #[test]
    fn rows_are_bounded_and_the_rest_is_counted() {
        let mut board = EventCounts::default();
        for number in 0..ROWS + 3 {
            board.add(TopView::Pods, vec![format!("{number:06}")], TrafficVerdict::Deny, at(0), "");
        }
        board.add(TopView::Pods, vec!["000001".into()], TrafficVerdict::Allow, at(1), "last");
        let now = at(1);
        let (rows, all, others) = board.rows(TopView::Pods, (RowOrder::Count, false), now, 2);
        assert_eq!((all, others, rows.len()), (ROWS, 3, 2));
        assert_eq!((rows[0].counts, &rows[0].why[..]), ([1, 0, 1], "last"));
        let (rows, ..) = board.rows(TopView::Pods, (RowOrder::Name, true), now, 1);
        assert_eq!(rows[0].names, ["009999"]);
        for order in [RowOrder::Rate, RowOrder::Last] {
            let (rows, ..) = board.rows(TopView::Pods, (order, false), now, 1);
            assert_eq!(rows[0].names, ["000001"], "{order:?}");
        }
    }
}
