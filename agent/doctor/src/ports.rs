//! Checks for rules with ports that no container has.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netpold_client::details::complete::is_stand_in;
use netpold_core::model::{Action, Direction, Peer, Pod, PortMatch, PortRule, Protocol, Rule};

use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, PodGroup, RulePlace, pods_text};
use crate::rule_ports::{PortRange, covers, has_port, range_text, ranges, receivers};
use crate::{mesh, node_ports, service_ports};

const NO_SUCH_NAME: Check = Check {
    name: "port-name-absent",
    severity: Severity::Warning,
    problem: "no container has the named port of a rule: it {} nothing",
    fix: "name the port in the pod's spec.containers[].ports[].name, or write its number in the rule",
};
const OTHER_PROTOCOL: Check = Check {
    name: "port-name-of-other-protocol",
    severity: Severity::Warning,
    problem: "the named port of a rule has another protocol in the containers: the rule {} nothing",
    fix: "write the container's protocol beside the port: `protocol: TCP`",
};
/// Fixes of [`OTHER_PROTOCOL`] for containers with another protocol than TCP.
const AS_UDP: &str = "write the container's protocol beside the port: `protocol: UDP`";
const AS_SCTP: &str = "write the container's protocol beside the port: `protocol: SCTP`";
const NUMBER_OF_OTHER_PROTOCOL: Check = Check {
    name: "port-of-other-protocol",
    severity: Severity::Warning,
    problem: "containers and Services have the port of a rule with another protocol only, which no rule {}",
    fix: "write the protocol beside the port: a rule without `protocol` is for TCP alone",
};
const NAME_OUTSIDE: Check = Check {
    name: "port-name-towards-blocks",
    severity: Severity::Warning,
    problem: "a rule has a named port, and its peers are ipBlocks without pods: only pods have named ports, so it never \
              matches",
    fix: "write the port's number",
};
/// [`NAME_OUTSIDE`] for a block of all addresses, which also has pods.
const NAME_EVERYWHERE: Check = Check {
    problem: "a rule has only named ports, and an ipBlock of every address: only pods have named ports, so it matches no other \
              host",
    ..NAME_OUTSIDE
};
const NAME_OF_SOME: Check = Check {
    name: "port-name-of-some",
    severity: Severity::Info,
    problem: "only some of the pods of a rule have its named port: the rule {} nothing at the others",
    fix: "none, if the others do not listen there; otherwise name the port in their spec.containers[].ports[].name",
};
const UNLISTED: Check = Check {
    name: "port-not-listed",
    severity: Severity::Info,
    problem: "no container lists the port of a rule, which containers need not do",
    fix: "none, if a process listens there; otherwise correct the rule, or list the port",
};

/// Compares the ports of a rule with those of its receivers.
pub(crate) fn examine(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&PodGroup<'_>],
    found: &mut Findings,
) {
    let Some(rules) = &rule.ports else { return };
    let has_names = rules.iter().any(|port| matches!(port.port, PortMatch::Named(_)));
    if has_names {
        names(objects, place, (rule, rules), subject, found);
    }
    let Some(receivers) = receivers(objects, place, rule, subject) else { return };
    if receivers.is_empty() {
        return;
    }
    for (number, ports) in ranges(rules) {
        if let Some(other) = other_protocol(objects, place, (ports, rules), &receivers, subject) {
            let whose = receivers.first().map_or_else(String::new, |group| pods_text(group));
            let what =
                format!("{}, in the containers or Services {other} ({whose})", range_text(ports));
            let at = place.at(&place.port(written(place, rules, number)), &what);
            found.add_of(&NUMBER_OF_OTHER_PROTOCOL, place.effect(), at);
        } else if is_unlisted(objects, ports, &receivers)
            && !mesh::is_port(objects, &receivers, (ports.0, ports.1))
            && !service_ports::is_of_a_service(objects, ports, rules, &receivers)
            && node_ports::of_a_node(objects, ports, rules, &receivers).is_none()
        {
            let whose = receivers.first().map_or_else(String::new, |group| pods_text(group));
            let what = format!("{} ({whose})", range_text(ports));
            found.add(&UNLISTED, place.at(&place.port(written(place, rules, number)), &what));
        }
    }
}

/// Returns the other protocol with which containers list a port of a rule, or Services lead to it, if none has the rule's
/// protocol and no rule of the subject's policies has the other one.
fn other_protocol(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    ((protocol, first, last), rules): (PortRange, &[PortRule]),
    receivers: &[&PodGroup<'_>],
    subject: &[&PodGroup<'_>],
) -> Option<Protocol> {
    if first != last || place.action != Action::Accept || place.policy.namespace().is_none() {
        return None;
    }
    let pods = || receivers.iter().flat_map(|group| &group.pods);
    let listed = |of: Protocol| {
        pods().any(|pod| objects.pod(pod).is_some_and(|it| it.ports.contains(&(of, first))))
    };
    let addresses: BTreeSet<IpAddr> = pods().flat_map(|pod| &pod.addresses).copied().collect();
    let services = objects.leads.behind(addresses.iter().copied());
    let is_led = |of: Protocol| {
        services.iter().filter(|led| led.port.protocol == of).any(|led| {
            let mut backends = led.backends.iter();
            led.port.port == first
                || backends.any(|(it, port)| *port == first && addresses.contains(it))
        })
    };
    if listed(protocol) || is_led(protocol) {
        return None;
    }
    let is_allowed = |of: Protocol| {
        let policies = subject.iter().flat_map(|group| objects.isolating(group, place.direction));
        let mut others = policies.flat_map(|(_, rules)| rules.iter());
        rules.iter().any(|rule| covers(rule, of, first))
            || others.any(|rule| has_port(rule, of, first))
    };
    let others = [Protocol::Udp, Protocol::Tcp, Protocol::Sctp].into_iter();
    let mut others = others.filter(|other| *other != protocol);
    others.find(|other| (listed(*other) || is_led(*other)) && !is_allowed(*other))
}

/// Compares the named ports of a rule with the pods that may have them.
fn names(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    (rule, rules): (&Rule, &[PortRule]),
    subject: &[&PodGroup<'_>],
    found: &mut Findings,
) {
    blocks_with_names(objects, place, (rule, rules), found);
    let pods = named_pods(objects, place, rule, subject);
    let peers = rule.peers.as_deref().unwrap_or_default();
    let is_block = |peer: &Peer| matches!(peer, Peer::Block(_));
    let outside = place.direction == Direction::Egress
        && !peers.is_empty()
        && peers.iter().all(is_block)
        && has_addresses(objects);
    if pods.is_empty() && !outside {
        return;
    }
    let is_any_protocol = place.policy.namespace().is_none();
    for (number, port) in rules.iter().enumerate() {
        let PortMatch::Named(name) = &port.port else { continue };
        if is_any_protocol && is_repeated(rules, number) {
            continue;
        }
        let at = |what: &str| {
            let what = match is_any_protocol {
                true => format!("{name}{what}"),
                false => format!("{name} ({}){what}", port.protocol),
            };
            place.at(&place.port(written(place, rules, number)), &what)
        };
        if pods.is_empty() {
            found.add(&NAME_OUTSIDE, at(""));
            continue;
        }
        let mut same =
            pods.iter().flat_map(|pod| &pod.ports).filter(|it| it.name == *name).peekable();
        let other = same.peek().map(|port| port.protocol);
        match other {
            None => found.add_of(&NO_SUCH_NAME, place.effect(), at("")),
            Some(_) if is_any_protocol => {}
            Some(other) if !same.any(|it| it.protocol == port.protocol) => {
                let what = format!(", in the containers {other}");
                let fix = match other {
                    Protocol::Tcp => OTHER_PROTOCOL.fix,
                    Protocol::Udp => AS_UDP,
                    Protocol::Sctp => AS_SCTP,
                };
                let check = Check { fix, ..OTHER_PROTOCOL };
                found.add_of(&check, place.effect(), at(&what));
            }
            Some(_) => {
                if let Some(without) = without(objects, rule, &pods, (name, port.protocol)) {
                    found.add_of(&NAME_OF_SOME, place.effect(), at(&format!(", not {without}")));
                }
            }
        }
    }
}

/// Returns whether a port repeats the name of the one before: a name in a ClusterNetworkPolicy, which is for every
/// protocol, is a port of each.
fn is_repeated(rules: &[PortRule], number: usize) -> bool {
    let name = |number: usize| match &rules.get(number)?.port {
        PortMatch::Named(name) => Some(name),
        PortMatch::Any | PortMatch::Range(..) => None,
    };
    let before = number.checked_sub(1).and_then(name);
    before.is_some() && before == name(number)
}

/// Returns the index of a port as the policy has it.
fn written(place: &RulePlace<'_>, rules: &[PortRule], number: usize) -> usize {
    let is_extra = |at: &usize| place.policy.namespace().is_none() && is_repeated(rules, *at);
    number - (0..=number).filter(is_extra).count()
}

/// Reports blocks without pods beside pods, and blocks of every address, in an egress rule with named ports alone.
fn blocks_with_names(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    (rule, rules): (&Rule, &[PortRule]),
    found: &mut Findings,
) {
    let peers = rule.peers.as_deref().unwrap_or_default();
    let is_named = |port: &PortRule| matches!(port.port, PortMatch::Named(_));
    let is_beside_pods = peers.iter().any(|peer| matches!(peer, Peer::Pods { .. }));
    if place.direction == Direction::Ingress
        || place.action != Action::Accept
        || !rules.iter().all(is_named)
        || !has_addresses(objects)
    {
        return;
    }
    for (number, peer) in peers.iter().enumerate() {
        let Peer::Block(block) = peer else { continue };
        let pods = objects.groups.iter().flat_map(|group| &group.pods);
        let is_within = |pod: &&&Pod| pod.addresses.iter().any(|it| block.contains(*it));
        let pods: Vec<&Pod> = pods.filter(is_within).copied().collect();
        let at = || place.at(&place.peer(number), &block.cidr.to_string());
        let has_name = |pod: &&Pod| {
            rules.iter().any(|rule| {
                let mut ports = pod.ports.iter();
                ports.any(|port| rule.port == PortMatch::Named(port.name.clone()))
            })
        };
        // A name that no pod has is a finding of its own.
        if block.cidr.prefix_len() == 0 && pods.iter().any(has_name) {
            found.add(&NAME_EVERYWHERE, at());
        } else if pods.is_empty() && is_beside_pods {
            found.add(&NAME_OUTSIDE, at());
        }
    }
}

/// Names the first of the pods without a named port, and counts the others; `None` if all have it, or if the rule is for
/// every pod of a namespace or for blocks, and so for those with the port.
fn without(
    objects: &GroupedObjects<'_>,
    rule: &Rule,
    pods: &[&Pod],
    (name, protocol): (&str, Protocol),
) -> Option<String> {
    let has = |pod: &Pod| pod.ports.iter().any(|it| it.name == name && it.protocol == protocol);
    let mut lacking = pods.iter().filter(|pod| !has(pod));
    let first = lacking.next()?;
    let is_block = |peer: &Peer| !matches!(peer, Peer::Pods { .. });
    if rule.peers.iter().flatten().any(is_block) || is_every_pod(objects, pods) {
        return None;
    }
    Some(match lacking.count() {
        0 => format!("Pod {}", first.key),
        more => format!("Pod {} and {more} more", first.key),
    })
}

/// Returns whether these are all pods of a namespace with pods of several kinds.
fn is_every_pod(objects: &GroupedObjects<'_>, pods: &[&Pod]) -> bool {
    let namespaces: BTreeSet<&str> = pods.iter().map(|pod| pod.key.namespace.as_str()).collect();
    let groups = objects.groups.iter().filter(|group| namespaces.contains(group.namespace));
    let counts: Vec<usize> = groups.map(|group| group.pods.len()).collect();
    counts.len() > 1 && counts.iter().sum::<usize>() == pods.len()
}

/// Returns whether some pod's real address is known, so that blocks can be compared.
fn has_addresses(objects: &GroupedObjects<'_>) -> bool {
    let pods = objects.groups.iter().flat_map(|group| &group.pods);
    let mut addresses = pods.flat_map(|pod| &pod.addresses);
    addresses.any(|address| !is_stand_in(*address))
}

/// Returns the pods that resolve a rule's port names; a block stands for the pods in it.
fn named_pods<'o>(
    objects: &'o GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&'o PodGroup<'o>],
) -> Vec<&'o Pod> {
    let all = |groups: Vec<&'o PodGroup<'o>>| {
        groups.into_iter().flat_map(|group| &group.pods).copied().collect()
    };
    let (Direction::Egress, Some(peers)) = (place.direction, &rule.peers) else {
        return all(match place.direction {
            Direction::Ingress => subject.to_vec(),
            Direction::Egress => objects.groups.iter().collect(),
        });
    };
    let mut found: Vec<&Pod> = Vec::new();
    for peer in peers {
        match peer {
            Peer::Pods { namespaces, pods } => {
                let groups = objects.select(place.policy.namespace(), namespaces.as_ref(), pods);
                found.extend(groups.into_iter().flat_map(|group| &group.pods).copied());
            }
            Peer::Block(block) => {
                let pods = objects.groups.iter().flat_map(|group| &group.pods).copied();
                found.extend(pods.filter(|pod| pod.addresses.iter().any(|it| block.contains(*it))));
            }
            Peer::Nodes(_) | Peer::Domain(_) => {}
        }
    }
    found
}

/// Returns whether all receivers list ports, and none lists these.
pub(crate) fn is_unlisted(
    objects: &GroupedObjects<'_>,
    (protocol, first, last): PortRange,
    receivers: &[&PodGroup<'_>],
) -> bool {
    let mut pods = receivers.iter().flat_map(|group| &group.pods);
    let is_unlike = |ports: &BTreeSet<(Protocol, u16)>| {
        !ports.is_empty() && ports.range((protocol, first)..=(protocol, last)).next().is_none()
    };
    pods.all(|pod| objects.pod(pod).is_some_and(|details| is_unlike(&details.ports)))
}
