//! Evaluates the rules of policies for one packet: the tiers of ClusterNetworkPolicy around NetworkPolicy, read from
//! the comments of their API types (`policy.networking.k8s.io/v1alpha2`, `k8s.io/api/networking/v1`).

use std::net::IpAddr;

use super::matching::{block_holds, port_matches, selects};
use super::state::Oracle;
use netpold_core::model::{
    Action, ClusterPolicy, ClusterRule, Direction, Enforcement, Peer, Pod, Policy, Rule, Tier,
};

/// Origin of a verdict about a packet.
#[derive(Clone, Copy, Debug)]
pub enum Decision<'a> {
    /// An Accept or Deny rule of a tier.
    Tier(&'a ClusterPolicy, &'a ClusterRule),
    /// The NetworkPolicies that isolate the pod.
    NetworkPolicy {
        /// One of their rules allows the packet, or it is to this node.
        allowed: bool,
    },
    /// No rule; allowed by default.
    Default,
}

impl Decision<'_> {
    /// Whether the packet passes.
    #[must_use]
    pub fn allowed(&self) -> bool {
        match self {
            Self::Tier(_, rule) => rule.action == Action::Accept,
            Self::NetworkPolicy { allowed } => *allowed,
            Self::Default => true,
        }
    }

    /// Whether a Deny rule stops the packet.
    #[must_use]
    pub fn denied_by_tier(&self) -> bool {
        matches!(self, Self::Tier(..)) && !self.allowed()
    }
}

/// A translated packet as one of its pods sees it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The cluster.
    pub oracle: &'a Oracle,
    /// The pod.
    pub pod: &'a Pod,
    /// Direction as the pod sees it.
    pub direction: Direction,
    /// The remote address.
    pub remote: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Destination port.
    pub port: u16,
    /// The remote side is the pod itself, reached through a Service, even if another pod claims its address.
    pub itself: bool,
}

impl<'a> Seen<'a> {
    /// The deciding rule: "Admin tier, NetworkPolicy tier, Baseline tier", each evaluated only if the one before
    /// decided nothing. NetworkPolicies allow a pod to reach itself through a Service.
    #[must_use]
    pub fn decide(self) -> Decision<'a> {
        if self.pod.host_network || self.pod.finished {
            return Decision::Default;
        }
        if let Some(decision) = self.tier(Tier::Admin) {
            return decision;
        }
        // "v1.NetworkPolicy always makes a final decision for selected pods."
        if let Some(allowed) = self.network_policies_allow() {
            return Decision::NetworkPolicy { allowed: allowed || self.itself };
        }
        self.tier(Tier::Baseline).unwrap_or(Decision::Default)
    }

    /// Whether the NetworkPolicies that isolate the pod allow the packet; `None` if none does. Audited policies are
    /// ignored.
    fn network_policies_allow(self) -> Option<bool> {
        let pod = self.pod;
        let mut isolated = false;
        for policy in &self.oracle.policies {
            if policy.key.namespace != pod.key.namespace
                || !selects(&policy.pod_selector, &pod.labels)
                || policy.enforcement == Enforcement::Audit
            {
                continue;
            }
            let rules = match self.direction {
                Direction::Ingress => &policy.ingress,
                Direction::Egress => &policy.egress,
            };
            let Some(rules) = rules else { continue };
            isolated = true;
            if rules.iter().any(|rule| self.rule_matches(Some(policy), rule)) {
                return Some(true);
            }
        }
        let to_node = self.direction == Direction::Egress;
        isolated.then(|| to_node && self.oracle.is_own_node(pod, self.remote))
    }

    /// Decision of a tier; `None` if no rule matches or the rule passes.
    fn tier(self, tier: Tier) -> Option<Decision<'a>> {
        let (policy, rule) = self.first_match(tier)?;
        match rule.action {
            Action::Accept | Action::Deny => Some(Decision::Tier(policy, rule)),
            Action::Pass => None,
        }
    }

    /// The matching rule of a tier that "would take the highest precedence": "policies with lower priority values are
    /// checked before policies with higher priority values", equal ones by name, and then "a rule that appears at the
    /// top".
    fn first_match(self, tier: Tier) -> Option<(&'a ClusterPolicy, &'a ClusterRule)> {
        let about = |policy: &&ClusterPolicy| policy.tier == tier && self.is_subject_of(policy);
        let all = self.oracle.cluster_policies.iter();
        let mut policies: Vec<&ClusterPolicy> = all.filter(about).collect();
        policies.sort_by(|a, b| (a.priority, &a.name).cmp(&(b.priority, &b.name)));
        for policy in policies {
            let rules = match self.direction {
                Direction::Ingress => &policy.ingress,
                Direction::Egress => &policy.egress,
            };
            for rule in rules {
                if self.rule_matches(None, &rule.matches) {
                    return Some((policy, rule));
                }
            }
        }
        None
    }

    /// `subject`: "host-networked pods are not included in subject selection". Audited policies have no subject.
    fn is_subject_of(self, policy: &ClusterPolicy) -> bool {
        !self.pod.host_network
            && policy.enforcement == Enforcement::Enforce
            && self.oracle.selects_namespace(&policy.subject.namespaces, self.pod)
            && selects(&policy.subject.pods, &self.pod.labels)
    }

    /// The rules that decide or pass, the first match of each tier; without tiers that are not evaluated.
    #[must_use]
    pub fn deciding(self) -> Vec<(&'a ClusterPolicy, &'a ClusterRule)> {
        let admin = self.first_match(Tier::Admin);
        let ends = admin.is_some_and(|(_, rule)| rule.action != Action::Pass);
        let baseline = match ends || self.network_policies_allow().is_some() {
            true => None,
            false => self.first_match(Tier::Baseline),
        };
        admin.into_iter().chain(baseline).collect()
    }

    /// Indexes of the first matching peer and of the first matching port of a rule that matches; `None` if the rule
    /// lists none.
    #[must_use]
    pub fn matching_items(self, rule: &ClusterRule) -> (Option<usize>, Option<usize>) {
        let mut peers = rule.matches.peers.iter().flatten();
        let mut ports = rule.matches.ports.iter().flatten();
        let peer = peers.position(|peer| self.peer_matches(None, peer));
        let receiver = self.receiver();
        let port = ports.position(|item| port_matches(item, receiver, self.protocol, self.port));
        (peer, port)
    }

    /// `from`, `to`: "If this field is empty or missing, this rule matches all"; `ports`: "If this field is empty or
    /// missing, this rule matches all ports", and then every protocol; otherwise one item of each must match. The
    /// namespace of `policy`, if it is a NetworkPolicy, is the default for pod peers.
    fn rule_matches(self, policy: Option<&Policy>, rule: &Rule) -> bool {
        let peer = |peer| self.peer_matches(policy, peer);
        let port = |item| port_matches(item, self.receiver(), self.protocol, self.port);
        rule.peers.as_ref().is_none_or(|peers| peers.iter().any(peer))
            && rule.ports.as_ref().is_none_or(|items| items.iter().any(port))
    }

    fn peer_matches(self, policy: Option<&Policy>, peer: &Peer) -> bool {
        match peer {
            Peer::Block(block) => block_holds(block, self.remote),
            Peer::Nodes(nodes) => {
                self.oracle.nodes.iter().any(|node| {
                    node.addresses.contains(&self.remote) && selects(nodes, &node.labels)
                })
            }
            // "`*` matches one or more entire labels", "may only be specified as a prefix"; names of Services match
            // nothing.
            Peer::Domain(name) => {
                let pattern = name.to_string();
                let matches = |asked: &str| {
                    let asked = asked.to_ascii_lowercase();
                    match pattern.strip_prefix('*') {
                        Some(suffix) => asked.len() > suffix.len() && asked.ends_with(suffix),
                        None => asked == pattern,
                    }
                };
                self.oracle.resolved.iter().any(|(pod, asked, address)| {
                    *pod == self.pod.key && *address == self.remote && matches(asked)
                })
            }
            Peer::Pods { namespaces, pods } => match self.owner() {
                None => false,
                Some(pod) => {
                    selects(pods, &pod.labels)
                        && match namespaces {
                            None => policy.is_some_and(|p| p.key.namespace == pod.key.namespace),
                            Some(selector) => self.oracle.selects_namespace(selector, pod),
                        }
                }
            },
        }
    }

    /// The pod that resolves named ports.
    fn receiver(self) -> Option<&'a Pod> {
        match self.direction {
            Direction::Ingress => Some(self.pod),
            Direction::Egress => self.owner(),
        }
    }

    /// The pod on the remote side.
    fn owner(self) -> Option<&'a Pod> {
        if self.itself { Some(self.pod) } else { self.oracle.pod_at(self.remote) }
    }
}
