//! Policies from recorded flows and the cluster's objects.

use std::collections::{BTreeMap, BTreeSet};

use netpold_api::learn::{LearnAnswer, LearnedPeer, ObservedFlow};
use netpold_api::workload::Workload;
use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::explain::Allowing;
use netpold_core::model::{
    Change, Direction, DomainName, Enforcement, Key, Pod, Policy, PolicyVersion, Rule,
};

use super::grants::{NoPolicyReason, grants};
use super::names;
use super::policy::{LearnOptions, LearnedPolicy, LearnedRule, ObservedPeers, PeerSpec, Sightings};
use super::ports::LearnedPorts;
use super::proof::{self, DeniedFlow};
use super::unseen::{self, UnseenTraffic};

/// Result of [`generate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Policies by workload.
    pub policies: Vec<LearnedPolicy>,
    /// Observed flows that the policies would deny.
    pub denied: Vec<DeniedFlow>,
    /// Traffic that the policies would allow although it was never observed.
    pub unseen: Vec<UnseenTraffic>,
    /// Pods without recorded flows, because no policy selects them.
    pub unwatched: Vec<Key>,
    /// Pods that no policy can select, because they have no labels.
    pub unlabelled: Vec<Key>,
}

/// Domain names of each workload.
type ObservedNames = BTreeMap<Workload, BTreeMap<DomainName, (LearnedPorts, Sightings)>>;

/// Returns the workloads of a namespace with their pods.
fn workloads<'c>(cluster: &'c Cluster, namespace: &str) -> BTreeMap<Workload, Vec<&'c Pod>> {
    let mut workloads: BTreeMap<Workload, Vec<&Pod>> = BTreeMap::new();
    for pod in cluster.pods_in(namespace).filter(|pod| is_subject(pod)) {
        if let Some(workload) = Workload::of_pod(pod) {
            workloads.entry(workload).or_default().push(pod);
        }
    }
    workloads
}

/// Returns whether the flow table has entries of a pod.
fn is_watched(cluster: &Cluster, pod: &Pod) -> bool {
    Direction::BOTH.into_iter().any(|direction| {
        cluster.policies_about((pod, true), direction).is_on_trial()
            || !Allowing::new(cluster).policies(pod, direction).is_empty()
    })
}

/// Generates least-privilege policies for the workloads of a namespace, and checks them.
#[must_use]
pub fn generate(objects: Vec<Change>, answer: &LearnAnswer, options: &LearnOptions) -> Learned {
    let cluster: Cluster = objects.iter().cloned().collect();
    let of_namespace = |flow: &&ObservedFlow| flow.workload.namespace == options.namespace;
    let flows: Vec<&ObservedFlow> = answer.flows.iter().filter(of_namespace).collect();
    let passed = || flows.iter().copied().filter(|flow| flow.flows > 0);
    let mut seen = ObservedPeers::new();
    let mut unwritten: BTreeMap<&ObservedFlow, NoPolicyReason> = BTreeMap::new();
    let mut named = ObservedNames::new();
    for flow in passed() {
        if let Some(names) = names::domain_names(flow) {
            let of = named.entry(flow.workload.clone()).or_default();
            for name in names {
                let (ports, sightings) = of.entry(name.clone()).or_default();
                ports.add(&LearnedPorts::single(flow.protocol, flow.port));
                sightings.flows = sightings.flows.saturating_add(flow.flows);
                sightings.last = sightings.last.max(flow.last);
            }
            seen.entry(flow.workload.clone()).or_default();
            continue;
        }
        let of = seen.entry(flow.workload.clone()).or_default();
        match grants(&cluster, flow, options) {
            Ok(grants) => {
                for (peer, ports) in grants {
                    let (known, sightings) = of[flow.direction as usize].entry(peer).or_default();
                    known.add(&ports);
                    sightings.flows = sightings.flows.saturating_add(flow.flows);
                    sightings.last = sightings.last.max(flow.last);
                    if let LearnedPeer::Service(key) = &flow.peer {
                        sightings.services.insert(key.clone());
                    }
                }
            }
            Err(why) => drop(unwritten.insert(flow, why)),
        }
    }
    let mut unwatched = Vec::new();
    let mut unlabelled = Vec::new();
    for (workload, pods) in workloads(&cluster, &options.namespace) {
        if workload.labels.is_empty() {
            // No selector distinguishes these pods: a policy for them would select every pod.
            unlabelled.extend(pods.into_iter().map(|pod| pod.key.clone()));
            continue;
        }
        if seen.contains_key(&workload) {
            continue;
        }
        let blind: Vec<_> = pods.into_iter().filter(|pod| !is_watched(&cluster, pod)).collect();
        match blind.is_empty() {
            true => drop(seen.insert(workload, Default::default())),
            false => unwatched.extend(blind.into_iter().map(|pod| pod.key.clone())),
        }
    }
    seen.retain(|workload, _| !workload.labels.is_empty());
    let mut unique = PolicyNames::for_workloads(seen.keys());
    let mut policies: Vec<LearnedPolicy> = seen
        .iter()
        .enumerate()
        .map(|(number, (workload, of))| {
            let refused = |flow: &&&ObservedFlow| flow.workload == *workload && flow.denied > 0;
            let denied = flows.iter().filter(refused).map(|flow| (*flow).clone()).collect();
            let mut policy = policy(unique.next(workload), workload, of, denied);
            policy.is_observed = passed().any(|flow| flow.workload == *workload);
            let named = named.remove(workload).unwrap_or_default();
            names::add(policy, named, number)
        })
        .collect();
    let enforced = proof::enforced(objects, passed(), &policies, &options.namespace);
    let denied = proof::denied(&enforced, passed(), &unwritten);
    let refused: BTreeSet<&ObservedFlow> = denied.iter().map(|refused| &refused.flow).collect();
    for policy in &mut policies {
        // Other flows with the peer passed, and their rule holds for this one.
        policy.denied.retain(|flow| flow.flows == 0 || refused.contains(flow));
    }
    let unseen = unseen::unseen(&enforced, &policies, &seen, &options.namespace);
    unwatched.sort();
    unlabelled.sort();
    Learned { policies, denied, unseen, unwatched, unlabelled }
}

fn policy(
    name: String,
    workload: &Workload,
    seen: &[BTreeMap<PeerSpec, (LearnedPorts, Sightings)>; 2],
    denied: Vec<ObservedFlow>,
) -> LearnedPolicy {
    let rules = seen.each_ref().map(|peers| {
        // Peers with the same ports share a rule.
        let mut by_ports: BTreeMap<&LearnedPorts, Vec<(PeerSpec, Sightings)>> = BTreeMap::new();
        for (peer, (ports, sightings)) in peers {
            by_ports.entry(ports).or_default().push((peer.clone(), sightings.clone()));
        }
        let rules = by_ports.into_iter();
        rules.map(|(ports, peers)| LearnedRule { peers, ports: ports.clone() }).collect::<Vec<_>>()
    });
    let [ingress, egress] = rules.each_ref().map(|rules| {
        let peers = |rule: &LearnedRule| {
            rule.peers.iter().map(|(peer, _)| peer.peer(&workload.namespace)).collect()
        };
        let rule =
            |rule: &LearnedRule| Rule { peers: Some(peers(rule)), ports: rule.ports.rules() };
        Some(rules.iter().map(rule).collect())
    });
    let policy = Policy {
        key: Key::new(&workload.namespace, name),
        pod_selector: workload.selector(),
        ingress,
        egress,
        problems: Vec::new(),
        version: PolicyVersion::default(),
        enforcement: Enforcement::Audit,
        denial: None,
    };
    let (names, of_names) = (Vec::new(), None);
    let (workload, is_observed) = (workload.clone(), false);
    LearnedPolicy { workload, rules, names, of_names, denied, is_observed, policy }
}

/// Unique names for policies.
struct PolicyNames {
    wanted: BTreeMap<String, u32>,
    given: BTreeSet<String>,
}

impl PolicyNames {
    fn for_workloads<'w>(workloads: impl Iterator<Item = &'w Workload>) -> Self {
        let mut wanted = BTreeMap::new();
        workloads.for_each(|workload| *wanted.entry(workload.name()).or_default() += 1);
        Self { wanted, given: BTreeSet::new() }
    }

    /// Returns a unique name. Among several workloads of one name, each gets a stable number from its labels.
    fn next(&mut self, workload: &Workload) -> String {
        let name = workload.name();
        let mut full = format!("learned-{name}");
        if self.wanted.get(&name).is_some_and(|wanted| *wanted > 1) {
            full = format!("{full}-{:06x}", hash(&workload.to_string()) & 0x00ff_ffff);
        }
        let mut unique = full.clone();
        for number in 2.. {
            if self.given.insert(unique.clone()) {
                break;
            }
            unique = format!("{full}-{number}");
        }
        unique
    }
}

/// Returns the FNV-1a hash (Fowler, Noll, Vo).
fn hash(text: &str) -> u64 {
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}
