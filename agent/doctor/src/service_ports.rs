//! Check for rules with the port of a Service instead of its backends' port.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netpold_client::details::{PortReference, WrittenServicePort};
use netpold_core::model::{Direction, Key, Peer, Pod, PortRule, Rule};
use netpold_core::probe::IpProtocol;

use crate::backend_index::PortBackends;
use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, PodGroup, RulePlace, backends_elsewhere, is_allowed};
use crate::rule_ports::{PortRange, covers, has_port, range_text, ranges, receivers};

const SERVICE_PORT: Check = Check {
    name: "port-of-the-service",
    severity: Severity::Warning,
    problem: "a rule names the port of a Service, but policy sees packets after translation, at the \
              container's port",
    fix: "write the Service's targetPort in the rule, or both",
};

/// Fix of [`SERVICE_PORT`] for a rule that may be meant for other servers alone.
const API_SERVER_PORT: &str = "write the Service's targetPort in the rule, or both; none, if the pods do not call the API server";

/// Service of the API server, which every cluster has.
const API_SERVER: (&str, &str) = ("default", "kubernetes");
/// Ports with which rules without peers allow the Internet.
const WEB: [u16; 2] = [80, 443];
/// Shortest prefixes, IPv4 and IPv6, of a block meant for a Service's endpoints alone.
pub(crate) const NARROW: [u8; 2] = [24, 64];

/// Compares the port numbers of a rule with the Services in front of the rule's receivers.
pub(crate) fn examine(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&PodGroup<'_>],
    found: &mut Findings,
) {
    let Some(rules) = &rule.ports else { return };
    let receivers = receivers(objects, place, rule, subject);
    for (number, numbers) in ranges(rules) {
        let what = match &receivers {
            Some(pods) => at_pods(objects, (place.direction, subject), numbers, rules, pods),
            None => outside(objects, place, (rule, numbers), subject),
        };
        if let Some((service, target)) = what {
            let what = format!("{}, Service {service}, whose {target}", range_text(numbers));
            let text = place.at(&place.port(number), &what);
            match is_of_api_server(&service) && receivers.is_none() {
                true => {
                    let severity = match is_for_other_hosts(objects, rule, subject) {
                        true => Severity::Info,
                        false => SERVICE_PORT.severity,
                    };
                    let check = Check { severity, ..SERVICE_PORT };
                    found.add_with_fix(&check, API_SERVER_PORT, text);
                }
                false => found.add(&SERVICE_PORT, text),
            }
        }
    }
}

/// Returns whether [`examine`] reports these numbers at these pods.
pub(crate) fn is_of_a_service(
    objects: &GroupedObjects<'_>,
    numbers: PortRange,
    rules: &[PortRule],
    pods: &[&PodGroup<'_>],
) -> bool {
    at_pods(objects, (Direction::Ingress, &[]), numbers, rules, pods).is_some()
}

/// Returns a Service of some of the pods, and text about its target port.
fn at_pods(
    objects: &GroupedObjects<'_>,
    (direction, subject): (Direction, &[&PodGroup<'_>]),
    (protocol, first_port, last): PortRange,
    rules: &[PortRule],
    pods: &[&PodGroup<'_>],
) -> Option<(Key, String)> {
    let all = || pods.iter().flat_map(|group| &group.pods);
    let lists = |pod: &&Pod| {
        let details = objects.pod(pod);
        details.is_some_and(|it| {
            it.ports.range((protocol, first_port)..=(protocol, last)).next().is_some()
        })
    };
    if all().any(lists) {
        return None;
    }
    // A Service's selector does not distinguish the pods of a group.
    let first = || pods.iter().filter_map(|group| group.pods.first());
    let addresses: BTreeSet<IpAddr> = first().flat_map(|pod| &pod.addresses).copied().collect();
    let mut led = Vec::new();
    for found in objects.leads.behind(addresses.iter().copied()) {
        let here = found.backends.iter().filter(|(address, _)| addresses.contains(address));
        let targets: BTreeSet<u16> = here.map(|(_, target)| *target).collect();
        if found.port.protocol != protocol {
            continue;
        }
        // Some Service, maybe this one, has backends at the port.
        if targets.iter().any(|target| (first_port..=last).contains(target)) {
            return None;
        }
        if (first_port..=last).contains(&found.port.port) {
            led.extend(targets.first().map(|target| (found, *target)));
        }
    }
    led.into_iter().find_map(|(found, target)| {
        let is_allowed = rules.iter().any(|rule| covers(rule, protocol, target))
            || direction == Direction::Egress && reaches(objects, found, subject);
        let key = &found.service.key;
        let details = objects.details.services.get(key);
        let text = || match details.is_some_and(|service| service.is_headless) {
            true => (
                key.clone(),
                format!("pods listen at {target}: it is headless, so clients connect to them"),
            ),
            false => (key.clone(), format!("pods get it at {target}")),
        };
        (!is_allowed).then(text)
    })
}

/// Returns the same for an egress rule with outside peers: the API server's Service, or one that the rule is meant for.
fn outside(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    (rule, numbers): (&Rule, PortRange),
    subject: &[&PodGroup<'_>],
) -> Option<(Key, String)> {
    let (_, first, last) = numbers;
    let has_account = subject.iter().any(|group| has_account(objects, group));
    objects.leads.with_port(numbers).find_map(|led| {
        let key = &led.service.key;
        let is_api_server = is_of_api_server(key);
        let is_led = |(address, _): &(IpAddr, u16)| {
            is_meant(place, (rule, numbers), is_api_server, (key, *address), has_account)
        };
        if led.backends.is_empty() {
            return unknown_api_server(objects, (rule, numbers), led, subject)
                .filter(|_| is_api_server);
        }
        let target = led.backends.iter().find(|backend| is_led(backend))?.1;
        let unlike = led.backends.iter().all(|(_, target)| !(first..=last).contains(target));
        if !unlike || reaches(objects, led, subject) || subject.is_empty() {
            return None;
        }
        if is_api_server && subject.iter().all(|group| has_no_token(objects, group)) {
            return None;
        }
        Some((key.clone(), format!("endpoints get it at {target}")))
    })
}

/// Returns whether a rule is meant for a backend of a Service: one port, and the backend in a narrow block. A rule
/// without peers, or with a wide block, is meant for the API server; with a block of all addresses, only if some pod has a
/// service account of its own (`has_account`). A rule without peers may also be meant for a Service of its namespace
/// (except at ports 80 and 443).
fn is_meant(
    place: &RulePlace<'_>,
    (rule, (_, first, last)): (&Rule, PortRange),
    is_api_server: bool,
    (service, address): (&Key, IpAddr),
    has_account: bool,
) -> bool {
    let Some(peers) = &rule.peers else {
        let is_beside = place.policy.namespace() == Some(service.namespace.as_str());
        return first == last && (is_api_server || is_beside && !WEB.contains(&first));
    };
    let is_about = |peer: &Peer| {
        let Peer::Block(block) = peer else { return false };
        let narrow = NARROW[usize::from(address.is_ipv6())];
        let length = block.cidr.prefix_len();
        let is_wide = is_api_server && (length > 0 || has_account);
        block.contains(address) && (is_wide || length >= narrow)
    };
    first == last && peers.iter().any(is_about)
}

/// Checks the API server's Service by its `targetPort`, if its endpoints are not among the objects.
fn unknown_api_server(
    objects: &GroupedObjects<'_>,
    (rule, (protocol, first, last)): (&Rule, PortRange),
    led: &PortBackends<'_>,
    subject: &[&PodGroup<'_>],
) -> Option<(Key, String)> {
    let key = &led.service.key;
    let service = objects.details.services.get(key)?;
    let same = |port: &&WrittenServicePort| {
        i32::from(led.port.port) == port.port && port.protocol == protocol
    };
    let PortReference::Number(target) = service.ports.iter().find(same)?.target else {
        return None;
    };
    let allows = |group: &&PodGroup<'_>| {
        let isolating = objects.isolating(group, Direction::Egress);
        let mut rules = isolating.iter().flat_map(|(_, rules)| rules.iter());
        rules.any(|rule| has_port(rule, protocol, target))
    };
    let is_meant = rule.peers.is_none() && first == last && !(first..=last).contains(&target);
    let wants = subject.iter().filter(|group| !has_no_token(objects, group));
    let mut denied = wants.filter(|group| !allows(group));
    (is_meant && denied.next().is_some())
        .then(|| (key.clone(), format!("endpoints get it at {target}")))
}

/// Returns whether policies allow the pods of each of the policy's groups a backend, one pod of each node. Pods reach their
/// own node without any rule: its backends do not count.
pub(crate) fn reaches(
    objects: &GroupedObjects<'_>,
    led: &PortBackends<'_>,
    subject: &[&PodGroup<'_>],
) -> bool {
    let protocol = IpProtocol(led.port.protocol.number());
    let mut pods = subject.iter().flat_map(|group| &group.by_node).peekable();
    pods.peek().is_some()
        && pods.all(|pod| {
            let mut others = backends_elsewhere(objects, led, pod).peekable();
            others.peek().is_none()
                || others.any(|it| is_allowed(&objects.explainer, &pod.key, protocol, *it))
        })
}

/// Returns whether no pod of a group has credentials for the API server.
pub(crate) fn has_no_token(objects: &GroupedObjects<'_>, group: &PodGroup<'_>) -> bool {
    group.pods.iter().all(|pod| objects.pod(pod).is_some_and(|details| details.no_token))
}

/// Returns whether some pod of a group has another service account than `default`.
fn has_account(objects: &GroupedObjects<'_>, group: &PodGroup<'_>) -> bool {
    group.pods.iter().any(|pod| objects.pod(pod).is_some_and(|details| details.own_account))
}

/// Returns whether a rule without peers is most likely for hosts outside: the pods have the service account `default`, and
/// their policies name the pods to which they connect in other rules.
fn is_for_other_hosts(
    objects: &GroupedObjects<'_>,
    rule: &Rule,
    subject: &[&PodGroup<'_>],
) -> bool {
    let rules = subject.iter().flat_map(|group| objects.isolating(group, Direction::Egress));
    let mut rules = rules.flat_map(|(_, rules)| rules.iter());
    let is_pods = |peer: &Peer| matches!(peer, Peer::Pods { .. });
    rule.peers.is_none()
        && !subject.iter().any(|group| has_account(objects, group))
        && rules.any(|rule| rule.peers.iter().flatten().any(is_pods))
}

/// Returns whether a Service is that of the API server.
pub(crate) fn is_of_api_server(service: &Key) -> bool {
    (service.namespace.as_str(), service.name.as_str()) == API_SERVER
}
