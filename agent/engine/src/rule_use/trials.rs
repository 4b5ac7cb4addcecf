//! Flows that passed and that audited policies (`netpold.io/enforcement: audit`) would deny.
//!
//! The sweep of the flow table finds them together with the use of rules, because the table has an entry for each flow
//! of a pod with audited policies. This adds no cost to packets, and flows are reported a sweep later. Each flow counts
//! once: at its first visit, or when a policy appears that would deny it.

use std::collections::{BTreeMap, HashMap};

use netpold_core::cluster::Cluster;
use netpold_core::explain::{Explainer, PodFlow, ResolvedNames};
use netpold_core::model::{Direction, Key};
use netpold_dataplane::conntrack::EndpointFlow;

use super::flows::AllowedFlowKey;
use crate::events::Dropped;

/// Cost of one evaluation of policies in a sweep's budget.
pub(super) const LOOK: usize = 64;
/// Policies with a count of their own; the others share one.
const COUNTED: usize = 500;
/// Maximum number of flows of one sweep that are reported individually; the rest is only counted.
const TOLD: usize = 256;
/// Maximum number of cached kinds of flows.
const REMEMBERED: usize = 16_384;

/// Flows found so far.
#[derive(Debug, Default)]
pub(super) struct TrialFlows {
    /// Flows by policy; a ClusterNetworkPolicy has no namespace.
    counts: BTreeMap<Key, u64>,
    /// Flows of policies beyond [`COUNTED`].
    others: u64,
    /// Reported flows of the last sweep.
    told: Vec<Dropped>,
    /// Number of the last sweep's other flows.
    untold: u64,
    cache: TrialCache,
}

/// Evaluations for one state of the cluster.
#[derive(Debug, Default)]
struct TrialCache {
    on_trial: HashMap<(u32, Direction), bool>,
    /// Denying policies; empty for a flow that would pass.
    denied_by: HashMap<AllowedFlowKey, Box<[Key]>>,
}

impl TrialFlows {
    /// Clears the cache after a change of the cluster's state.
    pub(super) fn forget(&mut self) {
        self.cache = TrialCache::default();
    }

    /// Takes the flows of the last sweep as drops, and the number of the others.
    pub(super) fn take_drops(&mut self) -> (Vec<Dropped>, u64) {
        (std::mem::take(&mut self.told), std::mem::take(&mut self.untold))
    }

    /// Returns flows by policy, and in sum for policies beyond [`COUNTED`].
    pub(super) fn counts(&self) -> (Vec<(Key, u64)>, u64) {
        let counts = self.counts.iter().map(|(key, count)| (key.clone(), *count));
        (counts.collect(), self.others)
    }

    /// Evaluates a flow that is not counted yet; returns whether it would be denied. `resolved`: addresses that pods
    /// resolved, for the names of enforced rules. Adds the effort to `cost`.
    pub(super) fn evaluate_flow(
        &mut self,
        (cluster, resolved): (&Cluster, &ResolvedNames),
        tuple: &EndpointFlow,
        flow: PodFlow<'_>,
        kind: AllowedFlowKey,
        cost: &mut usize,
    ) -> bool {
        let on_trial = self.cache.on_trial.entry((tuple.endpoint, flow.direction));
        let is_on_trial = || cluster.policies_about((flow.pod, true), flow.direction).is_on_trial();
        if !*on_trial.or_insert_with(is_on_trial) {
            return false;
        }
        if self.cache.denied_by.len() >= REMEMBERED {
            self.cache.denied_by.clear();
        }
        let denied_by = self.cache.denied_by.entry(kind).or_insert_with(|| {
            *cost += LOOK;
            let PodFlow { pod, direction, remote, protocol, port } = flow;
            let explainer = Explainer::new(cluster).with_resolved(resolved);
            explainer.denied_on_trial(pod, direction, remote, protocol, port).into()
        });
        if denied_by.is_empty() {
            return false;
        }
        for policy in denied_by.iter() {
            if let Some(count) = self.counts.get_mut(policy) {
                *count += 1;
            } else if self.counts.len() < COUNTED {
                self.counts.insert(policy.clone(), 1);
            } else {
                self.others += 1;
            }
        }
        if self.told.len() < TOLD {
            let local = flow.pod.addresses.iter().copied();
            let local = local.into_iter().find(|it| it.is_ipv4() == flow.remote.is_ipv4());
            self.told.push(Dropped::audited(tuple, flow.direction, local));
        } else {
            self.untold += 1;
        }
        true
    }
}
