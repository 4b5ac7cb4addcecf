//! Use of rules by traffic, read from the flow table at each sweep, so that packets do not pay for it.
//!
//! Every flow that policy allows at an isolated pod has an entry in the flow table until it has been idle for its
//! timeout, 10 seconds at least. Each sweep visits every entry before it may remove it. A new flow is counted for every
//! rule that allows it; packets of a known flow renew the last use of these rules. A sweep compares flows with rules up
//! to a budget; the rest waits for the next sweep.
//!
//! Not seen: flows displaced from the table between two sweeps (counted as missed), packets without an entry (ICMP
//! errors, connections older than the isolation of their pod), and traffic that needs no rule (of this node, of a pod
//! to itself).

mod flows;
mod opened;
mod pods;
mod records;
pub mod round;
mod trials;
mod unisolated_flows;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use netpold_api::rules::RulesAnswer;
use netpold_core::cluster::{AddressOwner, Cluster};
use netpold_core::compile::Compiler;
use netpold_core::explain::ResolvedNames;
use netpold_core::model::{Change, Key, Pod};
use serde::{Deserialize, Serialize};

use crate::events::{DropLogLine, Dropped, JournalEvent, UnreportedFlows, unix_millis};
use crate::kept;
use crate::learn::{self, Recorder};
pub use flows::SweepResult;
use flows::{RuleCache, denied_flow};
use opened::OpenedFlows;
use pods::SweptPods;
use records::{PolicyRecord, RuleRecords};
use trials::TrialFlows;
pub use unisolated_flows::ObservedSweep;
use unisolated_flows::SweepRecords;

/// File of the saved use of rules.
pub const FILE: kept::RecordKind =
    kept::RecordKind { suffix: ".rules", subject: "counts of rule uses" };

/// Saved use of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRuleUse {
    /// Time of the save, in milliseconds since the epoch.
    as_of: u64,
    missed: u64,
    policies: Vec<PolicyRecord>,
}

/// Use of rules on this node.
#[derive(Debug)]
pub struct RuleUse {
    records: RuleRecords,
    last: SweepResult,
    /// Time of an earlier agent's save, in milliseconds since the epoch.
    counted_until: Option<u64>,
    pods: SweptPods,
    /// Times of recent policy changes, in milliseconds since the epoch.
    changed: BTreeMap<Key, u64>,
    /// Number of flows that ended before they could be counted.
    missed: u64,
    cache: RuleCache,
    /// Addresses that pods had resolved at the last sweep.
    resolved: ResolvedNames,
    trials: TrialFlows,
    opened: OpenedFlows,
    observed: SweepRecords,
    /// Recorder of flows, one record for each kind.
    recorder: Recorder,
}

impl Default for RuleUse {
    fn default() -> Self {
        Self {
            records: RuleRecords::default(),
            last: SweepResult { wall: unix_millis(), ..SweepResult::default() },
            counted_until: None,
            pods: SweptPods::default(),
            changed: BTreeMap::new(),
            missed: 0,
            cache: RuleCache::default(),
            resolved: ResolvedNames::default(),
            trials: TrialFlows::default(),
            opened: OpenedFlows::default(),
            observed: SweepRecords::default(),
            recorder: Recorder::new(unix_millis()),
        }
    }
}

impl RuleUse {
    /// Resumes from the save of an earlier agent.
    pub fn resume(&mut self, saved: SavedRuleUse) {
        self.counted_until = Some(saved.as_of);
        self.missed = saved.missed;
        self.records.resume(saved.policies);
    }

    /// Records the time of a policy change, or the addresses of a pod that is removed. Call before the cluster ingests
    /// the change.
    pub fn record_change(&mut self, change: &Change, cluster: &Cluster) {
        match change {
            Change::Policy(policy) => {
                let known = cluster.policies().get(&policy.key);
                if known.is_none_or(|known| **known != *policy) {
                    self.changed.insert(policy.key.clone(), unix_millis());
                }
            }
            Change::ClusterPolicy(policy) => {
                let known = cluster.cluster_policy(&policy.name);
                if known.is_none_or(|known| **known != *policy) {
                    self.changed.insert(Key::new("", policy.name.clone()), unix_millis());
                }
            }
            Change::Pod(pod) => {
                self.pods.record_lost_addresses(&pod.key, Some(pod), cluster, unix_millis());
                self.recorder.named(pod, cluster, unix_millis());
            }
            Change::PodGone(key) => {
                self.pods.record_lost_addresses(key, None, cluster, unix_millis());
            }
            Change::Namespace(_)
            | Change::NamespaceGone(_)
            | Change::Node(_)
            | Change::NodeGone(_)
            | Change::PolicyGone(_)
            | Change::ClusterPolicyGone(_)
            | Change::Service(_)
            | Change::ServiceGone(_)
            | Change::EndpointSlice(_)
            | Change::EndpointSliceGone(_)
            | Change::Interface(_)
            | Change::InterfaceGone(_)
            | Change::OwnAddresses(_) => {}
        }
    }

    /// Follows the binding of endpoints to pods, after an update.
    pub fn set_endpoints(&mut self, compiler: &Compiler) {
        self.pods.follow(compiler);
    }

    /// Sets the addresses that pods resolved, by which rules with domain names match flows.
    pub fn set_resolved_names(&mut self, resolved: ResolvedNames) {
        // An evaluation without a name does not hold once a pod has resolved it.
        if !resolved.is_alike(&self.resolved) {
            self.trials.forget();
        }
        self.resolved = resolved;
    }

    /// Ends a sweep that has visited all flows.
    pub fn end(&mut self, compiler: &Compiler, met: SweepResult) {
        self.missed += met.missed;
        let missed = self.last.missed + met.missed;
        self.last = SweepResult { now: met.now.or(self.last.now), missed, ..met };
        if self.pods.forget(&compiler.endpoint_numbers(), unix_millis()) {
            // Cached explanations must not refer to a forgotten pod.
            self.cache.outdate();
        }
    }

    /// Returns the pod of a drop or flow by its endpoint number, otherwise by its interface (0: none). Removed pods are
    /// remembered for some minutes.
    #[must_use]
    pub fn pod_of(&self, endpoint: u32, ifindex: u32) -> Option<&Arc<Pod>> {
        self.pods.named(endpoint, ifindex)
    }

    /// Returns the pod that had an address at a time (milliseconds since the epoch) and no longer has it.
    #[must_use]
    pub fn former(&self, cluster: &Cluster, address: IpAddr, at: u64) -> Option<&Arc<Pod>> {
        self.pods.former(cluster, address, at)
    }

    /// Returns the owner of an address at a time, in milliseconds since the epoch. Removed pods are remembered for some
    /// minutes.
    #[must_use]
    pub fn owner_of_address(&self, cluster: &Cluster, address: IpAddr, at: u64) -> AddressOwner {
        self.pods.owner_of_address(cluster, address, at)
    }

    /// Begins a sweep of the records of observed flows. `unrecorded`: number of flows without a record, so far.
    pub fn sweep_observed(&mut self, unrecorded: u64) -> ObservedSweep<'_> {
        self.observed.begin(&mut self.opened, self.counted_until, unrecorded)
    }

    /// Takes the new flows of the last sweep.
    pub fn take_new_flows(&mut self) -> NewFlows {
        let (audited, more_audited) = self.trials.take_drops();
        let (opened, more_opened) = self.opened.take_flows();
        let missed = std::mem::take(&mut self.last.missed);
        let missed = missed + self.observed.take_missed();
        let unreported = UnreportedFlows { audited: more_audited, opened: more_opened + missed };
        NewFlows { audited, opened, unreported }
    }

    /// Returns the flows that audited policies would deny: by policy (a ClusterNetworkPolicy has no namespace), and in
    /// sum for policies without a name.
    #[must_use]
    pub fn audited(&self) -> (Vec<(Key, u64)>, u64) {
        self.trials.counts()
    }

    /// Returns the state to save.
    #[must_use]
    pub fn saved(&self) -> SavedRuleUse {
        SavedRuleUse { as_of: unix_millis(), missed: self.missed, policies: self.records.saved() }
    }

    /// Resumes an earlier agent's records of flows.
    pub fn resume_flows(&mut self, saved: learn::KeptRecords) {
        self.recorder.resume(saved.recorded);
        self.recorder.resume_addresses(saved.peer_addresses);
    }

    /// Records dropped packets, by endpoint number.
    pub fn denied(&mut self, cluster: &Cluster, dropped: &BTreeMap<u32, Vec<DropLogLine>>) {
        for (endpoint, lines) in dropped {
            let Some(pod) = self.pods.named(*endpoint, 0) else { continue };
            for DropLogLine { dropped, times } in lines {
                if let Some(flow) = denied_flow(pod, dropped) {
                    let at = dropped.unix_millis;
                    let former = |address| self.pods.former(cluster, address, at).map(|pod| &**pod);
                    self.recorder.denied(cluster, flow, former, *times, at);
                }
            }
        }
    }

    /// Returns the recorded flows in the form saved for the next agent.
    #[must_use]
    pub fn kept_flows(&self, node: &str) -> learn::KeptRecords {
        learn::KeptRecords {
            recorded: self.flows(node),
            peer_addresses: self.recorder.peer_addresses(),
        }
    }

    /// Returns the recorded flows.
    #[must_use]
    pub fn flows(&self, node: &str) -> netpold_api::learn::LearnAnswer {
        let recorded = self.recorder.answer(node, unix_millis());
        netpold_api::learn::LearnAnswer { missed_flows: self.missed, ..recorded }
    }

    /// Returns the use of each rule.
    #[must_use]
    pub fn answer(&self, node: &str) -> RulesAnswer {
        let (rules, unwatched) = self.records.answer();
        RulesAnswer {
            node: node.to_owned(),
            as_of: unix_millis() / 1000,
            rules,
            missed_flows: self.missed,
            unwatched_policies: unwatched,
            ..RulesAnswer::default()
        }
    }
}

/// New flows of a sweep.
#[derive(Debug, Default)]
pub struct NewFlows {
    /// Flows that audited policies would deny.
    pub audited: Vec<Dropped>,
    /// New flows in the table.
    pub opened: Vec<JournalEvent>,
    /// Flows not reported one by one.
    pub unreported: UnreportedFlows,
}

#[cfg(test)]
mod tests;
