//! What a [`DirectionPolicy`] allows the addresses of a class.

use hashbrown::HashMap;

use crate::compile::rules::direction_policy::DirectionPolicy;
use crate::compile::sets::block_groups::{BlockGroups, PolicyId};
use crate::compile::sets::registry::Registry;
use crate::compile::sets::service_targets::ServiceTargets;
use crate::compile::sets::set::{Membership, OWN_NODE, PeerSet, SetId, is_group, is_targets};
use crate::ports::AllowedPorts;
use crate::ports::tries::{NAME, NONE, PORT, Tries};

/// Says what direction policies allow; it reads what the peer sets of addresses stand for.
pub(crate) struct Evaluator<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) groups: &'a BlockGroups,
    pub(crate) targets: &'a ServiceTargets,
    pub(crate) tries: &'a mut Tries,
    /// Peer sets looked at, ever.
    pub(crate) work: &'a mut u64,
}

impl Evaluator<'_> {
    /// What addresses with these peer sets are granted, names included; service targets are not considered.
    fn granted(
        &mut self,
        direction_policy: &DirectionPolicy,
        id: Option<PolicyId>,
        membership: &[SetId],
    ) -> AllowedPorts {
        let mut all = direction_policy.everyone;
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
        if all.names != NONE {
            for (name, protocol, number) in
                membership.iter().filter_map(|id| self.registry.named(*id))
            {
                if self.tries.contains(NAME, all.names, *name) {
                    all.add(*protocol, *number, *number, self.tries);
                }
            }
            all.names = NONE;
        }
        all
    }

    /// What addresses with these peer sets are allowed. `id`: the direction policy's, if it is in use.
    pub(crate) fn allowed(
        &mut self,
        direction_policy: &DirectionPolicy,
        id: Option<PolicyId>,
        membership: &[SetId],
    ) -> AllowedPorts {
        *self.work += membership.len() as u64 + 1;
        let mut ports = self.granted(direction_policy, id, membership);
        self.add_targets(direction_policy, id, membership, false, &mut ports);
        self.add_targets(direction_policy, id, membership, true, &mut ports);
        ports
    }

    /// What addresses with these peer sets are allowed behind the place of translation, where a packet
    /// that still has one of them was not translated: what is granted to the address itself, and the
    /// node ports of other nodes, which are translated there.
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
        let mut ports = self.granted(direction_policy, id, &own);
        self.add_targets(direction_policy, id, membership, true, &mut ports);
        ports
    }

    /// Adds the ports of service targets: those of which some backend is allowed, or `elsewhere` those of
    /// which every backend is (and there is one). They are for egress only, and so is the own node.
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
        let Some(targets) = self.targets.of(membership) else { return };
        // Backends are many, but of few kinds.
        let mut of_backends: HashMap<Membership, AllowedPorts> = HashMap::new();
        for target in targets.iter().filter(|target| target.elsewhere == elsewhere) {
            *self.work += 1;
            if self.tries.contains(PORT, ports.of(target.protocol), target.port.into()) {
                continue;
            }
            let mut allows = |(backend, port): &(Membership, u16)| {
                let granted = *of_backends
                    .entry_ref(backend)
                    .or_insert_with(|| self.granted(direction_policy, id, backend));
                self.tries.contains(PORT, granted.of(target.protocol), (*port).into())
            };
            let allowed = match elsewhere {
                true => !target.backends.is_empty() && target.backends.iter().all(&mut allows),
                false => target.backends.iter().any(&mut allows),
            };
            if allowed {
                ports.add(target.protocol, target.port, target.port, self.tries);
            }
        }
    }
}
