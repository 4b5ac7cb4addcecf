//! Checks for blocks beside the other rules of the same pods: blocks of one address family at pods of both, and
//! exceptions that another rule allows.

use std::net::IpAddr;

use ipnet::IpNet;
use netpold_core::model::{Action, Enforcement, IpBlock, Peer, Policy, Rule};

use crate::finding::{Check, Findings, Severity};
use crate::host_peers::has_ports_of;
use crate::objects::{GroupedObjects, NamedPolicy, PodGroup, RulePlace, pods_text};

const ONE_FAMILY: Check = Check {
    name: "block-of-one-family",
    severity: Severity::Info,
    problem: "a rule {} every address of one family, and its pods have addresses of both",
    fix: "none, if only this family is meant; otherwise name both, 0.0.0.0/0 and ::/0",
};
const OVERRULED: Check = Check {
    name: "except-allowed-elsewhere",
    severity: Severity::Warning,
    problem: "the except of an ipBlock has no effect: rules add up, and another rule allows its addresses at the same ports",
    fix: "delete the other rule, narrow it, or give its block the same except",
};

/// Longest prefix of a block for all hosts of a family: `2000::/3` has all global addresses.
const EVERYBODY: u8 = 3;

/// Checks the blocks of a rule that accepts packets.
pub(crate) fn examine(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    rule: &Rule,
    subject: &[&PodGroup<'_>],
    found: &mut Findings,
) {
    if place.action != Action::Accept || place.policy.namespace().is_none() {
        return;
    }
    for (number, peer) in rule.peers.iter().flatten().enumerate() {
        let Peer::Block(block) = peer else { continue };
        let at = |what: &str| place.at(&place.peer(number), what);
        if block.cidr.prefix_len() == 0
            && let Some(group) = of_both_families(objects, place, block, subject)
        {
            let what = format!("{} ({})", block.cidr, pods_text(group));
            found.add_of(&ONE_FAMILY, place.effect(), at(&what));
        }
        for except in &block.except {
            let other = overruling(objects, place, (rule, *except), subject);
            if let Some((is_of_same_policy, other)) = other {
                let severity = if is_of_same_policy { OVERRULED.severity } else { Severity::Info };
                let what = format!("{except}; allowed by {other}");
                found.add(&Check { severity, ..OVERRULED }, at(&what));
            }
        }
    }
}

/// Returns the first group with pods of both address families whose rules do not allow every address of the other family
/// than a block's.
fn of_both_families<'o>(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    block: &IpBlock,
    subject: &[&'o PodGroup<'o>],
) -> Option<&'o PodGroup<'o>> {
    let is_v4 = block.cidr.addr().is_ipv4();
    let has = |group: &PodGroup<'_>, v4: bool| {
        let mut addresses = group.pods.iter().flat_map(|pod| &pod.addresses);
        addresses.any(|address| address.is_ipv4() == v4)
    };
    let is_other = |peer: &Peer| {
        matches!(peer, Peer::Block(block)
            if block.cidr.addr().is_ipv4() != is_v4 && block.cidr.prefix_len() <= EVERYBODY)
    };
    let is_for_all = |rule: &Rule| rule.peers.as_ref().is_none_or(|it| it.iter().any(is_other));
    let has_both = |group: &PodGroup<'_>| {
        has(group, true)
            && has(group, false)
            && !rules_of(objects, place, group).any(|it| is_for_all(it.rule))
    };
    subject.iter().copied().find(|group| has_both(group))
}

/// Rule of a policy of some pods.
struct GroupRule<'o> {
    policy: &'o Policy,
    number: usize,
    rule: &'o Rule,
}

/// Returns the rules of a group's policies in the direction of a rule; audited policies count only if the rule is one of
/// theirs.
fn rules_of<'o>(
    objects: &'o GroupedObjects<'_>,
    place: &RulePlace<'_>,
    group: &PodGroup<'_>,
) -> impl Iterator<Item = GroupRule<'o>> {
    let direction = place.direction;
    let policies = objects.cluster.policies_in(group.namespace).filter(|policy| {
        let counts = policy.enforcement == Enforcement::Enforce || place.policy.is_policy(policy);
        counts && policy.pod_selector.matches(group.labels)
    });
    policies.flat_map(move |policy| {
        let rules = policy.rules(direction).unwrap_or_default().iter().enumerate();
        rules.map(move |(number, rule)| GroupRule { policy, number, rule })
    })
}

/// Returns whether the rule that allows a whole exception of a rule, at all ports of that rule, is of the same policy, with a
/// text about it: a rule of some of the same pods without peers, with a wider block or, for one pod's address, with a
/// selector of this pod. A rule of the same policy comes first.
fn overruling(
    objects: &GroupedObjects<'_>,
    place: &RulePlace<'_>,
    (rule, except): (&Rule, IpNet),
    subject: &[&PodGroup<'_>],
) -> Option<(bool, String)> {
    let allows = |group: &PodGroup<'_>, other: &Rule| {
        let is_within = |peer: &Peer| is_within(objects, group, peer, except);
        has_ports_of(other, rule)
            && other.peers.as_ref().is_none_or(|peers| peers.iter().any(is_within))
    };
    let first_of = |is_of_same_policy: bool| {
        subject.iter().find_map(|group| {
            rules_of(objects, place, group).find(|other| {
                place.policy.is_policy(other.policy) == is_of_same_policy
                    && allows(group, other.rule)
            })
        })
    };
    let path = |number: usize| format!("spec.{}[{number}]", place.direction);
    if let Some(other) = first_of(true) {
        return Some((true, path(other.number)));
    }
    let GroupRule { policy, number, .. } = first_of(false)?;
    let name = NamedPolicy::policy(policy, objects.details).text;
    Some((false, format!("{name}: {}", path(number))))
}

/// Returns whether a peer contains a whole exception. An equal block does not count: its author means these addresses.
fn is_within(
    objects: &GroupedObjects<'_>,
    group: &PodGroup<'_>,
    peer: &Peer,
    except: IpNet,
) -> bool {
    match peer {
        Peer::Block(block) => {
            let overlaps = |other: &IpNet| other.contains(&except) || except.contains(other);
            block.cidr != except
                && block.cidr.contains(&except)
                && !block.except.iter().any(overlaps)
        }
        Peer::Pods { namespaces, pods } => {
            let is_single = except.prefix_len() == except.max_prefix_len();
            let address: IpAddr = except.addr();
            let has_address = |other: &&PodGroup<'_>| {
                other.pods.iter().any(|pod| pod.addresses.contains(&address))
            };
            let of = objects.groups.iter().find(has_address).filter(|_| is_single);
            of.is_some_and(|other| other.is_in(Some(group.namespace), namespaces.as_ref(), pods))
        }
        Peer::Nodes(_) | Peer::Domain(_) => false,
    }
}
