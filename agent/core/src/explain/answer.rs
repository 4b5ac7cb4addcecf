//! What an explanation consists of.

use std::net::IpAddr;

use serde::Serialize;

use crate::model::{Direction, Key};
use crate::probe::Probe;

/// How much is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// What decided; no rules.
    Verdict,
    /// Everything.
    Reasons,
}

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
    /// The Services that the traffic is for, if it is to be translated. Then `egress` is what the
    /// sender's veth says of the address as it was asked, and what counts are the backends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Key>,
    /// What there is to say about the backends as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whom the traffic may be translated to; it is allowed if one of them is. At another node's node
    /// port it is allowed if the sender may reach every one, or that node, and one of them admits it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<Backend>,
}

/// A backend of a Service, as the sender's traffic reaches it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backend {
    /// Its address.
    pub address: IpAddr,
    /// Its port, which the Service's port is translated to.
    pub port: u16,
    /// The pod that the address belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Key>,
    /// Allowed in both directions, or denied in at least one.
    pub verdict: Verdict,
    /// The sender's side, if it is a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Judgement>,
    /// The backend's side, if it is a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Judgement>,
}

impl Verdict {
    /// Of two directions, of which one may not be judged.
    pub(super) fn of(directions: [&Option<Judgement>; 2]) -> Self {
        let denied = directions.into_iter().flatten().any(|j| j.verdict == Self::Deny);
        if denied { Self::Deny } else { Self::Allow }
    }
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
    /// No rule allows the address of a Service or node, but some backend behind it is allowed (every
    /// one at another node's node port).
    Backend,
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

/// Something of a policy that was not understood, or was too much.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// The policy.
    pub policy: Key,
    /// What and where.
    pub problem: String,
    /// It was understood, but asks for more than its budget: the policy is closed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub over_budget: bool,
}

impl Explanation {
    pub(super) fn unknown(probe: &Probe, reason: String) -> Self {
        let (verdict, reason) = (Verdict::Unknown, Some(reason));
        Self::judged(probe, verdict, reason, None, None)
    }

    /// An answer about traffic that is not translated.
    pub(super) fn judged(
        probe: &Probe,
        verdict: Verdict,
        reason: Option<String>,
        egress: Option<Judgement>,
        ingress: Option<Judgement>,
    ) -> Self {
        let (services, note, backends) = (Vec::new(), None, Vec::new());
        Self { probe: probe.clone(), verdict, reason, egress, ingress, services, note, backends }
    }
}
