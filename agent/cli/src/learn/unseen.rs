//! Traffic that policies would allow although it was never observed.
//!
//! A policy selects by labels and blocks. So it also allows traffic of workloads with the same labels and more, of
//! peers without labels of their own, of the other addresses of a block, and of pods with an address in a block.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use netpold_api::workload::Workload;
use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::model::Direction;

use super::policy::{LearnedPolicy, ObservedPeers, PeerSpec};
use super::ports::LearnedPorts;

/// Peer of such traffic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnseenPeer {
    /// Pods.
    Workload(Workload),
    /// Addresses of no pod.
    Block(IpNet),
}

impl fmt::Display for UnseenPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(workload) => workload.fmt(f),
            Self::Block(block) => block.fmt(f),
        }
    }
}

/// Traffic that would be allowed and was never observed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnseenTraffic {
    /// Workload of the pods.
    pub workload: Workload,
    /// Direction from the pods' view.
    pub direction: Direction,
    /// Remote side.
    pub peer: UnseenPeer,
    /// Ports.
    pub ports: LearnedPorts,
}

/// Formats as `shop app=web ingress from shop app=client: TCP 80`.
impl fmt::Display for UnseenTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, direction, peer, ports } = self;
        let word = if *direction == Direction::Ingress { "from" } else { "to" };
        write!(f, "{workload} {direction} {word} {peer}: {ports}")
    }
}

/// Addresses of each workload.
type WorkloadAddresses = BTreeMap<Workload, BTreeSet<IpAddr>>;

/// Returns the addresses of all pods that policies may match, by namespace and workload.
fn addresses(cluster: &Cluster) -> BTreeMap<String, WorkloadAddresses> {
    let mut all: BTreeMap<String, WorkloadAddresses> = BTreeMap::new();
    for pod in cluster.pods().values().filter(|pod| is_subject(pod)) {
        if let Some(workload) = Workload::of_pod(pod) {
            let of = all.entry(pod.key.namespace.clone()).or_default().entry(workload).or_default();
            of.extend(&pod.addresses);
        }
    }
    all
}

/// Returns the traffic that the policies allow to the workloads of a namespace, without the observed traffic.
pub(super) fn unseen(
    cluster: &Cluster,
    policies: &[LearnedPolicy],
    seen: &ObservedPeers,
    namespace: &str,
) -> Vec<UnseenTraffic> {
    let all = addresses(cluster);
    let mut unseen = Vec::new();
    for workload in all.get(namespace).into_iter().flat_map(WorkloadAddresses::keys) {
        let selecting: Vec<_> =
            policies.iter().filter(|policy| policy.workload.selects(workload)).collect();
        for direction in Direction::BOTH {
            let mut allowed: BTreeMap<UnseenPeer, LearnedPorts> = BTreeMap::new();
            let rules = selecting.iter().flat_map(|policy| &policy.rules[direction as usize]);
            for rule in rules {
                for (peer, _) in &rule.peers {
                    for other in matched_workloads(&all, peer) {
                        allowed.entry(other).or_default().add(&rule.ports);
                    }
                }
            }
            let known = seen.get(workload).map(|seen| &seen[direction as usize]);
            let was_seen = |peer: &UnseenPeer| {
                let spec = match peer {
                    UnseenPeer::Workload(workload) => PeerSpec::Pods(workload.clone()),
                    // Not every address of a wider block was observed.
                    UnseenPeer::Block(block) if block.prefix_len() < block.max_prefix_len() => {
                        return None;
                    }
                    UnseenPeer::Block(block) => PeerSpec::Block(*block),
                };
                // A rule that allows everything for one protocol allows more than the observed ports.
                let (ports, _) = known?.get(&spec)?;
                Some(LearnedPorts { all: false, some: ports.some.clone() })
            };
            unseen.extend(allowed.into_iter().filter_map(|(peer, ports)| {
                let ports = ports.without(&was_seen(&peer).unwrap_or_default());
                let workload = workload.clone();
                (!ports.is_empty()).then_some(UnseenTraffic { workload, direction, peer, ports })
            }));
        }
    }
    unseen
}

/// Returns the workloads and blocks that a peer matches.
fn matched_workloads(
    all: &BTreeMap<String, WorkloadAddresses>,
    peer: &PeerSpec,
) -> Vec<UnseenPeer> {
    match peer {
        PeerSpec::Pods(wanted) => {
            let there = all.get(&wanted.namespace).into_iter().flat_map(WorkloadAddresses::keys);
            let matched = there.filter(|workload| wanted.selects(workload));
            matched.map(|workload| UnseenPeer::Workload(workload.clone())).collect()
        }
        PeerSpec::Block(block) => {
            let pods = all
                .values()
                .flatten()
                .filter(|(_, addresses)| addresses.iter().any(|address| block.contains(address)));
            let pods = pods.map(|(workload, _)| UnseenPeer::Workload(workload.clone()));
            pods.chain([UnseenPeer::Block(*block)]).collect()
        }
    }
}
