//! Difference of the connectivity matrices of two clusters.
//!
//! The matrices themselves are never built: unchanged pairs are skipped, members of a class share an answer, and so do
//! ports between which no rule's range begins or ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Result, anyhow, bail};
use ipnet::IpNet;
use netpold_core::cluster::Cluster;
use netpold_core::explain::{Explainer, Verdict};
use netpold_core::model::{DomainName, Pod, Protocol};
use netpold_core::probe::{IpProtocol, Party, Probe};

use super::class::{Class, ClassKind, PartyEnd, PartyEnds};
use super::difference::{ConnectivityChange, Difference, LostGained};
use super::ends::ends_of;
use super::isolation::Isolation;
use super::one_way::{KnownChanges, MatchedPeers, OneWays, PortSets};
use super::party::list_names;
use super::ports::{PROTOCOLS, PortRanges};
use super::rules::RangeStarts;
use super::workloads::{ComparedWorkload, workloads};
use crate::parallel;

/// Compares two clusters. Pods without an address are judged at sample addresses of these ranges; without ranges they
/// are not judged.
///
/// # Errors
/// The explainer gives no verdict although the objects determine one.
pub fn compare(before: &Cluster, after: &Cluster, ranges: &[IpNet]) -> Result<Difference> {
    compare_until(before, after, ranges, &AtomicBool::new(false))
}

/// Compares two clusters, like [`compare`], until nobody wants the answer.
///
/// # Errors
/// As [`compare`], or `ended` was set.
pub(crate) fn compare_until(
    before: &Cluster,
    after: &Cluster,
    ranges: &[IpNet],
    ended: &AtomicBool,
) -> Result<Difference> {
    let workloads = workloads([before, after]);
    compare_workloads([before, after], workloads, ranges, ended)
}

/// Compares two clusters, like [`compare_until`], of which these are the workloads.
pub(super) fn compare_workloads(
    clusters: [&Cluster; 2],
    workloads: Vec<Arc<ComparedWorkload>>,
    ranges: &[IpNet],
    ended: &AtomicBool,
) -> Result<Difference> {
    let [before, after] = clusters;
    let ends = ends_of(clusters, workloads, ranges);
    let port_sets = PortSets::default();
    let (first, second) = parallel::both(
        || MatchedPeers::new(before, &ends, 0),
        || MatchedPeers::new(after, &ends, 1),
    );
    let peers = [first, second];
    let asking = Comparison {
        ends: &ends,
        explainers: [Explainer::new(before), Explainer::new(after)],
        one_way: Some(OneWays::new(clusters, &peers, &port_sets)),
    };
    let changes = asking.changes(ended)?;
    let compared = ends.classes.iter().filter(|class| class.kind == ClassKind::Pods);
    let compared: BTreeSet<usize> = compared.map(|class| class.party).collect();
    let mut isolation = Isolation::new(clusters, &ends.parties, &compared, ends.left_out);
    isolation.unknown.extend(ends.not_compared);
    let recounted: Vec<String> = ends.recounted.into_iter().collect();
    let notes = match list_names(&recounted) {
        none if none.is_empty() => Vec::new(),
        some => {
            vec![format!("addresses on secondary networks that begin or cease to count: {some}")]
        }
    };
    Ok(Difference { parties: ends.parties, changes, isolation, notes })
}

/// A member of a sender and one of a receiver, each before and after.
type EndPair<'c> = [[PartyEnd<'c>; 2]; 2];
/// Results by pair of parties.
type ChangesByPair = BTreeMap<(usize, usize), PairChanges>;

/// Changes from members of one party to members of another.
#[derive(Default)]
pub(super) struct PairChanges {
    /// Whether some pair of members is unchanged.
    same: bool,
    /// A change of a pair of members.
    first: Option<Arc<LostGained>>,
    /// Further distinct changes.
    more: Vec<Arc<LostGained>>,
}

impl PairChanges {
    /// Adds the change of a pair of members; `None` if it is unchanged.
    pub(super) fn add(&mut self, change: Option<Arc<LostGained>>) {
        let Some(change) = change else {
            self.same = true;
            return;
        };
        match &self.first {
            None => self.first = Some(change),
            Some(first) if *first == change || self.more.contains(&change) => {}
            Some(_) => self.more.push(change),
        }
    }

    pub(super) fn change(self, (from, to): (usize, usize)) -> Option<ConnectivityChange> {
        let first = self.first?;
        if self.more.is_empty() {
            return Some(ConnectivityChange { from, to, ports: first, some: self.same });
        }
        let [mut loses, mut gains] = (*first).clone();
        for change in self.more {
            let [lost, gained] = &*change;
            loses.add(lost);
            gains.add(gained);
        }
        Some(ConnectivityChange { from, to, ports: Arc::new([loses, gains]), some: true })
    }
}

/// Returns whether somebody waits for the comparison.
///
/// # Errors
/// `ended` was set.
pub(super) fn check_not_ended(ended: &AtomicBool) -> Result<()> {
    if ended.load(Ordering::Relaxed) {
        bail!("nobody waits for the comparison");
    }
    Ok(())
}

/// Returns the lost and gained ports unless there are none.
pub(super) fn changed(change: LostGained) -> Option<Arc<LostGained>> {
    (!change.iter().all(PortRanges::is_empty)).then(|| Arc::new(change))
}

/// Returns whether members of two classes are compared: one side is a pod, and both have addresses of one family.
fn do_meet(from: &Class<'_>, to: &Class<'_>) -> bool {
    from.is_ipv6() == to.is_ipv6() && [from.kind, to.kind].contains(&ClassKind::Pods)
}

/// Returns whether nothing that matters between two classes has changed.
fn is_unchanged(from: &Class<'_>, to: &Class<'_>) -> bool {
    from.sends_as_before && to.receives_as_before
}

struct Comparison<'a, 'c> {
    ends: &'a PartyEnds<'c>,
    explainers: [Explainer<'c>; 2],
    /// Answers by direction; without them, each pair of classes is judged by itself.
    one_way: Option<OneWays<'a, 'c>>,
}

impl<'c> Comparison<'_, 'c> {
    /// Returns the changed pairs of parties, in the order of the parties.
    fn changes(&self, ended: &AtomicBool) -> Result<Vec<ConnectivityChange>> {
        let mut first = 0;
        let parties = self.ends.classes.chunk_by(|a, b| a.party == b.party).map(|classes| {
            first += classes.len();
            first - classes.len()..first
        });
        let parties: Vec<Range<usize>> = parties.collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let (mut changes, mut known) = (Vec::new(), KnownChanges::new());
            while let Some(from) = parties.get(next.fetch_add(1, Ordering::Relaxed)) {
                check_not_ended(ended)?;
                self.from(from.clone(), &parties, &mut known, &mut changes)?;
            }
            Ok(changes)
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let done: Vec<Result<Vec<ConnectivityChange>>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
                worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            workers.into_iter().map(join).collect()
        });
        let mut changes = done.into_iter().collect::<Result<Vec<_>>>()?.concat();
        changes.sort_unstable_by_key(|change| (change.from, change.to));
        Ok(changes)
    }

    /// Compares the connections from the classes of a party.
    fn from(
        &self,
        senders: Range<usize>,
        parties: &[Range<usize>],
        known: &mut KnownChanges,
        changes: &mut Vec<ConnectivityChange>,
    ) -> Result<()> {
        let classes = &self.ends.classes;
        for receivers in parties {
            let mut pair = PairChanges::default();
            for from in senders.clone() {
                for to in receivers.clone() {
                    self.classes([from, to], known, &mut pair)?;
                }
            }
            changes.extend(
                pair.change((classes[senders.start].party, classes[receivers.start].party)),
            );
        }
        let mut pairs = ChangesByPair::new();
        for from in &classes[senders] {
            self.own_nodes(from, &mut pairs)?;
            self.by_names(from, &mut pairs);
        }
        changes.extend(pairs.into_iter().filter_map(|(key, pair)| pair.change(key)));
        Ok(())
    }

    /// Compares connections from one class to another.
    fn classes(
        &self,
        of: [usize; 2],
        known: &mut KnownChanges,
        pair: &mut PairChanges,
    ) -> Result<()> {
        let [from, to] = of.map(|class| &self.ends.classes[class]);
        if !do_meet(from, to) {
            return Ok(());
        }
        if is_unchanged(from, to) {
            pair.same = true;
            return Ok(());
        }
        if let Some(one_way) = &self.one_way
            && !self.ends.may_translate(from, to)
        {
            // Pods of two workloads are two pods, before and after.
            let are_apart = from.party != to.party
                && from.kind == ClassKind::Pods
                && to.kind == ClassKind::Pods;
            if are_apart {
                pair.add(one_way.change(of, [&from.members[0], &to.members[0]], known));
            } else if let Some([a, b]) = members_that_meet(from, to).next() {
                pair.add(one_way.change(of, [&a, &b], known));
            }
            return Ok(());
        }
        let mut starts = from.sends.clone();
        starts.add(&to.receives);
        if to.special || to.kind == ClassKind::Nodes {
            starts.add(&self.ends.translated);
        }
        for sides in meetings(from, to, self.ends.node_ports) {
            pair.add(changed(self.compare_ports(sides, &starts)?));
        }
        Ok(())
    }

    /// Compares connections of pods to their own nodes, and from there.
    fn own_nodes(&self, pods: &Class<'c>, pairs: &mut ChangesByPair) -> Result<()> {
        let (pod, node) = (pods.party, self.ends.own_node);
        let [mut sends, mut receives] = [&pods.sends, &pods.receives].map(Clone::clone);
        sends.add(&self.ends.translated);
        if pods.special {
            receives.add(&self.ends.translated);
        }
        for own in &pods.own_nodes {
            let same = pods.sends_as_before && own.receives_as_before;
            let sent = ((pod, node), [own.pod, own.node], &sends, same);
            let same = pods.receives_as_before && own.is_as_before;
            let received = ((node, pod), [own.node, own.pod], &receives, same);
            for (key, sides, starts, same) in [sent, received] {
                let change = if same { None } else { changed(self.compare_ports(sides, starts)?) };
                pairs.entry(key).or_default().add(change);
            }
        }
        Ok(())
    }

    /// Returns the lost and the gained ports.
    fn compare_ports(&self, [from, to]: EndPair<'c>, starts: &RangeStarts) -> Result<LostGained> {
        let [mut lost, mut gained] = [const { PortRanges::NONE }; 2];
        let both = |protocol, port| -> Result<[bool; 2]> {
            let allowed = |i: usize| {
                let side = |end: &PartyEnd<'_>| Party::Address(end.address);
                let probe = Probe { from: side(&from[i]), to: side(&to[i]), protocol, port };
                let ends = [&from[i], &to[i]].map(|end| (end.pod, end.address));
                match self.explainers[i].verdict_at(&probe, ends) {
                    (Verdict::Allow, _) => Ok(true),
                    (Verdict::Deny, _) => Ok(false),
                    (Verdict::Unknown, reason) => {
                        Err(anyhow!("{probe}: {}", reason.unwrap_or_default()))
                    }
                }
            };
            Ok([allowed(0)?, allowed(1)?])
        };
        for protocol in PROTOCOLS {
            for region in starts.regions(protocol) {
                match both(number(protocol), region.0)? {
                    [true, false] => lost.push(protocol, region),
                    [false, true] => gained.push(protocol, region),
                    [true, true] | [false, false] => {}
                }
            }
        }
        let [before, after] = both(IpProtocol::ICMP, 0)?;
        lost.other = before && !after;
        gained.other = after && !before;
        Ok([lost, gained])
    }

    /// Compares what a class may reach by domain names.
    fn by_names(&self, from: &Class<'c>, pairs: &mut ChangesByPair) {
        let [Some(before), Some(after)] = from.members[0].map(|end| end.pod) else { return };
        for (name, party) in &self.ends.names {
            let key = (from.party, *party);
            if from.sends_as_before || !from.names.contains(name) {
                pairs.entry(key).or_default().same = true;
                continue;
            }
            for address in &from.resolved {
                if let Some(it) = self.by_name([before, after], name, *address, &from.sends) {
                    pairs.entry(key).or_default().add(changed(it));
                }
            }
        }
    }

    /// Returns the lost and the gained ports of an address that a name resolved to, as far as the name opens it; `None`
    /// if other rules decide about all of its ports.
    fn by_name(
        &self,
        pods: [&Pod; 2],
        name: &DomainName,
        address: IpAddr,
        starts: &RangeStarts,
    ) -> Option<LostGained> {
        let [mut lost, mut gained] = [const { PortRanges::NONE }; 2];
        let mut matters = false;
        // Whether the address is allowed, and whether only the name allows it, before and after.
        let mut both = |protocol, port| {
            [0, 1].map(|i| {
                let allowed = |name| {
                    self.explainers[i].allows_named(pods[i], name, address, (protocol, port))
                };
                let by_name = allowed(Some(name));
                let only_by_name = by_name && !allowed(None);
                matters |= only_by_name;
                (by_name, only_by_name)
            })
        };
        for protocol in PROTOCOLS {
            for region in starts.regions(protocol) {
                match both(number(protocol), region.0) {
                    [(_, true), (false, _)] => lost.push(protocol, region),
                    [(false, _), (_, true)] => gained.push(protocol, region),
                    _ => {}
                }
            }
        }
        let [before, after] = both(IpProtocol::ICMP, 0);
        lost.other = before.1 && !after.0;
        gained.other = after.1 && !before.0;
        matters.then_some([lost, gained])
    }
}

/// Returns the pairs of members of two classes that are compared: two different pods, or a pod and an end that is not its
/// own node.
fn members_that_meet<'a, 'c>(
    from: &'a Class<'c>,
    to: &'a Class<'c>,
) -> impl Iterator<Item = EndPair<'c>> + use<'a, 'c> {
    let pairs = from.members.iter().flat_map(|a| to.members.iter().map(move |b| [*a, *b]));
    let key = |end: &PartyEnd<'c>| end.pod.map(|pod| &pod.key);
    let is_template = |end: &PartyEnd<'c>| end.pod.is_some_and(|pod| pod.template().is_some());
    let is_between_pods = from.kind == ClassKind::Pods && to.kind == ClassKind::Pods;
    let with_outside = [from.kind, to.kind].contains(&ClassKind::Outside);
    pairs.filter(move |[a, b]| {
        [0, 1].into_iter().all(|i| match is_between_pods {
            // A pod and itself are no pair. A template stands for any number of pods, so also for two different ones.
            true => key(&a[i]) != key(&b[i]) || is_template(&a[i]),
            // A pod and a node that is the pod's own neither before nor after, see `own_nodes`; or the outside.
            false => a[i].node != b[i].node || with_outside,
        })
    })
}

/// Picks representatives of all pairs of members: sender and receiver, before and after.
fn meetings<'c>(from: &Class<'c>, to: &Class<'c>, node_ports: bool) -> Vec<EndPair<'c>> {
    let mut pairs = members_that_meet(from, to);
    let (by_node, by_address) = (from.is_by_node(to, node_ports), from.is_by_address(to));
    if !by_node && !by_address {
        return pairs.next().into_iter().collect();
    }
    let mut found = BTreeMap::new();
    for sides in pairs {
        let [from, to] = &sides;
        let nodes = by_node.then(|| sides.map(|side| side.map(|end| end.node)));
        let lists = [0, 1].map(|i| [from[i].lists(&to[i]), to[i].lists(&from[i])]);
        found.entry((nodes, lists)).or_insert(sides);
    }
    found.into_values().collect()
}

fn number(protocol: Protocol) -> IpProtocol {
    IpProtocol(protocol.number())
}

#[cfg(test)]
mod tests;
