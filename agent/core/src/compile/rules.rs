//! Rules of the policies in use, and which of them are closed because they exceed a limit.
//!
//! [`build`] compiles the rules that isolate a pod in a direction into a [`direction_policy::DirectionPolicy`],
//! [`policies`] keeps those in use, [`evaluate`] computes the ports allowed to the addresses of a class, [`limits`]
//! decides which policies are closed.

pub(crate) mod build;
mod causes;
pub(crate) mod direction_policy;
pub(crate) mod evaluate;
mod limits;
mod own_traffic;
mod policies;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::DefaultHashBuilder;

use crate::cluster::{Cluster, Dirty};
use crate::compile::sets::Sets;
use crate::compile::sets::block_groups::PolicyId;
use crate::compile::sets::registry::Registry;
use crate::model::{Direction, Key, Pod};
use crate::ports::AllowedPorts;
use crate::ports::tries::{Trie, Tries};
use build::Builder;
pub(crate) use causes::Closing;
use direction_policy::DirectionPolicy;
use evaluate::Evaluator;
pub(crate) use limits::LateCombination;
use limits::Limits;
use policies::DirectionPolicies;
pub(crate) use policies::StateBefore;

/// Direction policies in use, their limits and port sets.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) direction_policies: DirectionPolicies,
    pub(crate) limits: Limits,
    pub(crate) tries: Tries,
    hasher: DefaultHashBuilder,
    /// Number of peer sets read to fill columns so far.
    evaluated: u64,
}

impl Rules {
    /// The direction policy of a pod; `None` if no policy isolates it. A pod with unknown labels is isolated by every
    /// policy of its namespace. `direction` includes the pod's present direction policy.
    pub(crate) fn of_pod(
        &mut self,
        cluster: &Cluster,
        pod: (&Pod, bool),
        direction: (Direction, Option<StateBefore<'_>>),
        registry: &mut Registry,
    ) -> Option<(Arc<DirectionPolicy>, Option<LateCombination>)> {
        let mut builder = Builder { registry, tries: &mut self.tries, hasher: &self.hasher };
        self.direction_policies.of_pod(cluster, pod, direction, &mut self.limits, &mut builder)
    }

    /// Drops one use of a direction policy; returns its number if it was the last.
    pub(crate) fn release(&mut self, direction_policy: &Arc<DirectionPolicy>) -> Option<PolicyId> {
        self.direction_policies.release(direction_policy, self.limits.is_deferring())
    }

    /// A direction policy that isolates for egress and allows only this node.
    pub(crate) fn own_node(&mut self, registry: &mut Registry) -> Arc<DirectionPolicy> {
        Builder { registry, tries: &mut self.tries, hasher: &self.hasher }.own_node()
    }

    /// A direction policy that allows everything.
    pub(crate) fn everything(&mut self, registry: &mut Registry) -> Arc<DirectionPolicy> {
        Builder { registry, tries: &mut self.tries, hasher: &self.hasher }.everything()
    }

    /// An evaluator of direction policies for the addresses in `sets`.
    pub(crate) fn evaluator<'a>(&'a mut self, sets: &'a Sets, mark: AllowedPorts) -> Evaluator<'a> {
        Evaluator {
            registry: &sets.peers.registry,
            groups: &sets.groups,
            targets: &sets.targets,
            tries: &mut self.tries,
            mark,
            work: &mut self.evaluated,
        }
    }

    /// Weighs the policies of changed and `concerned` namespaces again. Returns the namespaces with a change in their
    /// closed combinations.
    pub(crate) fn reconsider(
        &mut self,
        cluster: &Cluster,
        dirty: &Dirty,
        mut concerned: BTreeSet<String>,
    ) -> BTreeSet<String> {
        let mut changed = self.limits.reconsider(cluster, dirty, &concerned);
        concerned.extend(dirty.policies.iter().cloned());
        let mut here: BTreeMap<&str, Vec<Arc<Pod>>> = BTreeMap::new();
        let pods: Vec<Arc<Pod>> = if concerned.is_empty() {
            Vec::new()
        } else {
            let interfaces = cluster.interfaces().values();
            interfaces.filter_map(|interface| cluster.pod_behind(interface).cloned()).collect()
        };
        for pod in pods.iter().filter(|pod| concerned.contains(&pod.key.namespace)) {
            here.entry(&pod.key.namespace).or_default().push(pod.clone());
        }
        for namespace in &concerned {
            let pods = here.get(namespace.as_str()).map_or(&[][..], Vec::as_slice);
            if self.limits.weigh(cluster, namespace, pods) {
                changed.insert(namespace.clone());
            }
        }
        changed
    }

    /// Closed combinations of policies with their direction and the reason.
    pub(crate) fn closed(&self) -> impl Iterator<Item = (&[Key], Direction, String)> {
        let closed = self.limits.closed();
        closed.map(|(of, reason)| (of.policies.as_slice(), of.direction, reason))
    }

    /// Work done so far: peer sets read for columns, and nodes of port sets.
    pub(crate) fn work(&self) -> u64 {
        self.evaluated + self.tries.work
    }

    /// Drops direction policies and port sets, but keeps combinations closed.
    pub(crate) fn forget(&mut self) {
        self.direction_policies.clear();
        self.tries = Tries::default();
        self.evaluated = 0;
    }

    /// Ends the update: drops unused direction policies, and port sets used neither by direction policies nor by
    /// `others`.
    pub(crate) fn sweep<'a>(
        &mut self,
        of_rows: impl Iterator<Item = &'a Arc<DirectionPolicy>>,
        others: impl Iterator<Item = Trie>,
    ) {
        self.direction_policies.sweep();
        if self.tries.is_large() {
            let grants = self
                .direction_policies
                .iter()
                .flat_map(|direction_policy| direction_policy.grants());
            let rows = of_rows.flat_map(|direction_policy| direction_policy.grants());
            self.tries.collect(grants.chain(rows).flat_map(AllowedPorts::sets).chain(others));
        }
    }
}
