//! Conditions that the nearest rule lacks, as text.

use std::net::IpAddr;

use crate::cluster::is_unaddressed;
use crate::explain::answer::Nearest;
use crate::explain::rule::{ResolvableNames, Traffic, contains_number};
use crate::explain::text;
use crate::first_names::first_names;
use crate::model::{
    DomainName, IpBlock, Labels, Peer, Policy, PortMatch, PortRule, Requirement, Rule, Selector,
};

impl Traffic<'_> {
    /// Describes the rule that comes nearest to the traffic.
    pub(super) fn nearest(&self, policy: &Policy, index: usize, rule: &Rule) -> Nearest {
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
        let all: Vec<IpAddr> = resolved.addresses(&self.pod.key, name).collect();
        if all.is_empty() {
            return format!("the pod has not resolved {name}, or its answers are past their time");
        }
        let shown = first_names(all.iter(), text::TOLD);
        format!("the pod resolved {name} to {shown}, not to {remote}")
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
            .clone()
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
            && same.clone().any(|port| contains_number(port, asked))
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
        match self.service_address(block) {
            Some(asked) => {
                format!("{lack}; {asked} is the Service's address, which is translated first")
            }
            None => lack,
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
