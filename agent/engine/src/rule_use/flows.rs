//! Comparison of a sweep's flows with the flows of the previous sweep.

use std::collections::HashMap;
use std::net::IpAddr;

use netpold_core::cluster::Cluster;
use netpold_core::explain::{Allowing, PodFlow};
use netpold_core::model::{Direction, Pod};
use netpold_core::probe::IpProtocol;
use netpold_dataplane::conntrack::{FlowTuple, Sighting};
use netpold_ebpf::layout::{CT_EGRESS, CT_INGRESS, CT_NODE};
use netpold_ebpf::packet::protocol::{TCP, UDP, is_to_server};
use netpold_ebpf::reason::Reason;

use super::{RuleUse, SweepResult, millis};
use crate::events::{Dropped, unix_millis};
use crate::learn::FlowSighting;

/// Comparisons with rules in a sweep for new flows, and as many for known ones.
const BUDGET: usize = 400_000;
/// Share of the budget for the flows of one pod.
const SHARE: usize = BUDGET / 2;
/// Cost of a flow besides its comparisons with rules.
const FLOW: usize = 2;
/// Largest number of cached attributions; a full cache is cleared.
const CACHE_MAX: usize = 65_536;
/// Tolerance between two readings of a clock, as one part in this many of a second.
const MARGIN: u32 = 20;

/// A flow that the last sweep has visited.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VisitedFlow {
    way: u32,
    incarnation: u16,
    /// Whether the flow is still to be counted.
    pending: bool,
    /// Time stamp of the last attributed packet.
    seen: u32,
    /// Groups of allowing rules in each direction, if `epoch` is current.
    groups: [u32; 2],
    /// Numbers of the flow's records in each direction; 0: none.
    records: [u32; 2],
    epoch: u32,
    /// Whether the flow is counted as one that audited policies would deny.
    audited: bool,
}

/// Ways at which the budgets ended and the next sweep continues.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursors {
    new: u32,
    old: u32,
}

/// Attributions of flows to rules, for one state of the cluster.
#[derive(Debug)]
pub(super) struct RuleCache {
    /// State: the cluster's revision and the endpoints' version.
    of: Option<(u64, u64)>,
    /// Number of the state, from 1.
    epoch: u32,
    groups: Vec<Box<[u32]>>,
    by_rules: HashMap<Box<[u32]>, u32>,
    by_flow: HashMap<AllowedFlowKey, u32>,
}

/// Key of flows that the same rules allow: endpoint, direction, remote address, protocol, destination port.
pub(super) type AllowedFlowKey = (u32, Direction, IpAddr, u8, u16);

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

    fn group(&mut self, rules: Vec<u32>) -> u32 {
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

/// Attribution of a flow: groups of allowing rules and records in each direction, and whether audited policies would
/// deny the flow.
struct FlowAttribution {
    groups: [u32; 2],
    records: [u32; 2],
    audited: bool,
}

/// A budget of one sweep.
#[derive(Debug)]
struct SweepBudget {
    left: usize,
    by_endpoint: HashMap<u32, usize>,
    /// First way of this sweep: the last sweep handled the ways before.
    from: u32,
    /// Way at which the budget ended.
    ended: Option<u32>,
}

impl SweepBudget {
    fn new(from: u32) -> Self {
        Self { left: BUDGET, by_endpoint: HashMap::new(), from, ended: None }
    }

    fn allows(&mut self, way: u32, endpoint: u32) -> bool {
        if way < self.from {
            return false;
        }
        if self.left == 0 {
            self.ended.get_or_insert(way);
            return false;
        }
        self.by_endpoint.get(&endpoint).is_none_or(|spent| *spent < SHARE)
    }

    fn spend(&mut self, endpoint: u32, cost: usize) {
        self.left = self.left.saturating_sub(cost);
        *self.by_endpoint.entry(endpoint).or_default() += cost;
    }
}

/// One sweep.
pub struct Round<'u> {
    of: &'u mut RuleUse,
    cluster: &'u Cluster,
    /// Flows of the last sweep that this one has not visited yet, the next one last.
    before: Vec<VisitedFlow>,
    after: Vec<VisitedFlow>,
    new: SweepBudget,
    old: SweepBudget,
    missed: u64,
    wall: u64,
    now: Option<u32>,
}

impl<'u> Round<'u> {
    pub(super) fn new(of: &'u mut RuleUse, cluster: &'u Cluster) -> Self {
        let mut before = std::mem::take(&mut of.last.known);
        before.reverse();
        let Cursors { new, old } = of.last.cursors;
        let after = Vec::with_capacity(before.len());
        let (new, old) = (SweepBudget::new(new), SweepBudget::new(old));
        Self { of, cluster, before, after, new, old, missed: 0, wall: unix_millis(), now: None }
    }

    /// Ends the sweep after all flows.
    #[must_use]
    pub fn done(self) -> SweepResult {
        let unattributed = self.before.iter().filter(|known| known.pending).count() as u64;
        let cursors =
            Cursors { new: self.new.ended.unwrap_or(0), old: self.old.ended.unwrap_or(0) };
        let missed = self.missed + unattributed;
        SweepResult { known: self.after, missed, cursors, now: self.now, wall: self.wall }
    }

    /// Processes a flow of the table. Call in the order of the table.
    pub fn meet(&mut self, at: &Sighting<'_>) {
        self.now = Some(at.now);
        let (incarnation, seen) = (at.control.incarnation(), at.control.seen());
        let fresh = VisitedFlow { way: at.way, incarnation, seen, ..VisitedFlow::default() };
        match self.before_at(at.way) {
            Some(known) if known.incarnation == incarnation => {
                if !known.pending && known.seen == seen {
                    return self.after.push(known);
                }
                let met = self.attribute(at, known, known.pending);
                self.after.push(met.map_or(known, |met| self.renewed(fresh, met)));
            }
            known => {
                if let Some(known) = known {
                    // Flows that used the way in between.
                    let between = incarnation.wrapping_sub(known.incarnation).saturating_sub(1);
                    self.missed += u64::from(between) + u64::from(known.pending);
                } else if self.was_there(at) {
                    // The flow moved, or an earlier agent has counted it.
                    return self.after.push(fresh);
                }
                let met = self.attribute(at, fresh, true);
                let pending = VisitedFlow { pending: true, ..fresh };
                self.after.push(met.map_or(pending, |met| self.renewed(fresh, met)));
            }
        }
    }

    fn renewed(&self, fresh: VisitedFlow, met: FlowAttribution) -> VisitedFlow {
        let FlowAttribution { groups, records, audited } = met;
        VisitedFlow { groups, records, epoch: self.of.cache.epoch, audited, ..fresh }
    }

    /// Returns the flow of the last sweep in this way.
    fn before_at(&mut self, way: u32) -> Option<VisitedFlow> {
        while let Some(known) = self.before.pop_if(|known| known.way <= way) {
            if known.way == way {
                return Some(known);
            }
            self.missed += u64::from(known.pending);
        }
        None
    }

    /// Returns whether an unknown flow existed at the last sweep already: it has had no packet since.
    fn was_there(&self, at: &Sighting<'_>) -> bool {
        let since = match (self.of.last.now, self.of.counted_until) {
            (Some(last), _) => at.now.wrapping_sub(last),
            (None, Some(until)) => {
                let ticks = self.wall.saturating_sub(until) * u64::from(at.hz) / 1000;
                u32::try_from(ticks).unwrap_or(u32::MAX / 2)
            }
            (None, None) => return false,
        };
        at.control.age(at.now) > since.saturating_add(at.hz / MARGIN)
    }

    /// Marks the rules that allow a flow, and records the flow; `None` if it has to wait for the next sweep.
    fn attribute(
        &mut self,
        at: &Sighting<'_>,
        known: VisitedFlow,
        is_new: bool,
    ) -> Option<FlowAttribution> {
        let VisitedFlow { mut groups, mut records, mut audited, .. } = known;
        let last = self.wall.saturating_sub(millis(at.idle()));
        if known.epoch != self.of.cache.epoch || is_new {
            let tuple = at.tuple()?;
            let budget = if is_new { &mut self.new } else { &mut self.old };
            if !budget.allows(at.way, tuple.endpoint) {
                return None;
            }
            let flags = at.control.flags();
            let mut cost = FLOW;
            groups = [0; 2];
            if is_new {
                self.of.opened.met(&tuple, flags, Reason::Allowed);
            }
            // Packets of the node itself need no rule.
            let ingress = flags & (CT_INGRESS | CT_NODE) == CT_INGRESS;
            let directions =
                [(ingress, Direction::Ingress), (flags & CT_EGRESS != 0, Direction::Egress)];
            for (index, (_, direction)) in directions.into_iter().enumerate().filter(|(_, it)| it.0)
            {
                groups[index] = self.group(&tuple, direction, &mut cost);
                let on_trial = !audited && self.audit(&tuple, direction, &mut cost);
                audited |= on_trial;
                let met = FlowSighting { endpoint: tuple.endpoint, at: last, is_new, on_trial };
                // A flow keeps its first record: the other side may be gone by now.
                let is_answer = tuple.protocol == UDP && answers(&tuple, direction);
                if is_answer && directions.iter().all(|(is_there, _)| *is_there) {
                    // The flow began in the other direction.
                    records[index] = 0;
                } else if !is_new && self.of.recorder.has(records[index]) {
                    self.of.recorder.again(records[index], last);
                } else {
                    records[index] = self.record(&tuple, direction, met, &mut cost);
                }
            }
            let budget = if is_new { &mut self.new } else { &mut self.old };
            budget.spend(tuple.endpoint, cost);
        } else {
            records.iter().for_each(|record| self.of.recorder.again(*record, last));
        }
        for group in groups {
            for rule in &self.of.cache.groups[group as usize] {
                self.of.records.used(*rule, last, is_new);
            }
        }
        Some(FlowAttribution { groups, records, audited })
    }

    /// Records the flow; returns the number of its record, 0 if it has none.
    fn record(
        &mut self,
        tuple: &FlowTuple,
        direction: Direction,
        met: FlowSighting,
        cost: &mut usize,
    ) -> u32 {
        let RuleUse { pods, recorder, resolved, .. } = &mut *self.of;
        let Some(pod) = pods.of(tuple.endpoint) else { return 0 };
        // For TCP the table knows the initiator. Requests of the own node need no rule.
        let is_answer = tuple.protocol == UDP && answers(tuple, direction);
        let direction = match is_answer && !self.cluster.is_node_of(pod, tuple.remote) {
            true => opposite(direction),
            false => direction,
        };
        let cluster = self.cluster;
        let former = |address| pods.former(cluster, address, met.at).map(|pod| &**pod);
        let id = recorder.meet(cluster, pod_flow(pod, tuple, direction), former, met, cost);
        if direction == Direction::Egress {
            recorder.resolved_to(id, resolved.names(&pod.key, tuple.remote));
        }
        id
    }

    /// Returns whether audited policies would deny a flow.
    fn audit(&mut self, tuple: &FlowTuple, direction: Direction, cost: &mut usize) -> bool {
        let RuleUse { pods, trials, resolved, .. } = &mut *self.of;
        let Some(pod) = pods.of(tuple.endpoint) else { return false };
        let flow = pod_flow(pod, tuple, direction);
        trials.meet((self.cluster, resolved), tuple, flow, kind(tuple, direction), cost)
    }

    fn group(&mut self, tuple: &FlowTuple, direction: Direction, cost: &mut usize) -> u32 {
        let kind = kind(tuple, direction);
        if let Some(group) = self.of.cache.by_flow.get(&kind) {
            return *group;
        }
        let RuleUse { records, pods, cache, resolved, .. } = &mut *self.of;
        let Some(pod) = pods.of(tuple.endpoint) else { return 0 };
        let allowing = Allowing::new(self.cluster).with_resolved(resolved);
        let watched = records.granting(allowing, (tuple.endpoint, pod), direction);
        let indexes: Vec<_> = watched.iter().map(|(index, _)| *index).collect();
        let flow = pod_flow(pod, tuple, direction);
        let (cluster, wall) = (self.cluster, self.wall);
        let former = |address| pods.former(cluster, address, wall).map(|pod| &**pod);
        let allowed = allowing.rules(&indexes, flow, former);
        *cost += allowed.compared;
        let place = |(policy, rule): (u32, u32)| watched[policy as usize].1 + rule;
        let mut rules: Vec<u32> = allowed.rules.into_iter().map(place).collect();
        rules.extend(
            allowed
                .cluster_rules
                .iter()
                .filter_map(|(name, rule)| records.of_cluster(name, direction, *rule)),
        );
        let group = cache.group(rules);
        if cache.by_flow.len() < CACHE_MAX {
            cache.by_flow.insert(kind, group);
        }
        group
    }
}

fn kind(tuple: &FlowTuple, direction: Direction) -> AllowedFlowKey {
    (tuple.endpoint, direction, tuple.remote, tuple.protocol, port(tuple, direction))
}

/// Returns whether the ports show that packets of a direction are a server's answers. A UDP server's answer without a
/// known request (the entry has ended, or never existed) begins a flow in the table.
fn answers(tuple: &FlowTuple, direction: Direction) -> bool {
    let FlowTuple { local_port, remote_port, .. } = *tuple;
    let (source, destination) = match direction {
        Direction::Ingress => (remote_port, local_port),
        Direction::Egress => (local_port, remote_port),
    };
    is_to_server(destination, source)
}

const fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::Ingress => Direction::Egress,
        Direction::Egress => Direction::Ingress,
    }
}

/// Returns the destination port.
fn port(tuple: &FlowTuple, direction: Direction) -> u16 {
    match direction {
        Direction::Ingress => tuple.local_port,
        Direction::Egress => tuple.remote_port,
    }
}

fn pod_flow<'p>(pod: &'p Pod, tuple: &FlowTuple, direction: Direction) -> PodFlow<'p> {
    let protocol = IpProtocol(tuple.protocol);
    let port = if protocol.has_ports() { port(tuple, direction) } else { 0 };
    PodFlow { pod, direction, remote: tuple.remote, protocol, port }
}

/// Returns the flow of a dropped packet; `None` if the packet could not be parsed or was not dropped by policy.
pub(super) fn dropped<'p>(pod: &'p Pod, dropped: &Dropped) -> Option<PodFlow<'p>> {
    let tuple = FlowTuple {
        endpoint: dropped.endpoint,
        remote: dropped.remote?,
        local_port: dropped.local_port,
        remote_port: dropped.remote_port,
        protocol: dropped.protocol?,
    };
    let is_answer = matches!(tuple.protocol, TCP | UDP) && answers(&tuple, dropped.direction);
    let direction = if is_answer { opposite(dropped.direction) } else { dropped.direction };
    dropped.is_denial().then(|| pod_flow(pod, &tuple, direction))
}
