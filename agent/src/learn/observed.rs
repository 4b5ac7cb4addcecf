//! Flows as they are recorded: who, with whom, on which port.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use serde::{Deserialize, Serialize};

use super::workload::Workload;

/// The other side of flows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Peer<W = Workload> {
    /// Pods.
    Workload(W),
    /// A Service, by one of its addresses; whom it led to is not known.
    Service(Key),
    /// The node that the pod is on.
    Node,
    /// Any other address: outside, or another node's.
    Address(IpAddr),
}

impl<W> Peer<W> {
    /// The same with the workload in another form.
    pub fn map<V>(self, of: impl FnOnce(W) -> V) -> Peer<V> {
        match self {
            Self::Workload(workload) => Peer::Workload(of(workload)),
            Self::Service(key) => Peer::Service(key),
            Self::Node => Peer::Node,
            Self::Address(address) => Peer::Address(address),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(workload) => workload.fmt(f),
            Self::Service(key) => write!(f, "svc/{key}"),
            Self::Node => f.write_str("own node"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Flows of a workload with one peer on one port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Observed {
    /// Whose pods.
    pub workload: Workload,
    /// As the pods see it.
    pub direction: Direction,
    /// The other side.
    pub peer: Peer,
    /// IP protocol.
    pub protocol: IpProtocol,
    /// Destination port; 0 where the protocol has none.
    pub port: u16,
    /// Flows that passed.
    pub flows: u64,
    /// Those of them that policies on trial would have denied when they began.
    pub on_trial: u64,
    /// Packets that were dropped and that the agent was told of, which is some of them.
    pub denied: u64,
    /// When the first was met, in seconds since the epoch.
    pub first: u64,
    /// When a packet was met last, in seconds since the epoch.
    pub last: u64,
}

/// The workload that had an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerAddress {
    /// The address.
    pub address: IpAddr,
    /// The workload.
    pub workload: Workload,
    /// When a flow with it was met last, in seconds since the epoch.
    pub last: u64,
}

/// `shop app=web ingress from shop app=client, TCP 80`
impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, direction, peer, protocol, port, .. } = self;
        let word = if *direction == Direction::Ingress { "from" } else { "to" };
        write!(f, "{workload} {direction} {word} {peer}, {protocol}")?;
        if protocol.has_ports() { write!(f, " {port}") } else { Ok(()) }
    }
}

/// What one agent has recorded, or several together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// Name of the node; of several, with commas between them.
    pub node: String,
    /// When this was so, in seconds since the epoch.
    pub as_of: u64,
    /// Since when flows are recorded, in seconds since the epoch.
    pub since: u64,
    /// By workload, direction, peer, protocol and port.
    pub flows: Vec<Observed>,
    /// Flows that there was no room for, by the workload's namespace.
    pub left_out: BTreeMap<String, u64>,
    /// Flows, of whatever namespace, that were over before they could be recorded.
    pub missed_flows: u64,
}

impl Answer {
    /// Leaves the flows of one namespace, and of those the ones with a packet at or after a time.
    pub fn select(&mut self, namespace: Option<&str>, since: u64) {
        let is_meant = |name: &str| namespace.is_none_or(|namespace| name == namespace);
        self.flows.retain(|flow| is_meant(&flow.workload.namespace) && flow.last >= since);
        self.left_out.retain(|name, _| is_meant(name));
    }
}

/// What the agents of several nodes have recorded together.
#[must_use]
pub fn merge(answers: Vec<(String, Answer)>) -> Answer {
    type Subject = (Workload, Direction, Peer, IpProtocol, u16);
    let mut flows: BTreeMap<Subject, Observed> = BTreeMap::new();
    let mut all = Answer { since: u64::MAX, ..Answer::default() };
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
            let Observed { workload, direction, peer, protocol, port, .. } = flow.clone();
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
