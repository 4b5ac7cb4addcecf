//! Domain names of observed flows, and the ClusterNetworkPolicies that accept them.
//!
//! A NetworkPolicy has no domain names. An agent records the names of the rules that a pod had when it resolved them, so
//! a flow has a name only if some rule with a name matched.

use std::collections::BTreeMap;

use netpold_api::learn::{LearnedPeer, ObservedFlow};
use netpold_api::workload::Workload;
use netpold_core::labels::NAMESPACE_NAME;
use netpold_core::model::{
    Action, ClusterPolicy, ClusterRule, Direction, DomainName, Enforcement, NamespacedPods,
    Peer as ModelPeer, PolicyVersion, PortMatch, Requirement, Rule, Selector, Tier,
};
use serde_json::{Value, json};

use super::policy::{LearnedPolicy, Sightings};
use super::ports::LearnedPorts;

/// Priority of the first policy; the next ones follow, since policies of one tier need different ones.
const FIRST_PRIORITY: u16 = 900;
/// Number of priorities.
const PRIORITIES: usize = 100;

/// Returns the names of a flow to an address outside, without wildcards that match another of them; `None` if a rule
/// without names has to allow the flow.
pub(super) fn domain_names(flow: &ObservedFlow) -> Option<Vec<&DomainName>> {
    let is_outside =
        matches!(flow.peer, LearnedPeer::Address(_)) && flow.direction == Direction::Egress;
    let is_written = !flow.workload.labels.is_empty()
        && flow.protocol.transport().is_some()
        && flow.port != 0
        && !flow.names.is_empty();
    if !is_outside || !is_written {
        return None;
    }
    let is_wide =
        |name: &DomainName| flow.names.iter().any(|other| other != name && name.covers(other));
    Some(flow.names.iter().filter(|name| !is_wide(name)).collect())
}

/// Adds the domain names of a workload to its policy. `number`: index of the workload.
pub(super) fn add(
    policy: LearnedPolicy,
    names: BTreeMap<DomainName, (LearnedPorts, Sightings)>,
    number: usize,
) -> LearnedPolicy {
    if names.is_empty() {
        return policy;
    }
    let names: Vec<(DomainName, LearnedPorts, Sightings)> =
        names.into_iter().map(|(name, (ports, sightings))| (name, ports, sightings)).collect();
    let workload = &policy.workload;
    let namespace = Requirement::In(NAMESPACE_NAME.into(), vec![workload.namespace.clone()]);
    let subject = NamespacedPods {
        namespaces: Selector { requirements: vec![namespace] },
        pods: workload.selector(),
    };
    let rule = |(ports, names): (&LearnedPorts, Vec<&DomainName>)| ClusterRule {
        name: String::new(),
        action: Action::Accept,
        matches: Rule {
            peers: Some(names.into_iter().cloned().map(ModelPeer::Domain).collect()),
            ports: ports.rules(),
        },
    };
    let of_names = ClusterPolicy {
        name: format!("{}.{}", policy.policy.key.name, workload.namespace),
        tier: Tier::Admin,
        priority: FIRST_PRIORITY + (number % PRIORITIES) as u16,
        subject,
        ingress: Vec::new(),
        egress: by_ports(&names).into_iter().map(rule).collect(),
        problems: Vec::new(),
        version: PolicyVersion::default(),
        enforcement: Enforcement::Enforce,
        denial: None,
    };
    LearnedPolicy { of_names: Some(of_names), names, ..policy }
}

/// Groups the names by their ports: a rule for each.
fn by_ports(
    names: &[(DomainName, LearnedPorts, Sightings)],
) -> BTreeMap<&LearnedPorts, Vec<&DomainName>> {
    let mut rules: BTreeMap<&LearnedPorts, Vec<&DomainName>> = BTreeMap::new();
    for (name, ports, _) in names {
        rules.entry(ports).or_default().push(name);
    }
    rules
}

/// Returns the policy that accepts the names, as a manifest.
pub(super) fn object(learned: &LearnedPolicy) -> Option<Value> {
    let policy = learned.of_names.as_ref()?;
    let Workload { namespace, labels } = &learned.workload;
    let rules = by_ports(&learned.names).into_iter().map(|(ports, names)| {
        let ranges = ports.rules().into_iter().flatten().filter_map(|rule| {
            let number = match rule.port {
                PortMatch::Range(first, last) if first == last => {
                    json!({ "number": first })
                }
                PortMatch::Range(first, last) => {
                    json!({ "range": { "start": first, "end": last } })
                }
                PortMatch::Any | PortMatch::Named(_) => {
                    return None;
                }
            };
            let protocol = rule.protocol.to_string().to_lowercase();
            Some(json!({ protocol: { "destinationPort": number } }))
        });
        json!({
            "action": "Accept",
            "to": [{ "domainNames": names }],
            "protocols": ranges.collect::<Vec<_>>(),
        })
    });
    Some(json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": { "name": policy.name },
        "spec": {
            "tier": "Admin",
            "priority": policy.priority,
            "subject": {
                "pods": {
                    "namespaceSelector": { "matchLabels": { NAMESPACE_NAME: namespace } },
                    "podSelector": { "matchLabels": labels },
                },
            },
            "egress": rules.collect::<Vec<_>>(),
        },
    }))
}
