//! What policy says, read literally: the yardstick that everything else is held against.
//!
//! Written from the comments of the API types (`k8s.io/api/networking/v1`, `LabelSelector` of
//! `k8s.io/apimachinery`, `policy.networking.k8s.io/v1alpha2`) and from netpold's decisions where they leave room. As naive as possible
//! and sharing no code with the compiler, matching of selectors and blocks included, so that one
//! misunderstanding cannot hide in both. Never used to judge a packet.

mod services;
mod tiers;

pub use tiers::{Decision, Seen};

use std::net::IpAddr;

use ipnet::IpNet;

use netpold_core::model::{
    Change, ClusterPolicy, Direction, EndpointSlice, Enforcement, IpBlock, Labels, Namespace, Node,
    Peer, Pod, Policy, PortMatch, PortRule, Requirement, Rule, Selector, Service,
};
use netpold_core::probe::{Party, Probe};
use services::Of;

/// Cluster state as plain lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oracle {
    /// Every Namespace.
    pub namespaces: Vec<Namespace>,
    /// Every Node.
    pub nodes: Vec<Node>,
    /// Every Pod.
    pub pods: Vec<Pod>,
    /// Every NetworkPolicy.
    pub policies: Vec<Policy>,
    /// Every ClusterNetworkPolicy.
    pub cluster_policies: Vec<ClusterPolicy>,
    /// Every Service.
    pub services: Vec<Service>,
    /// Every EndpointSlice.
    pub slices: Vec<EndpointSlice>,
}

/// The answer to a [`Probe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OracleVerdict {
    /// The sender's egress and the receiver's ingress; a side that is no pod under policy allows.
    Judged {
        /// The sender's egress.
        egress: bool,
        /// The receiver's ingress.
        ingress: bool,
    },
    /// The traffic is translated; allowed if one backend is in both directions.
    Translated {
        /// One is.
        allowed: bool,
    },
    /// It depends on which of the pods' addresses are used.
    DependsOnAddress,
    /// A pod that does not exist, is finished or has no address; no pod at all; or no address
    /// family in common.
    CannotTell,
}

impl OracleVerdict {
    /// Both directions allow; `None` if that cannot be told.
    #[must_use]
    pub fn allowed(self) -> Option<bool> {
        match self {
            Self::Judged { egress, ingress } => Some(egress && ingress),
            Self::Translated { allowed } => Some(allowed),
            Self::DependsOnAddress | Self::CannotTell => None,
        }
    }
}

/// One side of a probe: its pod, if it is one, and the addresses it may use.
struct Side<'a> {
    pod: Option<&'a Pod>,
    addresses: Vec<IpAddr>,
}

impl FromIterator<Change> for Oracle {
    fn from_iter<I: IntoIterator<Item = Change>>(changes: I) -> Self {
        let mut oracle = Self::default();
        for change in changes {
            oracle.ingest(change);
        }
        oracle
    }
}

impl Oracle {
    /// Take in a change. Interfaces do not matter to what policy says.
    pub fn ingest(&mut self, change: Change) {
        match change {
            Change::Namespace(new) => {
                self.namespaces.retain(|n| n.name != new.name);
                self.namespaces.push(new);
            }
            Change::NamespaceGone(name) => self.namespaces.retain(|n| n.name != name),
            Change::Node(new) => {
                self.nodes.retain(|n| n.name != new.name);
                self.nodes.push(new);
            }
            Change::NodeGone(name) => self.nodes.retain(|n| n.name != name),
            Change::Pod(new) => {
                self.pods.retain(|p| p.key != new.key);
                self.pods.push(new);
            }
            Change::PodGone(key) => self.pods.retain(|p| p.key != key),
            Change::Policy(new) => {
                self.policies.retain(|p| p.key != new.key);
                self.policies.push(new);
            }
            Change::PolicyGone(key) => self.policies.retain(|p| p.key != key),
            Change::Service(new) => {
                self.services.retain(|s| s.key != new.key);
                self.services.push(new);
            }
            Change::ServiceGone(key) => self.services.retain(|s| s.key != key),
            Change::EndpointSlice(new) => {
                self.slices.retain(|s| s.key != new.key);
                self.slices.push(new);
            }
            Change::EndpointSliceGone(key) => self.slices.retain(|s| s.key != key),
            Change::ClusterPolicy(new) => {
                self.cluster_policies.retain(|p| p.name != new.name);
                self.cluster_policies.push(new);
            }
            Change::ClusterPolicyGone(name) => self.cluster_policies.retain(|p| p.name != name),
            Change::Interface(_) | Change::InterfaceGone(_) | Change::OwnAddresses(_) => {}
        }
    }

    /// What the pod's veth must answer: whether policy lets `pod` exchange this with `remote`, in one
    /// direction. `port` is the destination port: the pod's own for ingress, the remote's for
    /// egress. What a Service leads to passes if some backend may be reached, and does not if a tier
    /// denies each of them, or the pod to reach itself where it is one; the own node's addresses are
    /// only what they are.
    #[must_use]
    pub fn judge(
        &self,
        pod: &Pod,
        direction: Direction,
        remote: IpAddr,
        protocol: u8,
        port: u16,
    ) -> bool {
        if direction == Direction::Ingress {
            return self.judge_translated(pod, direction, remote, protocol, port);
        }
        let untranslated = self.untranslated(pod, remote, protocol, port);
        if self.is_own_node(pod, remote) {
            return untranslated.allowed;
        }
        let mut backends = Vec::new();
        for (remote, port) in self.backends_of(Of::Service, remote, protocol, port, false) {
            let itself = pod.addresses.contains(&remote);
            let decide =
                |direction| self.decide(Seen { pod, direction, remote, protocol, port, itself });
            if itself && Direction::BOTH.into_iter().any(|way| decide(way).denied_by_tier()) {
                return false;
            }
            backends.push(decide(direction));
        }
        let denied = !backends.is_empty() && backends.iter().all(Decision::denied_by_tier);
        let some = backends.iter().any(Decision::allowed);
        !denied && !untranslated.denied && (untranslated.allowed || some)
    }

    /// Whether policy lets `pod` exchange this with `remote`, in one direction, `remote` being who
    /// it is in the end: a packet that was translated already.
    ///
    /// Ingress from the own node is not decided here: there it matters who made the packet, not
    /// its address; see [`Self::verdict`].
    #[must_use]
    pub fn judge_translated(
        &self,
        pod: &Pod,
        direction: Direction,
        remote: IpAddr,
        protocol: u8,
        port: u16,
    ) -> bool {
        pod.addresses.contains(&remote)
            || self.decide(Seen { pod, direction, remote, protocol, port, itself: false }).allowed()
    }

    /// Whether the NetworkPolicies that isolate the pod allow this; `None` if none does. Those on trial do
    /// not.
    fn network_policies_allow(&self, seen: Seen<'_>) -> Option<bool> {
        let Seen { pod, direction, remote, protocol, port, .. } = seen;
        let own_node = direction == Direction::Egress && self.is_own_node(pod, remote);
        let mut isolated = false;
        for policy in &self.policies {
            if policy.key.namespace != pod.key.namespace
                || !selects(&policy.pod_selector, &pod.labels)
                || policy.enforcement == Enforcement::Audit
            {
                continue;
            }
            let rules = match direction {
                Direction::Ingress => &policy.ingress,
                Direction::Egress => &policy.egress,
            };
            let Some(rules) = rules else { continue };
            isolated = true;
            for rule in rules {
                let port_pod = match direction {
                    Direction::Ingress => Some(pod),
                    Direction::Egress => self.owner(seen),
                };
                if self.peers_match(Some(policy), rule, remote, self.owner(seen))
                    && ports_match(rule, port_pod, protocol, port)
                {
                    return Some(true);
                }
            }
        }
        isolated.then_some(own_node)
    }

    /// The answer to a probe, over every pair of addresses that the two sides could use.
    #[must_use]
    pub fn verdict(&self, probe: &Probe) -> OracleVerdict {
        let (Some(from), Some(to)) = (self.side(&probe.from), self.side(&probe.to)) else {
            return OracleVerdict::CannotTell;
        };
        let leads_to_pod = to.addresses.iter().any(|address| {
            let backends = self.backends(*address, probe.protocol.0, probe.port, true);
            backends.iter().any(|(backend, _)| self.pod_at(*backend).is_some())
        });
        if from.pod.is_none() && to.pod.is_none() && !leads_to_pod {
            return OracleVerdict::CannotTell;
        }
        let mut answer = OracleVerdict::CannotTell;
        for &source in &from.addresses {
            for &destination in &to.addresses {
                if source.is_ipv4() != destination.is_ipv4() {
                    continue;
                }
                let this = self.judge_pair(&from, source, &to, destination, probe);
                if answer != OracleVerdict::CannotTell && answer.allowed() != this.allowed() {
                    return OracleVerdict::DependsOnAddress;
                }
                if answer == OracleVerdict::CannotTell {
                    answer = this;
                }
            }
        }
        answer
    }

    fn judge_pair(
        &self,
        from: &Side<'_>,
        source: IpAddr,
        to: &Side<'_>,
        destination: IpAddr,
        probe: &Probe,
    ) -> OracleVerdict {
        let (protocol, port) = (probe.protocol.0, probe.port);
        let itself = from.pod.is_some_and(|a| to.pod.is_some_and(|b| a.key == b.key));
        let of_service = self.is_port(Of::Service, destination, protocol, port);
        if !itself && (of_service || self.is_port(Of::Node, destination, protocol, port)) {
            let of = if of_service { Of::Service } else { Of::Node };
            let sends = from
                .pod
                .is_none_or(|pod| self.judge(pod, Direction::Egress, destination, protocol, port));
            // Another node chooses: whichever it is, the sender must be allowed it, as it leaves.
            let elsewhere = |pod: &Pod| !of_service && !self.is_own_node(pod, destination);
            let elsewhere = from.pod.is_some_and(elsewhere);
            let backends = self.backends_of(of, destination, protocol, port, true);
            let reached = backends.into_iter().any(|(backend, port)| {
                let pod = self.pod_at(backend);
                let (egress, ingress) =
                    self.judge_both(from.pod, source, pod, backend, protocol, port);
                ingress && (egress || elsewhere)
            });
            return OracleVerdict::Translated { allowed: sends && reached };
        }
        let (egress, ingress) =
            self.judge_both(from.pod, source, to.pod, destination, protocol, port);
        OracleVerdict::Judged { egress, ingress }
    }

    /// The sender's egress and the receiver's ingress.
    fn judge_both(
        &self,
        from: Option<&Pod>,
        source: IpAddr,
        to: Option<&Pod>,
        destination: IpAddr,
        protocol: u8,
        port: u16,
    ) -> (bool, bool) {
        if let (Some(from), Some(to)) = (from, to)
            && from.key == to.key
        {
            return (true, true);
        }
        let egress = from.is_none_or(|pod| {
            self.judge_translated(pod, Direction::Egress, destination, protocol, port)
        });
        let ingress = to.is_none_or(|pod| {
            // A sender that is no ordinary pod and has an address of the node is the node.
            let from_node = from.is_none_or(|p| p.host_network) && self.is_own_node(pod, source);
            from_node || self.judge_translated(pod, Direction::Ingress, source, protocol, port)
        });
        (egress, ingress)
    }

    fn side(&self, party: &Party) -> Option<Side<'_>> {
        match party {
            Party::Address(address) => {
                Some(Side { pod: self.pod_at(*address), addresses: vec![*address] })
            }
            Party::Service(key) => {
                let service = self.services.iter().find(|service| service.key == *key)?;
                let addresses = service.addresses.clone();
                (!addresses.is_empty() && !service.unserved)
                    .then_some(Side { pod: None, addresses })
            }
            Party::Pod(key) => {
                let pod = self.pods.iter().find(|pod| pod.key == *key)?;
                if pod.finished {
                    return None;
                }
                Some(Side { pod: Some(pod), addresses: pod.addresses.clone() })
            }
        }
    }

    /// The pod that an address belongs to: not a hostNetwork pod (that is the node), not a finished
    /// one. Of several that claim it the one that is not terminating, then the younger, then the
    /// one with the greater key.
    #[must_use]
    pub fn pod_at(&self, address: IpAddr) -> Option<&Pod> {
        let mut best: Option<&Pod> = None;
        for pod in &self.pods {
            if pod.host_network || pod.finished || !pod.addresses.contains(&address) {
                continue;
            }
            let better = match best {
                None => true,
                Some(best) if best.terminating != pod.terminating => best.terminating,
                Some(best) if best.created != pod.created => best.created < pod.created,
                Some(best) => best.key < pod.key,
            };
            if better {
                best = Some(pod);
            }
        }
        best
    }

    /// Whether an address is one of the pod's own node: of the Node object, or of a hostNetwork pod
    /// there.
    fn is_own_node(&self, pod: &Pod, address: IpAddr) -> bool {
        let on_node = self
            .nodes
            .iter()
            .any(|node| node.name == pod.node && node.addresses.contains(&address));
        let of_host_pod = self.pods.iter().any(|other| {
            other.host_network
                && !other.finished
                && other.node == pod.node
                && other.addresses.contains(&address)
        });
        !pod.node.is_empty() && (on_node || of_host_pod)
    }

    /// `from`, `to`: "If this field is empty or missing, this rule matches all"; else one item must
    /// match. `policy`: the NetworkPolicy whose namespace is meant where none is named; `owner`: the pod that
    /// has the address.
    fn peers_match(
        &self,
        policy: Option<&Policy>,
        rule: &Rule,
        remote: IpAddr,
        owner: Option<&Pod>,
    ) -> bool {
        match &rule.peers {
            None => true,
            Some(peers) => peers.iter().any(|peer| self.peer_matches(policy, peer, remote, owner)),
        }
    }

    fn peer_matches(
        &self,
        policy: Option<&Policy>,
        peer: &Peer,
        remote: IpAddr,
        owner: Option<&Pod>,
    ) -> bool {
        match peer {
            Peer::Block(block) => block_holds(block, remote),
            Peer::Nodes(nodes) => self
                .nodes
                .iter()
                .any(|node| node.addresses.contains(&remote) && selects(nodes, &node.labels)),
            Peer::Pods { namespaces, pods } => match owner {
                None => false,
                Some(pod) => {
                    selects(pods, &pod.labels)
                        && match namespaces {
                            None => policy.is_some_and(|p| p.key.namespace == pod.key.namespace),
                            Some(selector) => self.selects_namespace(selector, pod),
                        }
                }
            },
        }
    }

    /// A namespace that is not known (yet) has the one label that the API server gives to all.
    fn selects_namespace(&self, selector: &Selector, pod: &Pod) -> bool {
        let name = &pod.key.namespace;
        match self.namespaces.iter().find(|namespace| namespace.name == *name) {
            Some(namespace) => selects(selector, &namespace.labels),
            None => {
                let label = ("kubernetes.io/metadata.name".to_owned(), name.clone());
                selects(selector, &Labels::from_iter([label]))
            }
        }
    }
}

/// A LabelSelector: "The requirements are ANDed"; an empty one matches everything.
fn selects(selector: &Selector, labels: &Labels) -> bool {
    for requirement in &selector.requirements {
        let holds = match requirement {
            Requirement::In(key, values) => {
                labels.iter().any(|(k, v)| k == key && values.iter().any(|value| value == v))
            }
            Requirement::NotIn(key, values) => {
                labels.iter().all(|(k, v)| k != key || values.iter().all(|value| value != v))
            }
            Requirement::Exists(key) => labels.iter().any(|(k, _)| k == key),
            Requirement::DoesNotExist(key) => labels.iter().all(|(k, _)| k != key),
        };
        if !holds {
            return false;
        }
    }
    true
}

/// In the block's `cidr` and in none of its own `except`.
fn block_holds(block: &IpBlock, address: IpAddr) -> bool {
    if !prefix_holds(&block.cidr, address) {
        return false;
    }
    for except in &block.except {
        if prefix_holds(except, address) {
            return false;
        }
    }
    true
}

/// Bit by bit, from the most significant one.
fn prefix_holds(prefix: &IpNet, address: IpAddr) -> bool {
    let (network, address) = match (prefix.addr(), address) {
        (IpAddr::V4(n), IpAddr::V4(a)) => {
            (u128::from(n.to_bits()) << 96, u128::from(a.to_bits()) << 96)
        }
        (IpAddr::V6(n), IpAddr::V6(a)) => (n.to_bits(), a.to_bits()),
        _ => return false,
    };
    for bit in 0..prefix.prefix_len() {
        let mask = 1 << (127 - bit);
        if network & mask != address & mask {
            return false;
        }
    }
    true
}

/// `ports`: "If this field is empty or missing, this rule matches all ports" and then every
/// protocol; else one item must match.
fn ports_match(rule: &Rule, pod: Option<&Pod>, protocol: u8, port: u16) -> bool {
    match &rule.ports {
        None => true,
        Some(items) => items.iter().any(|item| port_matches(item, pod, protocol, port)),
    }
}

/// `pod` is the pod that receives: a named port is its container port of that name and protocol.
fn port_matches(item: &PortRule, pod: Option<&Pod>, protocol: u8, port: u16) -> bool {
    if item.protocol.number() != protocol {
        return false;
    }
    match &item.port {
        PortMatch::Any => true,
        PortMatch::Range(first, last) => *first <= port && port <= *last,
        PortMatch::Named(name) => pod.is_some_and(|pod| {
            pod.ports.iter().any(|container_port| {
                container_port.name == *name
                    && container_port.protocol == item.protocol
                    && container_port.port == port
            })
        }),
    }
}
