//! Completion of manifests by data that controllers add: addresses of pods that do not run yet, endpoints of Services.
//!
//! With these, checks use the same explainer for a chart as for a live cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use netpold_core::cluster::Cluster;
use netpold_core::model::{Change, EndpointSlice, Key, Pod, Protocol, SlicePort};

use super::fields::{Details, PortReference, WrittenService, WrittenServicePort};

/// First of the stand-in addresses for pods without any (benchmark block, RFC 2544): no pod has them.
const STAND_INS: u32 = u32::from_be_bytes([198, 18, 0, 0]);
/// Number of stand-in addresses.
const STAND_INS_MAX: u32 = 1 << 17;

/// Returns whether an address is a stand-in.
#[must_use]
pub fn is_stand_in(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address)
        if u32::from(address).wrapping_sub(STAND_INS) < STAND_INS_MAX)
}

/// Builds the cluster of these objects, with stand-in addresses and endpoints where they are missing.
#[must_use]
pub fn cluster(mut changes: Vec<Change>, details: &Details) -> Cluster {
    let mut next = 0..STAND_INS_MAX;
    for change in &mut changes {
        if let Change::Pod(pod) = change
            && pod.addresses.is_empty()
            && !pod.host_network
            && !pod.finished
        {
            let address = next.next().map(|number| Ipv4Addr::from(STAND_INS + number));
            pod.addresses.extend(address.map(IpAddr::V4));
        }
    }
    let slices = slices(&changes, details);
    changes.into_iter().chain(slices.into_iter().map(Change::EndpointSlice)).collect()
}

/// Returns slices of the Services without any.
#[must_use]
pub fn slices(changes: &[Change], details: &Details) -> Vec<EndpointSlice> {
    let served: BTreeSet<(&str, &str)> = changes
        .iter()
        .filter_map(|change| {
            let Change::EndpointSlice(slice) = change else { return None };
            Some((slice.key.namespace.as_str(), slice.service.as_str()))
        })
        .collect();
    let mut pods: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for change in changes {
        if let Change::Pod(pod) = change
            && !pod.finished
        {
            pods.entry(&pod.key.namespace).or_default().push(pod);
        }
    }
    let mut slices = Vec::new();
    for (key, service) in &details.services {
        if served.contains(&(key.namespace.as_str(), key.name.as_str())) {
            continue;
        }
        let mut add = |addresses: &mut dyn Iterator<Item = IpAddr>, port: SlicePort, leaves| {
            let [v4, v6] = by_family(addresses);
            for addresses in [v4, v6].into_iter().filter(|addresses| !addresses.is_empty()) {
                slices.push(slice(key, (addresses, leaves), port.clone(), slices.len()));
            }
        };
        match details.endpoints.get(key) {
            Some(endpoints) => {
                for backend in endpoints {
                    let (name, protocol, port) = backend.port.clone();
                    let port = SlicePort { name, protocol, port };
                    add(&mut backend.addresses.iter().copied(), port, false);
                }
            }
            None => {
                let pods = pods.get(key.namespace.as_str());
                of_pods(service, pods.into_iter().flatten().copied(), &mut add);
            }
        }
    }
    slices
}

/// Adds the endpoints that a Service's selector yields. `add`: adds addresses, their port, and whether the pod is
/// terminating.
fn of_pods<'p>(
    service: &WrittenService,
    pods: impl Iterator<Item = &'p Pod>,
    add: &mut dyn FnMut(&mut dyn Iterator<Item = IpAddr>, SlicePort, bool),
) {
    if service.selector.is_empty() {
        return;
    }
    let is_selected =
        |pod: &&Pod| service.selector.iter().all(|(key, value)| pod.labels.get(key) == Some(value));
    for pod in pods.filter(is_selected) {
        for port in &service.ports {
            let WrittenServicePort { name, protocol, .. } = port;
            for number in numbers(&port.target, *protocol, pod) {
                let port = SlicePort { name: name.clone(), protocol: *protocol, port: number };
                add(&mut pod.addresses.iter().copied(), port, pod.terminating);
            }
        }
    }
}

/// Returns the port numbers of a `targetPort` at a pod.
#[must_use]
pub fn numbers(target: &PortReference, protocol: Protocol, pod: &Pod) -> Vec<u16> {
    match target {
        PortReference::Number(number) => vec![*number],
        PortReference::Name(name) => {
            let ports = pod.ports.iter();
            let same = ports.filter(|port| port.name == *name && port.protocol == protocol);
            same.map(|port| port.port).collect()
        }
    }
}

fn by_family(addresses: &mut dyn Iterator<Item = IpAddr>) -> [Vec<IpAddr>; 2] {
    let mut families = [Vec::new(), Vec::new()];
    for address in addresses {
        families[usize::from(address.is_ipv6())].push(address);
    }
    for family in &mut families {
        family.sort();
        family.dedup();
    }
    families
}

/// Creates a slice of addresses, and whether these are terminating.
fn slice(
    service: &Key,
    (addresses, is_terminating): (Vec<IpAddr>, bool),
    port: SlicePort,
    number: usize,
) -> EndpointSlice {
    EndpointSlice {
        key: Key::new(service.namespace.as_str(), format!("{}-{number}.netpold", service.name)),
        service: service.name.clone(),
        ports: vec![port],
        terminating: if is_terminating { addresses.clone() } else { Vec::new() },
        addresses,
        not_ready: Vec::new(),
    }
}
