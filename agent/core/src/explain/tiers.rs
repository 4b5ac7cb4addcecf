//! Matching of ClusterNetworkPolicy rules against traffic, in the order of evaluation.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use netpold_ebpf::layout::{NAME_GROUPS, NAME_MATCHES};

use crate::cluster::beyond_limit;
use crate::explain::answer::{
    Cause, Detail, Judgement, MatchedTierRule, TierPolicy, TierProblem, Verdict,
};
use crate::explain::rule::{ResolvableNames, Traffic};
use crate::explain::text;
use crate::model::{
    Action, ClusterPolicy, ClusterRule, Direction, DomainName, Enforcement, Peer, Rule, Tier,
};

/// A matching rule, with the index of its peer and port.
struct Match<'p> {
    policy: &'p ClusterPolicy,
    index: usize,
    rule: &'p ClusterRule,
    peer: Option<usize>,
    port: Option<usize>,
}

/// Limits of the tables for the domain names of a pod's rules, computed when a name matters.
struct NameLimits<'p> {
    policies: &'p [&'p ClusterPolicy],
    /// Rules with domain names that match nothing.
    beyond: OnceCell<Vec<(&'p ClusterPolicy, usize)>>,
    /// The names to which the programs attribute a question.
    matched: OnceCell<BTreeSet<&'p DomainName>>,
}

impl<'p> NameLimits<'p> {
    fn new(policies: &'p [&'p ClusterPolicy]) -> Self {
        Self { policies, beyond: OnceCell::new(), matched: OnceCell::new() }
    }

    /// Whether the domain names of an egress rule match nothing, because their group is beyond the limit.
    fn is_beyond(&self, policy: &ClusterPolicy, index: usize) -> bool {
        let beyond = self.beyond.get_or_init(|| beyond_limit(self.policies));
        beyond.iter().any(|(of, rule)| std::ptr::eq(*of, policy) && *rule == index)
    }

    /// Whether the programs attribute a question to a name that covers it: only to the [`NAME_MATCHES`] names with the
    /// fewest labels.
    fn is_matched(&self, name: &DomainName, asked: &DomainName) -> bool {
        let matched = self.matched.get_or_init(|| {
            let admin = self.policies.iter().filter(|policy| policy.tier == Tier::Admin);
            let rules =
                admin.flat_map(|policy| (0..).zip(&policy.egress).map(move |it| (*policy, it)));
            let counted = rules.filter(|(policy, (index, rule))| {
                rule.action == Action::Accept && !self.is_beyond(policy, *index)
            });
            let names: BTreeSet<&DomainName> =
                counted.flat_map(|(_, (_, rule))| rule.matches.domain_names()).collect();
            let mut names: Vec<_> = names.into_iter().filter(|name| name.covers(asked)).collect();
            names.sort_by_key(|name| name.labels());
            names.into_iter().take(NAME_MATCHES).collect()
        });
        matched.contains(name)
    }
}

impl Traffic<'_> {
    /// Evaluates a tier; returns whether the tier decides. `policies`: the ordered policies of the pod in this
    /// direction, of both tiers.
    pub(super) fn evaluate_tier(
        &self,
        tier: Tier,
        policies: &[&ClusterPolicy],
        judgement: &mut Judgement,
        detail: Detail,
    ) -> bool {
        let limits = NameLimits::new(policies);
        for policy in policies.iter().filter(|policy| policy.tier == tier) {
            if detail == Detail::Reasons {
                judgement.tiers.asked.push(tier_policy(policy));
                judgement.tiers.problems.extend(problems(policy));
            }
            let found = self.first_match(policy, &limits);
            if detail == Detail::Reasons && self.direction == Direction::Egress {
                let before = found.as_ref().map_or(usize::MAX, |found| found.index);
                let judged = &mut judgement.tiers;
                judged.unresolved.extend(self.unresolved(policy, before, &limits));
                judged.names_beyond_limit.extend(self.names_beyond(policy, before, &limits));
                judged.names_on_trial.extend(self.names_on_trial(policy, before, policies));
            }
            let Some(found) = found else { continue };
            let told = (detail == Detail::Reasons).then(|| self.tier_rule(&found));
            judgement.verdict = match found.rule.action {
                Action::Accept => Verdict::Allow,
                Action::Deny => Verdict::Deny,
                Action::Pass => {
                    judgement.tiers.passed_by.extend(told);
                    return false;
                }
            };
            judgement.cause = Cause::TierRule;
            judgement.tiers.decided_by = told;
            return true;
        }
        false
    }

    fn first_match<'p>(
        &self,
        policy: &'p ClusterPolicy,
        limits: &NameLimits<'_>,
    ) -> Option<Match<'p>> {
        policy.rules(self.direction).iter().enumerate().find_map(|(index, rule)| {
            // Comparing ports is cheaper than comparing labels.
            let port = self.port_hit(&rule.matches)?;
            let counts = |name: &DomainName| match self.names {
                _ if limits.is_beyond(policy, index) => false,
                ResolvableNames::Assumed(asked) => limits.is_matched(name, asked),
                ResolvableNames::Unknown | ResolvableNames::Resolved(_) => true,
            };
            let peer = self.peer_hit_if("", &rule.matches, counts)?;
            Some(Match { policy, index, rule, peer, port })
        })
    }

    /// The rules before an index with domain names and the right port.
    fn with_names<'p>(
        &self,
        policy: &'p ClusterPolicy,
        before: usize,
    ) -> impl Iterator<Item = (usize, &'p ClusterRule)> {
        let rules = policy.rules(self.direction).iter().enumerate().take(before);
        rules.filter(|(_, rule)| {
            rule.matches.domain_names().next().is_some() && self.port_hit(&rule.matches).is_some()
        })
    }

    /// Names the pod's resolved names, if another one might have allowed the traffic: rules with names have the right
    /// port, and none of the pod's answers led to the remote address.
    pub(super) fn without_answer(&self, policies: &[&ClusterPolicy]) -> Option<String> {
        let ResolvableNames::Resolved(resolved) = self.names else { return None };
        let may_match = self.direction == Direction::Egress
            && !self.is_translated()
            && policies.iter().any(|it| self.with_names(it, usize::MAX).next().is_some())
            && resolved.names(&self.pod.key, self.remote).next().is_none();
        may_match.then(|| resolved.without(&self.pod.key, self.remote))
    }

    /// Describes the rules before an index that match if the pod has resolved one of their names.
    fn unresolved(
        &self,
        policy: &ClusterPolicy,
        before: usize,
        limits: &NameLimits<'_>,
    ) -> impl Iterator<Item = String> {
        let rules = self.with_names(policy, before).filter(|_| self.may_be_resolved());
        rules.filter(|(index, _)| !limits.is_beyond(policy, *index)).map(|(index, rule)| {
            let names = rule.matches.domain_names().map(ToString::to_string);
            let names: Vec<String> = names.take(text::TOLD).collect();
            let (number, name, names) = (index + 1, &policy.name, names.join(" or "));
            format!(
                "egress rule {number} of {name} accepts it if the pod has resolved {names} to {}",
                self.remote
            )
        })
    }

    /// Describes the rules before an index that would match if their domain names were within the tables' limit.
    fn names_beyond(
        &self,
        policy: &ClusterPolicy,
        before: usize,
        limits: &NameLimits<'_>,
    ) -> impl Iterator<Item = String> {
        let matter = |rule: &ClusterRule| {
            self.may_be_resolved() || rule.matches.domain_names().any(|name| self.belongs_to(name))
        };
        let rules = self.with_names(policy, before).filter(move |(_, rule)| matter(rule));
        rules.filter(|(index, _)| limits.is_beyond(policy, *index)).map(|(index, _)| {
            let (number, name) = (index + 1, &policy.name);
            format!("egress rule {number} of {name}: its domain names match nothing, since they are beyond the pod's first {NAME_GROUPS} groups")
        })
    }

    /// Describes the audited rules before an index that would match if the pod has resolved a name that no enforced
    /// rule has: the programs do not record it.
    fn names_on_trial(
        &self,
        policy: &ClusterPolicy,
        before: usize,
        policies: &[&ClusterPolicy],
    ) -> impl Iterator<Item = String> {
        let is_on_trial = policy.enforcement == Enforcement::Audit;
        let may_match = is_on_trial && !matches!(self.names, ResolvableNames::Assumed(_));
        let rules = self.with_names(policy, before).filter(move |_| may_match);
        rules.filter_map(move |(index, rule)| {
            let enforced = policies.iter().filter(|it| it.enforcement == Enforcement::Enforce);
            let recorded: BTreeSet<&DomainName> =
                enforced.flat_map(|it| &it.egress).flat_map(|it| it.matches.domain_names()).collect();
            let names = rule.matches.domain_names().filter(|name| !recorded.contains(name));
            let names: Vec<String> = names.take(text::TOLD).map(ToString::to_string).collect();
            let (number, name, joined) = (index + 1, &policy.name, names.join(" or "));
            (!names.is_empty() && !self.is_translated()).then(|| {
                format!(
                    "egress rule {number} of {name} would accept it if the pod has resolved {joined} to {}: names of \
                     policies in audit mode are not recorded",
                    self.remote
                )
            })
        })
    }

    /// The resolution by which a domain name of a rule matches, if its peer is one.
    fn matching_name(&self, rule: &Rule, peer: Option<usize>) -> Option<String> {
        let Peer::Domain(name) = rule.peers.as_ref()?.get(peer?)? else { return None };
        self.resolution(name)
    }

    fn tier_rule(&self, found: &Match<'_>) -> MatchedTierRule {
        let Match { policy, index, rule, peer, port } = *found;
        MatchedTierRule {
            policy: tier_policy(policy),
            direction: self.direction,
            index,
            name: rule.name.clone(),
            action: rule.action,
            peer,
            port,
            matches: text::rule("", self.direction, &rule.matches),
            resolution: self.matching_name(&rule.matches, peer),
        }
    }
}

fn tier_policy(policy: &ClusterPolicy) -> TierPolicy {
    TierPolicy { tier: policy.tier, policy: policy.name.clone(), priority: policy.priority }
}

fn problems(policy: &ClusterPolicy) -> impl Iterator<Item = TierProblem> {
    let problem =
        |text: &String| TierProblem { policy: policy.name.clone(), problem: text.clone() };
    policy.problems.iter().map(problem)
}
