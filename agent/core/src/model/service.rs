//! Services and their EndpointSlices.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::model::object::Key;
use crate::model::traffic::Protocol;

/// A Service, as far as packets to its addresses are concerned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Service {
    /// `metadata.namespace` and `metadata.name`
    pub key: Key,
    /// Addresses that a node translates: `spec.clusterIPs`, `spec.externalIPs` and
    /// `status.loadBalancer.ingress[].ip` whose `ipMode` is not Proxy; sorted, without duplicates.
    /// A headless Service has none.
    pub addresses: Vec<IpAddr>,
    /// Those of `addresses` that are `spec.clusterIPs`: never a node's own, whichever interface
    /// has them. Sorted, without duplicates.
    #[serde(default)]
    pub cluster: Vec<IpAddr>,
    /// `spec.ports`
    pub ports: Vec<ServicePort>,
    /// The label `service.kubernetes.io/service-proxy-name` or `service.kubernetes.io/headless` is
    /// set: the nodes' proxy does not serve the Service, so it counts for nothing.
    #[serde(default)]
    pub unserved: bool,
}

/// One item of a Service's `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServicePort {
    /// `name`, which the ports of its EndpointSlices carry; empty where absent.
    pub name: String,
    /// `protocol`; absent: TCP
    pub protocol: Protocol,
    /// `port`
    pub port: u16,
    /// `nodePort`: the port at every node's addresses.
    pub node_port: Option<u16>,
}

/// An EndpointSlice: some of the backends of a Service, with the ports they really listen on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EndpointSlice {
    /// `metadata.namespace` and `metadata.name`
    pub key: Key,
    /// The label `kubernetes.io/service-name`; a slice without it is no Service's.
    pub service: String,
    /// `ports` that have a number, by the name of the Service's port.
    pub ports: Vec<SlicePort>,
    /// `endpoints[].addresses`, ready or not: a connection goes on while its backend is not ready.
    /// Sorted, without duplicates.
    pub addresses: Vec<IpAddr>,
    /// Those of `addresses` that new connections are not led to: neither ready nor terminating and
    /// still serving. Sorted, without duplicates.
    #[serde(default)]
    pub not_ready: Vec<IpAddr>,
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
