//! What the engine tells of itself, for `netpold status`.

use std::collections::BTreeMap;

use netpold_core::cluster::is_subject;
use netpold_core::explain::Explainer;
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use netpold_ebpf::reason::{self, Reason};

use super::Engine;
use crate::conntrack::{Census, Pass};
use crate::events::Dropped;
use crate::status::{
    DropCount, EndpointStatus, RecentDrop, Revision, Status, TableStatus, UplinkStatus,
};

/// Drops of the status that are explained, of those that differ: each takes a walk over policies.
const EXPLAINED: usize = 16;
/// First line of the explanation of a [`Reason::ServiceBackend`].
const AFTER_TRANSLATION: &str = "judged at the packet's address and port after the node's Service \
                                 translation; where nothing was translated, only rules for the \
                                 address itself count";
/// After a boot without a source.
const RESTORED: &str = "the source is not in sync yet: the last good state is enforced until it is";
/// Pods that a problem names, of those that it concerns.
const NAMED: usize = 5;

impl Engine {
    /// The parts of the status that the engine knows of.
    pub fn report(&mut self, dropped: &[Dropped]) -> Status {
        let endpoints = self.endpoints();
        Status {
            in_sync: self.held.is_none(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.compiler.cluster().node_name().to_owned(),
            revision: Revision { desired: self.desired, enforced: self.enforced },
            tables: self
                .compiler
                .fill()
                .iter()
                .map(|fill| TableStatus {
                    name: fill.table.to_string(),
                    used: fill.used.into(),
                    capacity: fill.capacity.into(),
                })
                .collect(),
            conntrack: self.census.as_ref().map(flow_tables).unwrap_or_default(),
            drops: self.drops(),
            recent_drops: self.explain_drops(dropped),
            repairs: self.repaired.values().sum(),
            repaired: self.repaired.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect(),
            waiting: self.waiting(),
            devices: self.judging_devices(),
            uplinks: self.uplinks(),
            problems: self.problems(&endpoints),
            endpoints,
            ..Status::default()
        }
    }

    /// What another tool on this node, or a pod, does to packets, by the reason of the Event on the node.
    #[must_use]
    pub fn wrong_with_node(&self) -> BTreeMap<&'static str, Vec<String>> {
        let unjudged = self.unjudged().into_iter();
        let unjudged = unjudged.map(|problem| format!("Packets are not judged: {problem}"));
        BTreeMap::from([
            ("PacketsNotJudged", unjudged.collect()),
            ("PacketsWithoutProof", self.unproven()),
        ])
    }

    /// The pod of an endpoint number.
    #[must_use]
    pub fn pod_of(&self, endpoint: u32) -> Option<Key> {
        self.compiler.endpoints().find(|e| e.id == endpoint && !e.waiting).map(|e| e.pod)
    }

    fn endpoints(&self) -> Vec<EndpointStatus> {
        let cluster = self.compiler.cluster();
        let mode = self.dataplane.mode().to_string();
        let mut listed: BTreeMap<(Key, Option<u32>), EndpointStatus> = BTreeMap::new();
        for endpoint in self.compiler.endpoints().filter(|endpoint| !endpoint.waiting) {
            let isolated = [endpoint.ingress, endpoint.egress];
            let status = EndpointStatus {
                interface: self.names.get(&endpoint.ifindex).cloned(),
                ifindex: Some(endpoint.ifindex),
                addresses: self.addresses_of(&endpoint),
                isolated: Direction::BOTH
                    .into_iter()
                    .zip(isolated)
                    .filter_map(|(direction, isolated)| isolated.then_some(direction))
                    .collect(),
                hook: self.is_pod(endpoint.ifindex).then(|| mode.clone()),
                xdp: self.dataplane.sent_mode(endpoint.ifindex).map(|mode| mode.to_string()),
                pod: endpoint.pod.clone(),
            };
            listed.insert((endpoint.pod, Some(endpoint.ifindex)), status);
        }
        let local = cluster.pods().values();
        for pod in local.filter(|pod| pod.node == cluster.node_name() && is_subject(pod)) {
            if !listed.keys().any(|(key, _)| *key == pod.key) {
                let status = EndpointStatus {
                    pod: pod.key.clone(),
                    interface: None,
                    ifindex: None,
                    addresses: pod.addresses.clone(),
                    isolated: Vec::new(),
                    hook: None,
                    xdp: None,
                };
                listed.insert((pod.key.clone(), None), status);
            }
        }
        listed.into_values().collect()
    }

    fn uplinks(&self) -> Vec<UplinkStatus> {
        let (attached, _) = self.dataplane.uplinks();
        attached
            .map(|uplink| UplinkStatus {
                interface: uplink.name.clone(),
                mode: uplink.mode.to_string(),
            })
            .collect()
    }

    /// Interfaces that are denied because nobody knows their pod.
    fn waiting(&self) -> Vec<String> {
        let waiting = self.compiler.endpoints().filter(|endpoint| endpoint.waiting);
        let name = |index: u32| self.names.get(&index).cloned();
        waiting.map(|e| name(e.ifindex).unwrap_or_else(|| e.ifindex.to_string())).collect()
    }

    fn problems(&self, endpoints: &[EndpointStatus]) -> Vec<String> {
        let failure = self.failure.iter().map(|f| {
            format!(
                "not enforced yet: {}; what was enforced stays, {}",
                f.reason,
                left_out(endpoints)
            )
        });
        let attach = self.attach_problems.iter().map(|(index, reason)| match index {
            0 => format!("leaving interfaces that are no longer judged at: {reason}"),
            index => format!("interface {index}: {reason}"),
        });
        let (_, uplinks) = self.dataplane.uplinks();
        let compile = self.compiler.problems().into_iter().map(|p| p.to_string());
        let bindings = self.bindings.problems(self.compiler.cluster());
        let pins = self.pin_problem.iter().cloned();
        let pins = pins.chain(self.state_problem.iter().cloned());
        let waiting = self.pace.waiting().into_iter().map(|namespace| {
            format!(
                "namespace {namespace}: changes of large Services wait until they are compiled beside all else: \
                 soon, or later if they are frequent"
            )
        });
        let restored = self.restored.then(|| RESTORED.to_owned());
        self.held
            .iter()
            .cloned()
            .chain(restored)
            .chain(failure)
            .chain(pins)
            .chain(attach)
            .chain(uplinks.iter().cloned())
            .chain(self.dataplane.sent_problems())
            .chain(self.unjudged())
            .chain(self.unproven())
            .chain(compile)
            .chain(bindings.iter().map(ToString::to_string))
            .chain(waiting)
            .chain(self.succession.problem())
            .collect()
    }

    /// Counters that are not zero, of reasons that drop.
    fn drops(&mut self) -> Vec<DropCount> {
        let mut drops = Vec::new();
        for direction in Direction::BOTH {
            for reason in Reason::ALL.into_iter().filter(|reason| reason.is_drop()) {
                let index = reason::counter(direction == Direction::Egress, reason);
                let packets = self.dataplane.counter(index);
                if packets > 0 {
                    drops.push(DropCount { reason: reason.as_str().into(), direction, packets });
                }
            }
        }
        drops
    }

    /// Recent drops with the reason that the current policies give.
    fn explain_drops(&self, dropped: &[Dropped]) -> Vec<RecentDrop> {
        let mut distinct = BTreeMap::new();
        let by_policy = [Reason::Policy, Reason::ServiceBackend].map(Reason::as_str);
        for drop in dropped.iter().rev().filter(|drop| by_policy.contains(&drop.reason)) {
            if distinct.len() < EXPLAINED && !distinct.contains_key(&drop.key()) {
                distinct.insert(drop.key(), drop);
            }
        }
        let explainer = Explainer::new(self.compiler.cluster());
        let explain = |(key, drop)| (key, self.explain(&explainer, drop));
        let explanations: BTreeMap<_, _> = distinct.into_iter().map(explain).collect();
        let explanation = |drop: &Dropped| explanations.get(&drop.key()).cloned();
        let recent = dropped.iter().rev();
        recent.map(|drop| self.recent_drop(drop, explanation(drop).unwrap_or_default())).collect()
    }

    fn explain(&self, explainer: &Explainer<'_>, drop: &Dropped) -> Vec<String> {
        let judgement = || {
            let pod = self.pod_of(drop.endpoint)?;
            let (protocol, remote) = (IpProtocol(drop.protocol?), drop.remote?);
            let port = match drop.direction {
                Direction::Ingress => drop.local_port,
                Direction::Egress => drop.remote_port,
            };
            explainer.judge(&pod, drop.direction, remote, protocol, port)
        };
        let lines = judgement().map(|judgement| judgement.lines()).unwrap_or_default();
        let after_translation = drop.reason == Reason::ServiceBackend.as_str();
        let note = after_translation.then(|| AFTER_TRANSLATION.to_owned());
        note.into_iter().chain(lines).collect()
    }

    fn recent_drop(&self, drop: &Dropped, explanation: Vec<String>) -> RecentDrop {
        let pod = self.pod_of(drop.endpoint);
        let interface = || match self.names.get(&drop.ifindex) {
            Some(name) => name.clone(),
            None => format!("interface {}", drop.ifindex),
        };
        RecentDrop {
            at: drop.unix_millis / 1000,
            pod: pod.map_or_else(interface, |pod| pod.to_string()),
            direction: drop.direction,
            packet: drop.to_string(),
            reason: drop.reason.to_owned(),
            explanation,
        }
    }
}

/// Which pods have no program, while new ones get none.
fn left_out(endpoints: &[EndpointStatus]) -> String {
    let without = endpoints.iter().filter(|e| e.hook.is_none() && !e.addresses.is_empty());
    let mut pods: Vec<String> = without.map(|endpoint| endpoint.pod.to_string()).collect();
    let more = pods.len().saturating_sub(NAMED);
    pods.truncate(NAMED);
    match (pods.is_empty(), more) {
        (true, _) => "new pods are NOT enforced".to_owned(),
        (false, 0) => format!("new pods are NOT enforced: {}", pods.join(", ")),
        (false, more) => {
            format!("new pods are NOT enforced: {} and {more} more", pods.join(", "))
        }
    }
}

fn flow_tables(pass: &Pass) -> Vec<TableStatus> {
    let used = |census: &Census| census.one_way + census.two_way + census.closed + census.busy;
    [("IPv4 flows", &pass.v4), ("IPv6 flows", &pass.v6)]
        .map(|(name, census)| TableStatus {
            name: name.to_owned(),
            used: used(census),
            capacity: census.capacity,
        })
        .to_vec()
}
