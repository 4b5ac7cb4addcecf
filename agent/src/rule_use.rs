//! Which rule carried traffic, and when: read from the flow table at each sweep, so no packet pays for it.
//!
//! Every flow that policy allows at an isolated pod has an entry in the flow table until it has been idle for
//! its timeout, 10 seconds at the least. Each sweep meets every entry before it may remove it: a flow that was
//! not there before counts for every rule that allows it, and one that has had packets since moves those
//! rules' last use on. A sweep compares no more than its budget allows; what is left waits for the next.
//!
//! Not seen are flows whose entries others displaced between two sweeps (they are counted as missed), what
//! passes without an entry (ICMP errors, connections older than the isolation of their pod), and what needs
//! no rule: the own node, a pod that reaches itself.

mod answer;
mod flows;
mod opened;
mod records;
mod trials;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::compile::Compiler;
use netpold_core::model::{Change, Key, Pod};

use crate::events::{Dropped, Line, Seen, unix_millis};
use crate::kept;
use crate::learn::{self, Recorder};
pub use answer::{Answer, RuleUsed, merge, text};
use flows::Known;
pub use flows::Round;
use opened::Opened;
use records::{PolicyRecord, Records};
use serde::{Deserialize, Serialize};
use trials::Trials;

/// Pods whose addresses are remembered for a sweep after they went.
const FORMER_MAX: usize = 16_384;
/// A change of a policy is in force by then.
const LATELY: Duration = Duration::from_mins(10);

/// The file that the use of rules is kept in.
pub const FILE: kept::Records = kept::Records { suffix: ".rules", subject: "the uses of rules" };

/// What is kept of the use of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Until when it counts, in milliseconds since the epoch.
    as_of: u64,
    missed: u64,
    policies: Vec<PolicyRecord>,
}

/// What is known of the use of rules on this node.
#[derive(Debug)]
pub struct RuleUse {
    records: Records,
    /// The flows of the last sweep, in the order of the table.
    known: Vec<Known>,
    /// When the last sweep was, in jiffies.
    last_sweep: Option<u32>,
    /// The same by the wall clock, in milliseconds; at first, when this began.
    last_wall: u64,
    /// Until when an earlier agent has counted.
    counted_until: Option<u64>,
    /// Local pods by their endpoints' numbers: those there are, and those that went since the last sweep.
    endpoints: BTreeMap<u32, Arc<Pod>>,
    endpoints_version: Option<u64>,
    /// The pods that had addresses since the last sweep.
    former: BTreeMap<IpAddr, Arc<Pod>>,
    /// When policies changed lately.
    changed: BTreeMap<Key, u64>,
    cursors: flows::Cursors,
    /// Flows that were gone before they could be counted.
    missed: u64,
    /// What the caches are of: the cluster's revision and the endpoints' version.
    state: Option<(u64, Option<u64>)>,
    epoch: u32,
    cache: flows::Cache,
    trials: Trials,
    opened: Opened,
    /// How many of those were told of.
    missed_before: u64,
    /// The flows themselves, each kind once.
    recorder: Recorder,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Default for RuleUse {
    fn default() -> Self {
        Self {
            records: Records::default(),
            known: Vec::new(),
            last_sweep: None,
            last_wall: unix_millis(),
            counted_until: None,
            endpoints: BTreeMap::new(),
            endpoints_version: None,
            former: BTreeMap::new(),
            changed: BTreeMap::new(),
            cursors: flows::Cursors::default(),
            missed: 0,
            state: None,
            epoch: 0,
            cache: flows::Cache::default(),
            trials: Trials::default(),
            opened: Opened::default(),
            missed_before: 0,
            recorder: Recorder::new(unix_millis()),
        }
    }
}

impl RuleUse {
    /// Goes on from what an earlier agent has kept.
    pub fn resume(&mut self, saved: Saved) {
        self.counted_until = Some(saved.as_of);
        self.missed = saved.missed;
        self.missed_before = saved.missed;
        self.records.resume(saved.policies);
    }

    /// Before a change is taken in: remembers when, and whose address it was.
    pub fn note(&mut self, change: &Change, cluster: &Cluster) {
        let (key, stays) = match change {
            Change::Policy(policy) => {
                let known = cluster.policies().get(&policy.key);
                if known.is_none_or(|known| **known != *policy) {
                    self.changed.insert(policy.key.clone(), unix_millis());
                }
                return;
            }
            Change::ClusterPolicy(policy) => {
                let known = cluster.cluster_policy(&policy.name);
                if known.is_none_or(|known| **known != *policy) {
                    self.changed.insert(Key::new("", policy.name.clone()), unix_millis());
                }
                return;
            }
            Change::Pod(pod) => (&pod.key, is_subject(pod)),
            Change::PodGone(key) => (key, false),
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
            | Change::OwnAddresses(_) => return,
        };
        let Some(pod) = cluster.pods().get(key).filter(|pod| !stays && is_subject(pod)) else {
            return;
        };
        for address in &pod.addresses {
            if self.former.len() < FORMER_MAX {
                self.former.insert(*address, Arc::clone(pod));
            }
        }
    }

    /// After an update: whose the endpoints are. Those that went are remembered until the next sweep.
    pub fn endpoints_are(&mut self, compiler: &Compiler) {
        let version = Some(compiler.endpoints_version());
        if self.endpoints_version == version {
            return;
        }
        self.endpoints_version = version;
        let cluster = compiler.cluster();
        for endpoint in compiler.endpoints().filter(|endpoint| !endpoint.waiting) {
            let interface = cluster.interfaces().get(&endpoint.ifindex);
            let behind = interface.and_then(|interface| cluster.pod_behind(interface));
            // The cluster has its labels as they are now.
            let pod = cluster.pods().get(&endpoint.pod).or(behind);
            if let Some(pod) = pod {
                self.endpoints.insert(endpoint.id, Arc::clone(pod));
            }
        }
    }

    /// Begins a sweep. `revision` is the number of the cluster's state, `restored` that it is the last good one
    /// and not the source's.
    pub fn begin<'u>(
        &'u mut self,
        compiler: &'u Compiler,
        revision: u64,
        restored: bool,
    ) -> Round<'u> {
        self.endpoints_version = None;
        self.endpoints_are(compiler);
        let state = Some((revision, self.endpoints_version));
        let changed = self.state != state || self.cache.is_full();
        self.recorder.begin(changed, unix_millis());
        if changed {
            self.state = state;
            self.epoch = self.epoch.wrapping_add(1).max(1);
            self.cache = flows::Cache::default();
            self.trials.forget();
            let lately = unix_millis().saturating_sub(millis(LATELY));
            self.changed.retain(|_, at| *at > lately);
            let (cluster, pods) = (compiler.cluster(), self.endpoints.values());
            self.records.follow(cluster, pods, &self.changed, (self.last_wall, restored));
        }
        Round::new(self, compiler.cluster())
    }

    /// Ends a sweep that has met all flows.
    pub fn end(&mut self, compiler: &Compiler, met: Swept) {
        self.known = met.known;
        self.missed += met.missed;
        self.cursors = met.cursors;
        self.last_sweep = met.now.or(self.last_sweep);
        self.last_wall = met.wall;
        if !self.former.is_empty() {
            self.former.clear();
            // What they explained is not to be remembered.
            self.state = None;
        }
        let live = compiler.endpoint_numbers();
        self.endpoints.retain(|number, _| live.contains(number));
    }

    /// What the last sweep met that is new.
    pub fn take_news(&mut self) -> News {
        let (audited, more_audited) = self.trials.take();
        let (opened, more_opened) = self.opened.take();
        let missed = self.missed - std::mem::replace(&mut self.missed_before, self.missed);
        News { audited, opened, untold: more_audited + more_opened + missed }
    }

    /// Flows that policies on trial would deny by policy (a ClusterNetworkPolicy has no namespace), and those that none is named for.
    #[must_use]
    pub fn audited(&self) -> (Vec<(Key, u64)>, u64) {
        self.trials.counts()
    }

    /// What there is to keep.
    #[must_use]
    pub fn saved(&self) -> Saved {
        Saved { as_of: unix_millis(), missed: self.missed, policies: self.records.saved() }
    }

    /// Goes on recording flows where an earlier agent has ended.
    pub fn resume_flows(&mut self, saved: learn::Answer) {
        self.recorder.resume(saved);
    }

    /// Records what was dropped, by endpoint number.
    pub fn denied(&mut self, cluster: &Cluster, dropped: &BTreeMap<u32, Vec<Line>>) {
        for (endpoint, lines) in dropped {
            let Some(pod) = self.endpoints.get(endpoint) else { continue };
            for Line { dropped, times } in lines {
                if let Some(flow) = flows::dropped(pod, dropped) {
                    self.recorder.denied(cluster, flow, *times, dropped.unix_millis);
                }
            }
        }
    }

    /// The flows that were seen.
    #[must_use]
    pub fn flows(&self, node: &str) -> learn::Answer {
        let recorded = self.recorder.answer(node, unix_millis());
        learn::Answer { missed_flows: self.missed, ..recorded }
    }

    /// What each rule was used for.
    #[must_use]
    pub fn answer(&self, node: &str) -> Answer {
        let (rules, unwatched) = self.records.answer();
        Answer {
            node: node.to_owned(),
            as_of: unix_millis() / 1000,
            rules,
            missed_flows: self.missed,
            unwatched_policies: unwatched,
            ..Answer::default()
        }
    }
}

/// What a sweep met that is new.
#[derive(Debug, Default)]
pub struct News {
    /// Flows that policies on trial would deny.
    pub audited: Vec<Dropped>,
    /// Flows that were not there before.
    pub opened: Vec<Seen>,
    /// Such flows beyond what is told of one sweep, and those that were over before it.
    pub untold: u64,
}

/// What a sweep leaves.
#[derive(Debug)]
pub struct Swept {
    known: Vec<Known>,
    missed: u64,
    cursors: flows::Cursors,
    now: Option<u32>,
    wall: u64,
}

#[cfg(test)]
mod tests;
