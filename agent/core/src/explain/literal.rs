//! Literal evaluation of policies for traffic at one pod, without translation.

use std::net::IpAddr;

use crate::cluster::{Cluster, PodPolicies, is_subject};
use crate::explain::answer::{Cause, Detail, Judgement, PolicyProblem, TierVerdict, Verdict};
use crate::explain::resolved::ResolvedNames;
use crate::explain::rule::{PacketPath, ResolvableNames, Traffic};
use crate::model::{ClusterPolicy, Denial, Direction, Enforcement, Key, Pod, Policy, Tier};
use crate::probe::IpProtocol;

/// An address, and the pod at the address, if any. A pod without addresses is taken to have this address.
pub type PodAt<'c> = (Option<&'c Pod>, IpAddr);

/// Judges traffic by the rules of policies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Literal<'c> {
    pub(super) cluster: &'c Cluster,
    /// Whether audited policies are evaluated as enforced.
    pub(super) with_trials: bool,
    /// Addresses that pods resolved, if known.
    pub(super) resolved: Option<&'c ResolvedNames>,
}

/// Policies that are not evaluated, with the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exempt {
    /// All policies are skipped.
    FromAll(Cause),
    /// NetworkPolicies that isolate the pod are skipped; the tiers are evaluated.
    FromNetworkPolicy(Cause),
}

impl<'c> Literal<'c> {
    pub(super) fn new(cluster: &'c Cluster) -> Self {
        Self { cluster, with_trials: false, resolved: None }
    }

    /// Returns the pod that has an address.
    pub(super) fn owner(&self, address: IpAddr) -> Option<&'c Pod> {
        self.cluster.owner(address).map(|pod| &**pod)
    }

    /// Returns the pods that may be behind an address: its owner, or each pod that claims it on a secondary network where
    /// it counts for none; one `None` if there is no pod.
    pub(super) fn pods_behind(&self, address: IpAddr) -> Vec<Option<&'c Pod>> {
        if let Some(owner) = self.owner(address) {
            return vec![Some(owner)];
        }
        let claimants = self.cluster.refused_claimants(address).into_iter();
        let all: Vec<Option<&Pod>> = claimants.map(|pod| Some(&**pod)).collect();
        if all.is_empty() { vec![None] } else { all }
    }

    /// Returns whether the cluster has ClusterNetworkPolicies.
    pub(super) fn has_tiers(&self) -> bool {
        !self.cluster.cluster_policies.is_empty()
    }

    /// Judges egress of the sender and ingress of the receiver, for each side that is a pod. `kind`: protocol and port;
    /// then address and port before a translation.
    pub(super) fn judge_pair(
        &self,
        from: PodAt<'_>,
        to: PodAt<'_>,
        kind: ((IpProtocol, u16), Option<(IpAddr, u16)>),
        detail: Detail,
    ) -> (Option<Judgement>, Option<Judgement>) {
        let judge = |direction| self.judge_one_way(direction, [from, to], kind, detail);
        (judge(Direction::Egress), judge(Direction::Ingress))
    }

    /// Judges one direction: egress of the sender, or ingress of the receiver; `None` if that side is not a pod.
    /// Protocol, port and `asked` are `kind` of [`Literal::judge_pair`].
    pub(super) fn judge_one_way(
        &self,
        direction: Direction,
        [(from, source), (to, destination)]: [PodAt<'_>; 2],
        ((protocol, port), asked): ((IpProtocol, u16), Option<(IpAddr, u16)>),
        detail: Detail,
    ) -> Option<Judgement> {
        let is_itself = from.map(|pod| &pod.key) == to.map(|pod| &pod.key)
            && from.is_none_or(|pod| pod.template().is_none());
        let itself = is_itself.then_some(Exempt::FromAll(Cause::Itself));
        let (pod, (remote, address), asked, exempt) = match direction {
            Direction::Egress => (from?, (to, destination), asked, itself),
            Direction::Ingress => {
                let pod = to?;
                let from_host = from.is_none_or(|pod| pod.host_network);
                let from_node = from_host && self.cluster.is_node_of(pod, source);
                let from_node = from_node.then_some(Exempt::FromAll(Cause::OwnNode));
                let asked = asked.map(|(_, asked)| (source, asked));
                (pod, (from, source), asked, itself.or(from_node))
            }
        };
        let mut traffic = self.traffic(pod, direction, address, protocol, port);
        traffic.of_unaddressed(remote);
        Some(self.judge_traffic(&Traffic { asked, ..traffic }, exempt, detail))
    }

    /// Builds the traffic of an untranslated packet.
    pub(super) fn traffic<'a>(
        &self,
        pod: &'a Pod,
        direction: Direction,
        remote: IpAddr,
        protocol: IpProtocol,
        port: u16,
    ) -> Traffic<'a>
    where
        'c: 'a,
    {
        let mut traffic = Traffic {
            cluster: self.cluster,
            pod,
            direction,
            remote,
            remote_pod: None,
            remote_namespace: None,
            remote_is_node: self.cluster.nodes.is_listed(remote),
            protocol,
            port,
            way: PacketPath::Direct,
            asked: None,
            names: self.resolved.map_or(ResolvableNames::Unknown, ResolvableNames::Resolved),
        };
        traffic.of_remote(self.owner(remote));
        traffic
    }

    /// Judges traffic. `exempt`: an exemption that depends on more than addresses.
    pub(super) fn judge_traffic(
        &self,
        traffic: &Traffic<'_>,
        exempt: Option<Exempt>,
        detail: Detail,
    ) -> Judgement {
        let mut judgement = self.judge_once(traffic, exempt, detail);
        let pod = traffic.pod;
        if detail == Detail::Reasons && judgement.verdict == Verdict::Deny {
            let about = self.cluster.policies_about((pod, true), traffic.direction);
            judgement.rejected = about.denial(self.with_trials) == Denial::Reject;
            judgement.remarks.extend(traffic.without_answer(&self.tiers(Some(about))));
        }
        if detail == Detail::Reasons
            && !self.with_trials
            && judgement.verdict == Verdict::Allow
            && self.cluster.policies_about((pod, true), traffic.direction).is_on_trial()
        {
            let enforced = Self { with_trials: true, ..*self }.judge_once(traffic, exempt, detail);
            if enforced.verdict == Verdict::Deny {
                judgement.denied_on_trial = self.denying_on_trial(pod, &enforced);
                judgement.tiers.names_on_trial = enforced.tiers.names_on_trial;
            }
        }
        judgement
    }

    /// Returns the audited policies that cause a deny in a judgement that includes audited policies; the key of a
    /// ClusterNetworkPolicy has no namespace.
    pub(super) fn denying_on_trial(&self, pod: &Pod, judgement: &Judgement) -> Vec<Key> {
        let of_cluster = |name: &str| Key::new("", name);
        let about = self.cluster.policies_about((pod, true), judgement.direction);
        let (policies, tiers) = about.on_trial();
        let tiers: Vec<Key> = tiers.map(|policy| of_cluster(&policy.name)).collect();
        let policies: Vec<Key> = policies.map(|policy| policy.key.clone()).collect();
        match &judgement.tiers.decided_by {
            Some(rule) if tiers.contains(&of_cluster(&rule.policy.policy)) => {
                vec![of_cluster(&rule.policy.policy)]
            }
            None if !policies.is_empty() => policies,
            // One audited policy passes the traffic around rules that would otherwise be evaluated.
            Some(_) | None => tiers.into_iter().chain(policies).collect(),
        }
    }

    fn judge_once(
        &self,
        traffic: &Traffic<'_>,
        exempt: Option<Exempt>,
        detail: Detail,
    ) -> Judgement {
        let about = is_subject(traffic.pod)
            .then(|| self.cluster.policies_about((traffic.pod, true), traffic.direction));
        let policies = self.isolating(about);
        let mut judgement = Judgement {
            pod: traffic.pod.key.clone(),
            direction: traffic.direction,
            remote: traffic.known_remote(),
            remote_pod: traffic.remote_pod.map(|pod| pod.key.clone()),
            verdict: Verdict::Allow,
            cause: Cause::NotIsolated,
            isolated_by: Vec::new(),
            tiers: TierVerdict::default(),
            allowed_by: None,
            nearest: None,
            denied_on_trial: Vec::new(),
            problems: Vec::new(),
            rejected: false,
            remarks: Vec::new(),
        };
        if detail == Detail::Reasons {
            judgement.isolated_by = policies.iter().map(|policy| policy.key.clone()).collect();
            judgement.problems = policies.iter().flat_map(|policy| self.problems(policy)).collect();
        }
        let exempt = match exempt.or_else(|| self.special(traffic)) {
            Some(Exempt::FromAll(cause)) => {
                judgement.cause = cause;
                return judgement;
            }
            Some(Exempt::FromNetworkPolicy(cause)) => Some(cause),
            None => None,
        };
        let tiers = self.tiers(about);
        if traffic.evaluate_tier(Tier::Admin, &tiers, &mut judgement, detail)
            || policies.is_empty()
                && traffic.evaluate_tier(Tier::Baseline, &tiers, &mut judgement, detail)
        {
            return judgement;
        }
        match exempt {
            Some(cause) => judgement.cause = cause,
            None if policies.is_empty() => {}
            None => {
                let within = policies.into_iter().filter(|p| self.cluster.excess(&p.key).is_none());
                traffic.judge_rules(&within.collect::<Vec<_>>(), &mut judgement, detail);
            }
        }
        judgement
    }

    /// Returns the exemption by `hostNetwork` or by the addresses of pod and node.
    fn special(&self, traffic: &Traffic<'_>) -> Option<Exempt> {
        let (pod, remote) = (traffic.pod, traffic.remote);
        if pod.host_network {
            return Some(Exempt::FromAll(Cause::HostNetwork));
        }
        if pod.addresses.contains(&remote) {
            match traffic.way {
                PacketPath::Direct => return Some(Exempt::FromAll(Cause::Itself)),
                PacketPath::Hairpin => return Some(Exempt::FromNetworkPolicy(Cause::Itself)),
                PacketPath::Translated => {}
            }
        }
        let to_own_node =
            traffic.direction == Direction::Egress && self.cluster.is_node_of(pod, remote);
        to_own_node.then_some(Exempt::FromNetworkPolicy(Cause::OwnNode))
    }

    /// Returns the reasons why a policy or parts of it grant nothing.
    fn problems<'p>(
        &self,
        policy: &'p Policy,
    ) -> impl Iterator<Item = PolicyProblem> + use<'p, 'c> {
        let problem = |problem: &str, over_budget| PolicyProblem {
            policy: policy.key.clone(),
            problem: problem.to_owned(),
            over_budget,
        };
        let excess = self.cluster.excess(&policy.key).map(|excess| problem(excess, true));
        policy.problems.iter().map(move |text| problem(text, false)).chain(excess)
    }

    fn tiers(&self, about: Option<PodPolicies<'c, '_>>) -> Vec<&'c ClusterPolicy> {
        let policies = about.into_iter().flat_map(PodPolicies::of_cluster);
        let policies = policies.filter(|policy| self.counts(policy.enforcement));
        policies.map(|policy| &**policy).collect()
    }

    fn isolating(&self, about: Option<PodPolicies<'c, '_>>) -> Vec<&'c Policy> {
        let policies = about.into_iter().flat_map(PodPolicies::selecting);
        let policies = policies.filter(|policy| self.counts(policy.enforcement));
        policies.map(|policy| &**policy).collect()
    }

    fn counts(&self, enforcement: Enforcement) -> bool {
        self.with_trials || enforcement == Enforcement::Enforce
    }
}
