//! Matching of rules against traffic, with the missing conditions.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cluster::{Cluster, is_unaddressed};
use crate::explain::answer::{Cause, Detail, Judgement, RuleRef, Verdict};
use crate::explain::resolved::ResolvedNames;
use crate::explain::text;
use crate::model::{
    Direction, DomainName, IpBlock, Labels, Peer, Pod, Policy, PortMatch, PortRule, Rule, Selector,
};
use crate::probe::IpProtocol;

/// A packet at one pod.
pub(super) struct Traffic<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) pod: &'a Pod,
    pub(super) direction: Direction,
    pub(super) remote: IpAddr,
    pub(super) remote_pod: Option<&'a Pod>,
    /// Labels of the remote pod's namespace; looked up once, because there may be thousands of rules.
    pub(super) remote_namespace: Option<Cow<'a, Labels>>,
    /// Whether some Node object lists the remote address.
    pub(super) remote_is_node: bool,
    pub(super) protocol: IpProtocol,
    pub(super) port: u16,
    pub(super) way: PacketPath,
    /// Address and port of the Service or node port that the packet was sent to, if it was translated.
    pub(super) asked: Option<(IpAddr, u16)>,
    pub(super) names: ResolvableNames<'a>,
}

/// Known domain names of the remote address.
#[derive(Clone, Copy, Debug)]
pub(super) enum ResolvableNames<'a> {
    /// No name is known, so a name matches no address.
    Unknown,
    /// Addresses that pods resolved.
    Resolved(&'a ResolvedNames),
    /// The pod resolved this name, or any name below this wildcard, to the address.
    Assumed(&'a DomainName),
}

/// Rank of a rule that does not allow the traffic. A rule for the address before translation ranks highest, as its
/// author meant this traffic; then one that selects the other pod by its labels, then one with the port before
/// translation, then one with an address of the Service; then a matching peer, port and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Nearness {
    as_asked: bool,
    selects_pod: bool,
    asked_port: bool,
    asked_address: bool,
    peer: bool,
    port: bool,
    protocol: bool,
}

/// Path of a packet to the address at which it is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketPath {
    /// The packet was sent to this address.
    Direct,
    /// The pod's own node translated the packet to the pod itself, by a Service of the pod's namespace.
    Hairpin,
    /// The packet was translated: a backend with the pod's own address counts as any other.
    Translated,
}

/// Result of matching a list: `None` without a match, `Some(None)` without a list, else the matching item's index.
pub(super) type ListMatch = Option<Option<usize>>;

impl<'a> Traffic<'a> {
    /// Sets the pod of the other side.
    pub(super) fn of_remote(&mut self, pod: Option<&'a Pod>) {
        self.remote_pod = pod;
        self.remote_namespace = pod.map(|pod| self.cluster.namespace_labels(&pod.key.namespace));
    }
}

/// Returns whether an address is only a candidate for a pod without an address. An address that the pod claims on a
/// secondary network is no candidate: the claim is accepted, or the address counts for no pod.
fn is_candidate(pod: &Pod, address: IpAddr) -> bool {
    is_unaddressed(pod) && pod.secondary_with(address).next().is_none()
}

impl<'a> Traffic<'a> {
    /// Sets the pod of the other side if the remote address is only a candidate for it.
    pub(super) fn of_unaddressed(&mut self, pod: Option<&'a Pod>) {
        if let Some(pod) = pod.filter(|pod| is_candidate(pod, self.remote)) {
            self.of_remote(Some(pod));
        }
    }
}

impl Traffic<'_> {
    /// Returns the other side's address; unspecified if the address is only a candidate for a pod without one.
    pub(super) fn known_remote(&self) -> IpAddr {
        let is_candidate = self.remote_pod.is_some_and(|pod| is_candidate(pod, self.remote));
        match (is_candidate, self.remote) {
            (false, known) => known,
            (true, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
            (true, IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Sets the verdict's cause, and the allowing rule or the nearest one.
    pub(super) fn judge_rules(
        &self,
        policies: &[&Policy],
        judgement: &mut Judgement,
        detail: Detail,
    ) {
        let mut nearest: Option<(Nearness, &Policy, usize, &Rule)> = None;
        for &policy in policies {
            for (index, rule) in
                policy.rules(self.direction).iter().flat_map(|r| r.iter().enumerate())
            {
                let namespace = &policy.key.namespace;
                let (peer, port) = (self.peer_hit(namespace, rule), self.port_hit(rule));
                if let (Some(peer), Some(port)) = (peer, port) {
                    judgement.cause = Cause::Rule;
                    if detail == Detail::Reasons {
                        let by = self.rule_ref(policy, index, rule, peer, port);
                        judgement.allowed_by = Some(by);
                    }
                    return;
                }
                let score = Nearness {
                    as_asked: self.is_for_asked(rule, peer, port),
                    selects_pod: selects_by_labels(rule, peer),
                    asked_port: self.has_asked_port(rule),
                    asked_address: self.has_asked_address(rule),
                    peer: peer.is_some(),
                    port: port.is_some(),
                    protocol: self.has_protocol(rule),
                };
                if nearest.as_ref().is_none_or(|(best, ..)| *best < score) {
                    nearest = Some((score, policy, index, rule));
                }
            }
        }
        judgement.cause = Cause::NoRule;
        judgement.verdict = Verdict::Deny;
        let nearest = nearest.filter(|_| detail == Detail::Reasons);
        judgement.nearest =
            nearest.map(|(_, policy, index, rule)| self.nearest(policy, index, rule));
    }

    /// Returns whether a rule allows the address before translation; `peer` and `port`: whether they match after
    /// translation.
    fn is_for_asked(&self, rule: &Rule, peer: ListMatch, port: ListMatch) -> bool {
        let Some((address, number)) = self.asked else { return false };
        let is_block = |peer: &Peer| matches!(peer, Peer::Block(block) if block.contains(address));
        let is_port = |port: &PortRule| {
            port.protocol.number() == self.protocol.0
                && (port.port == PortMatch::Any || contains_number(port, number))
        };
        let peer = peer.is_some() || rule.peers.iter().flatten().any(is_block);
        let port = port.is_some() || rule.ports.iter().flatten().any(is_port);
        peer && port
    }

    /// Returns whether a rule has the port before translation, but not the port after it.
    fn has_asked_port(&self, rule: &Rule) -> bool {
        let Some((_, number)) = self.asked else { return false };
        let is_asked = |port: &PortRule| {
            port.protocol.number() == self.protocol.0
                && contains_number(port, number)
                && !contains_number(port, self.port)
        };
        rule.ports.iter().flatten().any(is_asked)
    }

    /// Returns whether a rule has a block with some address of the Service, but not the address after translation.
    fn has_asked_address(&self, rule: &Rule) -> bool {
        rule.peers.iter().flatten().any(|peer| {
            matches!(peer, Peer::Block(block)
                if !block.contains(self.remote) && self.service_address(block).is_some())
        })
    }

    /// Returns an address in a block to which the packet, or another to the same Service, was sent before translation.
    pub(super) fn service_address(&self, block: &IpBlock) -> Option<IpAddr> {
        let (asked, _) = self.asked?;
        if block.contains(asked) {
            return Some(asked);
        }
        let service = self.cluster.service_at(asked)?;
        let mut addresses = self.cluster.service_addresses(service).iter().copied();
        addresses.find(|address| block.contains(*address))
    }

    fn has_protocol(&self, rule: &Rule) -> bool {
        let same = |port: &PortRule| port.protocol.number() == self.protocol.0;
        rule.ports.as_ref().is_none_or(|ports| ports.iter().any(same))
    }

    pub(super) fn rule_ref(
        &self,
        policy: &Policy,
        index: usize,
        rule: &Rule,
        peer: Option<usize>,
        port: Option<usize>,
    ) -> RuleRef {
        let allows = text::rule(&policy.key.namespace, self.direction, rule);
        let (policy, direction) = (policy.key.clone(), self.direction);
        RuleRef { policy, direction, index, peer, port, allows }
    }

    /// Finds the matching peer of a rule. `namespace` is the policy's, empty for a cluster-wide policy.
    pub(super) fn peer_hit(&self, namespace: &str, rule: &Rule) -> ListMatch {
        self.peer_hit_if(namespace, rule, |_| true)
    }

    /// Finds the matching peer of a rule, without the domain names that `counts` refuses.
    pub(super) fn peer_hit_if(
        &self,
        namespace: &str,
        rule: &Rule,
        counts: impl Fn(&DomainName) -> bool,
    ) -> ListMatch {
        let Some(peers) = &rule.peers else { return Some(None) };
        let matches = |peer: &Peer| {
            let counts = || if let Peer::Domain(name) = peer { counts(name) } else { true };
            self.peer_matches(namespace, peer) && counts()
        };
        peers.iter().position(matches).map(Some)
    }

    pub(super) fn peer_matches(&self, namespace: &str, peer: &Peer) -> bool {
        match peer {
            Peer::Block(block) => block.contains(self.remote),
            Peer::Nodes(nodes) => {
                self.remote_is_node && self.cluster.nodes.is_selected(nodes, self.remote)
            }
            Peer::Domain(name) => self.belongs_to(name),
            Peer::Pods { namespaces, pods } => self.remote_pod.is_some_and(|remote| {
                self.namespace_matches(namespace, namespaces.as_ref(), remote)
                    && pods.matches(&remote.labels)
            }),
        }
    }

    /// Whether the remote address belongs to a name. Addresses that the node may translate belong to none.
    pub(super) fn belongs_to(&self, name: &DomainName) -> bool {
        let belongs = match self.names {
            ResolvableNames::Unknown => false,
            ResolvableNames::Resolved(resolved) => {
                resolved.left(&self.pod.key, name, self.remote).is_some()
            }
            ResolvableNames::Assumed(asked) => name.covers(asked),
        };
        belongs && !self.is_translated()
    }

    /// The pod's answer by which the remote address belongs to a name, as text; `None` if it does not.
    pub(super) fn resolution(&self, name: &DomainName) -> Option<String> {
        match self.names {
            _ if !self.belongs_to(name) => None,
            ResolvableNames::Unknown => None,
            ResolvableNames::Resolved(resolved) => {
                let (remote, left) = (self.remote, resolved.left(&self.pod.key, name, self.remote));
                let left = left?.as_secs();
                Some(format!(
                    "the pod resolved {name} to {remote}, which counts for another {left} s"
                ))
            }
            ResolvableNames::Assumed(asked) => Some(format!("{name} matches {asked}")),
        }
    }

    /// Whether it is not known if the pod resolved a name to the remote address.
    pub(super) fn may_be_resolved(&self) -> bool {
        matches!(self.names, ResolvableNames::Unknown) && !self.is_translated()
    }

    pub(super) fn is_translated(&self) -> bool {
        self.way != PacketPath::Direct
            || self.asked.is_some()
            || self.cluster.service_at(self.remote).is_some()
            || self.cluster.is_own_node(self.remote)
            // Any node may have the node ports.
            || self.remote_is_node && self.cluster.translation.with_node_ports().next().is_some()
    }

    pub(super) fn namespace_matches(
        &self,
        namespace: &str,
        wanted: Option<&Selector>,
        remote: &Pod,
    ) -> bool {
        match wanted {
            None => remote.key.namespace == namespace,
            Some(selector) => {
                let labels = self.remote_namespace.as_ref();
                labels.is_some_and(|labels| selector.matches(labels))
            }
        }
    }

    pub(super) fn port_hit(&self, rule: &Rule) -> ListMatch {
        let Some(ports) = &rule.ports else { return Some(None) };
        ports.iter().position(|port| self.port_matches(port)).map(Some)
    }

    fn port_matches(&self, rule: &PortRule) -> bool {
        rule.protocol.number() == self.protocol.0
            && match &rule.port {
                PortMatch::Any => true,
                PortMatch::Range(first, last) => (*first..=*last).contains(&self.port),
                PortMatch::Named(name) => self.named(rule, name).any(|port| port == self.port),
            }
    }

    /// Returns the receiving pod, the one that defines named ports.
    pub(super) fn receiver(&self) -> Option<&Pod> {
        match self.direction {
            Direction::Ingress => Some(self.pod),
            Direction::Egress => self.remote_pod,
        }
    }

    pub(super) fn named(&self, rule: &PortRule, name: &str) -> impl Iterator<Item = u16> {
        let ports = self.receiver().into_iter().flat_map(|pod| &pod.ports);
        ports.filter(move |p| p.name == *name && p.protocol == rule.protocol).map(|p| p.port)
    }
}

/// Returns whether a rule selects the other pod by labels; `peer`: the matching peer.
fn selects_by_labels(rule: &Rule, peer: ListMatch) -> bool {
    let peer = peer.flatten().and_then(|index| rule.peers.as_ref()?.get(index));
    matches!(peer, Some(Peer::Pods { pods, .. }) if !pods.requirements.is_empty())
}

/// Returns whether a port of a rule has a number.
pub(super) fn contains_number(port: &PortRule, number: u16) -> bool {
    matches!(port.port, PortMatch::Range(first, last) if (first..=last).contains(&number))
}
