//! Combination of the nodes' reports about a policy into the policy's status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use netpold_api::crd::{NodeCounts, NodeFailure, OWN_GENERATION, PolicyReport};
use netpold_core::model::Key;

use crate::index::{AgentPresence, Index, KnownPolicy, Moment, StateOnNode, clipped};

/// Condition: every part of the policy is honoured.
pub(super) const ACCEPTED: &str = "Accepted";
/// Condition: the policy is in force on every node with a pod that it selects.
pub(super) const ENFORCING: &str = "Enforcing";
/// Condition: no further change is expected, and the policy is in force, or judges in audit mode, on every node. Helm,
/// Flux and kpt read it (kstatus), as they do the next two, which are there only while they are true.
const READY: &str = "Ready";
/// Condition: a node is about to follow.
const RECONCILING: &str = "Reconciling";
/// Condition: a node will not follow without a change.
const STALLED: &str = "Stalled";
/// Maximum number of nodes in `notEnforced`.
const NAMED: usize = 16;
/// Longest message of a condition or a node, in bytes.
const MESSAGE_MAX: usize = 1024;
/// Substring of an agent's message about a policy that grants nothing at all.
const CLOSED: &str = "closed: ";

/// Progress of a node with a policy, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// The policy exceeds the node's tables and grants nothing.
    NotHonoured,
    /// The agent has stopped renewing its report.
    AgentSilent,
    /// No report of the agent exists, [`SILENT`](super::index::SILENT) after the Node appeared.
    NoAgent,
    /// The agent does not enforce this generation yet.
    Pending,
    /// The agent's report is full and omits the policy.
    NotLookedAt,
    /// The node enforces this generation.
    Enforced,
}

impl Progress {
    fn of(on: &StateOnNode<'_>, generation: i64) -> Self {
        match (on.agent, on.entry) {
            (AgentPresence::Silent, _) => Self::AgentSilent,
            (AgentPresence::Absent, _) => Self::NoAgent,
            (AgentPresence::Reports, Some(entry)) if entry.generation != generation => {
                Self::Pending
            }
            (AgentPresence::Reports, Some(entry)) if entry.enforced => Self::Enforced,
            (AgentPresence::Reports, Some(entry)) if entry.message.contains(CLOSED) => {
                Self::NotHonoured
            }
            (AgentPresence::Reports, None) if on.omits => Self::NotLookedAt,
            (AgentPresence::Reports | AgentPresence::NotYet, _) => Self::Pending,
        }
    }

    const fn is_failed(self) -> bool {
        matches!(self, Self::NotHonoured | Self::AgentSilent | Self::NoAgent)
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::NotHonoured => "NotHonoured",
            Self::AgentSilent => "AgentSilent",
            Self::NoAgent => "NoAgent",
            Self::Pending => "Pending",
            Self::NotLookedAt => "NotLookedAt",
            Self::Enforced => "AllNodes",
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::NotHonoured => "the policy exceeds the node's tables and grants nothing there",
            Self::AgentSilent => {
                "no renewed report from the agent for 3 minutes; the last enforced state stays in force"
            }
            Self::NoAgent => "no report from the node for 3 minutes",
            Self::Pending => "the node's agent does not enforce this generation yet",
            Self::NotLookedAt => "the node has more policies than its agent's report holds",
            Self::Enforced => "",
        }
    }
}

/// Message of the condition `Enforcing` of a policy in audit mode.
const ON_TRIAL: &str = "audit mode (annotation netpold.io/enforcement: audit): denies nothing";

/// Condition without its time.
#[derive(Clone)]
struct ConditionState {
    status: &'static str,
    reason: &'static str,
    message: String,
}

/// Returns the status of a policy, or `None` if the policy does not exist. A condition with an unchanged status keeps
/// the transition time of the former report.
pub(super) fn evaluate(
    index: &Index,
    key: &Key,
    before: Option<&PolicyReport>,
    now: Moment,
) -> Option<PolicyReport> {
    let policy = index.policy(key)?;
    let generation = policy.version.generation;
    let on_nodes = index.on_nodes(key, now);
    let progress: Vec<Progress> = on_nodes.iter().map(|on| Progress::of(on, generation)).collect();
    let count = |test: fn(&Progress) -> bool| progress.iter().filter(|it| test(it)).count() as i32;
    let nodes = NodeCounts {
        desired: progress.len() as i32,
        enforced: count(|it| *it == Progress::Enforced),
        failed: count(|it| it.is_failed()),
    };
    let lagging = on_nodes.iter().zip(&progress).filter(|(_, it)| **it != Progress::Enforced);
    let not_enforced = lagging.take(NAMED).map(|(on, it)| failure(on, *it, generation)).collect();
    let ready = enforcing(&progress, &nodes);
    let enforcing = match policy.on_trial {
        true => ConditionState { status: "False", reason: "OnTrial", message: ON_TRIAL.to_owned() },
        false => ready.clone(),
    };
    let unready = (ready.status != "True").then(|| {
        let type_ = if nodes.failed > 0 { STALLED } else { RECONCILING };
        (type_, ConditionState { status: "True", ..ready.clone() })
    });
    let conditions =
        [(ACCEPTED, accepted(policy, &on_nodes)), (ENFORCING, enforcing), (READY, ready)];
    let conditions = conditions.into_iter().chain(unready);
    let conditions = conditions.map(|(type_, judgement)| condition(type_, judgement, before, now));
    Some(PolicyReport {
        policy_generation: generation,
        observed_generation: OWN_GENERATION,
        nodes,
        conditions: conditions.collect(),
        not_enforced,
    })
}

fn failure(on: &StateOnNode<'_>, progress: Progress, generation: i64) -> NodeFailure {
    let current =
        on.entry.filter(|entry| entry.generation == generation && !entry.message.is_empty());
    let spoken = matches!(progress, Progress::NotHonoured | Progress::Pending);
    let message = current.filter(|_| spoken).map_or(progress.message(), |entry| &*entry.message);
    NodeFailure {
        node: on.node.to_owned(),
        reason: progress.reason().to_owned(),
        message: clipped(message, MESSAGE_MAX).to_owned(),
    }
}

/// Returns the condition `Accepted`: every part of the policy was decoded, and the policy fits into the nodes' tables.
fn accepted(policy: &KnownPolicy, on_nodes: &[StateOnNode<'_>]) -> ConditionState {
    let judgement = |status, reason, message: &str| ConditionState {
        status,
        reason,
        message: clipped(message, MESSAGE_MAX).to_owned(),
    };
    if !policy.problems.is_empty() {
        return judgement("False", "PartNotHonoured", &policy.problems.join("; "));
    }
    let current = |on: &&StateOnNode<'_>| {
        on.entry.is_some_and(|entry| entry.generation == policy.version.generation)
    };
    // A message about a policy in force names the part that grants nothing.
    let complaint = on_nodes.iter().filter(current).find_map(|on| {
        let entry = on.entry.filter(|it| !it.message.is_empty())?;
        (entry.enforced || entry.message.contains(CLOSED)).then_some((on.node, &entry.message))
    });
    if let Some((node, message)) = complaint {
        return judgement("False", "PartNotHonoured", &format!("node {node}: {message}"));
    }
    if on_nodes.is_empty() || on_nodes.iter().any(|on| current(&on)) {
        return judgement("True", "Honoured", "every part of the policy is accepted");
    }
    judgement("Unknown", "NotLookedAt", "no node has reported on this generation yet")
}

fn enforcing(progress: &[Progress], nodes: &NodeCounts) -> ConditionState {
    let NodeCounts { desired, enforced, .. } = nodes;
    let worst = progress.iter().copied().min().unwrap_or(Progress::Enforced);
    let (status, reason) = match worst {
        Progress::Enforced if progress.is_empty() => ("True", "NoPods"),
        Progress::Enforced => ("True", worst.reason()),
        Progress::NotLookedAt => ("Unknown", worst.reason()),
        Progress::NotHonoured | Progress::AgentSilent | Progress::NoAgent | Progress::Pending => {
            ("False", worst.reason())
        }
    };
    let message = match progress.is_empty() {
        true => "the policy selects no pod on any node".to_owned(),
        false => format!("in force on {enforced} of {desired} nodes"),
    };
    ConditionState { status, reason, message }
}

fn condition(
    type_: &str,
    judgement: ConditionState,
    before: Option<&PolicyReport>,
    now: Moment,
) -> Condition {
    let former = before.and_then(|before| before.conditions.iter().find(|it| it.type_ == type_));
    let unchanged = former.filter(|former| former.status == judgement.status);
    let since = unchanged.map(|former| former.last_transition_time.clone());
    Condition {
        type_: type_.to_owned(),
        status: judgement.status.to_owned(),
        reason: judgement.reason.to_owned(),
        message: judgement.message,
        observed_generation: Some(OWN_GENERATION),
        last_transition_time: since.unwrap_or_else(|| time(now)),
    }
}

/// Truncates to seconds, the resolution of `metav1.Time`.
fn time(now: Moment) -> Time {
    Time(k8s_openapi::jiff::Timestamp::from_second(now.unix).unwrap_or_default())
}
