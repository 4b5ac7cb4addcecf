//! The tiers of ClusterNetworkPolicy around NetworkPolicy, read from the comments of its API types
//! (`policy.networking.k8s.io/v1alpha2`).

use std::net::IpAddr;

use super::{Oracle, port_matches, ports_match, selects};
use netpold_core::model::{Action, ClusterPolicy, ClusterRule, Direction, Enforcement, Pod, Tier};

/// What decides about a packet.
#[derive(Clone, Copy, Debug)]
pub enum Decision<'a> {
    /// A rule that accepts or denies.
    Tier(&'a ClusterPolicy, &'a ClusterRule),
    /// The NetworkPolicies that isolate the pod.
    NetworkPolicy {
        /// One of their rules allows it, or it is to the own node.
        allowed: bool,
    },
    /// Nothing does, so it is allowed.
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

    /// Whether a Deny rule is what stops it.
    #[must_use]
    pub fn denied_by_tier(&self) -> bool {
        matches!(self, Self::Tier(..)) && !self.allowed()
    }
}

/// A packet as one of its pods sees it, translated already.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Into or out of the pod.
    pub direction: Direction,
    /// The other side.
    pub remote: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Destination port.
    pub port: u16,
    /// The other side is the pod itself, reached through a Service, whoever else claims its address.
    pub itself: bool,
}

impl Oracle {
    /// What decides: "Admin tier, NetworkPolicy tier, Baseline tier", each asked only if the one before
    /// decided nothing. NetworkPolicies allow a pod to reach itself through a Service.
    #[must_use]
    pub fn decide(&self, seen: Seen<'_>) -> Decision<'_> {
        if seen.pod.host_network || seen.pod.finished {
            return Decision::Default;
        }
        if let Some(decision) = self.tier(Tier::Admin, seen) {
            return decision;
        }
        // "v1.NetworkPolicy always makes a final decision for selected pods."
        if let Some(allowed) = self.network_policies_allow(seen) {
            return Decision::NetworkPolicy { allowed: allowed || seen.itself };
        }
        self.tier(Tier::Baseline, seen).unwrap_or(Decision::Default)
    }

    /// What a tier decides; `None`: nothing, or to pass.
    fn tier(&self, tier: Tier, seen: Seen<'_>) -> Option<Decision<'_>> {
        let (policy, rule) = self.first_match(tier, seen)?;
        match rule.action {
            Action::Accept | Action::Deny => Some(Decision::Tier(policy, rule)),
            Action::Pass => None,
        }
    }

    /// The rule of a tier that "would take the highest precedence" of those that match: "policies with lower
    /// priority values are checked before policies with higher priority values", of equal ones the
    /// first by name, and then "a rule that appears at the top".
    #[must_use]
    pub fn first_match(
        &self,
        tier: Tier,
        seen: Seen<'_>,
    ) -> Option<(&ClusterPolicy, &ClusterRule)> {
        let about =
            |policy: &&ClusterPolicy| policy.tier == tier && self.is_about(policy, seen.pod);
        let mut policies: Vec<&ClusterPolicy> =
            self.cluster_policies.iter().filter(about).collect();
        policies.sort_by(|a, b| (a.priority, &a.name).cmp(&(b.priority, &b.name)));
        for policy in policies {
            let rules = match seen.direction {
                Direction::Ingress => &policy.ingress,
                Direction::Egress => &policy.egress,
            };
            for rule in rules {
                if self.rule_matches(rule, seen) {
                    return Some((policy, rule));
                }
            }
        }
        None
    }

    /// `subject`: "host-networked pods are not included in subject selection". Policies on trial are about
    /// nobody.
    fn is_about(&self, policy: &ClusterPolicy, pod: &Pod) -> bool {
        !pod.host_network
            && policy.enforcement == Enforcement::Enforce
            && self.selects_namespace(&policy.subject.namespaces, pod)
            && selects(&policy.subject.pods, &pod.labels)
    }

    /// The rules that decide or pass, each the first that matches in its tier; those of a tier that is
    /// not asked are left out.
    #[must_use]
    pub fn deciding(&self, seen: Seen<'_>) -> Vec<(&ClusterPolicy, &ClusterRule)> {
        let admin = self.first_match(Tier::Admin, seen);
        let ends = admin.is_some_and(|(_, rule)| rule.action != Action::Pass);
        let baseline = match ends || self.network_policies_allow(seen).is_some() {
            true => None,
            false => self.first_match(Tier::Baseline, seen),
        };
        admin.into_iter().chain(baseline).collect()
    }

    /// Which items of a rule that matches are the first to do so, of its peers and of its ports; `None`:
    /// it has none.
    #[must_use]
    pub fn matching_items(
        &self,
        rule: &ClusterRule,
        seen: Seen<'_>,
    ) -> (Option<usize>, Option<usize>) {
        let Seen { remote, protocol, port, .. } = seen;
        let receiver = self.receiver(seen);
        let mut peers = rule.matches.peers.iter().flatten();
        let mut ports = rule.matches.ports.iter().flatten();
        let peer = peers.position(|peer| self.peer_matches(None, peer, remote, self.owner(seen)));
        let port = ports.position(|item| port_matches(item, receiver, protocol, port));
        (peer, port)
    }

    /// `from`, `to` and `protocols`: "If any element matches the source of incoming traffic".
    fn rule_matches(&self, rule: &ClusterRule, seen: Seen<'_>) -> bool {
        self.peers_match(None, &rule.matches, seen.remote, self.owner(seen))
            && ports_match(&rule.matches, self.receiver(seen), seen.protocol, seen.port)
    }

    /// The pod whose named ports count.
    fn receiver<'a>(&'a self, seen: Seen<'a>) -> Option<&'a Pod> {
        match seen.direction {
            Direction::Ingress => Some(seen.pod),
            Direction::Egress => self.owner(seen),
        }
    }

    /// The pod on the other side.
    pub(super) fn owner<'a>(&'a self, seen: Seen<'a>) -> Option<&'a Pod> {
        if seen.itself { Some(seen.pod) } else { self.pod_at(seen.remote) }
    }
}
