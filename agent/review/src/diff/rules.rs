//! Rules that apply to a pod in one direction: comparison between two clusters, and the ports at which verdicts may
//! change.

use std::collections::BTreeSet;

use ipnet::IpNet;
use netpold_core::cluster::Cluster;
use netpold_core::model::{
    ClusterRule, Direction, DomainName, Enforcement, Peer, Pod, PortMatch, Protocol, Rule,
    Selector, Tier,
};

use super::ports::FIRST_PORT;

/// Ports at which a verdict may change: the first of each range, by protocol.
#[derive(Clone, Debug, Default)]
pub(super) struct RangeStarts([BTreeSet<u16>; 3]);

impl RangeStarts {
    /// Adds the boundaries of a range.
    pub(super) fn range(&mut self, protocol: Protocol, first: u16, last: u16) {
        let starts = &mut self.0[protocol as usize];
        starts.insert(first);
        starts.extend(last.checked_add(1));
    }

    pub(super) fn add(&mut self, more: &Self) {
        for (starts, more) in self.0.iter_mut().zip(&more.0) {
            starts.extend(more);
        }
    }

    fn rule(&mut self, rule: &Rule) {
        for port in rule.ports.iter().flatten() {
            if let PortMatch::Range(first, last) = port.port {
                self.range(port.protocol, first, last);
            }
        }
    }

    /// Returns the ranges of a protocol within which verdicts are constant.
    pub(super) fn regions(&self, protocol: Protocol) -> Vec<(u16, u16)> {
        let inner = self.0[protocol as usize].range(FIRST_PORT + 1..);
        let firsts: Vec<u16> = [FIRST_PORT].into_iter().chain(inner.copied()).collect();
        let lasts = firsts.iter().skip(1).map(|next| next - 1).chain([u16::MAX]);
        firsts.iter().copied().zip(lasts).collect()
    }
}

/// Rules that apply to a pod in one direction.
#[derive(PartialEq)]
pub(super) struct ApplicableRules<'c> {
    /// Rules of each isolating NetworkPolicy, and whether the policy is over its budget and grants nothing.
    policies: Vec<(&'c [Rule], bool, Enforcement)>,
    /// Rules of each ClusterNetworkPolicy, in order.
    tiers: Vec<(Tier, &'c [ClusterRule], Enforcement)>,
}

impl<'c> ApplicableRules<'c> {
    pub(super) fn new(cluster: &'c Cluster, pod: &Pod, direction: Direction) -> Self {
        let policies = cluster.policies_in(&pod.key.namespace);
        let policies = policies.filter(|policy| policy.pod_selector.matches(&pod.labels));
        let policies = policies.filter_map(|policy| {
            let over_budget = cluster.excess(&policy.key).is_some();
            Some((policy.rules(direction)?, over_budget, policy.enforcement))
        });
        let namespace = cluster.namespace_labels(&pod.key.namespace);
        let tiers = cluster.cluster_policies().filter(|policy| {
            let subject = &policy.subject;
            subject.namespaces.matches(&namespace) && subject.pods.matches(&pod.labels)
        });
        let tiers = tiers.filter(|policy| !policy.rules(direction).is_empty());
        let tiers = tiers.map(|policy| (policy.tier, policy.rules(direction), policy.enforcement));
        Self { policies: policies.collect(), tiers: tiers.collect() }
    }

    /// Adds the boundaries of the ranges in the rules.
    pub(super) fn add_to(&self, starts: &mut RangeStarts) {
        let of_policies = self.policies.iter().flat_map(|(rules, ..)| *rules);
        let of_tiers = self.tiers.iter().flat_map(|(_, rules, _)| *rules);
        of_policies.chain(of_tiers.map(|rule| &rule.matches)).for_each(|rule| starts.rule(rule));
    }

    /// Adds the domain names, and the blocks that decide before or after them.
    pub(super) fn add_names(&self, names: &mut BTreeSet<DomainName>, blocks: &mut BTreeSet<IpNet>) {
        let of_policies = self.policies.iter().flat_map(|(rules, ..)| *rules);
        let of_tiers = self.tiers.iter().flat_map(|(_, rules, _)| *rules);
        for rule in of_policies.chain(of_tiers.map(|rule| &rule.matches)) {
            names.extend(rule.domain_names().cloned());
            for peer in rule.peers.iter().flatten() {
                if let Peer::Block(block) = peer {
                    blocks.insert(block.cidr);
                    blocks.extend(&block.except);
                }
            }
        }
    }
}

/// Criteria by which policies distinguish pods and addresses.
#[derive(Debug, Default)]
pub(super) struct PolicyCriteria {
    /// Label keys of pods and nodes.
    pub(super) labels: BTreeSet<String>,
    /// Address blocks.
    pub(super) blocks: BTreeSet<IpNet>,
    /// Domain names.
    pub(super) names: BTreeSet<DomainName>,
}

impl PolicyCriteria {
    /// Adds the criteria of a cluster's policies.
    pub(super) fn add(&mut self, cluster: &Cluster) {
        for policy in cluster.policies().values() {
            self.selector(&policy.pod_selector);
            let rules = Direction::BOTH.into_iter().filter_map(|d| policy.rules(d));
            rules.flatten().for_each(|rule| self.rule(rule));
        }
        for policy in cluster.cluster_policies() {
            self.selector(&policy.subject.pods);
            let rules = Direction::BOTH.into_iter().flat_map(|d| policy.rules(d));
            rules.for_each(|rule| self.rule(&rule.matches));
        }
    }

    fn rule(&mut self, rule: &Rule) {
        for peer in rule.peers.iter().flatten() {
            match peer {
                Peer::Pods { pods, .. } => self.selector(pods),
                Peer::Nodes(nodes) => self.selector(nodes),
                Peer::Domain(name) => {
                    self.names.insert(name.clone());
                }
                Peer::Block(block) => {
                    self.blocks.insert(block.cidr);
                    self.blocks.extend(&block.except);
                }
            }
        }
    }

    fn selector(&mut self, selector: &Selector) {
        for requirement in &selector.requirements {
            let key = requirement.key();
            if !self.labels.contains(key) {
                self.labels.insert(key.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_cover_every_port_once() {
        let mut starts = RangeStarts::default();
        assert_eq!(starts.regions(Protocol::Tcp), [(1, u16::MAX)]);
        starts.range(Protocol::Tcp, 1, 79);
        starts.range(Protocol::Tcp, 443, u16::MAX);
        starts.range(Protocol::Udp, 0, 0);
        assert_eq!(starts.regions(Protocol::Tcp), [(1, 79), (80, 442), (443, u16::MAX)]);
        assert_eq!(starts.regions(Protocol::Udp), [(1, u16::MAX)]);
    }
}
