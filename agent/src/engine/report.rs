//! What the engine tells of itself, for `netpold status`.

use std::collections::BTreeMap;

use netpold_core::cluster::is_subject;
use netpold_core::explain::Explainer;
use netpold_core::model::{Direction, Key};
use netpold_core::probe::IpProtocol;
use netpold_ebpf::reason::Reason;

use super::measure::drops_by_reason;
use super::reconciler::Reconciler;
use super::{Engine, unsupported};
use crate::conntrack::{Census, Pass};
use crate::dataplane::Dataplane;
use crate::dataplane::attach::Hook;
use crate::events::Dropped;
use crate::status::{DropCount, EndpointStatus, RecentDrop, Status, TableStatus, UplinkStatus};

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
    #[must_use]
    pub fn report(&self, dropped: &[Dropped]) -> Status {
        let Reconciler { compiler, dataplane, revision, .. } = &self.reconciler;
        let health = &self.health;
        let endpoints = self.endpoints();
        let tables = compiler.fill().into_iter().map(|fill| TableStatus {
            name: fill.table.to_string(),
            used: fill.used.into(),
            capacity: fill.capacity.into(),
        });
        Status {
            in_sync: health.held.is_none(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: compiler.cluster().node_name().to_owned(),
            revision: *revision,
            policies: compiler.cluster().policies().len(),
            tables: tables.collect(),
            conntrack: health.census.as_ref().map(flow_tables).unwrap_or_default(),
            drops: drops(dataplane),
            recent_drops: self.explain_drops(dropped),
            repairs: health.repairs().values().sum(),
            repaired: health.repairs().iter().map(|(k, n)| ((*k).to_owned(), *n)).collect(),
            waiting: self.waiting(),
            devices: self.interfaces.judging_devices(dataplane),
            uplinks: uplinks(dataplane),
            problems: self.problems(&endpoints),
            endpoints,
            ..Status::default()
        }
    }

    /// Policies of which not everything counts, with their uids and the reasons, for Events. The key of a
    /// ClusterNetworkPolicy has no namespace.
    #[must_use]
    pub fn unsupported_policies(&self) -> BTreeMap<Key, (String, Vec<String>)> {
        let compiler = &self.reconciler.compiler;
        let cluster = compiler.cluster();
        let all = unsupported::unsupported_policies(compiler).into_iter();
        all.filter_map(|(key, reasons)| {
            let version = match key.namespace.as_str() {
                "" => cluster.cluster_policy(&key.name).map(|policy| &policy.version),
                _ => cluster.policies().get(&key).map(|policy| &policy.version),
            };
            let uid = version?.uid.clone();
            Some((key, (uid, reasons)))
        })
        .collect()
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

    /// What keeps policy from being in force, or from staying so.
    #[must_use]
    pub fn hindrances(&self) -> Vec<String> {
        let of_node = self.wrong_with_node().into_values().flatten();
        let kept = self.health.keeping_problems().cloned();
        self.health.attach_problems().chain(kept).chain(of_node).collect()
    }

    /// Where packets are not judged, for want of being seen.
    pub(super) fn unjudged(&self) -> Vec<String> {
        let label = |hook: Hook| self.interfaces.label(hook.ifindex);
        let order = self.reconciler.dataplane.hooks().order_problems();
        let order =
            order.map(|(hook, text)| format!("{} ({}): {text}", label(hook), hook.direction));
        order.chain(self.bypass.problems(&self.interfaces)).collect()
    }

    /// What is wrong with pods' packets where they leave, and by whose fault.
    pub(super) fn unproven(&self) -> Vec<String> {
        let name = |ifindex, id| {
            let pod = self.pod_of(id).map_or_else(String::new, |pod| format!("pod {pod} "));
            format!("{pod}({})", self.interfaces.label(ifindex))
        };
        self.missing.problems(self.reconciler.dataplane.proof(), &name)
    }

    /// The pod of an endpoint number.
    #[must_use]
    pub fn pod_of(&self, endpoint: u32) -> Option<Key> {
        let mut endpoints = self.reconciler.compiler.endpoints();
        endpoints.find(|e| e.id == endpoint && !e.waiting).map(|e| e.pod)
    }

    fn endpoints(&self) -> Vec<EndpointStatus> {
        let Reconciler { compiler, dataplane, .. } = &self.reconciler;
        let cluster = compiler.cluster();
        let mode = dataplane.hooks().mode().to_string();
        let mut listed: BTreeMap<(Key, Option<u32>), EndpointStatus> = BTreeMap::new();
        for endpoint in compiler.endpoints().filter(|endpoint| !endpoint.waiting) {
            let isolated = [endpoint.ingress, endpoint.egress];
            let status = EndpointStatus {
                interface: self.interfaces.veth(endpoint.ifindex).map(str::to_owned),
                ifindex: Some(endpoint.ifindex),
                addresses: self.reconciler.addresses_of(&endpoint),
                isolated: Direction::BOTH
                    .into_iter()
                    .zip(isolated)
                    .filter_map(|(direction, isolated)| isolated.then_some(direction))
                    .collect(),
                hook: self.reconciler.is_pod(endpoint.ifindex).then(|| mode.clone()),
                xdp: dataplane.pod_xdp().mode(endpoint.ifindex).map(|mode| mode.to_string()),
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

    /// Interfaces that are denied because nobody knows their pod.
    fn waiting(&self) -> Vec<String> {
        let endpoints = self.reconciler.compiler.endpoints();
        let name = |index: u32| match self.interfaces.veth(index) {
            Some(name) => name.to_owned(),
            None => index.to_string(),
        };
        endpoints.filter(|endpoint| endpoint.waiting).map(|e| name(e.ifindex)).collect()
    }

    fn problems(&self, endpoints: &[EndpointStatus]) -> Vec<String> {
        let Reconciler { compiler, dataplane, pace, restored, .. } = &self.reconciler;
        let health = &self.health;
        let failure = health.failure().map(|reason| {
            let left_out = left_out(endpoints);
            format!("not enforced yet: {reason}; what was enforced stays, {left_out}")
        });
        let bindings = self.bindings.problems(compiler.cluster());
        let waiting = pace.waiting().into_iter().map(|namespace| {
            format!(
                "namespace {namespace}: changes of large Services wait until they are compiled beside all else: \
                 soon, or later if they are frequent"
            )
        });
        let held = health.held.iter().cloned();
        held.chain(restored.then(|| RESTORED.to_owned()))
            .chain(failure)
            .chain(health.keeping_problems().cloned())
            .chain(health.attach_problems())
            .chain(dataplane.uplink_xdp().problems().iter().cloned())
            .chain(dataplane.pod_xdp().problems())
            .chain(self.unjudged())
            .chain(self.unproven())
            .chain(compiler.problems().into_iter().map(|problem| problem.to_string()))
            .chain(bindings.iter().map(ToString::to_string))
            .chain(waiting)
            .chain(self.reconciler.succession.problem())
            .collect()
    }

    /// Recent drops with the reason that the current policies give.
    fn explain_drops(&self, dropped: &[Dropped]) -> Vec<RecentDrop> {
        let mut distinct = BTreeMap::new();
        for drop in dropped.iter().rev().filter(|drop| drop.is_denial() || drop.is_audit()) {
            if distinct.len() < EXPLAINED && !distinct.contains_key(&drop.key()) {
                distinct.insert(drop.key(), drop);
            }
        }
        let explainer = Explainer::new(self.reconciler.compiler.cluster());
        let explain = |(key, drop): (_, &Dropped)| {
            (key, explain(&explainer, self.pod_of(drop.endpoint).as_ref(), drop))
        };
        let explanations: BTreeMap<_, _> = distinct.into_iter().map(explain).collect();
        let explanation = |drop: &Dropped| explanations.get(&drop.key()).cloned();
        let recent = dropped.iter().rev();
        recent.map(|drop| self.recent_drop(drop, explanation(drop).unwrap_or_default())).collect()
    }

    fn recent_drop(&self, drop: &Dropped, explanation: Vec<String>) -> RecentDrop {
        let pod = self.pod_of(drop.endpoint);
        let interface = || match self.interfaces.veth(drop.ifindex) {
            Some(name) => name.to_owned(),
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

/// Why the policies of now deny that, in lines; none: the packet or its pod is not known well enough.
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
    let lines = judgement().map(|judgement| judgement.lines()).unwrap_or_default();
    let after_translation = drop.reason == Reason::ServiceBackend.as_str();
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

/// Counters that are not zero, of reasons that drop.
fn drops(dataplane: &Dataplane) -> Vec<DropCount> {
    let counted = drops_by_reason(dataplane).into_iter().filter(|(.., packets)| *packets > 0);
    let count = |(direction, reason, packets): (Direction, Reason, u64)| DropCount {
        reason: reason.as_str().into(),
        direction,
        packets,
    };
    counted.map(count).collect()
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
