//! What an explanation consists of.

use std::net::IpAddr;

use serde::Serialize;

use crate::model::{Direction, Key};
use crate::probe::Probe;

/// Answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It passes.
    Allow,
    /// It is dropped.
    Deny,
    /// It cannot be told; the reason says why.
    Unknown,
}

/// Answer to a probe, with its reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// What was asked.
    #[serde(flatten)]
    pub probe: Probe,
    /// Allowed in both directions, denied in at least one, or not to be told.
    pub verdict: Verdict,
    /// Why it cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The sender's side, if it is a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Judgement>,
    /// The receiver's side, if it is a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Judgement>,
}

/// One direction at one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// The pod that is judged.
    pub pod: Key,
    /// Into it or out of it.
    pub direction: Direction,
    /// The other side's address.
    pub remote: IpAddr,
    /// The pod that the address belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_pod: Option<Key>,
    /// Never [`Verdict::Unknown`].
    pub verdict: Verdict,
    /// What decided.
    pub cause: Cause,
    /// Policies that isolate the pod in this direction, by name.
    pub isolated_by: Vec<Key>,
    /// The first rule that allows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_by: Option<RuleRef>,
    /// Of the rules that do not allow it, the one that came nearest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<Nearest>,
    /// What was not understood of the isolating policies and therefore grants nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
}

/// What decided a [`Judgement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// No policy isolates the pod in this direction.
    NotIsolated,
    /// A rule allows it.
    Rule,
    /// The pod is isolated and no rule allows it.
    NoRule,
    /// A pod always reaches itself.
    Itself,
    /// A pod always reaches its own node, and the node its pods.
    OwnNode,
    /// A hostNetwork pod is its node; policies do not select it.
    HostNetwork,
}

/// A rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleRef {
    /// The policy.
    pub policy: Key,
    /// `spec.ingress` or `spec.egress`.
    pub direction: Direction,
    /// Index in that list, from 0.
    pub index: usize,
    /// Index of the item of `from` or `to` that matches; none if the rule has no such list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<usize>,
    /// Index of the item of `ports` that matches; none if the rule has no such list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<usize>,
    /// What the rule allows, as `TCP 80-90 from pods app=web of namespace shop`.
    pub allows: String,
}

/// A rule that does not allow, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nearest {
    /// The rule.
    pub rule: RuleRef,
    /// What it lacked, as `port 443 is not in it`; one item for ports, one for each peer.
    pub lacks: Vec<String>,
}

/// Something of a policy that was not understood.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The policy.
    pub policy: Key,
    /// What and where.
    pub problem: String,
}

impl Explanation {
    pub(super) fn unknown(probe: &Probe, reason: String) -> Self {
        let (verdict, reason) = (Verdict::Unknown, Some(reason));
        Self { probe: probe.clone(), verdict, reason, egress: None, ingress: None }
    }
}
