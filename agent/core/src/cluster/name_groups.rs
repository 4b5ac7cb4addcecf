//! Groups of rules with domain names, read from the rules alone: the tables hold the first [`NAME_GROUPS`] of a pod.

use std::collections::BTreeMap;

use netpold_ebpf::layout::NAME_GROUPS;

use crate::cluster::state::Cluster;
use crate::model::{Action, ClusterPolicy, Direction, Enforcement, Pod, Tier};
use crate::ports::blocks::grant;
use crate::ports::tries::Tries;

/// Returns the egress rules with domain names that match nothing because the rule's group is beyond [`NAME_GROUPS`],
/// each with its policy and index. `policies`: the policies of a pod, in order of evaluation.
pub(crate) fn beyond_limit<'p>(policies: &[&'p ClusterPolicy]) -> Vec<(&'p ClusterPolicy, usize)> {
    let (mut beyond, mut groups) = (Vec::new(), 0);
    let (mut names, mut tries) = (BTreeMap::new(), Tries::default());
    // Ports of the group to which the next rule may belong.
    let mut last = None;
    for policy in policies {
        for (index, rule) in policy.egress.iter().enumerate() {
            let counts = policy.tier == Tier::Admin && rule.action == Action::Accept;
            if !counts || rule.matches.domain_names().next().is_none() {
                last = None;
                continue;
            }
            let ports = Some(grant(&rule.matches, &mut names, &mut tries));
            if last != ports {
                groups += 1;
            }
            last = ports;
            if groups > NAME_GROUPS {
                beyond.push((*policy, index));
            }
        }
    }
    beyond
}

impl Cluster {
    /// Returns the enforced egress rules with domain names that match nothing for a pod, each with its policy and
    /// index: the tables hold the names of [`NAME_GROUPS`] groups of rules.
    #[must_use]
    pub fn names_beyond_limit(&self, pod: &Pod) -> Vec<(&ClusterPolicy, usize)> {
        let policies = self.policies_about((pod, true), Direction::Egress).of_cluster();
        let enforced = policies.filter(|policy| policy.enforcement == Enforcement::Enforce);
        beyond_limit(&enforced.map(|policy| &**policy).collect::<Vec<_>>())
    }
}
