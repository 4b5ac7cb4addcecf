//! Traffic to Services and node ports: judged on the backends.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::cluster::Cluster;
use crate::explain::answer::{
    Cause, Detail, Explanation, Judgement, MatchedTierRule, ServiceBackend, TierVerdict, Verdict,
};
use crate::explain::literal::Literal;
use crate::explain::rule::{PacketPath, Traffic};
use crate::explain::text;
use crate::model::{Direction, Key, Pod, Service, ServicePort};
use crate::probe::{IpProtocol, Probe};

/// Translation of a packet to a Service's address or a node port.
struct ServiceTranslation {
    /// Services of the frontend, by name.
    services: Vec<Key>,
    backends: TranslatedBackends,
    /// Backends of Services of the sender's namespace.
    own: BackendAddresses,
    /// Whether the frontend is a node port.
    at_node: bool,
}

/// Address and port of each backend.
pub(super) type BackendAddresses = BTreeSet<(IpAddr, u16)>;

/// Returns the Services' ports that packets to this port of an address are for: of the Services that have the
/// address, or node ports if `at_node`.
pub(super) fn frontends(
    cluster: &Cluster,
    at_node: bool,
    address: IpAddr,
    protocol: IpProtocol,
    port: u16,
) -> Vec<(&Service, &ServicePort)> {
    let translation = &cluster.translation;
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

/// Backends of Services' ports in one family.
#[derive(Default)]
pub(super) struct TranslatedBackends {
    /// Backends that receive new connections: of each port the ready ones, else those that are terminating and still
    /// serve.
    pub(super) receiving: BackendAddresses,
    /// Backends that only keep their existing connections.
    pub(super) waiting: BackendAddresses,
    /// Some port has no ready backend, and terminating ones receive its connections.
    pub(super) has_terminating: bool,
}

impl TranslatedBackends {
    /// Returns all backends; some may be there twice.
    pub(super) fn into_all(self) -> impl Iterator<Item = (IpAddr, u16)> {
        self.receiving.into_iter().chain(self.waiting)
    }
}

/// Returns the backends of Services' ports in one family.
pub(super) fn backends(
    cluster: &Cluster,
    frontends: &[(&Service, &ServicePort)],
    v6: bool,
) -> TranslatedBackends {
    let mut found = TranslatedBackends::default();
    for (service, port) in frontends {
        let [mut ready, mut serving] = [const { BackendAddresses::new() }; 2];
        for slice in cluster.slices_of(&service.key) {
            for number in slice.ports.iter().filter(|p| p.is_behind(port)).map(|p| p.port) {
                let at = |address: IpAddr| (address.is_ipv6() == v6).then_some((address, number));
                ready.extend(slice.ready().filter_map(at));
                serving.extend(slice.serving().filter_map(at));
                found.waiting.extend(slice.not_ready.iter().copied().filter_map(at));
            }
        }
        found.has_terminating |= ready.is_empty() && !serving.is_empty();
        if ready.is_empty() {
            found.receiving.append(&mut serving);
        }
        found.receiving.append(&mut ready);
        found.waiting.append(&mut serving);
    }
    found
}

/// Judges traffic to Services by their backends.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceTranslator<'c> {
    pub(super) literal: Literal<'c>,
}

impl ServiceTranslator<'_> {
    /// Returns the translation of packets to this port of an address; `None` if nothing translates them.
    fn translated(
        &self,
        address: IpAddr,
        protocol: IpProtocol,
        port: u16,
    ) -> Option<ServiceTranslation> {
        let at = |at_node| self.translated_at(at_node, address, (protocol, port), None);
        at(false).or_else(|| at(true))
    }

    fn translated_at(
        &self,
        at_node: bool,
        address: IpAddr,
        (protocol, port): (IpProtocol, u16),
        from: Option<&Pod>,
    ) -> Option<ServiceTranslation> {
        let cluster = self.literal.cluster;
        let frontends = frontends(cluster, at_node, address, protocol, port);
        if frontends.is_empty() {
            return None;
        }
        let backends = backends(cluster, &frontends, address.is_ipv6());
        let from = from.filter(|pod| !cluster.translation.is_crowded(pod));
        let own = from.map(|pod| {
            let mut own = frontends.clone();
            own.retain(|(service, _)| service.key.namespace == pod.key.namespace);
            self::backends(cluster, &own, address.is_ipv6()).into_all().collect()
        });
        let mut keys: Vec<Key> = frontends.iter().map(|(s, _)| s.key.clone()).collect();
        keys.sort();
        keys.dedup();
        Some(ServiceTranslation { services: keys, backends, own: own.unwrap_or_default(), at_node })
    }

    /// Returns whether some backend of an address is a pod.
    pub(super) fn leads_to_pod(&self, address: IpAddr, probe: &Probe) -> bool {
        self.translated(address, probe.protocol, probe.port).is_some_and(|to| {
            to.backends
                .receiving
                .iter()
                .any(|(at, _)| self.literal.pods_behind(*at).iter().any(Option::is_some))
        })
    }

    /// Judges an address as the pod's veth does. For egress, except to the pod's own node, the backends of the address
    /// count too. A Service's port is denied if a tier denies every backend, or denies the pod itself as a backend;
    /// else it is allowed if some backend is allowed. Another node's node port is denied if a tier denies some
    /// backend; else it is allowed if every backend is allowed. Otherwise the literal verdict on the address holds.
    pub(super) fn judge_at_veth(
        &self,
        pod: &Pod,
        direction: Direction,
        remote: IpAddr,
        kind: (IpProtocol, u16),
        detail: Detail,
    ) -> Judgement {
        let traffic = self.literal.traffic(pod, direction, remote, kind.0, kind.1);
        let literal = self.literal.judge_traffic(&traffic, None, detail);
        let always = matches!(literal.cause, Cause::Itself | Cause::HostNetwork);
        let settled = literal.verdict == Verdict::Allow && !self.literal.has_tiers();
        if direction == Direction::Ingress
            || always
            || settled
            || self.literal.cluster.is_node_of(pod, remote)
        {
            return literal;
        }
        let kinds = [false, true].into_iter();
        let translations = kinds.filter_map(|at| self.translated_at(at, remote, kind, Some(pod)));
        translations.fold(literal, |so_far, to| self.with_backends(pod, so_far, kind, to, detail))
    }

    /// Adjusts an egress judgement of an address by the backends of the address.
    fn with_backends(
        &self,
        pod: &Pod,
        so_far: Judgement,
        (protocol, _): (IpProtocol, u16),
        to: ServiceTranslation,
        detail: Detail,
    ) -> Judgement {
        let is_itself = |backend: (IpAddr, u16)| {
            !to.at_node && pod.addresses.contains(&backend.0) && to.own.contains(&backend)
        };
        let judge_at = |direction, backend: (IpAddr, u16), detail| {
            let traffic = self.literal.traffic(pod, direction, backend.0, protocol, backend.1);
            let way = match is_itself(backend) {
                true => PacketPath::Hairpin,
                false => PacketPath::Translated,
            };
            let mut traffic = Traffic { way, ..traffic };
            if is_itself(backend) {
                // The backend is the sender itself, even if another pod claims the address too.
                traffic.of_remote(Some(pod));
            }
            self.literal.judge_traffic(&traffic, None, detail)
        };
        // The pod's ingress is checked here: nothing judges it when the packet returns to the pod's veth.
        let judge = |backend, detail| {
            let egress = judge_at(Direction::Egress, backend, detail);
            let ingress = (is_itself(backend) && !egress.is_denied_by_tier())
                .then(|| judge_at(Direction::Ingress, backend, detail));
            ingress.filter(Judgement::is_denied_by_tier).unwrap_or(egress)
        };
        let backends: BTreeSet<(IpAddr, u16)> = to.backends.into_all().collect();
        let judged: Vec<_> = backends.iter().map(|at| (*at, judge(*at, Detail::Verdict))).collect();
        let denied: Vec<(IpAddr, u16)> = judged
            .iter()
            .filter_map(|(at, judgement)| judgement.is_denied_by_tier().then_some(*at))
            .collect();
        let itself = denied.iter().find(|at| is_itself(**at));
        let some_is_enough = to.at_node || itself.is_some();
        let is_denied = some_is_enough || denied.len() == judged.len();
        let mut allows = judged.iter().map(|(_, judgement)| judgement.verdict == Verdict::Allow);
        let is_allowed = match to.at_node {
            true => !judged.is_empty() && allows.all(|allowed| allowed),
            false => allows.any(|allowed| allowed),
        };
        let (tiers, verdict, cause) = match itself.or(denied.first()) {
            Some(backend) if is_denied => {
                (judge(*backend, detail).tiers, Verdict::Deny, Cause::BackendDenied)
            }
            _ if is_allowed && so_far.verdict == Verdict::Deny => {
                (TierVerdict::default(), Verdict::Allow, Cause::Backend)
            }
            _ => return so_far,
        };
        let (allowed_by, nearest) = (None, None);
        Judgement { verdict, cause, tiers, allowed_by, nearest, ..so_far }
    }

    /// Returns the rule of a ClusterNetworkPolicy that denies a pod's packets to an address, without translation.
    fn denying_address(
        &self,
        pod: &Pod,
        address: IpAddr,
        probe: &Probe,
    ) -> Option<MatchedTierRule> {
        let (protocol, port) = (probe.protocol, probe.port);
        let traffic = self.literal.traffic(pod, Direction::Egress, address, protocol, port);
        let judged = self.literal.judge_traffic(&traffic, None, Detail::Reasons);
        judged.tiers.decided_by.filter(|_| judged.verdict == Verdict::Deny)
    }

    /// Answers a probe to a Service's address or a node port by the backends; `None` if nothing is translated there.
    pub(super) fn explain(
        &self,
        probe: &Probe,
        from: Option<&Pod>,
        (source, destination): (IpAddr, IpAddr),
        detail: Detail,
    ) -> Option<Explanation> {
        let ServiceTranslation { services, backends, at_node, own: _ } =
            self.translated(destination, probe.protocol, probe.port)?;
        let own = |pod: &Pod| self.literal.cluster.is_node_of(pod, destination);
        let out_of_sight = at_node && from.is_some_and(|pod| !own(pod));
        let judge = |pod: Option<&Pod>, (address, port): (IpAddr, u16)| {
            let (from, to) = ((from, source), (pod, address));
            let kind = (probe.protocol, port);
            let asked = Some((destination, probe.port));
            let (egress, ingress) = self.literal.judge_pair(from, to, (kind, asked), detail);
            let verdict = Verdict::combine([&egress, &ingress]);
            let pod = pod.map(|pod| pod.key.clone());
            ServiceBackend { address, port, pod, verdict, egress, ingress }
        };
        let has_terminating = backends.has_terminating;
        let pods = backends.receiving.into_iter().flat_map(|at| {
            let pods = self.literal.pods_behind(at.0).into_iter();
            pods.map(move |pod| (pod, at))
        });
        let backends: Vec<ServiceBackend> = pods.map(|(pod, at)| judge(pod, at)).collect();
        let egress = from.map(|pod| {
            let kind = (probe.protocol, probe.port);
            self.judge_at_veth(pod, Direction::Egress, destination, kind, detail)
        });
        // Another node chooses the backend, unseen by the sender's veth, which has therefore judged all backends.
        let receives = |backend: &ServiceBackend| match out_of_sight {
            true => Verdict::combine([&None, &backend.ingress]),
            false => backend.verdict,
        };
        let allowed = Verdict::combine([&egress, &None]) == Verdict::Allow
            && backends.iter().any(|backend| receives(backend) == Verdict::Allow);
        let mut note = text::translated(&services, &backends, egress.as_ref(), out_of_sight);
        if has_terminating && let Some(note) = &mut note {
            note.push_str("; none is ready: terminating ones that still serve get the connections");
        }
        if detail == Detail::Reasons
            && !at_node
            && let Some(rule) = from.and_then(|pod| self.denying_address(pod, destination, probe))
            && egress.as_ref().is_some_and(|egress| egress.verdict == Verdict::Allow)
            && let Some(note) = &mut note
        {
            note.push_str("; ");
            note.push_str(&text::ineffective_denial(&rule));
        }
        Some(Explanation {
            probe: probe.clone(),
            verdict: if allowed { Verdict::Allow } else { Verdict::Deny },
            reason: None,
            egress,
            ingress: None,
            services,
            note: (detail == Detail::Reasons).then_some(note).flatten(),
            backends: if detail == Detail::Reasons { backends } else { Vec::new() },
            unanswered: false,
            templates: Vec::new(),
        })
    }
}
