//! Limits how often the node's report is written because of the policies and pods of a namespace.
//!
//! Each write costs the API server the whole object, which it stores and sends to every watcher. A namespace that
//! exceeds its share waits for the next write with another reason, at the latest the renewal; it delays no other
//! namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Bytes per second of one namespace in the long run: 256 KiB a minute.
const OF_NAMESPACE: f64 = 256.0 * 1024.0 / 60.0;
/// Bytes per second of all namespaces together: 1 MiB a minute.
const OF_NODE: f64 = 1024.0 * 1024.0 / 60.0;
/// Time for which unused credit accumulates. A namespace with credit may write a report of any size, and waits
/// afterwards.
const KEPT: Duration = Duration::from_mins(1);
/// While all namespaces together exceed their share, those without costs during [`KEPT`] may still cause one report in
/// this time.
const QUIET: Duration = Duration::from_secs(15);

/// Credit in bytes; negative values are debt.
#[derive(Clone, Copy, Debug)]
struct ByteCredit {
    left: f64,
    at: Instant,
}

impl ByteCredit {
    fn full(rate: f64, now: Instant) -> Self {
        Self { left: rate * KEPT.as_secs_f64(), at: now }
    }

    fn left(&self, rate: f64, now: Instant) -> f64 {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * rate;
        (self.left + earned).min(rate * KEPT.as_secs_f64())
    }

    fn spend(&mut self, rate: f64, bytes: f64, now: Instant) {
        *self = Self { left: self.left(rate, now) - bytes, at: now };
    }
}

/// Credit of the node and of its namespaces.
#[derive(Debug)]
pub(super) struct ReportBudget {
    node: ByteCredit,
    /// Credit of namespaces that have spent some.
    namespaces: BTreeMap<String, ByteCredit>,
    /// Time of the last report for a namespace without costs while the node had no credit.
    quiet_at: Option<Instant>,
}

impl ReportBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self { node: ByteCredit::full(OF_NODE, now), namespaces: BTreeMap::new(), quiet_at: None }
    }

    /// Returns the namespaces among `changed` for which a report may be written now.
    pub(super) fn may_write<'n>(
        &self,
        changed: &'n BTreeSet<String>,
        now: Instant,
    ) -> Vec<&'n str> {
        let is_scarce = self.node.left(OF_NODE, now) <= 0.0;
        let is_quiet_turn =
            self.quiet_at.is_none_or(|at| now.saturating_duration_since(at) >= QUIET);
        let may = |namespace: &&String| {
            let credit = self.namespaces.get(*namespace).map(|it| it.left(OF_NAMESPACE, now));
            match is_scarce {
                true => is_quiet_turn && credit.is_none(),
                false => credit.is_none_or(|left| left > 0.0),
            }
        };
        changed.iter().filter(may).map(String::as_str).collect()
    }

    /// Charges a report of `bytes` bytes to these namespaces.
    pub(super) fn charge(&mut self, namespaces: &[String], bytes: usize, now: Instant) {
        self.namespaces
            .retain(|_, it| it.left(OF_NAMESPACE, now) < ByteCredit::full(OF_NAMESPACE, now).left);
        if namespaces.is_empty() {
            return;
        }
        if self.node.left(OF_NODE, now) <= 0.0 {
            self.quiet_at = Some(now);
        }
        let bytes = bytes as f64;
        self.node.spend(OF_NODE, bytes, now);
        for namespace in namespaces {
            let full = || ByteCredit::full(OF_NAMESPACE, now);
            let credit = self.namespaces.entry(namespace.clone()).or_insert_with(full);
            credit.spend(OF_NAMESPACE, bytes / namespaces.len() as f64, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Counts the writes of each namespace in ten minutes, after a first minute: one attempt every 5 s, with reports of
    /// `bytes` bytes. Namespaces that begin with `z` have a change every two minutes.
    fn writes(namespaces: &[&str], bytes: usize) -> BTreeMap<String, u32> {
        let mut now = Instant::now();
        let mut budget = ReportBudget::new(now);
        let mut counts = BTreeMap::new();
        let mut waiting: BTreeSet<String> = BTreeSet::new();
        for step in 0..132 {
            let changed = namespaces.iter().filter(|it| !it.starts_with('z') || step % 24 == 12);
            waiting.extend(changed.map(|it| (*it).to_owned()));
            let may: Vec<String> =
                budget.may_write(&waiting, now).into_iter().map(str::to_owned).collect();
            if !may.is_empty() {
                budget.charge(&may, bytes, now);
                for namespace in waiting.iter().filter(|_| step >= 12) {
                    *counts.entry(namespace.clone()).or_default() +=
                        u32::from(may.contains(namespace));
                }
                waiting.clear();
            }
            now += 5 * SECOND;
        }
        counts
    }

    #[test]
    fn a_namespace_costs_its_share() {
        let busy = writes(&["a"], 100 << 10)["a"];
        assert!((24..=27).contains(&busy), "{busy} of 100 KiB in ten minutes");
        assert_eq!(writes(&["a"], 10 << 10)["a"], 120, "a small report costs less than the share");
    }

    #[test]
    fn who_changes_all_the_time_delays_nobody_else() {
        let crowd: Vec<String> = (0..20).map(|n| format!("a{n:02}")).collect();
        let all: Vec<&str> = crowd.iter().map(String::as_str).chain(["z"]).collect();
        let counts = writes(&all, 300 << 10);
        assert_eq!(counts["z"], 5, "each of its changes: {counts:?}");
        let mut budget = ReportBudget::new(Instant::now());
        let (mut now, mut written) = (Instant::now(), 0);
        let changed: BTreeSet<String> = crowd.iter().cloned().collect();
        for _ in 0..120 {
            let may: Vec<String> =
                budget.may_write(&changed, now).into_iter().map(str::to_owned).collect();
            written += u32::from(!may.is_empty());
            budget.charge(&may, 300 << 10, now);
            now += 5 * SECOND;
        }
        assert!(written <= 10 * 4 + 10, "{written} writes of 300 KiB in ten minutes");
    }
}
