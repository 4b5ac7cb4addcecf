//! The direction policies in use and their inputs: pods with equal inputs share one direction policy.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::budget::{Combination, ORDINARY_UNITS};
use crate::cluster::Cluster;
use crate::compile::rules::build::{Builder, BuilderInput};
use crate::compile::rules::direction_policy::DirectionPolicy;
use crate::compile::rules::limits::{LateCombination, Limits};
use crate::compile::rules::own_traffic::OwnTraffic;
use crate::compile::sets::block_groups::PolicyId;
use crate::compile::sets::set::HairpinService;
use crate::model::{ClusterPolicy, Direction, NamedPort, Pod, Policy, PortMatch};

/// Input of a direction policy. Policies are compared by pointer.
#[derive(Clone, Debug)]
struct DirectionPolicyInput {
    direction: Direction,
    policies: Vec<Arc<Policy>>,
    ports: Vec<NamedPort>,
    served: Vec<HairpinService>,
    /// Hairpin services that tiers refuse; disjoint from `served`.
    refused: Vec<HairpinService>,
    /// In order of evaluation.
    tiers: Vec<Arc<ClusterPolicy>>,
    /// The pod's labels are known, so `policies` are those that select it.
    labelled: bool,
}

impl DirectionPolicyInput {
    /// The source to build, with these policies as the granting ones.
    fn source<'a>(&'a self, policies: &'a [&'a Policy]) -> BuilderInput<'a> {
        BuilderInput {
            direction: self.direction,
            policies,
            isolated: !self.policies.is_empty(),
            tiers: &self.tiers,
            labelled: self.labelled,
            ports: &self.ports,
            served: &self.served,
            refused: &self.refused,
        }
    }

    /// The direction policy without grants of NetworkPolicies. Tiers still apply: no NetworkPolicy, however large,
    /// exempts a pod from them.
    fn closed(&self, builder: &mut Builder<'_>) -> Arc<DirectionPolicy> {
        match self.tiers.is_empty() && self.refused.is_empty() {
            true => builder.closed(self.direction),
            false => builder.build(&BuilderInput { served: &[], ..self.source(&[]) }),
        }
    }
}

impl DirectionPolicyInput {
    /// Whether the rules of tiers are those of another input.
    fn has_tiers_of(&self, other: &Self) -> bool {
        let mut tiers = self.tiers.iter().zip(&other.tiers);
        self.tiers.len() == other.tiers.len()
            && tiers.all(|(one, other)| Arc::ptr_eq(one, other))
            && self.refused == other.refused
    }
}

impl PartialEq for DirectionPolicyInput {
    fn eq(&self, other: &Self) -> bool {
        let policies = || self.policies.iter().zip(&other.policies);
        self.direction == other.direction
            && self.policies.len() == other.policies.len()
            && policies().all(|(one, other)| Arc::ptr_eq(one, other))
            && self.has_tiers_of(other)
            && self.ports == other.ports
            && self.served == other.served
            && self.labelled == other.labelled
    }
}

impl Eq for DirectionPolicyInput {}

impl Hash for DirectionPolicyInput {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.direction.hash(state);
        self.policies.iter().for_each(|policy| Arc::as_ptr(policy).hash(state));
        self.tiers.iter().for_each(|policy| Arc::as_ptr(policy).hash(state));
        self.ports.hash(state);
        self.served.hash(state);
        self.refused.hash(state);
    }
}

/// State of a pod in a direction before an update.
#[derive(Clone, Copy)]
pub(crate) struct StateBefore<'a> {
    pub(crate) direction_policy: &'a Arc<DirectionPolicy>,
    /// The pod's labels have not changed.
    pub(crate) same_labels: bool,
}

/// The direction policies in use.
#[derive(Debug, Default)]
pub(crate) struct DirectionPolicies {
    next: PolicyId,
    /// Number of each direction policy, and how many endpoint directions use it.
    users: HashMap<Arc<DirectionPolicy>, (PolicyId, u32)>,
    made: HashMap<DirectionPolicyInput, Arc<DirectionPolicy>>,
    /// Direction policies of large combinations.
    large: HashSet<Arc<DirectionPolicy>>,
    /// Unused large direction policies that are too large to remove from the tables now.
    lingering: HashSet<Arc<DirectionPolicy>>,
}

impl DirectionPolicies {
    /// The direction policy of a pod; `None` if no policy isolates it. A pod with unknown labels is isolated by every
    /// policy of its namespace, and granted only the rules of policies that select every pod.
    pub(crate) fn of_pod(
        &mut self,
        cluster: &Cluster,
        (pod, labelled): (&Pod, bool),
        (direction, before): (Direction, Option<StateBefore<'_>>),
        limits: &mut Limits,
        builder: &mut Builder<'_>,
    ) -> Option<(Arc<DirectionPolicy>, Option<LateCombination>)> {
        let policies = cluster.policies_about((pod, labelled), direction).isolating();
        let tiers = cluster.policies_about((pod, labelled), direction).tiers();
        let is_ingress = direction == Direction::Ingress;
        let isolated = !policies.is_empty();
        let backs = !is_ingress && (isolated || !cluster.cluster_policies.is_empty());
        let [served, refused] = match backs {
            true => served(cluster, (pod, labelled), isolated),
            false => [Vec::new(), Vec::new()],
        };
        if !isolated && tiers.is_empty() && refused.is_empty() {
            return None;
        }
        let named = is_ingress
            && (policies.iter().any(|policy| {
                cluster.policies.weight(&policy.key).is_some_and(|weight| weight.names_ports)
            }) || tiers.iter().any(|policy| names_ports(policy)));
        let ports = if named { pod.ports.clone() } else { Vec::new() };
        let of = combination(direction, &policies);
        let made =
            DirectionPolicyInput { direction, policies, ports, served, refused, tiers, labelled };
        if !limits.is_empty() && limits.is_closed(&of) {
            return Some((made.closed(builder), None));
        }
        if let Some(known) = self.made.get(&made) {
            return Some((known.clone(), None));
        }
        let policies = &made.policies;
        let weights = policies.iter().filter_map(|policy| cluster.policies.weight(&policy.key));
        let units = weights.map(|weight| weight.units(direction)).sum();
        if !limits.admits(&of, units) {
            let former = self.former(&made, before);
            let late = LateCombination {
                of,
                is_closed: former.is_none(),
                has_outdated_tiers: former.is_some_and(|(other, _)| !other.has_tiers_of(&made)),
            };
            let former = former.map(|(_, direction_policy)| direction_policy.clone());
            return Some((former.unwrap_or_else(|| made.closed(builder)), Some(late)));
        }
        // A policy beyond its budget isolates and grants nothing.
        let policies = policies.iter().filter(|policy| {
            let selects = labelled || policy.pod_selector.requirements.is_empty();
            selects && cluster.excess(&policy.key).is_none()
        });
        let policies: &[&Policy] = &policies.map(|policy| &**policy).collect::<Vec<_>>();
        let direction_policy = builder.build(&made.source(policies));
        let direction_policy = self
            .users
            .get_key_value(&direction_policy)
            .map_or(direction_policy, |(known, _)| known.clone());
        if units > ORDINARY_UNITS {
            self.large.insert(direction_policy.clone());
        }
        self.made.insert(made, direction_policy.clone());
        Some((direction_policy, None))
    }

    /// The direction policy that a pod keeps until its policies are compiled, with its input: its present one if only
    /// policies changed; otherwise one built from the same policies before an edit, with the same rules of tiers, for
    /// this pod or for a pod with the same ports and Services.
    fn former(
        &self,
        made: &DirectionPolicyInput,
        before: Option<StateBefore<'_>>,
    ) -> Option<(&DirectionPolicyInput, &Arc<DirectionPolicy>)> {
        let of = combination(made.direction, &made.policies);
        // The pod's own direction policy first, then the newest.
        let rank = |(other, direction_policy): &(&DirectionPolicyInput, &Arc<DirectionPolicy>)| {
            let own = before.filter(|own| Arc::ptr_eq(own.direction_policy, direction_policy));
            let same = || {
                other.labelled == made.labelled
                    && other.has_tiers_of(made)
                    && combination(other.direction, &other.policies) == of
                    && (own.is_some() || (other.ports == made.ports && other.served == made.served))
            };
            let fits = own.is_some_and(|own| own.same_labels) || same();
            fits.then(|| (own.is_some(), self.id(direction_policy)))
        };
        self.made.iter().max_by_key(rank).filter(|best| rank(best).is_some())
    }

    /// The number of a direction policy that is in use.
    pub(crate) fn id(&self, direction_policy: &Arc<DirectionPolicy>) -> Option<PolicyId> {
        self.users.get(direction_policy).map(|(id, _)| *id)
    }

    /// Adds one use of a direction policy; returns its number if it is the first.
    pub(crate) fn acquire(&mut self, direction_policy: &Arc<DirectionPolicy>) -> Option<PolicyId> {
        if let Some((_, users)) = self.users.get_mut(direction_policy) {
            *users += 1;
            self.lingering.remove(direction_policy);
            return None;
        }
        let id = self.next;
        self.next += 1;
        self.users.insert(direction_policy.clone(), (id, 1));
        Some(id)
    }

    /// Drops one use of a direction policy; returns its number if it was the last. With `linger`, a large one stays in
    /// the tables instead, to keep the update small.
    pub(crate) fn release(
        &mut self,
        direction_policy: &Arc<DirectionPolicy>,
        linger: bool,
    ) -> Option<PolicyId> {
        let (id, users) = self.users.get_mut(direction_policy)?;
        let id = *id;
        *users -= 1;
        if *users == 0 && linger && self.large.contains(direction_policy) {
            self.lingering.insert(direction_policy.clone());
            return None;
        }
        (*users == 0).then(|| {
            self.users.remove(direction_policy);
            id
        })
    }

    /// The direction policies in use, with their combinations of policies.
    pub(crate) fn combinations(
        &self,
    ) -> impl Iterator<Item = (Combination, &Arc<DirectionPolicy>)> {
        let made = self.made.iter();
        made.map(|(made, it)| (combination(made.direction, &made.policies), it))
    }

    /// Drops all direction policies.
    pub(crate) fn clear(&mut self) {
        self.users.clear();
        self.made.clear();
        self.large.clear();
        self.lingering.clear();
    }

    /// The direction policies in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<DirectionPolicy>> {
        self.users.keys()
    }

    /// Unused direction policies that are still in the tables.
    pub(crate) fn lingering(&self) -> impl Iterator<Item = &Arc<DirectionPolicy>> {
        self.lingering.iter()
    }

    /// Namespaces of the lingering direction policies.
    pub(crate) fn lingering_of(&self) -> BTreeSet<String> {
        let made = self.made.iter().filter(|_| !self.lingering.is_empty());
        let lingering = made.filter(|(_, it)| self.lingering.contains(*it));
        let policies = lingering.filter_map(|(made, _)| made.policies.first());
        policies.map(|policy| policy.key.namespace.clone()).collect()
    }

    /// Ends the update: drops inputs of unused direction policies.
    pub(crate) fn sweep(&mut self) {
        let users = &self.users;
        self.made.retain(|_, direction_policy| users.contains_key(direction_policy));
        self.large.retain(|direction_policy| users.contains_key(direction_policy));
    }
}

fn combination(direction: Direction, policies: &[Arc<Policy>]) -> Combination {
    let policies = policies.iter().map(|policy| policy.key.clone()).collect();
    Combination { direction, policies }
}

/// The service targets of the pod's namespace with a pod itself as backend: those through which it may reach itself,
/// regardless of NetworkPolicies, and those through which tiers deny it.
fn served(
    cluster: &Cluster,
    (pod, labelled): (&Pod, bool),
    isolated: bool,
) -> [Vec<HairpinService>; 2] {
    let (mut served, mut refused) = (BTreeSet::new(), BTreeSet::new());
    let judge = OwnTraffic::for_pod(cluster, (pod, labelled), isolated);
    for backed in cluster.translation.backed_by(pod) {
        let (service, protocol) = (backed.service.key.clone(), backed.port.protocol);
        let (v6, port) = (backed.address.is_ipv6(), backed.port.port);
        let hairpin = HairpinService { service, v6, protocol, port };
        match judge.denies(backed.address, protocol, backed.number) {
            true => refused.insert(hairpin),
            false => served.insert(hairpin),
        };
    }
    served.retain(|hairpin| !refused.contains(hairpin));
    [served, refused].map(|all| all.into_iter().collect())
}

/// Whether ingress rules of a policy use port names.
fn names_ports(policy: &ClusterPolicy) -> bool {
    let mut ports = policy.ingress.iter().flat_map(|rule| rule.matches.ports.iter().flatten());
    ports.any(|port| matches!(port.port, PortMatch::Named(_)))
}
