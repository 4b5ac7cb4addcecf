//! Maintains a `NetworkPolicyStatus` for every `NetworkPolicy`, conditions in the status of every
//! `ClusterNetworkPolicy`, and the condition of Nodes with a silent agent. Every replica watches all objects; only the
//! leader writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kube::Client;
use netpold_api::crd::{NetworkPolicyStatus, NodePolicyStatus};
use netpold_core::model::{Change, Key};
use netpold_kube::ObjectStream;
use netpold_kube::pause::pause_until;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use crate::counters::ControllerCounters;
use crate::evaluate::evaluate;
use crate::follow::{FollowEvent, follow, key};
use crate::index::{AffectedPolicies, Index, Moment};
use crate::lease::ElectionView;
use crate::listen::Heartbeat;
use crate::pod_addresses::PodAddresses;
use crate::queue::Queue;
use crate::silent_agents::SilentAgents;
use crate::writes::{WriteOutcome, Writes};

/// Minimum time between two writes: 20 per second.
const PACE: Duration = Duration::from_millis(50);
/// Delay of a policy in a namespace with the maximum number of writes in flight.
const CROWDED: Duration = Duration::from_millis(500);
/// Interval of the check for silent agents.
const AGENT_CHECK: Duration = Duration::from_secs(2);
/// Maximum number of evaluations in a row before the main loop handles other events.
const IN_A_ROW: usize = 200;
/// Capacity of the channels from the watches.
const OBJECTS: usize = 64;

/// Main loop of the controller.
pub(super) struct Statuses {
    client: Client,
    source: ObjectStream,
    leading: ElectionView,
    synced: watch::Sender<bool>,
    counters: Arc<ControllerCounters>,
    heartbeat: Heartbeat,
    index: Index,
    queue: Queue,
    writes: Writes,
    silent_agents: SilentAgents,
    /// Whether the initial lists are complete: policies, pods and nodes; node reports; statuses.
    listed: [bool; 3],
}

impl Statuses {
    pub(super) fn new(
        client: Client,
        source: ObjectStream,
        leading: ElectionView,
        counters: Arc<ControllerCounters>,
        heartbeat: Heartbeat,
    ) -> (Self, watch::Receiver<bool>) {
        let (synced, is_synced) = watch::channel(false);
        let statuses = Self {
            writes: Writes::new(client.clone(), Arc::clone(&counters)),
            silent_agents: SilentAgents::new(client.clone(), leading.clone()),
            client,
            source,
            leading,
            synced,
            counters,
            heartbeat,
            index: Index::default(),
            queue: Queue::default(),
            listed: [false; 3],
        };
        (statuses, is_synced)
    }

    /// Returns the addresses of pods, which the index updates.
    pub(super) fn pod_addresses(&self) -> Arc<PodAddresses> {
        Arc::clone(&self.index.addresses)
    }

    /// Runs the main loop until the source or the election ends.
    pub(super) async fn run(mut self) -> Result<()> {
        let (reports, mut reported) = mpsc::channel(OBJECTS);
        let (statuses, mut stated) = mpsc::channel(OBJECTS);
        tokio::spawn(follow::<NodePolicyStatus>(self.client.clone(), reports));
        tokio::spawn(follow::<NetworkPolicyStatus>(self.client.clone(), statuses));
        let mut look_over = tokio::time::interval(AGENT_CHECK);
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut may_write = true;
        loop {
            self.heartbeat.beat();
            let mut touched = AffectedPolicies::new();
            let due = self.next_evaluation().filter(|_| may_write);
            tokio::select! {
                batch = self.source.batches.recv() => {
                    let Some(batch) = batch else { bail!("object source ended") };
                    let now = Moment::get();
                    for change in batch.changes {
                        if let Change::ClusterPolicyGone(name) = &change {
                            self.writes.forget(&Key::new("", name));
                        }
                        self.index.ingest(change, now, &mut touched);
                    }
                    self.mark_listed(0, batch.in_sync);
                }
                Some(seen) = reported.recv() => self.apply_report(seen, &mut touched),
                Some(seen) = stated.recv() => self.apply_status(seen, &mut touched),
                Some(outcome) = self.writes.next() => self.handle_outcome(outcome),
                _ = look_over.tick() => self.check_agents(&mut touched),
                Some(outcome) = self.silent_agents.next() => self.silent_agents.handle_outcome(outcome),
                _ = pace.tick(), if !may_write => may_write = true,
                changed = self.leading.changed() => {
                    if changed.is_err() {
                        bail!("leader election ended");
                    }
                    self.apply_leadership();
                }
                () = pause_until(due) => may_write = !self.write_one(),
            }
            let now = Instant::now();
            for key in touched {
                self.queue.push(key, now);
            }
            self.counters.waiting.set(self.queue.len() as i64);
            self.counters.policies.set(self.index.len() as i64);
        }
    }

    fn check_agents(&mut self, touched: &mut AffectedPolicies) {
        let now = Moment::get();
        self.index.update_presence(now, touched);
        if self.is_ready() && self.leading.leads() {
            self.silent_agents.mark(self.index.silent_nodes(), now.instant);
        }
    }

    fn is_ready(&self) -> bool {
        self.listed == [true; 3]
    }

    fn mark_listed(&mut self, part: usize, listed: bool) {
        if !listed || self.listed[part] {
            return;
        }
        self.listed[part] = true;
        if self.is_ready() {
            self.synced.send_replace(true);
            self.queue_all();
        }
    }

    fn queue_all(&mut self) {
        let now = Instant::now();
        let all: Vec<Key> = self.index.policies().collect();
        all.into_iter().for_each(|key| self.queue.push(key, now));
    }

    /// Queues all policies if this replica has become the leader; otherwise aborts the writes and clears the queue.
    fn apply_leadership(&mut self) {
        if self.leading.leads() {
            self.queue_all();
        } else {
            self.writes.abort();
            self.queue = Queue::default();
        }
    }

    fn apply_report(
        &mut self,
        seen: FollowEvent<NodePolicyStatus>,
        touched: &mut AffectedPolicies,
    ) {
        let now = Moment::get();
        match seen {
            FollowEvent::Is(object) => {
                let name = key(&object).name;
                self.index.report(&name, object.status.as_ref(), now, touched);
            }
            FollowEvent::Gone(key) => self.index.report(&key.name, None, now, touched),
            FollowEvent::Listed => self.mark_listed(1, true),
        }
    }

    fn apply_status(
        &mut self,
        seen: FollowEvent<NetworkPolicyStatus>,
        touched: &mut AffectedPolicies,
    ) {
        match seen {
            FollowEvent::Is(object) => {
                let key = key(&object);
                if self.writes.store_status(object) {
                    touched.insert(key);
                }
            }
            FollowEvent::Gone(key) => {
                self.writes.forget(&key);
                touched.insert(key);
            }
            FollowEvent::Listed => self.mark_listed(2, true),
        }
    }

    fn handle_outcome(&mut self, outcome: WriteOutcome) {
        let now = Instant::now();
        match self.writes.handle_outcome(outcome) {
            Ok(key) => {
                self.queue.written(key.clone(), now);
                // The policy may have changed during the write.
                self.queue.push(key, now);
            }
            Err((key, Some(pause))) => self.queue.push_at(key, now + pause),
            Err((_, None)) => {}
        }
    }

    /// Returns the time of the next evaluation; `None` while this replica cannot write.
    fn next_evaluation(&self) -> Option<Instant> {
        let may = self.is_ready() && self.leading.leads() && !self.writes.are_full();
        self.queue.next(Instant::now()).filter(|_| may)
    }

    /// Evaluates due policies until one needs a write. Returns whether a write has begun.
    fn write_one(&mut self) -> bool {
        let now = Moment::get();
        for _ in 0..IN_A_ROW {
            let Some(key) = self.queue.pop(now.instant) else { return false };
            if self.writes.is_in_flight(&key) {
                // The end of the write queues the policy again.
                continue;
            }
            if self.writes.are_full_for(&key.namespace) {
                self.queue.push_at(key, now.instant + CROWDED);
                continue;
            }
            if self.write(key, now) {
                return true;
            }
        }
        false
    }

    /// Begins to write a policy's status if it differs from the written one. Returns whether it does.
    fn write(&mut self, key: Key, now: Moment) -> bool {
        let before = self.writes.written(&key);
        let Some(report) = evaluate(&self.index, &key, before, now) else { return false };
        let policy = self.index.policy(&key);
        let uid = policy.map(|policy| policy.version.uid.clone()).unwrap_or_default();
        self.writes.begin_write(key, uid, report)
    }
}
