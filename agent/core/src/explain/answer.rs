//! Parts of an explanation.

use std::net::IpAddr;

use serde::Serialize;

use crate::model::{Action, Direction, Key, Pod, Tier};
use crate::probe::Probe;

/// Amount of detail in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// Verdict and cause; no rules.
    Verdict,
    /// Verdict, cause and all rules that matter.
    Reasons,
}

/// Answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The traffic passes.
    Allow,
    /// The traffic is dropped.
    Deny,
    /// The verdict cannot be determined; [`Explanation::reason`] has the cause.
    Unknown,
}

/// Answer to a probe, with its reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The probe.
    #[serde(flatten)]
    pub probe: Probe,
    /// Allowed in both directions, denied in at least one, or unknown.
    pub verdict: Verdict,
    /// Reason for [`Verdict::Unknown`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Judgement at the sender, if the sender is a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Judgement>,
    /// Judgement at the receiver, if the receiver is a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Judgement>,
    /// Services that translate the traffic. If there are any, `egress` is the judgement of the sender's veth on the
    /// untranslated address, and the verdict depends on the backends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Key>,
    /// Summary of the backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Ready backends of the translation; the traffic is allowed if one backend is. At another node's node port it is
    /// allowed if the sender may reach every backend, or that node, and one backend admits it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<ServiceBackend>,
    /// Whether the Service has no backend that gets new connections: nothing answers, and [`Self::backends`] are the
    /// possible ones.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
    /// Sides of the probe that are pod templates instead of pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub templates: Vec<JudgedTemplate>,
}

/// A pod template judged in place of its workload's pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JudgedTemplate {
    /// Name of the stand-in pod, such as `shop/web`.
    pub pod: String,
    /// Title of the workload, such as `Deployment shop/web (template)`.
    pub title: String,
}

impl JudgedTemplate {
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        pod.template()?;
        Some(Self { pod: pod.key.to_string(), title: pod.title() })
    }
}

/// A backend of a Service, as the sender's traffic reaches it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceBackend {
    /// Address of the backend; unspecified if the backend is a pod without an address.
    #[serde(skip_serializing_if = "IpAddr::is_unspecified")]
    pub address: IpAddr,
    /// Port of the backend: the target of the Service's port.
    pub port: u16,
    /// Pod that has the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Key>,
    /// Allowed in both directions, or denied in at least one.
    pub verdict: Verdict,
    /// Judgement at the sender, if the sender is a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<Judgement>,
    /// Judgement at the backend, if the backend is a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Judgement>,
}

impl Verdict {
    /// Combines two directions; `None` is a direction without a pod.
    pub(super) fn combine(directions: [&Option<Judgement>; 2]) -> Self {
        let denied = directions.into_iter().flatten().any(|j| j.verdict == Self::Deny);
        if denied { Self::Deny } else { Self::Allow }
    }
}

/// Verdict on one direction at one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// The judged pod.
    pub pod: Key,
    /// Direction of the traffic, as the pod sees it.
    pub direction: Direction,
    /// Address of the other side; unspecified if the other side is a pod without an address.
    #[serde(skip_serializing_if = "IpAddr::is_unspecified")]
    pub remote: IpAddr,
    /// Pod that has the remote address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_pod: Option<Key>,
    /// Verdict, never [`Verdict::Unknown`].
    pub verdict: Verdict,
    /// Cause of the verdict.
    pub cause: Cause,
    /// NetworkPolicies that isolate the pod in this direction, by name, whether or not the verdict depends on them.
    pub isolated_by: Vec<Key>,
    /// Result of the ClusterNetworkPolicies.
    #[serde(flatten)]
    pub tiers: TierVerdict,
    /// First rule of a NetworkPolicy that allows the traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_by: Option<RuleRef>,
    /// Nearest rule of the NetworkPolicies if no rule allows the traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<Nearest>,
    /// Audited policies that would deny this allowed traffic; a ClusterNetworkPolicy has no namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denied_on_trial: Vec<Key>,
    /// Parts of the isolating policies that could not be interpreted and therefore grant nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<PolicyProblem>,
    /// Whether the sender of the denied traffic gets an answer, see [`crate::model::Denial::Reject`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rejected: bool,
    /// Remarks from sources other than policies; empty unless the caller adds some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// Cause of the verdict of a [`Judgement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// No NetworkPolicy isolates the pod in this direction, and no rule of a tier decides.
    NotIsolated,
    /// A rule of a NetworkPolicy allows the traffic.
    Rule,
    /// The pod is isolated and no rule allows the traffic.
    NoRule,
    /// An Accept or Deny rule of a ClusterNetworkPolicy decides, [`TierVerdict::decided_by`].
    TierRule,
    /// A pod always reaches its own address; through a Service, unless a tier denies the traffic there.
    Itself,
    /// A node always reaches its pods; NetworkPolicy always lets a pod reach its own node.
    OwnNode,
    /// A hostNetwork pod is its node; policies do not select it.
    HostNetwork,
    /// No rule allows the address of a Service or node, but some backend behind the address is allowed (every backend
    /// at another node's node port).
    Backend,
    /// A ClusterNetworkPolicy denies every backend behind the address of a Service (at another node's node port: some
    /// backend; at the sender's own backend: that one), regardless of the verdict on the address itself.
    BackendDenied,
}

/// Result of the ClusterNetworkPolicies for one direction at one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TierVerdict {
    /// Evaluated policies in order: the policies that select the pod and have rules in this direction, up to the
    /// deciding one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<TierPolicy>,
    /// Matching Pass rules; each of them skips the rest of its tier.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_by: Vec<MatchedTierRule>,
    /// The deciding Accept or Deny rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<MatchedTierRule>,
    /// Rules before the deciding one that would match if the pod has resolved a domain name to the address, where that
    /// is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unresolved: Vec<String>,
    /// Rules before the deciding one that do not match because their domain names are beyond the limit of the tables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names_beyond_limit: Vec<String>,
    /// Rules of audited policies that would accept the traffic if the pod has resolved a name of theirs, which is not
    /// recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names_on_trial: Vec<String>,
    /// Parts of the evaluated ClusterNetworkPolicies that could not be interpreted: their rules fail closed.
    #[serde(rename = "tier_problems", skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<TierProblem>,
}

/// A ClusterNetworkPolicy and its position in the order of evaluation.
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
pub struct MatchedTierRule {
    /// Policy of the rule.
    #[serde(flatten)]
    pub policy: TierPolicy,
    /// List of the rule: `spec.ingress` or `spec.egress`.
    pub direction: Direction,
    /// Index in that list, from 0.
    pub index: usize,
    /// Field `name` of the rule; empty if the rule has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Action of the rule.
    pub action: Action,
    /// Index of the matching peer; none if the rule applies to everyone. A peer of `networks` counts as one peer per
    /// network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<usize>,
    /// Index of the matching port; none if the rule has no protocols. A named port counts as one port per protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<usize>,
    /// Matched traffic, such as `TCP 80-90 from pods app=web of namespaces team=shop`.
    pub matches: String,
    /// The pod's DNS answer by which a domain name of the rule matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolution: Option<String>,
}

/// A rule of a NetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleRef {
    /// Policy of the rule.
    pub policy: Key,
    /// List of the rule: `spec.ingress` or `spec.egress`.
    pub direction: Direction,
    /// Index in that list, from 0.
    pub index: usize,
    /// Index of the matching item of `from` or `to`; none if the rule has no such list or the item does not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<usize>,
    /// Index of the matching item of `ports`; none if the rule has no such list or the item does not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<usize>,
    /// Allowed traffic, such as `TCP 80-90 from pods app=web of namespace shop`.
    pub allows: String,
}

/// A rule that does not allow the traffic, with the missing conditions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nearest {
    /// The rule.
    pub rule: RuleRef,
    /// Missing conditions, such as `port 443 is not in it`; one item for the ports, one for each peer.
    pub lacks: Vec<String>,
}

/// A part of a policy that could not be interpreted, or a policy over its budget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PolicyProblem {
    /// Policy with the problem.
    pub policy: Key,
    /// Description and path of the problem.
    pub problem: String,
    /// Whether the policy is valid but exceeds its budget: the policy is closed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub over_budget: bool,
}

/// A part of a ClusterNetworkPolicy that could not be interpreted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TierProblem {
    /// Policy with the problem.
    pub policy: String,
    /// Description and path of the problem.
    pub problem: String,
}

impl Judgement {
    /// Returns whether a Deny rule of a ClusterNetworkPolicy decides.
    #[must_use]
    pub fn is_denied_by_tier(&self) -> bool {
        self.cause == Cause::TierRule && self.verdict == Verdict::Deny
    }
}

impl Explanation {
    /// Builds an answer without a verdict.
    #[must_use]
    pub fn unknown(probe: &Probe, reason: String) -> Self {
        let (verdict, reason) = (Verdict::Unknown, Some(reason));
        Self::judged(probe, verdict, reason, None, None)
    }

    /// Builds an answer about traffic that is not translated.
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
            unanswered: false,
            templates: Vec::new(),
        }
    }
}
