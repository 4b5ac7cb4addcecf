//! What the policies that isolate a pod in one direction allow: the input of a row.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::compile::blocks::BlockMap;
use crate::compile::classes::Signature;
use crate::compile::frontends::is_frontends;
use crate::compile::groups::{SpecId, is_group};
use crate::compile::peers::{Atom, AtomId, Atoms, NameId, OWN_NODE, Serves};
use crate::compile::ports::Grant;
use crate::compile::tries::{NAME, NONE, PORT, Tries};
use crate::model::{
    Direction, IpBlock, NamedPort, Peer, Policy, PortMatch, PortRule, Protocol, Rule,
};

/// The union of all rules of a direction: equal rules are equal values, whichever policies they
/// come from. An address is allowed the union of what `everyone`, each of its atoms and the blocks
/// are granted that hold it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spec {
    /// Hash of all else, so that a large spec is looked up as fast as a small one.
    digest: u64,
    pub(crate) everyone: Grant,
    pub(crate) peers: BTreeMap<AtomId, Grant>,
    pub(crate) blocks: BlockMap,
    /// The port names that the grants ask for.
    pub(crate) names: BTreeSet<NameId>,
}

impl Hash for Spec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

/// What a spec is made of.
pub(crate) struct Source<'a> {
    pub(crate) direction: Direction,
    /// The policies that grant something to the pod in this direction.
    pub(crate) policies: &'a [&'a Policy],
    /// The pod's named ports, if ingress rules ask for names.
    pub(crate) ports: &'a [NamedPort],
    /// The frontends that the pod backs itself.
    pub(crate) served: &'a [Serves],
}

/// A spec that is being made.
struct Builder<'a> {
    spec: Spec,
    blocks: Vec<(&'a IpBlock, Grant)>,
    source: &'a Source<'a>,
}

impl Spec {
    /// What policies allow.
    pub(crate) fn new(source: &Source<'_>, atoms: &mut Atoms) -> Arc<Self> {
        let mut builder = Builder { spec: Self::default(), blocks: Vec::new(), source };
        for policy in source.policies {
            for rule in policy.rules(source.direction).unwrap_or_default() {
                builder.add(rule, &policy.key.namespace, atoms);
            }
        }
        let Builder { mut spec, blocks, .. } = builder;
        spec.blocks = BlockMap::new(&blocks, &mut atoms.tries);
        if source.direction == Direction::Egress {
            spec.peers.insert(atoms.intern(Atom::OwnNode), Grant::EVERYTHING);
        }
        for serves in source.served {
            let atom = atoms.intern(Atom::Serves(serves.clone()));
            let grant = spec.peers.entry(atom).or_default();
            grant.add(serves.protocol, serves.port, serves.port, &mut atoms.tries);
        }
        spec.finish(atoms)
    }

    /// Isolated, and nothing allowed but what nothing can deny.
    pub(crate) fn closed(direction: Direction, atoms: &mut Atoms) -> Arc<Self> {
        match direction {
            Direction::Ingress => Self::nothing(),
            Direction::Egress => Self::own_node(atoms),
        }
    }

    /// Isolated, and nothing allowed.
    pub(crate) fn nothing() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Isolated, and only the own node allowed.
    pub(crate) fn own_node(atoms: &mut Atoms) -> Arc<Self> {
        let mut spec = Self::default();
        spec.peers.insert(atoms.intern(Atom::OwnNode), Grant::EVERYTHING);
        spec.finish(atoms)
    }

    fn finish(mut self, atoms: &Atoms) -> Arc<Self> {
        self.digest = atoms.hasher.hash_one((&self.everyone, &self.peers, &self.blocks));
        Arc::new(self)
    }

    /// All that is granted.
    pub(crate) fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.peers.values().chain([&self.everyone]).chain(self.blocks.values())
    }

    /// What addresses with these atoms are granted, names included; frontends are not considered.
    fn granted(&self, id: Option<SpecId>, signature: &[AtomId], atoms: &mut Atoms) -> Grant {
        let mut all = self.everyone;
        for atom in signature {
            let grant = if is_group(*atom) {
                self.blocks.value(atoms.groups.value(*atom, id, self))
            } else {
                self.peers.get(atom).copied().unwrap_or_default()
            };
            all = all.union(grant, &mut atoms.tries);
        }
        if all.names != NONE {
            for (name, protocol, number) in signature.iter().filter_map(|id| atoms.named.get(id)) {
                if atoms.tries.contains(NAME, all.names, *name) {
                    all.add(*protocol, *number, *number, &mut atoms.tries);
                }
            }
            all.names = NONE;
        }
        all
    }

    /// What addresses with these atoms are allowed. `id`: the spec's, if it is in use.
    pub(crate) fn allowed(
        &self,
        id: Option<SpecId>,
        signature: &[AtomId],
        atoms: &mut Atoms,
    ) -> Grant {
        atoms.work += signature.len() as u64 + 1;
        let mut ports = self.granted(id, signature, atoms);
        self.add_frontends(id, signature, false, atoms, &mut ports);
        self.add_frontends(id, signature, true, atoms, &mut ports);
        ports
    }

    /// What addresses with these atoms are allowed behind the place of translation, where a packet
    /// that still has one of them was not translated: what is granted to the address itself, and the
    /// node ports of other nodes, which are translated there.
    pub(crate) fn allowed_untranslated(
        &self,
        id: Option<SpecId>,
        signature: &[AtomId],
        atoms: &mut Atoms,
    ) -> Grant {
        let serves = |id: &AtomId| matches!(atoms.atom(*id), Some(Atom::Serves(_)));
        let own: Vec<AtomId> = signature.iter().copied().filter(|id| !serves(id)).collect();
        atoms.work += own.len() as u64 + 1;
        let mut ports = self.granted(id, &own, atoms);
        self.add_frontends(id, signature, true, atoms, &mut ports);
        ports
    }

    /// Adds the ports of frontends: those of which some backend is allowed, or `elsewhere` those of
    /// which every backend is (and there is one). They are for egress only, and so is the own node.
    fn add_frontends(
        &self,
        id: Option<SpecId>,
        signature: &[AtomId],
        elsewhere: bool,
        atoms: &mut Atoms,
        ports: &mut Grant,
    ) {
        if !signature.last().is_some_and(|atom| is_frontends(*atom))
            || !self.peers.contains_key(&OWN_NODE)
        {
            return;
        }
        let Some(fronts) = atoms.frontends.of(signature) else { return };
        // Backends are many, but of few kinds.
        let mut of_backends: HashMap<Signature, Grant> = HashMap::new();
        for front in fronts.iter().filter(|front| front.elsewhere == elsewhere) {
            atoms.work += 1;
            if atoms.tries.contains(PORT, ports.of(front.protocol), front.port.into()) {
                continue;
            }
            let mut allows = |(backend, port): &(Signature, u16)| {
                let granted = *of_backends
                    .entry_ref(backend)
                    .or_insert_with(|| self.granted(id, backend, atoms));
                atoms.tries.contains(PORT, granted.of(front.protocol), (*port).into())
            };
            let allowed = match elsewhere {
                true => !front.backends.is_empty() && front.backends.iter().all(&mut allows),
                false => front.backends.iter().any(&mut allows),
            };
            if allowed {
                ports.add(front.protocol, front.port, front.port, &mut atoms.tries);
            }
        }
    }
}

impl<'a> Builder<'a> {
    fn add(&mut self, rule: &'a Rule, namespace: &str, atoms: &mut Atoms) {
        let mut grant = Grant::default();
        match &rule.ports {
            None => grant = Grant::EVERYTHING,
            Some(ports) => ports.iter().for_each(|port| self.add_port(port, &mut grant, atoms)),
        }
        if grant.is_none() {
            return;
        }
        let Some(peers) = &rule.peers else {
            self.spec.everyone = self.spec.everyone.union(grant, &mut atoms.tries);
            return;
        };
        for peer in peers {
            match peer {
                Peer::Block(block) => self.blocks.push((block, grant)),
                Peer::Pods { namespaces, pods } => {
                    let atom = atoms.intern(Atom::of_pods(namespaces.as_ref(), pods, namespace));
                    let known = self.spec.peers.entry(atom).or_default();
                    *known = known.union(grant, &mut atoms.tries);
                }
            }
        }
    }

    fn add_port(&mut self, rule: &PortRule, grant: &mut Grant, atoms: &mut Atoms) {
        let protocol: Protocol = rule.protocol;
        match (&rule.port, self.source.direction) {
            (PortMatch::Any, _) => grant.add(protocol, 0, u16::MAX, &mut atoms.tries),
            (PortMatch::Range(first, last), _) => {
                grant.add(protocol, *first, *last, &mut atoms.tries);
            }
            (PortMatch::Named(name), Direction::Ingress) => {
                let ports = self.source.ports.iter();
                for port in ports.filter(|p| p.protocol == protocol && p.name == *name) {
                    grant.add(protocol, port.port, port.port, &mut atoms.tries);
                }
            }
            (PortMatch::Named(name), Direction::Egress) => {
                let name = atoms.intern_name(protocol, name);
                self.spec.names.insert(name);
                grant.add_name(name, &mut atoms.tries);
            }
        }
    }
}

/// What a rule grants, names by a number of their own.
pub(crate) fn literal<'a>(
    rule: &'a Rule,
    names: &mut BTreeMap<(Protocol, &'a str), NameId>,
    tries: &mut Tries,
) -> Grant {
    let Some(ports) = &rule.ports else { return Grant::EVERYTHING };
    let mut grant = Grant::default();
    for port in ports {
        match &port.port {
            PortMatch::Any => grant.add(port.protocol, 0, u16::MAX, tries),
            PortMatch::Range(first, last) => grant.add(port.protocol, *first, *last, tries),
            PortMatch::Named(name) => {
                let next = names.len() as NameId;
                grant.add_name(*names.entry((port.protocol, name)).or_insert(next), tries);
            }
        }
    }
    grant
}
