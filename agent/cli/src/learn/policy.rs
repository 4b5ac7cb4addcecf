//! Generated policies, and the observations that lead to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipnet::IpNet;
use netpold_api::learn::ObservedFlow;
use netpold_api::workload::Workload;
use netpold_core::labels::NAMESPACE_NAME;
use netpold_core::model::{
    ClusterPolicy, DomainName, IpBlock, Key, Peer, Policy, Requirement, Selector,
};

use super::ports::LearnedPorts;

/// Peer in the form that policies can name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerSpec {
    /// Pods of a namespace, by labels.
    Pods(Workload),
    /// Block of addresses.
    Block(IpNet),
}

impl PeerSpec {
    /// Returns the item of `from` or `to` for a policy of a namespace.
    #[must_use]
    pub fn peer(&self, namespace: &str) -> Peer {
        match self {
            Self::Pods(workload) => {
                let named =
                    Requirement::In(NAMESPACE_NAME.into(), vec![workload.namespace.clone()]);
                let other = workload.namespace != namespace;
                let namespaces = other.then(|| Selector { requirements: vec![named] });
                Peer::Pods { namespaces, pods: workload.selector() }
            }
            Self::Block(cidr) => Peer::Block(IpBlock { cidr: *cidr, except: Vec::new() }),
        }
    }
}

impl fmt::Display for PeerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pods(workload) => workload.fmt(f),
            Self::Block(block) => block.fmt(f),
        }
    }
}

/// Options of the generated policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnOptions {
    /// Namespace of the workloads.
    pub namespace: String,
    /// Prefix lengths of blocks, for IPv4 and IPv6.
    pub block_prefix: [u8; 2],
    /// Whether peers with protocols without ports are allowed everything.
    pub other_protocols: bool,
}

/// Observations of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sightings {
    /// Services by which the peer was reached.
    pub services: BTreeSet<Key>,
    /// Number of flows.
    pub flows: u64,
    /// Time of the last packet, in seconds since the epoch.
    pub last: u64,
}

/// Item of `ingress` or `egress`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedRule {
    /// Items of `from` or `to`.
    pub peers: Vec<(PeerSpec, Sightings)>,
    /// `ports`
    pub ports: LearnedPorts,
}

/// Policy for one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedPolicy {
    /// Selected workload.
    pub workload: Workload,
    /// Rules by direction: ingress, egress.
    pub rules: [Vec<LearnedRule>; 2],
    /// Domain names with the observations and ports of their addresses.
    pub names: Vec<(DomainName, LearnedPorts, Sightings)>,
    /// Policy that accepts the names, if there are any.
    pub of_names: Option<ClusterPolicy>,
    /// Flows with denied packets that the policies still deny; the denials yield no rule.
    pub denied: Vec<ObservedFlow>,
    /// Whether flows were observed, possibly without a rule.
    pub is_observed: bool,
    /// Policy in audit mode.
    pub policy: Policy,
}

/// Observed peers and ports of each workload, by direction.
pub(super) type ObservedPeers =
    BTreeMap<Workload, [BTreeMap<PeerSpec, (LearnedPorts, Sightings)>; 2]>;
