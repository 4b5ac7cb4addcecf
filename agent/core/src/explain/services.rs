//! Traffic to Services and node ports: judged on the backends.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::cluster::Cluster;
use crate::explain::answer::{Backend, Cause, Detail, Explanation, Judgement, Verdict};
use crate::explain::literal::Literal;
use crate::explain::rule::Traffic;
use crate::explain::text;
use crate::model::{Direction, Key, Pod, Service, ServicePort};
use crate::probe::{IpProtocol, Probe};

/// What a packet becomes.
struct Translation {
    /// Whose it is, by name.
    services: Vec<Key>,
    /// Those that new connections are led to.
    backends: Backends,
    /// Those that only go on with what they have.
    waiting: Backends,
    /// By a node, at its node port.
    at_node: bool,
}

/// Address and port of each.
type Backends = BTreeSet<(IpAddr, u16)>;

fn same_port(slice: &crate::model::SlicePort, service: &ServicePort) -> bool {
    slice.name == service.name && slice.protocol == service.protocol
}

/// The Services' ports that packets to this port of an address are for: of the Services that have the
/// address, or `at_node` node ports.
fn frontends(
    cluster: &Cluster,
    at_node: bool,
    address: IpAddr,
    protocol: IpProtocol,
    port: u16,
) -> Vec<(&Service, &ServicePort)> {
    let translation = cluster.translation();
    let services: Vec<&Service> = match at_node {
        true if translation.is_node(address) => {
            translation.with_node_ports().map(|service| &**service).collect()
        }
        true => Vec::new(),
        false => translation.at(address).iter().map(|service| &**service).collect(),
    };
    let ports = services
        .into_iter()
        .flat_map(|service| service.ports.iter().map(move |port| (service, port)));
    ports
        .filter(|(_, candidate)| {
            let number = if at_node { candidate.node_port } else { Some(candidate.port) };
            candidate.protocol.number() == protocol.0 && number == Some(port)
        })
        .collect()
}

/// Addresses and ports behind Services' ports, in one family; those that new connections are led to, and
/// those that only go on with what they have.
fn backends(cluster: &Cluster, frontends: &[(&Service, &ServicePort)], v6: bool) -> [Backends; 2] {
    let [mut ready, mut waiting] = [const { Backends::new() }; 2];
    for (service, port) in frontends {
        for slice in cluster.translation().slices_of(&service.key) {
            let same = |p: &&_| same_port(p, port);
            for number in slice.ports.iter().filter(same).map(|p| p.port) {
                for address in slice.addresses.iter().filter(|a| a.is_ipv6() == v6) {
                    let waits = slice.not_ready.contains(address);
                    let list = if waits { &mut waiting } else { &mut ready };
                    list.insert((*address, number));
                }
            }
        }
    }
    [ready, waiting]
}

/// Judges traffic to Services by what it becomes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Translated<'c> {
    pub(super) literal: Literal<'c>,
}

impl Translated<'_> {
    /// Where packets to this port of an address are translated to; none if they are not.
    fn translated(&self, address: IpAddr, protocol: IpProtocol, port: u16) -> Option<Translation> {
        let at = |at_node| self.translated_at(at_node, address, protocol, port);
        at(false).or_else(|| at(true))
    }

    fn translated_at(
        &self,
        at_node: bool,
        address: IpAddr,
        protocol: IpProtocol,
        port: u16,
    ) -> Option<Translation> {
        let frontends = frontends(self.literal.cluster, at_node, address, protocol, port);
        if frontends.is_empty() {
            return None;
        }
        let [backends, waiting] = backends(self.literal.cluster, &frontends, address.is_ipv6());
        let mut keys: Vec<Key> = frontends.iter().map(|(s, _)| s.key.clone()).collect();
        keys.sort();
        keys.dedup();
        Some(Translation { services: keys, backends, waiting, at_node })
    }

    /// Whether some backend of an address is a pod.
    pub(super) fn leads_to_pod(&self, address: IpAddr, probe: &Probe) -> bool {
        self.translated(address, probe.protocol, probe.port).is_some_and(|to| {
            to.backends.iter().any(|(address, _)| self.literal.owner(*address).is_some())
        })
    }

    /// What a pod's veth says: as literally read, and where that denies egress, allowed if some
    /// backend is; at another node's node port, if every backend is.
    pub(super) fn judge_at_veth(
        &self,
        pod: &Pod,
        direction: Direction,
        remote: IpAddr,
        (protocol, port): (IpProtocol, u16),
        detail: Detail,
    ) -> Judgement {
        let traffic = self.literal.traffic(pod, direction, remote, protocol, port);
        let mut judgement = self.literal.judge_traffic(&traffic, None, detail);
        if direction == Direction::Ingress || judgement.verdict == Verdict::Allow {
            return judgement;
        }
        let kinds = [false, true].into_iter();
        let allowed =
            kinds.filter_map(|at| self.translated_at(at, remote, protocol, port)).any(|to| {
                let out_of_sight = to.at_node;
                let mut backends =
                    to.backends.into_iter().chain(to.waiting).map(|(backend, port)| {
                        let traffic = self.literal.traffic(pod, direction, backend, protocol, port);
                        let traffic = Traffic { out_of_sight, ..traffic };
                        self.literal.judge_traffic(&traffic, None, Detail::Verdict).verdict
                            == Verdict::Allow
                    });
                if out_of_sight {
                    backends.next() == Some(true) && backends.all(|allowed| allowed)
                } else {
                    backends.any(|allowed| allowed)
                }
            });
        if allowed {
            judgement.verdict = Verdict::Allow;
            judgement.cause = Cause::Backend;
            judgement.nearest = None;
        }
        judgement
    }

    /// The answer for traffic to a Service's address or a node port, which counts by its backends;
    /// none if nothing is translated there.
    pub(super) fn explain(
        &self,
        probe: &Probe,
        from: Option<&Pod>,
        (source, destination): (IpAddr, IpAddr),
        detail: Detail,
    ) -> Option<Explanation> {
        let Translation { services, backends, at_node, .. } =
            self.translated(destination, probe.protocol, probe.port)?;
        let own = |pod: &Pod| self.literal.is_own_node(pod, destination);
        let out_of_sight = at_node && from.is_some_and(|pod| !own(pod));
        let backends: Vec<Backend> = backends
            .into_iter()
            .map(|(address, port)| {
                let pod = self.literal.owner(address);
                let kind = (probe.protocol, port);
                let (egress, ingress) =
                    self.literal.judge_pair(from, source, pod, address, kind, detail);
                let verdict = Verdict::of([&egress, &ingress]);
                let pod = pod.map(|pod| pod.key.clone());
                Backend { address, port, pod, verdict, egress, ingress }
            })
            .collect();
        let egress = from.map(|pod| {
            let kind = (probe.protocol, probe.port);
            self.judge_at_veth(pod, Direction::Egress, destination, kind, detail)
        });
        let allowed = if out_of_sight {
            let admits = |backend: &Backend| Verdict::of([&None, &backend.ingress]);
            Verdict::of([&egress, &None]) == Verdict::Allow
                && backends.iter().any(|backend| admits(backend) == Verdict::Allow)
        } else {
            backends.iter().any(|backend| backend.verdict == Verdict::Allow)
        };
        let note = text::translated(&services, &backends, egress.as_ref(), out_of_sight);
        Some(Explanation {
            probe: probe.clone(),
            verdict: if allowed { Verdict::Allow } else { Verdict::Deny },
            reason: None,
            egress,
            ingress: None,
            services,
            note: (detail == Detail::Reasons).then_some(note).flatten(),
            backends: if detail == Detail::Reasons { backends } else { Vec::new() },
        })
    }
}
