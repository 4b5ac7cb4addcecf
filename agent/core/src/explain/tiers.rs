//! Matching of ClusterNetworkPolicy rules against traffic, in the order of evaluation.

use crate::explain::answer::{
    Cause, Detail, Judgement, TierPolicy, TierProblem, TierRule, Verdict,
};
use crate::explain::rule::Traffic;
use crate::explain::text;
use crate::model::{Action, ClusterPolicy, ClusterRule, Tier};

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
            let Some(found) = self.first_match(policy) else { continue };
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
