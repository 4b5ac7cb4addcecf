//! Translation by Services, according to the API's field comments and the behaviour of kube-proxy.

use std::net::IpAddr;

use super::seen::{Decision, Seen};
use super::state::Oracle;
use netpold_core::model::{Direction, EndpointSlice, Pod, Service, ServicePort, SlicePort};

/// Kind of a port at an address: a Service port or a node port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Service,
    Node,
}

/// A port of an address, possibly a Service port or a node port.
#[derive(Clone, Copy)]
pub(super) struct Frontend<'a> {
    pub(super) oracle: &'a Oracle,
    pub(super) address: IpAddr,
    pub(super) protocol: u8,
    pub(super) port: u16,
}

impl Frontend<'_> {
    /// Whether packets to it are translated.
    pub(super) fn is_port(self, of: Of) -> bool {
        let leads_here = |service: &Service| {
            service.ports.iter().any(|service_port| self.is_at(of, service, service_port))
        };
        self.oracle.services.iter().any(leads_here)
    }

    /// Whether this is the Service's port at one of its addresses, or its node port at an address of a Node.
    fn is_at(self, of: Of, service: &Service, service_port: &ServicePort) -> bool {
        let Self { oracle, address, protocol, port } = self;
        let here = match of {
            Of::Service => service.addresses.contains(&address) && service_port.port == port,
            Of::Node => service_port.node_port == Some(port) && oracle.is_node(address),
        };
        !service.unserved && service_port.protocol.number() == protocol && here
    }

    /// Backends of the same family to which packets may be translated. A Service's port and a slice's belong together
    /// if they have the same name and protocol. `new`: only backends that get new connections, which are the ready ones
    /// of a Service's port, or if there are none, those that are terminating and still serve.
    pub(super) fn backends(self, of: Of, new: bool) -> Vec<(IpAddr, u16)> {
        self.backends_of(None, of, new)
    }

    /// The same, of the Services of one namespace, if it is given.
    pub(super) fn backends_of(
        self,
        namespace: Option<&str>,
        of: Of,
        new: bool,
    ) -> Vec<(IpAddr, u16)> {
        let mut backends = Vec::new();
        let is_of = |service: &&Service| namespace.is_none_or(|it| service.key.namespace == it);
        for service in self.oracle.services.iter().filter(is_of) {
            for service_port in &service.ports {
                if !self.is_at(of, service, service_port) {
                    continue;
                }
                let mut ready = Vec::new();
                let mut serving = Vec::new();
                for slice in self.oracle.slices.iter().filter(|slice| is_slice_of(slice, service)) {
                    for slice_port in slice.ports.iter().filter(|port| is_same(port, service_port))
                    {
                        for address in &slice.addresses {
                            if address.is_ipv4() != self.address.is_ipv4() {
                                continue;
                            }
                            let backend = (*address, slice_port.port);
                            let is_ready = !slice.not_ready.contains(address);
                            let is_terminating = slice.terminating.contains(address);
                            match (new, is_ready, is_terminating) {
                                (false, _, _) => backends.push(backend),
                                (true, true, false) => ready.push(backend),
                                (true, true, true) => serving.push(backend),
                                (true, false, _) => {}
                            }
                        }
                    }
                }
                backends.extend(if ready.is_empty() { serving } else { ready });
            }
        }
        backends.sort();
        backends.dedup();
        backends
    }
}

fn is_slice_of(slice: &EndpointSlice, service: &Service) -> bool {
    slice.key.namespace == service.key.namespace && slice.service == service.key.name
}

fn is_in_network(service: &Service, address: IpAddr) -> bool {
    service.networks.iter().any(|network| network.contains(&address))
}

fn is_same(of_slice: &SlicePort, of_service: &ServicePort) -> bool {
    of_slice.name == of_service.name && of_slice.protocol == of_service.protocol
}

/// Whether each node has this address for itself: a loopback or link-local one.
const fn is_of_each_node(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    }
}

/// Verdict about a packet that no node has translated.
pub(super) struct Untranslated {
    pub(super) allowed: bool,
    /// A tier denies a backend to which another node may translate the packet.
    pub(super) denied: bool,
}

impl Oracle {
    /// Whether a packet to this port of an address is translated.
    #[must_use]
    pub fn is_frontend(&self, address: IpAddr, protocol: u8, port: u16) -> bool {
        let frontend = Frontend { oracle: self, address, protocol, port };
        frontend.is_port(Of::Service) || frontend.is_port(Of::Node)
    }

    /// Whether a Node has this address.
    fn is_node(&self, address: IpAddr) -> bool {
        self.nodes.iter().any(|node| node.addresses.contains(&address))
    }

    /// Whether packets of `pod` to an address may be translated: at a Service, whatever ports it has, in its networks, at
    /// node ports, or at this node, which has node ports too, as at the addresses that each node has.
    #[must_use]
    pub fn is_translated(&self, pod: &Pod, address: IpAddr) -> bool {
        let is_node = self.is_node(address);
        self.is_own_node(pod, address)
            || is_of_each_node(address)
            || self.services.iter().filter(|service| !service.unserved).any(|service| {
                let has_node_port = service.ports.iter().any(|port| port.node_port.is_some());
                service.addresses.contains(&address)
                    || is_in_network(service, address)
                    || is_node && has_node_port
            })
    }

    /// Whether packets to some port of an address may be translated to `pod` itself: a Service of its namespace with the
    /// pod as backend has the address, or has node ports and the address is this node's.
    #[must_use]
    pub fn leads_back(&self, pod: &Pod, address: IpAddr) -> bool {
        let own_node = self.is_own_node(pod, address);
        let is_own =
            |service: &&Service| !service.unserved && service.key.namespace == pod.key.namespace;
        self.services.iter().filter(is_own).any(|service| {
            let node_port = service.ports.iter().any(|port| port.node_port.is_some());
            let leads = service.addresses.contains(&address)
                || is_in_network(service, address)
                || (own_node && node_port);
            leads
                && self.slices.iter().any(|slice| {
                    is_slice_of(slice, service)
                        && slice.addresses.iter().any(|backend| pod.addresses.contains(backend))
                        && slice.ports.iter().any(|of_slice| {
                            service.ports.iter().any(|of_service| is_same(of_slice, of_service))
                        })
                })
        })
    }

    /// Whether policy allows egress of `pod` to `remote` if this node does not translate it: by literal grants, or to
    /// another node's node port if all backends are allowed, ready or not, because that node chooses one. The pod
    /// itself is a backend like any other here.
    #[must_use]
    pub fn judge_untranslated(&self, pod: &Pod, remote: IpAddr, protocol: u8, port: u16) -> bool {
        self.untranslated(pod, remote, protocol, port).allowed
    }

    /// See [`Self::judge_untranslated`]. If a tier denies one of the backends, the node port is denied too, regardless
    /// of literal grants.
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
        let frontend = Frontend { oracle: self, address: remote, protocol, port };
        for (remote, port) in frontend.backends(Of::Node, false) {
            let (oracle, direction, itself) = (self, Direction::Egress, false);
            backends.push(Seen { oracle, pod, direction, remote, protocol, port, itself }.decide());
        }
        let denied = backends.iter().any(Decision::denied_by_tier);
        let every = !backends.is_empty() && backends.iter().all(Decision::allowed);
        Untranslated { allowed: !denied && (literally || every), denied }
    }

    /// Backends, of the same family, to which a packet to this port of an address may be translated. `new`: only
    /// backends that get new connections.
    #[must_use]
    pub fn backends(
        &self,
        address: IpAddr,
        protocol: u8,
        port: u16,
        new: bool,
    ) -> Vec<(IpAddr, u16)> {
        let frontend = Frontend { oracle: self, address, protocol, port };
        let mut all = frontend.backends(Of::Service, new);
        all.extend(frontend.backends(Of::Node, new));
        all.sort();
        all.dedup();
        all
    }
}
