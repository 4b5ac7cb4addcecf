//! Condition of pods with the readiness gate.
//!
//! A pod is not ready until its condition is True, so it receives no Service traffic before policy judges its packets.
//! The kubelet keeps conditions of other writers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Patch;
use kube::runtime::watcher::Event;
use netpold_api::crd;
use netpold_core::model::Key;
use netpold_core::turns::in_turns;
use netpold_kube::cluster::random_part;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::enforced_state::ObservedState;
use super::follow::{Condition, ConditionsStatus, follow};
use super::published::{PASSING, TICK, now};
use super::write::{ObjectWriter, WriteError};
use super::write_retry::WriteRetry;

/// Most concurrent writes.
const AT_ONCE: usize = 6;
/// Most concurrent writes for pods of one namespace: the server may take long for each of them.
const OF_NAMESPACE: usize = 2;
/// Time within which the watch shows a written condition; later the pod is checked again.
const ECHO: Duration = Duration::from_secs(2);
/// Pause before a refused condition is retried, plus a random part of as much.
const REFUSED: Duration = Duration::from_secs(10);
/// Pause before a condition is retried after a server error (5xx), plus a random part of as much.
const ERROR: Duration = Duration::from_secs(1);
/// Longest pause: both pauses double with each failure in a row.
const PAUSE_MAX: Duration = Duration::from_mins(1);
/// Time after a successful write during which the agent counts as permitted: a refusal concerns one pod then.
const PERMITTED: Duration = Duration::from_mins(5);
/// Number of failures in a row after which the log names the pod.
const NAMED_AFTER: u32 = 3;

/// The fields read of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodObject {
    #[serde(deserialize_with = "crd::used_metadata")]
    metadata: ObjectMeta,
    spec: PodGateSpec,
    status: ConditionsStatus,
}

netpold_api::resource!(PodObject, part of Pod);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodGateSpec {
    host_network: Option<bool>,
    readiness_gates: Option<Vec<ReadinessGate>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReadinessGate {
    condition_type: String,
}

/// A pod with the readiness gate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GatedPod {
    uid: String,
    host_network: bool,
    /// Condition in the API.
    condition: Option<Condition>,
}

impl GatedPod {
    /// Parses a pod; `None`: it has no gate, or is terminating.
    fn parse_gated(object: PodObject, gate: &str) -> Option<(Key, Self)> {
        let PodObject { metadata, spec, status } = object;
        let gates = spec.readiness_gates.unwrap_or_default();
        if metadata.deletion_timestamp.is_some() || !gates.iter().any(|g| g.condition_type == gate)
        {
            return None;
        }
        let key = key(&metadata);
        let conditions = status.conditions.unwrap_or_default();
        let pod = Self {
            uid: metadata.uid.unwrap_or_default(),
            host_network: spec.host_network.unwrap_or_default(),
            condition: conditions.into_iter().find(|condition| condition.kind == gate),
        };
        Some((key, pod))
    }
}

impl GatedPod {
    /// Returns whether the API's condition is True.
    fn is_met(&self) -> bool {
        self.condition.as_ref().is_some_and(|said| said.status == "True")
    }
}

fn key(metadata: &ObjectMeta) -> Key {
    Key {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

/// Desired condition of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DesiredCondition {
    met: bool,
    reason: &'static str,
    message: &'static str,
}

impl DesiredCondition {
    /// Decides the desired condition; `None`: the agent cannot improve on the present one.
    fn decide(key: &Key, pod: &GatedPod, seen: &ObservedState) -> Option<Self> {
        let met = |reason, message| Some(Self { met: true, reason, message });
        let unmet = |reason, message| Some(Self { met: false, reason, message });
        if pod.host_network {
            return met("HostNetwork", "Policy does not apply to pods in the host's network.");
        }
        if !seen.begun {
            return None;
        }
        let known = seen.pod(key, &pod.uid);
        // A failed update, whatever its cause, removes no pod from its Services while the former policy judges it.
        let stays = pod.is_met() && known.is_some_and(|it| it.is_judged);
        if !seen.is_current() {
            let message =
                "The current policy is not in force on the node; see its NodePolicyStatus.";
            return if seen.is_behind() && !stays {
                unmet("UpdateNotInForce", message)
            } else {
                None
            };
        }
        match known.map(|pod| pod.lacks) {
            Some(None) => met("Enforced", "Policy judges the pod's packets in both directions."),
            Some(Some(_)) if stays => None,
            Some(Some(lacks)) => unmet("NotJudged", lacks),
            None => unmet("NotKnown", "the agent does not know the pod"),
        }
    }

    const fn status(self) -> &'static str {
        if self.met { "True" } else { "False" }
    }

    /// Returns whether the API's condition matches; True matches with any reason and message.
    fn matches_api(self, condition: Option<&Condition>) -> bool {
        condition.is_some_and(|said| {
            said.status == self.status()
                && (self.met
                    || (said.reason.as_deref(), said.message.as_deref())
                        == (Some(self.reason), Some(self.message)))
        })
    }

    /// Returns a strategic merge patch, which merges lists of conditions by `type`. A recreated pod of the same name
    /// has another uid, which cannot be changed: 409.
    fn patch(self, gate: &str, pod: &GatedPod) -> Value {
        let mut condition = json!({
            "type": gate,
            "status": self.status(),
            "reason": self.reason,
            "message": self.message,
        });
        if pod.condition.as_ref().is_none_or(|said| said.status != self.status()) {
            condition["lastTransitionTime"] = json!(now());
        }
        json!({ "metadata": { "uid": pod.uid }, "status": { "conditions": [condition] } })
    }
}

/// A pod and the progress of its condition.
struct FollowedPod {
    pod: GatedPod,
    /// Time since when the condition has been wrong.
    wrong_since: Option<Instant>,
    /// Time of the next attempt.
    next_attempt: Option<Instant>,
    writing: bool,
    /// Failed writes in a row that concern this pod alone.
    failures: u32,
    /// Whether the last write met an outage.
    unanswered: bool,
}

impl FollowedPod {
    fn new(pod: GatedPod) -> Self {
        Self {
            pod,
            wrong_since: None,
            next_attempt: None,
            writing: false,
            failures: 0,
            unanswered: false,
        }
    }

    /// Returns the condition to write now: True at once, False only if the cause lasts for [`PASSING`].
    fn due_condition(
        &mut self,
        key: &Key,
        seen: &ObservedState,
        now: Instant,
    ) -> Option<DesiredCondition> {
        let wanted = DesiredCondition::decide(key, &self.pod, seen);
        let Some(wanted) = wanted.filter(|w| !w.matches_api(self.pod.condition.as_ref())) else {
            self.wrong_since = None;
            return None;
        };
        let since = *self.wrong_since.get_or_insert(now);
        let lasts = wanted.met || now.saturating_duration_since(since) >= PASSING;
        (lasts && !self.writing && self.next_attempt.is_none_or(|until| until <= now))
            .then_some(wanted)
    }
}

impl FollowedPod {
    /// Records a written condition.
    fn record_written(&mut self, gate: &str, wanted: DesiredCondition) {
        self.pod.condition = Some(Condition {
            kind: gate.to_owned(),
            status: wanted.status().to_owned(),
            reason: Some(wanted.reason.to_owned()),
            message: Some(wanted.message.to_owned()),
            last_heartbeat_time: None,
        });
        self.wrong_since = None;
        self.writing = false;
        self.failures = 0;
        self.unanswered = false;
        self.next_attempt = Some(Instant::now() + ECHO);
    }

    /// Records a failed write that concerns this pod alone and delays no other pod.
    fn record_failure(&mut self, error: &WriteError, now: Instant) {
        let pause = if error.is_refusal() { REFUSED } else { ERROR };
        let pause = pause.saturating_mul(1 << self.failures.min(6)).min(PAUSE_MAX);
        self.failures += 1;
        self.unanswered = false;
        self.next_attempt = Some(now + pause + random_part(pause));
    }
}

/// A finished write.
struct FinishedWrite {
    key: Key,
    uid: String,
    wanted: DesiredCondition,
    began: Instant,
    outcome: Result<(), WriteError>,
}

/// Keeps the pods' conditions up to date.
pub(super) struct Readiness {
    writer: Arc<ObjectWriter>,
    node: String,
    gate: String,
    seen: watch::Receiver<Arc<ObservedState>>,
    pods: BTreeMap<Key, FollowedPod>,
    /// Pods of the list that is arriving.
    listed: BTreeMap<Key, FollowedPod>,
    writes: JoinSet<FinishedWrite>,
    /// Namespace of the last written pod.
    served: String,
    failing: WriteRetry,
    /// Time of the last successful write.
    worked_at: Option<Instant>,
}

impl Readiness {
    pub(super) fn new(
        writer: Arc<ObjectWriter>,
        node: String,
        gate: String,
        seen: watch::Receiver<Arc<ObservedState>>,
    ) -> Self {
        Self {
            writer,
            node,
            gate,
            seen,
            pods: BTreeMap::new(),
            listed: BTreeMap::new(),
            writes: JoinSet::new(),
            served: String::new(),
            failing: WriteRetry::new("patch pods/status"),
            worked_at: None,
        }
    }

    /// Runs until the observer ends.
    pub(super) async fn run(mut self) {
        let fields =
            format!("spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed", self.node);
        let mut events = follow::<PodObject>(Arc::clone(self.writer.connection()), fields);
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = self.seen.changed() => if changed.is_err() { return },
                event = events.recv() => match event {
                    Some(event) => self.apply_event(event),
                    None => return,
                },
                Some(written) = self.writes.join_next() => {
                    if let Ok(written) = written {
                        self.finish_write(written).await;
                    }
                }
                _ = tick.tick() => {}
            }
            self.start_writes();
        }
    }

    fn apply_event(&mut self, event: Event<PodObject>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                if let Some((key, pod)) = GatedPod::parse_gated(object, &self.gate) {
                    let known = self.pods.remove(&key);
                    let followed = updated(known, pod);
                    self.listed.insert(key, followed);
                }
            }
            Event::InitDone => self.pods = std::mem::take(&mut self.listed),
            Event::Apply(object) => {
                let gone = key(&object.metadata);
                match GatedPod::parse_gated(object, &self.gate) {
                    Some((key, pod)) => {
                        let known = self.pods.remove(&key);
                        self.pods.insert(key, updated(known, pod));
                    }
                    None => drop(self.pods.remove(&gone)),
                }
            }
            Event::Delete(object) => drop(self.pods.remove(&key(&object.metadata))),
        }
    }

    /// Starts the due writes, up to the limits. In an outage, tries only pods that have not met it yet, one at a time:
    /// one pod's error may look like an outage.
    fn start_writes(&mut self) {
        let seen = Arc::clone(&self.seen.borrow_and_update());
        let now = Instant::now();
        let is_outage = self.failing.is_pausing();
        let mut under_way: BTreeMap<String, usize> = BTreeMap::new();
        for (key, _) in self.pods.iter().filter(|(_, followed)| followed.writing) {
            *under_way.entry(key.namespace.clone()).or_default() += 1;
        }
        let all = self.pods.iter_mut();
        let due =
            all.filter_map(|(key, it)| it.due_condition(key, &seen, now).map(|w| (key, it, w)));
        let due = due.filter(|(_, it, _)| !is_outage || !it.unanswered).collect();
        let room = if is_outage { 1 } else { AT_ONCE };
        let mut room = room.saturating_sub(self.writes.len());
        for (key, followed, wanted) in ordered(due, &self.served) {
            let of_namespace = under_way.entry(key.namespace.clone()).or_default();
            if room == 0 || *of_namespace >= OF_NAMESPACE {
                continue;
            }
            room -= 1;
            *of_namespace += 1;
            self.served.clone_from(&key.namespace);
            followed.writing = true;
            let patch = Patch::Strategic(wanted.patch(&self.gate, &followed.pod));
            let (key, uid) = (key.clone(), followed.pod.uid.clone());
            let writer = Arc::clone(&self.writer);
            self.writes.spawn(async move {
                let of = (Some(key.namespace.as_str()), key.name.as_str());
                let outcome = writer.patch::<Pod>(of, Some("status"), &patch).await.map(drop);
                FinishedWrite { key, uid, wanted, began: now, outcome }
            });
        }
    }

    async fn finish_write(&mut self, written: FinishedWrite) {
        let FinishedWrite { key, uid, wanted, began, outcome } = written;
        let followed = self.pods.get_mut(&key).filter(|followed| followed.pod.uid == uid);
        let error = match outcome {
            Ok(()) => {
                debug!(pod = %key, status = wanted.status(), reason = wanted.reason, "wrote pod condition");
                if let Some(followed) = followed {
                    followed.record_written(&self.gate, wanted);
                }
                self.worked_at = Some(Instant::now());
                return self.failing.worked();
            }
            Err(error) => error,
        };
        let now = Instant::now();
        let permitted =
            self.worked_at.is_some_and(|at| now.saturating_duration_since(at) < PERMITTED);
        // A condition was written since this write began, so the failure concerns this pod alone.
        let others_work = self.worked_at.is_some_and(|at| at >= began);
        let is_outage = error.is_outage() && !others_work;
        if let Some(followed) = followed {
            followed.writing = false;
            if is_outage {
                followed.unanswered = true;
                followed.next_attempt = Some(now);
            } else {
                followed.record_failure(&error, now);
                // A pod that is gone or was recreated needs no warning.
                let is_news = followed.failures == NAMED_AFTER && permitted;
                if is_news && !(error.is_absent() || error.is_conflict()) {
                    warn!(pod = %key, ?error, "the API server rejected the condition of this pod");
                }
            }
        }
        if is_outage {
            self.failing.failed(&error, self.writer.connection()).await;
        } else if !permitted && !error.is_of_object() {
            self.failing.complain(&error, self.writer.connection());
        }
    }
}

/// Orders writes: namespaces in turns, beginning after the last served one; within each, untried pods first, then those
/// tried longest ago.
fn ordered<'p>(
    mut due: Vec<(&'p Key, &'p mut FollowedPod, DesiredCondition)>,
    served: &str,
) -> Vec<(&'p Key, &'p mut FollowedPod, DesiredCondition)> {
    due.sort_by_key(|(_, followed, _)| followed.next_attempt);
    in_turns(due, |(key, ..)| (key.namespace.as_str() <= served, &*key.namespace))
}

/// Updates a pod; a recreated pod of the same name starts afresh.
fn updated(known: Option<FollowedPod>, pod: GatedPod) -> FollowedPod {
    match known {
        Some(known) if known.pod.uid == pod.uid => FollowedPod { pod, ..known },
        _ => FollowedPod::new(pod),
    }
}

#[cfg(test)]
mod tests;
