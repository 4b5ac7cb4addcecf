//! Events of `netpold observe` about the drops of a step, compared with the verdicts of `explain`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use netpold_api::events::TrafficVerdict;
use netpold_api::filter::ObserveRequest;
use netpold_api::observe::{Attribution, ObserveLine, ObservedEvent, PolicyName, RuleName};
use netpold_cli::observe;
use netpold_core::cluster::Cluster;
use netpold_core::explain::{Cause, Explainer, Judgement, Verdict};
use netpold_core::model::Direction;
use netpold_ebpf::reason::Reason;

use super::Wire;
use crate::conformance::case::{Check, Step};
use crate::conformance::convert;

/// Bounds of an explanation in the agent: lines, and bytes of a line.
const LINES: usize = 24;
const LINE: usize = 512;
/// Bound of a list of names in the agent.
const NAMED: usize = 8;

/// Numbers of compared events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Observed {
    /// Events compared with their policies and rules.
    pub(super) explained: usize,
    /// Events compared by reason only: the agent had no time left to explain them.
    pub(super) omitted: usize,
    /// Time for requests and comparison.
    pub(super) took: Duration,
}

/// Source, destination, protocol and port of a flow.
type Asked = (IpAddr, IpAddr, u8, u16);

/// Compares the events of a step. Returns the differences, as lines.
pub(super) fn compare(wire: &Wire, step: &Step, seen: &mut Observed) -> Result<Vec<String>> {
    let began = Instant::now();
    let cluster: Cluster = convert(step)?.0.into_iter().collect();
    let explainer = Explainer::new(&cluster);
    let since = u64::try_from(wire.enforced.elapsed().as_millis())?;
    let request = ObserveRequest { since: Some(since), ..ObserveRequest::default() };
    let checks = step.checks.iter().filter(|check| !check.allow);
    let asked = |it: &Check| (it.from.address, it.to.address, it.protocol.0, it.port);
    let denied: BTreeSet<Asked> = checks.map(asked).collect();
    let mut wrong = BTreeSet::new();
    for agent in &wire.agents {
        let mut lines = observe::open_stream(&agent.socket(), &request, false)?;
        while let Some(line) = lines.read()? {
            if let ObserveLine::Event(event) = serde_json::from_str(&line).context("no line")? {
                let differs = difference(&event, &explainer, &denied, seen);
                wrong.extend(differs.map(|differs| format!("{differs}: {line}")));
            }
        }
    }
    seen.took += began.elapsed();
    Ok(wrong.into_iter().collect())
}

/// Returns the difference between an event and its explanation.
fn difference(
    event: &ObservedEvent,
    explainer: &Explainer<'_>,
    denied: &BTreeSet<Asked>,
    seen: &mut Observed,
) -> Option<String> {
    let (Some(pod), Some(local), Some(remote), Some(protocol)) =
        (&event.pod, event.local, event.remote, event.protocol)
    else {
        return Some("whose packet it is is not known".to_owned());
    };
    let port = event.port.unwrap_or(0);
    let Some(judged) = explainer.judge(pod, event.direction, remote, protocol, port) else {
        return Some(format!("explain knows no pod {pod}"));
    };
    let (from, to) = match event.direction {
        Direction::Egress => (local, remote),
        Direction::Ingress => (remote, local),
    };
    if !denied.contains(&(from, to, protocol.0, port)) {
        return Some("no flow of the step is denied there".to_owned());
    }
    let by_policy = event.reason == Reason::Policy.as_str();
    if event.verdict != TrafficVerdict::Deny || !by_policy || judged.verdict != Verdict::Deny {
        return Some(format!("explain says {:?}", judged.lines()));
    }
    let told = &event.attribution;
    if told.explanation.is_empty() {
        seen.omitted += 1;
        return None;
    }
    seen.explained += 1;
    let expected = expected(&judged);
    (*told != expected).then(|| format!("explain says {expected:?}"))
}

/// Returns the attribution that the event of a denial must have.
fn expected(judged: &Judgement) -> Attribution {
    let rule: Option<RuleName> = judged.tiers.decided_by.as_ref().map(Into::into);
    let mut policies: Vec<PolicyName> = match (&rule, judged.cause) {
        (Some(rule), _) => vec![rule.policy.clone()],
        (None, Cause::NoRule) => judged.isolated_by.iter().map(PolicyName::new).collect(),
        (None, _) => Vec::new(),
    };
    policies.sort();
    let more_policies = policies.len().saturating_sub(NAMED);
    policies.truncate(NAMED);
    let short = |lines: Vec<String>, most: usize| -> Vec<String> {
        assert!(lines.iter().all(|line| line.len() < LINE), "{lines:?}");
        lines.into_iter().take(most).collect()
    };
    let nearest = judged.nearest.as_ref();
    Attribution {
        policies,
        more_policies,
        rule,
        nearest: nearest.map(Into::into),
        lacks: short(nearest.map(|it| it.lacks.clone()).unwrap_or_default(), NAMED),
        rejected: judged.rejected,
        explanation: short(judged.lines(), LINES),
    }
}
