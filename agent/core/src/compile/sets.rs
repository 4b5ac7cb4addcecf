//! The sets that each address belongs to, and the classes of distinct memberships.
//!
//! [`registry`] numbers the sets in the rules in use, [`members`] finds the sets of a pod, [`block_groups`] those of
//! ipBlocks, [`service_targets`] those of Service addresses. [`partition`] maps prefixes to sets, [`classes`] numbers
//! the distinct memberships.

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
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cluster::{AddressList, Cluster, Dirty};
use crate::model::Key;
use crate::prefix::Prefix;
use block_groups::BlockGroups;
use classes::Classes;
use members::PeerSets;
use partition::{AddressPartition, SettledPrefix};
use service_targets::ServiceTargets;
use services::{ServiceSets, SettlingContext};
use set::{HairpinService, NameId, PeerSet, ServiceTarget, SetId, is_group, is_targets};

/// Sets and classes of addresses, as of the last update.
#[derive(Debug)]
pub(crate) struct Sets {
    pub(crate) peers: PeerSets,
    pub(crate) groups: BlockGroups,
    pub(crate) targets: ServiceTargets,
    services: ServiceSets,
    pub(crate) partition: AddressPartition,
    pub(crate) classes: Classes,
}

/// Changes in the number of users of peer sets and names.
#[derive(Debug, Default)]
pub(crate) struct UserChanges {
    pub(crate) peer_sets: BTreeMap<SetId, i32>,
    pub(crate) names: BTreeMap<NameId, i32>,
}

impl Sets {
    /// No set contains any address.
    pub(crate) fn new() -> Self {
        Self {
            peers: PeerSets::default(),
            groups: BlockGroups::default(),
            targets: ServiceTargets::default(),
            services: ServiceSets::default(),
            partition: AddressPartition::new(),
            classes: Classes::new(),
        }
    }

    /// Assigns a class to every address. `backed` returns the Services with a backend among the pods isolated for
    /// ingress alone. Returns the prefixes that were evaluated, in order.
    pub(crate) fn assign_classes(
        &mut self,
        cluster: &Cluster,
        dirty: &Dirty,
        usage: &UserChanges,
        backed: impl FnOnce() -> BTreeSet<Key>,
    ) -> Vec<SettledPrefix> {
        let served = self.refresh_addresses(cluster, dirty.addresses.clone(), usage);
        let mut settling = SettlingContext {
            cluster,
            registry: &self.peers.registry,
            services: &mut self.services,
            targets: &mut self.targets,
            partition: &mut self.partition,
            classes: &mut self.classes,
        };
        settling.assign_classes(dirty, &served, backed)
    }

    /// Updates the sets of addresses: for added and removed blocks, for dirty addresses, and for addresses that may
    /// belong to an added or removed peer set. Returns the service targets that local pods began or ceased to back.
    fn refresh_addresses(
        &mut self,
        cluster: &Cluster,
        mut addresses: AddressList,
        usage: &UserChanges,
    ) -> Vec<HairpinService> {
        let (mut of_pods, mut served) = (Vec::new(), Vec::new());
        for (id, _) in usage.peer_sets.iter().filter(|(_, change)| **change != 0) {
            match self.peers.registry.peer_set(*id) {
                Some(PeerSet::OwnNode) => addresses.extend(cluster.own_addresses()),
                Some(PeerSet::Nodes(selector)) => {
                    let nodes = cluster.nodes().values();
                    let selected = nodes.filter(|node| selector.matches(&node.labels));
                    addresses.extend(selected.flat_map(|node| &node.addresses));
                }
                Some(PeerSet::HairpinService(hairpin)) => served.push(hairpin.clone()),
                _ => of_pods.push(*id),
            }
        }
        self.partition.set_groups(&self.groups.regroup());
        let members = self.peers.members(cluster, &of_pods);
        let names = usage.names.iter().filter(|(_, change)| **change != 0);
        let names: Vec<NameId> = names.map(|(id, _)| *id).collect();
        addresses.extend(self.peers.members_of_names(cluster, &names));
        // Before the addresses are evaluated, because unused sets must not be found.
        let dropped =
            usage.names.values().chain(usage.peer_sets.values()).any(|change| *change <= 0);
        if dropped {
            self.peers.sweep();
        }
        for address in addresses.into_sorted() {
            let own = self.peers.of_address(cluster, address);
            self.partition.set_host(Prefix::host(address), own);
        }
        // Visiting the entries in order keeps most of them in the processor's caches.
        let (mut four, mut six) = (Vec::new(), Vec::new());
        for (number, (group, _)) in (0u32..).zip(&members) {
            for address in group.pods().flat_map(|pod| pod.all_addresses()) {
                match address {
                    IpAddr::V4(address) => four.push((address.to_bits(), number)),
                    IpAddr::V6(address) => six.push((address.to_bits(), number)),
                }
            }
        }
        four.sort_unstable();
        six.sort_unstable();
        let four =
            four.into_iter().map(|(bits, number)| (Ipv4Addr::from_bits(bits).into(), number));
        let six = six.into_iter().map(|(bits, number)| (Ipv6Addr::from_bits(bits).into(), number));
        for (address, number) in four.chain(six) {
            let own = self.peers.of_member(cluster, address, &members[number as usize].1);
            self.partition.set_host(Prefix::host(address), own);
        }
        served
    }

    /// Content of a peer set: service targets in full, a block group as its first prefix.
    pub(crate) fn content(&self, id: SetId) -> Option<PeerSet> {
        if is_group(id) {
            return self.groups.first(id).map(|prefix| PeerSet::Blocks(prefix.to_net()));
        }
        if !is_targets(id) {
            return self.peers.registry.peer_set(id).cloned();
        }
        let named =
            |peer_sets: &[SetId]| peer_sets.iter().filter_map(|id| self.content(*id)).collect();
        let targets = self.targets.targets_in(&[id])?;
        let targets = targets.iter().map(|target| ServiceTarget {
            protocol: target.protocol,
            port: target.port,
            elsewhere: target.elsewhere,
            backends: target
                .backends
                .iter()
                .map(|(peer_sets, port)| (named(peer_sets), *port))
                .collect(),
        });
        Some(PeerSet::ServiceTargets(targets.collect()))
    }

    /// Ends the update: drops sets without addresses and rules.
    pub(crate) fn sweep(&mut self) {
        self.targets.sweep();
        self.groups.sweep();
    }
}
