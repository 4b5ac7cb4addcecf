//! Recorded flows: workload, peer and port.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use netpold_core::model::{Direction, DomainName, Key};
use netpold_core::probe::IpProtocol;
use serde::{Deserialize, Serialize};

use crate::workload::Workload;

/// Path of the request for an [`LearnAnswer`].
pub const LEARN_REQUEST: &str = "/learn";

/// Remote side of flows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LearnedPeer<W = Workload> {
    /// Pods.
    Workload(W),
    /// Service, by one of its addresses; the backend is unknown.
    Service(Key),
    /// Node of the pod.
    Node,
    /// Any other address: outside, or another node's.
    Address(IpAddr),
}

impl<W> LearnedPeer<W> {
    /// Converts the workload.
    pub fn map<V>(self, of: impl FnOnce(W) -> V) -> LearnedPeer<V> {
        match self {
            Self::Workload(workload) => LearnedPeer::Workload(of(workload)),
            Self::Service(key) => LearnedPeer::Service(key),
            Self::Node => LearnedPeer::Node,
            Self::Address(address) => LearnedPeer::Address(address),
        }
    }
}

impl fmt::Display for LearnedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(workload) => workload.fmt(f),
            Self::Service(key) => write!(f, "svc/{key}"),
            Self::Node => f.write_str("own node"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Flows of a workload with one peer at one port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObservedFlow {
    /// Workload of the pods.
    pub workload: Workload,
    /// Direction from the pods' view.
    pub direction: Direction,
    /// Remote side.
    pub peer: LearnedPeer,
    /// IP protocol.
    pub protocol: IpProtocol,
    /// Destination port; 0 where the protocol has none.
    pub port: u16,
    /// Number of flows that passed.
    pub flows: u64,
    /// Number of these flows that audited policies would have denied at their start.
    pub on_trial: u64,
    /// Number of dropped packets that the kernel reported; the rate of reports is limited.
    pub denied: u64,
    /// Time of the first observation, in seconds since the epoch.
    pub first: u64,
    /// Time of the last packet, in seconds since the epoch.
    pub last: u64,
    /// Domain names in the pods' rules, as of the time of the flows, that the pods resolved to the peer's address.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub names: BTreeSet<DomainName>,
}

/// Address with its workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerAddress {
    /// Address.
    pub address: IpAddr,
    /// Workload.
    pub workload: Workload,
    /// Time of the last flow with the address, in seconds since the epoch.
    pub last: u64,
}

/// Formats as `shop app=web ingress from shop app=client, TCP 80`.
impl fmt::Display for ObservedFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, direction, peer, protocol, port, .. } = self;
        let word = if *direction == Direction::Ingress { "from" } else { "to" };
        write!(f, "{workload} {direction} {word} {peer}, {protocol}")?;
        if protocol.has_ports() { write!(f, " {port}") } else { Ok(()) }
    }
}

/// Records of one agent, or of several together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LearnAnswer {
    /// Name of the node; several are separated by commas.
    pub node: String,
    /// Time of the answer, in seconds since the epoch.
    pub as_of: u64,
    /// Start of the recording, in seconds since the epoch.
    pub since: u64,
    /// Flows by workload, direction, peer, protocol and port.
    pub flows: Vec<ObservedFlow>,
    /// Number of flows left out for lack of room, by the workload's namespace.
    pub left_out: BTreeMap<String, u64>,
    /// Number of flows of all namespaces that ended before they could be recorded.
    pub missed_flows: u64,
}

impl LearnAnswer {
    /// Keeps only the flows of a namespace (`None`: of every namespace) with a packet at or after `since`.
    pub fn select(&mut self, namespace: Option<&str>, since: u64) {
        let is_selected = |name: &str| namespace.is_none_or(|namespace| name == namespace);
        self.flows.retain(|flow| is_selected(&flow.workload.namespace) && flow.last >= since);
        self.left_out.retain(|name, _| is_selected(name));
    }
}

/// Merges the records of several nodes' agents.
#[must_use]
pub fn merge(answers: Vec<(String, LearnAnswer)>) -> LearnAnswer {
    type FlowSubject = (Workload, Direction, LearnedPeer, IpProtocol, u16);
    let mut flows: BTreeMap<FlowSubject, ObservedFlow> = BTreeMap::new();
    let mut all = LearnAnswer { since: u64::MAX, ..LearnAnswer::default() };
    let mut nodes = Vec::new();
    for (node, answer) in answers {
        nodes.push(node);
        all.as_of = all.as_of.max(answer.as_of);
        all.since = all.since.min(answer.since);
        all.missed_flows = all.missed_flows.saturating_add(answer.missed_flows);
        for (namespace, flows) in answer.left_out {
            let sum = all.left_out.entry(namespace).or_default();
            *sum = sum.saturating_add(flows);
        }
        for flow in answer.flows {
            let ObservedFlow { workload, direction, peer, protocol, port, .. } = flow.clone();
            match flows.entry((workload, direction, peer, protocol, port)) {
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(flow);
                }
                std::collections::btree_map::Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.flows = known.flows.saturating_add(flow.flows);
                    known.on_trial = known.on_trial.saturating_add(flow.on_trial);
                    known.denied = known.denied.saturating_add(flow.denied);
                    known.first = known.first.min(flow.first);
                    known.last = known.last.max(flow.last);
                    known.names.extend(flow.names);
                }
            }
        }
    }
    nodes.sort();
    nodes.dedup();
    all.node = nodes.join(",");
    all.since = if all.since == u64::MAX { 0 } else { all.since };
    all.flows = flows.into_values().collect();
    all
}
