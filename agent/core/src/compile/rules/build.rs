//! From the rules of policies to a [`Spec`].

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::DefaultHashBuilder;

use crate::compile::rules::direction_policy::Spec;
use crate::compile::sets::registry::Registry;
use crate::compile::sets::set::{Atom, Serves};
use crate::model::{
    Direction, IpBlock, NamedPort, Peer, Policy, PortMatch, PortRule, Protocol, Rule,
};
use crate::ports::Grant;
use crate::ports::blocks::BlockMap;
use crate::ports::tries::Tries;

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
struct Draft<'a> {
    spec: Spec,
    blocks: Vec<(&'a IpBlock, Grant)>,
    source: &'a Source<'a>,
}

/// Makes specs. The numbers in them are the registry's and the tries'.
pub(crate) struct Builder<'a> {
    pub(crate) registry: &'a mut Registry,
    pub(crate) tries: &'a mut Tries,
    pub(crate) hasher: &'a DefaultHashBuilder,
}

impl Builder<'_> {
    /// What policies allow.
    pub(crate) fn build(&mut self, source: &Source<'_>) -> Arc<Spec> {
        let mut draft = Draft { spec: Spec::default(), blocks: Vec::new(), source };
        for policy in source.policies {
            for rule in policy.rules(source.direction).unwrap_or_default() {
                self.add(rule, &policy.key.namespace, &mut draft);
            }
        }
        let Draft { mut spec, blocks, .. } = draft;
        spec.blocks = BlockMap::new(&blocks, self.tries);
        if source.direction == Direction::Egress {
            spec.peers.insert(self.registry.intern(Atom::OwnNode), Grant::EVERYTHING);
        }
        for serves in source.served {
            let atom = self.registry.intern(Atom::Serves(serves.clone()));
            let grant = spec.peers.entry(atom).or_default();
            grant.add(serves.protocol, serves.port, serves.port, self.tries);
        }
        self.finish(spec)
    }

    /// Isolated, and nothing allowed but what nothing can deny.
    pub(crate) fn closed(&mut self, direction: Direction) -> Arc<Spec> {
        match direction {
            Direction::Ingress => Spec::nothing(),
            Direction::Egress => self.own_node(),
        }
    }

    /// Isolated, and only the own node allowed.
    pub(crate) fn own_node(&mut self) -> Arc<Spec> {
        let mut spec = Spec::default();
        spec.peers.insert(self.registry.intern(Atom::OwnNode), Grant::EVERYTHING);
        self.finish(spec)
    }

    fn finish(&self, mut spec: Spec) -> Arc<Spec> {
        spec.digest = self.hasher.hash_one((&spec.everyone, &spec.peers, &spec.blocks));
        Arc::new(spec)
    }

    fn add<'a>(&mut self, rule: &'a Rule, namespace: &str, draft: &mut Draft<'a>) {
        let mut grant = Grant::default();
        match &rule.ports {
            None => grant = Grant::EVERYTHING,
            Some(ports) => ports.iter().for_each(|port| self.add_port(port, &mut grant, draft)),
        }
        if grant.is_none() {
            return;
        }
        let Some(peers) = &rule.peers else {
            draft.spec.everyone = draft.spec.everyone.union(grant, self.tries);
            return;
        };
        for peer in peers {
            match peer {
                Peer::Block(block) => draft.blocks.push((block, grant)),
                Peer::Pods { namespaces, pods } => {
                    let atom = Atom::of_pods(namespaces.as_ref(), pods, namespace);
                    let known = draft.spec.peers.entry(self.registry.intern(atom)).or_default();
                    *known = known.union(grant, self.tries);
                }
            }
        }
    }

    fn add_port(&mut self, rule: &PortRule, grant: &mut Grant, draft: &mut Draft<'_>) {
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
                draft.spec.names.insert(name);
                grant.add_name(name, self.tries);
            }
        }
    }
}
