//! Peers on the host's network: whether blocks of the subject's policies allow their addresses.

use netpold_core::model::{
    Enforcement, Labels, Peer, Pod, PortMatch, PortRule, Protocol, Rule, Selector,
};

use crate::objects::{GroupedObjects, PodGroup, RulePlace};

/// Namespace of static pods, and of daemons of nodes that open no connection to pods.
pub(crate) const SYSTEM: &str = "kube-system";
/// Ports of ingress controllers.
const WEB: [(Protocol, u16); 2] = [(Protocol::Tcp, 80), (Protocol::Tcp, 443)];

/// Returns the pods on the host's network that a selector of labels, or of namespaces by labels, matches. If every pod of
/// `kube-system` is selected, only those with a port of ingress controllers count. None for a selector of every pod of the
/// policy's own namespace or of every namespace.
pub(crate) fn beside_pods<'o>(
    objects: &'o GroupedObjects<'_>,
    own: Option<&str>,
    namespaces: Option<&Selector>,
    pods: &Selector,
) -> Vec<&'o Pod> {
    let is_every = pods.requirements.is_empty();
    if is_every && namespaces.is_none_or(|namespaces| namespaces.requirements.is_empty()) {
        return Vec::new();
    }
    let may_send = |pod: &Pod| {
        let has_port =
            || objects.pod(pod).is_some_and(|it| WEB.iter().any(|at| it.ports.contains(at)));
        !is_every || pod.key.namespace != SYSTEM || has_port()
    };
    let cluster = objects.cluster;
    let is_there = |namespace: &str| match namespaces {
        Some(selector) => selector.matches(&cluster.namespace_labels(namespace)),
        None => own == Some(namespace),
    };
    let has_labels = |labels: &Labels| pods.matches(labels);
    let all = cluster.pods().values().map(|pod| &**pod);
    let hosts = all.filter(|pod| pod.host_network && !pod.finished && !pod.addresses.is_empty());
    let hosts = hosts.filter(|pod| has_labels(&pod.labels) && is_there(&pod.key.namespace));
    hosts.filter(|pod| may_send(pod)).collect()
}

/// Returns whether blocks allow every address of pods on the host's network at the ports of a rule: blocks of the rule,
/// of the same policy, or, for a NetworkPolicy, of another policy of the same pods. Then nothing rests on the labels.
pub(crate) fn are_in_blocks(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&PodGroup<'_>],
    hosts: &[&Pod],
) -> bool {
    let is_within = |rules: &[&Rule]| {
        let mut addresses = hosts.iter().flat_map(|pod| &pod.addresses).peekable();
        let is_in_block = |address| {
            let mut peers = rules.iter().flat_map(|rule| rule.peers.iter().flatten());
            peers.any(|peer| matches!(peer, Peer::Block(block) if block.contains(address)))
        };
        addresses.peek().is_some() && addresses.all(|address| is_in_block(*address))
    };
    if is_within(&[rule]) {
        return true;
    }
    let is_allowed_at = |group: &&PodGroup<'_>| {
        let policies = objects.cluster.policies_in(group.namespace).filter(|policy| {
            let is_effective =
                policy.enforcement == Enforcement::Enforce || place.policy.is_policy(policy);
            is_effective && policy.pod_selector.matches(group.labels)
        });
        let rules = policies.flat_map(|policy| policy.rules(place.direction).unwrap_or_default());
        let rules: Vec<&Rule> = rules.filter(|other| has_ports_of(other, rule)).collect();
        is_within(&rules)
    };
    place.policy.namespace().is_some() && !subject.is_empty() && subject.iter().all(is_allowed_at)
}

/// Returns whether a rule allows every port of another one.
pub(crate) fn has_ports_of(rule: &Rule, other: &Rule) -> bool {
    let Some(ports) = &rule.ports else { return true };
    let has = |wanted: &PortRule| ports.iter().any(|port| contains(port, wanted));
    other.ports.as_ref().is_some_and(|wanted| wanted.iter().all(has))
}

fn contains(port: &PortRule, other: &PortRule) -> bool {
    port.protocol == other.protocol
        && match (&port.port, &other.port) {
            (PortMatch::Any, _) => true,
            (PortMatch::Range(first, last), PortMatch::Range(from, to)) => {
                first <= from && to <= last
            }
            (PortMatch::Named(name), PortMatch::Named(other)) => name == other,
            (PortMatch::Range(..) | PortMatch::Named(_), _) => false,
        }
}
