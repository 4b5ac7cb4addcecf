//! Check by the explainer that policies allow the observed flows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netpold_api::learn::{LearnedPeer, ObservedFlow};
use netpold_api::workload::Workload;
use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::explain::{Cause, Explainer, Judgement, Verdict};
use netpold_core::model::{Change, Enforcement, Key, Pod, Policy, SharedStr};

use super::grants::NoPolicyReason;
use super::names;
use super::policy::LearnedPolicy;

/// Most pods judged per workload: policies do not distinguish the others.
const ASKED: usize = 4;

/// Observed flow that would be denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedFlow {
    /// Flow.
    pub flow: ObservedFlow,
    /// Reason of the denial.
    pub reason: String,
}

impl fmt::Display for DeniedFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.flow, self.reason)
    }
}

/// Builds the cluster with the policies in force instead of the namespace's others. An observed workload without a pod
/// gets a stand-in for its future pods.
pub(super) fn enforced<'f>(
    objects: Vec<Change>,
    flows: impl Iterator<Item = &'f ObservedFlow>,
    policies: &[LearnedPolicy],
    namespace: &str,
) -> Cluster {
    let mut wanted: BTreeSet<&Workload> = BTreeSet::new();
    for flow in flows {
        wanted.insert(&flow.workload);
        if let LearnedPeer::Workload(peer) = &flow.peer {
            wanted.insert(peer);
        }
    }
    for object in &objects {
        if let Change::Pod(pod) = object
            && is_subject(pod)
            && !pod.addresses.is_empty()
            && let Some(workload) = Workload::of_pod(pod)
        {
            wanted.remove(&workload);
        }
    }
    let replaced = |change: &Change| matches!(change, Change::Policy(policy) if policy.key.namespace == namespace);
    let kept = objects.into_iter().filter(|change| !replaced(change));
    let stand_ins = (1_u32..).zip(wanted).map(|(number, of)| Change::Pod(stand_in(number, of)));
    let enforce = |learned: &LearnedPolicy| {
        Change::Policy(Policy { enforcement: Enforcement::Enforce, ..learned.policy.clone() })
    };
    let of_names = policies.iter().filter_map(|learned| learned.of_names.clone());
    let policies = policies.iter().map(enforce).chain(of_names.map(Change::ClusterPolicy));
    kept.chain(stand_ins).chain(policies).collect()
}

/// Creates a pod of a workload, with addresses of unused blocks (`240.0.0.0/4`, `0100::/64`).
fn stand_in(number: u32, workload: &Workload) -> Pod {
    let addresses = vec![
        Ipv4Addr::from_bits(0xf000_0000 | number).into(),
        Ipv6Addr::from_bits(0x0100 << 112 | u128::from(number)).into(),
    ];
    Pod {
        key: Key::new(&workload.namespace, format!("netpold learn {number}")),
        uid: format!("netpold learn {number}"),
        labels: workload.labels.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        node: SharedStr::default(),
        addresses,
        host_network: false,
        finished: false,
        terminating: false,
        created: 0,
        ports: Vec::new(),
        foreign_sources: false,
        secondary: Vec::new(),
        workload: None,
    }
}

/// Returns the flows that the cluster's policies deny.
pub(super) fn denied<'f>(
    cluster: &Cluster,
    flows: impl Iterator<Item = &'f ObservedFlow>,
    unwritten: &BTreeMap<&ObservedFlow, NoPolicyReason>,
) -> Vec<DeniedFlow> {
    let mut pods: BTreeMap<Workload, Vec<&Pod>> = BTreeMap::new();
    for pod in cluster.pods().values().filter(|pod| is_subject(pod)) {
        if let Some(workload) = Workload::of_pod(pod) {
            let of = pods.entry(workload).or_default();
            if of.len() < ASKED {
                of.push(pod);
            }
        }
    }
    let explainer = Explainer::new(cluster);
    let mut denied = Vec::new();
    for flow in flows {
        let remotes = remotes(cluster, &pods, flow);
        let judged = pods.get(&flow.workload).into_iter().flatten().flat_map(|pod| {
            let name = names::domain_names(flow).and_then(|names| names.first().copied());
            let ask = move |(remote, port): &(IpAddr, u16)| match name {
                Some(name) => {
                    Some(explainer.explain_named(pod, name, *remote, (flow.protocol, *port)))
                }
                None => explainer.judge(&pod.key, flow.direction, *remote, flow.protocol, *port),
            };
            remotes.iter().filter_map(ask).collect::<Vec<_>>()
        });
        let judged: Vec<_> = judged.collect();
        // Tiers stay unchanged: their denial of some addresses is no denial of the observed flow.
        let by_rules = judged.iter().find(|judgement| judgement.cause == Cause::NoRule);
        // But pods without a written policy may fall to a tier that exempts the others.
        let left = unwritten.get(flow) == Some(&NoPolicyReason::NoLabels);
        let is_denied = |judgement: &&Judgement| judgement.verdict == Verdict::Deny;
        let tiers = || {
            judged.iter().find(is_denied).filter(|_| left || judged.iter().all(|j| is_denied(&j)))
        };
        let Some(refused) = by_rules.or_else(tiers) else {
            let reason = match unwritten.get(flow) {
                // Nothing has an address of the Service, and the pods' policy has no rule for it.
                Some(why) if judged.is_empty() && !left => Some(why.to_string()),
                Some(_) | None => denied_at_other_end(cluster, &explainer, &pods, flow),
            };
            denied.extend(reason.map(|reason| DeniedFlow { flow: flow.clone(), reason }));
            continue;
        };
        let reason = match (unwritten.get(flow), &refused.tiers.decided_by) {
            (_, Some(rule)) if refused.cause != Cause::NoRule => {
                format!("ClusterNetworkPolicy {} denies it", rule.policy.policy)
            }
            (Some(why), _) => why.to_string(),
            (None, _) => match &flow.peer {
                LearnedPeer::Service(key)
                    if !has_backend(&explainer, key, flow, refused.remote) =>
                {
                    NoPolicyReason::NoBackends(key.clone()).to_string()
                }
                LearnedPeer::Service(_)
                | LearnedPeer::Workload(_)
                | LearnedPeer::Node
                | LearnedPeer::Address(_) => {
                    format!("no rule allows {}", refused.remote)
                }
            },
        };
        denied.push(DeniedFlow { flow: flow.clone(), reason });
    }
    denied
}

/// Returns the reason for which the pods at the other end of a flow, which may not have recorded it, deny the flow.
fn denied_at_other_end(
    cluster: &Cluster,
    explainer: &Explainer<'_>,
    pods: &BTreeMap<Workload, Vec<&Pod>>,
    flow: &ObservedFlow,
) -> Option<String> {
    let of = |workload: &Workload| pods.get(workload).into_iter().flatten().copied();
    let far: Vec<(&Pod, u16)> = match &flow.peer {
        LearnedPeer::Workload(workload) => of(workload).map(|pod| (pod, flow.port)).collect(),
        LearnedPeer::Service(key) => {
            let backends = explainer.backends_of(key, flow.protocol, flow.port).unwrap_or_default();
            let owner = |(address, port)| Some((&**cluster.owner(address)?, port));
            backends.into_iter().filter_map(owner).filter(|(pod, _)| is_subject(pod)).collect()
        }
        LearnedPeer::Node | LearnedPeer::Address(_) => return None,
    };
    let near: Vec<(&Pod, IpAddr)> =
        of(&flow.workload).flat_map(|pod| pod.addresses.iter().map(move |it| (pod, *it))).collect();
    let pairs = far.iter().flat_map(|far| near.iter().map(move |near| (*far, *near)));
    let meet = |((far, _), (near, address)): &((&Pod, u16), (&Pod, IpAddr))| {
        let is_family = |other: &IpAddr| other.is_ipv4() == address.is_ipv4();
        far.key != near.key && far.addresses.iter().any(is_family)
    };
    let direction = flow.direction.opposite();
    let judged: Vec<Judgement> = pairs
        .filter(meet)
        .filter_map(|((far, port), (_, address))| {
            explainer.judge(&far.key, direction, address, flow.protocol, port)
        })
        .collect();
    let is_denied = |judgement: &&Judgement| judgement.verdict == Verdict::Deny;
    let by_rules = judged.iter().find(|judgement| judgement.cause == Cause::NoRule);
    let by_tiers =
        || judged.iter().find(is_denied).filter(|_| judged.iter().all(|it| is_denied(&it)));
    let refused = by_rules.or_else(by_tiers)?;
    let policy = match (&refused.tiers.decided_by, refused.isolated_by.first()) {
        (Some(rule), _) if refused.cause != Cause::NoRule => {
            format!("ClusterNetworkPolicy {}", rule.policy.policy)
        }
        (_, Some(key)) => format!("policy {key}"),
        (_, None) => "a policy".to_owned(),
    };
    Some(format!("{policy} denies its {direction} at {}", flow.peer))
}

/// Returns whether a Service's address has a backend: an address of one family may have none.
fn has_backend(explainer: &Explainer<'_>, key: &Key, flow: &ObservedFlow, address: IpAddr) -> bool {
    let behind = explainer.backends_of(key, flow.protocol, flow.port).unwrap_or_default();
    behind.iter().any(|(backend, _)| backend.is_ipv4() == address.is_ipv4())
}

/// Returns the possible remote addresses and ports of a flow.
fn remotes(
    cluster: &Cluster,
    pods: &BTreeMap<Workload, Vec<&Pod>>,
    flow: &ObservedFlow,
) -> Vec<(IpAddr, u16)> {
    match &flow.peer {
        // Traffic of the own node is always allowed.
        LearnedPeer::Node => Vec::new(),
        LearnedPeer::Address(address) => vec![(*address, flow.port)],
        LearnedPeer::Workload(workload) => {
            let pods = pods.get(workload).into_iter().flatten();
            let owned = pods.flat_map(|pod| {
                let owns =
                    |address: &IpAddr| cluster.owner(*address).is_some_and(|o| o.key == pod.key);
                pod.all_addresses().filter(owns).map(|address| (address, flow.port))
            });
            owned.collect()
        }
        LearnedPeer::Service(key) => {
            let addresses = cluster.services().get(key).map(|service| &service.addresses);
            let addresses = addresses.into_iter().flatten().map(|address| (*address, flow.port));
            let backends = Explainer::new(cluster).backends_of(key, flow.protocol, flow.port);
            // No rule is written for a deleted pod that an EndpointSlice still lists.
            let is_gone = |at: IpAddr| cluster.owner(at).is_none() && cluster.is_pod_address(at);
            let backends = backends.into_iter().flatten().filter(|(at, _)| !is_gone(*at));
            addresses.chain(backends).collect()
        }
    }
}
