//! What a watcher is sent.

use std::fmt;
use std::net::IpAddr;

use netpold_core::cluster::Whose;
use netpold_core::explain::{Nearest, RuleRef, TierRule};
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use serde::{Deserialize, Serialize};

use crate::events::{Lost, Outcome};

/// A line of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Line {
    /// Something happened.
    Event(Box<Event>),
    /// Something was not seen.
    Lost {
        /// Name of the node.
        node: String,
        /// What, since the last such line.
        #[serde(flatten)]
        lost: Lost,
    },
}

/// A dropped packet, or a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When the agent read it, in RFC 3339 with milliseconds, UTC.
    pub time: String,
    /// Name of the node.
    pub node: String,
    /// Whether it passed.
    pub verdict: Outcome,
    /// Why it was dropped, as in the metrics; `audit`; `allowed`, or `node` if the node itself began the flow.
    pub reason: String,
    /// As the pod sees it.
    pub direction: Direction,
    /// Whose packet it is; none if the pod is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Key>,
    /// The host's side of its veth, of a drop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The pod's address in the packet; none if that was not understood so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// The pod's port; 0 where the protocol has none.
    pub local_port: u16,
    /// Whose the other side's address is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Whose>,
    /// The other side's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// The other side's port; 0 where the protocol has none.
    pub remote_port: u16,
    /// IP protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<IpProtocol>,
    /// Destination port, of the side that began; none where the protocol has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Which policy and rule, as `explain` says.
    #[serde(flatten)]
    pub attribution: Attribution,
}

/// Which policies and rules decided, by the cluster as it is when the line is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attribution {
    /// Of a denial, the policies that isolate the pod, or the ClusterNetworkPolicy that denies; of an audited
    /// flow, those on trial that would deny it; of an allowed one, the one that allows it. The first ones by
    /// name.
    pub policies: Vec<PolicyName>,
    /// How many more there are.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_policies: usize,
    /// The rule that allows it, or that denies it in a ClusterNetworkPolicy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleName>,
    /// If no rule allows it: the one that came nearest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<RuleName>,
    /// What that lacked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<String>,
    /// The lines of `netpold explain` about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub explanation: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A policy by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyName {
    /// `NetworkPolicy` or `ClusterNetworkPolicy`.
    pub kind: String,
    /// None of a ClusterNetworkPolicy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
}

/// A rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleName {
    /// The policy.
    #[serde(flatten)]
    pub policy: PolicyName,
    /// Index in `spec.ingress` or `spec.egress`, from 0.
    pub index: usize,
    /// What it matches, as `TCP 80 from pods app=web of namespace shop`.
    pub matches: String,
}

impl PolicyName {
    /// By key; that of a ClusterNetworkPolicy has no namespace.
    #[must_use]
    pub fn new(key: &Key) -> Self {
        let kind = if key.namespace.is_empty() { "ClusterNetworkPolicy" } else { "NetworkPolicy" };
        let Key { namespace, name } = key.clone();
        Self { kind: kind.to_owned(), namespace, name }
    }

    fn of_tier(name: &str) -> Self {
        Self::new(&Key::new("", name))
    }
}

/// `shop/web`, or `ClusterNetworkPolicy web`.
impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

impl From<&RuleRef> for RuleName {
    fn from(rule: &RuleRef) -> Self {
        let (policy, matches) = (PolicyName::new(&rule.policy), rule.allows.clone());
        Self { policy, index: rule.index, matches }
    }
}

impl From<&TierRule> for RuleName {
    fn from(rule: &TierRule) -> Self {
        let (policy, matches) = (PolicyName::of_tier(&rule.policy.policy), rule.matches.clone());
        Self { policy, index: rule.index, matches }
    }
}

impl From<&Nearest> for RuleName {
    fn from(nearest: &Nearest) -> Self {
        Self::from(&nearest.rule)
    }
}
