//! Conversion of NetworkPolicy to [`Policy`]: the meaning of absent fields, and the refused values.
//!
//! Parts that cannot be interpreted grant nothing and are reported; they never make a policy select fewer pods or
//! isolate fewer directions.

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use netpold_core::model::{
    Change, Direction, IpBlock, Peer, Policy, PolicyVersion, PortMatch, PortRule, Protocol, Rule,
    Selector,
};

use super::converted::Converted;
use super::metadata::{denial, enforcement, key};
use super::port::{is_port_name, protocol};
use super::problem::{FieldProblem, Unknown, limited};
use super::selector::selector;

/// Most items of `spec.policyTypes`.
const TYPES_MAX: usize = 2;

/// Converts a policy. `unknown` lists fields of its manifest that the API does not have; the parts that contain them
/// count as not interpretable.
///
/// # Errors
/// The policy has no name.
pub(super) fn network_policy(
    policy: &NetworkPolicy,
    unknown: &[Unknown],
) -> Result<Converted, FieldProblem> {
    let key = key(&policy.metadata)?;
    let problems = unknown.iter().map(|u| u.problem.clone()).collect();
    let mut reader = PolicyReader { unknown, problems };
    let default = NetworkPolicySpec::default();
    let spec = policy.spec.as_ref().unwrap_or(&default);
    let pod_selector = reader.pod_selector(spec.pod_selector.as_ref());
    let [ingress, egress] = reader.directions(spec);
    let ingress = ingress.then(|| reader.rules(Direction::Ingress, spec));
    let egress = egress.then(|| reader.rules(Direction::Egress, spec));
    let enforcement = enforcement(&policy.metadata, &mut reader.problems);
    let denial = denial(&policy.metadata, &mut reader.problems);
    let problems = limited(reader.problems);
    let version = PolicyVersion {
        uid: policy.metadata.uid.clone().unwrap_or_default(),
        generation: policy.metadata.generation.unwrap_or_default(),
    };
    let texts = problems.iter().map(ToString::to_string).collect();
    let policy = Policy {
        key,
        pod_selector,
        ingress,
        egress,
        problems: texts,
        version,
        enforcement,
        denial,
    };
    Ok(Converted { change: Change::Policy(policy), problems })
}

struct PolicyReader<'p> {
    unknown: &'p [Unknown],
    problems: Vec<FieldProblem>,
}

impl PolicyReader<'_> {
    fn problem(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.problems.push(FieldProblem::new(path, text));
    }

    /// Returns whether an unknown field is directly in the mapping at the path.
    fn unknown_in(&self, path: &str) -> bool {
        self.unknown.iter().any(|u| u.inside == path)
    }

    /// Returns whether an unknown field is in the mapping at the path, at any depth.
    fn unknown_below(&self, path: &str) -> bool {
        self.unknown.iter().any(|u| {
            u.problem.path.strip_prefix(path).is_some_and(|rest| rest.starts_with(['.', '[']))
        })
    }

    /// Reads the pod selector. An absent one, or one that cannot be interpreted, selects every pod of the namespace.
    fn pod_selector(&mut self, given: Option<&LabelSelector>) -> Selector {
        let path = "spec.podSelector";
        let understood = given.and_then(|s| selector(s, path, &mut self.problems));
        understood.filter(|_| !self.unknown_below(path)).unwrap_or_default()
    }

    /// Returns whether ingress and egress are isolated. `policyTypes` absent or empty: ingress always, egress if there
    /// are egress rules. An invalid item, or a third one, isolates both.
    fn directions(&mut self, spec: &NetworkPolicySpec) -> [bool; 2] {
        let types = spec.policy_types.as_deref().unwrap_or_default();
        let mut isolated = if types.is_empty() {
            [true, spec.egress.as_ref().is_some_and(|rules| !rules.is_empty())]
        } else {
            ["Ingress", "Egress"].map(|name| types.iter().any(|t| t == name))
        };
        for (index, name) in types.iter().enumerate() {
            if name != "Ingress" && name != "Egress" {
                let path = format!("spec.policyTypes[{index}]");
                self.problem(path, format!("`{name}` is not Ingress or Egress"));
                isolated = [true; 2];
            }
        }
        if types.len() > TYPES_MAX {
            let text = format!("has {} items; API servers take at most {TYPES_MAX}", types.len());
            self.problem("spec.policyTypes", text);
            isolated = [true; 2];
        }
        if self.unknown_in("spec") || self.unknown_in("") {
            isolated = [true; 2];
        }
        isolated
    }

    fn rules(&mut self, direction: Direction, spec: &NetworkPolicySpec) -> Vec<Rule> {
        let mut rules = Vec::new();
        match direction {
            Direction::Ingress => {
                for (index, rule) in spec.ingress.iter().flatten().enumerate() {
                    let path = format!("spec.ingress[{index}]");
                    rules.push(self.rule(
                        &path,
                        "from",
                        rule.from.as_deref(),
                        rule.ports.as_deref(),
                    ));
                }
            }
            Direction::Egress => {
                for (index, rule) in spec.egress.iter().flatten().enumerate() {
                    let path = format!("spec.egress[{index}]");
                    rules.push(self.rule(&path, "to", rule.to.as_deref(), rule.ports.as_deref()));
                }
            }
        }
        rules
    }

    /// Reads a rule. Absent or empty `from`, `to` and `ports` match everyone and everything. A list without any valid
    /// item stays as an empty list, which grants nothing.
    ///
    /// A rule that cannot be interpreted stays in the list too, so that rules keep their indices.
    fn rule(
        &mut self,
        path: &str,
        side: &str,
        peers: Option<&[NetworkPolicyPeer]>,
        ports: Option<&[NetworkPolicyPort]>,
    ) -> Rule {
        if self.unknown_in(path) {
            return Rule { peers: Some(Vec::new()), ports: Some(Vec::new()) };
        }
        let mut rule = Rule { peers: None, ports: None };
        if let Some(given) = peers.filter(|p| !p.is_empty()) {
            let peers = given.iter().enumerate();
            rule.peers = Some(
                peers.filter_map(|(n, p)| self.peer(&format!("{path}.{side}[{n}]"), p)).collect(),
            );
        }
        if let Some(given) = ports.filter(|p| !p.is_empty()) {
            let ports = given.iter().enumerate();
            rule.ports = Some(
                ports.filter_map(|(n, p)| self.port(&format!("{path}.ports[{n}]"), p)).collect(),
            );
        }
        rule
    }

    fn peer(&mut self, path: &str, peer: &NetworkPolicyPeer) -> Option<Peer> {
        if self.unknown_below(path) {
            return None;
        }
        let (pods, namespaces) = (&peer.pod_selector, &peer.namespace_selector);
        match &peer.ip_block {
            Some(_) if pods.is_some() || namespaces.is_some() => {
                self.problem(
                    path,
                    "ipBlock cannot be combined with podSelector or namespaceSelector",
                );
                None
            }
            Some(block) => self.block(&format!("{path}.ipBlock"), block).map(Peer::Block),
            None if pods.is_none() && namespaces.is_none() => {
                self.problem(path, "needs podSelector, namespaceSelector or ipBlock");
                None
            }
            None => {
                let mut read = |name: &str, given: &Option<LabelSelector>| {
                    given
                        .as_ref()
                        .map(|s| selector(s, &format!("{path}.{name}"), &mut self.problems))
                };
                let pods = read("podSelector", pods);
                let namespaces = read("namespaceSelector", namespaces);
                let namespaces = match namespaces {
                    Some(selector) => Some(selector?),
                    None => None,
                };
                Some(Peer::Pods { namespaces, pods: pods.unwrap_or(Some(Selector::default()))? })
            }
        }
    }

    fn block(&mut self, path: &str, block: &IPBlock) -> Option<IpBlock> {
        let cidr = self.cidr(&format!("{path}.cidr"), &block.cidr);
        let mut except = Vec::new();
        let mut whole = true;
        for (index, text) in block.except.iter().flatten().enumerate() {
            let path = format!("{path}.except[{index}]");
            let Some(net) = self.cidr(&path, text) else {
                whole = false;
                continue;
            };
            if cidr.is_some_and(|cidr| !cidr.contains(&net) || cidr == net) {
                self.problem(path, format!("{text} is not strictly within {}", block.cidr));
                whole = false;
            }
            except.push(net);
        }
        except.sort();
        except.dedup();
        cidr.filter(|_| whole).map(|cidr| IpBlock { cidr, except })
    }

    fn cidr(&mut self, path: &str, text: &str) -> Option<IpNet> {
        cidr(text).map_err(|reason| self.problem(path, reason)).ok()
    }

    fn port(&mut self, path: &str, port: &NetworkPolicyPort) -> Option<PortRule> {
        if self.unknown_below(path) {
            return None;
        }
        let protocol = self.protocol(path, port.protocol.as_deref());
        let port = self.port_match(path, port);
        Some(PortRule { protocol: protocol?, port: port? })
    }

    fn protocol(&mut self, path: &str, name: Option<&str>) -> Option<Protocol> {
        let known = protocol(name);
        if known.is_none() {
            let name = name.unwrap_or_default();
            self.problem(format!("{path}.protocol"), format!("`{name}` is not TCP, UDP or SCTP"));
        }
        known
    }

    fn port_match(&mut self, path: &str, port: &NetworkPolicyPort) -> Option<PortMatch> {
        let end_path = format!("{path}.endPort");
        match (&port.port, port.end_port) {
            (None, None) => Some(PortMatch::Any),
            (Some(IntOrString::Int(first)), None) => {
                let first = self.number(&format!("{path}.port"), *first)?;
                Some(PortMatch::Range(first, first))
            }
            (Some(IntOrString::Int(first)), Some(last)) => {
                let first = self.number(&format!("{path}.port"), *first);
                let last = self.number(&end_path, last);
                let (first, last) = (first?, last?);
                if last < first {
                    self.problem(end_path, format!("{last} is less than port {first}"));
                    return None;
                }
                Some(PortMatch::Range(first, last))
            }
            (Some(IntOrString::String(name)), None) => self.name(&format!("{path}.port"), name),
            (None, Some(_)) => {
                self.problem(end_path, "needs a port to begin at");
                None
            }
            (Some(IntOrString::String(_)), Some(_)) => {
                self.problem(end_path, "needs a port that is a number, not a name");
                None
            }
        }
    }

    fn number(&mut self, path: &str, number: i32) -> Option<u16> {
        let port = u16::try_from(number).ok().filter(|n| *n > 0);
        if port.is_none() {
            self.problem(path, format!("{number} is not a port, 1 to 65535"));
        }
        port
    }

    fn name(&mut self, path: &str, name: &str) -> Option<PortMatch> {
        if !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()) {
            self.problem(path, format!("\"{name}\" is text; write the number without quotes"));
            return None;
        }
        if !is_port_name(name) {
            self.problem(path, format!("`{name}` is not a port name"));
            return None;
        }
        Some(PortMatch::Named(name.to_owned()))
    }
}

/// Parses a CIDR and masks off its host bits; on failure returns the reason.
pub(super) fn cidr(text: &str) -> Result<IpNet, String> {
    match text.parse::<IpNet>() {
        Ok(IpNet::V6(net)) if net.addr().to_ipv4_mapped().is_some() => {
            Err(format!("{text} is IPv4-mapped IPv6; write it as IPv4"))
        }
        Ok(net) => Ok(net.trunc()),
        Err(_) => Err(format!("`{text}` is not a CIDR such as 10.0.0.0/8")),
    }
}
