//! Services and their EndpointSlices.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::model::object::Key;
use crate::model::traffic::Protocol;

/// A Service, as far as it affects packets to its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Service {
    /// `metadata.namespace` and `metadata.name`
    pub key: Key,
    /// Addresses that nodes translate: `spec.clusterIPs`, `spec.externalIPs`, and `status.loadBalancer.ingress[].ip`
    /// unless its `ipMode` is Proxy; sorted, without duplicates. Empty for a headless Service.
    pub addresses: Vec<IpAddr>,
    /// The `spec.clusterIPs` among `addresses`: never a node's own, even if on an interface. Sorted, without
    /// duplicates.
    #[serde(default)]
    pub cluster: Vec<IpAddr>,
    /// Networks in place of addresses beyond the budget (`budget::kept_change`): nodes translate some of their addresses. Sorted,
    /// without duplicates.
    #[serde(default)]
    pub networks: Vec<IpNet>,
    /// The addresses beyond the budget as numbers: an IPv4 address, or a digest of an IPv6 address. Sorted, without
    /// duplicates. Empty: any address of `networks`.
    #[serde(default)]
    pub beyond: Vec<u32>,
    /// `spec.ports`
    pub ports: Vec<ServicePort>,
    /// The label `service.kubernetes.io/service-proxy-name` or `service.kubernetes.io/headless` is set: the nodes'
    /// proxy does not serve the Service, so it has no effect.
    #[serde(default)]
    pub unserved: bool,
}

/// One item of a Service's `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServicePort {
    /// `name`, which links it to the ports of EndpointSlices; empty where absent.
    pub name: String,
    /// `protocol`; absent: TCP
    pub protocol: Protocol,
    /// `port`
    pub port: u16,
    /// `nodePort`: the port at the addresses of every node.
    pub node_port: Option<u16>,
}

/// An EndpointSlice: some of the backends of a Service, with the ports on which they listen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EndpointSlice {
    /// `metadata.namespace` and `metadata.name`
    pub key: Key,
    /// The label `kubernetes.io/service-name`; empty if the slice belongs to no Service.
    pub service: String,
    /// `ports` with a number, by the name of the Service port.
    pub ports: Vec<SlicePort>,
    /// `endpoints[].addresses`, ready or not, because connections outlive the readiness of their backend. Sorted,
    /// without duplicates.
    pub addresses: Vec<IpAddr>,
    /// The `addresses` that get no new connections: neither ready nor terminating and still serving. Sorted, without
    /// duplicates.
    #[serde(default)]
    pub not_ready: Vec<IpAddr>,
    /// The `addresses` of terminating endpoints that are not ready. Of these, those that still serve get new connections
    /// only while their Service's port has no ready backend. Sorted, without duplicates.
    #[serde(default)]
    pub terminating: Vec<IpAddr>,
}

impl EndpointSlice {
    /// Returns the addresses that get new connections, whatever other endpoints there are.
    pub fn ready(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let others = |it: &IpAddr| self.not_ready.contains(it) || self.terminating.contains(it);
        self.addresses.iter().copied().filter(move |it| !others(it))
    }

    /// Returns the addresses that get new connections while their Service's port has no ready backend.
    pub fn serving(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.terminating.iter().copied().filter(|it| !self.not_ready.contains(it))
    }
}

/// One item of an EndpointSlice's `ports`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlicePort {
    /// `name`; empty where absent.
    pub name: String,
    /// `protocol`; absent: TCP
    pub protocol: Protocol,
    /// `port`
    pub port: u16,
}

impl SlicePort {
    /// Returns whether this is the backends' port behind a port of the slice's Service: both have one name and protocol.
    #[must_use]
    pub fn is_behind(&self, port: &ServicePort) -> bool {
        (&self.name, self.protocol) == (&port.name, port.protocol)
    }
}
