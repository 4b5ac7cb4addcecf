//! Trusted resolvers, and whether their answers over TCP count.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netpold_ebpf::layout::RESOLVER_SLOTS;

use crate::budget::may_have;
use crate::cluster::Cluster;
use crate::model::{Key, Protocol, Service};
use crate::options::Options;

/// The cluster's DNS Service: the kubelet gives its address to pods as their resolver by default.
const CLUSTER_DNS: (&str, &str) = ("kube-system", "kube-dns");
/// The port of resolvers that the programs read.
const DNS_PORT: u16 = 53;

/// Trusted resolvers, the first [`RESOLVER_SLOTS`]: those of the options, the cluster addresses of the DNS Service, and the
/// Service's backends. An external address of another Service is not trusted: the author of such a Service could have packets
/// to a resolver translated to his own server.
///
/// The value: whether answers over TCP count. The programs must see all packets of a pod to the resolver's end of a
/// connection, regardless of the address to which the pod sends them, so each backend of a resolver must be a resolver
/// at port 53, too. This does not hold for a resolver at an address of another Service. It holds for no resolver if the
/// DNS Service has backends at another port, or if there are more than [`RESOLVER_SLOTS`].
pub(crate) fn resolvers(cluster: &Cluster, options: &Options) -> BTreeMap<IpAddr, bool> {
    let key = Key::new(CLUSTER_DNS.0, CLUSTER_DNS.1);
    let service = cluster.services().get(&key);
    let slices = cluster.translation.slices_of(&key);
    let own = service.into_iter().flat_map(|service| service.cluster.iter().copied());
    let backends = slices.iter().flat_map(|slice| slice.addresses.iter().copied());
    let is_external =
        |address: IpAddr, of: &Service| of.key != key && !of.cluster.contains(&address);
    let all = options.resolvers.iter().copied().chain(own).chain(backends);
    let trusted = all.filter(|address| {
        !cluster.translation.at(*address).iter().any(|of| is_external(*address, of))
            && !cluster
                .translation
                .with_networks()
                .any(|of| of.key != key && may_have(of, *address))
    });

    let mut is_whole = service.is_none_or(|service| leads_to_dns_port(cluster, service));
    let mut found = BTreeMap::new();
    for address in trusted {
        if found.len() == RESOLVER_SLOTS as usize && !found.contains_key(&address) {
            is_whole = false;
            break;
        }
        let is_of_others = cluster.translation.at(address).iter().any(|of| of.key != key);
        found.insert(address, options.names_over_tcp && !is_of_others);
    }
    found.values_mut().for_each(|over_tcp| *over_tcp &= is_whole);
    found
}

/// Whether a Service leads its port 53, by TCP, to port 53 of its backends alone.
fn leads_to_dns_port(cluster: &Cluster, service: &Service) -> bool {
    let is_dns = |protocol: Protocol, port: u16| protocol == Protocol::Tcp && port == DNS_PORT;
    let mut names = service.ports.iter().filter(|it| is_dns(it.protocol, it.port));
    let slices = cluster.translation.slices_of(&service.key);
    names.all(|of| {
        let ports = slices.iter().flat_map(|slice| &slice.ports);
        ports
            .filter(|it| it.name == of.name && it.protocol == Protocol::Tcp)
            .all(|it| it.port == DNS_PORT)
    })
}
