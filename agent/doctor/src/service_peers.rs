//! Peers that are meant for a Service without pods: its endpoints are nodes or other hosts, which no selector matches.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use netpold_core::model::{
    Action, Direction, Key, Labels, PortMatch, PortRule, Protocol, Rule, Selector,
};

use crate::backend_index::PortBackends;
use crate::host_peers::SYSTEM;
use crate::objects::{GroupedObjects, PodGroup, RulePlace};
use crate::ports::is_unlisted;
use crate::rule_ports::ranges;
use crate::service_ports::{has_no_token, is_of_a_service, is_of_api_server, reaches};
use netpold_core::first_names::first_names;

/// Most endpoints named.
const NAMED: usize = 3;
/// Labels of the Service `default/kubernetes`, which authors take for those of pods.
const API_SERVER: [(&str, &str); 2] = [("component", "apiserver"), ("provider", "kubernetes")];

/// Service that a peer is meant for, and the fix.
pub(crate) struct IntendedService {
    pub(crate) text: String,
    pub(crate) fix: String,
}

/// Returns the Service without pods that an egress peer without pods is meant for: a Service of the peer's namespace
/// whose port, or its endpoints' port, the rule has. `None` if the subject reaches the endpoints by other rules.
pub(crate) fn without_pods(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    (rule, (namespaces, pods)): (&Rule, (Option<&Selector>, &Selector)),
    subject: &[&PodGroup<'_>],
) -> Option<IntendedService> {
    if place.direction == Direction::Ingress || place.action != Action::Accept || subject.is_empty()
    {
        return None;
    }
    let ports = rule.ports.as_deref()?;
    let is_there = |key: &Key| match namespaces {
        // A selector of every namespace is meant for pods.
        Some(selector) => {
            let labels = objects.cluster.namespace_labels(&key.namespace);
            !selector.requirements.is_empty() && selector.matches(&labels)
        }
        None => place.policy.namespace() == Some(key.namespace.as_str()),
    };
    let is_meant = |led: &&PortBackends<'_>| {
        let key = &led.service.key;
        let is_named = pods.requirements.is_empty()
            || is_of_api_server(key) && pods.matches(&api_server_labels());
        let has_pod = led.backends.iter().any(|(it, _)| objects.cluster.owner(*it).is_some());
        is_named && !has_pod && !led.backends.is_empty() && is_there(key) && has_port(ports, led)
    };
    let led = objects.leads.all().iter().find(is_meant)?;
    let needs_none = is_of_api_server(&led.service.key)
        && subject.iter().all(|group| has_no_token(objects, group));
    (!needs_none && !reaches(objects, led, subject))
        .then(|| describe(objects, place.policy.namespace().is_some(), led))
}

/// Returns the API server's Service if an egress rule for pods of `kube-system` is meant for it: the rule has its port or
/// that of its endpoints, no selected pod lists the port or gets it from a Service, and the subject reaches no endpoint.
pub(crate) fn api_server(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    (rule, (namespaces, pods)): (&Rule, (Option<&Selector>, &Selector)),
    subject: &[&PodGroup<'_>],
) -> Option<IntendedService> {
    let namespaces = namespaces.filter(|it| !it.requirements.is_empty())?;
    if place.direction == Direction::Ingress
        || place.action != Action::Accept
        || !pods.requirements.is_empty()
        || !namespaces.matches(&objects.cluster.namespace_labels(SYSTEM))
    {
        return None;
    }
    let ports = rule.ports.as_deref()?;
    let selected = objects.select(None, Some(namespaces), pods);
    let mut services = objects.leads.all().iter();
    let led = services.find(|led| {
        is_of_api_server(&led.service.key)
            && led.port.protocol == Protocol::Tcp
            && !led.backends.is_empty()
    })?;
    let is_meant = ranges(ports).any(|(_, numbers)| {
        let (protocol, first, last) = numbers;
        let is_its = |number: u16| first == number && last == number;
        protocol == Protocol::Tcp
            && (is_its(led.port.port) || led.backends.iter().any(|(_, number)| is_its(*number)))
            && is_unlisted(objects, numbers, &selected)
            && !is_of_a_service(objects, numbers, ports, &selected)
    });
    let needs_none = subject.iter().all(|group| has_no_token(objects, group));
    (is_meant && !needs_none && !reaches(objects, led, subject))
        .then(|| describe(objects, place.policy.namespace().is_some(), led))
}

fn api_server_labels() -> Labels {
    API_SERVER.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns whether a rule has the port of a Service, or that of its endpoints.
fn has_port(ports: &[PortRule], led: &PortBackends<'_>) -> bool {
    let has = |number: u16| {
        ports.iter().any(|port| {
            port.protocol == led.port.protocol
                && matches!(port.port, PortMatch::Range(first, last)
                    if (first..=last).contains(&number))
        })
    };
    has(led.port.port) || led.backends.iter().any(|(_, number)| has(*number))
}

fn listed(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// Describes the Service; the rule of the fix is that of a NetworkPolicy, or of a ClusterNetworkPolicy, which has no
/// namespace.
fn describe(
    objects: &GroupedObjects<'_>,
    is_of_namespace: bool,
    led: &PortBackends<'_>,
) -> IntendedService {
    let endpoint = |(address, port): &(IpAddr, u16)| {
        let at = std::net::SocketAddr::new(*address, *port);
        match objects.node_addresses.contains(address) {
            true => format!("node {at}"),
            false => at.to_string(),
        }
    };
    let shown = first_names(led.backends.iter().map(endpoint), NAMED);
    let verb = if led.backends.len() == 1 { "endpoint is" } else { "endpoints are" };
    let text = format!("; Service {} has no pods, its {verb} {shown}", led.service.key);
    let blocks: BTreeSet<IpNet> = led.backends.iter().map(|(it, _)| IpNet::from(*it)).collect();
    let ports: BTreeSet<u16> = led.backends.iter().map(|(_, port)| *port).collect();
    let protocol = led.port.protocol;
    let rule = if is_of_namespace {
        let blocks = blocks.iter().map(|it| format!("{{ipBlock: {{cidr: {it}}}}}"));
        let ports = ports.iter().map(|port| format!("{{protocol: {protocol}, port: {port}}}"));
        format!("{{to: [{}], ports: [{}]}}", listed(blocks), listed(ports))
    } else {
        let key = protocol.to_string().to_lowercase();
        let blocks = blocks.iter().map(ToString::to_string);
        let ports =
            ports.iter().map(|port| format!("{{{key}: {{destinationPort: {{number: {port}}}}}}}"));
        let to = listed(blocks);
        format!("{{action: Accept, to: [{{networks: [{to}]}}], protocols: [{}]}}", listed(ports))
    };
    let fix = format!("name the endpoints, which no selector matches: - {rule}");
    IntendedService { text, fix }
}
