//! Evaluates a [`DirectionPolicy`] for the addresses of a class.

use hashbrown::HashMap;

use crate::compile::rules::direction_policy::{DirectionPolicy, TierRule, Tiers};
use crate::compile::sets::block_groups::{BlockGroups, PolicyId};
use crate::compile::sets::registry::Registry;
use crate::compile::sets::service_targets::{ServiceTargets, are_unknown};
use crate::compile::sets::set::{Membership, OWN_NODE, PeerSet, SetId, is_group, is_targets};
use crate::model::{Action, Tier};
use crate::ports::AllowedPorts;
use crate::ports::tries::{NAME, NONE, PORT, Tries};

/// Evaluates direction policies, with the state of sets behind the numbers in a membership.
pub(crate) struct Evaluator<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) groups: &'a BlockGroups,
    pub(crate) targets: &'a ServiceTargets,
    pub(crate) tries: &'a mut Tries,
    /// Mark of a rule that all addresses match, besides the others.
    pub(crate) mark: AllowedPorts,
    /// Number of peer sets read so far.
    pub(crate) work: &'a mut u64,
}

/// Decision about addresses.
#[derive(Clone, Copy)]
struct AddressDecision {
    allowed: AllowedPorts,
    /// Ports denied by a Deny rule of a tier. Ports without a grant of a NetworkPolicy are not included.
    denied: AllowedPorts,
}

impl Evaluator<'_> {
    /// Decides about addresses with this membership, named ports included, service targets excluded.
    fn decided(
        &mut self,
        direction_policy: &DirectionPolicy,
        id: Option<PolicyId>,
        membership: &[SetId],
    ) -> AddressDecision {
        let mut all = direction_policy.everyone.union(self.mark, self.tries);
        for peer_set in membership {
            let grant = if is_group(*peer_set) {
                direction_policy.blocks.value(self.groups.value(
                    *peer_set,
                    id,
                    &direction_policy.blocks.changes,
                ))
            } else {
                direction_policy.peers.get(peer_set).copied().unwrap_or_default()
            };
            all = all.union(grant, self.tries);
        }
        let Some(tiers) = &direction_policy.tiers else {
            all = self.with_served(all, direction_policy, membership);
            self.resolve(&mut all, membership);
            return AddressDecision { allowed: all, denied: AllowedPorts::default() };
        };
        let matching = all.marks(self.tries);
        self.resolve(&mut all, membership);
        self.flatten(tiers, &matching, &all, membership)
    }

    /// Adds the ports through which the pod reaches itself.
    fn with_served(
        &mut self,
        ports: AllowedPorts,
        direction_policy: &DirectionPolicy,
        membership: &[SetId],
    ) -> AllowedPorts {
        let served = membership.iter().filter_map(|id| direction_policy.served.get(id));
        served.fold(ports, |ports, served| ports.union(*served, self.tries))
    }

    /// Replaces port names by the numbers that they have on the addresses.
    fn resolve(&mut self, ports: &mut AllowedPorts, membership: &[SetId]) {
        let names = std::mem::replace(&mut ports.names, NONE);
        if names == NONE {
            return;
        }
        for (name, protocol, number) in membership.iter().filter_map(|id| self.registry.named(*id))
        {
            if self.tries.contains(NAME, names, *name) {
                ports.add(*protocol, *number, *number, self.tries);
            }
        }
    }

    /// Evaluates the tiers in order. `matching` are the marks of rules with the addresses as peers, `granted` the
    /// grants of NetworkPolicies.
    fn flatten(
        &mut self,
        tiers: &Tiers,
        matching: &[u32],
        granted: &AllowedPorts,
        membership: &[SetId],
    ) -> AddressDecision {
        let rules = matching.iter().filter_map(|mark| tiers.rules.get(*mark as usize));
        let rules: Vec<TierRule> = rules
            .map(|rule| {
                let mut rule = *rule;
                self.resolve(&mut rule.ports, membership);
                rule
            })
            .collect();
        *self.work += rules.len() as u64;
        flatten(&rules, tiers.isolated.then_some(granted), self.tries)
    }

    /// Ports allowed to addresses with this membership. `id` is the number of the direction policy, if in use.
    pub(crate) fn allowed(
        &mut self,
        direction_policy: &DirectionPolicy,
        id: Option<PolicyId>,
        membership: &[SetId],
    ) -> AllowedPorts {
        *self.work += membership.len() as u64 + 1;
        let mut ports = self.decided(direction_policy, id, membership).allowed;
        self.add_targets(direction_policy, id, membership, false, &mut ports);
        self.add_targets(direction_policy, id, membership, true, &mut ports);
        if direction_policy.tiers.is_some() {
            ports = self.with_served(ports, direction_policy, membership);
        }
        for refused in membership.iter().filter_map(|id| direction_policy.refused.get(id)) {
            ports = ports.minus(refused, self.tries);
        }
        ports
    }

    /// Ports allowed to addresses with this membership after the place of translation. A packet that still has such an
    /// address there was not translated, so only grants to the address itself count, and node ports of other nodes,
    /// which are translated there.
    pub(crate) fn allowed_untranslated(
        &mut self,
        direction_policy: &DirectionPolicy,
        id: Option<PolicyId>,
        membership: &[SetId],
    ) -> AllowedPorts {
        let hairpin =
            |id: &SetId| matches!(self.registry.peer_set(*id), Some(PeerSet::HairpinService(_)));
        let own: Vec<SetId> = membership.iter().copied().filter(|id| !hairpin(id)).collect();
        *self.work += own.len() as u64 + 1;
        let mut ports = self.decided(direction_policy, id, &own).allowed;
        self.add_targets(direction_policy, id, membership, true, &mut ports);
        ports
    }

    /// Adds the ports of service targets with some allowed backend, or, if `elsewhere`, with at least one backend and
    /// all of them allowed. Removes ports of which a tier denies all backends (if `elsewhere`: any backend), even if
    /// the address itself is allowed: a denied pod must not be reachable by another address. Service targets matter for
    /// egress only, as does this node.
    fn add_targets(
        &mut self,
        direction_policy: &DirectionPolicy,
        id: Option<PolicyId>,
        membership: &[SetId],
        elsewhere: bool,
        ports: &mut AllowedPorts,
    ) {
        if !membership.last().is_some_and(|peer_set| is_targets(*peer_set))
            || !direction_policy.peers.contains_key(&OWN_NODE)
        {
            return;
        }
        let Some(targets) = self.targets.targets_in(membership) else { return };
        // Many backends, but few distinct memberships.
        let mut of_backends: HashMap<Membership, AddressDecision> = HashMap::new();
        let may_deny = direction_policy.tiers.is_some();
        for target in targets.iter().filter(|target| target.elsewhere == elsewhere) {
            *self.work += 1;
            let known =
                self.tries.contains(PORT, ports.for_protocol(target.protocol), target.port.into());
            if known && !may_deny || target.backends.is_empty() {
                continue;
            }
            if are_unknown(&target.backends) {
                // A tier may deny one of them.
                if may_deny {
                    ports.remove(target.protocol, target.port, self.tries);
                }
                continue;
            }
            let (mut allowed, mut denied) = (0, 0);
            for (backend, port) in &*target.backends {
                *self.work += 1;
                let decided = *of_backends
                    .entry_ref(backend)
                    .or_insert_with(|| self.decided(direction_policy, id, backend));
                let holds = |ports: &AllowedPorts| {
                    self.tries.contains(PORT, ports.for_protocol(target.protocol), (*port).into())
                };
                allowed += usize::from(holds(&decided.allowed));
                denied += usize::from(holds(&decided.denied));
                // Usually the first backend decides.
                if !may_deny && (allowed > 0) != elsewhere {
                    break;
                }
            }
            let all = target.backends.len();
            if denied == all || elsewhere && denied > 0 {
                ports.remove(target.protocol, target.port, self.tries);
            } else if !known && (allowed == all || !elsewhere && allowed > 0) {
                ports.add(target.protocol, target.port, target.port, self.tries);
            }
        }
    }
}

/// Decision of these rules, in order of evaluation, about addresses that all of them match. `granted` are the grants of
/// NetworkPolicies; `None`: no policy isolates the pod, so Baseline applies and the rest is allowed.
fn flatten(
    rules: &[TierRule],
    granted: Option<&AllowedPorts>,
    tries: &mut Tries,
) -> AddressDecision {
    let mut decided =
        AddressDecision { allowed: AllowedPorts::default(), denied: AllowedPorts::default() };
    // Ports that no tier has decided so far.
    let mut open = AllowedPorts::EVERYTHING;
    let ask =
        |tier: Tier, decided: &mut AddressDecision, open: &mut AllowedPorts, tries: &mut Tries| {
            let mut passed = AllowedPorts::default();
            for rule in rules.iter().filter(|rule| rule.tier == tier) {
                let of = rule.ports.intersection(open, tries);
                *open = open.minus(&of, tries);
                let into = match rule.action {
                    Action::Accept => &mut decided.allowed,
                    Action::Deny => &mut decided.denied,
                    Action::Pass => &mut passed,
                };
                *into = into.union(of, tries);
            }
            *open = open.union(passed, tries);
        };
    ask(Tier::Admin, &mut decided, &mut open, tries);
    if let Some(granted) = granted {
        open = open.intersection(granted, tries);
    } else {
        ask(Tier::Baseline, &mut decided, &mut open, tries);
    }
    decided.allowed = decided.allowed.union(open, tries);
    decided
}
