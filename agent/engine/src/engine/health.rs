//! Obstacles to enforcement, and counters of repairs and sweeps, for `netpold status`, readiness and metrics.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netpold_dataplane::conntrack::PassResult;

use super::error::EngineError;

/// Shortest and longest pause before a failed update is retried.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// Obstacles to enforcement, and counters.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Failure of the last update.
    failure: Option<UpdateFailure>,
    /// Reason why the engine writes nothing at all.
    pub(super) held: Option<String>,
    /// Reasons of missing programs, by interface index; 0: failures to detach from interfaces without a role.
    attach_problems: BTreeMap<u32, String>,
    /// Reason why pins cannot be kept.
    pin_problem: Option<String>,
    /// Reason why the last good state cannot be saved.
    pub(super) state_problem: Option<String>,
    /// Repairs after changes by other tools, by kind.
    repaired: BTreeMap<&'static str, u64>,
    /// Flows at the last sweep.
    pub(super) census: Option<PassResult>,
    /// Records of observed flows at the last sweep.
    pub(super) observed: Option<PassResult>,
    /// Flows removed by all sweeps.
    pub(super) swept: PassResult,
    /// Time when the oldest change that is not enforced yet was seen.
    noticed: Option<Instant>,
}

#[derive(Debug)]
struct UpdateFailure {
    reason: String,
    pause: Duration,
    retry_at: Instant,
}

impl Health {
    /// Sets the reason why nothing is written; `None`: updates are written.
    pub(super) fn set_hold_reason(&mut self, reason: Option<String>) {
        if let Some(reason) = reason.as_ref().filter(|_| self.held != reason) {
            tracing::warn!(reason, "update withheld");
        }
        self.held = reason;
    }

    /// Records the time of a change; the oldest pending one is kept.
    pub(super) fn noticed(&mut self, at: Option<Instant>) {
        self.noticed = self.noticed.or(at);
    }

    /// Records an enforced update. Returns whether it is the first after a failure, and the delay of its oldest change.
    pub(super) fn succeeded(&mut self) -> (bool, Option<Duration>) {
        let recovered = self.failure.take().is_some();
        (recovered, self.noticed.take().map(|noticed| noticed.elapsed()))
    }

    /// Records a failed update.
    pub(super) fn failed(&mut self, error: &EngineError) {
        let pause = self.failure.as_ref().map_or(RETRY.0, |f| (f.pause * 2).min(RETRY.1));
        let reason = error.to_string();
        tracing::error!(%reason, retry_in = ?pause, "update not enforced; the previous state stays in force");
        self.failure = Some(UpdateFailure { reason, pause, retry_at: Instant::now() + pause });
    }

    /// Returns why the last update is not in force.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| failure.reason.as_str())
    }

    /// Returns whether it is too early to retry a failed update.
    pub(super) fn is_pausing(&self) -> bool {
        self.failure.as_ref().is_some_and(|failure| Instant::now() < failure.retry_at)
    }

    /// Returns when to retry after a failure.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        let attach =
            || (!self.attach_problems.is_empty()).then(|| Instant::now() + Duration::from_secs(1));
        self.failure.as_ref().map(|failure| failure.retry_at).or_else(attach)
    }

    /// Sets the interfaces to which programs cannot be attached, with the reasons.
    pub(super) fn cannot_attach(&mut self, problems: BTreeMap<u32, String>) {
        for (index, problem) in &problems {
            if self.attach_problems.get(index) != Some(problem) {
                tracing::error!(ifindex = index, problem, "interface not enforced");
            }
        }
        self.attach_problems = problems;
    }

    /// Returns the attach problems as messages, in the order of the interfaces.
    pub(super) fn attach_problems(&self) -> impl ExactSizeIterator<Item = String> {
        self.attach_problems.iter().map(|(index, reason)| match index {
            0 => format!("detaching from interfaces no longer under policy: {reason}"),
            index => format!("interface {index}: {reason}"),
        })
    }

    /// Counts repairs of a kind.
    pub(super) fn count_repairs(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            *self.repaired.entry(kind).or_default() += count;
        }
    }

    /// Returns the number of repairs, by kind.
    pub(super) fn repairs(&self) -> &BTreeMap<&'static str, u64> {
        &self.repaired
    }

    /// Records a check of the pins: the number of repaired pins, or the reason why they cannot be kept.
    pub(super) fn pins(&mut self, outcome: Result<u64, String>) {
        match outcome {
            Ok(pinned) => {
                self.count_repairs("pins", pinned);
                self.pin_problem = None;
            }
            Err(reason) => {
                if self.pin_problem.as_ref() != Some(&reason) {
                    tracing::error!(reason, "cannot maintain pins; will retry");
                }
                self.pin_problem = Some(reason);
            }
        }
    }

    /// Returns the reasons why the enforced state would not outlive the agent or the node's next boot.
    pub(super) fn keeping_problems(&self) -> impl Iterator<Item = &String> {
        self.pin_problem.iter().chain(&self.state_problem)
    }

    /// Adds the result of a sweep.
    pub(super) fn count_sweep(&mut self, pass: Option<PassResult>) {
        if let Some(pass) = &pass {
            let families = [(&mut self.swept.v4, &pass.v4), (&mut self.swept.v6, &pass.v6)];
            for (all, one) in families {
                all.removed += one.removed;
                all.orphaned += one.orphaned;
            }
        }
        self.census = pass;
    }
}
