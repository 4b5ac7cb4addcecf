//! What hinders enforcement, and what was counted: for `netpold status`, readiness and metrics.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::EngineError;
use crate::conntrack::Pass;

/// Shortest and longest pause before a failed update is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Why the last update is not in force.
    failure: Option<Failure>,
    /// Why nothing is written at all.
    pub(super) held: Option<String>,
    /// Why interfaces lack their programs; 0 stands for those that are no longer judged at.
    attach_problems: BTreeMap<u32, String>,
    /// Why pins cannot be kept.
    pin_problem: Option<String>,
    /// Why the last good state cannot be kept.
    pub(super) state_problem: Option<String>,
    /// What was put right after somebody else had changed it, by kind.
    repaired: BTreeMap<&'static str, u64>,
    /// Flows at the last sweep.
    pub(super) census: Option<Pass>,
    /// Flows removed by all sweeps.
    pub(super) swept: Pass,
    /// When the first of the changes that are not enforced yet was seen.
    noticed: Option<Instant>,
}

#[derive(Debug)]
struct Failure {
    reason: String,
    pause: Duration,
    retry_at: Instant,
}

impl Health {
    /// Says why nothing is written; `None`: it is.
    pub(super) fn hold(&mut self, reason: Option<String>) {
        if let Some(reason) = reason.as_ref().filter(|_| self.held != reason) {
            tracing::warn!(reason, "nothing is changed");
        }
        self.held = reason;
    }

    /// A change was seen.
    pub(super) fn noticed(&mut self, at: Option<Instant>) {
        self.noticed = self.noticed.or(at);
    }

    /// An update is in force: whether it is the first after a failure, and how long the first of its changes
    /// waited for it.
    pub(super) fn succeeded(&mut self) -> (bool, Option<Duration>) {
        let recovered = self.failure.take().is_some();
        (recovered, self.noticed.take().map(|noticed| noticed.elapsed()))
    }

    /// An update could not be brought into force.
    pub(super) fn failed(&mut self, error: &EngineError) {
        let pause = self.failure.as_ref().map_or(RETRY.0, |f| (f.pause * 2).min(RETRY.1));
        let reason = error.to_string();
        tracing::error!(%reason, retry_in = ?pause, "update not enforced; what was enforced stays");
        self.failure = Some(Failure { reason, pause, retry_at: Instant::now() + pause });
    }

    /// Why the last update is not in force.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| failure.reason.as_str())
    }

    /// Whether it is too early to try a failed update again.
    pub(super) fn is_pausing(&self) -> bool {
        self.failure.as_ref().is_some_and(|failure| Instant::now() < failure.retry_at)
    }

    /// When to try again what failed.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        let attach =
            || (!self.attach_problems.is_empty()).then(|| Instant::now() + Duration::from_secs(1));
        self.failure.as_ref().map(|failure| failure.retry_at).or_else(attach)
    }

    /// Interfaces where programs cannot be attached, with the reasons.
    pub(super) fn cannot_attach(&mut self, problems: BTreeMap<u32, String>) {
        for (index, problem) in &problems {
            if self.attach_problems.get(index) != Some(problem) {
                tracing::error!(ifindex = index, problem, "an interface is not enforced");
            }
        }
        self.attach_problems = problems;
    }

    /// For messages, in the order of the interfaces.
    pub(super) fn attach_problems(&self) -> impl ExactSizeIterator<Item = String> {
        self.attach_problems.iter().map(|(index, reason)| match index {
            0 => format!("leaving interfaces that are no longer judged at: {reason}"),
            index => format!("interface {index}: {reason}"),
        })
    }

    /// Something was put right.
    pub(super) fn repaired(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            *self.repaired.entry(kind).or_default() += count;
        }
    }

    /// How often something was put right, by kind.
    pub(super) fn repairs(&self) -> &BTreeMap<&'static str, u64> {
        &self.repaired
    }

    /// Pins were looked at: how many had to be made again, or why they cannot be kept.
    pub(super) fn pins(&mut self, outcome: Result<u64, String>) {
        match outcome {
            Ok(pinned) => {
                self.repaired("pins", pinned);
                self.pin_problem = None;
            }
            Err(reason) => {
                if self.pin_problem.as_ref() != Some(&reason) {
                    tracing::error!(reason, "pins cannot be kept; tried again");
                }
                self.pin_problem = Some(reason);
            }
        }
    }

    /// Why this state would not outlive the agent, or the node's next boot.
    pub(super) fn keeping_problems(&self) -> impl Iterator<Item = &String> {
        self.pin_problem.iter().chain(&self.state_problem)
    }

    /// Adds what a sweep found and removed.
    pub(super) fn count_sweep(&mut self, pass: Option<Pass>) {
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
