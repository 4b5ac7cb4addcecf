//! Services, EndpointSlices and node addresses, with the indexes for compiling.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hashbrown::HashMap;
use ipnet::IpNet;

use crate::budget::{self, NAMESPACE_FRONTENDS, POD_HAIRPINS};
use crate::cluster::dirty::Dirty;
use crate::cluster::slice_limits::{SliceLimits, SliceSums};
use crate::model::{EndpointSlice, Key, Pod, Protocol, Service, ServicePort};

/// Service frontends and their backends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Services {
    /// Services by key, without those of another proxy.
    services: BTreeMap<Key, Arc<Service>>,
    slices: BTreeMap<Key, Arc<EndpointSlice>>,
    /// Slices by the key of their Service, which may not exist.
    slices_of: BTreeMap<Key, Vec<Arc<EndpointSlice>>>,
    /// Sums over the slices of each Service.
    slice_sums: BTreeMap<Key, SliceSums>,
    /// Services by frontend address.
    at: BTreeMap<IpAddr, Vec<Arc<Service>>>,
    /// Slices by backend address, without those beyond the limits.
    behind: BTreeMap<IpAddr, Vec<Arc<EndpointSlice>>>,
    with_node_ports: BTreeMap<Key, Arc<Service>>,
    /// Services with networks in place of addresses, or whose addresses beyond the budget are in those of others.
    with_networks: BTreeMap<Key, Arc<Service>>,
    /// Services with addresses besides cluster addresses, by namespace and name.
    external: BTreeMap<String, BTreeMap<String, External>>,
    slice_limits: SliceLimits,
    /// Services of another proxy; not in any of the maps above.
    unserved: BTreeSet<Key>,
    /// Number of Nodes with each address.
    nodes: BTreeMap<IpAddr, u32>,
}

/// Addresses of a Service besides its cluster addresses.
#[derive(Clone, Copy, Debug, Default)]
struct External {
    count: usize,
    /// Whether they are beyond the limit of the namespace ([`NAMESPACE_FRONTENDS`]).
    is_beyond: bool,
}

/// Slices and their numbers of a port, by port name and protocol.
pub(crate) type SlicesByPort<'a> = HashMap<(&'a str, Protocol), Vec<(&'a Arc<EndpointSlice>, u16)>>;

/// A Service port with a pod as backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackedPort<'a> {
    pub(crate) service: &'a Service,
    pub(crate) port: &'a ServicePort,
    /// Address of the pod that is the backend.
    pub(crate) address: IpAddr,
    /// Port number of the backend.
    pub(crate) number: u16,
}

fn ports_by_name(service: &Service) -> HashMap<(&str, Protocol), Vec<&ServicePort>> {
    let mut by_name: HashMap<(&str, Protocol), Vec<&ServicePort>> = HashMap::new();
    for port in &service.ports {
        by_name.entry((port.name.as_str(), port.protocol)).or_default().push(port);
    }
    by_name
}

/// Key of a slice's Service; `None` if the slice names no Service.
fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let named = !slice.service.is_empty();
    named.then(|| Key::new(slice.key.namespace.clone(), slice.service.clone()))
}

fn has_node_ports(service: &Service) -> bool {
    service.ports.iter().any(|port| port.node_port.is_some())
}

impl Services {
    /// Services by key, without those of another proxy.
    pub(crate) fn services(&self) -> &BTreeMap<Key, Arc<Service>> {
        &self.services
    }

    /// EndpointSlices by key.
    pub(crate) fn slices(&self) -> &BTreeMap<Key, Arc<EndpointSlice>> {
        &self.slices
    }

    /// Keys of all Services, including those of another proxy.
    pub(super) fn all_services(&self) -> impl Iterator<Item = &Key> {
        self.services.keys().chain(&self.unserved)
    }

    /// The Service of a key; for a Service of another proxy, without addresses and ports.
    pub(super) fn service(&self, key: &Key) -> Option<Arc<Service>> {
        let unserved = || {
            self.unserved.contains(key).then(|| {
                let (addresses, cluster, ports) = (Vec::new(), Vec::new(), Vec::new());
                let (key, networks, beyond) = (key.clone(), Vec::new(), Vec::new());
                Arc::new(Service {
                    key,
                    addresses,
                    cluster,
                    networks,
                    beyond,
                    unserved: true,
                    ports,
                })
            })
        };
        self.services.get(key).cloned().or_else(unserved)
    }

    /// Whether a Service is left to another proxy.
    pub(crate) fn is_unserved(&self, service: &Key) -> bool {
        self.unserved.contains(service)
    }

    /// The slices of a Service.
    pub(crate) fn slices_of(&self, service: &Key) -> &[Arc<EndpointSlice>] {
        self.slices_of.get(service).map_or(&[], Vec::as_slice)
    }

    /// Services with a frontend address.
    pub(crate) fn at(&self, address: IpAddr) -> &[Arc<Service>] {
        self.at.get(&address).map_or(&[], Vec::as_slice)
    }

    /// Whether a Service has this cluster address.
    pub(crate) fn is_cluster_address(&self, address: IpAddr) -> bool {
        self.at(address).iter().any(|service| service.cluster.contains(&address))
    }

    /// Whether an address has an entry of its own: it is a Node's, or within the limit of some Service's namespace.
    pub(crate) fn has_entry(&self, address: IpAddr) -> bool {
        let counts = |service: &Arc<Service>| {
            !self.is_beyond(&service.key) || service.cluster.contains(&address)
        };
        self.is_node(address) || self.at(address).iter().any(counts)
    }

    fn is_beyond(&self, service: &Key) -> bool {
        let of = self.external.get(&service.namespace);
        of.and_then(|of| of.get(&service.name)).is_some_and(|external| external.is_beyond)
    }

    /// Networks of a Service's addresses without an entry of their own.
    pub(crate) fn networks_of(&self, service: &Key) -> BTreeSet<IpNet> {
        let Some(known) = self.services.get(service) else { return BTreeSet::new() };
        let mut networks: BTreeSet<IpNet> = known.networks.iter().copied().collect();
        if self.is_beyond(service) {
            networks.extend(budget::external(known).map(budget::network));
        }
        networks
    }

    /// Services with networks in place of addresses.
    pub(crate) fn with_networks(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.with_networks.values()
    }

    /// Namespaces with Services beyond the limit.
    pub(crate) fn namespaces_beyond(&self) -> BTreeSet<&str> {
        let kept = self.with_networks.keys().map(|key| key.namespace.as_str());
        let is_beyond = |of: &BTreeMap<_, External>| of.values().any(|it| it.is_beyond);
        let beyond = self.external.iter().filter(|(_, of)| is_beyond(of));
        kept.chain(beyond.map(|(namespace, _)| namespace.as_str())).collect()
    }

    /// Whether a Service has networks in place of addresses, or exceeds the limit with the others of its namespace.
    pub(super) fn would_exceed(&self, service: &Service) -> bool {
        let Key { namespace, name } = &service.key;
        let count = budget::external(service).count();
        let all = self.external.get(namespace).into_iter().flatten();
        let others = all.filter(|(other, _)| *other != name).map(|(_, of)| of.count);
        !service.networks.is_empty()
            || count > 0 && others.sum::<usize>() + count > NAMESPACE_FRONTENDS
    }

    /// Whether slices of a Service are beyond the limits, so that not all of its backends count.
    pub(crate) fn lacks_backends(&self, service: &Key) -> bool {
        let is_beyond = |slice: &Arc<EndpointSlice>| self.slice_limits.is_beyond(slice);
        self.slice_limits.has_beyond(&service.namespace)
            && self.slices_of(service).iter().any(is_beyond)
    }

    /// Namespaces with slices beyond the limits.
    pub(crate) fn namespaces_with_too_many_backends(&self) -> impl Iterator<Item = &str> {
        self.slice_limits.namespaces_beyond()
    }

    /// Whether slices of its namespace are, or would be, beyond the limits with this state of a slice.
    pub(super) fn would_exceed_backends(&self, slice: &EndpointSlice) -> bool {
        let old = self.slices.get(&slice.key).map(|old| &**old);
        self.slice_limits.would_exceed(old, slice)
    }

    /// Services with node ports.
    pub(crate) fn with_node_ports(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.with_node_ports.values()
    }

    /// Whether a Node has this address.
    pub(crate) fn is_node(&self, address: IpAddr) -> bool {
        self.nodes.contains_key(&address)
    }

    /// Addresses of every Node.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = IpAddr> {
        self.nodes.keys().copied()
    }

    /// Addresses of every Service and Node.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.at.keys().copied().chain(self.nodes())
    }

    /// The slices of a Service, by port name and protocol.
    pub(crate) fn slices_by_port(&self, service: &Key) -> SlicesByPort<'_> {
        let mut by_port = SlicesByPort::new();
        for slice in self.slices_of.get(service).into_iter().flatten() {
            for port in &slice.ports {
                let slices = by_port.entry((port.name.as_str(), port.protocol)).or_default();
                slices.push((slice, port.port));
            }
        }
        by_port
    }

    /// Whether no slice of a Service has a backend.
    pub(crate) fn is_empty(&self) -> bool {
        self.behind.is_empty()
    }

    /// Keys of Services with a backend from `first` to `last`, both included; with duplicates.
    pub(crate) fn behind_range(&self, first: IpAddr, last: IpAddr) -> impl Iterator<Item = Key> {
        let slices = self.behind.range(first..=last).flat_map(|(_, slices)| slices);
        slices.filter_map(|slice| service_of(slice))
    }

    /// Ports of Services of the pod's own namespace with the pod as a backend; with duplicates. A slice of another
    /// namespace is another tenant's claim: no selector of a Service selects pods of other namespaces. Empty if the pod
    /// is in too many slices ([`Self::is_crowded`]).
    pub(crate) fn backed_by<'a>(&'a self, pod: &'a Pod) -> Vec<BackedPort<'a>> {
        let mut backed = Vec::new();
        if self.is_crowded(pod) {
            return backed;
        }
        let mut by_name: HashMap<&Key, HashMap<(&str, Protocol), Vec<&ServicePort>>> =
            HashMap::new();
        for (slice, address) in self.slices_with(pod) {
            let Some(service) = service_of(slice).and_then(|key| self.services.get(&key)) else {
                continue;
            };
            let ports = by_name.entry(&service.key).or_insert_with(|| ports_by_name(service));
            for of_slice in &slice.ports {
                let name = (of_slice.name.as_str(), of_slice.protocol);
                let number = of_slice.port;
                let named = ports.get(&name).into_iter().flatten();
                backed.extend(named.map(|port| BackedPort { service, port, address, number }));
            }
        }
        backed
    }

    /// Slices of the pod's own namespace that list the pod, with the listed address.
    fn slices_with<'a>(
        &'a self,
        pod: &'a Pod,
    ) -> impl Iterator<Item = (&'a Arc<EndpointSlice>, IpAddr)> {
        pod.addresses.iter().flat_map(|address| {
            let all = self.behind.get(address).into_iter().flatten();
            let own = all.filter(|slice| slice.key.namespace == pod.key.namespace);
            own.map(|slice| (slice, *address))
        })
    }

    /// Whether the slices of its own namespace list a pod with more than [`POD_HAIRPINS`] ports. The Services of such a pod
    /// neither grant nor deny it itself.
    pub(crate) fn is_crowded(&self, pod: &Pod) -> bool {
        let ports = self.slices_with(pod).map(|(slice, _)| slice.ports.len());
        ports.sum::<usize>() > POD_HAIRPINS
    }

    /// Sets or removes (`None`) a Service. A Service of another proxy counts as removed.
    pub(crate) fn set_service(&mut self, key: &Key, new: Option<Arc<Service>>, dirty: &mut Dirty) {
        if new.as_ref().is_some_and(|service| service.unserved) {
            self.unserved.insert(key.clone());
        } else {
            self.unserved.remove(key);
        }
        let new = new.filter(|service| !service.unserved);
        let old = self.services.get(key).cloned();
        if old == new {
            return;
        }
        if let Some(old) = old {
            for address in &old.addresses {
                remove(&mut self.at, address, |service| service.key == *key);
            }
            self.with_node_ports.remove(key);
            self.with_networks.remove(key);
            dirty.frontends.extend(&old.addresses);
        }
        let external = new.as_ref().map_or(0, |new| budget::external(new).count());
        match new {
            Some(new) => {
                for address in &new.addresses {
                    self.at.entry(*address).or_default().push(new.clone());
                }
                if has_node_ports(&new) {
                    self.with_node_ports.insert(key.clone(), new.clone());
                }
                if !new.networks.is_empty() || !new.beyond.is_empty() {
                    self.with_networks.insert(key.clone(), new.clone());
                }
                dirty.frontends.extend(&new.addresses);
                self.services.insert(key.clone(), new);
            }
            None => drop(self.services.remove(key)),
        }
        self.count_external(key, external, dirty);
        dirty.services.insert(key.clone());
        let slices = self.slices_of.get(key).into_iter().flatten();
        dirty.add_backends(&key.namespace, slices.flat_map(|slice| &slice.addresses));
    }

    /// Updates the number of a Service's addresses besides its cluster addresses, and which Services are beyond the
    /// limit of the namespace: in the order of names, those that do not fit beside the earlier ones.
    fn count_external(&mut self, Key { namespace, name }: &Key, count: usize, dirty: &mut Dirty) {
        let known = self.external.get(namespace).and_then(|of| of.get(name));
        if known.map_or(0, |known| known.count) == count {
            return;
        }
        let of = self.external.entry(namespace.clone()).or_default();
        match count {
            0 => drop(of.remove(name)),
            _ => of.entry(name.clone()).or_default().count = count,
        }
        let mut left = NAMESPACE_FRONTENDS;
        for (name, external) in of.iter_mut() {
            let is_beyond = external.count > left;
            left -= if is_beyond { 0 } else { external.count };
            if std::mem::replace(&mut external.is_beyond, is_beyond) != is_beyond {
                let key = Key::new(namespace.clone(), name.clone());
                let known = self.services.get(&key).into_iter();
                dirty.frontends.extend(known.flat_map(|known| &known.addresses));
                dirty.services.insert(key);
            }
        }
        if of.is_empty() {
            self.external.remove(namespace);
        }
    }

    /// Sets or removes (`None`) an EndpointSlice.
    pub(crate) fn set_slice(
        &mut self,
        key: &Key,
        new: Option<Arc<EndpointSlice>>,
        dirty: &mut Dirty,
    ) {
        let old = self.slices.get(key).cloned();
        if old == new {
            return;
        }
        mark_backends(&key.namespace, [old.as_deref(), new.as_deref()], dirty);
        if let Some(old) = &old {
            self.index_slice(old, false);
            if let Some(service) = service_of(old) {
                remove(&mut self.slices_of, &service, |slice| slice.key == *key);
                self.count_slice(&service, old, false);
                dirty.services.insert(service);
            }
        }
        match &new {
            Some(new) => drop(self.slices.insert(key.clone(), new.clone())),
            None => drop(self.slices.remove(key)),
        }
        let change = [old.as_deref(), new.as_deref()];
        for moved in self.slice_limits.change(change, &self.slices) {
            let is_within = !self.slice_limits.is_beyond(&moved);
            self.index_slice(&moved, is_within);
            dirty.services.extend(service_of(&moved));
            dirty.add_backends(&key.namespace, moved.addresses.iter());
        }
        let Some(new) = new else { return };
        if !self.slice_limits.is_beyond(&new) {
            self.index_slice(&new, true);
        }
        if let Some(service) = service_of(&new) {
            self.count_slice(&service, &new, true);
            self.slices_of.entry(service.clone()).or_default().push(new);
            dirty.services.insert(service);
        }
    }

    /// Sums over the slices of a Service.
    pub(crate) fn slice_sums(&self, service: &Key) -> SliceSums {
        self.slice_sums.get(service).copied().unwrap_or_default()
    }

    fn count_slice(&mut self, service: &Key, slice: &EndpointSlice, is_added: bool) {
        let (ports, addresses) = (slice.ports.len(), slice.addresses.len());
        let sums = self.slice_sums.entry(service.clone()).or_default();
        if is_added {
            sums.ports += ports;
            sums.addresses += addresses;
        } else {
            sums.ports -= ports;
            sums.addresses -= addresses;
        }
        if *sums == SliceSums::default() {
            self.slice_sums.remove(service);
        }
    }

    /// Adds a slice to the index of backends, or removes it.
    fn index_slice(&mut self, slice: &Arc<EndpointSlice>, is_within: bool) {
        if slice.service.is_empty() {
            return;
        }
        for address in &slice.addresses {
            match is_within {
                true => self.behind.entry(*address).or_default().push(slice.clone()),
                false => remove(&mut self.behind, address, |known| known.key == slice.key),
            }
        }
    }

    /// Updates the addresses of a Node.
    pub(crate) fn set_node(&mut self, before: &[IpAddr], after: &[IpAddr], dirty: &mut Dirty) {
        if before == after {
            return;
        }
        for address in after {
            *self.nodes.entry(*address).or_default() += 1;
        }
        for address in before {
            if let Some(count) = self.nodes.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    self.nodes.remove(address);
                }
            }
        }
        dirty.frontends.extend(before.iter().chain(after));
    }
}

/// Marks the backends of a changed slice as dirty: only added and removed ones if nothing but the addresses changed,
/// else all.
fn mark_backends(namespace: &str, [old, new]: [Option<&EndpointSlice>; 2], dirty: &mut Dirty) {
    let of = |slice: Option<&EndpointSlice>| -> BTreeSet<IpAddr> {
        slice.into_iter().flat_map(|slice| slice.addresses.iter().copied()).collect()
    };
    let (before, after) = (of(old), of(new));
    match (old, new) {
        (Some(old), Some(new)) if old.ports == new.ports && old.service == new.service => {
            dirty.add_backends(namespace, before.symmetric_difference(&after));
        }
        _ => dirty.add_backends(namespace, before.union(&after)),
    }
}

fn remove<K: Ord, T>(map: &mut BTreeMap<K, Vec<T>>, key: &K, is: impl Fn(&T) -> bool) {
    if let Some(list) = map.get_mut(key) {
        list.retain(|item| !is(item));
        if list.is_empty() {
            map.remove(key);
        }
    }
}

/// First and last address of a range; in IPv4, the address is the upper 32 bits of each bound.
pub(crate) fn range(v6: bool, first: u128, last: u128) -> (IpAddr, IpAddr) {
    let address = |bits: u128| match v6 {
        true => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        false => IpAddr::V4(Ipv4Addr::from_bits((bits >> 96) as u32)),
    };
    (address(first), address(last))
}
