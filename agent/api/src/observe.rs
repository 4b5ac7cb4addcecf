//! Wire types of the event stream to a watcher.

use std::fmt;
use std::net::IpAddr;

use netpold_core::cluster::AddressOwner;
use netpold_core::explain::{MatchedTierRule, Nearest, RuleRef};
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use serde::{Deserialize, Serialize};

use crate::events::{LostEvents, TrafficVerdict};
use crate::workload::WorkloadName;

/// Path of a [`ObserveRequest`](crate::filter::ObserveRequest) for events.
pub const OBSERVE_REQUEST: &str = "/observe";

/// Line of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ObserveLine {
    /// Observed event.
    Event(Box<ObservedEvent>),
    /// Lost events.
    Lost {
        /// Name of the node.
        node: String,
        /// Numbers of lost events since the last such line.
        #[serde(flatten)]
        lost: LostEvents,
    },
}

/// A dropped packet or a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedEvent {
    /// Time at which the agent read the event, in RFC 3339 with milliseconds, UTC.
    pub time: String,
    /// Name of the node.
    pub node: String,
    /// Verdict.
    pub verdict: TrafficVerdict,
    /// Reason: for a drop, as in the metrics; `audit` for an audited flow; for an allowed flow `allowed`, or `node` if
    /// the node itself began the flow.
    pub reason: String,
    /// Direction from the pod's view.
    pub direction: Direction,
    /// Pod; absent if it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Key>,
    /// Workload of the pod; absent if the pod has neither controller nor labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadName>,
    /// Host side of the pod's veth, for a drop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Address of the pod in the packet; absent if the packet was not parsed that far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// Port of the pod; 0 where the protocol has none.
    pub local_port: u16,
    /// Owner of the remote address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<AddressOwner>,
    /// Workload of the remote address, if the address belongs to a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_workload: Option<WorkloadName>,
    /// Remote address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// Remote port; 0 where the protocol has none.
    pub remote_port: u16,
    /// IP protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<IpProtocol>,
    /// Destination port, seen from the initiator; absent where the protocol has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Policy and rule, as `explain` reports them.
    #[serde(flatten)]
    pub attribution: Attribution,
}

/// Policies and rules that decided, by the state of the cluster at the time of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attribution {
    /// For a denial, the policies that isolate the pod, or the ClusterNetworkPolicy that denies; for an audited flow,
    /// the audited policies that would deny it; for an allowed flow, the policy that allows it. The first ones by name.
    pub policies: Vec<PolicyName>,
    /// Number of further policies.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_policies: usize,
    /// Rule that allows the packet, or rule of a ClusterNetworkPolicy that denies it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleName>,
    /// Rule that comes nearest, if no rule allows the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<RuleName>,
    /// Conditions that the nearest rule lacks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<String>,
    /// Whether the sender of the denied packet gets an answer (`netpold.io/deny: reject`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rejected: bool,
    /// Lines of `netpold explain` for the packet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub explanation: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Name of a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyName {
    /// `NetworkPolicy` or `ClusterNetworkPolicy`.
    pub kind: String,
    /// Namespace; empty for a ClusterNetworkPolicy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
}

/// Rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleName {
    /// Policy of the rule.
    #[serde(flatten)]
    pub policy: PolicyName,
    /// Index in `spec.ingress` or `spec.egress`, from 0.
    pub index: usize,
    /// Match of the rule, such as `TCP 80 from pods app=web of namespace shop`.
    pub matches: String,
}

impl PolicyName {
    /// Creates a name from a key; the key of a ClusterNetworkPolicy has no namespace.
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

/// Formats as `shop/web`, or `ClusterNetworkPolicy web`.
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

impl From<&MatchedTierRule> for RuleName {
    fn from(rule: &MatchedTierRule) -> Self {
        let (policy, matches) = (PolicyName::of_tier(&rule.policy.policy), rule.matches.clone());
        Self { policy, index: rule.index, matches }
    }
}

impl From<&Nearest> for RuleName {
    fn from(nearest: &Nearest) -> Self {
        Self::from(&nearest.rule)
    }
}
