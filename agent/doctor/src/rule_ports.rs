//! Port numbers of rules, and the pods that receive at them.

use netpold_core::model::{Direction, Peer, PortMatch, PortRule, Protocol, Rule};

use crate::objects::{GroupedObjects, PodGroup, RulePlace};

/// Protocol, and the first and last number.
pub(crate) type PortRange = (Protocol, u16, u16);

/// Returns the port numbers of a rule, with their index in the rule.
pub(crate) fn ranges(rules: &[PortRule]) -> impl Iterator<Item = (usize, PortRange)> {
    rules.iter().enumerate().filter_map(|(number, port)| {
        let PortMatch::Range(first, last) = port.port else { return None };
        Some((number, (port.protocol, first, last)))
    })
}

/// Returns the pods that a rule allows traffic to, if it is for pods alone: the subject, or the peers if all are
/// selectors.
pub(crate) fn receivers<'o>(
    objects: &'o GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&'o PodGroup<'o>],
) -> Option<Vec<&'o PodGroup<'o>>> {
    if place.direction == Direction::Ingress {
        return Some(subject.to_vec());
    }
    let mut groups = Vec::new();
    for peer in rule.peers.as_deref()? {
        match peer {
            Peer::Pods { namespaces, pods } => {
                groups.extend(objects.select(place.policy.namespace(), namespaces.as_ref(), pods));
            }
            Peer::Block(_) | Peer::Nodes(_) | Peer::Domain(_) => return None,
        }
    }
    Some(groups)
}

/// Returns whether a rule may be for this port.
pub(crate) fn has_port(rule: &Rule, protocol: Protocol, port: u16) -> bool {
    let ports = rule.ports.as_ref();
    ports.is_none_or(|ports| ports.iter().any(|it| covers(it, protocol, port)))
}

/// Returns whether a rule's port may be this one.
pub(crate) fn covers(rule: &PortRule, protocol: Protocol, port: u16) -> bool {
    rule.protocol == protocol
        && match &rule.port {
            // A named port counts as any number.
            PortMatch::Any | PortMatch::Named(_) => true,
            PortMatch::Range(first, last) => (*first..=*last).contains(&port),
        }
}

/// Formats `TCP 80` or `TCP 80-90`.
pub(crate) fn range_text((protocol, first, last): PortRange) -> String {
    if first == last { format!("{protocol} {first}") } else { format!("{protocol} {first}-{last}") }
}
