//! The cases with all policies in audit mode (`netpold.io/enforcement: audit`): every flow passes, and exactly the
//! flows that the oracle denies are recorded, at each end. With the policies enforced, the same flows are dropped.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use netpold_core::model::{Change, Direction, Enforcement};
use netpold_dataplane::conntrack::Sighting;
use netpold_engine::events::Dropped;
use netpold_engine::rule_use::RuleUse;
use netpold_testkit::flows::{HZ, MemoryFlowTables};
use netpold_testkit::oracle::{Oracle, OracleVerdict};

use crate::conformance::case::{self, Case, Check, Side, Step};
use crate::conformance::node::CompiledNode;
use crate::conformance::{convert, probe, tables_allow};

/// The nodes of the topology.
const NODES: [&str; 2] = ["n1", "n2"];

/// Node with its agent's records of flows.
struct Audited {
    node: CompiledNode,
    used: RuleUse,
    /// Revision of the state.
    revision: u64,
}

impl Audited {
    fn new(name: &'static str) -> Self {
        Self { node: CompiledNode::new(name), used: RuleUse::default(), revision: 0 }
    }

    fn become_state(&mut self, objects: &[Change]) -> Result<()> {
        self.revision += 1;
        self.node.become_state(objects)
    }

    /// Begins a flow. Returns whether it passes, and the directions in which it is recorded.
    fn begin(&mut self, check: &Check) -> (bool, BTreeSet<Direction>) {
        let Self { node, used, revision } = self;
        let mut recorded = BTreeSet::new();
        let passes = node.begin(check, |direction, flows| {
            let told = sweep(used, node, *revision, flows);
            for flow in &told {
                assert!(is_of(flow, check, direction), "{direction} of {check}: {flow:?}");
            }
            recorded.extend(told.iter().map(|flow| flow.direction));
        });
        (passes, recorded)
    }
}

/// Returns the records that the agent makes of a flow table in one sweep. A second sweep finds the table empty, so
/// that the next flow counts as new in any slot.
fn sweep(
    used: &mut RuleUse,
    node: &CompiledNode,
    revision: u64,
    flows: &MemoryFlowTables,
) -> Vec<Dropped> {
    let mut told = Vec::new();
    for flows in [Some(flows), None] {
        let mut round = used.begin(node.compiler(), revision, false);
        if let Some(flows) = flows {
            let now = flows.now.load(std::sync::atomic::Ordering::Relaxed);
            flows.for_each(|way, control, words| {
                round.visit_flow(&Sighting::new(way, control, (now, HZ), words));
            });
        }
        let met = round.finish();
        used.end(node.compiler(), met);
        told.extend(used.take_new_flows().audited);
    }
    told
}

/// Returns whether a record belongs to the flow.
fn is_of(flow: &Dropped, check: &Check, direction: Direction) -> bool {
    let (local, remote) = match direction {
        Direction::Ingress => (&check.to, &check.from),
        Direction::Egress => (&check.from, &check.to),
    };
    let port = match direction {
        Direction::Ingress => flow.local_port,
        Direction::Egress => flow.remote_port,
    };
    flow.direction == direction
        && flow.local == Some(local.address)
        && flow.remote == Some(remote.address)
        && flow.protocol == Some(check.protocol.0)
        && port == check.port
}

/// Returns the objects with every policy in audit mode.
fn on_trial(objects: &[Change]) -> Vec<Change> {
    let mut objects = objects.to_vec();
    for object in &mut objects {
        if let Change::Policy(policy) = object {
            policy.enforcement = Enforcement::Audit;
        }
        if let Change::ClusterPolicy(policy) = object {
            policy.enforcement = Enforcement::Audit;
        }
    }
    objects
}

/// Begins a flow at all nodes. Returns whether it passes all of them, and the directions in which it is recorded.
fn begin(nodes: &mut [Audited], check: &Check) -> (bool, BTreeSet<Direction>) {
    let mut recorded = BTreeSet::new();
    let mut passes = true;
    for node in nodes {
        let (passed, directions) = node.begin(check);
        passes &= passed;
        recorded.extend(directions);
    }
    (passes, recorded)
}

/// Begins a flow. Returns whether it passes, the directions in which it is recorded, and whether policy would deny
/// it. A flow to a Service would be denied if it is recorded at its sender, or with every backend.
fn is_recorded(
    nodes: &mut [Audited],
    enforced: &Oracle,
    check: &Check,
) -> (bool, BTreeSet<Direction>, bool) {
    let (mut passes, recorded) = begin(nodes, check);
    let (to, protocol, port) = (check.to.address, check.protocol.0, check.port);
    if !enforced.is_frontend(to, protocol, port) || !recorded.is_empty() {
        let denied = !recorded.is_empty();
        return (passes, recorded, denied);
    }
    let mut all = true;
    for (address, port) in enforced.backends(to, protocol, port, true) {
        let to = Side { name: check.to.name.clone(), address };
        let (passed, recorded) = begin(nodes, &Check { to, port, ..check.clone() });
        passes &= passed;
        all &= !recorded.is_empty();
    }
    (passes, recorded, all)
}

/// Returns whether the flow is to a Service without a backend: no policy denies it, and no pod receives it.
fn leads_nowhere(state: &Oracle, check: &Check) -> bool {
    let (to, protocol, port) = (check.to.address, check.protocol.0, check.port);
    state.is_frontend(to, protocol, port) && state.backends(to, protocol, port, true).is_empty()
}

/// Returns the failed checks of a step, and the number of flows that would be denied.
fn failures(nodes: &mut [Audited], step: &Step) -> Result<(Vec<String>, usize)> {
    let (objects, _) = convert(step)?;
    let trial = on_trial(&objects);
    for node in &mut *nodes {
        node.become_state(&trial)?;
    }
    let enforced: Oracle = objects.iter().cloned().collect();
    let audited: Oracle = trial.iter().cloned().collect();
    let (mut wrong, mut denied, mut nowhere) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for (number, check) in step.checks.iter().enumerate() {
        if leads_nowhere(&enforced, check) {
            nowhere.insert(number);
            continue;
        }
        let verdict = enforced.verdict(&probe(check));
        let (passes, recorded, would_deny) = is_recorded(nodes, &enforced, check);
        if !passes || audited.verdict(&probe(check)).allowed() != Some(true) {
            wrong.push(format!("{check}: does not pass"));
        }
        if Some(would_deny) != verdict.allowed().map(|allowed| !allowed) {
            wrong.push(format!("{check}: recorded at {recorded:?}, the oracle says {verdict:?}"));
        }
        if let OracleVerdict::Judged { egress, ingress } = verdict {
            let ends = [(Direction::Egress, egress), (Direction::Ingress, ingress)];
            let denying = ends.into_iter().filter(|(_, allows)| !allows);
            let denying: BTreeSet<Direction> = denying.map(|(direction, _)| direction).collect();
            if recorded != denying {
                wrong.push(format!("{check}: recorded at {recorded:?}, denied at {denying:?}"));
            }
        }
        if would_deny {
            denied.insert(number);
        }
    }
    for node in &mut *nodes {
        node.become_state(&objects)?;
    }
    for (number, check) in step.checks.iter().enumerate() {
        let nodes = nodes.iter().map(|audited| &audited.node);
        if nowhere.contains(&number) {
            continue;
        }
        if tables_allow(nodes, &enforced, check) == denied.contains(&number) {
            wrong.push(format!("{check}: recorded and dropped are not the same"));
        }
    }
    Ok((wrong, denied.len()))
}

/// Asserts that the cases hold. Returns the numbers of recorded flows and of all flows.
fn hold(cases: &[Case]) -> Result<(usize, usize)> {
    let (mut wrong, mut denied, mut all) = (Vec::new(), 0, 0);
    for case in cases {
        let mut nodes = NODES.map(Audited::new);
        for (number, step) in (1..).zip(&case.steps) {
            let (failed, recorded) =
                failures(&mut nodes, step).with_context(|| case.name.clone())?;
            let first = failed.first();
            wrong.extend(first.map(|first| {
                format!("{} step {number} ({} wrong): {first}", case.name, failed.len())
            }));
            denied += recorded;
            all += step.checks.len();
        }
    }
    assert!(wrong.is_empty(), "{} steps wrong\n{}", wrong.len(), wrong.join("\n"));
    Ok((denied, all))
}

#[test]
fn cases_on_trial_pass_and_are_recorded() -> Result<()> {
    let cases = case::load_all()?;
    let (denied, all) = hold(&cases)?;
    assert!(cases.len() >= 170 && denied > 5_000 && all > 55_000, "{denied} of {all}");
    Ok(())
}

#[test]
fn service_cases_on_trial_pass_and_are_recorded() -> Result<()> {
    let (denied, all) = hold(&case::load_services()?)?;
    assert!(denied > 100 && all > 1_100, "{denied} of {all}");
    Ok(())
}
