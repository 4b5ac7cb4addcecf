//! Limits on the size of a policy, of all policies of one namespace on one node, and of its Services
//! ([`frontends`], [`backends`]).
//!
//! The limits count the contents of objects, not compile time, so the outcome depends on the objects alone. A policy
//! beyond its budget isolates the pods it selects and grants nothing, like an invalid one; other policies are not
//! affected. It is not kept in full ([`reduced_to_budget`]).

mod backends;
mod frontends;

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;

use crate::model::{Change, Direction, Key, Peer, Policy, PortMatch, Requirement, Rule, Selector};
use crate::ports::blocks::exceeds_port_sets;
pub use backends::{NAMESPACE_BACKENDS, SLICE_ADDRESSES, SLICE_PORTS};
pub(crate) use backends::{is_too_large, units as slice_units};
pub use frontends::NAMESPACE_FRONTENDS;
pub(crate) use frontends::{external, may_have, network};

/// Maximum number of rules, peers, exceptions, ports and label values in one direction of a policy, together with the
/// labels and values of its `podSelector`. A port name of an egress rule counts 64.
pub const POLICY_UNITS: u32 = 262_144;
/// Maximum for all policies that isolate pods of one namespace on one node, both directions together. A policy counts
/// once for each combination of policies in which it selects pods there.
pub const NAMESPACE_UNITS: u64 = 2 * POLICY_UNITS as u64;
/// Maximum number of different port sets to which the ipBlocks of one direction of a policy may lead. Each may need 8
/// KiB.
pub const POLICY_PORT_SETS: usize = 12_288;

/// Units up to which a namespace's policies are compiled in the update that brings them. Policies beyond it are large.
pub const ORDINARY_UNITS: u64 = 4096;
/// Units up to which compiling is cheap and never deferred.
pub const MODEST_UNITS: u64 = 512;

/// Maximum number of ports with which EndpointSlices of a pod's namespace list the pod, for the pod to reach itself
/// through its Services. A port counts once for each of the pod's addresses.
pub const POD_HAIRPINS: usize = 1024;

/// Units of a port name in an egress rule, which may have another number on each destination pod.
const NAMED_UNITS: usize = 64;
/// Labels and values up to which the `podSelector` of a policy beyond its budget is kept.
const SELECTOR_VALUES: usize = ORDINARY_UNITS as usize;
/// Selectors that may share a label before each of them counts as [`CROWDED_UNITS`].
const CROWD: u32 = 16;
/// Units of a selector that must be compared with many pods: a policy may have 1024 of them.
const CROWDED_UNITS: u32 = POLICY_UNITS / 1024;

/// The change with its object as it is kept in memory: a Service with more addresses than a namespace may have, besides
/// its cluster addresses, has networks in their place, and an EndpointSlice is cut off above its limits.
#[must_use]
#[expect(clippy::wildcard_enum_match_arm, reason = "all other kinds are kept whole")]
pub fn kept_change(change: Change) -> Change {
    match change {
        Change::Service(service) => Change::Service(frontends::kept_service(service)),
        Change::EndpointSlice(slice) => Change::EndpointSlice(backends::kept_slice(slice)),
        other => other,
    }
}

/// Size of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    /// By direction.
    units: [u32; 2],
    /// Ingress rules use named ports, which resolve differently on each pod.
    pub(crate) names_ports: bool,
    /// Message for a policy beyond its budget.
    pub(crate) excess: Option<String>,
    /// Port sets were counted, or cannot exceed the limit.
    pub(crate) is_exact: bool,
}

impl Weight {
    /// Weighs a policy.
    pub(crate) fn weigh(policy: &Policy) -> Self {
        let mut weight = Self::estimate(policy);
        if !weight.is_exact {
            let too_many = |direction| too_many_port_sets(policy, direction);
            weight.excess = Direction::BOTH.into_iter().find_map(too_many);
            weight.is_exact = true;
        }
        weight
    }

    /// Weighs a policy, but skips counting its port sets if that takes long: such a policy is beyond
    /// [`ORDINARY_UNITS`].
    pub(crate) fn estimate(policy: &Policy) -> Self {
        let units = Direction::BOTH.map(|direction| units_of(policy, direction));
        let by_name = |rule: &Rule| {
            let ports = rule.ports.iter().flatten();
            ports.into_iter().any(|port| matches!(port.port, PortMatch::Named(_)))
        };
        let excess = Direction::BOTH
            .into_iter()
            .zip(units)
            .find_map(|(direction, units)| too_many_units(policy, direction, units));
        let names_ports = excess.is_none() && policy.ingress.iter().flatten().any(by_name);
        let may_exceed = |direction| may_exceed_port_sets(policy, direction);
        let is_exact = excess.is_some() || !Direction::BOTH.into_iter().any(may_exceed);
        Self { units, names_ports, excess, is_exact }
    }

    /// Whether the policy has too many units.
    fn is_oversized(&self) -> bool {
        self.units.iter().any(|units| *units > POLICY_UNITS)
    }

    /// Units that count in a direction: 1 for a policy beyond its budget, because it grants nothing.
    pub(crate) fn units(&self, direction: Direction) -> u64 {
        if self.excess.is_some() { 1 } else { self.units[direction as usize].into() }
    }
}

/// Units of a policy in both directions, without limits applied.
#[must_use]
pub fn units(policy: &Policy) -> u64 {
    Direction::BOTH.into_iter().map(|direction| u64::from(units_of(policy, direction))).sum()
}

/// The policy as it is kept in memory: one with too many units has no rules, and if its `podSelector` is large, it
/// selects every pod of its namespace. So it isolates at least the pods that it selects, and grants nothing.
#[must_use]
pub fn reduced_to_budget(policy: Policy) -> Policy {
    let weight = Weight::estimate(&policy);
    reduced_by_weight(policy, &weight)
}

/// [`reduced_to_budget`] for a policy of this weight.
pub(crate) fn reduced_by_weight(mut policy: Policy, weight: &Weight) -> Policy {
    if weight.is_oversized() {
        for rules in [&mut policy.ingress, &mut policy.egress].into_iter().flatten() {
            *rules = Vec::new();
        }
        if has_large_selector(&policy) {
            policy.pod_selector = Selector::default();
        }
    }
    policy
}

fn has_large_selector(policy: &Policy) -> bool {
    values(&policy.pod_selector) > SELECTOR_VALUES
}

fn too_many_units(policy: &Policy, direction: Direction, units: u32) -> Option<String> {
    let pods = match has_large_selector(policy) {
        true => {
            "isolates every pod of its namespace, since its podSelector is too large to be kept,"
        }
        false => "isolates",
    };
    (units > POLICY_UNITS).then(|| {
        format!(
            "spec.{direction}: its podSelector, rules, peers, exceptions and ports weigh {units}, the limit is \
             {POLICY_UNITS}; over its budget, it {pods} and grants nothing: split the policy or use fewer, wider \
             rules"
        )
    })
}

fn may_exceed_port_sets(policy: &Policy, direction: Direction) -> bool {
    let blocks = |rule: &Rule| -> usize {
        let blocks = rule.peers.iter().flatten().map(|peer| match peer {
            Peer::Block(block) => 1 + block.except.len(),
            Peer::Pods { .. } | Peer::Nodes(_) | Peer::Domain(_) => 0,
        });
        blocks.sum()
    };
    let rules = policy.rules(direction).unwrap_or_default().iter().map(blocks);
    let rules: Vec<usize> = rules.filter(|blocks| *blocks > 0).collect();
    // The number of sets is at most the number of blocks and exceptions, and at most the unions of the rules' ports.
    let unions = 1usize.checked_shl(rules.len() as u32).unwrap_or(usize::MAX);
    unions.min(rules.iter().sum()) > POLICY_PORT_SETS
}

fn too_many_port_sets(policy: &Policy, direction: Direction) -> Option<String> {
    let exceeds = may_exceed_port_sets(policy, direction)
        && exceeds_port_sets(policy, direction, POLICY_PORT_SETS);
    exceeds.then(|| {
        format!(
            "spec.{direction}: its ipBlocks overlap to more than {POLICY_PORT_SETS} different sets of \
             ports; over its budget, it isolates and grants nothing: give overlapping blocks the same \
             ports"
        )
    })
}

/// Units of one direction's rules, and of the pods that they are for; 0 if the policy does not isolate the direction.
fn units_of(policy: &Policy, direction: Direction) -> u32 {
    let Some(rules) = policy.rules(direction) else { return 0 };
    let selectors: BTreeSet<(Option<&Selector>, &Selector)> = rules
        .iter()
        .flat_map(|rule| rule.peers.iter().flatten())
        .filter_map(|peer| match peer {
            Peer::Pods { namespaces, pods } => Some((namespaces.as_ref(), pods)),
            Peer::Block(_) | Peer::Nodes(_) | Peer::Domain(_) => None,
        })
        .collect();
    let crowded = u64::from(CROWDED_UNITS) * crowded(&selectors);
    let peer = |peer: &Peer| match peer {
        Peer::Block(block) => 1 + block.except.len(),
        Peer::Pods { namespaces, pods } => 1 + values(pods) + namespaces.as_ref().map_or(0, values),
        Peer::Nodes(nodes) => 1 + values(nodes),
        Peer::Domain(_) => 1,
    };
    let rules = rules.iter().map(|rule| {
        let peers: usize = rule.peers.iter().flatten().map(peer).sum();
        let ports = rule.ports.iter().flatten().map(|port| match port.port {
            PortMatch::Named(_) if direction == Direction::Egress => NAMED_UNITS,
            PortMatch::Named(_) | PortMatch::Range(..) | PortMatch::Any => 1,
        });
        1 + peers + ports.sum::<usize>()
    });
    let units = values(&policy.pod_selector) + rules.sum::<usize>();
    u32::try_from(units as u64 + crowded).unwrap_or(u32::MAX)
}

fn values(selector: &Selector) -> usize {
    let requirements = selector.requirements.iter().map(|requirement| match requirement {
        Requirement::In(_, values) | Requirement::NotIn(_, values) => 1 + values.len(),
        Requirement::Exists(_) | Requirement::DoesNotExist(_) => 1,
    });
    requirements.sum()
}

/// A label of pods, with the namespace selector of the same peer.
type Label<'a> = (Option<&'a Selector>, &'a str, &'a str);

/// The labels in each `In` requirement; a matching pod has one of them.
fn required<'a>(
    namespaces: Option<&'a Selector>,
    pods: &'a Selector,
) -> impl Iterator<Item = impl Iterator<Item = Label<'a>>> {
    pods.requirements.iter().filter_map(move |requirement| {
        if let Requirement::In(key, values) = requirement {
            Some(values.iter().map(move |value| (namespaces, key.as_str(), value.as_str())))
        } else {
            None
        }
    })
}

/// Number of selectors that no label distinguishes from many others: a pod with such a label must be compared with each
/// of them.
fn crowded(selectors: &BTreeSet<(Option<&Selector>, &Selector)>) -> u64 {
    let mut counts: HashMap<Label<'_>, u32> = HashMap::new();
    for label in selectors.iter().flat_map(|(of, pods)| required(*of, pods).flatten()) {
        *counts.entry(label).or_default() += 1;
    }
    let is_crowded = |(of, pods): &&(Option<&Selector>, &Selector)| {
        let most = |labels: &mut dyn Iterator<Item = Label<'_>>| {
            labels.filter_map(|label| counts.get(&label).copied()).max().unwrap_or(0)
        };
        let least = required(*of, pods).map(|mut labels| most(&mut labels)).min();
        least.is_none_or(|least| least > CROWD)
    };
    let crowded = selectors.iter().filter(is_crowded).count() as u64;
    crowded.saturating_sub(CROWD.into())
}

/// Policies that together isolate pods of one node in a direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Combination {
    pub(crate) direction: Direction,
    /// Keys of policies in one namespace, sorted.
    pub(crate) policies: Vec<Key>,
}

impl Combination {
    /// Namespace of the policies.
    pub(crate) fn namespace(&self) -> &str {
        self.policies.first().map_or("", |key| &key.namespace)
    }
}

/// Combinations of one namespace to close, the largest first, so that the others fit into the namespace's budget.
/// `units` is the total weight of each combination.
pub(crate) fn combinations_to_close(units: &BTreeMap<Combination, u64>) -> BTreeSet<Combination> {
    let mut left: u64 = units.values().sum();
    let mut largest: Vec<(&Combination, u64)> =
        units.iter().map(|(of, units)| (of, *units)).collect();
    largest.sort_by_key(|(_, units)| std::cmp::Reverse(*units));
    let mut closed = BTreeSet::new();
    for (combination, units) in largest {
        if left <= NAMESPACE_UNITS {
            break;
        }
        left -= units;
        closed.insert(combination.clone());
    }
    closed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PortRule, Protocol};

    fn policy(peers: Vec<Peer>) -> Policy {
        let port = PortRule { protocol: Protocol::Tcp, port: PortMatch::Range(80, 80) };
        let rule = Rule { peers: Some(peers), ports: Some(vec![port]) };
        Policy { key: Key::new("a", "p"), ingress: Some(vec![rule]), ..Policy::default() }
    }

    fn pods(requirements: Vec<Requirement>) -> Peer {
        Peer::Pods { namespaces: None, pods: Selector { requirements } }
    }

    #[test]
    fn selectors_that_no_label_sets_apart_weigh_more() {
        let web = || Requirement::In("app".into(), vec!["web".into()]);
        let shard = |n: u32| Requirement::In("shard".into(), vec![n.to_string()]);
        let not = |n: u32| Requirement::NotIn("shard".into(), vec![n.to_string()]);
        let weight =
            |peer: &dyn Fn(u32) -> Peer| Weight::weigh(&policy((0..2000).map(peer).collect()));
        let apart = weight(&|n| pods(vec![web(), shard(n)]));
        assert_eq!(apart.units, [2 + 2000 * 5, 0]);
        assert_eq!(apart.excess, None);
        for crowded in [weight(&|n| pods(vec![web(), not(n)])), weight(&|n| pods(vec![not(n)]))] {
            let excess = crowded.excess.unwrap();
            assert!(
                excess.contains("spec.ingress") && excess.contains("over its budget"),
                "{excess}"
            );
        }
        let few = weight(&|n| pods(vec![not(n % 100)]));
        assert_eq!(few.excess, None);
    }

    #[test]
    fn pod_selectors_and_port_names_of_egress_weigh() {
        let labels = (0..600).map(|n| format!("{n:04}")).collect();
        let pod_selector = Selector { requirements: vec![Requirement::In("app".into(), labels)] };
        let weight = Weight::weigh(&Policy { pod_selector, ..policy(Vec::new()) });
        assert_eq!(weight.units, [601 + 2, 0], "of the isolated direction");
        let port = |n: u32| PortRule {
            protocol: Protocol::Tcp,
            port: PortMatch::Named(format!("name{n}")),
        };
        let rules = || Some(vec![Rule { peers: None, ports: Some((0..24).map(port).collect()) }]);
        let names = Policy { ingress: rules(), egress: rules(), ..Policy::default() };
        let weight = Weight::weigh(&names);
        assert_eq!(weight.units, [1 + 24, 1 + 24 * NAMED_UNITS as u32]);
        assert!(weight.units(Direction::Egress) > MODEST_UNITS, "charged and deferred");
    }

    #[test]
    fn policies_with_too_many_units_are_not_kept_in_full() {
        let selector = |count: u32| Selector {
            requirements: vec![Requirement::NotIn(
                "app".into(),
                (0..count).map(|n| format!("{n:06}")).collect(),
            )],
        };
        let ports = |count: u32| {
            let port = PortRule { protocol: Protocol::Tcp, port: PortMatch::Any };
            vec![Rule { peers: None, ports: Some(vec![port; count as usize]) }]
        };
        let of = |labels: u32, count: u32| Policy {
            pod_selector: selector(labels),
            ingress: Some(ports(count)),
            problems: vec!["a part".to_owned()],
            ..Policy::default()
        };
        let closed = |pod_selector| Policy {
            pod_selector,
            ingress: Some(Vec::new()),
            problems: vec!["a part".to_owned()],
            ..Policy::default()
        };
        assert_eq!(reduced_to_budget(of(9, 9)), of(9, 9));
        assert_eq!(
            reduced_to_budget(of(9, POLICY_UNITS)),
            closed(selector(9)),
            "its pods are known"
        );
        assert_eq!(
            reduced_to_budget(of(POLICY_UNITS, 1)),
            closed(Selector::default()),
            "every pod"
        );
        let excess = Weight::weigh(&of(POLICY_UNITS, 1)).excess.unwrap();
        assert!(excess.contains("isolates every pod of its namespace"), "{excess}");
    }

    #[test]
    fn the_largest_of_a_namespace_are_closed_first() {
        let of = |name: &str| Combination {
            direction: Direction::Ingress,
            policies: vec![Key::new("a", name)],
        };
        let third = NAMESPACE_UNITS / 3;
        let mut units = BTreeMap::from([
            (of("small"), 10),
            (of("one"), third),
            (of("largest"), third + 20),
            (of("other"), third),
        ]);
        assert_eq!(combinations_to_close(&units), BTreeSet::from([of("largest")]));
        units.remove(&of("small"));
        units.insert(of("largest"), third - 20);
        assert!(combinations_to_close(&units).is_empty());
    }
}
