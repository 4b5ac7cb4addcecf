//! What Services lead to, read from their fields' comments and from what kube-proxy does.

use std::net::IpAddr;

use crate::model::{Pod, Service, ServicePort};
use crate::oracle::Oracle;

impl Oracle {
    /// Whether a packet to this port of an address is translated.
    #[must_use]
    pub fn is_frontend(&self, address: IpAddr, protocol: u8, port: u16) -> bool {
        self.services.iter().any(|service| {
            service.ports.iter().any(|p| self.leads_to(service, p, address, protocol, port))
        })
    }

    /// Whether packets of `pod` to some port of an address may be translated: to a Service's ports,
    /// to node ports, or to the own node, which has them too.
    #[must_use]
    pub fn is_translated(&self, pod: &Pod, address: IpAddr) -> bool {
        let is_node = self.nodes.iter().any(|node| node.addresses.contains(&address));
        self.is_own_node(pod, address)
            || self.services.iter().any(|service| {
                service.ports.iter().any(|port| {
                    service.addresses.contains(&address) || (is_node && port.node_port.is_some())
                })
            })
    }

    /// The backends, of the same family, that a packet to this port of an address may be
    /// translated to. A Service's port and a slice's belong together if they have the same name
    /// and protocol. `ready`: only those that new connections are led to.
    #[must_use]
    pub fn backends(
        &self,
        address: IpAddr,
        protocol: u8,
        port: u16,
        ready: bool,
    ) -> Vec<(IpAddr, u16)> {
        let mut backends = Vec::new();
        for service in &self.services {
            for service_port in &service.ports {
                if !self.leads_to(service, service_port, address, protocol, port) {
                    continue;
                }
                for slice in &self.slices {
                    if slice.key.namespace != service.key.namespace
                        || slice.service != service.key.name
                    {
                        continue;
                    }
                    for slice_port in &slice.ports {
                        if slice_port.name != service_port.name
                            || slice_port.protocol != service_port.protocol
                        {
                            continue;
                        }
                        for backend in &slice.addresses {
                            if ready && slice.not_ready.contains(backend) {
                                continue;
                            }
                            if backend.is_ipv4() == address.is_ipv4() {
                                backends.push((*backend, slice_port.port));
                            }
                        }
                    }
                }
            }
        }
        backends.sort();
        backends.dedup();
        backends
    }

    /// A Service's port at one of its addresses, or its node port at a Node's.
    fn leads_to(
        &self,
        service: &Service,
        service_port: &ServicePort,
        address: IpAddr,
        protocol: u8,
        port: u16,
    ) -> bool {
        let at_service = service.addresses.contains(&address) && service_port.port == port;
        let at_node = service_port.node_port == Some(port)
            && self.nodes.iter().any(|node| node.addresses.contains(&address));
        service_port.protocol.number() == protocol && (at_service || at_node)
    }
}
