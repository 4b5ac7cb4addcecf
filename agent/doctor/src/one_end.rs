//! Check for connections that the rules of one end allow by name, and that the policies of the other end deny.

use std::net::IpAddr;

use netpold_client::details::complete::is_stand_in;
use netpold_core::explain::Verdict;
use netpold_core::model::{
    Action, Direction, Peer, Pod, PortMatch, Protocol, Requirement, Rule, Selector,
};
use netpold_core::probe::IpProtocol;

use crate::dns::is_name_server;
use crate::finding::{Check, Findings, Severity};
use crate::objects::{GroupedObjects, PodGroup, RulePlace, has_family, pods_text};
use crate::selectors::{may_have_pods, peer_text};
use netpold_core::first_names::first_names;

const ONE_END: Check = Check {
    name: "allowed-at-one-end",
    severity: Severity::Warning,
    problem: "a rule names pods, but policies of these pods deny the same connections: both ends must allow a connection",
    fix: "",
};
/// Fixes, by the direction of the rule.
const SENDERS: &str = "add an egress rule for the senders, in a policy of their namespace: - {to: [{namespaceSelector: {matchLabels: \
                       {kubernetes.io/metadata.name: NAMESPACE}}, podSelector: {matchLabels: {...}}}], ports: [...]}; or delete the rule";
const RECEIVERS: &str = "add an ingress rule for the receivers, in a policy of their namespace: - {from: [{namespaceSelector: {matchLabels: \
                         {kubernetes.io/metadata.name: NAMESPACE}}, podSelector: {matchLabels: {...}}}], ports: [...]}; or delete the rule";

/// Most policies named at one place.
const NAMED: usize = 2;
/// Most pairs of groups compared for one peer.
const PAIRS_MAX: usize = 1000;

/// Checks the peers of a rule that accepts packets: whether their own policies have any rule for its pods.
pub(crate) fn examine(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&PodGroup<'_>],
    found: &mut Findings,
) {
    if place.action != Action::Accept || subject.is_empty() {
        return;
    }
    let own = place.policy.namespace();
    for (number, peer) in rule.peers.iter().flatten().enumerate() {
        let Peer::Pods { namespaces, pods } = peer else { continue };
        let is_named = |selector: &Selector| {
            let mut requirements = selector.requirements.iter();
            requirements.any(|it| matches!(it, Requirement::In(..) | Requirement::Exists(_)))
        };
        if !is_named(pods) && !namespaces.as_ref().is_some_and(is_named) {
            continue;
        }
        let peer = (namespaces.as_ref(), pods);
        let others = objects.select(own, namespaces.as_ref(), pods);
        let is_refused = |other: &&PodGroup<'_>| {
            subject.iter().all(|group| is_refused(objects, (place.direction, rule), group, other))
        };
        // The connections of a pod with itself need no rule.
        let is_alone = |other: &PodGroup<'_>| {
            let is_self = |group: &&PodGroup<'_>| std::ptr::eq(*group, other);
            other.pods.len() == 1 && subject.iter().all(is_self)
        };
        let pairs = others.len() * subject.len();
        if others.is_empty()
            || pairs > PAIRS_MAX
            || !others.iter().all(is_refused)
            || others.iter().all(|other| is_alone(other))
            || may_have_pods(objects, own, peer)
        {
            continue;
        }
        let Some(first) = others.first() else { continue };
        // Name servers have checks of their own.
        if place.direction == Direction::Egress && is_name_server(objects, first) {
            continue;
        }
        let side = place.direction.opposite();
        let policies = objects.isolating(first, side);
        let names: Vec<String> =
            policies.iter().map(|(policy, _)| format!("NetworkPolicy {}", policy.key)).collect();
        let names = first_names(names.iter(), NAMED);
        let own = subject.first().map_or_else(String::new, |group| pods_text(group));
        let what = format!(
            "{}; {names}: no {side} rule of {} for {own}",
            peer_text(peer),
            pods_text(first),
        );
        let fix = match place.direction {
            Direction::Ingress => SENDERS,
            Direction::Egress => RECEIVERS,
        };
        found.add(&Check { fix, ..objects.check(&ONE_END) }, place.at(&place.peer(number), &what));
    }
}

/// Returns whether the policies of a peer isolate it in the other direction without any rule for the pods of a group, at
/// whichever port.
fn is_refused(
    objects: &GroupedObjects<'_>,
    (direction, rule): (Direction, &Rule),
    group: &PodGroup<'_>,
    other: &PodGroup<'_>,
) -> bool {
    let side = direction.opposite();
    let isolating = objects.isolating(other, side);
    let mut rules = isolating.iter().flat_map(|(_, rules)| rules.iter());
    if isolating.is_empty() || rules.any(|it| may_be_for(it, other, group)) {
        return false;
    }
    let (Some(own), Some(at)) = (group.pods.first(), other.pods.first()) else { return false };
    let same = |it: &&IpAddr| has_family(at, **it);
    let Some(address) = own.addresses.iter().find(same) else { return false };
    let receiver: &Pod = if side == Direction::Egress { own } else { at };
    let (protocol, port) = port_of(objects, rule, receiver);
    let protocol = IpProtocol(protocol.number());
    let judged = objects.explainer.judge(&at.key, side, *address, protocol, port);
    judged
        .is_some_and(|judged| judged.verdict == Verdict::Deny && judged.tiers.decided_by.is_none())
}

/// Returns whether a rule of pods may be for a group.
fn may_be_for(rule: &Rule, of: &PodGroup<'_>, group: &PodGroup<'_>) -> bool {
    let Some(peers) = &rule.peers else { return true };
    peers.iter().any(|peer| match peer {
        Peer::Pods { namespaces, pods } => {
            group.is_in(Some(of.namespace), namespaces.as_ref(), pods)
        }
        Peer::Block(block) => {
            let mut addresses = group.pods.iter().flat_map(|pod| &pod.addresses);
            addresses.any(|address| is_stand_in(*address) || block.contains(*address))
        }
        Peer::Nodes(_) | Peer::Domain(_) => false,
    })
}

/// Returns a port of a rule, else one that the receiver lists.
fn port_of(objects: &GroupedObjects<'_>, rule: &Rule, receiver: &Pod) -> (Protocol, u16) {
    let first = rule.ports.iter().flatten().find_map(|port| match &port.port {
        PortMatch::Range(first, _) => Some((port.protocol, *first)),
        PortMatch::Named(name) => {
            let named = receiver.ports.iter().find(|it| it.name == *name);
            named.map(|it| (it.protocol, it.port))
        }
        PortMatch::Any => None,
    });
    let listed = || objects.pod(receiver).and_then(|it| it.ports.first().copied());
    first.or_else(listed).unwrap_or((Protocol::Tcp, 1))
}
