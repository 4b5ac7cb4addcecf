//! Ports of Services, which the rules of both kinds translate.

use std::net::{IpAddr, SocketAddr};

use crate::ProbeProtocol;

/// Bit of the packet mark for "masquerade", kube-proxy's default.
pub(super) const MASQUERADE: &str = "0x4000";

/// One port of a Service.
#[derive(Clone, Debug)]
pub struct TranslatedPort {
    /// Unique name.
    pub name: String,
    /// Protocol, TCP or UDP.
    pub protocol: ProbeProtocol,
    /// Addresses inside the cluster.
    pub cluster_ips: Vec<IpAddr>,
    /// External and load balancer addresses.
    pub external_ips: Vec<IpAddr>,
    /// Port at these addresses.
    pub port: u16,
    /// Port at the node's own addresses.
    pub node_port: Option<u16>,
    /// Destinations of packets, with equal probability.
    pub backends: Vec<SocketAddr>,
    /// Seconds of client affinity to a backend.
    pub affinity: Option<u32>,
}

impl TranslatedPort {
    /// A port without addresses and backends.
    #[must_use]
    pub fn new(name: &str, protocol: ProbeProtocol, port: u16) -> Self {
        Self {
            name: name.into(),
            protocol,
            cluster_ips: Vec::new(),
            external_ips: Vec::new(),
            port,
            node_port: None,
            backends: Vec::new(),
            affinity: None,
        }
    }

    /// Name of the protocol in rules.
    pub(super) fn keyword(&self) -> &'static str {
        if self.protocol == ProbeProtocol::Udp { "udp" } else { "tcp" }
    }

    /// The part of one family; `None` without a backend in that family.
    pub(super) fn of(&self, v6: bool) -> Option<Self> {
        let mut own = self.clone();
        own.cluster_ips.retain(|address| address.is_ipv6() == v6);
        own.external_ips.retain(|address| address.is_ipv6() == v6);
        own.backends.retain(|backend| backend.is_ipv6() == v6);
        (!own.backends.is_empty()).then_some(own)
    }
}
