//! What addresses are: the sets that each belongs to, and the classes that these sets make.
//!
//! [`registry`] numbers the sets that rules in use speak of, [`members`] finds those of a pod,
//! [`block_groups`] those of blocks, [`service_targets`] those of Services' addresses. [`partition`]
//! keeps which prefixes have which sets, [`classes`] numbers the combinations.

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
use partition::{AddressPartition, Settled};
use service_targets::ServiceTargets;
use services::{Services, Settling};
use set::{HairpinService, NameId, PeerSet, ServiceTarget, SetId, is_group, is_targets};

/// What addresses are, as of the last update.
#[derive(Debug)]
pub(crate) struct Sets {
    pub(crate) peers: PeerSets,
    pub(crate) groups: BlockGroups,
    pub(crate) targets: ServiceTargets,
    services: Services,
    pub(crate) partition: AddressPartition,
    pub(crate) classes: Classes,
}

/// Peer sets and names whose use began or ended.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) peer_sets: BTreeMap<SetId, i32>,
    pub(crate) names: BTreeMap<NameId, i32>,
}

impl Sets {
    /// Nobody speaks of any address.
    pub(crate) fn new() -> Self {
        Self {
            peers: PeerSets::default(),
            groups: BlockGroups::default(),
            targets: ServiceTargets::default(),
            services: Services::default(),
            partition: AddressPartition::new(),
            classes: Classes::new(),
        }
    }

    /// Gives every address its class. `backed`: the Services with a backend among the pods that are isolated
    /// for ingress alone. Returns the prefixes that were looked at, in order.
    pub(crate) fn settle(
        &mut self,
        cluster: &Cluster,
        dirty: &Dirty,
        usage: &Usage,
        backed: impl FnOnce() -> BTreeSet<Key>,
    ) -> Vec<Settled> {
        let served = self.refresh_addresses(cluster, dirty.addresses.clone(), usage);
        let mut settling = Settling {
            cluster,
            registry: &self.peers.registry,
            services: &mut self.services,
            targets: &mut self.targets,
            partition: &mut self.partition,
            classes: &mut self.classes,
        };
        settling.settle(dirty, &served, backed)
    }

    /// Brings the address space up to date: blocks that came or went, and the addresses that are dirty
    /// or may belong to a peer set that came or went. Returns the service targets that local pods have
    /// begun or ceased to serve.
    fn refresh_addresses(
        &mut self,
        cluster: &Cluster,
        mut addresses: AddressList,
        usage: &Usage,
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
        self.partition.set_groups(&self.groups.settle());
        let members = self.peers.members(cluster, &of_pods);
        let names = usage.names.iter().filter(|(_, change)| **change != 0);
        let names: Vec<NameId> = names.map(|(id, _)| *id).collect();
        addresses.extend(self.peers.members_of_names(cluster, &names));
        // Before addresses are looked at: what is not in use must not be found.
        let dropped =
            usage.names.values().chain(usage.peer_sets.values()).any(|change| *change <= 0);
        if dropped {
            self.peers.sweep();
        }
        for address in addresses.into_sorted() {
            let own = self.peers.of_address(cluster, address);
            self.partition.set_host(Prefix::host(address), own);
        }
        // Whoever goes through the entries in their order finds most of them in the processor's caches.
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

    /// What stands for a peer set of a membership: service targets in full, of a group its first prefix.
    pub(crate) fn content(&self, id: SetId) -> Option<PeerSet> {
        if is_group(id) {
            return self.groups.first(id).map(|prefix| PeerSet::Blocks(prefix.to_net()));
        }
        if !is_targets(id) {
            return self.peers.registry.peer_set(id).cloned();
        }
        let named =
            |peer_sets: &[SetId]| peer_sets.iter().filter_map(|id| self.content(*id)).collect();
        let targets = self.targets.of(&[id])?;
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

    /// Ends the update: forgets what no address and no rule has any more.
    pub(crate) fn sweep(&mut self) {
        self.targets.sweep();
        self.groups.sweep();
    }
}
