//! Pods without an address: pods of manifests, which have no status, and pods of templates.
//!
//! Labels and ports of such a pod are known, its address is not. Where an ipBlock matters, the pod is judged at one
//! address for each set of addresses that the blocks of the evaluated policies distinguish. If these verdicts differ,
//! the answer is unknown. The sender's verdict depends on the receiver's address alone, and vice versa.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::cluster::{Cluster, is_unaddressed};
use crate::explain::answer::{Detail, Explanation, Judgement, Verdict};
use crate::explain::blocks::Blocks;
use crate::model::{Direction, Peer, Pod, Rule};
use crate::probe::Probe;

/// Maximum number of blocks that are evaluated for one pod; with more the answer is unknown.
const BLOCKS: usize = 256;

/// A sample address of a block, representative of all equivalent addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleAddress {
    address: IpAddr,
    block: IpNet,
}

/// One side of a probe.
#[derive(Clone)]
pub(super) struct ProbeEnd<'c> {
    pub(super) pod: Option<&'c Pod>,
    pub(super) addresses: Vec<IpAddr>,
    /// Sample addresses of a pod without an address, instead of `addresses`.
    pub(super) places: Vec<SampleAddress>,
    /// Without a pod: the pods that claim the address on a secondary network, which counts for none of them.
    pub(super) claimants: Vec<&'c Pod>,
}

impl<'c> ProbeEnd<'c> {
    /// Returns the side of a pod or of no pod at these addresses.
    pub(super) fn new(pod: Option<&'c Pod>, addresses: Vec<IpAddr>) -> Self {
        Self { pod, addresses, places: Vec::new(), claimants: Vec::new() }
    }
}

/// Verdicts at several places.
#[derive(Default)]
struct SampleVerdicts {
    allowed: Vec<SampleAddress>,
    denied: Vec<SampleAddress>,
}

impl SampleVerdicts {
    fn add(&mut self, place: SampleAddress, judgement: Option<&Judgement>) {
        match judgement.is_some_and(|judgement| judgement.verdict == Verdict::Deny) {
            true => self.denied.push(place),
            false => self.allowed.push(place),
        }
    }

    /// Returns an allowed and a denied place if the verdict depends on the address.
    fn differ(&self) -> Option<(SampleAddress, SampleAddress)> {
        Some((*self.allowed.first()?, *self.denied.first()?))
    }
}

/// Fills in the places of pods without an address.
pub(super) fn give_places<'c>(
    cluster: &'c Cluster,
    ranges: &[IpNet],
    from: &mut ProbeEnd<'c>,
    to: &mut ProbeEnd<'c>,
) {
    let lacks = |side: &ProbeEnd<'_>| side.pod.is_some_and(is_unaddressed);
    if lacks(from) {
        from.places = match to.pod {
            Some(pod) => places(cluster, ranges, named(cluster, pod, Direction::Ingress)),
            // Any pod may be behind an address.
            None => places(cluster, ranges, all_named(cluster, Direction::Ingress)),
        };
    }
    if lacks(to) {
        let blocks = from.pod.map(|pod| named(cluster, pod, Direction::Egress));
        to.places = places(cluster, ranges, blocks.unwrap_or_default());
    }
}

/// Returns one place for each set of addresses in the ranges that the blocks distinguish.
pub(super) fn places(
    cluster: &Cluster,
    ranges: &[IpNet],
    blocks: BTreeSet<IpNet>,
) -> Vec<SampleAddress> {
    let blocks = Blocks::new(blocks.into_iter().chain(ranges.iter().copied()));
    let is_known = |address| {
        cluster.owner(address).is_some()
            || cluster.nodes.with(address).is_some()
            || cluster.service_at(address).is_some()
    };
    let within = blocks.iter().filter(|block| ranges.iter().any(|r| r.contains(block)));
    let place = |block| Some(SampleAddress { address: blocks.sample(block, is_known)?, block });
    within.take(BLOCKS + 1).filter_map(place).collect()
}

/// Answers a probe in which a side has no address.
pub(super) fn explain_places(
    probe: &Probe,
    from: &ProbeEnd<'_>,
    to: &ProbeEnd<'_>,
    detail: Detail,
    explain_pair: impl Fn((IpAddr, IpAddr), Detail) -> Explanation,
) -> Explanation {
    for side in [from, to] {
        if side.places.len() > BLOCKS {
            let title = side.pod.map(Pod::title).unwrap_or_default();
            let reason = format!(
                "{title} has no address, and more than {BLOCKS} blocks would have to be evaluated for it"
            );
            return Explanation::unknown(probe, reason);
        }
    }
    let at = |side: &ProbeEnd<'_>| -> Vec<SampleAddress> {
        let known =
            side.addresses.iter().map(|a| SampleAddress { address: *a, block: IpNet::from(*a) });
        known.chain(side.places.iter().copied()).collect()
    };
    let (sources, destinations) = (at(from), at(to));
    let pairs = sources.iter().flat_map(|a| {
        let same = move |b: &&SampleAddress| a.address.is_ipv4() == b.address.is_ipv4();
        destinations.iter().filter(same).map(move |b| (*a, *b))
    });
    let pairs: Vec<(SampleAddress, SampleAddress)> = pairs.collect();
    let Some((source, destination)) = pairs.first().copied() else {
        let reason = "the two sides have no address family in common".to_owned();
        return Explanation::unknown(probe, reason);
    };
    let explain = |source: SampleAddress, destination: SampleAddress, detail| {
        explain_pair((source.address, destination.address), detail)
    };
    let answer = explain(source, destination, detail);
    if !answer.services.is_empty() {
        return explain_behind(&sources, answer, from, |a| explain(a, destination, detail));
    }
    let (mut sent, mut received) = (SampleVerdicts::default(), SampleVerdicts::default());
    let mut asked: [BTreeSet<IpAddr>; 2] = Default::default();
    for (a, b) in &pairs {
        if asked[0].insert(b.address) {
            sent.add(*b, explain(*a, *b, Detail::Verdict).egress.as_ref());
        }
        if asked[1].insert(a.address) {
            received.add(*a, explain(*a, *b, Detail::Verdict).ingress.as_ref());
        }
    }
    if sent.allowed.is_empty() || received.allowed.is_empty() {
        return Explanation { verdict: Verdict::Deny, ..answer };
    }
    let depends = [(sent.differ(), to), (received.differ(), from)];
    let reasons = depends.into_iter().filter_map(|(places, side)| Some(depends_on(side, places?)));
    let reasons: Vec<String> = reasons.collect();
    if reasons.is_empty() {
        return answer;
    }
    let pick = |verdicts: &SampleVerdicts, other| verdicts.denied.first().copied().unwrap_or(other);
    let answer = explain(pick(&received, source), pick(&sent, destination), detail);
    Explanation { verdict: Verdict::Unknown, reason: Some(reasons.join("; ")), ..answer }
}

/// Answers for traffic of a pod without an address to a translated destination.
fn explain_behind(
    sources: &[SampleAddress],
    first: Explanation,
    from: &ProbeEnd<'_>,
    explain: impl Fn(SampleAddress) -> Explanation,
) -> Explanation {
    let same_family =
        |place: &&SampleAddress| place.address.is_ipv4() == sources[0].address.is_ipv4();
    for place in sources.iter().filter(same_family).skip(1) {
        let other = explain(*place);
        if other.verdict != first.verdict {
            let places = match first.verdict {
                Verdict::Allow => (sources[0], *place),
                Verdict::Deny | Verdict::Unknown => (*place, sources[0]),
            };
            let reason = Some(depends_on(from, places));
            return Explanation { verdict: Verdict::Unknown, reason, ..first };
        }
    }
    first
}

fn depends_on(side: &ProbeEnd<'_>, (allowed, denied): (SampleAddress, SampleAddress)) -> String {
    let title = side.pod.map(Pod::title).unwrap_or_default();
    if side.places.is_empty() {
        let (allowed, denied) = (allowed.address, denied.address);
        return format!(
            "it depends on the address: {title} is allowed at {allowed} and denied at {denied}; give addresses"
        );
    }
    let (allowed, denied) = (allowed.block, denied.block);
    if !side.pod.is_some_and(is_unaddressed) {
        return format!(
            "it depends on the address of {title} on the secondary network, which its annotation lacks: allowed in \
             {allowed}, denied in {denied}; give addresses"
        );
    }
    format!(
        "it depends on the address that {title} gets, which labels do not determine: allowed in {allowed}, denied in \
         {denied}; narrower blocks of pods' addresses may decide"
    )
}

/// Returns the blocks of a pod's policies, which distinguish addresses of the other side.
pub(super) fn named(cluster: &Cluster, pod: &Pod, direction: Direction) -> BTreeSet<IpNet> {
    let about = cluster.policies_about((pod, true), direction);
    let policies = about.selecting().filter_map(|policy| policy.rules(direction)).flatten();
    let tiers = about.of_cluster().flat_map(|policy| policy.rules(direction));
    policies.chain(tiers.map(|rule| &rule.matches)).flat_map(blocks_of).collect()
}

/// Returns the blocks of all pods' policies.
fn all_named(cluster: &Cluster, direction: Direction) -> BTreeSet<IpNet> {
    let policies =
        cluster.policies().values().filter_map(|policy| policy.rules(direction)).flatten();
    let tiers = cluster.cluster_policies().flat_map(|policy| policy.rules(direction));
    policies.chain(tiers.map(|rule| &rule.matches)).flat_map(blocks_of).take(BLOCKS + 1).collect()
}

fn blocks_of(rule: &Rule) -> impl Iterator<Item = IpNet> + '_ {
    rule.peers.iter().flatten().flat_map(|peer| {
        let block = if let Peer::Block(block) = peer { Some(block) } else { None };
        block.into_iter().flat_map(|block| [block.cidr].into_iter().chain(block.except.clone()))
    })
}
