//! Difference of the connectivity matrices of two clusters.
//!
//! The matrices themselves are never built: unchanged pairs are skipped, members of a class share an answer, and so do
//! ports between which no rule's range begins or ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Result, anyhow, bail};
use ipnet::IpNet;
use netpold_core::cluster::Cluster;
use netpold_core::explain::{Explainer, Verdict};
use netpold_core::model::{DomainName, Pod, Protocol};
use netpold_core::probe::{IpProtocol, Party as Side, Probe};

use super::ends::{Class, End, Ends, Kind, ends};
use super::isolation::Isolation;
use super::ports::{PROTOCOLS, Ports};
use super::rules::Starts;
use super::{Change, Difference};

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
    let ends = ends([before, after], ranges);
    let asking =
        Asking { ends: &ends, explainers: [Explainer::new(before), Explainer::new(after)] };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = ends.classes.len().div_ceil(threads * 8).max(1);
    let parts: Vec<&[Class<'_>]> = ends.classes.chunks(part).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut pairs = Pairs::new();
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            for from in *part {
                if ended.load(Ordering::Relaxed) {
                    bail!("nobody waits for the comparison");
                }
                asking.from(from, &mut pairs)?;
                asking.by_names(from, &mut pairs);
            }
        }
        Ok(pairs)
    };
    let done: Vec<Result<Pairs>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect()
    });
    let mut pairs = Pairs::new();
    for part in done {
        for (key, pair) in part? {
            let known: &mut Pair = pairs.entry(key).or_default();
            known.same |= pair.same;
            known.changes.extend(pair.changes);
        }
    }
    let mut of_parties = vec![Vec::new(); ends.parties.len()];
    ends.classes.iter().for_each(|class| of_parties[class.party].push(class));
    // A cluster has a million pairs that nothing changes: they are not counted, but looked up for the changed ones.
    for ((from, to), pair) in pairs.iter_mut().filter(|(_, pair)| !pair.changes.is_empty()) {
        let mut members =
            of_parties[*from].iter().flat_map(|a| of_parties[*to].iter().map(move |b| (a, b)));
        pair.same |= members.any(|(a, b)| do_meet(a, b) && is_unchanged(a, b));
    }
    let changes =
        pairs.into_iter().filter_map(|((from, to), pair)| pair.change(from, to)).collect();
    let compared = ends.classes.iter().filter(|class| class.kind == Kind::Pods);
    let compared: BTreeSet<usize> = compared.map(|class| class.party).collect();
    let mut isolation = Isolation::new([before, after], &ends.parties, &compared, ends.left_out);
    isolation.unknown.extend(ends.not_compared);
    Ok(Difference { parties: ends.parties, changes, isolation, notes: Vec::new() })
}

/// Indexes of sender and receiver among the parties, and an address of each, before and after.
type Meeting<'c> = ((usize, usize), [[End<'c>; 2]; 2]);
/// Results by pair of parties.
type Pairs = BTreeMap<(usize, usize), Pair>;

/// Changes from members of one party to members of another.
#[derive(Default)]
struct Pair {
    /// Whether some pair of members is unchanged.
    same: bool,
    /// Lost and gained ports of each changed pair of members.
    changes: Vec<[Ports; 2]>,
}

impl Pair {
    fn change(self, from: usize, to: usize) -> Option<Change> {
        let first = self.changes.first()?;
        let some = self.same || self.changes.iter().any(|change| change != first);
        let [mut loses, mut gains] = first.clone();
        for [lost, gained] in &self.changes[1..] {
            loses.add(lost);
            gains.add(gained);
        }
        Some(Change { from, to, loses, gains, some })
    }
}

/// Returns whether members of two classes are compared: one side is a pod, and both have addresses of one family.
fn do_meet(from: &Class<'_>, to: &Class<'_>) -> bool {
    from.is_ipv6() == to.is_ipv6() && [from.kind, to.kind].contains(&Kind::Pods)
}

/// Returns whether nothing that matters between two classes has changed.
fn is_unchanged(from: &Class<'_>, to: &Class<'_>) -> bool {
    from.sends_as_before && to.receives_as_before
}

struct Asking<'a, 'c> {
    ends: &'a Ends<'c>,
    explainers: [Explainer<'c>; 2],
}

impl<'c> Asking<'_, 'c> {
    fn from(&self, from: &Class<'c>, pairs: &mut Pairs) -> Result<()> {
        for to in &self.ends.classes {
            if !do_meet(from, to) {
                continue;
            }
            if is_unchanged(from, to) {
                continue;
            }
            let mut starts = from.sends.clone();
            starts.add(&to.receives);
            if to.special || to.kind == Kind::Nodes {
                starts.add(&self.ends.translated);
            }
            for (key, sides) in meetings(from, to, self.ends.node_ports) {
                let change = self.ask(sides, &starts)?;
                let pair = pairs.entry(key).or_default();
                if change.iter().all(Ports::is_empty) {
                    pair.same = true;
                } else {
                    pair.changes.push(change);
                }
            }
        }
        self.own_nodes(from, pairs)
    }

    /// Compares connections of pods to their own nodes, and from there.
    fn own_nodes(&self, pods: &Class<'c>, pairs: &mut Pairs) -> Result<()> {
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
                let change = if same { None } else { Some(self.ask(sides, starts)?) };
                let pair = pairs.entry(key).or_default();
                match change.filter(|change| !change.iter().all(Ports::is_empty)) {
                    Some(change) => pair.changes.push(change),
                    None => pair.same = true,
                }
            }
        }
        Ok(())
    }

    /// Returns the lost and the gained ports.
    fn ask(&self, [from, to]: [[End<'c>; 2]; 2], starts: &Starts) -> Result<[Ports; 2]> {
        let [mut lost, mut gained] = [const { Ports::NONE }; 2];
        let both = |protocol, port| -> Result<[bool; 2]> {
            let allowed = |i: usize| {
                let side = |end: &End<'_>| Side::Address(end.address);
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
    fn by_names(&self, from: &Class<'c>, pairs: &mut Pairs) {
        let [Some(before), Some(after)] = from.members[0].map(|end| end.pod) else { return };
        for (name, party) in &self.ends.names {
            let key = (from.party, *party);
            if from.sends_as_before || !from.names.contains(name) {
                pairs.entry(key).or_default().same = true;
                continue;
            }
            for address in &from.resolved {
                match self.by_name([before, after], name, *address, &from.sends) {
                    Some(change) if !change.iter().all(Ports::is_empty) => {
                        pairs.entry(key).or_default().changes.push(change);
                    }
                    Some(_) => pairs.entry(key).or_default().same = true,
                    None => {}
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
        starts: &Starts,
    ) -> Option<[Ports; 2]> {
        let [mut lost, mut gained] = [const { Ports::NONE }; 2];
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

/// Picks representatives of all pairs of members: sender and receiver, before and after.
fn meetings<'c>(from: &Class<'c>, to: &Class<'c>, node_ports: bool) -> Vec<Meeting<'c>> {
    let meeting = |sides| ((from.party, to.party), sides);
    let mut pairs = from.members.iter().flat_map(|a| to.members.iter().map(move |b| [*a, *b]));
    let key = |end: &End<'c>| end.pod.map(|pod| &pod.key);
    let is_template = |end: &End<'c>| end.pod.is_some_and(|pod| pod.template().is_some());
    let is_between_pods = from.kind == Kind::Pods && to.kind == Kind::Pods;
    let do_meet = |[a, b]: &[[End<'c>; 2]; 2]| {
        [0, 1].into_iter().all(|i| match is_between_pods {
            // A pod and itself are no pair. A template stands for any number of pods, so also for two different ones.
            true => key(&a[i]) != key(&b[i]) || is_template(&a[i]),
            // A pod and a node that is the pod's own neither before nor after, see `own_nodes`; or the outside.
            false => a[i].node != b[i].node || [from.kind, to.kind].contains(&Kind::Outside),
        })
    };
    if !from.is_by_node(to, node_ports) {
        return pairs.find(do_meet).map(meeting).into_iter().collect();
    }
    let mut found = BTreeMap::new();
    for sides in pairs.filter(do_meet) {
        found.entry(sides.map(|side| side.map(|end| end.node))).or_insert(sides);
    }
    found.into_values().map(meeting).collect()
}

fn number(protocol: Protocol) -> IpProtocol {
    IpProtocol(protocol.number())
}
