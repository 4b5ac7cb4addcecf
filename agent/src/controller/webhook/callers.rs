//! Who asks the webhook: an API server, which is no pod of the pods' network, or a pod. What a pod holds is never at
//! the cost of who may be an API server.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use ipnet::IpNet;
use tokio::net::TcpStream;

use crate::listen::{Admission, AdmitConnection, Limits, Places};

/// Connections at a time of addresses that are no pod's: an API server answers 200 writes at a time unless told
/// otherwise (`--max-mutating-requests-inflight`), and there are a few of them. Each holds 100 kB at most.
const SERVERS: Limits = Limits { total: 512, of_source: 256, of_link_local: 8 };
/// Of pods. An API server may come by way of one, as konnectivity's agent is.
const PODS: Limits = Limits { total: 64, of_source: 16, of_link_local: 8 };

/// The addresses of pods that are not their node's, and how many pods have each.
#[derive(Debug, Default)]
pub(in crate::controller) struct PodAddresses(RwLock<HashMap<IpAddr, usize>>);

impl PodAddresses {
    /// A pod has other addresses than before.
    pub(in crate::controller) fn change(&self, before: &[IpAddr], after: &[IpAddr]) {
        let mut counts = self.0.write().unwrap_or_else(PoisonError::into_inner);
        after.iter().for_each(|address| *counts.entry(*address).or_default() += 1);
        for address in before {
            if let Some(count) = counts.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(address);
                }
            }
        }
    }

    fn contain(&self, address: IpAddr) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(&address)
    }
}

/// See the module.
pub(super) struct Callers {
    /// Who may ask; none: everybody.
    allowed: Vec<IpNet>,
    pods: Arc<PodAddresses>,
    of_servers: Places,
    of_pods: Places,
}

impl Callers {
    pub(super) const fn new(allowed: Vec<IpNet>, pods: Arc<PodAddresses>) -> Self {
        Self { allowed, pods, of_servers: Places::new(SERVERS), of_pods: Places::new(PODS) }
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
