//! Reasons for an allowed or denied probe, as text and as JSON.
//!
//! An [`Explainer`] reads the same cluster state that the compiler reads. For each probe it evaluates the policies
//! literally, as the API describes them, and records the deciding or passing rule of a tier, the isolating policies,
//! the allowing rule, or the nearest rule and the conditions that it lacks. Tests compare its verdicts with the
//! oracle and with the compiled tables.

mod allowing;
mod answer;
mod blocks;
mod by_name;
mod lacks;
mod literal;
mod resolved;
mod rule;
mod secondary;
mod services;
mod text;
mod tiers;
mod unaddressed;

pub use allowing::{Allowing, AllowingRules, PodFlow, RuleIndex, accepted};
pub use answer::{
    Cause, Explanation, JudgedTemplate, Judgement, MatchedTierRule, Nearest, PolicyProblem,
    RuleRef, ServiceBackend, TierPolicy, TierProblem, Verdict,
};
pub use blocks::Blocks;
pub use by_name::{NameAnswer, NamePart, ResolvedWithin};
pub use literal::PodAt;
pub use resolved::ResolvedNames;
pub use text::peer_text;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::cluster::Cluster;
use crate::model::{Direction, DomainName, Key, Pod};
use crate::probe::{IpProtocol, Party, Probe};
use answer::Detail;
use literal::Literal;
use secondary::SecondarySides;
use services::{ServiceTranslator, backends, frontends};
use unaddressed::ProbeEnd;

/// Evaluator of probes against a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Explainer<'c> {
    cluster: &'c Cluster,
    translated: ServiceTranslator<'c>,
    /// Address ranges of pods that have no address.
    ranges: &'c [IpNet],
    /// Addresses of tunnels, by node.
    tunnels: Option<&'c BTreeMap<String, Vec<IpAddr>>>,
}

impl<'c> Explainer<'c> {
    /// Returns an explainer of this cluster.
    #[must_use]
    pub fn new(cluster: &'c Cluster) -> Self {
        Self {
            cluster,
            translated: ServiceTranslator { literal: Literal::new(cluster) },
            ranges: &[],
            tunnels: None,
        }
    }

    /// Also judges pods without an address: by their labels and ports, and as if they had any address of these ranges.
    #[must_use]
    pub fn with_ranges(mut self, ranges: &'c [IpNet]) -> Self {
        self.ranges = ranges;
        self
    }

    /// Also judges hostNetwork pods at the addresses of their nodes' tunnels, from which their packets to pods of other
    /// nodes may come.
    #[must_use]
    pub fn with_tunnels(mut self, tunnels: &'c BTreeMap<String, Vec<IpAddr>>) -> Self {
        self.tunnels = Some(tunnels);
        self
    }

    /// Matches domain names with the addresses that pods resolved. Without this call, a name matches no address.
    #[must_use]
    pub fn with_resolved(mut self, resolved: &'c ResolvedNames) -> Self {
        self.translated.literal.resolved = Some(resolved);
        self
    }

    /// Treats audited policies (`netpold.io/enforcement: audit`) as enforced.
    #[must_use]
    pub fn with_trials(mut self) -> Self {
        self.translated.literal.with_trials = true;
        self
    }

    /// Answers a probe with reasons.
    #[must_use]
    pub fn explain(&self, probe: &Probe) -> Explanation {
        self.explain_probe(probe, Detail::Reasons)
    }

    /// Answers a probe quickly: the verdict, and for [`Verdict::Unknown`] its reason.
    #[must_use]
    pub fn verdict(&self, probe: &Probe) -> (Verdict, Option<String>) {
        let answer = self.explain_probe(probe, Detail::Verdict);
        (answer.verdict, answer.reason)
    }

    /// Returns the verdict on traffic between pods at given addresses; the probe's own sides serve only as names.
    #[must_use]
    pub fn verdict_at(
        &self,
        probe: &Probe,
        [from, to]: [PodAt<'c>; 2],
    ) -> (Verdict, Option<String>) {
        let side = |(pod, address)| ProbeEnd::new(pod, vec![address]);
        let answer = self.explain_sides(probe, &side(from), &side(to), Detail::Verdict);
        (answer.verdict, answer.reason)
    }

    /// Returns whether one direction of traffic between two different ends is allowed: egress at the sender, or ingress
    /// at the receiver. Traffic that nothing translates is allowed if both directions are.
    #[must_use]
    pub fn allows_one_way(
        &self,
        direction: Direction,
        ends: [PodAt<'c>; 2],
        kind: (IpProtocol, u16),
    ) -> bool {
        let literal = &self.translated.literal;
        let judgement = literal.judge_one_way(direction, ends, (kind, None), Detail::Verdict);
        judgement.is_none_or(|it| it.verdict == Verdict::Allow)
    }

    fn explain_probe(&self, probe: &Probe, detail: Detail) -> Explanation {
        match self.sides(probe) {
            Ok(sides) => {
                let templates = [&sides.0, &sides.1].map(|side| JudgedTemplate::of(side.pod?));
                let mut answer = self.explain_secondary(probe, sides, detail);
                if detail == Detail::Reasons {
                    answer.templates = templates.into_iter().flatten().collect();
                    answer.templates.dedup();
                }
                answer
            }
            Err(reason) => Explanation::unknown(probe, reason),
        }
    }

    /// Judges every pair of pods and addresses that secondary networks make possible; differing verdicts give
    /// [`Verdict::Unknown`].
    fn explain_secondary(
        &self,
        probe: &Probe,
        (from, to): (ProbeEnd<'c>, ProbeEnd<'c>),
        detail: Detail,
    ) -> Explanation {
        let second = SecondarySides { cluster: self.cluster, ranges: self.ranges };
        let mut first: Option<(Explanation, [Option<&Pod>; 2])> = None;
        for (from, to) in second.pairs(probe, from, to) {
            let answer = self.explain_sides(probe, &from, &to, detail);
            let answer = second.with_claims(answer, [&from, &to], detail);
            let pods = [from.pod, to.pod];
            match &first {
                _ if answer.verdict == Verdict::Unknown => return answer,
                None => first = Some((answer, pods)),
                Some((other, of_other)) if other.verdict != answer.verdict => {
                    let reason = secondary::depends_on_pod([(other, *of_other), (&answer, pods)]);
                    let (verdict, reason) = (Verdict::Unknown, Some(reason));
                    return Explanation { verdict, reason, ..answer };
                }
                Some(_) => {}
            }
        }
        first.map_or_else(|| Explanation::unknown(probe, String::new()), |(answer, _)| answer)
    }

    fn sides(&self, probe: &Probe) -> Result<(ProbeEnd<'c>, ProbeEnd<'c>), String> {
        let (mut from, mut to) = (self.side(&probe.from)?, self.side(&probe.to)?);
        if matches!(probe.from, Party::Pod(_))
            && let Some(node) = from.pod.filter(|pod| pod.host_network).map(|pod| &pod.node)
            && let Some(tunnels) = self.tunnels.and_then(|tunnels| tunnels.get(node.as_str()))
        {
            let further = tunnels.iter().filter(|it| !from.addresses.contains(it));
            let further: Vec<IpAddr> = further.copied().collect();
            from.addresses.extend(further);
        }
        unaddressed::give_places(self.cluster, self.ranges, &mut from, &mut to);
        let leads_to_pod = || to.addresses.iter().any(|a| self.translated.leads_to_pod(*a, probe));
        let has_pod = |side: &ProbeEnd<'_>| side.pod.is_some() || !side.claimants.is_empty();
        if !has_pod(&from) && !has_pod(&to) && !leads_to_pod() {
            return Err(format!("neither {} nor {} is a pod's address", probe.from, probe.to));
        }
        Ok((from, to))
    }

    fn side(&self, party: &Party) -> Result<ProbeEnd<'c>, String> {
        let key = match party {
            Party::Address(address) => {
                let pod = self.cluster.owner(*address).map(|pod| &**pod);
                let refused = || self.cluster.refused_claimants(*address);
                let claimants = if pod.is_none() { refused() } else { Vec::new() };
                let claimants = claimants.into_iter().map(|pod| &**pod).collect();
                return Ok(ProbeEnd { claimants, ..ProbeEnd::new(pod, vec![*address]) });
            }
            Party::Service(key) => {
                let translation = &self.cluster.translation;
                if translation.is_unserved(key) {
                    return Err(format!(
                        "Service {key} is left to another proxy (label service.kubernetes.io/service-proxy-name or \
                         service.kubernetes.io/headless): nothing is translated at its addresses; name its pods \
                         instead"
                    ));
                }
                let service = translation.services().get(key);
                let service = service.ok_or_else(|| format!("Service {key} not found"))?;
                if service.addresses.is_empty() {
                    return Err(format!(
                        "Service {key} has no address: it is headless, or an ExternalName; name its pods, or the \
                         addresses of that name, instead"
                    ));
                }
                let addresses = service.addresses.clone();
                return Ok(ProbeEnd::new(None, addresses));
            }
            Party::Pod(key) => key,
        };
        let pod = self.cluster.pods().get(key).ok_or_else(|| format!("pod {key} not found"))?;
        if pod.finished {
            return Err(format!("pod {key} is finished (Succeeded or Failed): it has no traffic"));
        }
        if pod.addresses.is_empty() && (self.ranges.is_empty() || pod.host_network) {
            return Err(match pod.host_network {
                true => format!("pod {key} uses its node's network, and the node is not known"),
                false => format!("pod {key} has no address (yet)"),
            });
        }
        let addresses = pod.addresses.clone();
        Ok(ProbeEnd::new(Some(&**pod), addresses))
    }

    /// Judges every pair of addresses of one family; differing verdicts give [`Verdict::Unknown`].
    fn explain_sides(
        &self,
        probe: &Probe,
        from: &ProbeEnd<'_>,
        to: &ProbeEnd<'_>,
        detail: Detail,
    ) -> Explanation {
        if !from.places.is_empty() || !to.places.is_empty() {
            return unaddressed::explain_places(probe, from, to, detail, |pair, detail| {
                self.explain_pair(probe, from, to, pair, detail)
            });
        }
        let pairs = from.addresses.iter().flat_map(|&source| {
            let same_family = move |to: &&IpAddr| to.is_ipv4() == source.is_ipv4();
            to.addresses.iter().filter(same_family).map(move |&to| (source, to))
        });
        let mut first: Option<(Explanation, (IpAddr, IpAddr))> = None;
        for pair in pairs {
            let this = self.explain_pair(probe, from, to, pair, detail);
            let Some((first, other)) = &first else {
                first = Some((this, pair));
                continue;
            };
            if this.verdict != first.verdict {
                let reason =
                    text::depends_on_address((first.verdict, *other), (this.verdict, pair));
                let denied = if this.verdict == Verdict::Deny { this } else { first.clone() };
                let (verdict, reason) = (Verdict::Unknown, Some(reason));
                return Explanation { verdict, reason, ..denied };
            }
        }
        first.map_or_else(
            || {
                let reason = "the two sides have no address family in common".to_owned();
                Explanation::unknown(probe, reason)
            },
            |(first, _)| first,
        )
    }

    fn explain_pair(
        &self,
        probe: &Probe,
        from: &ProbeEnd<'_>,
        to: &ProbeEnd<'_>,
        (source, destination): (IpAddr, IpAddr),
        detail: Detail,
    ) -> Explanation {
        // Two pods of one template are different pods: the exemption for a pod's traffic to itself does not apply.
        let itself = from
            .pod
            .is_some_and(|a| to.pod.is_some_and(|b| a.key == b.key && a.template().is_none()));
        let pair = (source, destination);
        if !itself && let Some(answer) = self.translated.explain(probe, from.pod, pair, detail) {
            return answer;
        }
        let (from, to) = ((from.pod, source), (to.pod, destination));
        let kind = (probe.protocol, probe.port);
        let literal = &self.translated.literal;
        let (egress, ingress) = literal.judge_pair(from, to, (kind, None), detail);
        let verdict = Verdict::combine([&egress, &ingress]);
        Explanation::judged(probe, verdict, None, egress, ingress)
    }

    /// Judges connections of a pod to the addresses that it resolved a name to; a wildcard represents the names below
    /// it that no other name of the pod's rules matches.
    ///
    /// # Errors
    /// The pod does not exist or has no traffic, no address can be judged, or there are too many blocks; as text.
    pub fn by_name(
        &self,
        pod: &Key,
        name: &DomainName,
        within: &ResolvedWithin,
        kind: (IpProtocol, u16),
    ) -> Result<NameAnswer, String> {
        self.translated.literal.by_name(pod, name, within, kind)
    }

    /// Returns whether policy allows a pod's connection to an address that it resolved a name to; without a name, as if
    /// it had resolved none.
    #[must_use]
    pub fn allows_named(
        &self,
        pod: &Pod,
        name: Option<&DomainName>,
        remote: IpAddr,
        kind: (IpProtocol, u16),
    ) -> bool {
        let literal = &self.translated.literal;
        literal.judge_named(pod, name, remote, kind, Detail::Verdict).verdict == Verdict::Allow
    }

    /// Explains the verdict of [`Explainer::allows_named`].
    #[must_use]
    pub fn explain_named(
        &self,
        pod: &Pod,
        name: &DomainName,
        remote: IpAddr,
        kind: (IpProtocol, u16),
    ) -> Judgement {
        self.translated.literal.judge_named(pod, Some(name), remote, kind, Detail::Reasons)
    }

    /// Returns the audited policies that would deny a flow at one pod, as in [`Judgement::denied_on_trial`]; empty if
    /// they would not. The flow itself counts as allowed. `port` is the destination port.
    #[must_use]
    pub fn denied_on_trial(
        &self,
        pod: &Pod,
        direction: Direction,
        remote: IpAddr,
        protocol: IpProtocol,
        port: u16,
    ) -> Vec<Key> {
        if !self.cluster.policies_about((pod, true), direction).is_on_trial() {
            return Vec::new();
        }
        let judge = self.with_trials().translated;
        let kind = (protocol, port);
        let judgement = judge.judge_at_veth(pod, direction, remote, kind, Detail::Reasons);
        match judgement.verdict {
            Verdict::Deny => judge.literal.denying_on_trial(pod, &judgement),
            Verdict::Allow | Verdict::Unknown => Vec::new(),
        }
    }

    /// Returns whether one direction at one pod is allowed, like [`Explainer::judge`] but faster.
    #[must_use]
    pub fn allows(
        &self,
        pod: &Key,
        direction: Direction,
        remote: IpAddr,
        protocol: IpProtocol,
        port: u16,
    ) -> Option<bool> {
        let pod = self.cluster.pods().get(pod)?;
        let kind = (protocol, port);
        let judged = self.translated.judge_at_veth(pod, direction, remote, kind, Detail::Verdict);
        Some(judged.verdict == Verdict::Allow)
    }

    /// Judges one direction at one pod as the dataplane does with its tables; `None` if there is no such pod. `port` is
    /// the destination port.
    #[must_use]
    pub fn judge(
        &self,
        pod: &Key,
        direction: Direction,
        remote: IpAddr,
        protocol: IpProtocol,
        port: u16,
    ) -> Option<Judgement> {
        let pod = self.cluster.pods().get(pod)?;
        Some(self.translated.judge_at_veth(
            pod,
            direction,
            remote,
            (protocol, port),
            Detail::Reasons,
        ))
    }

    /// Returns the Services that translate packets to this port of an address, by name; empty if nothing translates
    /// them.
    #[must_use]
    pub fn services_at(&self, address: IpAddr, protocol: IpProtocol, port: u16) -> Vec<Key> {
        let frontends = frontends(self.cluster, false, address, protocol, port);
        let keys: BTreeSet<&Key> = frontends.iter().map(|(service, _)| &service.key).collect();
        keys.into_iter().cloned().collect()
    }

    /// Returns addresses and ports of the backends of a Service's port, including backends that only keep existing
    /// connections; `None` if there is no such Service or no such port.
    #[must_use]
    pub fn backends_of(
        &self,
        service: &Key,
        protocol: IpProtocol,
        port: u16,
    ) -> Option<BTreeSet<(IpAddr, u16)>> {
        let addresses = &self.cluster.services().get(service)?.addresses;
        let mut found = None;
        for address in addresses {
            let frontends = frontends(self.cluster, false, *address, protocol, port);
            if !frontends.is_empty() {
                let behind = backends(self.cluster, &frontends, address.is_ipv6());
                let all: &mut BTreeSet<_> = found.get_or_insert_default();
                all.extend(behind.into_all());
            }
        }
        found
    }
}
