//! Checks of Services that clients outside of the cluster reach: rules with these clients' addresses, which nodes
//! replace, and pods that are closed to every address outside.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netpold_client::details::complete::numbers;
use netpold_client::details::{Exposure, WrittenService, WrittenServicePort, is_selected};
use netpold_core::model::{Action, Direction, IpBlock, Key, Peer, Pod, Protocol, Rule};
use netpold_core::probe::IpProtocol;

use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, PodGroup, RulePlace, has_family, some_pods_text};
use crate::rule_ports::has_port;

const TRANSLATED: Check = Check {
    name: "client-address-replaced",
    severity: Severity::Warning,
    problem: "an ipBlock has addresses of clients outside, but they reach the pods by a Service whose nodes replace the \
              client's address with their own (externalTrafficPolicy: Cluster)",
    fix: "set externalTrafficPolicy: Local in the Service, which keeps the clients' addresses; or allow the nodes' addresses, \
          and limit the clients by spec.loadBalancerSourceRanges; none, if the load balancer sends to the pods themselves",
};
const CLOSED: Check = Check {
    name: "closed-to-outside",
    severity: Severity::Warning,
    problem: "a Service is for clients outside of the cluster, but policies close its pods to every address outside",
    fix: "add an ingress rule with the container's port and without `from`, or with an ipBlock of the clients and the nodes; \
          none, if only pods use the Service",
};
/// Labels of the pods of k3s' load balancer, with the name of their Service.
const SERVICE_LB: &str = "svccontroller.k3s.cattle.io/svcname";
const SERVICE_LB_NAMESPACE: &str = "svccontroller.k3s.cattle.io/svcnamespace";

/// Addresses outside of every cluster (documentation blocks, RFC 5737 and RFC 3849).
const OUTSIDE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// Lowers the severity for node ports, which a Service may have without any client, and for charts.
fn check_of(objects: &GroupedObjects<'_>, service: &WrittenService, check: &Check) -> Check {
    match service.exposure {
        Exposure::Balanced => objects.check(check),
        Exposure::None | Exposure::NodePort | Exposure::Direct => {
            Check { severity: Severity::Info, ..*check }
        }
    }
}

/// Checks the blocks of an ingress rule.
pub(crate) fn examine(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&PodGroup<'_>],
    found: &mut Findings,
) {
    let is_accepting = place.action == Action::Accept && place.direction == Direction::Ingress;
    if !is_accepting || objects.is_partial {
        return;
    }
    for (number, peer) in rule.peers.iter().flatten().enumerate() {
        let Peer::Block(block) = peer else { continue };
        let replacing = subject.iter().find_map(|group| replacing(objects, rule, block, group));
        if let Some((key, service)) = replacing
            && is_outside(objects, block)
        {
            let what = format!("{}; Service {key}", block.cidr);
            let check = check_of(objects, service, &TRANSLATED);
            found.add(&check, place.at(&place.peer(number), &what));
        }
    }
}

/// Returns whether a block has addresses outside of the cluster alone.
fn is_outside(objects: &GroupedObjects<'_>, block: &IpBlock) -> bool {
    let pods = objects.cluster.pods().values().flat_map(|pod| &pod.addresses);
    let mut ranges = objects.cluster.nodes().values().flat_map(|node| &node.pod_ranges);
    block.cidr.prefix_len() > 0
        && !pods.chain(&objects.node_addresses).any(|address| block.contains(*address))
        && !ranges.any(|range| range.contains(&block.cidr) || block.cidr.contains(range))
}

/// Returns a Service that leads clients outside to a group at a port of a rule with the addresses of nodes, which no rule
/// admits.
fn replacing<'o>(
    objects: &'o GroupedObjects<'_>,
    rule: &Rule,
    block: &IpBlock,
    group: &PodGroup<'_>,
) -> Option<(&'o Key, &'o WrittenService)> {
    exposed(objects, group).filter(|(_, service)| !service.keeps_client).find(|(_, service)| {
        service.ports.iter().any(|port| {
            let is_refused = |pod: &&Pod| {
                let targets = numbers(&port.target, port.protocol, pod);
                let mut targets =
                    targets.into_iter().filter(|target| has_port(rule, port.protocol, *target));
                targets
                    .any(|target| are_nodes_refused(objects, pod, block, (port.protocol, target)))
            };
            group.by_node.iter().any(is_refused)
        })
    })
}

/// Returns the Services of a group that clients outside reach by nodes.
fn exposed<'o>(
    objects: &'o GroupedObjects<'_>,
    group: &PodGroup<'_>,
) -> impl Iterator<Item = (&'o Key, &'o WrittenService)> {
    let (namespace, labels) = (group.namespace.to_owned(), group.labels.clone());
    let services = objects.details.services.range(Key::new(group.namespace, "")..);
    let services = services.take_while(move |(key, _)| key.namespace == namespace);
    services.filter(move |(_, service)| {
        service.exposure.is_by_nodes() && is_selected(&labels, &service.selector)
    })
}

/// Returns whether a pod admits none of the other nodes; false if there are none. A node's masqueraded packets do not count as its own.
fn are_nodes_refused(
    objects: &GroupedObjects<'_>,
    pod: &Pod,
    block: &IpBlock,
    (protocol, port): (Protocol, u16),
) -> bool {
    let others = objects.cluster.nodes().values().filter(|node| node.name != *pod.node);
    let same = |it: &&IpAddr| it.is_ipv4() == block.cidr.addr().is_ipv4();
    let addresses = others.flat_map(|node| &node.addresses).filter(same);
    let protocol = IpProtocol(protocol.number());
    let mut verdicts = addresses.filter_map(|address| {
        objects.explainer.allows(&pod.key, Direction::Ingress, *address, protocol, port)
    });
    verdicts.next().is_some_and(|first| !first && !verdicts.any(|is_allowed| is_allowed))
}

/// Checks the pods of Services that clients outside reach.
pub(crate) fn closed(objects: &GroupedObjects<'_>, found: &mut Findings) {
    for (key, service) in &objects.details.services {
        if !service.exposure.is_by_nodes() {
            continue;
        }
        let of_lb = |group: &&PodGroup<'_>| {
            let has =
                |label: &str, value: &str| group.labels.get(label).is_none_or(|it| it == value);
            group.labels.contains_key(SERVICE_LB)
                && has(SERVICE_LB, &key.name)
                && has(SERVICE_LB_NAMESPACE, &key.namespace)
        };
        let balancers: Vec<&PodGroup<'_>> = objects.groups.iter().filter(of_lb).collect();
        let has_balancers = !balancers.is_empty();
        // The load balancer of k3s hands packets on with the addresses of its pods.
        if !has_balancers && !objects.details.k3s_nodes.is_empty() {
            continue;
        }
        let own = |group: &&PodGroup<'_>| group.is_behind(key, service);
        let groups: Vec<&PodGroup<'_>> = match has_balancers {
            true => balancers,
            false => objects.groups.iter().filter(own).collect(),
        };
        let is_closed = |group: &&PodGroup<'_>| {
            let mut ports = service.ports.iter();
            ports.all(|port| is_closed(objects, group, port, has_balancers))
        };
        let Some(first) = groups.first().filter(|_| groups.iter().all(is_closed)) else { continue };
        if service.ports.is_empty() {
            continue;
        }
        let isolating = objects.isolating(first, Direction::Ingress);
        let policies = isolating.iter().map(|(policy, _)| *policy);
        let pods = some_pods_text(&first.pods);
        let text = |names: &str| format!("Service {key}: {pods} ({names})");
        let place = objects.place_of(policies, "spec.ingress", text);
        found.add(&check_of(objects, service, &CLOSED), place);
    }
}

/// Returns whether policies close a group to every address outside at a Service's port. `is_balancer`: the pods receive
/// packets at the port itself.
fn is_closed(
    objects: &GroupedObjects<'_>,
    group: &PodGroup<'_>,
    port: &WrittenServicePort,
    is_balancer: bool,
) -> bool {
    let rules = objects.isolating(group, Direction::Ingress);
    let is_refused = |pod: &Pod| {
        let targets = match is_balancer {
            true => u16::try_from(port.port).into_iter().collect(),
            false => numbers(&port.target, port.protocol, pod),
        };
        let Some(target) = targets.first() else { return false };
        let may_be_outside = |rule: &Rule| {
            has_port(rule, port.protocol, *target)
                && rule.peers.as_ref().is_none_or(|peers| peers.iter().any(is_no_pod))
        };
        !rules.iter().flat_map(|(_, rules)| rules.iter()).any(may_be_outside)
            && is_denied_outside(objects, pod, (port.protocol, *target))
    };
    !rules.is_empty() && group.pods.first().is_some_and(|pod| is_refused(pod))
}

/// Returns whether policies deny a pod's port to hosts outside of the cluster, by addresses of both families.
pub(crate) fn is_denied_outside(
    objects: &GroupedObjects<'_>,
    pod: &Pod,
    (protocol, port): (Protocol, u16),
) -> bool {
    let protocol = IpProtocol(protocol.number());
    OUTSIDE.iter().all(|from| {
        let (explainer, direction) = (&objects.explainer, Direction::Ingress);
        !has_family(pod, *from)
            || explainer.allows(&pod.key, direction, *from, protocol, port) == Some(false)
    })
}

fn is_no_pod(peer: &Peer) -> bool {
    !matches!(peer, Peer::Pods { .. })
}
