//! ClusterNetworkPolicies and their tiers.

use serde::{Deserialize, Serialize};

use crate::model::denial::Denial;
use crate::model::policy::{Enforcement, PolicyVersion, Rule};
use crate::model::selector::Selector;
use crate::model::traffic::Direction;

/// A ClusterNetworkPolicy (`policy.networking.k8s.io/v1alpha2`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClusterPolicy {
    /// `metadata.name`
    pub name: String,
    /// `spec.tier`
    pub tier: Tier,
    /// `spec.priority`, 0 to 1000: the lowest is evaluated first; equal ones are evaluated by name.
    pub priority: u16,
    /// `spec.subject`: the selected pods, without hostNetwork pods.
    pub subject: NamespacedPods,
    /// `spec.ingress`; the first matching rule decides. Its peers are never blocks or nodes.
    pub ingress: Vec<ClusterRule>,
    /// `spec.egress`
    pub egress: Vec<ClusterRule>,
    /// Invalid parts, such as `spec.egress[0].to[1]: …`; empty if all are valid. An Accept rule with an invalid part
    /// matches nothing, a Deny or Pass rule with one denies everything. An invalid `subject` selects every pod, and
    /// then Accept and Pass rules match nothing.
    pub problems: Vec<String>,
    /// Identifies this state of the object.
    #[serde(default)]
    pub version: PolicyVersion,
    /// Annotation `netpold.io/enforcement`.
    #[serde(default, skip_serializing_if = "Enforcement::is_enforce")]
    pub enforcement: Enforcement,
    /// Annotation `netpold.io/deny`, for the Deny rules; `None` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denial: Option<Denial>,
}

impl ClusterPolicy {
    /// The rules of a direction; an empty list does not affect the direction.
    #[must_use]
    pub fn rules(&self, direction: Direction) -> &[ClusterRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// `spec.tier`, in the order of evaluation; NetworkPolicies are evaluated between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tier {
    /// Before NetworkPolicy.
    Admin,
    /// After NetworkPolicy, for pods that no NetworkPolicy isolates in the direction.
    Baseline,
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Admin => "Admin",
            Self::Baseline => "Baseline",
        })
    }
}

/// Pods of namespaces: `spec.subject.namespaces` (every pod) or `spec.subject.pods`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamespacedPods {
    /// `namespaces`, or `pods.namespaceSelector`
    pub namespaces: Selector,
    /// `pods.podSelector`
    pub pods: Selector,
}

/// One item of a ClusterNetworkPolicy's `spec.ingress` or `spec.egress`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClusterRule {
    /// `name`; empty where absent.
    pub name: String,
    /// `action`
    pub action: Action,
    /// `from` or `to`, and `protocols`. A named port has no protocol in this API, so it is listed for each of the
    /// three.
    pub matches: Rule,
}

/// `action`
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Action {
    /// Allows; no further rule is evaluated.
    Accept,
    /// Denies; no further rule is evaluated.
    Deny,
    /// Skips the rest of the tier; the next tier decides.
    Pass,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Accept => "Accept",
            Self::Deny => "Deny",
            Self::Pass => "Pass",
        })
    }
}
