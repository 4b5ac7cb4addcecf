//! Policies that select nothing, and peers that nothing is.

use netpold_core::model::{IpBlock, Peer, Requirement, Rule, Selector};

use super::finding::{Check, Findings, Severity};
use super::objects::{Objects, Place};

const SELECTS_NOTHING: Check = Check {
    name: "selects-nothing",
    severity: Severity::Warning,
    problem: "a policy selects no pod",
    fix: "compare its selector with the pods' labels: `kubectl get pods -n NAMESPACE --show-labels`; delete \
          the policy if its pods are gone",
};
const NO_POD_THERE: Check = Check {
    name: "namespace-without-pods",
    severity: Severity::Warning,
    problem: "a policy is in a namespace that has no pods of its own network",
    fix: "a NetworkPolicy counts only for pods of its own namespace: put it beside them with \
          metadata.namespace",
};
const PEER_WITHOUT_PODS: Check = Check {
    name: "peer-without-pods",
    severity: Severity::Warning,
    problem: "no pod is the peer of a rule: it allows nothing",
    fix: "compare the selectors with the labels: `kubectl get pods -A --show-labels`, `kubectl get ns \
          --show-labels`; pods of other namespaces need a namespaceSelector beside the podSelector",
};
const NO_NODE: Check = Check {
    name: "peer-without-nodes",
    severity: Severity::Warning,
    problem: "no node is the peer of a rule",
    fix: "compare the selector with the nodes' labels: `kubectl get nodes --show-labels`",
};
const NOTHING_LEFT: Check = Check {
    name: "except-covers-block",
    severity: Severity::Warning,
    problem: "the except blocks of an ipBlock leave nothing of it",
    fix: "narrow the except blocks, or delete the peer",
};

/// `selector`: none where the namespace has no pods at all.
pub(super) fn nothing_selected(policy: &str, selector: Option<&Selector>, found: &mut Findings) {
    match selector {
        Some(selector) => {
            found.add(&SELECTS_NOTHING, format!("{policy}: {}", text(selector)));
        }
        None => found.add(&NO_POD_THERE, policy),
    }
}

/// The peers of a rule that are nothing.
pub(super) fn peers(objects: &Objects<'_>, place: &Place<'_>, rule: &Rule, found: &mut Findings) {
    let side = match place.direction {
        netpold_core::model::Direction::Ingress => "from",
        netpold_core::model::Direction::Egress => "to",
    };
    for (number, peer) in rule.peers.iter().flatten().enumerate() {
        let at = |what: String| format!("{place}.{side}[{number}]: {what}");
        match peer {
            Peer::Pods { namespaces, pods } => {
                let is_peer = |group: &super::objects::Group<'_>| {
                    group.is_in(place.namespace, namespaces.as_ref(), pods)
                };
                if !objects.groups.iter().any(is_peer) {
                    let pods = text(pods);
                    found.add(
                        &PEER_WITHOUT_PODS,
                        at(match namespaces {
                            Some(selector) => format!("{pods} of namespaces {}", labels(selector)),
                            None => format!("{pods} of this namespace"),
                        }),
                    );
                }
            }
            Peer::Nodes(selector) => {
                let mut nodes = objects.cluster.nodes().values();
                if nodes.len() > 0 && !nodes.any(|node| selector.matches(&node.labels)) {
                    found.add(&NO_NODE, at(labels(selector)));
                }
            }
            Peer::Block(block) if is_empty(block) => {
                found.add(&NOTHING_LEFT, at(block.cidr.to_string()));
            }
            Peer::Block(_) => {}
        }
    }
}

fn is_empty(block: &IpBlock) -> bool {
    let excepts = ipnet::IpNet::aggregate(&block.except);
    excepts.iter().any(|except| except.contains(&block.cidr))
}

/// Pods by a selector, as `pods app=web,!canary`.
fn text(selector: &Selector) -> String {
    match &selector.requirements[..] {
        [] => "every pod".to_owned(),
        _ => format!("pods {}", labels(selector)),
    }
}

/// A selector as `app=web,!canary`.
fn labels(selector: &Selector) -> String {
    let requirement = |requirement: &Requirement| match requirement {
        Requirement::In(key, values) => format!("{key}={}", values.join("|")),
        Requirement::NotIn(key, values) => format!("{key}!={}", values.join("|")),
        Requirement::Exists(key) => key.clone(),
        Requirement::DoesNotExist(key) => format!("!{key}"),
    };
    let all: Vec<String> = selector.requirements.iter().map(requirement).collect();
    if all.is_empty() { "of any labels".to_owned() } else { all.join(",") }
}
