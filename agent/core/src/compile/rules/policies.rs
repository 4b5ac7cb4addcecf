//! The direction policies in use, and what they were made of: pods of one kind have one, made once.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::budget::Combination;
use crate::cluster::Cluster;
use crate::compile::rules::build::{Builder, Source};
use crate::compile::rules::direction_policy::DirectionPolicy;
use crate::compile::rules::limits::Limits;
use crate::compile::sets::block_groups::PolicyId;
use crate::compile::sets::set::HairpinService;
use crate::model::{Direction, NamedPort, Pod, Policy};

/// What a direction policy was made of. Policies are the same if they are one object.
#[derive(Clone, Debug)]
struct Made {
    direction: Direction,
    policies: Vec<Arc<Policy>>,
    ports: Vec<NamedPort>,
    served: Vec<HairpinService>,
    /// The pod's labels are known, so the policies are those that select it.
    labelled: bool,
}

impl PartialEq for Made {
    fn eq(&self, other: &Self) -> bool {
        let policies = || self.policies.iter().zip(&other.policies);
        self.direction == other.direction
            && self.policies.len() == other.policies.len()
            && policies().all(|(one, other)| Arc::ptr_eq(one, other))
            && self.ports == other.ports
            && self.served == other.served
            && self.labelled == other.labelled
    }
}

impl Eq for Made {}

impl Hash for Made {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.direction.hash(state);
        self.policies.iter().for_each(|policy| Arc::as_ptr(policy).hash(state));
        self.ports.hash(state);
        self.served.hash(state);
    }
}

/// The direction policies in use.
#[derive(Debug, Default)]
pub(crate) struct DirectionPolicies {
    next: PolicyId,
    /// Their numbers and how many endpoint directions use them.
    users: HashMap<Arc<DirectionPolicy>, (PolicyId, u32)>,
    made: HashMap<Made, Arc<DirectionPolicy>>,
}

impl DirectionPolicies {
    /// What a pod's policies allow in a direction; `None` if none isolates it. A pod whose labels are
    /// not known is isolated by every policy of its namespace, and granted what those grant that
    /// select every pod.
    pub(crate) fn of_pod(
        &mut self,
        cluster: &Cluster,
        (pod, labelled): (&Pod, bool),
        direction: Direction,
        limits: &mut Limits,
        builder: &mut Builder<'_>,
    ) -> Option<Arc<DirectionPolicy>> {
        let policies = cluster.isolating((pod, labelled), direction);
        if policies.is_empty() {
            return None;
        }
        if !limits.is_empty() && limits.is_closed(&combination(direction, &policies)) {
            return Some(builder.closed(direction));
        }
        let is_ingress = direction == Direction::Ingress;
        let named = is_ingress
            && policies
                .iter()
                .any(|policy| cluster.weight(&policy.key).is_some_and(|weight| weight.names_ports));
        let ports = if named { pod.ports.clone() } else { Vec::new() };
        let served = if is_ingress { Vec::new() } else { served(cluster, pod) };
        let made = Made { direction, policies, ports, served, labelled };
        if let Some(known) = self.made.get(&made) {
            return Some(known.clone());
        }
        let Made { policies, ports, served, .. } = &made;
        let weights = policies.iter().filter_map(|policy| cluster.weight(&policy.key));
        let units = weights.map(|weight| weight.units(direction)).sum();
        if !limits.admits(combination(direction, policies), units) {
            return Some(builder.closed(direction));
        }
        // One that asks for more than its budget isolates and grants nothing.
        let policies = policies.iter().filter(|policy| {
            let selects = labelled || policy.pod_selector.requirements.is_empty();
            selects && cluster.excess(&policy.key).is_none()
        });
        let policies: &[&Policy] = &policies.map(|policy| &**policy).collect::<Vec<_>>();
        let source = Source { direction, policies, ports, served };
        let direction_policy = builder.build(&source);
        let direction_policy = self
            .users
            .get_key_value(&direction_policy)
            .map_or(direction_policy, |(known, _)| known.clone());
        self.made.insert(made, direction_policy.clone());
        Some(direction_policy)
    }

    /// The number of a direction policy that is in use.
    pub(crate) fn id(&self, direction_policy: &Arc<DirectionPolicy>) -> Option<PolicyId> {
        self.users.get(direction_policy).map(|(id, _)| *id)
    }

    /// One endpoint direction more has this direction policy; its number, if it is the first.
    pub(crate) fn acquire(&mut self, direction_policy: &Arc<DirectionPolicy>) -> Option<PolicyId> {
        if let Some((_, users)) = self.users.get_mut(direction_policy) {
            *users += 1;
            return None;
        }
        let id = self.next;
        self.next += 1;
        self.users.insert(direction_policy.clone(), (id, 1));
        Some(id)
    }

    /// One endpoint direction less has this direction policy; its number, if it was the last.
    pub(crate) fn release(&mut self, direction_policy: &Arc<DirectionPolicy>) -> Option<PolicyId> {
        let (id, users) = self.users.get_mut(direction_policy)?;
        let id = *id;
        *users -= 1;
        (*users == 0).then(|| {
            self.users.remove(direction_policy);
            id
        })
    }

    /// How large the combinations of policies are that direction policies in use were made of.
    pub(crate) fn sizes(&self) -> BTreeMap<Combination, usize> {
        let mut sizes = BTreeMap::new();
        for (made, direction_policy) in &self.made {
            let size = direction_policy.peers.len()
                + direction_policy.blocks.changes.0.len()
                + direction_policy.blocks.len();
            *sizes.entry(combination(made.direction, &made.policies)).or_default() += size;
        }
        sizes
    }

    /// Forgets the direction policies, not what is closed.
    pub(crate) fn clear(&mut self) {
        self.users.clear();
        self.made.clear();
    }

    /// The direction policies in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<DirectionPolicy>> {
        self.users.keys()
    }

    /// Ends the update: forgets what nothing in use was made of.
    pub(crate) fn sweep(&mut self) {
        let users = &self.users;
        self.made.retain(|_, direction_policy| users.contains_key(direction_policy));
    }
}

fn combination(direction: Direction, policies: &[Arc<Policy>]) -> Combination {
    let policies = policies.iter().map(|policy| policy.key.clone()).collect();
    Combination { direction, policies }
}

/// A pod reaches itself, also by way of a Service that it backs.
fn served(cluster: &Cluster, pod: &Pod) -> Vec<HairpinService> {
    let mut served = Vec::new();
    for (service, port, v6) in cluster.translation().backed_by(pod) {
        let service = service.key.clone();
        served.push(HairpinService { service, v6, protocol: port.protocol, port: port.port });
    }
    served.sort_unstable();
    served.dedup();
    served
}
