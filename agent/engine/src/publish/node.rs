//! The own Node: removes the startup taint once the agent enforces, and writes a condition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::Patch;
use kube::runtime::watcher::Event;
use netpold_api::crd::{self, NODE_CONDITION};
use netpold_core::printable::cut;
use netpold_kube::cluster::random_part;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info};

use super::enforced_state::ObservedState;
use super::follow::{Condition, ConditionsStatus, follow};
use super::published::{MESSAGE_MAX, STARTUP_TAINT, TICK, now};
use super::write::{ObjectWriter, WriteError};
use super::write_retry::WriteRetry;

/// Time that a starting agent may take to enforce the source's state; the predecessor's condition stays until then.
const BEGINNING: Duration = Duration::from_mins(2);
/// Least time between writes that change the message alone: all watches of Nodes by kubelets and controllers receive
/// them.
const MESSAGE: Duration = Duration::from_mins(5);
/// Age at which `lastHeartbeatTime` is renewed, plus a random part of as much. The whole Node goes to every watcher of
/// Nodes, the agents of all nodes included, and the kubelet writes it every 5 minutes where nothing changes. In a
/// cluster of 5,000 nodes this adds 3.7 writes a second to the kubelets' 16.7. The report ([`super::report`]) shows
/// within minutes that an agent is silent.
const HEARTBEAT: Duration = Duration::from_mins(15);
/// Time within which the watch shows a write; least time between changes of the status.
const ECHO: Duration = Duration::from_secs(2);

/// The fields read of a Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeObject {
    #[serde(deserialize_with = "crd::used_metadata")]
    metadata: ObjectMeta,
    spec: NodeTaintSpec,
    status: ConditionsStatus,
}

netpold_api::resource!(NodeObject, part of Node);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeTaintSpec {
    /// Taints in their original form: they are written back.
    taints: Option<Vec<Value>>,
}

/// Returns a merge patch that removes the startup taint; `None` without the taint. Such a patch replaces the whole
/// list, so it fits only the Node in this version. After a conflict, it is rebuilt from the watch's next event.
fn without_taint(node: &NodeObject) -> Option<Value> {
    let taints = node.spec.taints.as_deref()?;
    let others: Vec<&Value> = taints.iter().filter(|taint| taint["key"] != STARTUP_TAINT).collect();
    let version =
        node.metadata.resource_version.as_ref().filter(|_| others.len() < taints.len())?;
    let metadata = json!({ "uid": node.metadata.uid, "resourceVersion": version });
    Some(json!({ "metadata": metadata, "spec": { "taints": others } }))
}

/// Desired condition of the Node: status, reason, message.
type DesiredNodeCondition = (&'static str, &'static str, String);

fn desired_condition(seen: &ObservedState, started: Instant) -> Option<DesiredNodeCondition> {
    if seen.begun && seen.is_current() {
        return Some(("True", "Enforcing", "Policy is in force on this node.".into()));
    }
    let due = seen.is_behind() && (seen.begun || started.elapsed() >= BEGINNING);
    let reason = if seen.begun { "UpdateNotInForce" } else { "NotStarted" };
    let message = seen.reason_not_in_force().filter(|_| due)?;
    Some(("False", reason, cut(message.to_owned(), MESSAGE_MAX)))
}

/// Keeps the Node's taint and condition up to date.
pub(super) struct NodeWriter {
    writer: Arc<ObjectWriter>,
    name: String,
    seen: watch::Receiver<Arc<ObservedState>>,
    /// The Node's uid, for other tasks.
    uid: watch::Sender<Option<String>>,
    node: Option<NodeObject>,
    started: Instant,
    taint: WriteRetry,
    condition: WriteRetry,
    /// Time of the last write of the condition.
    said_at: Option<Instant>,
    /// Age at which the heartbeat is renewed.
    renewal: Duration,
}

impl NodeWriter {
    pub(super) fn new(
        writer: Arc<ObjectWriter>,
        name: String,
        seen: watch::Receiver<Arc<ObservedState>>,
        uid: watch::Sender<Option<String>>,
    ) -> Self {
        Self {
            writer,
            name,
            seen,
            uid,
            node: None,
            started: Instant::now(),
            taint: WriteRetry::new("patch nodes"),
            condition: WriteRetry::new("patch nodes/status"),
            said_at: None,
            renewal: HEARTBEAT + random_part(HEARTBEAT),
        }
    }

    /// Runs until the observer ends.
    pub(super) async fn run(mut self) {
        let fields = format!("metadata.name={}", self.name);
        let mut events = follow::<NodeObject>(Arc::clone(self.writer.connection()), fields);
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = self.seen.changed() => if changed.is_err() { return },
                event = events.recv() => match event {
                    Some(Event::Apply(node) | Event::InitApply(node)) => self.apply_node(node),
                    Some(Event::Delete(_)) => self.node = None,
                    Some(Event::Init | Event::InitDone) => {}
                    None => return,
                },
                _ = tick.tick() => {}
            }
            let seen = Arc::clone(&self.seen.borrow_and_update());
            if seen.begun && seen.is_current() {
                self.remove_taint().await;
            }
            self.write_condition(&seen).await;
        }
    }

    fn apply_node(&mut self, node: NodeObject) {
        self.uid.send_if_modified(|uid| {
            let modified = *uid != node.metadata.uid;
            uid.clone_from(&node.metadata.uid);
            modified
        });
        self.node = Some(node);
    }

    async fn remove_taint(&mut self) {
        let Some(node) = self.node.as_mut().filter(|_| !self.taint.is_pausing()) else { return };
        let Some(patch) = without_taint(node) else { return };
        let patch = Patch::Merge(patch);
        match self.writer.patch::<Node>((None, &self.name), None, &patch).await {
            Ok(_) => {
                info!(taint = STARTUP_TAINT, "removed startup taint: policy is in force");
                self.taint.worked();
                let taints = node.spec.taints.iter_mut();
                taints.for_each(|taints| taints.retain(|taint| taint["key"] != STARTUP_TAINT));
            }
            Err(error) => failed(&mut self.taint, &error, &self.writer).await,
        }
    }

    async fn write_condition(&mut self, seen: &ObservedState) {
        let wanted = desired_condition(seen, self.started);
        let node = self.node.as_mut().filter(|_| !self.condition.is_pausing());
        let (Some(node), Some((status, reason, message))) = (node, wanted) else { return };
        let conditions = node.status.conditions.get_or_insert_default();
        let said = conditions.iter().find(|condition| condition.kind == NODE_CONDITION).cloned();
        let turns = said.as_ref().is_none_or(|said| said.status != status);
        let at = now();
        let is_old = said.as_ref().is_none_or(|said| is_older(said, self.renewal, &at));
        let same = said.is_some_and(|said| {
            said.reason.as_deref() == Some(reason) && said.message.as_ref() == Some(&message)
        });
        let rest = if turns { ECHO } else { MESSAGE };
        if (same && !turns && !is_old) || self.said_at.is_some_and(|at| at.elapsed() < rest) {
            return;
        }
        let mut condition = json!({
            "type": NODE_CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": at,
        });
        if turns {
            condition["lastTransitionTime"] = json!(at);
        }
        // Merged by type, as for pods; the uid ties the patch to the observed Node.
        let patch = Patch::Strategic(json!({
            "metadata": { "uid": node.metadata.uid },
            "status": { "conditions": [condition] },
        }));
        match self.writer.patch::<Node>((None, &self.name), Some("status"), &patch).await {
            Ok(_) => {
                self.condition.worked();
                self.said_at = Some(Instant::now());
                self.renewal = HEARTBEAT + random_part(HEARTBEAT);
                conditions.retain(|condition| condition.kind != NODE_CONDITION);
                conditions.push(Condition {
                    kind: NODE_CONDITION.into(),
                    status: status.into(),
                    reason: Some(reason.into()),
                    message: Some(message),
                    last_heartbeat_time: Some(at),
                });
            }
            Err(error) => failed(&mut self.condition, &error, &self.writer).await,
        }
    }
}

/// Returns whether a condition's heartbeat is older than `age`, missing, or ahead by `age` because of another clock.
fn is_older(condition: &Condition, age: Duration, now: &Time) -> bool {
    let heartbeat = condition.last_heartbeat_time.as_ref();
    heartbeat.is_none_or(|at| now.0.duration_since(at.0).unsigned_abs() >= age)
}

/// Records a failed write. The watch will report a Node that was changed or deleted in the meantime.
async fn failed(failing: &mut WriteRetry, error: &WriteError, writer: &ObjectWriter) {
    if error.is_of_object() {
        debug!(?error, "Node changed since it was read");
        return failing.not_before(ECHO + random_part(ECHO));
    }
    failing.failed(error, writer.connection()).await;
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::*;

    #[test]
    fn the_taint_is_removed_and_no_other() {
        let taint = |key: &str| json!({ "key": key, "effect": "NoSchedule" });
        let node = |taints: &[Value]| NodeObject {
            metadata: ObjectMeta { resource_version: Some("7".into()), ..ObjectMeta::default() },
            spec: NodeTaintSpec { taints: Some(taints.to_vec()) },
            status: ConditionsStatus::default(),
        };
        assert_eq!(without_taint(&node(&[taint("a"), taint("b")])), None);
        let patch = without_taint(&node(&[taint("a"), taint(STARTUP_TAINT), taint("b")])).unwrap();
        assert_eq!(patch["spec"]["taints"], json!([taint("a"), taint("b")]));
        assert_eq!(patch["metadata"]["resourceVersion"], "7", "of no later Node");
    }

    #[test]
    fn a_heartbeat_is_renewed_when_it_is_old() {
        let (now, condition) = (now(), Condition::default());
        assert!(is_older(&condition, HEARTBEAT, &now), "it has none");
        let of = |seconds: i64| Condition {
            last_heartbeat_time: Some(Time(now.0 - SignedDuration::from_secs(seconds))),
            ..Condition::default()
        };
        let age = HEARTBEAT.as_secs() as i64;
        let is_old = |seconds| is_older(&of(seconds), HEARTBEAT, &now);
        assert_eq!([0, age - 1, age, 10 * age].map(is_old), [false, false, true, true]);
        assert_eq!([-60, -age].map(is_old), [false, true], "of a clock that was ahead");
    }

    #[test]
    fn a_node_is_not_called_ready_or_unready_too_early() {
        let now = Instant::now();
        let Some(long_ago) = now.checked_sub(2 * BEGINNING) else { return };
        let mut seen = ObservedState::default();
        assert_eq!(desired_condition(&seen, now), None, "nothing was seen");
        seen.behind_since = Some(long_ago);
        assert_eq!(desired_condition(&seen, now), None, "the agent has only started");
        let (status, reason, _) = desired_condition(&seen, long_ago).unwrap();
        assert_eq!((status, reason), ("False", "NotStarted"));
        seen.begun = true;
        seen.state.in_sync = true;
        seen.state.enforcement.behind = Some("the tables are full".into());
        let said = ("False", "UpdateNotInForce", "the tables are full".to_owned());
        assert_eq!(desired_condition(&seen, now), Some(said));
        seen.state.enforcement.behind = None;
        assert_eq!(desired_condition(&seen, now).unwrap().0, "True");
    }
}
