//! Clients of the webhook: API servers, which have no address of the pod network, and pods. Connections of pods never
//! occupy the places of possible API servers.

use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::net::TcpStream;

use crate::listen::{Admission, AdmitConnection, ConnectionLimits, ConnectionSlots};
use crate::pod_addresses::PodAddresses;

/// Limits of connections from addresses of no pod. An API server sends up to 200 mutating requests at a time by default
/// (`--max-mutating-requests-inflight`), and a cluster has a few API servers. A connection uses at most 100 kB.
const SERVERS: ConnectionLimits = ConnectionLimits { total: 512, of_source: 256, of_link_local: 8 };
/// Limits of connections from pods. An API server's connection can come from a pod, for example konnectivity's agent.
const PODS: ConnectionLimits = ConnectionLimits { total: 64, of_source: 16, of_link_local: 8 };

/// Admission of connections to the webhook.
pub(super) struct Callers {
    /// Permitted client addresses; empty: all.
    allowed: Vec<IpNet>,
    pods: Arc<PodAddresses>,
    of_servers: ConnectionSlots,
    of_pods: ConnectionSlots,
}

impl Callers {
    pub(super) const fn new(allowed: Vec<IpNet>, pods: Arc<PodAddresses>) -> Self {
        Self {
            allowed,
            pods,
            of_servers: ConnectionSlots::new(SERVERS),
            of_pods: ConnectionSlots::new(PODS),
        }
    }
}

impl AdmitConnection for Callers {
    fn admit(&mut self, _: &TcpStream, peer: SocketAddr) -> Admission<'_> {
        let address = peer.ip().to_canonical();
        if !self.allowed.is_empty() {
            let is_allowed = self.allowed.iter().any(|block| block.contains(&address));
            return if is_allowed {
                Admission::In(&mut self.of_servers)
            } else {
                Admission::Refused
            };
        }
        match self.pods.contain(address) {
            true => Admission::In(&mut self.of_pods),
            false => Admission::In(&mut self.of_servers),
        }
    }
}
