//! Direction policies of the pod behind an endpoint.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::compile::rules::direction_policy::DirectionPolicy;
use crate::compile::rules::{LateCombination, Rules, StateBefore};
use crate::compile::sets::registry::Registry;
use crate::model::{Direction, Labels, Pod};

/// Direction policies of a pod and their inputs.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodRules {
    /// Ingress and egress; `None` if not isolated.
    pub(crate) policies: [Option<Arc<DirectionPolicy>>; 2],
    /// Not isolated, but selected by an audited policy. Ingress then has a row that allows everything, because the
    /// packet path records only flows of endpoints with a row.
    watched: bool,
    /// Labels by which policies select the pod, if known.
    labels: Option<Labels>,
    /// Combinations of policies that are not in force as last edited.
    pub(crate) late: [Option<LateCombination>; 2],
}

impl PodRules {
    /// Rules for an interface with an unknown pod: only this node is allowed.
    pub(super) fn waiting(rules: &mut Rules, registry: &mut Registry) -> Self {
        let policies = [Some(DirectionPolicy::nothing()), Some(rules.own_node(registry))];
        Self { policies, ..Self::default() }
    }

    /// Rules for a pod; `labelled` is whether its labels are known. `before` are its present rules. If `closed`,
    /// nothing is allowed in an isolated direction.
    pub(super) fn for_pod(
        (pod, labelled): (&Pod, bool),
        (before, closed): (Option<&Self>, bool),
        cluster: &Cluster,
        rules: &mut Rules,
        registry: &mut Registry,
    ) -> Self {
        let [ingress, egress] = Direction::BOTH.map(|direction| {
            let now = before.filter(|before| !before.watched).and_then(|before| {
                let direction_policy = before.policies[direction as usize].as_ref()?;
                let same_labels = before.labels == labelled.then(|| pod.labels.clone());
                Some(StateBefore { direction_policy, same_labels })
            });
            rules.of_pod(cluster, (pod, labelled), (direction, now), registry).unzip()
        });
        let mut policies = [ingress.0, egress.0].map(|direction_policy| {
            direction_policy.map(|it| if closed { DirectionPolicy::nothing() } else { it })
        });
        let about = |direction| cluster.policies_about((pod, labelled), direction);
        let watched = policies.iter().all(Option::is_none)
            && Direction::BOTH.into_iter().any(|direction| about(direction).is_on_trial());
        if watched {
            policies = [Some(rules.everything(registry)), None];
        }
        let late = [ingress.1.flatten(), egress.1.flatten()];
        Self { policies, watched, labels: labelled.then(|| pod.labels.clone()), late }
    }

    /// Whether a direction is isolated.
    pub(crate) fn isolated(&self, direction: Direction) -> bool {
        !self.watched && self.policies[direction as usize].is_some()
    }
}
