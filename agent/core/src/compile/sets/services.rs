//! Updates which addresses are translated, and their backends.
//!
//! Service targets are built from the membership of backends, so they are settled after all other addresses. Then the
//! Services with a changed backend are resolved again, then the addresses of Services with a changed result are
//! settled.
//!
//! Addresses beyond the limit of their namespace have no entry of their own, but an empty service target for their whole
//! network. So have the addresses that each node has for itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hashbrown::HashMap;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::cluster::Cluster;
use crate::cluster::{Dirty, services::range};
use crate::compile::sets::classes::Classes;
use crate::compile::sets::partition::{AddressPartition, SettledPrefix};
use crate::compile::sets::registry::Registry;
use crate::compile::sets::service_targets::{
    Backends, ServiceTargets, TargetPort, unknown_backends,
};
use crate::compile::sets::set::{HairpinService, Membership, OWN_NODE, SetId};
use crate::model::{EndpointSlice, Key, Protocol, Service};
use crate::prefix::{IpFamily, Prefix};

/// A Service port with its backends by family, IPv4 first.
#[derive(Debug, PartialEq, Eq)]
struct Resolved {
    protocol: Protocol,
    port: u16,
    node_port: Option<u16>,
    backends: [Backends; 2],
    /// Slices of the Service are beyond the limits: only its node port counts, with unknown backends.
    lacks_backends: bool,
}

/// Services as of the last update.
#[derive(Debug, Default)]
pub(super) struct ServiceSets {
    /// Whether some endpoint is isolated for egress, so that addresses of all Services matter. Otherwise only `backed`
    /// ones do.
    active: bool,
    /// Empty unless `active`.
    resolved: HashMap<Key, Vec<Resolved>>,
    /// Services with a backend that is isolated for ingress alone. Their addresses may lead a pod back to itself, so
    /// packets to them are marked. Empty while `active`, when packets to all Services are marked.
    backed: BTreeSet<Key>,
    networks: Networks,
}

/// Networks with an empty service target.
#[derive(Debug, Default)]
struct Networks {
    /// By Service; `None`: [`of_each_node`].
    of: BTreeMap<Option<Key>, BTreeSet<IpNet>>,
    /// Number of users by network.
    users: BTreeMap<IpNet, u32>,
}

/// Networks of addresses that each node has for itself. netfilter translates packets to node ports there as at the node's
/// other addresses, also packets that the kernel drops after the translation if they still have such a destination.
fn of_each_node() -> BTreeSet<IpNet> {
    let networks = [
        Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into(),
        Ipv6Net::from(Ipv6Addr::LOCALHOST).into(),
        Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10).into(),
    ];
    networks.into()
}

impl Networks {
    /// Sets the networks of a Service, or of each node; adds changed ones to `changed`.
    fn set(&mut self, service: Option<&Key>, new: BTreeSet<IpNet>, changed: &mut BTreeSet<IpNet>) {
        for network in &new {
            *self.users.entry(*network).or_default() += 1;
        }
        let old = match new.is_empty() {
            true => self.of.remove(&service.cloned()),
            false => self.of.insert(service.cloned(), new.clone()),
        };
        let old = old.unwrap_or_default();
        for network in &old {
            if let Some(users) = self.users.get_mut(network) {
                *users -= 1;
            }
        }
        changed.extend(old.symmetric_difference(&new));
    }
}

/// Services and addresses to evaluate again.
#[derive(Debug, Default)]
struct PendingServices {
    services: BTreeSet<Key>,
    addresses: BTreeSet<IpAddr>,
    /// Services whose networks may have changed.
    networks: BTreeSet<Key>,
    /// All node ports.
    nodes: bool,
}

/// Ports of an address, sorted, with all backends. The flag is true for a node port.
type PortsOfAddress = BTreeMap<(Protocol, u16, bool), Backends>;

/// State read and updated while settling addresses.
pub(super) struct SettlingContext<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) registry: &'a Registry,
    pub(super) services: &'a mut ServiceSets,
    pub(super) targets: &'a mut ServiceTargets,
    pub(super) partition: &'a mut AddressPartition,
    pub(super) classes: &'a mut Classes,
}

impl SettlingContext<'_> {
    /// Assigns a class to every address; Services' and nodes' addresses come last. Returns the settled prefixes in
    /// order.
    pub(super) fn assign_classes(
        &mut self,
        dirty: &Dirty,
        served: &[HairpinService],
        backed: impl FnOnce() -> BTreeSet<Key>,
    ) -> Vec<SettledPrefix> {
        let active = self.registry.is_used(OWN_NODE);
        let backed = if active { BTreeSet::new() } else { backed() };
        let none = backed.is_empty() && self.services.backed.is_empty();
        if !active && !self.services.active && none {
            return self.partition.assign_classes(self.classes);
        }
        let mut work = self.translation_dirty(active, dirty, served);
        self.backed_dirty(backed, dirty, &mut work);
        let later: BTreeSet<Prefix> = work.addresses.iter().map(|a| Prefix::host(*a)).collect();
        let (mut changed, translates) = (Vec::new(), !self.cluster.translation.is_empty());
        let mut touched = self.partition.assign_backend_classes(
            self.classes,
            |prefix| later.contains(&prefix),
            |prefix| changed.extend(translates.then_some(prefix)),
        );
        if active {
            work.services.extend(
                changed.into_iter().flat_map(|prefix| self.services_with_backend_in(prefix)),
            );
            self.resolve(&mut work);
        }
        if work.nodes {
            work.addresses.extend(self.cluster.translation.nodes());
        }
        self.set_targets_of(&work, active);
        self.set_targets_within(&work, active);
        let later = self.partition.assign_classes(self.classes);
        if !later.is_empty() {
            touched.extend(later);
            touched.sort_by_key(|settled| settled.prefix);
            // For a prefix settled twice, keeps the last result.
            touched.dedup_by(|last, first| {
                let same = last.prefix == first.prefix;
                if same {
                    *first = *last;
                }
                same
            });
        }
        touched
    }

    /// Work that follows from the changes, and from hairpin services that local pods began or ceased to back.
    fn translation_dirty(
        &mut self,
        active: bool,
        dirty: &Dirty,
        served: &[HairpinService],
    ) -> PendingServices {
        let services = &self.cluster.translation;
        let mut work =
            PendingServices { addresses: dirty.frontends.clone(), ..PendingServices::default() };
        work.networks.clone_from(&dirty.services);
        if active != self.services.active {
            let networks = std::mem::take(&mut self.services.networks);
            work.networks.extend(networks.of.keys().flatten().cloned());
            work.networks.extend(services.services().keys().cloned());
            *self.services = ServiceSets { active, networks, ..ServiceSets::default() };
            work.addresses.extend(services.addresses().chain(self.cluster.own_addresses()));
            work.services.extend(services.services().keys().cloned());
            return work;
        }
        work.services.clone_from(&dirty.services);
        // The address may have become, or ceased to be, this node's.
        let translated = |a: &&IpAddr| services.is_node(**a) || !services.at(**a).is_empty();
        work.addresses.extend(dirty.addresses.iter().filter(translated));
        for hairpin in served {
            let service = services.services().get(&hairpin.service);
            work.addresses.extend(service.into_iter().flat_map(|s| &s.addresses));
        }
        work
    }

    /// Adds work for Services that began or ceased to lead pods back to themselves, and for changed addresses of such
    /// Services and of the node.
    fn backed_dirty(&mut self, backed: BTreeSet<Key>, dirty: &Dirty, work: &mut PendingServices) {
        if self.services.active {
            return;
        }
        let services = &self.cluster.translation;
        let changed = self.services.backed.symmetric_difference(&backed);
        let changed: Vec<_> = changed.chain(backed.intersection(&dirty.services)).collect();
        if !changed.is_empty() {
            work.networks.extend(changed.iter().copied().cloned());
            let changed = changed.into_iter().filter_map(|key| services.services().get(key));
            work.addresses.extend(changed.flat_map(|service| &service.addresses));
            work.addresses.extend(self.cluster.own_addresses());
        }
        work.addresses.extend(dirty.addresses.iter());
        self.services.backed = backed;
    }

    /// Services with a backend in a prefix.
    fn services_with_backend_in(&self, prefix: Prefix) -> Vec<Key> {
        let services = &self.cluster.translation;
        let (first, last) = range(prefix.family == IpFamily::V6, prefix.bits, prefix.last());
        services.behind_range(first, last).collect()
    }

    /// Resolves Services again; adds the addresses of changed ones to the work.
    fn resolve(&mut self, work: &mut PendingServices) {
        let services = &self.cluster.translation;
        for key in &work.services {
            let new = services.services().get(key).map_or_else(Vec::new, |it| self.resolved(it));
            let old = self.services.resolved.get(key).map_or(&[][..], Vec::as_slice);
            if *old == new[..] {
                continue;
            }
            work.nodes |= old.iter().chain(&new).any(|port| port.node_port.is_some());
            let service = services.services().get(key);
            work.addresses.extend(service.into_iter().flat_map(|service| &service.addresses));
            if service.is_some() {
                self.services.resolved.insert(key.clone(), new);
            } else {
                self.services.resolved.remove(key);
            }
        }
    }

    /// Ports of a Service with their backends. Addresses of a slice differ only by membership, so they are evaluated
    /// once per slice, however many ports it has.
    fn resolved(&self, service: &Service) -> Vec<Resolved> {
        if self.cluster.translation.lacks_backends(&service.key) {
            let unknown = unknown_backends();
            let with_node_ports = service.ports.iter().filter(|port| port.node_port.is_some());
            let unknown = with_node_ports.map(|port| Resolved {
                protocol: port.protocol,
                port: port.port,
                node_port: port.node_port,
                backends: [unknown.clone(), unknown.clone()],
                lacks_backends: true,
            });
            return unknown.collect();
        }
        let by_port = self.cluster.translation.slices_by_port(&service.key);
        let mut kinds: HashMap<*const EndpointSlice, [BTreeSet<Membership>; 2]> = HashMap::new();
        let ports = service.ports.iter().map(|port| {
            let mut backends = [BTreeSet::new(), BTreeSet::new()];
            let slices = by_port.get(&(port.name.as_str(), port.protocol));
            for (slice, number) in slices.into_iter().flatten() {
                let kinds = kinds.entry(Arc::as_ptr(slice)).or_insert_with(|| self.kinds(slice));
                for (backends, kinds) in backends.iter_mut().zip(kinds) {
                    backends.extend(kinds.iter().map(|kind| (kind.clone(), *number)));
                }
            }
            Resolved {
                protocol: port.protocol,
                port: port.port,
                node_port: port.node_port,
                backends: backends.map(|backends| backends.into_iter().collect()),
                lacks_backends: false,
            }
        });
        ports.collect()
    }

    /// Distinct memberships of a slice's addresses, IPv4 first.
    fn kinds(&self, slice: &EndpointSlice) -> [BTreeSet<Membership>; 2] {
        [false, true].map(|v6| {
            let addresses = slice.addresses.iter().filter(|address| address.is_ipv6() == v6);
            addresses.map(|a| self.partition.base(Prefix::host(*a), self.classes)).collect()
        })
    }

    /// Sets the service targets of the addresses.
    fn set_targets_of(&mut self, work: &PendingServices, active: bool) {
        let mut node_ports: [Option<PortsOfAddress>; 2] = [None, None];
        for address in &work.addresses {
            let peer_sets = if active {
                self.targets_of(*address, &mut node_ports)
            } else {
                self.leads_back(*address)
            };
            let before = self.partition.set_targets(Prefix::host(*address), peer_sets);
            self.targets.release(&before);
        }
    }

    /// Sets the empty service targets of networks, see [`Self::leads_back`].
    fn set_targets_within(&mut self, work: &PendingServices, active: bool) {
        let mut changed = BTreeSet::new();
        if active != self.services.networks.of.contains_key(&None) {
            let new = if active { of_each_node() } else { BTreeSet::new() };
            self.services.networks.set(None, new, &mut changed);
        }
        for key in &work.networks {
            let new = match active || self.services.backed.contains(key) {
                true => self.cluster.translation.networks_of(key),
                false => BTreeSet::new(),
            };
            self.services.networks.set(Some(key), new, &mut changed);
        }
        for network in changed {
            let users = &mut self.services.networks.users;
            let is_used = users.get(&network).is_some_and(|users| *users > 0);
            if !is_used {
                users.remove(&network);
            }
            let target = is_used.then(|| self.targets.acquire(Vec::new(), false));
            let before = self.partition.set_target_within(Prefix::net(network), target);
            self.targets.release(&before);
        }
    }

    /// Peer sets of an address as a Service's or a node's, sorted. This node's addresses need none: everything is
    /// allowed there.
    fn targets_of(
        &mut self,
        address: IpAddr,
        node_ports: &mut [Option<PortsOfAddress>; 2],
    ) -> Vec<SetId> {
        let (services, v6) = (&self.cluster.translation, address.is_ipv6());
        if self.cluster.is_own_node(address) || !services.has_entry(address) {
            return Vec::new();
        }
        let mut targets = PortsOfAddress::new();
        let mut peer_sets = Vec::new();
        if services.is_node(address) {
            let shared = node_ports[usize::from(v6)].get_or_insert_with(|| self.node_ports(v6));
            targets.clone_from(shared);
        }
        for service in services.at(address) {
            let resolved = self.services.resolved.get(&service.key).into_iter().flatten();
            for port in resolved.filter(|port| !port.lacks_backends) {
                let backends = &port.backends[usize::from(v6)];
                add(&mut targets, (port.protocol, port.port, false), backends);
            }
            peer_sets.extend(self.registry.served(&service.key, v6));
        }
        peer_sets.sort_unstable();
        // A Service without known ports has an empty target: packets to it are marked, and judged after the translation.
        if !targets.is_empty() || !services.at(address).is_empty() {
            let target = |((protocol, port, elsewhere), backends)| TargetPort {
                protocol,
                port,
                elsewhere,
                backends,
            };
            let cluster = services.is_cluster_address(address);
            let targets = targets.into_iter().map(target).collect();
            peer_sets.push(self.targets.acquire(targets, cluster));
        }
        peer_sets
    }

    /// Peer set of an address that may lead a pod back to itself, while Services have no other effect: an empty service
    /// target, which allows nothing and only causes packets to be marked.
    fn leads_back(&mut self, address: IpAddr) -> Vec<SetId> {
        let services = &self.cluster.translation;
        let backed = |service: &Arc<Service>| self.services.backed.contains(&service.key);
        let node_port = self.cluster.is_own_node(address) && services.with_node_ports().any(backed);
        let leads_back = || services.has_entry(address) && services.at(address).iter().any(backed);
        if !node_port && !leads_back() {
            return Vec::new();
        }
        let cluster = services.is_cluster_address(address);
        vec![self.targets.acquire(Vec::new(), cluster)]
    }

    /// Node ports of all Services.
    fn node_ports(&self, v6: bool) -> PortsOfAddress {
        let mut targets = PortsOfAddress::new();
        for service in self.cluster.translation.with_node_ports() {
            for port in self.services.resolved.get(&service.key).into_iter().flatten() {
                if let Some(number) = port.node_port {
                    let backends = &port.backends[usize::from(v6)];
                    add(&mut targets, (port.protocol, number, true), backends);
                }
            }
        }
        targets
    }
}

/// Adds backends to a port. If several Services share address and port, all their backends count.
fn add(targets: &mut PortsOfAddress, port: (Protocol, u16, bool), backends: &Backends) {
    let known = targets.entry(port).or_insert_with(|| backends.clone());
    if !Arc::ptr_eq(known, backends) && known != backends {
        let union: BTreeSet<_> = known.iter().chain(backends.iter()).cloned().collect();
        *known = union.into_iter().collect();
    }
}
