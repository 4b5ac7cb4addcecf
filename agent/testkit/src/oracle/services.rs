//! What Services lead to, read from their fields' comments and from what kube-proxy does.

use std::net::IpAddr;

use crate::oracle::{Decision, Oracle, Seen};
use netpold_core::model::{Direction, Pod, Service, ServicePort};

/// Which of an address's ports: those of the Services that have the address, or node ports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Service,
    Node,
}

/// Whether packets that nobody has translated may go where they are sent.
pub(super) struct Untranslated {
    pub(super) allowed: bool,
    /// A tier denies what they may be translated to elsewhere.
    pub(super) denied: bool,
}

impl Oracle {
    /// Whether a packet to this port of an address is translated.
    #[must_use]
    pub fn is_frontend(&self, address: IpAddr, protocol: u8, port: u16) -> bool {
        self.is_port(Of::Service, address, protocol, port)
            || self.is_port(Of::Node, address, protocol, port)
    }

    pub(super) fn is_port(&self, of: Of, address: IpAddr, protocol: u8, port: u16) -> bool {
        self.services.iter().any(|service| {
            service.ports.iter().any(|p| self.leads_to(of, service, p, address, protocol, port))
        })
    }

    /// Whether packets of `pod` to some port of an address may be translated: to a Service's ports,
    /// to node ports, or to the own node, which has them too.
    #[must_use]
    pub fn is_translated(&self, pod: &Pod, address: IpAddr) -> bool {
        let is_node = self.nodes.iter().any(|node| node.addresses.contains(&address));
        self.is_own_node(pod, address)
            || self.services.iter().filter(|service| !service.unserved).any(|service| {
                service.ports.iter().any(|port| {
                    service.addresses.contains(&address) || (is_node && port.node_port.is_some())
                })
            })
    }

    /// Whether packets to some port of an address may be translated to `pod` itself: a Service that it is
    /// a backend of has the address, or has node ports and the address is the own node's.
    #[must_use]
    pub fn leads_back(&self, pod: &Pod, address: IpAddr) -> bool {
        let own_node = self.is_own_node(pod, address);
        self.services.iter().filter(|service| !service.unserved).any(|service| {
            let node_port = service.ports.iter().any(|port| port.node_port.is_some());
            let leads = service.addresses.contains(&address) || (own_node && node_port);
            leads
                && self.slices.iter().any(|slice| {
                    slice.key.namespace == service.key.namespace
                        && slice.service == service.key.name
                        && slice.addresses.iter().any(|backend| pod.addresses.contains(backend))
                        && slice.ports.iter().any(|of| {
                            let mut ports = service.ports.iter();
                            ports.any(|port| port.name == of.name && port.protocol == of.protocol)
                        })
                })
        })
    }

    /// Whether policy lets `pod` send this to `remote` if no node translates it on the way to
    /// `remote`: what is granted literally; and another node's node port, if each of its backends is
    /// allowed, ready or not, since that node chooses one. The pod itself is one like any other then.
    #[must_use]
    pub fn judge_untranslated(&self, pod: &Pod, remote: IpAddr, protocol: u8, port: u16) -> bool {
        self.untranslated(pod, remote, protocol, port).allowed
    }

    /// See [`Self::judge_untranslated`]. Whoever must not reach one of the backends, as a tier says, must
    /// not reach the node port either, whatever is granted literally.
    pub(super) fn untranslated(
        &self,
        pod: &Pod,
        remote: IpAddr,
        protocol: u8,
        port: u16,
    ) -> Untranslated {
        let literally = self.judge_translated(pod, Direction::Egress, remote, protocol, port);
        if self.is_own_node(pod, remote) {
            return Untranslated { allowed: literally, denied: false };
        }
        let mut backends = Vec::new();
        for (remote, port) in self.backends_of(Of::Node, remote, protocol, port, false) {
            let (direction, itself) = (Direction::Egress, false);
            backends.push(self.decide(Seen { pod, direction, remote, protocol, port, itself }));
        }
        let denied = backends.iter().any(Decision::denied_by_tier);
        let every = !backends.is_empty() && backends.iter().all(Decision::allowed);
        Untranslated { allowed: !denied && (literally || every), denied }
    }

    /// The backends, of the same family, that a packet to this port of an address may be
    /// translated to. `ready`: only those that new connections are led to.
    #[must_use]
    pub fn backends(
        &self,
        address: IpAddr,
        protocol: u8,
        port: u16,
        ready: bool,
    ) -> Vec<(IpAddr, u16)> {
        let mut all = self.backends_of(Of::Service, address, protocol, port, ready);
        all.extend(self.backends_of(Of::Node, address, protocol, port, ready));
        all.sort();
        all.dedup();
        all
    }

    /// A Service's port and a slice's belong together if they have the same name and protocol.
    pub(super) fn backends_of(
        &self,
        of: Of,
        address: IpAddr,
        protocol: u8,
        port: u16,
        ready: bool,
    ) -> Vec<(IpAddr, u16)> {
        let mut backends = Vec::new();
        for service in &self.services {
            for service_port in &service.ports {
                if !self.leads_to(of, service, service_port, address, protocol, port) {
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
        of: Of,
        service: &Service,
        service_port: &ServicePort,
        address: IpAddr,
        protocol: u8,
        port: u16,
    ) -> bool {
        let here = match of {
            Of::Service => service.addresses.contains(&address) && service_port.port == port,
            Of::Node => {
                service_port.node_port == Some(port)
                    && self.nodes.iter().any(|node| node.addresses.contains(&address))
            }
        };
        !service.unserved && service_port.protocol.number() == protocol && here
    }
}
