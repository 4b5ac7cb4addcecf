//! Pods whose policies let them send something, but ask no name server.

use std::net::IpAddr;

use netpold_core::explain::{Explainer, Verdict};
use netpold_core::model::{
    Direction, Key, Labels, Peer, PortMatch, PortRule, Protocol, Rule, Selector,
};
use netpold_core::probe::IpProtocol;

use super::finding::{Check, Findings, Severity};
use super::objects::{Group, Objects, pods_text};

const NO_DNS: Check = Check {
    name: "no-dns",
    severity: Severity::Warning,
    problem: "pods may send something, but their policies do not let them resolve names (UDP 53)",
    fix: "add an egress rule: - {to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: \
          kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{protocol: UDP, port: \
          53}, {protocol: TCP, port: 53}]}",
};
/// Where clusters have their name server.
const NAMESPACE: &str = "kube-system";
const SERVICE: &str = "kube-dns";
const LABEL: (&str, &str) = ("k8s-app", "kube-dns");
const PORT: u16 = 53;

/// Looks at the pods that some policy isolates for egress.
pub(super) fn examine(objects: &Objects<'_>, found: &mut Findings) {
    let servers = servers(objects);
    let explainer = Explainer::new(objects.cluster);
    for group in &objects.groups {
        let (rules, policies) = egress(objects, group);
        // What may send nothing at all asks nobody.
        if rules.is_empty() {
            continue;
        }
        let Some(pod) = group.pods.first() else { continue };
        let reaches = |server: &IpAddr| {
            let protocol = IpProtocol(Protocol::Udp.number());
            let judged = explainer.judge(&pod.key, Direction::Egress, *server, protocol, PORT);
            judged.is_none_or(|judgement| judgement.verdict == Verdict::Allow)
        };
        let resolves = match &servers[..] {
            [] => rules.iter().any(|rule| may_be_dns(rule)),
            servers => servers.iter().any(reaches),
        };
        if !resolves {
            found.add(&NO_DNS, format!("{}: {}", pods_text(group), policies.join(", ")));
        }
    }
}

/// The addresses of the cluster's name server: the Service's, and its pods'.
fn servers(objects: &Objects<'_>) -> Vec<IpAddr> {
    let service = objects.cluster.services().get(&Key::new(NAMESPACE, SERVICE));
    let service = service.into_iter().flat_map(|service| &service.addresses);
    let is_server = |labels: &Labels| labels.get(LABEL.0).is_some_and(|value| value == LABEL.1);
    let groups = objects.groups.iter();
    let groups = groups.filter(|group| group.namespace == NAMESPACE && is_server(group.labels));
    let pods = groups.flat_map(|group| &group.pods).flat_map(|pod| &pod.addresses);
    service.chain(pods).copied().collect()
}

/// The egress rules that a group's pods have, and the names of the policies that isolate them.
fn egress<'o>(objects: &'o Objects<'_>, group: &Group<'_>) -> (Vec<&'o Rule>, Vec<String>) {
    let (mut rules, mut policies) = (Vec::new(), Vec::new());
    for policy in objects.cluster.policies_in(group.namespace) {
        let is_subject = |selector: &Selector| selector.matches(group.labels);
        if let Some(egress) = &policy.egress
            && policy.enforcement == netpold_core::model::Enforcement::Enforce
            && is_subject(&policy.pod_selector)
        {
            rules.extend(egress);
            policies.push(format!("NetworkPolicy {}", policy.key));
        }
    }
    (rules, policies)
}

/// Whether a rule allows UDP 53 to anybody; a name may be that.
fn may_be_dns(rule: &Rule) -> bool {
    let covers = |port: &PortRule| {
        port.protocol == Protocol::Udp
            && match &port.port {
                PortMatch::Any | PortMatch::Named(_) => true,
                PortMatch::Range(first, last) => (*first..=*last).contains(&PORT),
            }
    };
    let ports = rule.ports.as_ref().is_none_or(|ports| ports.iter().any(covers));
    let is_somebody = |peers: &Vec<Peer>| !peers.is_empty();
    ports && rule.peers.as_ref().is_none_or(is_somebody)
}
