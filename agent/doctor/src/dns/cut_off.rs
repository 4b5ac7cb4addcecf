//! Check for name servers whose egress is closed to the API server, and to other name servers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netpold_core::model::{
    Action, ClusterPolicy, Direction, Peer, Pod, PortMatch, PortRule, Protocol, Rule,
};
use netpold_core::probe::IpProtocol;

use super::server::Server;
use crate::blocks::has_no_address;
use crate::callers::endpoints;
use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, NamedPolicy, PodGroup, pods_text, some_pods_text};

const CUT_OFF: Check = Check {
    name: "dns-server-cut-off",
    severity: Severity::Warning,
    problem: "the cluster's DNS server does not reach the API server: it learns of no Service, and its pods do not become ready",
    fix: "add egress rules for the name server's pods: one with TCP and the port of the API server's endpoints (`kubectl get \
          endpoints kubernetes`), one with UDP and TCP 53 for the servers that it forwards to, both without `to` or with \
          ipBlocks",
};
/// Fix of [`CUT_OFF`] where a ClusterNetworkPolicy denies it: rules of NetworkPolicies are not evaluated then.
const ACCEPT_FIRST: &str = "put a rule with action Accept for TCP and the port of the API server's endpoints (`kubectl get endpoints kubernetes`) \
                            before the rule that denies it, by its place or its policy's priority";
const NO_FORWARDING: Check = Check {
    name: "dns-server-cannot-forward",
    severity: Severity::Info,
    problem: "policies allow the cluster's DNS server no egress to port 53: it answers no questions about names outside of the \
              cluster, except by a server on its own node",
    fix: "none, if pods need no such names; otherwise add an egress rule for the name server's pods with UDP and TCP 53, without \
          `to` or with ipBlocks of the servers that it forwards to",
};
/// Ports of DNS, and of DNS over TLS.
const PORT: u16 = 53;
const TLS_PORT: u16 = 853;

/// Checks the egress of the name server's own pods. A server that is only assumed to be the cluster's may need no API
/// server.
pub(super) fn examine(objects: &GroupedObjects<'_>, server: &Server<'_>, found: &mut Findings) {
    if server.is_guess {
        return;
    }
    for group in objects.groups.iter().filter(|group| server.is(group)) {
        let isolating = objects.isolating(group, Direction::Egress);
        let rules: Vec<&Rule> = isolating.iter().flat_map(|(_, rules)| rules.iter()).collect();
        let fails = |pod: &&Pod| !reaches_api_server(objects, pod, &rules);
        let failing: Vec<&Pod> = group.by_node.iter().copied().filter(fails).collect();
        let pods = some_pods_text(&group.beside(&failing));
        if let Some(policy) = failing.iter().find_map(|pod| refusing(objects, pod)) {
            let named = NamedPolicy::cluster_policy(policy, objects.details);
            let place = named.at("spec.egress", &format!("{pods}: not to the API server"));
            found.add_with_fix(&CUT_OFF, ACCEPT_FIRST, place);
            continue;
        }
        if isolating.is_empty() {
            continue;
        }
        if failing.is_empty() {
            if !rules.iter().any(|rule| may_forward(rule)) && !accepts_some(objects, group) {
                let pods = pods_text(group);
                let text = |names: &str| format!("{pods} ({names})");
                let policies = isolating.iter().map(|(policy, _)| *policy);
                found.add(&NO_FORWARDING, objects.place_of(policies, "spec.egress", text));
            }
            continue;
        }
        let lacks = if rules.iter().any(|rule| may_be_upstream(rule)) {
            "not to the API server"
        } else {
            "neither to the API server nor to other name servers"
        };
        let text = |names: &str| format!("{pods}: {lacks} ({names})");
        let policies = isolating.iter().map(|(policy, _)| *policy);
        found.add(&CUT_OFF, objects.place_of(policies, "spec.egress", text));
    }
}

/// Returns the first ClusterNetworkPolicy that denies a pod the API server, if such policies deny every known endpoint.
fn refusing<'o>(objects: &'o GroupedObjects<'_>, pod: &Pod) -> Option<&'o ClusterPolicy> {
    let endpoints = endpoints(objects);
    let policies = endpoints.into_iter().map(|(address, port)| {
        objects.denying(&pod.key, Direction::Egress, address, (IpProtocol::TCP, port))
    });
    policies.collect::<Option<Vec<_>>>()?.first().copied()
}

/// Returns whether a pod of the name server reaches some endpoint of the API server; without known endpoints, whether a
/// rule may allow a node or another host.
fn reaches_api_server(objects: &GroupedObjects<'_>, pod: &Pod, rules: &[&Rule]) -> bool {
    let endpoints: BTreeSet<(IpAddr, u16)> = endpoints(objects);
    let may_send = |(address, port): &(IpAddr, u16)| {
        objects.cluster.is_node_of(pod, *address)
            || objects.may_send(pod, *address, IpProtocol::TCP, *port)
    };
    if !endpoints.is_empty() {
        return endpoints.iter().any(may_send);
    }
    objects.cluster.cluster_policies().next().is_some()
        || rules.iter().any(|rule| {
            let is_tcp = |port: &PortRule| port.protocol == Protocol::Tcp && !is_dns(port);
            rule.ports.as_ref().is_none_or(|ports| ports.iter().any(is_tcp)) && may_be_host(rule)
        })
}

/// Returns whether a rule may allow DNS to a server outside of the cluster.
fn may_be_upstream(rule: &Rule) -> bool {
    let has_port = |port: &PortRule| match port.port {
        PortMatch::Any => port.protocol != Protocol::Sctp,
        PortMatch::Range(first, last) => (first..=last).contains(&PORT),
        PortMatch::Named(_) => false,
    };
    rule.ports.as_ref().is_none_or(|ports| ports.iter().any(has_port)) && may_be_host(rule)
}

/// Returns whether a rule may allow DNS to any server.
fn may_forward(rule: &Rule) -> bool {
    let has_port = |port: &PortRule| match port.port {
        PortMatch::Any | PortMatch::Named(_) => true,
        PortMatch::Range(first, last) => {
            [PORT, TLS_PORT].iter().any(|it| (first..=last).contains(it))
        }
    };
    rule.ports.as_ref().is_none_or(|ports| ports.iter().any(has_port))
}

/// Returns whether a ClusterNetworkPolicy accepts some egress of a group.
fn accepts_some(objects: &GroupedObjects<'_>, group: &PodGroup<'_>) -> bool {
    objects.cluster.cluster_policies().any(|policy| {
        let mut rules = policy.egress.iter();
        group.is_subject(policy) && rules.any(|rule| rule.action == Action::Accept)
    })
}

fn is_dns(port: &PortRule) -> bool {
    port.port == PortMatch::Range(PORT, PORT)
}

fn may_be_host(rule: &Rule) -> bool {
    let is_host = |peer: &Peer| match peer {
        Peer::Block(block) => !has_no_address(block.cidr, Direction::Egress),
        Peer::Nodes(_) | Peer::Domain(_) => true,
        Peer::Pods { .. } => false,
    };
    rule.peers.as_ref().is_none_or(|peers| peers.iter().any(is_host))
}
