//! Compiles rules of policies into a [`DirectionPolicy`].

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::DefaultHashBuilder;

use crate::compile::rules::direction_policy::{DirectionPolicy, NameGroup, TierRule, Tiers};
use crate::compile::sets::registry::Registry;
use crate::compile::sets::set::{HairpinService, PeerSet};
use crate::model::{
    Action, ClusterPolicy, Direction, DomainName, IpBlock, NamedPort, Peer, Policy, PortMatch,
    PortRule, Protocol, Rule, Tier,
};
use crate::ports::AllowedPorts;
use crate::ports::blocks::BlockMap;
use crate::ports::tries::Tries;

/// Input of a direction policy.
pub(crate) struct BuilderInput<'a> {
    pub(crate) direction: Direction,
    /// The policies that grant something to the pod in this direction.
    pub(crate) policies: &'a [&'a Policy],
    /// Whether a NetworkPolicy isolates the pod, even if none grants anything.
    pub(crate) isolated: bool,
    /// The ClusterNetworkPolicies with rules for the pod, in order of evaluation.
    pub(crate) tiers: &'a [Arc<ClusterPolicy>],
    /// The pod's labels are known, so `tiers` select it; otherwise they may select it.
    pub(crate) labelled: bool,
    /// The pod's named ports, if ingress rules use port names.
    pub(crate) ports: &'a [NamedPort],
    /// The service targets with the pod itself as backend.
    pub(crate) served: &'a [HairpinService],
    /// The service targets with the pod itself as backend through which tiers deny it to reach itself.
    pub(crate) refused: &'a [HairpinService],
}

/// A direction policy under construction.
struct DirectionPolicyDraft<'a> {
    direction_policy: DirectionPolicy,
    blocks: Vec<(&'a IpBlock, AllowedPorts)>,
    source: &'a BuilderInput<'a>,
}

/// Builds direction policies, with numbers of the registry and of the tries.
pub(crate) struct Builder<'a> {
    pub(crate) registry: &'a mut Registry,
    pub(crate) tries: &'a mut Tries,
    pub(crate) hasher: &'a DefaultHashBuilder,
}

impl Builder<'_> {
    /// Builds the direction policy of a source.
    pub(crate) fn build(&mut self, source: &BuilderInput<'_>) -> Arc<DirectionPolicy> {
        let mut draft = DirectionPolicyDraft {
            direction_policy: DirectionPolicy::default(),
            blocks: Vec::new(),
            source,
        };
        for policy in source.policies {
            for rule in policy.rules(source.direction).unwrap_or_default() {
                let grant = self.ports_of(rule, &mut draft);
                self.add(rule, grant, &policy.key.namespace, &mut draft);
            }
        }
        if !source.tiers.is_empty() || !source.refused.is_empty() {
            let rules = self.add_tiers(&mut draft);
            let tiers = Tiers { rules, isolated: source.isolated };
            draft.direction_policy.tiers = Some(Arc::new(tiers));
        }
        let DirectionPolicyDraft { mut direction_policy, blocks, .. } = draft;
        direction_policy.blocks = BlockMap::new(&blocks, self.tries);
        if source.direction == Direction::Egress {
            direction_policy
                .peers
                .insert(self.registry.intern(PeerSet::OwnNode), AllowedPorts::EVERYTHING);
        }
        let DirectionPolicy { peers, served, refused, .. } = &mut direction_policy;
        for (hairpins, ports) in [(source.served, served), (source.refused, refused)] {
            for hairpin in hairpins {
                let peer_set = self.registry.intern(PeerSet::HairpinService(hairpin.clone()));
                // Counts as a use of the peer set.
                peers.entry(peer_set).or_default();
                let ports = ports.entry(peer_set).or_default();
                ports.add(hairpin.protocol, hairpin.port, hairpin.port, self.tries);
            }
        }
        self.finish(direction_policy)
    }

    /// A direction policy that isolates and allows only this node for egress, which no NetworkPolicy can deny.
    pub(crate) fn closed(&mut self, direction: Direction) -> Arc<DirectionPolicy> {
        match direction {
            Direction::Ingress => DirectionPolicy::nothing(),
            Direction::Egress => self.own_node(),
        }
    }

    /// A direction policy that isolates and allows only this node.
    pub(crate) fn own_node(&mut self) -> Arc<DirectionPolicy> {
        let mut direction_policy = DirectionPolicy::default();
        direction_policy
            .peers
            .insert(self.registry.intern(PeerSet::OwnNode), AllowedPorts::EVERYTHING);
        self.finish(direction_policy)
    }

    /// A direction policy that allows everything.
    pub(crate) fn everything(&self) -> Arc<DirectionPolicy> {
        let everyone = AllowedPorts::EVERYTHING;
        self.finish(DirectionPolicy { everyone, ..DirectionPolicy::default() })
    }

    fn finish(&self, mut direction_policy: DirectionPolicy) -> Arc<DirectionPolicy> {
        direction_policy.digest = self.hasher.hash_one((
            &direction_policy.everyone,
            &direction_policy.peers,
            &direction_policy.blocks,
            &direction_policy.tiers,
            &direction_policy.served,
            &direction_policy.refused,
            &direction_policy.domains,
        ));
        Arc::new(direction_policy)
    }

    /// Adds the rules of ClusterNetworkPolicies: grants the mark of each rule to its peers, and returns the rules in
    /// order.
    fn add_tiers(&mut self, draft: &mut DirectionPolicyDraft<'_>) -> Vec<TierRule> {
        let BuilderInput { direction, isolated, tiers, labelled, .. } = *draft.source;
        let (mut rules, mut groups) = (Vec::<TierRule>::new(), Vec::new());
        // Index after the last rule of the last group.
        let mut grouped = 0;
        for policy in tiers.iter().filter(|it| !(isolated && it.tier == Tier::Baseline)) {
            let selects = labelled || policy.subject.pods.requirements.is_empty();
            for rule in policy.rules(direction) {
                // If the policy may not select the pod, only its Deny rules apply.
                if !selects && rule.action != Action::Deny {
                    continue;
                }
                let ports = self.ports_of(&rule.matches, draft);
                let mark = AllowedPorts::mark(rules.len() as u32, self.tries);
                let names: BTreeSet<DomainName> = rule.matches.domain_names().cloned().collect();
                if !names.is_empty() && rule.action == Action::Accept && policy.tier == Tier::Admin
                {
                    // Rules without another in between, and with the same ports, decide alike.
                    let last = rules.last().is_some_and(|last| last.ports == ports);
                    match groups.last_mut() {
                        Some(NameGroup { names: known, .. }) if last && grouped == rules.len() => {
                            known.extend(names);
                        }
                        _ => groups.push(NameGroup { mark, names }),
                    }
                    grouped = rules.len() + 1;
                }
                rules.push(TierRule { tier: policy.tier, action: rule.action, ports });
                // Pod peers of ClusterNetworkPolicies always have a namespace selector, so the namespace is not used.
                self.add(&rule.matches, mark, "", draft);
            }
        }
        if !groups.is_empty() {
            draft.direction_policy.domains = Some(Arc::new(groups));
        }
        rules
    }

    fn ports_of(&mut self, rule: &Rule, draft: &mut DirectionPolicyDraft<'_>) -> AllowedPorts {
        let Some(ports) = &rule.ports else { return AllowedPorts::EVERYTHING };
        let mut grant = AllowedPorts::default();
        ports.iter().for_each(|port| self.add_port(port, &mut grant, draft));
        grant
    }

    /// Grants ports to the peers of a rule.
    fn add<'a>(
        &mut self,
        rule: &'a Rule,
        grant: AllowedPorts,
        namespace: &str,
        draft: &mut DirectionPolicyDraft<'a>,
    ) {
        if grant.is_none() {
            return;
        }
        let Some(peers) = &rule.peers else {
            draft.direction_policy.everyone =
                draft.direction_policy.everyone.union(grant, self.tries);
            return;
        };
        for peer in peers {
            match peer {
                Peer::Block(block) => draft.blocks.push((block, grant)),
                Peer::Nodes(nodes) => {
                    self.add_set(PeerSet::Nodes(nodes.clone()), grant, draft);
                }
                // Its addresses are known to the packet path only.
                Peer::Domain(_) => {}
                Peer::Pods { namespaces, pods } => {
                    let peer_set = PeerSet::of_pods(namespaces.as_ref(), pods, namespace);
                    self.add_set(peer_set, grant, draft);
                }
            }
        }
    }

    fn add_set(
        &mut self,
        peer_set: PeerSet,
        grant: AllowedPorts,
        draft: &mut DirectionPolicyDraft<'_>,
    ) {
        let id = self.registry.intern(peer_set);
        let known = draft.direction_policy.peers.entry(id).or_default();
        *known = known.union(grant, self.tries);
    }

    fn add_port(
        &mut self,
        rule: &PortRule,
        grant: &mut AllowedPorts,
        draft: &mut DirectionPolicyDraft<'_>,
    ) {
        let protocol: Protocol = rule.protocol;
        match (&rule.port, draft.source.direction) {
            (PortMatch::Any, _) => grant.add(protocol, 0, u16::MAX, self.tries),
            (PortMatch::Range(first, last), _) => {
                grant.add(protocol, *first, *last, self.tries);
            }
            (PortMatch::Named(name), Direction::Ingress) => {
                let ports = draft.source.ports.iter();
                for port in ports.filter(|p| p.protocol == protocol && p.name == *name) {
                    grant.add(protocol, port.port, port.port, self.tries);
                }
            }
            (PortMatch::Named(name), Direction::Egress) => {
                let name = self.registry.intern_name(protocol, name);
                draft.direction_policy.names.insert(name);
                grant.add_name(name, self.tries);
            }
        }
    }
}
