//! Keeps a `NetworkPolicyStatus` for every `NetworkPolicy`. Everything is followed always; the leader writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Api, Client, Resource};
use netpold_core::model::Key;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tracing::warn;

use super::evaluate::evaluate;
use super::follow::{Seen, follow, key};
use super::index::{Index, Now, Touched};
use super::lease::Leading;
use super::queue::Queue;
use crate::api::{NetworkPolicyStatus, NodePolicyStatus, PolicyReport};
use crate::listen::Heartbeat;
use crate::source::Source;

/// Time between two writes: 20 a second.
const PACE: Duration = Duration::from_millis(50);
/// Writes that wait for an answer.
const IN_FLIGHT: usize = 16;
/// A write may take so long.
const PATIENCE: Duration = Duration::from_secs(10);
/// A policy whose status could not be written is tried again after this.
const RETRY: Duration = Duration::from_secs(2);
/// Time between looks for agents that have fallen silent.
const LOOK_OVER: Duration = Duration::from_secs(2);
/// Policies looked at in a row without a pause for what comes in.
const IN_A_ROW: usize = 200;
/// Failed writes are logged this often.
const COMPLAIN: Duration = Duration::from_secs(30);
/// Objects in flight.
const OBJECTS: usize = 64;

/// What is counted, for `/metrics`.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Statuses written.
    pub(super) writes: AtomicU64,
    /// Writes that failed.
    pub(super) failures: AtomicU64,
    /// Policies that wait to be looked at.
    pub(super) waiting: AtomicUsize,
    /// Policies known.
    pub(super) policies: AtomicUsize,
}

/// A status as the API server has it.
#[derive(Debug)]
struct Written {
    version: String,
    owner: String,
    report: Option<PolicyReport>,
}

/// The outcome of a write.
struct Outcome {
    key: Key,
    result: Result<NetworkPolicyStatus, kube::Error>,
}

/// Keeps the statuses.
pub(super) struct Statuses {
    client: Client,
    source: Source,
    leading: Leading,
    synced: watch::Sender<bool>,
    counters: Arc<Counters>,
    heartbeat: Heartbeat,
    index: Index,
    queue: Queue,
    written: BTreeMap<Key, Written>,
    in_flight: BTreeSet<Key>,
    writes: JoinSet<Outcome>,
    /// When a failed write was logged last.
    complained: Option<Instant>,
    /// What was listed wholly: policies, pods and nodes; reports; statuses.
    listed: [bool; 3],
}

impl Statuses {
    pub(super) fn new(
        client: Client,
        source: Source,
        leading: Leading,
        counters: Arc<Counters>,
        heartbeat: Heartbeat,
    ) -> (Self, watch::Receiver<bool>) {
        let (synced, is_synced) = watch::channel(false);
        let statuses = Self {
            client,
            source,
            leading,
            synced,
            counters,
            heartbeat,
            index: Index::default(),
            queue: Queue::default(),
            written: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            writes: JoinSet::new(),
            complained: None,
            listed: [false; 3],
        };
        (statuses, is_synced)
    }

    /// Keeps them until the source ends.
    pub(super) async fn run(mut self) -> Result<()> {
        let (reports, mut reported) = mpsc::channel(OBJECTS);
        let (statuses, mut stated) = mpsc::channel(OBJECTS);
        tokio::spawn(follow::<NodePolicyStatus>(self.client.clone(), reports));
        tokio::spawn(follow::<NetworkPolicyStatus>(self.client.clone(), statuses));
        let mut look_over = tokio::time::interval(LOOK_OVER);
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut may_write = true;
        loop {
            self.heartbeat.beat();
            let mut touched = Touched::new();
            let due = self.next_look().filter(|_| may_write);
            tokio::select! {
                batch = self.source.batches.recv() => {
                    let Some(batch) = batch else { bail!("the source of objects ended") };
                    let now = Now::get();
                    for change in batch.changes {
                        self.index.ingest(change, now, &mut touched);
                    }
                    self.is_listed(0, batch.in_sync);
                }
                Some(seen) = reported.recv() => self.take_report(seen, &mut touched),
                Some(seen) = stated.recv() => self.take_status(seen, &mut touched),
                Some(outcome) = self.writes.join_next() => {
                    if let Ok(outcome) = outcome {
                        self.take_outcome(outcome);
                    }
                }
                _ = look_over.tick() => self.index.look_over(Now::get(), &mut touched),
                _ = pace.tick(), if !may_write => may_write = true,
                changed = self.leading.changed() => {
                    if changed.is_err() {
                        bail!("leader election ended");
                    }
                    self.leads_or_not();
                }
                () = pause_until(due) => may_write = !self.write_one(),
            }
            let now = Instant::now();
            for key in touched {
                self.queue.push(key, now);
            }
            self.counters.waiting.store(self.queue.len(), Ordering::Relaxed);
            self.counters.policies.store(self.index.len(), Ordering::Relaxed);
        }
    }

    fn is_ready(&self) -> bool {
        self.listed == [true; 3]
    }

    fn is_listed(&mut self, part: usize, listed: bool) {
        if !listed || self.listed[part] {
            return;
        }
        self.listed[part] = true;
        if self.is_ready() {
            self.synced.send_replace(true);
            self.look_at_all();
        }
    }

    fn look_at_all(&mut self) {
        let now = Instant::now();
        let all: Vec<Key> = self.index.policies().collect();
        all.into_iter().for_each(|key| self.queue.push(key, now));
    }

    /// A leader has all to look at. One that leads no longer writes nothing more.
    fn leads_or_not(&mut self) {
        if self.leading.is() {
            self.look_at_all();
        } else {
            self.writes.abort_all();
            self.in_flight.clear();
            self.queue = Queue::default();
        }
    }

    fn take_report(&mut self, seen: Seen<NodePolicyStatus>, touched: &mut Touched) {
        let now = Now::get();
        match seen {
            Seen::Is(object) => {
                let name = key(&object).name;
                self.index.report(&name, object.status.as_ref(), now, touched);
            }
            Seen::Gone(key) => self.index.report(&key.name, None, now, touched),
            Seen::Listed => self.is_listed(1, true),
        }
    }

    fn take_status(&mut self, seen: Seen<NetworkPolicyStatus>, touched: &mut Touched) {
        match seen {
            Seen::Is(object) => {
                let key = key(&object);
                if self.remember(object) {
                    touched.insert(key);
                }
            }
            Seen::Gone(key) => {
                self.written.remove(&key);
                touched.insert(key);
            }
            Seen::Listed => self.is_listed(2, true),
        }
    }

    /// Remembers a status; whether it is news. What was written is known before a watch says it.
    fn remember(&mut self, object: NetworkPolicyStatus) -> bool {
        let key = key(&object);
        let version = object.metadata.resource_version.unwrap_or_default();
        let number = |version: &str| version.parse::<u64>().unwrap_or(u64::MAX);
        let known = self.written.get(&key);
        if known.is_some_and(|known| number(&known.version) >= number(&version)) {
            return false;
        }
        let owner = object.metadata.owner_references.into_iter().flatten().next();
        let owner = owner.map(|owner| owner.uid).unwrap_or_default();
        self.written.insert(key, Written { version, owner, report: object.status });
        true
    }

    fn take_outcome(&mut self, Outcome { key, result }: Outcome) {
        self.in_flight.remove(&key);
        match result {
            Ok(object) => {
                self.counters.writes.fetch_add(1, Ordering::Relaxed);
                self.remember(object);
                let now = Instant::now();
                self.queue.written(key.clone(), now);
                // It may have changed in the meantime.
                self.queue.push(key, now);
            }
            Err(error) => {
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
                // Somebody else wrote it, or it is gone: a watch will say so.
                let expected =
                    matches!(&error, kube::Error::Api(status) if [404, 409].contains(&status.code));
                if !expected && self.complained.is_none_or(|at| at.elapsed() > COMPLAIN) {
                    self.complained = Some(Instant::now());
                    warn!(%error, "the status of NetworkPolicy {key} cannot be written");
                }
                self.queue.push_at(key, Instant::now() + RETRY);
            }
        }
    }

    /// When to look at a policy next, if it is this controller's turn.
    fn next_look(&self) -> Option<Instant> {
        let may = self.is_ready() && self.leading.is() && self.in_flight.len() < IN_FLIGHT;
        self.queue.next(Instant::now()).filter(|_| may)
    }

    /// Looks at what is due until a status has to be written; whether one had to be.
    fn write_one(&mut self) -> bool {
        let now = Now::get();
        for _ in 0..IN_A_ROW {
            let Some(key) = self.queue.pop(now.instant) else { return false };
            if self.in_flight.contains(&key) {
                // Looked at again when that is done.
                continue;
            }
            if self.write(key, now) {
                return true;
            }
        }
        false
    }

    /// Writes a policy's status, if it is another than what is written.
    fn write(&mut self, key: Key, now: Now) -> bool {
        let known = self.written.get(&key);
        let before = known.and_then(|known| known.report.as_ref());
        let Some(report) = evaluate(&self.index, &key, before, now) else { return false };
        let uid =
            self.index.known(&key).map(|policy| policy.version.uid.clone()).unwrap_or_default();
        let is_owned = known.is_some_and(|known| known.owner == uid);
        if is_owned && before == Some(&report) {
            return false;
        }
        let client = self.client.clone();
        let version = known.map(|known| known.version.clone());
        self.in_flight.insert(key.clone());
        self.writes.spawn(async move {
            let written = write(&client, &key, &uid, version, is_owned, &report);
            let result = match tokio::time::timeout(PATIENCE, written).await {
                Ok(result) => result,
                Err(late) => Err(kube::Error::Service(late.into())),
            };
            Outcome { key, result }
        });
        true
    }
}

/// Creates the object if there is none, and writes its status: it must be as it was known.
async fn write(
    client: &Client,
    key: &Key,
    uid: &str,
    version: Option<String>,
    is_owned: bool,
    report: &PolicyReport,
) -> Result<NetworkPolicyStatus, kube::Error> {
    let api = Api::<NetworkPolicyStatus>::namespaced(client.clone(), &key.namespace);
    let version = match version {
        Some(version) if is_owned => Some(version),
        // A policy that was deleted and created again before the garbage collector came.
        Some(version) => {
            let owners = json!([owner(key, uid)]);
            let metadata = json!({ "resourceVersion": version, "ownerReferences": owners });
            let patch = Patch::Merge(json!({ "metadata": metadata }));
            api.patch(&key.name, &PatchParams::default(), &patch).await?.metadata.resource_version
        }
        None => create(client, key, uid).await?.metadata.resource_version,
    };
    let patch = Patch::Merge(json!({
        "metadata": { "resourceVersion": version },
        "status": whole(report).map_err(kube::Error::SerdeError)?,
    }));
    api.patch_status(&key.name, &PatchParams::default(), &patch).await
}

async fn create(client: &Client, key: &Key, uid: &str) -> Result<NetworkPolicyStatus, kube::Error> {
    let kind = NetworkPolicyStatus::kind(&());
    let object = json!({
        "apiVersion": NetworkPolicyStatus::api_version(&()),
        "kind": kind,
        "metadata": { "name": key.name, "ownerReferences": [owner(key, uid)] },
    });
    let path = NetworkPolicyStatus::url_path(&(), Some(&key.namespace));
    let request =
        Request::new(path).create(&PostParams::default(), object.to_string().into_bytes());
    client.request(request.map_err(kube::Error::BuildRequest)?).await
}

/// With what is absent named, or a merge would leave what was there.
fn whole(report: &PolicyReport) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::to_value(report)?;
    if let Some(fields) = value.as_object_mut() {
        fields.entry("notEnforced").or_insert(Value::Null);
    }
    Ok(value)
}

fn owner(key: &Key, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "networking.k8s.io/v1".to_owned(),
        kind: "NetworkPolicy".to_owned(),
        name: key.name.clone(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}

async fn pause_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
