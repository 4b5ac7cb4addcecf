//! Matching of ClusterNetworkPolicy rules against traffic, in the order of evaluation.

use crate::explain::answer::{
    Cause, Detail, Judgement, TierPolicy, TierProblem, TierRule, Verdict,
};
use crate::explain::rule::Traffic;
use crate::explain::text;
use crate::model::{Action, ClusterPolicy, ClusterRule, Peer, Rule, Tier};

/// A matching rule, with the index of its peer and port.
struct Match<'p> {
    policy: &'p ClusterPolicy,
    index: usize,
    rule: &'p ClusterRule,
    peer: Option<usize>,
    port: Option<usize>,
}

impl Traffic<'_> {
    /// Evaluates a tier; returns whether the tier decides. `policies`: the ordered policies of the pod in this
    /// direction, of both tiers.
    pub(super) fn ask(
        &self,
        tier: Tier,
        policies: &[&ClusterPolicy],
        judgement: &mut Judgement,
        detail: Detail,
    ) -> bool {
        for policy in policies.iter().filter(|policy| policy.tier == tier) {
            if detail == Detail::Reasons {
                judgement.tiers.asked.push(tier_policy(policy));
                judgement.tiers.problems.extend(problems(policy));
            }
            let found = self.first_match(policy);
            if detail == Detail::Reasons && self.may_be_resolved() {
                let before = found.as_ref().map_or(usize::MAX, |found| found.index);
                judgement.tiers.unresolved.extend(self.unresolved(policy, before));
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

    fn first_match<'p>(&self, policy: &'p ClusterPolicy) -> Option<Match<'p>> {
        policy.rules(self.direction).iter().enumerate().find_map(|(index, rule)| {
            // Comparing ports is cheaper than comparing labels.
            let port = self.port_hit(&rule.matches)?;
            let peer = self.peer_hit("", &rule.matches)?;
            Some(Match { policy, index, rule, peer, port })
        })
    }

    /// Describes the rules with domain names and the right port, of those before an index.
    fn unresolved(&self, policy: &ClusterPolicy, before: usize) -> impl Iterator<Item = String> {
        let rules = policy.rules(self.direction).iter().enumerate().take(before);
        rules.filter_map(move |(index, rule)| {
            self.port_hit(&rule.matches)?;
            let names = rule.matches.domain_names().map(ToString::to_string);
            let names: Vec<String> = names.take(text::TOLD).collect();
            let (number, name, names) = (index + 1, &policy.name, names.join(" or "));
            (!names.is_empty()).then(|| {
                format!("egress rule {number} of {name} accepts it if the pod has resolved {names} to {}", self.remote)
            })
        })
    }

    /// The resolution by which a domain name of a rule matches, if its peer is one.
    fn matching_name(&self, rule: &Rule, peer: Option<usize>) -> Option<String> {
        let Peer::Domain(name) = rule.peers.as_ref()?.get(peer?)? else { return None };
        let left = self.resolution(name)?.as_secs();
        Some(format!(
            "the pod resolved {name} to {}, which counts for another {left} s",
            self.remote
        ))
    }

    fn tier_rule(&self, found: &Match<'_>) -> TierRule {
        let Match { policy, index, rule, peer, port } = *found;
        TierRule {
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
