//! Check for rules with the port of a node, a `hostPort` or a `nodePort`, instead of the container's port.

use netpold_client::details::complete::numbers;
use netpold_core::model::{Pod, PortRule, Rule};

use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, PodGroup, RulePlace, pods_text};
use crate::rule_ports::{PortRange, covers, range_text, ranges, receivers};
use crate::service_ports::is_of_a_service;

const NODE_PORT: Check = Check {
    name: "port-of-the-node",
    severity: Severity::Warning,
    problem: "a rule names a hostPort or a nodePort, but policy sees packets after translation, at the container's port",
    fix: "write the containerPort in the rule",
};

/// Compares the port numbers of a rule with the ports of nodes that lead to the rule's receivers.
pub(crate) fn examine(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&PodGroup<'_>],
    found: &mut Findings,
) {
    let Some(rules) = &rule.ports else { return };
    let Some(pods) = receivers(objects, place, rule, subject) else { return };
    for (number, numbers) in ranges(rules) {
        if is_of_a_service(objects, numbers, rules, &pods) {
            continue;
        }
        if let Some(what) = of_a_node(objects, numbers, rules, &pods) {
            let what = format!("{}, {what}", range_text(numbers));
            found.add(&NODE_PORT, place.at(&place.port(number), &what));
        }
    }
}

/// Returns text about the port of a node that has this number and leads to some of the pods at a port that no rule
/// covers; `None` if a container lists the number.
pub(crate) fn of_a_node(
    objects: &GroupedObjects<'_>,
    (protocol, first, last): PortRange,
    rules: &[PortRule],
    pods: &[&PodGroup<'_>],
) -> Option<String> {
    let details = |pod: &Pod| objects.pod(pod);
    let all = || pods.iter().flat_map(|group| group.pods.iter().map(move |pod| (*group, *pod)));
    let lists = |pod: &Pod| details(pod).is_some_and(|it| it.ports.contains(&(protocol, first)));
    if first != last || all().any(|(_, pod)| lists(pod)) {
        return None;
    }
    let is_missed = |target: &u16| !rules.iter().any(|rule| covers(rule, protocol, *target));
    let of_host = all().find_map(|(group, pod)| {
        let target = *details(pod)?.host_ports.get(&(protocol, first))?;
        let text = || format!("hostPort of {}, whose containerPort is {target}", pods_text(group));
        is_missed(&target).then(text)
    });
    of_host.or_else(|| {
        objects.details.services.iter().find_map(|(key, service)| {
            let mut ports = service.ports.iter();
            let port = ports.find(|it| it.node_port == Some(first) && it.protocol == protocol)?;
            let is_here = |(group, _): &(&PodGroup<'_>, &Pod)| group.is_behind(key, service);
            let (_, pod) = all().find(is_here)?;
            let target = *numbers(&port.target, protocol, pod).first()?;
            let text = || format!("nodePort of Service {key}, whose pods get it at {target}");
            is_missed(&target).then(text)
        })
    })
}
