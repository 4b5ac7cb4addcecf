//! Ports allowed in one direction between classes of one cluster.
//!
//! Traffic that nothing translates is allowed if the sender's egress and the receiver's ingress are. The ingress of a
//! class depends on its policies, and on the sender by the rules that have a matching peer. So the receivers with equal
//! policies share an answer for all senders with equal matching rules: 1,000 workloads with a policy each have a few
//! thousand answers instead of a million. The same holds for egress, where named ports are the receiver's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use netpold_core::cluster::Cluster;
use netpold_core::explain::Explainer;
use netpold_core::lock::lock;
use netpold_core::model::{Direction, Enforcement, Key, NamedPort, Peer, Pod, PortMatch, Rule};
use netpold_core::probe::IpProtocol;

use super::class::{Class, PartyEnd, PartyEnds};
use super::class_numbers::ClassNumbers;
use super::peers::PeerIndex;
use super::ports::{PROTOCOLS, PortRanges};
use crate::parallel::both;

/// Numbers of distinct sets of ports.
#[derive(Default)]
pub(super) struct PortSets(Mutex<(HashMap<PortRanges, u32>, Vec<PortRanges>)>);

impl PortSets {
    fn number(&self, ports: PortRanges) -> u32 {
        let mut sets = lock(&self.0);
        let (numbers, all) = &mut *sets;
        *numbers.entry(ports).or_insert_with_key(|ports| {
            all.push(ports.clone());
            (all.len() - 1) as u32
        })
    }

    /// Returns the set with a number of [`OneWay::ports`].
    pub(super) fn get(&self, number: u32) -> PortRanges {
        let sets = lock(&self.0);
        sets.1.get(number as usize).cloned().unwrap_or_default()
    }
}

/// Rule, with the namespace of its policy; empty for a ClusterNetworkPolicy.
type RuleOf<'c> = (&'c str, &'c Rule);
/// Property by which subjects differ: keys of policies, names of ClusterNetworkPolicies, the pods' named ports.
type RuleGroupKey<'c> = (Vec<&'c Key>, Vec<&'c str>, &'c [NamedPort]);

/// Classes of pods to which the same rules apply, with the same named ports.
struct RuleGroup<'c> {
    rules: Vec<RuleOf<'c>>,
    answers: OnceLock<RuleGroupAnswers>,
}

/// Answers of a subject, by the set of rules that have a peer for the other side.
struct RuleGroupAnswers {
    /// Set of each class.
    sets: ClassNumbers,
    /// Number of the allowed ports of each set, once some pair of classes has needed it.
    ports: Vec<OnceLock<u32>>,
}

/// Ports allowed in one direction, by sender and receiver.
pub(super) struct OneWay<'a, 'c> {
    ends: &'a PartyEnds<'c>,
    direction: Direction,
    explainer: Explainer<'c>,
    peers: &'a MatchedPeers<'a, 'c>,
    port_sets: &'a PortSets,
    /// Number of the ports of a class that no policy concerns.
    everything: u32,
    /// Subject of each class; `None` for one that is no pod.
    subject_of: Vec<Option<usize>>,
    subjects: Vec<RuleGroup<'c>>,
    /// Number of each class's named ports.
    named_ports: Vec<u32>,
}

impl<'a, 'c> OneWay<'a, 'c> {
    pub(super) fn new(
        cluster: &'c Cluster,
        direction: Direction,
        peers: &'a MatchedPeers<'a, 'c>,
        port_sets: &'a PortSets,
    ) -> Self {
        let (ends, side) = (peers.ends, peers.side);
        let (mut subjects, mut known) = (Vec::new(), HashMap::new());
        let (mut subject_of, mut named_ports) = (Vec::new(), Vec::new());
        let mut numbers: HashMap<&[NamedPort], u32> = HashMap::new();
        for class in &ends.classes {
            let pod = class.members[0][side].pod;
            let ports = pod.map_or(&[][..], |pod| &pod.ports);
            let next = numbers.len() as u32;
            named_ports.push(*numbers.entry(ports).or_insert(next));
            subject_of.push(pod.map(|pod| {
                let (key, rules) = rules(cluster, pod, direction);
                *known.entry(key).or_insert_with(|| {
                    subjects.push(RuleGroup { rules, answers: OnceLock::new() });
                    subjects.len() - 1
                })
            }));
        }
        let explainer = Explainer::new(cluster);
        let everything = port_sets.number(PortRanges::everything());
        Self {
            ends,
            direction,
            explainer,
            peers,
            port_sets,
            everything,
            subject_of,
            subjects,
            named_ports,
        }
    }

    /// Returns the number of the ports that are allowed from one class to another; `sides` are a member of each, before
    /// and after.
    pub(super) fn ports(&self, [from, to]: [usize; 2], sides: [&[PartyEnd<'c>; 2]; 2]) -> u32 {
        let (own, remote) = match self.direction {
            Direction::Egress => (from, to),
            Direction::Ingress => (to, from),
        };
        let Some(subject) = self.subject_of[own].map(|it| &self.subjects[it]) else {
            return self.everything;
        };
        let answers = subject.answers.get_or_init(|| self.answers(subject));
        let set = answers.sets.get(remote);
        let [from, to] = [from, to].map(|class| &self.ends.classes[class]);
        *answers.ports[set as usize]
            .get_or_init(|| self.judge(from, to, sides.map(|end| end[self.peers.side])))
    }

    /// Finds the set of rules that match each class.
    fn answers(&self, subject: &RuleGroup<'c>) -> RuleGroupAnswers {
        let depends_on_ports =
            self.direction == Direction::Egress && subject.rules.iter().any(|(_, it)| is_named(it));
        let mut set_of = match depends_on_ports {
            true => self.named_ports.clone(),
            false => vec![0; self.ends.classes.len()],
        };
        let mut count = set_of.iter().max().map_or(0, |last| last + 1);
        for (namespace, rule) in &subject.rules {
            let Some(peers) = &rule.peers else { continue };
            let matching = peers.iter().filter_map(|peer| self.peers.matching(namespace, peer));
            let mut matching: Vec<usize> = matching.flat_map(ClassNumbers::members).collect();
            if peers.len() > 1 {
                matching.sort_unstable();
                matching.dedup();
            }
            let mut with_rule: HashMap<u32, u32> = HashMap::new();
            for class in matching {
                let set = &mut set_of[class];
                *set = *with_rule.entry(*set).or_insert_with(|| {
                    count += 1;
                    count - 1
                });
            }
        }
        // Sets that a later rule has divided, no class has any more.
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        for set in &mut set_of {
            let next = numbers.len() as u32;
            *set = *numbers.entry(*set).or_insert(next);
        }
        let ports = (0..numbers.len().max(1)).map(|_| OnceLock::new()).collect();
        RuleGroupAnswers { sets: ClassNumbers::new(&set_of), ports }
    }

    fn judge(&self, from: &Class<'c>, to: &Class<'c>, ends: [PartyEnd<'c>; 2]) -> u32 {
        let mut starts = to.receives.clone();
        if self.direction == Direction::Egress {
            starts.add(&from.sends);
        }
        let ends = ends.map(|end| (end.pod, end.address));
        let allows = |kind| self.explainer.allows_one_way(self.direction, ends, kind);
        let mut ports = PortRanges::NONE;
        for protocol in PROTOCOLS {
            for region in starts.regions(protocol) {
                if allows((IpProtocol(protocol.number()), region.0)) {
                    ports.push(protocol, region);
                }
            }
        }
        ports.other = allows((IpProtocol::ICMP, 0));
        self.port_sets.number(ports)
    }
}

fn is_named(rule: &Rule) -> bool {
    rule.ports.iter().flatten().any(|port| matches!(port.port, PortMatch::Named(_)))
}

/// Returns the enforced rules about a pod in a direction.
fn rules<'c>(
    cluster: &'c Cluster,
    pod: &'c Pod,
    direction: Direction,
) -> (RuleGroupKey<'c>, Vec<RuleOf<'c>>) {
    let (mut policies, mut tiers, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for policy in cluster.policies_in(&pod.key.namespace) {
        let is_enforced = policy.enforcement == Enforcement::Enforce;
        if let Some(rules) = policy.rules(direction)
            && is_enforced
            && policy.pod_selector.matches(&pod.labels)
        {
            policies.push(&policy.key);
            all.extend(rules.iter().map(|rule| (policy.key.namespace.as_str(), rule)));
        }
    }
    let namespace = cluster.namespace_labels(&pod.key.namespace);
    for policy in cluster.cluster_policies() {
        let subject = &policy.subject;
        let is_enforced = policy.enforcement == Enforcement::Enforce;
        let applies = subject.namespaces.matches(&namespace) && subject.pods.matches(&pod.labels);
        if is_enforced && applies && !policy.rules(direction).is_empty() {
            tiers.push(policy.name.as_str());
            all.extend(policy.rules(direction).iter().map(|rule| ("", &rule.matches)));
        }
    }
    ((policies, tiers, &pod.ports), all)
}

/// Classes that match the peers of one cluster's rules; each distinct peer is matched once.
pub(super) struct MatchedPeers<'a, 'c> {
    ends: &'a PartyEnds<'c>,
    /// Index of the cluster: 0 before, 1 after.
    side: usize,
    peers: PeerIndex<'a, 'c>,
    /// By namespace of the policy, if it matters, and peer.
    matching: HashMap<(&'c str, &'c Peer), OnceLock<ClassNumbers>>,
}

impl<'a, 'c> MatchedPeers<'a, 'c> {
    pub(super) fn new(cluster: &'c Cluster, ends: &'a PartyEnds<'c>, side: usize) -> Self {
        let policies = cluster.policies().values().flat_map(|policy| {
            let rules = Direction::BOTH.into_iter().filter_map(|it| policy.rules(it)).flatten();
            rules.map(|rule| (policy.key.namespace.as_str(), rule))
        });
        let tiers = cluster.cluster_policies().flat_map(|policy| {
            let rules = Direction::BOTH.into_iter().flat_map(|it| policy.rules(it));
            rules.map(|rule| ("", &rule.matches))
        });
        let peers = policies.chain(tiers).flat_map(|(namespace, rule)| {
            let peers = rule.peers.iter().flatten();
            peers.map(move |peer| (key(namespace, peer), OnceLock::new()))
        });
        Self { ends, side, peers: PeerIndex::new(cluster, ends, side), matching: peers.collect() }
    }

    fn matching(&self, namespace: &'c str, peer: &'c Peer) -> Option<&ClassNumbers> {
        let find = || {
            let classes = self.peers.matching_classes(namespace, peer);
            ClassNumbers::of_members(&classes, self.ends.classes.len())
        };
        let found = self.matching.get(&key(namespace, peer));
        found.map(|classes| classes.get_or_init(find))
    }
}

/// The namespace of a policy matters to peers without a selector of namespaces alone.
fn key<'c>(namespace: &'c str, peer: &'c Peer) -> (&'c str, &'c Peer) {
    match peer {
        Peer::Pods { namespaces: None, .. } => (namespace, peer),
        Peer::Pods { .. } | Peer::Block(_) | Peer::Nodes(_) | Peer::Domain(_) => ("", peer),
    }
}

/// Known changes, by the numbers of the ports that sender and receiver allow, before and after.
pub(super) type KnownChanges = HashMap<[[u32; 2]; 2], Option<Arc<[PortRanges; 2]>>>;

/// Ports allowed in both directions, before and after a change.
pub(super) struct OneWays<'a, 'c> {
    port_sets: &'a PortSets,
    /// Egress and ingress, before and after.
    by_side: [[OneWay<'a, 'c>; 2]; 2],
}

impl<'a, 'c> OneWays<'a, 'c> {
    pub(super) fn new(
        clusters: [&'c Cluster; 2],
        peers: &'a [MatchedPeers<'a, 'c>; 2],
        port_sets: &'a PortSets,
    ) -> Self {
        let of_side = |side: usize| {
            [Direction::Egress, Direction::Ingress]
                .map(|it| OneWay::new(clusters[side], it, &peers[side], port_sets))
        };
        let (before, after) = both(|| of_side(0), || of_side(1));
        Self { port_sets, by_side: [before, after] }
    }

    /// Returns the lost and the gained ports from one class to another; `None` if there are none. `sides`: a member of
    /// each class, before and after.
    pub(super) fn change(
        &self,
        of: [usize; 2],
        sides: [&[PartyEnd<'c>; 2]; 2],
        known: &mut KnownChanges,
    ) -> Option<Arc<[PortRanges; 2]>> {
        let numbers =
            self.by_side.each_ref().map(|of_side| of_side.each_ref().map(|it| it.ports(of, sides)));
        if numbers[0] == numbers[1] {
            return None;
        }
        let find = || {
            let [before, after] = numbers.map(|numbers| {
                let [egress, ingress] = numbers.map(|number| self.port_sets.get(number));
                egress.intersection(&ingress)
            });
            let change = [before.without(&after), after.without(&before)];
            (!change.iter().all(PortRanges::is_empty)).then(|| Arc::new(change))
        };
        known.entry(numbers).or_insert_with(find).clone()
    }
}
