//! Backends of each Service port, indexed by address, port and backend.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netpold_core::cluster::Cluster;
use netpold_core::model::{EndpointSlice, Key, Protocol, Service, ServicePort, SlicePort};

/// Port of a Service, with addresses and ports of its backends.
pub(crate) struct PortBackends<'c> {
    pub(crate) service: &'c Service,
    pub(crate) port: &'c ServicePort,
    /// Ready or not; without terminating ones, except where there are no others.
    pub(crate) backends: BTreeSet<(IpAddr, u16)>,
}

/// Service ports of a cluster.
pub(crate) struct BackendIndex<'c> {
    all: Vec<PortBackends<'c>>,
    by_backend: BTreeMap<IpAddr, Vec<usize>>,
    by_address: BTreeMap<IpAddr, Vec<usize>>,
    by_port: BTreeMap<(Protocol, u16), Vec<usize>>,
}

impl<'c> BackendIndex<'c> {
    pub(crate) fn new(cluster: &'c Cluster) -> Self {
        let mut slices: BTreeMap<(&str, &str), Vec<&EndpointSlice>> = BTreeMap::new();
        for slice in cluster.slices().values().filter(|slice| !slice.service.is_empty()) {
            let key = (slice.key.namespace.as_str(), slice.service.as_str());
            slices.entry(key).or_default().push(slice);
        }
        let services = cluster.services().values().filter(|service| !service.unserved);
        let ports =
            services.flat_map(|service| service.ports.iter().map(move |port| (service, port)));
        let all = ports.map(|(service, port)| {
            let Key { namespace, name } = &service.key;
            let slices = slices.get(&(namespace.as_str(), name.as_str()));
            let slices = slices.map_or(&[][..], Vec::as_slice);
            PortBackends { service, port, backends: backends(slices, port) }
        });
        let mut this = Self {
            all: all.collect(),
            by_backend: BTreeMap::new(),
            by_address: BTreeMap::new(),
            by_port: BTreeMap::new(),
        };
        for (number, led) in this.all.iter().enumerate() {
            let addresses: BTreeSet<IpAddr> =
                led.backends.iter().map(|(address, _)| *address).collect();
            for address in addresses {
                this.by_backend.entry(address).or_default().push(number);
            }
            for address in &led.service.addresses {
                this.by_address.entry(*address).or_default().push(number);
            }
            this.by_port.entry((led.port.protocol, led.port.port)).or_default().push(number);
        }
        this
    }

    /// Returns every port of every Service.
    pub(crate) fn all(&self) -> &[PortBackends<'c>] {
        &self.all
    }

    /// Returns the ports with a backend at some of these addresses, each once.
    pub(crate) fn behind(&self, addresses: impl Iterator<Item = IpAddr>) -> Vec<&PortBackends<'c>> {
        let found = addresses.filter_map(|address| self.by_backend.get(&address));
        let numbers: BTreeSet<usize> = found.flatten().copied().collect();
        numbers.into_iter().map(|number| &self.all[number]).collect()
    }

    /// Returns the ports of Services with an address in a block, with that address.
    pub(crate) fn within(&self, block: IpNet) -> impl Iterator<Item = (IpAddr, &PortBackends<'c>)> {
        let (first, last) = (block.network(), block.broadcast());
        let found = self.by_address.range(first..=last);
        found.flat_map(|(address, numbers)| {
            numbers.iter().map(|number| (*address, &self.all[*number]))
        })
    }

    /// Returns the Service ports in a range of port numbers.
    pub(crate) fn with_port(
        &self,
        (protocol, first, last): (Protocol, u16, u16),
    ) -> impl Iterator<Item = &PortBackends<'c>> {
        let found = self.by_port.range((protocol, first)..=(protocol, last));
        found.flat_map(|(_, numbers)| numbers).map(|number| &self.all[*number])
    }
}

/// Returns the backends of a port, ready or not; terminating ones only if there are no others.
fn backends(slices: &[&EndpointSlice], port: &ServicePort) -> BTreeSet<(IpAddr, u16)> {
    let (mut staying, mut terminating) = (BTreeSet::new(), BTreeSet::new());
    for slice in slices {
        for SlicePort { port, .. } in slice.ports.iter().filter(|it| it.is_behind(port)) {
            for address in &slice.addresses {
                let is_terminating = slice.terminating.contains(address);
                let list = if is_terminating { &mut terminating } else { &mut staying };
                list.insert((*address, *port));
            }
        }
    }
    if staying.is_empty() { terminating } else { staying }
}
