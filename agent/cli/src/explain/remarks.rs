//! Remarks of an explanation beyond policies: rules without effect, owners of node addresses, and policies of other
//! APIs.

use std::collections::BTreeSet;

use netpold_core::cluster::Cluster;
use netpold_core::explain::{Cause, Explanation, Judgement, Verdict};
use netpold_core::probe::Party;

use crate::doctor::Details;

/// Most policies named per judgement, or of other APIs.
const NAMED: usize = 5;

/// Adds the remarks to an answer. Returns the policies of other APIs that may concern its pods, one text each.
pub(super) fn add(answer: &mut Explanation, cluster: &Cluster, details: &Details) -> Vec<String> {
    let backends = answer.backends.iter_mut();
    let backends = backends.flat_map(|backend| [&mut backend.egress, &mut backend.ingress]);
    let all = [&mut answer.egress, &mut answer.ingress].into_iter().chain(backends);
    let mut namespaces = BTreeSet::new();
    for judgement in all.flatten() {
        void_rules(judgement, cluster, details);
        tunnel(judgement, cluster, details);
        namespaces.insert(judgement.pod.namespace.clone());
    }
    if answer.verdict == Verdict::Deny
        && let Some(rule) = unresolved(answer)
    {
        answer.reason = Some(format!("{rule}; --nodes asks the agent of its node"));
        answer.verdict = Verdict::Unknown;
    } else if answer.verdict == Verdict::Unknown {
        answer.reason = answer.reason.take().map(|reason| unknown(answer, details, reason));
    }
    foreign(details, |namespace| namespaces.contains(namespace))
}

/// Returns the first rule that would allow a denied egress if the pod has resolved a domain name to the address.
fn unresolved(answer: &Explanation) -> Option<&String> {
    let admits = answer.ingress.as_ref().is_none_or(|it| it.verdict == Verdict::Allow);
    let egress = answer.egress.as_ref().filter(|it| admits && it.verdict == Verdict::Deny)?;
    egress.tiers.unresolved.first()
}

/// Adds the rules of policies that select the pod, in a direction that their `policyTypes` lack.
fn void_rules(judgement: &mut Judgement, cluster: &Cluster, details: &Details) {
    let Some(pod) = cluster.pods().get(&judgement.pod) else { return };
    let direction = judgement.direction;
    let policies = cluster.policies_in(&judgement.pod.namespace);
    let void = policies.filter_map(|policy| {
        let manifest = details.policies.get(&policy.key)?;
        let is_about =
            policy.rules(direction).is_none() && policy.pod_selector.matches(&pod.labels);
        let rules = manifest.void_rules(direction).filter(|_| is_about && !pod.host_network)?;
        let source = manifest.source(&format!("spec.{direction}"));
        let source = source.map(|source| format!(" ({source})")).unwrap_or_default();
        let what = match rules {
            0 => format!("the empty {direction} of {} denies nothing", policy.key),
            _ => format!("the {direction} rules of {} have no effect", policy.key),
        };
        let name = match direction {
            netpold_core::model::Direction::Ingress => "Ingress",
            netpold_core::model::Direction::Egress => "Egress",
        };
        Some(format!("{what}: its policyTypes lacks {name}{source}"))
    });
    judgement.remarks.extend(void.take(NAMED));
}

/// Adds the node with a tunnel or bridge at the remote address.
fn tunnel(judgement: &mut Judgement, cluster: &Cluster, details: &Details) {
    let remote = judgement.remote;
    let is_listed = || {
        let mut nodes = cluster.nodes().values();
        nodes.any(|node| node.addresses.contains(&remote))
    };
    if judgement.remote_pod.is_some() || is_listed() {
        return;
    }
    let Some((node, what)) = details.node_of(remote) else { return };
    if judgement.cause == Cause::OwnNode {
        judgement.remarks.push(format!("{remote} is an address of node {node} ({what})"));
    } else {
        judgement.remarks.push(format!(
            "{remote} is an address of node {node} ({what}), which only an ipBlock can name: packets of its hostNetwork \
             pods, or that it masquerades, come from there"
        ));
    }
}

/// Extends the reason of an unknown verdict by details of the Service or the addresses.
fn unknown(answer: &Explanation, details: &Details, reason: String) -> String {
    let mut reason = reason;
    for party in [&answer.probe.from, &answer.probe.to] {
        match party {
            Party::Service(key) => {
                if let Some(name) = details.external_names.get(key) {
                    return format!(
                        "Service {key} is an ExternalName: it has no address and no pods; its name resolves to \
                         {name} by DNS; give an address of that name"
                    );
                }
            }
            Party::Address(address) => {
                if let Some((node, what)) = details.node_of(*address) {
                    reason.push_str(&format!("; {address} is an address of node {node} ({what})"));
                }
            }
            Party::Pod(_) => {}
        }
    }
    reason
}

/// Returns the policies of other APIs in some namespaces, and the cluster-scoped ones.
pub(super) fn foreign(details: &Details, is_here: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (kind, policies) in &details.foreign {
        let here = policies
            .objects
            .iter()
            .filter(|policy| policy.namespace.as_ref().is_none_or(|namespace| is_here(namespace)));
        found.extend(here.map(|policy| format!("{} {policy}", kind.name())));
    }
    found
}

/// Formats a note that these policies are not enforced.
pub(super) fn foreign_text(policies: &[String]) -> Option<String> {
    if policies.is_empty() {
        return None;
    }
    let named = policies.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = match policies.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("not enforced by netpold, and not part of this answer: {named}{more}"))
}
