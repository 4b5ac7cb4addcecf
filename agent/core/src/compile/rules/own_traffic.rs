//! Evaluates tiers for a pod's traffic to itself, by a literal reading of their rules.
//!
//! A pod that reaches itself through a Service is exempt from NetworkPolicy and subject to ClusterNetworkPolicy (see
//! the overview in the API's documentation); by its own address it is exempt from both.

use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::model::{
    Action, ClusterPolicy, ClusterRule, Direction, Peer, Pod, PortMatch, Protocol, Rule, Selector,
    Tier,
};

/// A pod as its own peer.
pub(super) struct OwnTraffic<'a> {
    cluster: &'a Cluster,
    pod: &'a Pod,
    has_known_labels: bool,
    /// By direction: ClusterNetworkPolicies, and whether a NetworkPolicy isolates the pod.
    tiers: [(Vec<Arc<ClusterPolicy>>, bool); 2],
}

impl<'a> OwnTraffic<'a> {
    /// Reads the policies about a pod, given whether its labels are known and whether a NetworkPolicy isolates it for
    /// egress.
    pub(super) fn for_pod(
        cluster: &'a Cluster,
        (pod, has_known_labels): (&'a Pod, bool),
        isolated_for_egress: bool,
    ) -> Self {
        let tiers = Direction::BOTH.map(|direction| {
            let tiers = cluster.policies_about((pod, has_known_labels), direction).tiers();
            let isolated = match direction {
                Direction::Egress => isolated_for_egress,
                Direction::Ingress if tiers.is_empty() => false,
                Direction::Ingress => !cluster
                    .policies_about((pod, has_known_labels), direction)
                    .isolating()
                    .is_empty(),
            };
            (tiers, isolated)
        });
        Self { cluster, pod, has_known_labels, tiers }
    }

    /// Whether a Deny rule applies in either direction. `port` is the backend's port.
    pub(super) fn denies(&self, address: IpAddr, protocol: Protocol, port: u16) -> bool {
        self.tiers.iter().zip(Direction::BOTH).any(|((tiers, isolated), direction)| {
            let decides = |tier: Tier| {
                let policies = tiers.iter().filter(move |policy| policy.tier == tier);
                let mut rules = policies.flat_map(|policy| {
                    let selects =
                        self.has_known_labels || policy.subject.pods.requirements.is_empty();
                    let rules = policy.rules(direction).iter();
                    rules.filter(move |rule| selects || rule.action == Action::Deny)
                });
                rules.find(|rule| self.matches(rule, address, protocol, port)).map(|it| it.action)
            };
            match decides(Tier::Admin) {
                Some(Action::Deny) => true,
                Some(Action::Accept) => false,
                Some(Action::Pass) | None => {
                    !isolated && decides(Tier::Baseline) == Some(Action::Deny)
                }
            }
        })
    }

    fn matches(&self, rule: &ClusterRule, address: IpAddr, protocol: Protocol, port: u16) -> bool {
        let Rule { peers, ports } = &rule.matches;
        let peer = |peer: &Peer| match peer {
            Peer::Block(block) => block.contains(address),
            Peer::Nodes(nodes) => self.cluster.nodes.is_selected(nodes, address),
            // A domain name allows no traffic of a pod to itself.
            Peer::Domain(_) => false,
            Peer::Pods { namespaces, pods } => {
                let namespace = self.cluster.namespace_labels(&self.pod.key.namespace);
                let is_in = |selector: &Selector| selector.matches(&namespace);
                // Unknown labels may have any value.
                let is = match self.has_known_labels {
                    true => pods.matches(&self.pod.labels),
                    false => pods.requirements.is_empty() || rule.action == Action::Deny,
                };
                is && namespaces.as_ref().is_none_or(is_in)
            }
        };
        let named = |name: &str| {
            let mut ports = self.pod.ports.iter();
            ports.any(|of| of.name == name && of.protocol == protocol && of.port == port)
        };
        peers.as_ref().is_none_or(|peers| peers.iter().any(peer))
            && ports.as_ref().is_none_or(|ports| {
                ports.iter().filter(|of| of.protocol == protocol).any(|of| match &of.port {
                    PortMatch::Any => true,
                    PortMatch::Range(first, last) => (*first..=*last).contains(&port),
                    PortMatch::Named(name) => named(name),
                })
            })
    }
}
