//! What an explanation consists of.

use std::net::IpAddr;

use serde::Serialize;

use crate::model::{Action, Direction, Key, Pod, Tier};
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
    /// The sides that are pod templates, in the place of their pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub templates: Vec<Template>,
}

/// A pod template that is judged in the place of its workload's pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Template {
    /// What the pod is called here, as `shop/web`.
    pub pod: String,
    /// The workload, as `Deployment shop/web (template)`.
    pub title: String,
}

impl Template {
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        pod.template()?;
        Some(Self { pod: pod.key.to_string(), title: pod.title() })
    }
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
    /// The other side's address; unspecified for a pod that has none.
    #[serde(skip_serializing_if = "IpAddr::is_unspecified")]
    pub remote: IpAddr,
    /// The pod that the address belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_pod: Option<Key>,
    /// Never [`Verdict::Unknown`].
    pub verdict: Verdict,
    /// What decided.
    pub cause: Cause,
    /// NetworkPolicies that isolate the pod in this direction, by name, asked or not.
    pub isolated_by: Vec<Key>,
    /// What ClusterNetworkPolicies said.
    #[serde(flatten)]
    pub tiers: Tiers,
    /// The first rule of a NetworkPolicy that allows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_by: Option<RuleRef>,
    /// Of the NetworkPolicies' rules that do not allow it, the one that came nearest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<Nearest>,
    /// It is allowed, and these policies on trial would deny it; a ClusterNetworkPolicy has no namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denied_on_trial: Vec<Key>,
    /// What was not understood of the isolating policies and therefore grants nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    /// What there is to add that policies do not hold; empty unless somebody who knows more of the objects adds it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// What decided a [`Judgement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// No NetworkPolicy isolates the pod in this direction, and no rule of a tier decides.
    NotIsolated,
    /// A rule of a NetworkPolicy allows it.
    Rule,
    /// The pod is isolated and no rule allows it.
    NoRule,
    /// An Accept or Deny rule of a ClusterNetworkPolicy decides, [`Tiers::decided_by`].
    TierRule,
    /// A pod always reaches its own address; through a Service, unless a tier denies it there.
    Itself,
    /// A node always reaches its pods; NetworkPolicy always lets a pod reach its own node.
    OwnNode,
    /// A hostNetwork pod is its node; policies do not select it.
    HostNetwork,
    /// No rule allows the address of a Service or node, but some backend behind it is allowed (every
    /// one at another node's node port).
    Backend,
    /// A ClusterNetworkPolicy denies every backend behind the address of a Service (at another node's
    /// node port: some backend), whatever is said of the address itself.
    BackendDenied,
}

/// What ClusterNetworkPolicies said of one direction at one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tiers {
    /// Those that were asked, in this order: those about the pod with rules in this
    /// direction, up to the one that decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<TierPolicy>,
    /// Their Pass rules that matched, each of which left the rest of its tier unasked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_by: Vec<TierRule>,
    /// Their Accept or Deny rule that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<TierRule>,
    /// What was not understood of the ClusterNetworkPolicies that were asked: their rules fail closed.
    #[serde(rename = "tier_problems", skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<TierProblem>,
}

/// A ClusterNetworkPolicy, and where it stands among all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TierPolicy {
    /// `spec.tier`
    pub tier: Tier,
    /// `metadata.name`
    pub policy: String,
    /// `spec.priority`
    pub priority: u16,
}

/// A rule of a ClusterNetworkPolicy that matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TierRule {
    /// The policy.
    #[serde(flatten)]
    pub policy: TierPolicy,
    /// `spec.ingress` or `spec.egress`.
    pub direction: Direction,
    /// Index in that list, from 0.
    pub index: usize,
    /// The rule's `name`, if it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What the rule says of what it matches.
    pub action: Action,
    /// Index of the peer that matches; none if the rule is about everyone. A peer of `networks` is one
    /// for each network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<usize>,
    /// Index of the port that matches; none if the rule has no protocols. A named port is one for each
    /// protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<usize>,
    /// What the rule matches, as `TCP 80-90 from pods app=web of namespaces team=shop`.
    pub matches: String,
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

/// Something of a ClusterNetworkPolicy that was not understood.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TierProblem {
    /// The policy.
    pub policy: String,
    /// What and where.
    pub problem: String,
}

impl Judgement {
    /// Whether a Deny rule of a ClusterNetworkPolicy decides.
    pub(super) fn is_denied_by_tier(&self) -> bool {
        self.cause == Cause::TierRule && self.verdict == Verdict::Deny
    }
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
        Self {
            probe: probe.clone(),
            verdict,
            reason,
            egress,
            ingress,
            services,
            note,
            backends,
            templates: Vec::new(),
        }
    }
}
