//! ClusterNetworkPolicies of a generated cluster.

use super::choices::Choices;
use super::objects::{block, denial, enforcement, port_rule, selector};
use netpold_core::model::{
    Action, ClusterPolicy, ClusterRule, Direction, IpBlock, NamespacedPods, Peer, PolicyVersion,
    PortMatch, PortRule, Protocol, Rule, Selector, Tier,
};

/// Few priorities, so that policies often share one and are ordered by name.
const PRIORITIES: [u16; 3] = [0, 10, 1000];
const TIERS: [Tier; 2] = [Tier::Admin, Tier::Baseline];
const ACTIONS: [Action; 3] = [Action::Accept, Action::Deny, Action::Pass];

pub(super) fn cluster_policy(choices: &mut Choices<'_>, number: u32) -> ClusterPolicy {
    // Most subjects select many pods, so that tiers often have several rules for a pod.
    let namespaces = if choices.chance(60) { Selector::default() } else { selector(choices) };
    let pods = if choices.chance(60) { Selector::default() } else { selector(choices) };
    let problems = if choices.chance(5) { vec!["spec: made up".to_owned()] } else { Vec::new() };
    ClusterPolicy {
        name: format!("cluster{number}"),
        tier: *choices.pick(&TIERS),
        priority: *choices.pick(&PRIORITIES),
        subject: NamespacedPods { namespaces, pods },
        ingress: choices.list(5, |choices| rule(choices, Direction::Ingress)),
        egress: choices.list(5, |choices| rule(choices, Direction::Egress)),
        problems,
        version: PolicyVersion::default(),
        enforcement: enforcement(choices),
        denial: denial(number),
    }
}

/// The policy with one field changed, or a new one of the same name.
pub(super) fn changed(choices: &mut Choices<'_>, old: &ClusterPolicy) -> ClusterPolicy {
    let new = ClusterPolicy { name: old.name.clone(), ..cluster_policy(choices, 0) };
    let old = old.clone();
    match choices.below(7) {
        6 => ClusterPolicy { enforcement: new.enforcement, ..old },
        0 => ClusterPolicy { priority: new.priority, ..old },
        1 => ClusterPolicy { tier: new.tier, ..old },
        2 => ClusterPolicy { subject: new.subject, ..old },
        3 => ClusterPolicy { ingress: new.ingress, ..old },
        4 => ClusterPolicy { egress: new.egress, ..old },
        _ => new,
    }
}

/// Sometimes the remains of an invalid rule, which denies everything or accepts nothing.
fn rule(choices: &mut Choices<'_>, direction: Direction) -> ClusterRule {
    let name = if choices.chance(50) { "named".to_owned() } else { String::new() };
    let action = *choices.pick(&ACTIONS);
    let (action, matches) = match (choices.below(20), action) {
        (0, Action::Accept) => (action, Rule { peers: Some(Vec::new()), ports: ports(choices) }),
        (0, Action::Deny | Action::Pass) => (Action::Deny, Rule { peers: None, ports: None }),
        _ => {
            let mut peers = choices.list(3, |choices| peer(choices, direction));
            peers.push(peer(choices, direction));
            (action, Rule { peers: Some(peers), ports: ports(choices) })
        }
    };
    ClusterRule { name, action, matches }
}

/// Networks and nodes are peers of egress rules only.
fn peer(choices: &mut Choices<'_>, direction: Direction) -> Peer {
    let kinds = match direction {
        Direction::Ingress => 4,
        Direction::Egress => 8,
    };
    match choices.below(kinds) {
        0 => Peer::Pods { namespaces: Some(selector(choices)), pods: Selector::default() },
        1 => Peer::Pods { namespaces: Some(selector(choices)), pods: selector(choices) },
        2 | 3 => Peer::Pods { namespaces: Some(Selector::default()), pods: selector(choices) },
        4 | 5 => Peer::Nodes(selector(choices)),
        _ => Peer::Block(IpBlock { except: Vec::new(), ..block(choices) }),
    }
}

fn ports(choices: &mut Choices<'_>) -> Option<Vec<PortRule>> {
    if choices.chance(40) {
        return None;
    }
    let most = if choices.chance(5) { 24 } else { 4 };
    let mut ports = choices.list(most, protocol);
    ports.push(protocol(choices));
    Some(ports.into_iter().flatten().collect())
}

/// One item of `protocols`: a named port is listed for each protocol.
fn protocol(choices: &mut Choices<'_>) -> Vec<PortRule> {
    let one = port_rule(choices);
    if !matches!(one.port, PortMatch::Named(_)) {
        return vec![one];
    }
    let with = |protocol| PortRule { protocol, port: one.port.clone() };
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(with).to_vec()
}
