//! Comparison of a sweep's flows with the flows of the previous sweep.

use std::collections::HashMap;
use std::time::Duration;

use netpold_core::cluster::Cluster;
use netpold_core::compile::Compiler;
use netpold_core::explain::Allowing;
use netpold_core::model::Direction;
use netpold_dataplane::conntrack::{EndpointFlow, Sighting};
use netpold_ebpf::layout::{CT_EGRESS, CT_INGRESS, CT_NODE};
use netpold_ebpf::packet::protocol::UDP;
use netpold_ebpf::reason::Reason;

use super::RuleUse;
use super::flows::{CACHE_MAX, Cursors, SweepResult, VisitedFlow, answers, kind, pod_flow};
use crate::events::unix_millis;
use crate::learn::FlowSighting;

/// Time after which a policy change is certainly in force, and its time forgotten.
const LATELY: Duration = Duration::from_mins(10);
/// Comparisons with rules in a sweep for new flows, and the same number for known ones.
const BUDGET: usize = 400_000;
/// Share of the budget for the flows of one pod.
const SHARE: usize = BUDGET / 2;
/// Cost of a flow besides its comparisons with rules.
const FLOW: usize = 2;
/// Tolerance between two readings of a clock: 1/`MARGIN` of a second.
const MARGIN: u32 = 20;

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

impl RuleUse {
    /// Begins a sweep. `revision` is the number of the cluster's state; `restored`: the state is the last good one, not
    /// the source's.
    pub fn begin<'u>(
        &'u mut self,
        compiler: &'u Compiler,
        revision: u64,
        restored: bool,
    ) -> SweepRound<'u> {
        let version = self.pods.read(compiler);
        let changed = self.cache.follow((revision, version));
        self.recorder.begin(changed, unix_millis());
        if changed {
            self.trials.forget();
            let lately = unix_millis().saturating_sub(millis(LATELY));
            self.changed.retain(|_, at| *at > lately);
            let (cluster, pods) = (compiler.cluster(), self.pods.local());
            self.records.follow(cluster, pods, &self.changed, (self.last.wall, restored));
        }
        SweepRound::new(self, compiler.cluster())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// One sweep.
pub struct SweepRound<'u> {
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

impl<'u> SweepRound<'u> {
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
    pub fn finish(self) -> SweepResult {
        let unattributed = self.before.iter().filter(|known| known.pending).count() as u64;
        let cursors =
            Cursors { new: self.new.ended.unwrap_or(0), old: self.old.ended.unwrap_or(0) };
        let missed = self.missed + unattributed;
        SweepResult { known: self.after, missed, cursors, now: self.now, wall: self.wall }
    }

    /// Processes a flow of the table. Call in the order of the table.
    pub fn visit_flow(&mut self, at: &Sighting<'_>) {
        self.now = Some(at.now);
        let (incarnation, seen) = (at.control.incarnation(), at.control.last_seen());
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
                self.of.opened.add_flow(&tuple, flags, Reason::Allowed);
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
                // A flow keeps its first record: the other side may have been removed since.
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
        tuple: &EndpointFlow,
        direction: Direction,
        met: FlowSighting,
        cost: &mut usize,
    ) -> u32 {
        let RuleUse { pods, recorder, resolved, .. } = &mut *self.of;
        let Some(pod) = pods.pod_of(tuple.endpoint) else { return 0 };
        // For TCP the table records the initiator. Requests of this node need no rule.
        let is_answer = tuple.protocol == UDP && answers(tuple, direction);
        let direction = match is_answer && !self.cluster.is_node_of(pod, tuple.remote) {
            true => direction.opposite(),
            false => direction,
        };
        let cluster = self.cluster;
        let former = |address| pods.former(cluster, address, met.at).map(|pod| &**pod);
        let id = recorder.record_flow(cluster, pod_flow(pod, tuple, direction), former, met, cost);
        if direction == Direction::Egress {
            recorder.resolved_to(id, resolved.names(&pod.key, tuple.remote));
        }
        id
    }

    /// Returns whether audited policies would deny a flow.
    fn audit(&mut self, tuple: &EndpointFlow, direction: Direction, cost: &mut usize) -> bool {
        let RuleUse { pods, trials, resolved, .. } = &mut *self.of;
        let Some(pod) = pods.pod_of(tuple.endpoint) else { return false };
        let flow = pod_flow(pod, tuple, direction);
        trials.evaluate_flow((self.cluster, resolved), tuple, flow, kind(tuple, direction), cost)
    }

    fn group(&mut self, tuple: &EndpointFlow, direction: Direction, cost: &mut usize) -> u32 {
        let kind = kind(tuple, direction);
        if let Some(group) = self.of.cache.by_flow.get(&kind) {
            return *group;
        }
        let RuleUse { records, pods, cache, resolved, .. } = &mut *self.of;
        let Some(pod) = pods.pod_of(tuple.endpoint) else { return 0 };
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
