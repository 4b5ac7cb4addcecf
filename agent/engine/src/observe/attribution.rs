//! Attribution of events to policies and rules, within a time budget: an explanation evaluates every policy of a pod,
//! and a flood of drops needs many explanations.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netpold_api::events::TrafficVerdict;
use netpold_api::observe::{Attribution, PolicyName, RuleName};
use netpold_core::explain::{Cause, Explainer, Judgement, ResolvedNames, Verdict};
use netpold_core::model::{Key, Pod};
use netpold_core::printable::cut;
use netpold_core::probe::IpProtocol;
use netpold_ebpf::reason::Reason;
use netpold_kube::cluster::DropKey;

use super::filter::destination_port;
use crate::events::JournalEvent;

/// Time for explanations per second.
const BUDGET: Duration = Duration::from_millis(20);
/// Part of [`BUDGET`] for the events of one pod.
const SHARE: Duration = Duration::from_millis(10);
/// Additional time per second, only for a pod's first explanation in that second, so that a flood at one pod does not
/// use up the time for other pods.
const RESERVE: Duration = Duration::from_millis(10);
/// Interval between reads of the names that pods resolved.
const RESOLVED_FOR: Duration = Duration::from_millis(100);
/// Maximum number of cached explanations; the cache is cleared when it is full.
const REMEMBERED: usize = 4096;
/// Maximum number of policies named per event.
const NAMED: usize = 8;
/// Longest line of an explanation, in bytes.
const LINE: usize = 512;
/// Longest explanation, in lines.
const LINES: usize = 24;
/// First line if the current policies have another verdict.
const CHANGED: &str = "policies have changed since; now:";

/// Attribution of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventAttribution {
    /// Policies and rule that decided; the default for a verdict without a policy.
    Known(Arc<Attribution>),
    /// Not explained: the budget is used up.
    Omitted,
}

/// Cache of explanations for all watchers.
#[derive(Debug, Default)]
pub struct Attributions {
    /// Number of the cluster state of the cached explanations.
    state: Option<(u64, u64)>,
    known: HashMap<DropKey, Arc<Attribution>>,
    /// Names that pods resolved, as of `resolved_at`.
    resolved: Arc<ResolvedNames>,
    resolved_at: Option<Instant>,
    budget: ExplainBudget,
}

/// Time spent on explanations in the current second.
#[derive(Debug, Default)]
struct ExplainBudget {
    since: Option<Instant>,
    spent: Duration,
    /// Time by endpoint.
    shares: HashMap<u32, Duration>,
}

impl ExplainBudget {
    /// Returns whether an event of an endpoint may be explained now.
    fn allows(&mut self, endpoint: u32, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1)) {
            *self = Self { since: Some(now), ..Self::default() };
        }
        match self.shares.get(&endpoint) {
            Some(share) => *share < SHARE && self.spent < BUDGET,
            None => self.spent < BUDGET + RESERVE,
        }
    }

    fn spend(&mut self, endpoint: u32, took: Duration) {
        self.spent += took;
        *self.shares.entry(endpoint).or_default() += took;
    }
}

impl Attributions {
    /// Prepares the cache for events at a cluster state: clears the cache if it is full, the state has changed, or the
    /// names that pods resolved were read again with `resolve`. Returns these names.
    pub fn follow(
        &mut self,
        state: (u64, u64),
        resolve: impl FnOnce() -> ResolvedNames,
    ) -> Arc<ResolvedNames> {
        let mut changed = self.state != Some(state) || self.known.len() >= REMEMBERED;
        let now = Instant::now();
        if self.resolved_at.is_none_or(|at| now.duration_since(at) >= RESOLVED_FOR) {
            self.resolved_at = Some(now);
            let resolved = resolve();
            // Without resolved names before and now, no explanation depends on a name.
            if !resolved.is_empty() || !self.resolved.is_empty() {
                changed = true;
                self.resolved = Arc::new(resolved);
            }
        }
        if changed {
            self.known.clear();
            self.state = Some(state);
        }
        Arc::clone(&self.resolved)
    }

    /// Attributes an event at a pod.
    pub fn attribute(
        &mut self,
        explainer: &Explainer<'_>,
        pod: Option<&Pod>,
        seen: &JournalEvent,
        now: Instant,
    ) -> EventAttribution {
        let packet = &seen.packet;
        let is_policy = match seen.outcome {
            TrafficVerdict::Deny => packet.is_denial(),
            TrafficVerdict::Audit => true,
            TrafficVerdict::Allow => packet.reason != Reason::Node.as_str(),
        };
        let parts = (pod, packet.remote, packet.protocol);
        let (true, (Some(pod), Some(remote), Some(protocol))) = (is_policy, parts) else {
            return EventAttribution::Known(Arc::default());
        };
        let key = packet.key();
        if let Some(known) = self.known.get(&key) {
            return EventAttribution::Known(Arc::clone(known));
        }
        if !self.budget.allows(packet.endpoint, now) {
            return EventAttribution::Omitted;
        }
        let began = Instant::now();
        let protocol = IpProtocol(protocol);
        let port = destination_port(seen).unwrap_or(0);
        let (direction, on_trial) = (packet.direction, seen.outcome == TrafficVerdict::Audit);
        let judge = if on_trial { explainer.with_trials() } else { *explainer };
        let judgement = judge.judge(&pod.key, direction, remote, protocol, port);
        let denying = || explainer.denied_on_trial(pod, direction, remote, protocol, port);
        let attribution = judgement.map(|judged| attribute(&judged, seen.outcome, denying));
        let attribution = Arc::new(attribution.unwrap_or_default());
        self.budget.spend(packet.endpoint, began.elapsed());
        self.known.insert(key, Arc::clone(&attribution));
        EventAttribution::Known(attribution)
    }
}

fn attribute(
    judgement: &Judgement,
    outcome: TrafficVerdict,
    on_trial: impl FnOnce() -> Vec<Key>,
) -> Attribution {
    let denies = outcome != TrafficVerdict::Allow;
    let mut explanation: Vec<String> = judgement.lines();
    let is_unchanged = denies == (judgement.verdict == Verdict::Deny);
    if !is_unchanged {
        explanation.insert(0, CHANGED.to_owned());
    }
    explanation.truncate(LINES);
    let explanation = explanation.into_iter().map(|line| cut(line, LINE)).collect();
    if !is_unchanged {
        return Attribution { explanation, ..Attribution::default() };
    }
    let tier = judgement.tiers.decided_by.as_ref();
    let rule = judgement.allowed_by.as_ref().map(Into::into).or_else(|| tier.map(Into::into));
    let nearest = judgement.nearest.as_ref();
    let isolated_by = || {
        let all = judgement.isolated_by.iter().filter(|_| judgement.cause == Cause::NoRule);
        all.map(PolicyName::new).collect()
    };
    let mut policies = match (outcome, &rule) {
        (TrafficVerdict::Audit, _) => on_trial().iter().map(PolicyName::new).collect(),
        (_, Some(rule)) => vec![RuleName::clone(rule).policy],
        (_, None) => isolated_by(),
    };
    policies.sort();
    let more_policies = policies.len().saturating_sub(NAMED);
    policies.truncate(NAMED);
    let lacks = nearest.map(|it| it.lacks.iter().take(NAMED).map(|lack| cut(lack.clone(), LINE)));
    Attribution {
        policies,
        more_policies,
        rule,
        nearest: nearest.map(Into::into),
        lacks: lacks.into_iter().flatten().collect(),
        rejected: judgement.rejected,
        explanation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_pod_leave_time_for_other_pods() {
        let (mut budget, start) = (ExplainBudget::default(), Instant::now());
        let one = Duration::from_millis(1);
        let mut explain = |endpoint, events: u32, now| {
            let explained = (0..events).filter(|_| {
                let allowed = budget.allows(endpoint, now);
                if allowed {
                    budget.spend(endpoint, one);
                }
                allowed
            });
            explained.count()
        };
        assert_eq!(explain(1, 100, start), 10, "the share of one pod");
        assert_eq!(explain(2, 100, start), 10, "the rest of the budget");
        let others: Vec<usize> = (3..20).map(|endpoint| explain(endpoint, 2, start)).collect();
        assert_eq!(others[..10], [1; 10], "the first event of other pods");
        assert_eq!(others[10..], [0; 7], "no event once the reserve is used up");
        assert_eq!(explain(1, 100, start + Duration::from_secs(1)), 10);
    }
}
