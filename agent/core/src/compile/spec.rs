//! What the policies that isolate a pod in one direction allow: the input of a row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::compile::classes::Signature;
use crate::compile::peers::{Atom, AtomId, Atoms, NameId, OWN_NODE, Serves};
use crate::compile::ports::Ports;
use crate::model::{Direction, Pod, Policy, PortMatch, PortRule, Protocol, Rule};

/// Ports granted to a set of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Grant {
    pub(crate) ports: Ports,
    /// Port names that each destination resolves for itself (egress).
    pub(crate) names: BTreeSet<NameId>,
}

/// The union of all rules of a direction: equal rules are equal values, whichever policies they
/// come from. An address is allowed the union of what `everyone` and each of its atoms are granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Spec {
    pub(crate) everyone: Grant,
    pub(crate) peers: BTreeMap<AtomId, Grant>,
}

impl Spec {
    /// What a pod's policies allow in a direction; `None` if none isolates it. A pod whose labels are
    /// not known is isolated by every policy of its namespace, and granted what those grant that
    /// select every pod.
    pub(crate) fn of_pod(
        cluster: &Cluster,
        pod: &Pod,
        labelled: bool,
        direction: Direction,
        atoms: &mut Atoms,
    ) -> Option<Arc<Self>> {
        let mut spec = Self::default();
        let mut isolated = false;
        let selects = |policy: &Policy| !labelled || policy.pod_selector.matches(&pod.labels);
        let policies = cluster.policies_in(&pod.key.namespace).filter(|policy| selects(policy));
        for policy in policies {
            let Some(rules) = policy.rules(direction) else { continue };
            isolated = true;
            let selects_every_pod = policy.pod_selector.requirements.is_empty();
            let granted = if labelled || selects_every_pod { rules } else { &[] };
            for rule in granted {
                spec.add(rule, &policy.key.namespace, pod, direction, atoms);
            }
        }
        if !isolated {
            return None;
        }
        if direction == Direction::Egress {
            let own = atoms.intern(Atom::OwnNode);
            spec.peers.entry(own).or_default().ports = Ports::all();
            spec.add_served(cluster, pod, atoms);
        }
        Some(Arc::new(spec))
    }

    /// A pod reaches itself, also by way of a Service that it backs.
    fn add_served(&mut self, cluster: &Cluster, pod: &Pod, atoms: &mut Atoms) {
        for (service, port, v6) in cluster.translation().backed_by(pod) {
            let atom = atoms.intern(Atom::Serves(Serves {
                service: service.key.clone(),
                v6,
                protocol: port.protocol,
                port: port.port,
            }));
            let grant = self.peers.entry(atom).or_default();
            grant.ports.of_mut(port.protocol).add(port.port, port.port);
        }
    }

    /// Isolated, and nothing allowed.
    pub(crate) fn nothing() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Isolated, and only the own node allowed.
    pub(crate) fn own_node(atoms: &mut Atoms) -> Arc<Self> {
        let mut spec = Self::default();
        spec.peers.entry(atoms.intern(Atom::OwnNode)).or_default().ports = Ports::all();
        Arc::new(spec)
    }

    fn add(
        &mut self,
        rule: &Rule,
        namespace: &str,
        pod: &Pod,
        direction: Direction,
        atoms: &mut Atoms,
    ) {
        let mut grant = Grant::default();
        match &rule.ports {
            None => grant.ports = Ports::all(),
            Some(ports) => {
                for port in ports {
                    grant.add(port, pod, direction, atoms);
                }
            }
        }
        if grant.ports.is_none() && grant.names.is_empty() {
            return;
        }
        match &rule.peers {
            None => self.everyone.union(&grant),
            Some(peers) => {
                for peer in peers {
                    let atom = atoms.intern(Atom::of_peer(peer, namespace));
                    self.peers.entry(atom).or_default().union(&grant);
                }
            }
        }
    }

    /// The port names that the grants ask for.
    pub(crate) fn names(&self) -> BTreeSet<NameId> {
        let grants = self.peers.values().chain([&self.everyone]);
        grants.flat_map(|grant| grant.names.iter().copied()).collect()
    }

    /// The grants of a signature's atoms.
    fn granted<'a>(
        &'a self,
        signature: &'a [AtomId],
        atoms: &'a Atoms,
    ) -> impl Iterator<Item = &'a Grant> + Clone {
        signature.iter().filter_map(|atom| self.peers.get(&atoms.groups.like(*atom)))
    }

    /// What addresses with these atoms are allowed at the sender, or as a sender.
    pub(crate) fn allowed(&self, signature: &[AtomId], atoms: &Atoms) -> Ports {
        let mut ports = self.granted_to(signature, atoms);
        self.add_frontends(signature, false, atoms, &mut ports);
        self.add_frontends(signature, true, atoms, &mut ports);
        ports
    }

    /// What addresses with these atoms are allowed behind the place of translation, where a packet
    /// that still has one of them was not translated: what is granted to the address itself, and the
    /// node ports of other nodes, which are translated there.
    pub(crate) fn allowed_untranslated(&self, signature: &[AtomId], atoms: &Atoms) -> Ports {
        let serves = |id: &AtomId| matches!(atoms.atom(*id), Some(Atom::Serves(_)));
        let own: Vec<AtomId> = signature.iter().copied().filter(|id| !serves(id)).collect();
        let mut ports = self.granted_to(&own, atoms);
        self.add_frontends(signature, true, atoms, &mut ports);
        ports
    }

    /// What addresses with these atoms are granted, frontends aside.
    fn granted_to(&self, signature: &[AtomId], atoms: &Atoms) -> Ports {
        let mut ports = self.everyone.ports.clone();
        let peers = self.granted(signature, atoms);
        for grant in peers.clone() {
            ports.union(&grant.ports);
        }
        let has_names =
            !self.everyone.names.is_empty() || peers.clone().any(|g| !g.names.is_empty());
        if has_names {
            for (name, protocol, number) in signature.iter().filter_map(|id| atoms.named(*id)) {
                let granted = self.everyone.names.contains(&name)
                    || peers.clone().any(|grant| grant.names.contains(&name));
                if granted {
                    ports.of_mut(protocol).add(number, number);
                }
            }
        }
        ports
    }

    /// Adds the ports of frontends: those of which some backend is allowed, or `elsewhere` those of
    /// which every backend is (and there is one). They are for egress only, and so is the own node.
    fn add_frontends(
        &self,
        signature: &[AtomId],
        elsewhere: bool,
        atoms: &Atoms,
        ports: &mut Ports,
    ) {
        let Some(fronts) = atoms.frontends.of(signature) else { return };
        if !self.peers.contains_key(&OWN_NODE) {
            return;
        }
        for front in fronts.iter().filter(|front| front.elsewhere == elsewhere) {
            let ranges = ports.of_mut(front.protocol);
            if ranges.contains(front.port) {
                continue;
            }
            let allows = |(atoms_of, port): &(Signature, u16)| {
                self.allows(atoms_of, front.protocol, *port, atoms)
            };
            let backends = &front.backends;
            let allowed = match elsewhere {
                true => !backends.is_empty() && backends.iter().all(allows),
                false => backends.iter().any(allows),
            };
            if allowed {
                ranges.add(front.port, front.port);
            }
        }
    }

    /// Whether addresses with these atoms are allowed a port; frontends are not considered.
    fn allows(&self, signature: &[AtomId], protocol: Protocol, port: u16, atoms: &Atoms) -> bool {
        let granted = |grant: &Grant| grant.ports.of(protocol).contains(port);
        let peers = || self.granted(signature, atoms);
        if granted(&self.everyone) || peers().any(granted) {
            return true;
        }
        let mut grants = peers().chain([&self.everyone]).filter(|grant| !grant.names.is_empty());
        grants.any(|grant| {
            let mut named = signature.iter().filter_map(|id| atoms.named(*id));
            named.any(|(name, of, number)| {
                of == protocol && number == port && grant.names.contains(&name)
            })
        })
    }
}

impl Grant {
    fn add(&mut self, rule: &PortRule, pod: &Pod, direction: Direction, atoms: &mut Atoms) {
        let ranges = self.ports.of_mut(rule.protocol);
        match (&rule.port, direction) {
            (PortMatch::Any, _) => ranges.add(0, u16::MAX),
            (PortMatch::Range(first, last), _) => ranges.add(*first, *last),
            (PortMatch::Named(name), Direction::Ingress) => {
                let same =
                    pod.ports.iter().filter(|p| p.protocol == rule.protocol && p.name == *name);
                same.for_each(|port| ranges.add(port.port, port.port));
            }
            (PortMatch::Named(name), Direction::Egress) => {
                self.names.insert(atoms.intern_name(rule.protocol, name));
            }
        }
    }

    fn union(&mut self, other: &Self) {
        self.ports.union(&other.ports);
        self.names.extend(&other.names);
    }
}
