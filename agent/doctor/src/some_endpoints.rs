//! Check for rules with the addresses of some endpoints of a Service without pods, such as the API server's.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use netpold_core::model::{Action, Direction, Peer, Pod, PortMatch, PortRule, Rule};
use netpold_core::probe::IpProtocol;

use crate::backend_index::PortBackends;
use crate::finding::{Check, Findings, Severity};
use crate::objects::{
    GroupedObjects, PodGroup, RulePlace, backends_elsewhere, has_family, is_allowed, some_pods_text,
};
use crate::service_ports::{NARROW, has_no_token, is_of_api_server};
use netpold_core::first_names::first_names;

const SOME: Check = Check {
    name: "endpoints-of-some",
    severity: Severity::Warning,
    problem: "a rule allows only some of the endpoints of a Service: connections that the Service leads to the others are \
              denied",
    fix: "name every endpoint, with its port: `kubectl get endpointslices`; those of the API server change with its nodes",
};

/// Most endpoints named at one place.
const NAMED: usize = 3;

/// Compares the narrow blocks of an egress rule with the endpoints of Services.
pub(crate) fn examine(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&PodGroup<'_>],
    found: &mut Findings,
) {
    let (Some(ports), Some(peers)) = (&rule.ports, &rule.peers) else { return };
    if place.direction == Direction::Ingress || place.action != Action::Accept {
        return;
    }
    let is_narrow = |peer: &Peer| {
        matches!(peer, Peer::Block(block)
            if block.cidr.prefix_len() >= NARROW[usize::from(block.cidr.addr().is_ipv6())])
    };
    if !peers.iter().any(is_narrow) {
        return;
    }
    let mut seen = BTreeSet::new();
    for led in objects.leads.all() {
        let is_pod = |(address, _): &(IpAddr, u16)| objects.cluster.owner(*address).is_some();
        let needs_none = is_of_api_server(&led.service.key)
            && subject.iter().all(|group| has_no_token(objects, group));
        if led.backends.len() < 2 || led.backends.iter().any(is_pod) || needs_none {
            continue;
        }
        let is_named = |peer: &Peer| led.backends.iter().any(|it| is_meant(led, ports, peer, *it));
        let Some(number) = peers.iter().position(is_named) else { continue };
        if let Some(what) = denied(objects, led, subject)
            && seen.insert(&led.service.key)
        {
            let what = format!("Service {}: {what}", led.service.key);
            found.add(&SOME, place.at(&place.peer(number), &what));
        }
    }
}

/// Returns whether a peer is a narrow block with an endpoint, and the rule has the endpoint's port.
fn is_meant(
    led: &PortBackends<'_>,
    ports: &[PortRule],
    peer: &Peer,
    (address, port): (IpAddr, u16),
) -> bool {
    let Peer::Block(block) = peer else { return false };
    let narrow = NARROW[usize::from(address.is_ipv6())];
    let has_port = |rule: &PortRule| {
        rule.protocol == led.port.protocol && rule.port == PortMatch::Range(port, port)
    };
    block.cidr.prefix_len() >= narrow && block.contains(address) && ports.iter().any(has_port)
}

/// Describes the endpoints that are denied to pods to which others are allowed.
fn denied(
    objects: &GroupedObjects<'_>,
    led: &PortBackends<'_>,
    subject: &[&PodGroup<'_>],
) -> Option<String> {
    let protocol = IpProtocol(led.port.protocol.number());
    let denied_to = |pod: &Pod| {
        let others = backends_elsewhere(objects, led, pod).filter(|it| has_family(pod, it.0));
        let others: Vec<&(IpAddr, u16)> = others.collect();
        let is_open =
            |it: &&&(IpAddr, u16)| is_allowed(&objects.explainer, &pod.key, protocol, ***it);
        let denied: Vec<(IpAddr, u16)> =
            others.iter().filter(|it| !is_open(it)).map(|it| **it).collect();
        (!denied.is_empty() && denied.len() < others.len()).then_some(denied)
    };
    subject.iter().find_map(|group| {
        let (pod, denied) = group.by_node.iter().find_map(|pod| Some((*pod, denied_to(pod)?)))?;
        let endpoints = denied.iter().map(|(address, port)| SocketAddr::new(*address, *port));
        let pods = some_pods_text(&group.beside(&[pod]));
        Some(format!("denied to {pods}: {}", first_names(endpoints, NAMED)))
    })
}
