//! Groups of rules with domain names, read from the rules alone: the tables hold the first [`NAME_GROUPS`] of a pod.

use std::collections::BTreeSet;

use netpold_ebpf::layout::NAME_GROUPS;

use crate::cluster::state::Cluster;
use crate::model::{
    Action, ClusterPolicy, Direction, Enforcement, Pod, PortMatch, Protocol, Rule, Tier,
};

/// Set of ports and protocols, independent of the order and the division of its ranges.
#[derive(PartialEq, Eq)]
enum PortSet {
    /// Every protocol.
    Everything,
    /// Ranges by protocol, sorted, disjoint and not adjacent; and port names.
    Some { ranges: Vec<(Protocol, u16, u16)>, names: BTreeSet<(Protocol, String)> },
}

impl PortSet {
    fn new(rule: &Rule) -> Self {
        let Some(ports) = &rule.ports else { return Self::Everything };
        let (mut all, mut names) = (Vec::new(), BTreeSet::new());
        for port in ports {
            match &port.port {
                PortMatch::Any => all.push((port.protocol, 0, u16::MAX)),
                PortMatch::Range(first, last) if first <= last => {
                    all.push((port.protocol, *first, *last));
                }
                PortMatch::Range(..) => {}
                PortMatch::Named(name) => {
                    names.insert((port.protocol, name.clone()));
                }
            }
        }
        all.sort_unstable();
        let mut ranges: Vec<(Protocol, u16, u16)> = Vec::new();
        for (protocol, first, last) in all {
            match ranges.last_mut() {
                Some((of, _, end))
                    if *of == protocol && u32::from(first) <= u32::from(*end) + 1 =>
                {
                    *end = last.max(*end);
                }
                _ => ranges.push((protocol, first, last)),
            }
        }
        Self::Some { ranges, names }
    }
}

/// Returns the egress rules, each with its policy and index, whose domain names match nothing because their group is
/// beyond the limit. `policies`: those of a pod, in order of evaluation.
pub(crate) fn beyond_limit<'p>(policies: &[&'p ClusterPolicy]) -> Vec<(&'p ClusterPolicy, usize)> {
    let (mut beyond, mut groups) = (Vec::new(), 0);
    // Ports of the group to which the next rule may belong.
    let mut last = None;
    for policy in policies {
        for (index, rule) in policy.egress.iter().enumerate() {
            let counts = policy.tier == Tier::Admin && rule.action == Action::Accept;
            if !counts || rule.matches.domain_names().next().is_none() {
                last = None;
                continue;
            }
            let ports = Some(PortSet::new(&rule.matches));
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
    /// Returns the enforced egress rules, each with its policy and index, whose domain names match nothing for a pod:
    /// the tables hold those of [`NAME_GROUPS`] groups of rules.
    #[must_use]
    pub fn names_beyond_limit(&self, pod: &Pod) -> Vec<(&ClusterPolicy, usize)> {
        let policies = self.policies_about((pod, true), Direction::Egress).of_cluster();
        let enforced = policies.filter(|policy| policy.enforcement == Enforcement::Enforce);
        beyond_limit(&enforced.map(|policy| &**policy).collect::<Vec<_>>())
    }
}
