//! Pairs of parties that rules of policies name, with the ports that are allowed between them.
//!
//! A cluster of 1,000 workloads has a million pairs, and most of them have no rule of their own: both sides are open, or
//! an isolated side has no rule about the other. Only pairs that some rule names are evaluated, by the explainer, at
//! every port. A rule about everyone names no pair; the party is marked instead.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ipnet::IpNet;
use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::model::{Direction, Enforcement, Peer, Pod, Rule};
use netpold_core::probe::{IpProtocol, Party};
use serde::Serialize;

use super::class::PartyEnds;
use super::ends::ends;
use super::judge::{PairJudge, PairVerdict};
use super::party::DiffParty;
use super::peers::{ClassPair, PeerIndex, Remote, is_everyone};
use super::ports::PortRanges;

/// Most pairs of classes that are counted.
const COUNTED: usize = 1_000_000;
/// Most pairs of classes evaluated of one pair of parties beyond those that rules name.
const PAIR_CLASSES: usize = 16;
/// Most representatives of a party.
const REPRESENTATIVES: usize = 2;

/// Pairs that rules name.
#[derive(Debug, Default)]
pub struct NamedPairs {
    /// Workloads, nodes, blocks of outside addresses and domain names.
    pub parties: Vec<DiffParty>,
    /// Isolation of each party.
    pub sides: Vec<PartyIsolation>,
    /// Pods or addresses that stand for each party; none for a domain name.
    pub representatives: Vec<Vec<Party>>,
    /// Evaluated pairs, in the order of the parties.
    pub pairs: Vec<NamedPair>,
    /// Number of pairs that were not evaluated, because rules name too many. Beyond a million pairs, one that several
    /// rules name counts for each of them.
    pub left_out: usize,
}

/// A pair that some rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPair {
    /// Index of the sender among the parties.
    pub from: usize,
    /// Index of the receiver among the parties.
    pub to: usize,
    /// Ports that are allowed; empty if all are denied.
    pub allowed: PortRanges,
    /// Allowed ports that policies on trial would deny.
    pub on_trial: PortRanges,
    /// A port that the rules distinguish, for an explanation.
    pub asked: (IpProtocol, u16),
    /// Whether some pairs of pods or addresses of the two parties are treated otherwise.
    pub some: bool,
    /// Whether all ports are denied to some pairs of pods or addresses of the two parties.
    pub some_denied: bool,
}

/// Isolation of a party in one direction by NetworkPolicies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IsolationState {
    /// No NetworkPolicy selects the pods, or the party has no pods.
    #[default]
    Open,
    /// Only policies on trial select the pods.
    Trial,
    /// Some pods are isolated.
    Some,
    /// Policies isolate all pods.
    Isolated,
}

/// Isolation of a party.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartyIsolation {
    /// Isolation of ingress.
    pub ingress: IsolationState,
    /// Isolation of egress.
    pub egress: IsolationState,
    /// Whether a rule allows ingress from everyone.
    pub from_everyone: bool,
    /// Whether a rule allows egress to everyone.
    pub to_everyone: bool,
    /// Whether enforced rules of ClusterNetworkPolicies about ingress apply to some pods: they may decide instead.
    pub ingress_tiers: bool,
    /// Whether enforced rules of ClusterNetworkPolicies about egress apply to some pods.
    pub egress_tiers: bool,
}

/// Finds the pairs of a cluster that rules name, and evaluates at most `most` pairs of classes: those of the most
/// specific rules first. `ranges`: see [`super::compare()`].
#[must_use]
pub fn named_pairs(cluster: &Cluster, ranges: &[IpNet], most: usize) -> NamedPairs {
    let ends = ends([cluster, cluster], ranges);
    let mut sides = vec![PartyIsolation::default(); ends.parties.len()];
    let (mut named, uncounted) = named_classes(cluster, &ends, &mut sides);
    let left_out = named.len().saturating_sub(most) + uncounted;
    named.truncate(most);
    let (named, partly) = whole_pairs(&ends, named);
    let judge = PairJudge::new(cluster, &ends);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = named.len().div_ceil(threads).max(1);
    let judged: Vec<PairVerdict> = std::thread::scope(|scope| {
        let work = |part: &[ClassPair]| part.iter().flat_map(|it| judge.pair(*it)).collect();
        let parts: Vec<_> = named
            .chunks(part)
            .map(|part| scope.spawn(move || -> Vec<PairVerdict> { work(part) }))
            .collect();
        let join = |part: std::thread::ScopedJoinHandle<'_, Vec<PairVerdict>>| {
            part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        parts.into_iter().flat_map(join).collect()
    });
    let mut pairs: BTreeMap<(usize, usize), NamedPair> = BTreeMap::new();
    for PairVerdict { from, to, allowed, on_trial, asked } in judged {
        let some = partly.contains(&(from, to));
        let some_denied = allowed.is_empty();
        let new = NamedPair { from, to, allowed, on_trial, asked, some, some_denied };
        match pairs.entry((from, to)) {
            Entry::Vacant(place) => _ = place.insert(new),
            Entry::Occupied(mut known) => known.get_mut().add(&new),
        }
    }
    let representatives = representatives(&ends);
    let pairs = pairs.into_values().collect();
    NamedPairs { parties: ends.parties, sides, representatives, pairs, left_out }
}

impl NamedPair {
    fn add(&mut self, other: &Self) {
        self.some |= self.allowed != other.allowed || self.on_trial != other.on_trial;
        self.some_denied |= other.some_denied;
        self.allowed.add(&other.allowed);
        self.on_trial.add(&other.on_trial);
    }
}

/// Extends pairs of classes to all classes of their parties: rules may name some pods of a workload only. Returns also the
/// pairs of parties with too many classes for that.
fn whole_pairs(
    ends: &PartyEnds<'_>,
    named: Vec<ClassPair>,
) -> (Vec<ClassPair>, BTreeSet<(usize, usize)>) {
    let mut of_parties = vec![Vec::new(); ends.parties.len()];
    for (index, class) in ends.classes.iter().enumerate() {
        of_parties[class.party].push(index);
    }
    let mut by_parties: BTreeMap<(usize, usize), Vec<ClassPair>> = BTreeMap::new();
    for (from, to) in named {
        let receiver = match to {
            Remote::Class(to) => ends.classes[to].party,
            Remote::Name(party) => party,
        };
        by_parties.entry((ends.classes[from].party, receiver)).or_default().push((from, to));
    }
    let (mut all, mut partly) = (Vec::new(), BTreeSet::new());
    for ((sender, receiver), named) in by_parties {
        let receivers: Vec<Remote> = match named[0].1 {
            Remote::Class(_) => of_parties[receiver].iter().copied().map(Remote::Class).collect(),
            name @ Remote::Name(_) => vec![name],
        };
        let senders = &of_parties[sender];
        if senders.len() * receivers.len() > PAIR_CLASSES {
            partly.insert((sender, receiver));
            all.extend(named);
        } else {
            all.extend(
                senders.iter().flat_map(|from| receivers.iter().map(move |to| (*from, *to))),
            );
        }
    }
    (all, partly)
}

/// Returns pods or addresses that stand for the parties.
fn representatives(ends: &PartyEnds<'_>) -> Vec<Vec<Party>> {
    let mut all = vec![Vec::new(); ends.parties.len()];
    for class in &ends.classes {
        let of: &mut Vec<Party> = &mut all[class.party];
        for [end, _] in class.members.iter().take(REPRESENTATIVES) {
            let side = match end.pod {
                Some(pod) => Party::Pod(pod.key.clone()),
                None => Party::Address(end.address),
            };
            if of.len() < REPRESENTATIVES && !of.contains(&side) {
                of.push(side);
            }
        }
    }
    all
}

/// Returns the distinct pairs that rules name, those of peers with few classes first, and at most [`COUNTED`]; and the
/// number of the others. Notes the isolation of parties.
///
/// A tenant can write many peers that match nearly all pods, so the pairs of a peer are listed only as long as there is
/// place for them.
fn named_classes<'c>(
    cluster: &'c Cluster,
    ends: &PartyEnds<'c>,
    sides: &mut [PartyIsolation],
) -> (Vec<ClassPair>, usize) {
    let mut peers = PeerIndex::new(cluster, ends, 0);
    let mut mentions = PeerMentions::default();
    let mut seen: HashMap<usize, [bool; 2]> = HashMap::new();
    for (index, class) in ends.classes.iter().enumerate() {
        let Some(pod) = class.members[0][0].pod.filter(|pod| is_subject(pod)) else { continue };
        for (number, direction) in [Direction::Ingress, Direction::Egress].into_iter().enumerate() {
            let about = ApplicablePolicies::new(cluster, pod, direction);
            let side = &mut sides[class.party];
            let is_first =
                !std::mem::replace(&mut seen.entry(class.party).or_default()[number], true);
            side.add(direction, &about, is_first);
            for (namespace, rule) in about.rules {
                for peer in rule.peers.iter().flatten() {
                    mentions.add(peers.number(namespace, peer), (index, direction));
                }
            }
        }
    }
    let (mut named, mut known) = (Vec::new(), HashSet::new());
    for ((size, peer), subjects) in mentions.by_peer {
        if known.len() == COUNTED {
            mentions.left_out += size * subjects.len();
            continue;
        }
        let found = peers.matching(peer);
        for (index, direction) in subjects {
            let pairs = found.iter().filter_map(|remote| match (direction, *remote) {
                (Direction::Egress, remote) => Some((index, remote)),
                (Direction::Ingress, Remote::Class(from)) => Some((from, Remote::Class(index))),
                (Direction::Ingress, Remote::Name(_)) => None,
            });
            for pair in pairs {
                if known.len() == COUNTED {
                    mentions.left_out += usize::from(!known.contains(&pair));
                } else if known.insert(pair) {
                    named.push(pair);
                }
            }
        }
    }
    (named, mentions.left_out)
}

/// Classes whose rules mention a peer, with the direction of the rule; at most [`COUNTED`].
#[derive(Default)]
struct PeerMentions {
    /// By number of the peer's classes, and the peer.
    by_peer: BTreeMap<(usize, usize), Vec<(usize, Direction)>>,
    count: usize,
    /// Number of the pairs of mentions that had no place.
    left_out: usize,
}

impl PeerMentions {
    /// Adds a mention of a peer; beyond the limit, the peer with the most classes loses one.
    fn add(&mut self, peer: (usize, usize), subject: (usize, Direction)) {
        if peer.0 == 0 {
            return;
        }
        let subjects = self.by_peer.entry(peer).or_default();
        if subjects.last() == Some(&subject) {
            return;
        }
        subjects.push(subject);
        self.count += 1;
        if self.count > COUNTED
            && let Some(mut largest) = self.by_peer.last_entry()
        {
            self.left_out += largest.key().0;
            self.count -= 1;
            largest.get_mut().pop();
            if largest.get().is_empty() {
                largest.remove();
            }
        }
    }
}

/// Policies about a pod in a direction.
struct ApplicablePolicies<'c> {
    state: IsolationState,
    everyone: bool,
    tiers: bool,
    /// Rules, with the namespace of their policy.
    rules: Vec<(&'c str, &'c Rule)>,
}

impl<'c> ApplicablePolicies<'c> {
    fn new(cluster: &'c Cluster, pod: &Pod, direction: Direction) -> Self {
        let mut about =
            Self { state: IsolationState::Open, everyone: false, tiers: false, rules: Vec::new() };
        for policy in cluster.policies_in(&pod.key.namespace) {
            let Some(rules) = policy.rules(direction) else { continue };
            if !policy.pod_selector.matches(&pod.labels) {
                continue;
            }
            let enforced = policy.enforcement == Enforcement::Enforce;
            about.state = about.state.max(if enforced {
                IsolationState::Isolated
            } else {
                IsolationState::Trial
            });
            about.everyone |= enforced && rules.iter().any(admits_everyone);
            about.rules.extend(rules.iter().map(|rule| (policy.key.namespace.as_str(), rule)));
        }
        let namespace = cluster.namespace_labels(&pod.key.namespace);
        for policy in cluster.cluster_policies() {
            let subject = &policy.subject;
            let applies =
                subject.namespaces.matches(&namespace) && subject.pods.matches(&pod.labels);
            if applies && !policy.rules(direction).is_empty() {
                about.tiers |= policy.enforcement == Enforcement::Enforce;
                about.rules.extend(policy.rules(direction).iter().map(|rule| ("", &rule.matches)));
            }
        }
        about
    }
}

fn admits_everyone(rule: &Rule) -> bool {
    rule.peers.as_ref().is_none_or(|peers: &Vec<Peer>| peers.iter().any(is_everyone))
}

impl PartyIsolation {
    /// Adds what holds for one class of the party.
    fn add(&mut self, direction: Direction, about: &ApplicablePolicies<'_>, is_first: bool) {
        let (state, everyone, tiers) = match direction {
            Direction::Ingress => {
                (&mut self.ingress, &mut self.from_everyone, &mut self.ingress_tiers)
            }
            Direction::Egress => (&mut self.egress, &mut self.to_everyone, &mut self.egress_tiers),
        };
        *state = match *state {
            _ if is_first => about.state,
            same if same == about.state => same,
            IsolationState::Open
            | IsolationState::Trial
            | IsolationState::Some
            | IsolationState::Isolated => IsolationState::Some,
        };
        *everyone |= about.everyone;
        *tiers |= about.tiers;
    }
}
