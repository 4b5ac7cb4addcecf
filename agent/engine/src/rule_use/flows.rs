//! Flows of a sweep, and the rules that allow them.

use std::collections::HashMap;
use std::net::IpAddr;

use netpold_core::explain::PodFlow;
use netpold_core::model::{Direction, Pod};
use netpold_core::probe::IpProtocol;
use netpold_dataplane::conntrack::EndpointFlow;
use netpold_ebpf::packet::protocol::{TCP, UDP, is_to_server};

use crate::events::Dropped;

/// Maximum number of cached attributions; a full cache is cleared.
pub(super) const CACHE_MAX: usize = 65_536;

/// A flow that the last sweep has visited.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VisitedFlow {
    pub(super) way: u32,
    pub(super) incarnation: u16,
    /// Whether the flow is still to be counted.
    pub(super) pending: bool,
    /// Time stamp of the last attributed packet.
    pub(super) seen: u32,
    /// Groups of allowing rules in each direction, if `epoch` is current.
    pub(super) groups: [u32; 2],
    /// Numbers of the flow's records in each direction; 0: none.
    pub(super) records: [u32; 2],
    pub(super) epoch: u32,
    /// Whether the flow is counted as one that audited policies would deny.
    pub(super) audited: bool,
}

/// Ways at which the budgets ended and the next sweep continues.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursors {
    pub(super) new: u32,
    pub(super) old: u32,
}

/// Attributions of flows to rules, for one state of the cluster.
#[derive(Debug)]
pub(super) struct RuleCache {
    /// State: the cluster's revision and the endpoints' version.
    pub(super) of: Option<(u64, u64)>,
    /// Number of the state, from 1.
    pub(super) epoch: u32,
    pub(super) groups: Vec<Box<[u32]>>,
    pub(super) by_rules: HashMap<Box<[u32]>, u32>,
    pub(super) by_flow: HashMap<AllowedFlowKey, u32>,
}

/// Key of flows that the same rules allow: endpoint, direction, remote address, protocol, destination port.
pub(super) type AllowedFlowKey = (u32, Direction, IpAddr, u8, u16);

/// Result of a sweep, for the next one.
#[derive(Debug, Default)]
pub struct SweepResult {
    /// Flows in the order of the table.
    pub(super) known: Vec<VisitedFlow>,
    /// Number of flows that ended before they could be counted and are not reported yet.
    pub(super) missed: u64,
    pub(super) cursors: Cursors,
    /// Time of the sweep, in jiffies.
    pub(super) now: Option<u32>,
    /// Time of the sweep by the wall clock, in milliseconds since the epoch; before the first sweep, start of counting.
    pub(super) wall: u64,
}

impl Default for RuleCache {
    fn default() -> Self {
        // Group 0: no rule.
        let none: Box<[u32]> = Box::default();
        let by_rules = HashMap::from([(none.clone(), 0)]);
        Self { of: None, epoch: 0, groups: vec![none], by_rules, by_flow: HashMap::new() }
    }
}

impl RuleCache {
    /// Clears the cache after a change of the cluster's state, or if the cache is full; returns whether it did.
    pub(super) fn follow(&mut self, state: (u64, u64)) -> bool {
        let changed = self.of != Some(state) || self.by_flow.len() >= CACHE_MAX;
        if changed {
            let epoch = self.epoch.wrapping_add(1).max(1);
            *self = Self { of: Some(state), epoch, ..Self::default() };
        }
        changed
    }

    /// Lets the next sweep clear the cache.
    pub(super) fn outdate(&mut self) {
        self.of = None;
    }

    pub(super) fn group(&mut self, rules: Vec<u32>) -> u32 {
        if let Some(group) = self.by_rules.get(&rules[..]) {
            return *group;
        }
        let group = self.groups.len() as u32;
        let rules = rules.into_boxed_slice();
        self.groups.push(rules.clone());
        self.by_rules.insert(rules, group);
        group
    }
}

pub(super) fn kind(tuple: &EndpointFlow, direction: Direction) -> AllowedFlowKey {
    (tuple.endpoint, direction, tuple.remote, tuple.protocol, port(tuple, direction))
}

/// Returns whether the ports show that packets of a direction are a server's answers. A UDP server's answer without a
/// known request (the entry has ended, or never existed) begins a flow in the table.
pub(super) fn answers(tuple: &EndpointFlow, direction: Direction) -> bool {
    let EndpointFlow { local_port, remote_port, .. } = *tuple;
    let (source, destination) = match direction {
        Direction::Ingress => (remote_port, local_port),
        Direction::Egress => (local_port, remote_port),
    };
    is_to_server(destination, source)
}

/// Returns the destination port.
pub(super) fn port(tuple: &EndpointFlow, direction: Direction) -> u16 {
    match direction {
        Direction::Ingress => tuple.local_port,
        Direction::Egress => tuple.remote_port,
    }
}

pub(super) fn pod_flow<'p>(
    pod: &'p Pod,
    tuple: &EndpointFlow,
    direction: Direction,
) -> PodFlow<'p> {
    let protocol = IpProtocol(tuple.protocol);
    let port = if protocol.has_ports() { port(tuple, direction) } else { 0 };
    PodFlow { pod, direction, remote: tuple.remote, protocol, port }
}

/// Returns the flow of a dropped packet; `None` if the packet could not be parsed or was not dropped by policy.
pub(super) fn denied_flow<'p>(pod: &'p Pod, dropped: &Dropped) -> Option<PodFlow<'p>> {
    let tuple = EndpointFlow {
        endpoint: dropped.endpoint,
        remote: dropped.remote?,
        local_port: dropped.local_port,
        remote_port: dropped.remote_port,
        protocol: dropped.protocol?,
    };
    let is_answer = matches!(tuple.protocol, TCP | UDP) && answers(&tuple, dropped.direction);
    let direction = if is_answer { dropped.direction.opposite() } else { dropped.direction };
    dropped.is_denial().then(|| pod_flow(pod, &tuple, direction))
}
