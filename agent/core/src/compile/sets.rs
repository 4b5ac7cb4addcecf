//! What addresses are: the sets that each belongs to, and the classes that these sets make.
//!
//! [`registry`] numbers the sets that rules in use speak of, [`members`] finds those of a pod, [`block_groups`]
//! those of blocks, [`service_targets`] those of Services' addresses. [`partition`] keeps which prefixes
//! have which sets, [`classes`] numbers the combinations.

pub(crate) mod block_groups;
pub(crate) mod classes;
mod members;
pub(crate) mod partition;
pub(crate) mod registry;
mod selector_index;
pub(crate) mod service_targets;
mod services;
pub(crate) mod set;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::cluster::{Cluster, Dirty};
use crate::prefix::Prefix;
use block_groups::Groups;
use classes::Classes;
use members::PeerSets;
use partition::Space;
use service_targets::Frontends;
use services::{Services, Settling};
use set::{Atom, AtomId, Frontend, NameId, Serves, is_frontends, is_group};

/// What addresses are, as of the last update.
#[derive(Debug)]
pub(crate) struct Sets {
    pub(crate) peers: PeerSets,
    pub(crate) groups: Groups,
    pub(crate) frontends: Frontends,
    services: Services,
    pub(crate) space: Space,
    pub(crate) classes: Classes,
}

/// Atoms and names whose use began or ended.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) atoms: BTreeMap<AtomId, i32>,
    pub(crate) names: BTreeMap<NameId, i32>,
}

impl Sets {
    /// Nobody speaks of any address.
    pub(crate) fn new() -> Self {
        Self {
            peers: PeerSets::default(),
            groups: Groups::default(),
            frontends: Frontends::default(),
            services: Services::default(),
            space: Space::new(),
            classes: Classes::new(),
        }
    }

    /// Gives every address its class. Returns the prefixes that were looked at, in order.
    pub(crate) fn settle(
        &mut self,
        cluster: &Cluster,
        dirty: &Dirty,
        usage: &Usage,
    ) -> Vec<Prefix> {
        let served = self.refresh_addresses(cluster, dirty.addresses.clone(), usage);
        let mut settling = Settling {
            cluster,
            registry: &self.peers.registry,
            services: &mut self.services,
            frontends: &mut self.frontends,
            space: &mut self.space,
            classes: &mut self.classes,
        };
        settling.settle(dirty, &served)
    }

    /// Brings the address space up to date: blocks that came or went, and the addresses that are
    /// dirty or may belong to an atom that came or went. Returns the frontends that local pods have
    /// begun or ceased to serve.
    fn refresh_addresses(
        &mut self,
        cluster: &Cluster,
        mut addresses: BTreeSet<IpAddr>,
        usage: &Usage,
    ) -> Vec<Serves> {
        let (mut of_pods, mut served) = (Vec::new(), Vec::new());
        for (id, _) in usage.atoms.iter().filter(|(_, change)| **change != 0) {
            match self.peers.registry.atom(*id) {
                Some(Atom::OwnNode) => addresses.extend(cluster.own_addresses()),
                Some(Atom::Serves(serves)) => served.push(serves.clone()),
                _ => of_pods.push(*id),
            }
        }
        self.space.set_groups(&self.groups.settle());
        let members = self.peers.members(cluster, &of_pods);
        let names = usage.names.iter().filter(|(_, change)| **change != 0);
        let names: Vec<NameId> = names.map(|(id, _)| *id).collect();
        addresses.extend(self.peers.members_of_names(cluster, &names));
        // Before addresses are looked at: what is not in use must not be found.
        let dropped = usage.names.values().chain(usage.atoms.values()).any(|change| *change <= 0);
        if dropped {
            self.peers.sweep();
        }
        for address in addresses {
            let own = self.peers.of_address(cluster, address);
            self.space.set_host(Prefix::host(address), own);
        }
        for (kin, of_labels) in &members {
            for pod in kin.pods() {
                for address in &pod.addresses {
                    let own = self.peers.of_member(cluster, *address, of_labels);
                    self.space.set_host(Prefix::host(*address), own);
                }
            }
        }
        served
    }

    /// What stands for an atom of a signature: frontends in full, of a group its first prefix.
    pub(crate) fn content(&self, id: AtomId) -> Option<Atom> {
        if is_group(id) {
            return self.groups.first(id).map(|prefix| Atom::Blocks(prefix.to_net()));
        }
        if !is_frontends(id) {
            return self.peers.registry.atom(id).cloned();
        }
        let named = |atoms: &[AtomId]| atoms.iter().filter_map(|id| self.content(*id)).collect();
        let fronts = self.frontends.of(&[id])?;
        let fronts = fronts.iter().map(|front| Frontend {
            protocol: front.protocol,
            port: front.port,
            elsewhere: front.elsewhere,
            backends: front.backends.iter().map(|(atoms, port)| (named(atoms), *port)).collect(),
        });
        Some(Atom::Frontends(fronts.collect()))
    }

    /// Ends the update: forgets what no address and no rule has any more.
    pub(crate) fn sweep(&mut self) {
        self.frontends.sweep();
        self.groups.sweep();
    }
}
