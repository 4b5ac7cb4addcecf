//! What a [`Spec`] allows the addresses of a class.

use hashbrown::HashMap;

use crate::compile::rules::direction_policy::Spec;
use crate::compile::sets::block_groups::{Groups, SpecId};
use crate::compile::sets::registry::Registry;
use crate::compile::sets::service_targets::Frontends;
use crate::compile::sets::set::{Atom, AtomId, OWN_NODE, Signature, is_frontends, is_group};
use crate::ports::Grant;
use crate::ports::tries::{NAME, NONE, PORT, Tries};

/// Says what specs allow; it reads what the atoms of addresses stand for.
pub(crate) struct Evaluator<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) groups: &'a Groups,
    pub(crate) frontends: &'a Frontends,
    pub(crate) tries: &'a mut Tries,
    /// Atoms looked at, ever.
    pub(crate) work: &'a mut u64,
}

impl Evaluator<'_> {
    /// What addresses with these atoms are granted, names included; frontends are not considered.
    fn granted(&mut self, spec: &Spec, id: Option<SpecId>, signature: &[AtomId]) -> Grant {
        let mut all = spec.everyone;
        for atom in signature {
            let grant = if is_group(*atom) {
                spec.blocks.value(self.groups.value(*atom, id, &spec.blocks.changes))
            } else {
                spec.peers.get(atom).copied().unwrap_or_default()
            };
            all = all.union(grant, self.tries);
        }
        if all.names != NONE {
            for (name, protocol, number) in
                signature.iter().filter_map(|id| self.registry.named(*id))
            {
                if self.tries.contains(NAME, all.names, *name) {
                    all.add(*protocol, *number, *number, self.tries);
                }
            }
            all.names = NONE;
        }
        all
    }

    /// What addresses with these atoms are allowed. `id`: the spec's, if it is in use.
    pub(crate) fn allowed(
        &mut self,
        spec: &Spec,
        id: Option<SpecId>,
        signature: &[AtomId],
    ) -> Grant {
        *self.work += signature.len() as u64 + 1;
        let mut ports = self.granted(spec, id, signature);
        self.add_frontends(spec, id, signature, false, &mut ports);
        self.add_frontends(spec, id, signature, true, &mut ports);
        ports
    }

    /// What addresses with these atoms are allowed behind the place of translation, where a packet
    /// that still has one of them was not translated: what is granted to the address itself, and the
    /// node ports of other nodes, which are translated there.
    pub(crate) fn allowed_untranslated(
        &mut self,
        spec: &Spec,
        id: Option<SpecId>,
        signature: &[AtomId],
    ) -> Grant {
        let serves = |id: &AtomId| matches!(self.registry.atom(*id), Some(Atom::Serves(_)));
        let own: Vec<AtomId> = signature.iter().copied().filter(|id| !serves(id)).collect();
        *self.work += own.len() as u64 + 1;
        let mut ports = self.granted(spec, id, &own);
        self.add_frontends(spec, id, signature, true, &mut ports);
        ports
    }

    /// Adds the ports of frontends: those of which some backend is allowed, or `elsewhere` those of
    /// which every backend is (and there is one). They are for egress only, and so is the own node.
    fn add_frontends(
        &mut self,
        spec: &Spec,
        id: Option<SpecId>,
        signature: &[AtomId],
        elsewhere: bool,
        ports: &mut Grant,
    ) {
        if !signature.last().is_some_and(|atom| is_frontends(*atom))
            || !spec.peers.contains_key(&OWN_NODE)
        {
            return;
        }
        let Some(fronts) = self.frontends.of(signature) else { return };
        // Backends are many, but of few kinds.
        let mut of_backends: HashMap<Signature, Grant> = HashMap::new();
        for front in fronts.iter().filter(|front| front.elsewhere == elsewhere) {
            *self.work += 1;
            if self.tries.contains(PORT, ports.of(front.protocol), front.port.into()) {
                continue;
            }
            let mut allows = |(backend, port): &(Signature, u16)| {
                let granted = *of_backends
                    .entry_ref(backend)
                    .or_insert_with(|| self.granted(spec, id, backend));
                self.tries.contains(PORT, granted.of(front.protocol), (*port).into())
            };
            let allowed = match elsewhere {
                true => !front.backends.is_empty() && front.backends.iter().all(&mut allows),
                false => front.backends.iter().any(&mut allows),
            };
            if allowed {
                ports.add(front.protocol, front.port, front.port, self.tries);
            }
        }
    }
}
