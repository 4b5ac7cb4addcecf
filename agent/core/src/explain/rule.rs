//! Matching of rules against traffic, with the missing conditions.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cluster::{Cluster, is_unaddressed};
use crate::explain::answer::{Cause, Detail, Judgement, Nearest, RuleRef, Verdict};
use crate::explain::resolved::ResolvedNames;
use crate::explain::text;
use crate::model::{
    Direction, DomainName, IpBlock, Labels, Peer, Pod, Policy, PortMatch, PortRule, Requirement,
    Rule, Selector,
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
/// author meant this traffic; then a matching peer, then a matching port, then a matching protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Nearness {
    as_asked: bool,
    peer: bool,
    port: bool,
    protocol: bool,
}

/// Path of a packet to the address at which it is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketPath {
    /// The packet was sent to this address.
    Direct,
    /// The pod's own node translated the packet.
    Translated,
    /// Another node translated the packet: nothing shows that the other side is the pod itself.
    Elsewhere,
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

impl<'a> Traffic<'a> {
    /// Sets the pod of the other side if that pod has no address by which it could be found.
    pub(super) fn of_unaddressed(&mut self, pod: Option<&'a Pod>) {
        if let Some(pod) = pod.filter(|pod| is_unaddressed(pod)) {
            self.of_remote(Some(pod));
        }
    }
}

impl Traffic<'_> {
    /// Returns the other side's address; unspecified if the address is only a candidate for a pod without one.
    pub(super) fn known_remote(&self) -> IpAddr {
        match (self.remote_pod.is_some_and(is_unaddressed), self.remote) {
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
                && match &port.port {
                    PortMatch::Any => true,
                    PortMatch::Range(first, last) => (*first..=*last).contains(&number),
                    PortMatch::Named(_) => false,
                }
        };
        let peer = peer.is_some() || rule.peers.iter().flatten().any(is_block);
        let port = port.is_some() || rule.ports.iter().flatten().any(is_port);
        peer && port
    }

    fn has_protocol(&self, rule: &Rule) -> bool {
        let same = |port: &PortRule| port.protocol.number() == self.protocol.0;
        rule.ports.as_ref().is_none_or(|ports| ports.iter().any(same))
    }

    fn rule_ref(
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

    fn nearest(&self, policy: &Policy, index: usize, rule: &Rule) -> Nearest {
        let namespace = &policy.key.namespace;
        let (peer, port) = (self.peer_hit(namespace, rule), self.port_hit(rule));
        let mut lacks = Vec::new();
        if port.is_none() {
            lacks.push(self.port_lack(rule.ports.as_deref().unwrap_or_default()));
        }
        if peer.is_none() {
            let peers = rule.peers.as_deref().unwrap_or_default();
            let told = peers.iter().take(text::TOLD);
            lacks.extend(told.filter_map(|peer| self.peer_lack(namespace, peer)));
            if peers.len() > text::TOLD {
                let more = peers.len() - text::TOLD;
                lacks.push(format!("nor is it one of the {more} other peers"));
            }
            if peers.is_empty() {
                lacks.push("none of its peers could be decoded".to_owned());
            }
        }
        let rule = self.rule_ref(policy, index, rule, peer.flatten(), port.flatten());
        Nearest { rule, lacks }
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

    fn name_lack(&self, name: &DomainName) -> String {
        let remote = self.remote;
        let resolved = match self.names {
            ResolvableNames::Resolved(resolved) => resolved,
            ResolvableNames::Unknown => {
                return format!("it is not known here whether the pod resolved {name} to {remote}");
            }
            ResolvableNames::Assumed(asked) => return format!("{name} does not match {asked}"),
        };
        if self.is_translated() {
            return format!("{remote} may be translated, so it belongs to no name such as {name}");
        }
        let all: Vec<String> =
            resolved.addresses(&self.pod.key, name).map(|at| at.to_string()).collect();
        if all.is_empty() {
            return format!("the pod has not resolved {name}, or its answers are past their time");
        }
        let (told, more) = (all.len().min(text::TOLD), all.len().saturating_sub(text::TOLD));
        let told = all.get(..told).unwrap_or_default().join(", ");
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("the pod resolved {name} to {told}{more}, not to {remote}")
    }

    fn namespace_matches(&self, namespace: &str, wanted: Option<&Selector>, remote: &Pod) -> bool {
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
    fn receiver(&self) -> Option<&Pod> {
        match self.direction {
            Direction::Ingress => Some(self.pod),
            Direction::Egress => self.remote_pod,
        }
    }

    fn named(&self, rule: &PortRule, name: &str) -> impl Iterator<Item = u16> {
        let ports = self.receiver().into_iter().flat_map(|pod| &pod.ports);
        ports.filter(move |p| p.name == *name && p.protocol == rule.protocol).map(|p| p.port)
    }

    fn port_lack(&self, ports: &[PortRule]) -> String {
        if ports.is_empty() {
            return "none of its ports could be decoded".to_owned();
        }
        let protocol = self.protocol;
        if !protocol.has_ports() {
            return format!("{protocol} is not in it: a rule with ports allows no other protocol");
        }
        let mut same = ports.iter().filter(|rule| rule.protocol.number() == protocol.0).peekable();
        if same.peek().is_none() {
            return format!("{protocol} is not in it");
        }
        let named: Vec<String> = same
            .filter_map(|rule| {
                if let PortMatch::Named(name) = &rule.port {
                    Some(self.named_lack(rule, name))
                } else {
                    None
                }
            })
            .collect();
        let mut lack = format!("port {} is not in it", self.port);
        if let Some((_, asked)) = self.asked
            && asked != self.port
        {
            lack.push_str(&format!("; {asked} is the Service's port, which is translated first"));
        }
        if !named.is_empty() {
            lack.push_str(": ");
            lack.push_str(&named.join("; "));
        }
        lack
    }

    fn named_lack(&self, rule: &PortRule, name: &str) -> String {
        let Some(receiver) = self.receiver() else {
            return format!(
                "{} is not a pod's address, so it has no port named {name}",
                self.remote
            );
        };
        let numbers: Vec<String> = self.named(rule, name).map(|port| port.to_string()).collect();
        let (pod, protocol) = (&receiver.key, rule.protocol);
        if numbers.is_empty() {
            format!("pod {pod} has no {protocol} port named {name}")
        } else {
            format!("{name} is {} on pod {pod}", numbers.join(" and "))
        }
    }

    fn peer_lack(&self, namespace: &str, peer: &Peer) -> Option<String> {
        let (namespaces, pods) = match peer {
            Peer::Block(block) => {
                return Some(match self.remote_pod.filter(|pod| is_unaddressed(pod)) {
                    Some(pod) => {
                        format!("pod {} is judged at an address outside of {}", pod.key, block.cidr)
                    }
                    None => self.block_lack(block),
                });
            }
            Peer::Nodes(_) if self.remote_pod.is_some_and(is_unaddressed) => {
                return Some("a pod is not a node".to_owned());
            }
            Peer::Nodes(_) => {
                return Some(format!(
                    "{} is not an address of a node that it selects",
                    self.remote
                ));
            }
            Peer::Domain(name) => return Some(self.name_lack(name)),
            Peer::Pods { namespaces, pods } => (namespaces, pods),
        };
        let Some(remote) = self.remote_pod else {
            return Some(self.no_pod_lack());
        };
        let name = &remote.key.namespace;
        if !self.namespace_matches(namespace, namespaces.as_ref(), remote) {
            let Some(selector) = namespaces else {
                return Some(format!("pod {} is not in namespace {namespace}", remote.key));
            };
            let labels = self.remote_namespace.as_ref()?;
            let unmet = unmet(selector, labels)?;
            let lack = text::unmet(&format!("namespace {name}"), unmet, labels);
            return Some(match self.cluster.namespaces().contains_key(name) {
                true => lack,
                false => format!("{lack}; the Namespace is not among the objects"),
            });
        }
        let unmet = unmet(pods, &remote.labels)?;
        Some(text::unmet(&format!("pod {}", remote.key), unmet, &remote.labels))
    }

    fn block_lack(&self, block: &IpBlock) -> String {
        let lack = block_lack(block, self.remote);
        match self.asked {
            Some((asked, _)) if block.contains(asked) => {
                format!("{lack}; {asked} is the Service's address, which is translated first")
            }
            _ => lack,
        }
    }

    fn no_pod_lack(&self) -> String {
        let remote = self.remote;
        match self.cluster.nodes.with(remote) {
            Some(node) => format!("{remote} is node {node}, which only an ipBlock can name"),
            None => format!("{remote} is not a pod's address"),
        }
    }
}

fn block_lack(block: &IpBlock, address: IpAddr) -> String {
    match block.except.iter().find(|except| except.contains(&address)) {
        Some(except) if block.cidr.contains(&address) => {
            format!("{address} is in its except {except}")
        }
        _ => format!("{address} is not in {}", block.cidr),
    }
}

/// Returns the first requirement that labels do not meet.
fn unmet<'s>(selector: &'s Selector, labels: &Labels) -> Option<&'s Requirement> {
    selector.requirements.iter().find(|requirement| !requirement.matches(labels))
}
