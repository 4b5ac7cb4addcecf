//! Names by which policies tell pods apart.

use std::collections::BTreeSet;

use netpold_core::model::{ClusterPolicy, Labels, Peer, Pod, Policy, PortMatch, Rule, Selector};
use serde::{Deserialize, Serialize};

/// Label keys and port names in policies. No verdict about another pod depends on its other labels and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Vocabulary {
    /// Label keys in pod selectors, sorted.
    pub label_keys: BTreeSet<String>,
    /// Names in ports of rules, sorted.
    pub port_names: BTreeSet<String>,
}

impl Vocabulary {
    /// Adds the names in a NetworkPolicy.
    pub fn add_policy(&mut self, policy: &Policy) {
        self.add_selector(&policy.pod_selector);
        let rules = policy.ingress.iter().chain(&policy.egress).flatten();
        rules.for_each(|rule| self.add_rule(rule));
    }

    /// Adds the names in a ClusterNetworkPolicy.
    pub fn add_cluster_policy(&mut self, policy: &ClusterPolicy) {
        self.add_selector(&policy.subject.pods);
        let rules = policy.ingress.iter().chain(&policy.egress);
        rules.for_each(|rule| self.add_rule(&rule.matches));
    }

    fn add_rule(&mut self, rule: &Rule) {
        for peer in rule.peers.iter().flatten() {
            if let Peer::Pods { pods, .. } = peer {
                self.add_selector(pods);
            }
        }
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
    /// without addresses. Of a hostNetwork pod only the addresses count, as its node's.
    #[must_use]
    pub fn reduce(&self, pod: &Pod) -> Option<Pod> {
        if pod.finished || pod.all_addresses().next().is_none() {
            return None;
        }
        let is_peer = !pod.host_network;
        let label = |(key, value): (&String, &String)| {
            let is_named = is_peer && self.label_keys.contains(key);
            is_named.then(|| (key.clone(), value.clone()))
        };
        let ports = pod.ports.iter();
        let ports = ports.filter(|port| is_peer && self.port_names.contains(&port.name));
        Some(Pod {
            key: pod.key.clone(),
            uid: pod.key.to_string(),
            labels: pod.labels.iter().filter_map(label).collect::<Labels>(),
            node: pod.node.clone(),
            addresses: pod.addresses.clone(),
            host_network: pod.host_network,
            finished: false,
            terminating: pod.terminating,
            created: pod.created,
            ports: ports.cloned().collect(),
            foreign_sources: false,
            second: pod.second.clone(),
            workload: None,
        })
    }
}
