//! Names by which policies distinguish pods of other nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netpold_api::peer_slice::PeerVocabulary;
use netpold_core::model::{ClusterPolicy, Labels, Peer, Pod, Policy, PortMatch, Rule, Selector};

/// Maximum number of names of a vocabulary of all policies.
pub const MAX_NAMES: usize = 2_000;
/// Maximum number of names of a namespace in a vocabulary.
pub const NAMESPACE_NAMES: usize = 100;
/// Maximum number of named ports of a pod in a slice.
const MAX_PORTS: usize = 1_000;
/// Maximum number of addresses of a pod in a slice; the API server accepts two.
const MAX_ADDRESSES: usize = 16;

/// Name, with whether it is a port's.
pub type VocabularyName<'a> = (bool, &'a str);

/// Label keys and port names in policies. No verdict about a pod of another node depends on its other labels and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vocabulary {
    /// Label keys in pod selectors of peers.
    pub label_keys: BTreeSet<String>,
    /// Names of ports in egress rules; ports in ingress rules are those of the selected pod.
    pub port_names: BTreeSet<String>,
}

impl Vocabulary {
    /// Returns the names in a NetworkPolicy.
    #[must_use]
    pub fn of_policy(policy: &Policy) -> Self {
        let mut names = Self::default();
        policy.ingress.iter().flatten().for_each(|rule| names.add_peers(rule));
        for rule in policy.egress.iter().flatten() {
            names.add_peers(rule);
            names.add_ports(rule);
        }
        names
    }

    /// Returns the names in a ClusterNetworkPolicy.
    #[must_use]
    pub fn of_cluster_policy(policy: &ClusterPolicy) -> Self {
        let mut names = Self::default();
        policy.ingress.iter().for_each(|rule| names.add_peers(&rule.matches));
        for rule in &policy.egress {
            names.add_peers(&rule.matches);
            names.add_ports(&rule.matches);
        }
        names
    }

    /// Returns the names of a rule of either direction.
    #[must_use]
    pub(crate) fn of_rule(rule: &Rule) -> Self {
        let mut names = Self::default();
        names.add_peers(rule);
        names.add_ports(rule);
        names
    }

    /// Adds names as long as there are at most `limit`.
    pub fn add_within<'a>(
        &mut self,
        names: impl IntoIterator<Item = VocabularyName<'a>>,
        limit: usize,
    ) {
        for (is_port, name) in names {
            let is_full = self.len() >= limit;
            let known = if is_port { &mut self.port_names } else { &mut self.label_keys };
            if !is_full {
                known.insert(name.to_owned());
            }
        }
    }

    /// Returns the names that another vocabulary lacks.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let missing = |of: &BTreeSet<String>, other: &BTreeSet<String>| {
            of.difference(other).cloned().collect()
        };
        Self {
            label_keys: missing(&self.label_keys, &other.label_keys),
            port_names: missing(&self.port_names, &other.port_names),
        }
    }

    /// Returns the names, with whether each is a port's.
    pub fn all(&self) -> impl Iterator<Item = VocabularyName<'_>> {
        let ports = self.port_names.iter().map(|name| (true, name.as_str()));
        self.label_keys.iter().map(|key| (false, key.as_str())).chain(ports)
    }

    /// Returns the number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.label_keys.len() + self.port_names.len()
    }

    /// Whether there is no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the names of another vocabulary.
    pub fn extend(&mut self, other: Self) {
        self.label_keys.extend(other.label_keys);
        self.port_names.extend(other.port_names);
    }

    fn add_peers(&mut self, rule: &Rule) {
        for peer in rule.peers.iter().flatten() {
            if let Peer::Pods { pods, .. } = peer {
                self.add_selector(pods);
            }
        }
    }

    fn add_ports(&mut self, rule: &Rule) {
        for port in rule.ports.iter().flatten() {
            if let PortMatch::Named(name) = &port.port {
                self.port_names.insert(name.clone());
            }
        }
    }

    fn add_selector(&mut self, selector: &Selector) {
        let keys = selector.requirements.iter().map(|requirement| requirement.key().to_owned());
        self.label_keys.extend(keys);
    }

    /// Returns whether pods reduced to this vocabulary are judged rightly by policies with the other one.
    #[must_use]
    pub fn covers(&self, policies: &Self) -> bool {
        self.label_keys.is_superset(&policies.label_keys)
            && self.port_names.is_superset(&policies.port_names)
    }

    /// Returns a pod with the fields that verdicts on other nodes depend on; `None` for a finished one, and for one
    /// without addresses. Of a hostNetwork pod only the addresses count, as its node's. The node's name is empty, except for
    /// hostNetwork pods and pods with claims. Ports beyond the first thousand are left out; their names match as those of
    /// absent ports.
    #[must_use]
    pub fn reduce(&self, pod: &Pod) -> Option<Pod> {
        if pod.finished || !pod.all_addresses().any(is_possible) {
            return None;
        }
        let is_peer = !pod.host_network;
        let label = |(key, value): (&String, &String)| {
            let is_named = is_peer && self.label_keys.contains(key);
            is_named.then(|| (key.clone(), value.clone()))
        };
        // A reduced pod that is reduced again has the same ports as one that is reduced once.
        let ports = pod.ports.iter().take(MAX_PORTS);
        let ports = ports.filter(|port| is_peer && self.port_names.contains(&port.name));
        let addresses = pod.addresses.iter().copied().filter(|address| is_possible(*address));
        let second = pod.secondary.iter().map(|interface| {
            let mut interface = interface.clone();
            interface.addresses.retain(|address| is_possible(*address));
            interface
        });
        let second: Vec<_> = second.filter(|interface| !interface.addresses.is_empty()).collect();
        let has_node = pod.host_network || !second.is_empty();
        Some(Pod {
            key: pod.key.clone(),
            uid: pod.key.to_string(),
            labels: pod.labels.iter().filter_map(label).collect::<Labels>(),
            node: if has_node { pod.node.clone() } else { "".into() },
            addresses: addresses.take(MAX_ADDRESSES).collect(),
            host_network: pod.host_network,
            finished: false,
            terminating: pod.terminating,
            created: pod.created,
            ports: ports.cloned().collect(),
            foreign_sources: false,
            secondary: second,
            workload: None,
        })
    }
}

impl From<&PeerVocabulary> for Vocabulary {
    fn from(PeerVocabulary { label_keys, port_names, .. }: &PeerVocabulary) -> Self {
        Self { label_keys: label_keys.clone(), port_names: port_names.clone() }
    }
}

impl From<&Vocabulary> for PeerVocabulary {
    fn from(Vocabulary { label_keys, port_names }: &Vocabulary) -> Self {
        let (label_keys, port_names) = (label_keys.clone(), port_names.clone());
        Self { label_keys, port_names, ..Self::default() }
    }
}

/// Whether a pod can have an address. Authors of pods can claim any address.
pub(crate) fn is_possible(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(is_broadcast || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}
