//! Remarks of an explanation beyond policies: rules without effect, blocks with host bits, ports of Services, owners of
//! node addresses, and policies of other APIs.

use std::collections::BTreeSet;

use ipnet::IpNet;
use netpold_client::details::complete::numbers;
use netpold_client::details::{Details, is_selected};
use netpold_core::cluster::Cluster;
use netpold_core::explain::{Cause, Explanation, Judgement, Verdict};
use netpold_core::probe::{IpProtocol, Party};

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
        host_bits(judgement, details);
        tunnel(judgement, cluster, details);
        namespaces.insert(judgement.pod.namespace.clone());
    }
    service_port(answer, cluster, details);
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

/// Adds the CIDRs of the isolating policies that are read as a wider block than the address that they name.
fn host_bits(judgement: &mut Judgement, details: &Details) {
    let direction = judgement.direction;
    let manifests =
        judgement.isolated_by.iter().filter_map(|key| Some((key, details.policies.get(key)?)));
    let wider = manifests.flat_map(|(key, manifest)| {
        manifest.cidrs().filter_map(move |(path, text)| {
            let net = text.parse::<IpNet>().ok().filter(|net| net.addr() != net.network())?;
            path.starts_with(&format!("spec.{direction}["))
                .then(|| format!("{text} in {key} is read as {}", net.trunc()))
        })
    });
    let wider: Vec<String> = wider.take(NAMED).collect();
    judgement.remarks.extend(wider);
}

/// Adds the Service whose port is asked for at one of its pods, if the pods receive it at another port.
fn service_port(answer: &mut Explanation, cluster: &Cluster, details: &Details) {
    let pod = match &answer.probe.to {
        Party::Pod(key) => cluster.pods().get(key),
        Party::Address(address) => cluster.owner(*address),
        Party::Service(_) => None,
    };
    let Some(pod) = pod.filter(|_| answer.verdict == Verdict::Deny && answer.services.is_empty())
    else {
        return;
    };
    let IpProtocol(protocol) = answer.probe.protocol;
    let asked = i32::from(answer.probe.port);
    let remark = details.services.iter().find_map(|(key, service)| {
        let is_selected = key.namespace == pod.key.namespace
            && is_selected(&pod.labels, &service.selector);
        let mut ports = service.ports.iter().filter(|it| it.protocol.number() == protocol);
        let port = ports.find(|port| is_selected && port.port == asked)?;
        let targets = numbers(&port.target, port.protocol, pod);
        let target = targets.first().filter(|_| !targets.iter().any(|it| i32::from(*it) == asked))?;
        Some(format!(
            "{asked} is the port of Service {key}, which leads to port {target} of its pods; --to svc/{key} asks for that"
        ))
    });
    let judgements = [&mut answer.ingress, &mut answer.egress].into_iter().flatten();
    let mut denying = judgements.filter(|it| it.verdict == Verdict::Deny);
    if let (Some(remark), Some(judgement)) = (remark, denying.next()) {
        judgement.remarks.push(remark);
    }
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

/// Extends the reason of an unknown verdict by details of the addresses.
fn unknown(answer: &Explanation, details: &Details, reason: String) -> String {
    let mut reason = reason;
    for party in [&answer.probe.from, &answer.probe.to] {
        match party {
            Party::Address(address) => {
                if let Some((node, what)) = details.node_of(*address) {
                    reason.push_str(&format!("; {address} is an address of node {node} ({what})"));
                }
            }
            Party::Service(_) | Party::Pod(_) => {}
        }
    }
    let named = details.tunnels.values().flatten().filter(|address| {
        let ends = [format!("{address} to "), format!("{address}: ")];
        matches!(answer.probe.from, Party::Pod(_)) && ends.iter().any(|it| reason.contains(it))
    });
    let titles = named.filter_map(|address| {
        let (node, what) = details.node_of(*address)?;
        Some(format!("; {address} is an address of node {node} ({what})"))
    });
    let titles: String = titles.collect();
    reason + &titles
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
