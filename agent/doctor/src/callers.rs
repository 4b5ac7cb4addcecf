//! Check for pods that the API server calls, by webhooks or as an aggregated API, and that policies close to it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netpold_client::details::WrittenServicePort;
use netpold_client::details::complete::numbers;
use netpold_core::model::{Direction, Peer, Pod, Protocol, Rule};
use netpold_core::probe::IpProtocol;

use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, PodGroup, some_pods_text};
use crate::rule_ports::has_port;
use crate::service_ports::is_of_api_server;

const CLOSED: Check = Check {
    name: "api-server-cannot-call",
    severity: Severity::Warning,
    problem: "policies close pods that the API server calls: its calls come from the address of a node, which no \
              podSelector and no namespaceSelector matches",
    fix: "add an ingress rule with the container's port and without `from`, or with an ipBlock of the API server's nodes",
};

/// Label of nodes that run the API server.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// Label of pods through which the API server calls others, where it has no route to them.
const PROXY: (&str, &str) = ("k8s-app", "konnectivity-agent");

/// Checks the Services that the API server calls.
pub(crate) fn examine(objects: &GroupedObjects<'_>, found: &mut Findings) {
    let is_proxy = |group: &PodGroup<'_>| group.labels.get(PROXY.0).is_some_and(|it| it == PROXY.1);
    if objects.details.called.is_empty() || objects.groups.iter().any(is_proxy) {
        return;
    }
    let servers = servers(objects);
    for ((key, number), called) in &objects.details.called {
        let Some(service) = objects.details.services.get(key) else { continue };
        let is_called = |port: &&WrittenServicePort| {
            port.port == i32::from(*number) && port.protocol == Protocol::Tcp
        };
        let Some(port) = service.ports.iter().find(is_called) else { continue };
        let groups = objects.groups.iter().filter(|group| group.is_behind(key, service));
        for group in groups {
            if let Some((pods, target)) = closed(objects, group, port, &servers) {
                let isolating = objects.isolating(group, Direction::Ingress);
                let policies = isolating.iter().map(|(policy, _)| *policy);
                let text = |names: &str| {
                    let by = &called.by;
                    let by_policies = if names.is_empty() { "" } else { ": " };
                    format!("{names}{by_policies}{pods}: TCP {target}, {by} by Service {key}")
                };
                found.add(&CLOSED, objects.place_of(policies, "spec.ingress", text));
            }
        }
    }
}

/// Returns the addresses of the API server, or those of every node if none is known as its node.
fn servers(objects: &GroupedObjects<'_>) -> BTreeSet<IpAddr> {
    let backends: BTreeSet<IpAddr> =
        endpoints(objects).into_iter().map(|(address, _)| address).collect();
    if !backends.is_empty() {
        return backends;
    }
    let nodes = objects.cluster.nodes().values();
    let nodes = nodes.filter(|node| node.labels.contains_key(CONTROL_PLANE));
    let nodes: BTreeSet<IpAddr> = nodes.flat_map(|node| &node.addresses).copied().collect();
    if nodes.is_empty() { objects.node_addresses.clone() } else { nodes }
}

/// Returns the endpoints of the API server's Service, if they are among the objects.
pub(crate) fn endpoints(objects: &GroupedObjects<'_>) -> BTreeSet<(IpAddr, u16)> {
    let own = objects.leads.all().iter().filter(|led| is_of_api_server(&led.service.key));
    own.flat_map(|led| &led.backends).copied().collect()
}

/// Returns the pods of a group that are closed to the API server, described, and the port of the first.
fn closed(
    objects: &GroupedObjects<'_>,
    group: &PodGroup<'_>,
    port: &WrittenServicePort,
    servers: &BTreeSet<IpAddr>,
) -> Option<(String, u16)> {
    let isolating = objects.isolating(group, Direction::Ingress);
    let rules: Vec<&Rule> = isolating.iter().flat_map(|(_, rules)| rules.iter()).collect();
    let target_if_closed = |pod: &Pod| {
        let targets = numbers(&port.target, Protocol::Tcp, pod);
        let target = *targets.first()?;
        let is_open = rules.iter().any(|rule| {
            has_port(rule, Protocol::Tcp, target) && may_be_node(objects, rule, servers)
        });
        let is_closed = !is_open
            && match is_denied(objects, pod, target, servers) {
                Some(is_denied) => is_denied,
                None => {
                    !isolating.is_empty() && objects.cluster.cluster_policies().next().is_none()
                }
            };
        is_closed.then_some(target)
    };
    let closed = group.by_node.iter().filter_map(|pod| Some((*pod, target_if_closed(pod)?)));
    let (pods, targets): (Vec<&Pod>, Vec<u16>) = closed.unzip();
    Some((some_pods_text(&group.beside(&pods)), *targets.first()?))
}

/// Returns whether a rule may admit a node: without peers, or by a block with some address that nodes or their tunnels
/// may have.
fn may_be_node(objects: &GroupedObjects<'_>, rule: &Rule, servers: &BTreeSet<IpAddr>) -> bool {
    let Some(peers) = &rule.peers else { return true };
    peers.iter().any(|peer| match peer {
        Peer::Block(block) => {
            let mut known = servers.iter().chain(&objects.node_addresses);
            let mut ranges = objects.cluster.nodes().values().flat_map(|node| &node.pod_ranges);
            servers.is_empty()
                || known.any(|address| block.contains(*address))
                || ranges.any(|it| block.cidr.contains(it) || it.contains(&block.cidr))
        }
        Peer::Nodes(_) => true,
        Peer::Pods { .. } | Peer::Domain(_) => false,
    })
}

/// Returns whether a pod is closed to some address of the API server; `None` if none is known. Its own node always reaches
/// it.
fn is_denied(
    objects: &GroupedObjects<'_>,
    pod: &Pod,
    port: u16,
    servers: &BTreeSet<IpAddr>,
) -> Option<bool> {
    let mut verdicts = servers.iter().filter_map(|address| {
        let (explainer, direction) = (&objects.explainer, Direction::Ingress);
        let allows = explainer.allows(&pod.key, direction, *address, IpProtocol::TCP, port)?;
        Some(allows || objects.cluster.is_node_of(pod, *address))
    });
    let first = verdicts.next()?;
    Some(!first || verdicts.any(|is_allowed| !is_allowed))
}
