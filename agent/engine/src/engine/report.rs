//! The engine's part of `netpold status`.

use std::collections::BTreeMap;

use netpold_api::status::{
    AgentStatus, DropCount, EndpointStatus, RecentDrop, TableStatus, UplinkStatus,
};
use netpold_core::bindings::BindingProblem as Unbound;
use netpold_core::cluster::is_subject;
use netpold_core::compile::Compiler;
use netpold_core::explain::{Explainer, ResolvedNames};
use netpold_core::first_names::first_names;
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use netpold_dataplane::Dataplane;
use netpold_dataplane::conntrack::{FlowCounts, PassResult};
use netpold_ebpf::layout::{LEARNED_BUCKETS, NAME_WAYS};
use netpold_ebpf::reason::Reason;

use super::Engine;
use super::counters::drops_by_reason;
use super::interfaces::{NodeInterfaces, pod_of};
use super::reconciler::Reconciler;
use super::secondary;
use crate::events::Dropped;

/// Maximum number of distinct drops explained per status: each explanation walks over policies.
const EXPLAINED: usize = 16;
/// First line of the explanation of a [`Reason::ServiceBackend`].
const AFTER_TRANSLATION: &str = "judged at the packet's address and port after the node's Service \
                                 translation; where nothing was translated, only rules for the \
                                 address itself count";
/// Problem after a boot without a source.
const RESTORED: &str = "the source is not in sync yet: the last good state is enforced until it is";
/// Maximum number of pods or devices named in a problem.
const NAMED: usize = 5;

impl Engine {
    /// Returns the engine's part of the status.
    #[must_use]
    pub fn report(&self, dropped: &[Dropped]) -> AgentStatus {
        let Reconciler { compiler, dataplane, revision, .. } = &self.reconciler;
        let health = &self.health;
        let endpoints = endpoints(&self.reconciler, &self.interfaces);
        let resolved = self.reconciler.resolved_or_none();
        AgentStatus {
            in_sync: health.held.is_none(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: compiler.cluster().node_name().to_owned(),
            revision: *revision,
            policies: compiler.cluster().policies().len(),
            tables: tables(compiler, &resolved),
            conntrack: flow_tables(health.census.as_ref(), health.observed.as_ref()),
            drops: drops(dataplane),
            recent_drops: recent_drops(self, dropped, &resolved),
            repairs: health.repairs().values().sum(),
            repaired: health.repairs().iter().map(|(k, n)| ((*k).to_owned(), *n)).collect(),
            waiting: waiting(compiler, &self.interfaces),
            devices: self.interfaces.judging_devices(dataplane),
            uplinks: uplinks(dataplane),
            not_enforced: secondary::not_enforced(self),
            problems: problems(self, &endpoints),
            endpoints,
            ..AgentStatus::default()
        }
    }
}

/// Returns the effects of other tools or pods on packets of this node, by the reason of the Event on the Node.
#[must_use]
pub(super) fn wrong_with_node(engine: &Engine) -> BTreeMap<&'static str, Vec<String>> {
    let Engine { reconciler, interfaces, interference, .. } = engine;
    let unjudged = interference.unjudged(reconciler, interfaces).into_iter();
    let unjudged = unjudged.map(|problem| format!("Packets are not judged: {problem}"));
    BTreeMap::from([
        ("PacketsNotJudged", unjudged.collect()),
        ("PacketsWithoutProof", interference.unproven(reconciler, interfaces)),
    ])
}

/// Returns the problems for Events on the Node: those of [`wrong_with_node`], and devices with refused packets.
#[must_use]
pub fn to_tell_of_node(engine: &Engine) -> BTreeMap<&'static str, Vec<String>> {
    let mut all = wrong_with_node(engine);
    let bindings = engine.bindings.problems(engine.reconciler.compiler.cluster());
    let unnamed = bindings.iter().filter(|problem| matches!(problem, Unbound::Unnamed { .. }));
    let unnamed = unnamed.map(|problem| format!("Unknown device: {problem}"));
    let doors = door_problem(&engine.interfaces).into_iter();
    let doors = doors.map(|problem| format!("Unknown device: {problem}"));
    all.insert("UnknownDevice", doors.chain(unnamed).collect());
    all
}

/// Returns the problem of untrusted devices that let packets of another network namespace in.
fn door_problem(interfaces: &NodeInterfaces) -> Option<String> {
    let mut doors: Vec<&str> = interfaces.foreign_devices().collect();
    doors.sort_unstable();
    if doors.is_empty() {
        return None;
    }
    let names = first_names(doors.iter(), NAMED);
    Some(format!(
        "{names} on top of a link of another network namespace: packets that arrive by it reach no pod and do \
         not leave the node; a pod with NET_ADMIN may have created it; if it belongs to the node, list it in \
         --trusted-devices"
    ))
}

/// Returns the reasons why policy is not in force, or may not stay in force.
#[must_use]
pub fn hindrances(engine: &Engine) -> Vec<String> {
    let of_node = wrong_with_node(engine).into_values().flatten();
    let kept = engine.health.keeping_problems().cloned();
    engine.health.attach_problems().chain(kept).chain(of_node).collect()
}

/// Returns the pods of this node that policy can select, one entry per interface.
fn endpoints(reconciler: &Reconciler, interfaces: &NodeInterfaces) -> Vec<EndpointStatus> {
    let Reconciler { compiler, dataplane, .. } = reconciler;
    let cluster = compiler.cluster();
    let mode = dataplane.hooks().mode().to_string();
    let mut listed: BTreeMap<(Key, Option<u32>), EndpointStatus> = BTreeMap::new();
    let endpoints: Vec<_> = compiler.endpoints().filter(|endpoint| !endpoint.waiting).collect();
    for endpoint in &endpoints {
        let isolated = [endpoint.ingress, endpoint.egress];
        let status = EndpointStatus {
            interface: interfaces.veth(endpoint.ifindex).map(str::to_owned),
            ifindex: Some(endpoint.ifindex),
            addresses: reconciler.addresses_of(endpoint),
            isolated: chosen(isolated),
            rejects: chosen(endpoint.rejects),
            observed: endpoint.observed,
            hook: reconciler.is_pod(endpoint.ifindex).then(|| mode.clone()),
            xdp: dataplane.pod_xdp().mode(endpoint.ifindex).map(|mode| mode.to_string()),
            pod: endpoint.pod.clone(),
        };
        listed.insert((endpoint.pod.clone(), Some(endpoint.ifindex)), status);
    }
    let local = cluster.pods().values();
    for pod in local.filter(|pod| pod.node == cluster.node_name() && is_subject(pod)) {
        if !endpoints.iter().any(|endpoint| endpoint.is_of(pod)) {
            let status = EndpointStatus {
                pod: pod.key.clone(),
                interface: None,
                ifindex: None,
                addresses: pod.addresses.clone(),
                isolated: Vec::new(),
                rejects: Vec::new(),
                observed: false,
                hook: None,
                xdp: None,
            };
            listed.insert((pod.key.clone(), None), status);
        }
    }
    listed.into_values().collect()
}

/// Returns the directions for which `is_true` is set.
fn chosen(is_true: [bool; 2]) -> Vec<Direction> {
    let directions = Direction::BOTH.into_iter().zip(is_true);
    directions.filter_map(|(direction, is_true)| is_true.then_some(direction)).collect()
}

/// Returns the interfaces that are denied because their pod is unknown.
fn waiting(compiler: &Compiler, interfaces: &NodeInterfaces) -> Vec<String> {
    let name = |index: u32| match interfaces.veth(index) {
        Some(name) => name.to_owned(),
        None => index.to_string(),
    };
    compiler.endpoints().filter(|endpoint| endpoint.waiting).map(|e| name(e.ifindex)).collect()
}

fn problems(engine: &Engine, endpoints: &[EndpointStatus]) -> Vec<String> {
    let Engine { reconciler, bindings, interfaces, health, interference, .. } = engine;
    let Reconciler { compiler, dataplane, pace, restored, .. } = reconciler;
    let failure = health.failure().map(|reason| {
        let left_out = left_out(endpoints);
        format!("not enforced yet: {reason}; the previous state stays in force, {left_out}")
    });
    let bindings = bindings.problems(compiler.cluster());
    let waiting = pace.waiting_namespaces().into_iter().map(|namespace| {
        format!(
            "namespace {namespace}: changes of large Services are compiled in the background: in force soon, or \
             later if they are frequent"
        )
    });
    let held = health.held.iter().cloned();
    held.chain(restored.then(|| RESTORED.to_owned()))
        .chain(failure)
        .chain(health.keeping_problems().cloned())
        .chain(health.attach_problems())
        .chain(dataplane.uplink_xdp().problems().iter().cloned())
        .chain(dataplane.pod_xdp().problems())
        .chain(interference.unjudged(reconciler, interfaces))
        .chain(interference.unproven(reconciler, interfaces))
        .chain(door_problem(interfaces))
        .chain(compiler.problems().into_iter().map(|problem| problem.to_string()))
        .chain(bindings.iter().map(ToString::to_string))
        .chain(secondary::refused_claims(compiler.cluster()))
        .chain(waiting)
        .chain(reconciler.succession.problem())
        .collect()
}

/// Returns the fill levels of the policy tables, and of the programs' table of resolved addresses.
pub(super) fn tables(compiler: &Compiler, resolved: &ResolvedNames) -> Vec<TableStatus> {
    let policy = compiler.fill().into_iter().map(|fill| TableStatus {
        name: fill.table.to_string(),
        used: fill.used.into(),
        capacity: fill.capacity.into(),
    });
    let resolved = TableStatus {
        name: "resolved addresses".to_owned(),
        used: resolved.len() as u64,
        capacity: u64::from(LEARNED_BUCKETS) * NAME_WAYS as u64,
    };
    policy.chain([resolved]).collect()
}

/// Returns recent drops, explained by the current policies.
fn recent_drops(engine: &Engine, dropped: &[Dropped], resolved: &ResolvedNames) -> Vec<RecentDrop> {
    let Engine { reconciler, interfaces, .. } = engine;
    let compiler = &reconciler.compiler;
    let mut distinct = BTreeMap::new();
    for drop in dropped.iter().rev().filter(|drop| drop.is_denial() || drop.is_audit()) {
        if distinct.len() < EXPLAINED && !distinct.contains_key(&drop.key()) {
            distinct.insert(drop.key(), drop);
        }
    }
    let explainer = Explainer::new(compiler.cluster()).with_resolved(resolved);
    let explain = |(key, drop): (_, &Dropped)| {
        (key, explain(&explainer, pod_of(compiler, drop.endpoint).as_ref(), drop))
    };
    let explanations: BTreeMap<_, _> = distinct.into_iter().map(explain).collect();
    let recent = dropped.iter().rev().map(|drop| RecentDrop {
        at: drop.unix_millis / 1000,
        pod: engine.pod_name(drop).unwrap_or_else(|| match interfaces.veth(drop.ifindex) {
            Some(name) => name.to_owned(),
            None => interfaces.label(drop.ifindex),
        }),
        direction: drop.direction,
        packet: drop.to_string(),
        reason: drop.reason.to_owned(),
        explanation: explanations.get(&drop.key()).cloned().unwrap_or_default(),
    });
    recent.collect()
}

/// Returns the lines that explain why the current policies deny a packet; none if the packet or its pod is not known
/// well enough.
pub(super) fn explain(explainer: &Explainer<'_>, pod: Option<&Key>, drop: &Dropped) -> Vec<String> {
    let judgement = || {
        let (protocol, remote) = (IpProtocol(drop.protocol?), drop.remote?);
        let port = match drop.direction {
            Direction::Ingress => drop.local_port,
            Direction::Egress => drop.remote_port,
        };
        let explainer = if drop.is_audit() { explainer.with_trials() } else { *explainer };
        explainer.judge(pod?, drop.direction, remote, protocol, port)
    };
    let after_translation = drop.reason == Reason::ServiceBackend.as_str();
    let lines = judgement().map(|judgement| judgement.lines()).unwrap_or_default();
    let note = after_translation.then(|| AFTER_TRANSLATION.to_owned());
    note.into_iter().chain(lines).collect()
}

fn uplinks(dataplane: &Dataplane) -> Vec<UplinkStatus> {
    let status = dataplane.uplink_xdp().attached().map(|uplink| UplinkStatus {
        interface: uplink.name.clone(),
        mode: uplink.mode.to_string(),
    });
    status.collect()
}

/// Returns the nonzero counters of reasons that drop.
fn drops(dataplane: &Dataplane) -> Vec<DropCount> {
    let counted = drops_by_reason(dataplane).into_iter().filter(|(.., packets)| *packets > 0);
    let count = |(direction, reason, packets): (Direction, Reason, u64)| DropCount {
        reason: reason.as_str().into(),
        direction,
        packets,
    };
    counted.map(count).collect()
}

/// Names the pods without a program, while new pods get none.
fn left_out(endpoints: &[EndpointStatus]) -> String {
    let without = endpoints.iter().filter(|e| e.hook.is_none() && !e.addresses.is_empty());
    let pods: Vec<&Key> = without.map(|endpoint| &endpoint.pod).collect();
    if pods.is_empty() {
        return "new pods are NOT enforced".to_owned();
    }
    format!("new pods are NOT enforced: {}", first_names(pods.iter(), NAMED))
}

/// Returns the fill of the flow tables, and that of the tables of observed flows unless these are empty.
fn flow_tables(tracked: Option<&PassResult>, observed: Option<&PassResult>) -> Vec<TableStatus> {
    let status = |name: &str, census: &FlowCounts| TableStatus {
        name: name.to_owned(),
        used: census.used(),
        capacity: census.capacity,
    };
    let of = |names: [&str; 2], pass: &PassResult| {
        [status(names[0], &pass.v4), status(names[1], &pass.v6)]
    };
    let tracked = tracked.map(|pass| of(["IPv4 flows", "IPv6 flows"], pass));
    let observed = observed.filter(|pass| !pass.is_empty());
    let observed = observed.map(|pass| of(["observed IPv4 flows", "observed IPv6 flows"], pass));
    tracked.into_iter().chain(observed).flatten().collect()
}
