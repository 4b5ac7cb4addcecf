//! Use of rules by traffic.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use netpold_core::model::Direction;
use serde::{Deserialize, Serialize};

/// Path of the request for an [`RulesAnswer`] about the use of rules.
pub const RULES_REQUEST: &str = "/rules";

/// Use of the rules that allow traffic of a node's pods: rules of the NetworkPolicies that isolate the pods, and Accept
/// rules of the ClusterNetworkPolicies that select them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RulesAnswer {
    /// Name of the node; empty in the answer of a cluster.
    pub node: String,
    /// In the answer of a cluster: names of the nodes with an answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// In the answer of a cluster: errors by name of the other nodes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unanswered: BTreeMap<String, String>,
    /// Time of the answer, in seconds since the epoch.
    pub as_of: u64,
    /// Rules by policy, direction and number.
    pub rules: Vec<RuleUsed>,
    /// Number of flows that ended before a sweep could count them.
    pub missed_flows: u64,
    /// Number of policies that are not watched because they have too many rules; of a cluster, the largest such number
    /// of a node.
    pub unwatched_policies: usize,
}

/// Use of a rule on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleUsed {
    /// Kind of the policy.
    pub kind: String,
    /// Namespace of the policy; empty for a ClusterNetworkPolicy.
    pub namespace: String,
    /// Name of the policy.
    pub name: String,
    /// Direction from the pod's view.
    pub direction: Direction,
    /// Number in `spec.ingress` or `spec.egress`, from 0.
    pub index: usize,
    /// Description of the allowed traffic.
    pub rule: String,
    /// Number of allowed flows.
    pub flows: u64,
    /// Time of the last packet of these flows, in seconds since the epoch; `None` without one.
    pub last_used: Option<u64>,
    /// Time since which the rule is watched, in seconds since the epoch.
    pub watched_since: u64,
}

impl RuleUsed {
    /// Returns whether the rule was watched for `time` until now without a packet.
    #[must_use]
    pub fn is_unused(&self, now: u64, time: Duration) -> bool {
        let since = self.last_used.map_or(self.watched_since, |at| at.max(self.watched_since));
        now.saturating_sub(since) >= time.as_secs()
    }

    /// Adds the use of the same rule on another node. The rule counts as watched once it is watched on every node.
    fn add(&mut self, other: &Self) {
        self.flows = self.flows.saturating_add(other.flows);
        self.last_used = self.last_used.max(other.last_used);
        self.watched_since = self.watched_since.max(other.watched_since);
    }
}

/// Merges the answers of agents. Answers about the same rule with the same text become one.
#[must_use]
pub fn merge(
    answers: Vec<(String, RulesAnswer)>,
    unanswered: BTreeMap<String, String>,
) -> RulesAnswer {
    let mut all = RulesAnswer { unanswered, ..RulesAnswer::default() };
    let mut rules: BTreeMap<_, RuleUsed> = BTreeMap::new();
    for (node, answer) in answers {
        all.nodes.push(node);
        all.as_of = all.as_of.max(answer.as_of);
        all.missed_flows = all.missed_flows.saturating_add(answer.missed_flows);
        all.unwatched_policies = all.unwatched_policies.max(answer.unwatched_policies);
        for rule in answer.rules {
            let policy = (rule.namespace.clone(), rule.name.clone(), rule.kind.clone());
            let key = (policy, rule.direction == Direction::Egress, rule.index, rule.rule.clone());
            match rules.entry(key) {
                Entry::Occupied(mut known) => known.get_mut().add(&rule),
                Entry::Vacant(place) => _ = place.insert(rule),
            }
        }
    }
    all.rules = rules.into_values().collect();
    all
}

impl RulesAnswer {
    /// Keeps the rules of `namespace` without use for the time `unused`, each condition if given.
    pub fn select(&mut self, namespace: Option<&str>, unused: Option<Duration>) {
        let now = self.as_of;
        self.rules.retain(|rule| {
            namespace.is_none_or(|name| rule.namespace == name)
                && unused.is_none_or(|time| rule.is_unused(now, time))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(flows: u64, last_used: Option<u64>, watched_since: u64) -> RulesAnswer {
        let rule = RuleUsed {
            kind: "NetworkPolicy".into(),
            namespace: "shop".into(),
            name: "web".into(),
            direction: Direction::Ingress,
            index: 0,
            rule: "TCP 80 from everywhere".into(),
            flows,
            last_used,
            watched_since,
        };
        RulesAnswer { as_of: 1000, rules: vec![rule], missed_flows: 1, ..RulesAnswer::default() }
    }

    /// A rule may be in use on a node that has watched it only for a minute.
    #[test]
    fn a_rule_is_unused_if_it_is_unused_on_every_node() {
        let answers = [("a", answer(3, Some(100), 0)), ("b", answer(0, None, 940))];
        let answers = answers.map(|(node, answer)| (node.to_owned(), answer)).to_vec();
        let all = merge(answers, BTreeMap::new());
        assert_eq!((all.rules.len(), all.rules[0].flows, all.missed_flows), (1, 3, 2));
        let is_unused = |time| all.rules[0].is_unused(1000, Duration::from_secs(time));
        assert!(is_unused(60) && !is_unused(61));
        let used = merge(vec![("a".into(), answer(3, Some(999), 0))], BTreeMap::new());
        assert!(!used.rules[0].is_unused(1000, Duration::from_secs(2)));
    }
}
