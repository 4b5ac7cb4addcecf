//! Verdicts on pairs of classes at every port.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netpold_core::cluster::Cluster;
use netpold_core::explain::{Explainer, Verdict};
use netpold_core::model::Enforcement;
use netpold_core::probe::{IpProtocol, Party, Probe};

use super::class::{Class, ClassKind, PartyEnd, PartyEnds};
use super::party::DiffParty;
use super::peers::{ClassPair, Remote};
use super::ports::{FIRST_PORT, PROTOCOLS, PortRanges};
use super::rules::RangeStarts;

/// Result of a pair of classes.
pub(super) struct PairVerdict {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) allowed: PortRanges,
    pub(super) on_trial: PortRanges,
    pub(super) asked: (IpProtocol, u16),
}

/// Evaluates pairs of classes.
pub(super) struct PairJudge<'a, 'c> {
    ends: &'a PartyEnds<'c>,
    explainer: Explainer<'c>,
    with_trials: Option<Explainer<'c>>,
}

impl<'a, 'c> PairJudge<'a, 'c> {
    pub(super) fn new(cluster: &'c Cluster, ends: &'a PartyEnds<'c>) -> Self {
        let explainer = Explainer::new(cluster);
        let mut all = cluster.policies().values().map(|policy| policy.enforcement);
        let mut tiers = cluster.cluster_policies().map(|policy| policy.enforcement);
        let is_trial = |enforcement| enforcement == Enforcement::Audit;
        let any = all.any(is_trial) || tiers.any(is_trial);
        Self { ends, explainer, with_trials: any.then(|| explainer.with_trials()) }
    }

    /// Evaluates a pair; with several results if these may depend on the nodes or the addresses of pods.
    pub(super) fn pair(&self, (from, to): ClassPair) -> Vec<PairVerdict> {
        let from = &self.ends.classes[from];
        match to {
            Remote::Class(to) => self.classes(from, &self.ends.classes[to]),
            Remote::Name(party) => self.name(from, party).into_iter().collect(),
        }
    }

    fn classes(&self, from: &Class<'c>, to: &Class<'c>) -> Vec<PairVerdict> {
        if from.is_ipv6() != to.is_ipv6() || ![from.kind, to.kind].contains(&ClassKind::Pods) {
            return Vec::new();
        }
        let mut starts = from.sends.clone();
        starts.add(&to.receives);
        if to.special || to.kind == ClassKind::Nodes {
            starts.add(&self.ends.translated);
        }
        let judged = meetings(from, to, self.ends.node_ports).into_iter().map(|sides| {
            let verdict = |explainer: &Explainer<'c>, protocol, port| {
                let [from, to] = sides.map(|end| Party::Address(end.address));
                let probe = Probe { from, to, protocol, port };
                let ends = sides.map(|end| (end.pod, end.address));
                explainer.verdict_at(&probe, ends).0 == Verdict::Allow
            };
            self.at_ports((from.party, to.party), &starts, verdict)
        });
        judged.collect()
    }

    fn name(&self, from: &Class<'c>, party: usize) -> Option<PairVerdict> {
        let DiffParty::Name(name) = &self.ends.parties[party] else { return None };
        let pod = from.members[0][0].pod?;
        let address: IpAddr = *from.resolved.first()?;
        let verdict = |explainer: &Explainer<'c>, protocol, port| {
            explainer.allows_named(pod, Some(name), address, (protocol, port))
        };
        Some(self.at_ports((from.party, party), &from.sends, verdict))
    }

    fn at_ports(
        &self,
        (from, to): (usize, usize),
        starts: &RangeStarts,
        verdict: impl Fn(&Explainer<'c>, IpProtocol, u16) -> bool,
    ) -> PairVerdict {
        let [mut allowed, mut on_trial] = [const { PortRanges::NONE }; 2];
        let (mut asked, mut distinct) = (None, None);
        // Whether the port is allowed, and whether it still is if trials are enforced.
        let both = |protocol, port| {
            let now = verdict(&self.explainer, protocol, port);
            (now, self.with_trials.as_ref().is_none_or(|it| !now || verdict(it, protocol, port)))
        };
        for protocol in PROTOCOLS {
            let number = IpProtocol(protocol.number());
            for region in starts.regions(protocol) {
                let (now, then) = both(number, region.0);
                if now {
                    allowed.push(protocol, region);
                    asked = asked.or(Some((number, region.0)));
                }
                if now && !then {
                    on_trial.push(protocol, region);
                }
                if region.0 > FIRST_PORT {
                    distinct = distinct.or(Some((number, region.0)));
                }
            }
        }
        let (now, then) = both(IpProtocol::ICMP, 0);
        (allowed.other, on_trial.other) = (now, now && !then);
        let asked = asked.or(distinct).unwrap_or((IpProtocol::TCP, FIRST_PORT));
        PairVerdict { from, to, allowed, on_trial, asked }
    }
}

/// Returns members of two classes that are two ends: not one pod twice, and if possible not a pod and its own node. One
/// pair, or one of each pair of nodes if these may matter, and of each exemption by address.
fn meetings<'c>(from: &Class<'c>, to: &Class<'c>, node_ports: bool) -> Vec<[PartyEnd<'c>; 2]> {
    let key = |end: &PartyEnd<'c>| end.pod.map(|pod| &pod.key);
    let is_template = |end: &PartyEnd<'c>| end.pod.is_some_and(|pod| pod.template().is_some());
    let apart = |[a, b]: &[PartyEnd<'c>; 2]| key(a) != key(b) || is_template(a);
    let all = || {
        let all = from.members.iter().flat_map(|a| to.members.iter().map(move |b| [a[0], b[0]]));
        all.filter(apart)
    };
    let with_nodes = [from.kind, to.kind].contains(&ClassKind::Nodes);
    let is_elsewhere = |[a, b]: &[PartyEnd<'c>; 2]| !with_nodes || a.node != b.node;
    let mut found = BTreeMap::new();
    let (by_node, by_address) = (from.is_by_node(to, node_ports), from.is_by_address(to));
    if by_node || by_address {
        for sides in all().filter(is_elsewhere) {
            let [a, b] = &sides;
            let nodes = if by_node { sides.map(|end| end.node) } else { [""; 2] };
            found.entry((nodes, [a.lists(b), b.lists(a)])).or_insert(sides);
        }
    } else if let Some(sides) = all().find(is_elsewhere) {
        found.insert(([""; 2], [false; 2]), sides);
    }
    if found.is_empty() {
        return all().next().into_iter().collect();
    }
    found.into_values().collect()
}
