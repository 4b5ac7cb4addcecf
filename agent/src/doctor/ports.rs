//! Ports of rules that no container has.

use std::collections::{BTreeMap, BTreeSet};

use netpold_core::model::{Direction, Key, Peer, Pod, PortMatch, PortRule, Protocol, Rule};

use super::finding::{Check, Findings, Severity};
use super::objects::{Group, Objects, Place, pods_text};

const NO_SUCH_NAME: Check = Check {
    name: "port-name-absent",
    severity: Severity::Warning,
    problem: "no container has the named port of a rule: it allows nothing",
    fix: "name the port in the pod's spec.containers[].ports[].name, or write its number in the rule",
};
const OTHER_PROTOCOL: Check = Check {
    name: "port-name-of-other-protocol",
    severity: Severity::Warning,
    problem: "the named port of a rule has another protocol in the containers: the rule allows nothing",
    fix: "write the container's protocol beside the port: `protocol: UDP`",
};
const SERVICE_PORT: Check = Check {
    name: "port-of-the-service",
    severity: Severity::Warning,
    problem: "a rule names the port of a Service, but policy sees packets after translation, at the \
              container's port",
    fix: "write the Service's targetPort in the rule, or both",
};
const UNLISTED: Check = Check {
    name: "port-not-listed",
    severity: Severity::Info,
    problem: "no container lists the port of a rule, which containers need not do",
    fix: "nothing, if something listens there; else correct the rule, or list the port",
};

/// Protocol and number.
type Number = (Protocol, u16);

/// The ports of a rule, held against the pods that they are ports of.
pub(super) fn examine(
    objects: &Objects<'_>,
    place: &Place<'_>,
    rule: &Rule,
    subject: &[&Group<'_>],
    found: &mut Findings,
) {
    let Some(rules) = &rule.ports else { return };
    let receivers = match place.direction {
        Direction::Ingress => subject.to_vec(),
        Direction::Egress => match peers(objects, place, rule) {
            Some(peers) => peers,
            // Everyone, or addresses: only a name needs a pod.
            None => {
                let named = |port: &&PortRule| matches!(port.port, PortMatch::Named(_));
                if !rules.iter().any(|port| named(&port)) {
                    return;
                }
                objects.groups.iter().collect()
            }
        },
    };
    if receivers.is_empty() {
        return;
    }
    for (number, port) in rules.iter().enumerate() {
        match &port.port {
            PortMatch::Any => {}
            PortMatch::Named(name) => {
                let at = format!("{place}.ports[{number}]: {name} ({})", port.protocol);
                named(name, port.protocol, &receivers, at, found);
            }
            PortMatch::Range(first, last) => {
                let ports = (port.protocol, *first, *last);
                let at = || format!("{place}.ports[{number}]: {}", range_text(ports));
                numbered(objects, ports, rules, &receivers, at, found);
            }
        }
    }
}

/// The pods that an egress rule leads to; none if it leads elsewhere, too.
fn peers<'o>(
    objects: &'o Objects<'_>,
    place: &Place<'_>,
    rule: &Rule,
) -> Option<Vec<&'o Group<'o>>> {
    let mut groups = Vec::new();
    for peer in rule.peers.as_deref()? {
        match peer {
            Peer::Pods { namespaces, pods } => {
                groups.extend(objects.select(place.namespace, namespaces.as_ref(), pods));
            }
            Peer::Block(_) | Peer::Nodes(_) => return None,
        }
    }
    Some(groups)
}

fn named(
    name: &str,
    protocol: Protocol,
    receivers: &[&Group<'_>],
    at: String,
    found: &mut Findings,
) {
    let pods = receivers.iter().flat_map(|group| &group.pods);
    let mut others = pods.flat_map(|pod| &pod.ports).filter(|port| port.name == name).peekable();
    let other = others.peek().map(|port| port.protocol);
    match other {
        None => found.add(&NO_SUCH_NAME, at),
        Some(other) if !others.any(|port| port.protocol == protocol) => {
            found.add(&OTHER_PROTOCOL, format!("{at}, in the containers {other}"));
        }
        Some(_) => {}
    }
}

/// Holds numbers against the ports that all receivers list; pods that list none are not known.
fn numbered(
    objects: &Objects<'_>,
    (protocol, first, last): (Protocol, u16, u16),
    rules: &[PortRule],
    receivers: &[&Group<'_>],
    at: impl Fn() -> String,
    found: &mut Findings,
) {
    let pods = || receivers.iter().flat_map(|group| &group.pods);
    let listed = |pod: &&&Pod| objects.containers.ports.get(&pod.key);
    let has = |ports: &BTreeSet<Number>| {
        ports.range((protocol, first)..=(protocol, last)).next().is_some()
    };
    if pods().any(|pod| listed(&pod).is_none_or(has)) {
        return;
    }
    // A Service has that port, and leads to another one that the rule does not allow.
    for service in services(objects, receivers) {
        let is_here = service.protocol == protocol && (first..=last).contains(&service.port);
        if !is_here || (first..=last).contains(&service.target) {
            continue;
        }
        let allowed = rules.iter().any(|rule| covers(rule, protocol, service.target));
        if !allowed {
            let (key, target) = (service.key, service.target);
            found.add(
                &SERVICE_PORT,
                format!("{}, Service {key}, whose pods get it at {target}", at()),
            );
            return;
        }
    }
    let whose = receivers.first().map_or_else(String::new, |group| pods_text(group));
    found.add(&UNLISTED, format!("{} ({whose})", at()));
}

fn covers(rule: &PortRule, protocol: Protocol, port: u16) -> bool {
    rule.protocol == protocol
        && match &rule.port {
            // A name is there, which is enough: the number was not.
            PortMatch::Any | PortMatch::Named(_) => true,
            PortMatch::Range(first, last) => (*first..=*last).contains(&port),
        }
}

/// A Service's port, and the port of its pods that it leads to.
struct Led<'o> {
    key: &'o Key,
    protocol: Protocol,
    port: u16,
    target: u16,
}

/// The Services' ports that lead to some of these pods.
fn services<'o>(objects: &'o Objects<'_>, receivers: &[&Group<'_>]) -> Vec<Led<'o>> {
    let pods = receivers.iter().flat_map(|group| &group.pods);
    let namespaces: BTreeSet<&str> = receivers.iter().map(|group| group.namespace).collect();
    let addresses: BTreeSet<_> = pods.flat_map(|pod| &pod.addresses).collect();
    let mut led = BTreeMap::new();
    let slices = objects.cluster.slices().values();
    for slice in slices.filter(|slice| namespaces.contains(slice.key.namespace.as_str())) {
        if !slice.addresses.iter().any(|address| addresses.contains(address)) {
            continue;
        }
        let key = Key::new(slice.key.namespace.as_str(), slice.service.as_str());
        let Some((key, service)) = objects.cluster.services().get_key_value(&key) else { continue };
        for port in &service.ports {
            let same = slice
                .ports
                .iter()
                .filter(|it| (&it.name, it.protocol) == (&port.name, port.protocol));
            for target in same {
                let (protocol, target) = (port.protocol, target.port);
                let of = Led { key, protocol, port: port.port, target };
                led.insert((key, protocol, port.port, target), of);
            }
        }
    }
    led.into_values().collect()
}

fn range_text((protocol, first, last): (Protocol, u16, u16)) -> String {
    if first == last { format!("{protocol} {first}") } else { format!("{protocol} {first}-{last}") }
}
