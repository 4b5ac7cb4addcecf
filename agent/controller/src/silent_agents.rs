//! Node conditions of silent agents. An agent that has ended leaves its Node's condition [`NODE_CONDITION`] True. The
//! leader sets it to Unknown once the agent's report has not been renewed for [`SILENT`]. Unknown concerns the report
//! alone: enforcement outlives the agent, and goes on where the agent has lost its connection.
//!
//! The agent wins every race. The leader reads the report once more, because its watch may be late, and its patch holds
//! only for the Node as read afterwards. A running agent watches its Node and writes a changed condition again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use netpold_api::crd::{NODE_CONDITION, NodePolicyStatus, used_metadata};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::index::{SILENT, SilentNodes};
use crate::lease::ElectionView;

/// Maximum number of Nodes in flight, and per call of [`SilentAgents::mark`]: at an interval of 2 s, 5 Nodes a second.
/// All watches of Nodes receive such a write, and 5,000 Nodes can fail at once.
const AT_ONCE: usize = 10;
/// Time for which this replica must have led. A leader without an answer of the API server ceases to lead, so the API
/// server has been reachable since then, and the agents have reported again after an outage: they try at least once a
/// minute.
const LED: Duration = Duration::from_secs(90);
/// Time without a call of [`SilentAgents::mark`] after which the leadership counts from its next call.
const LAPSE: Duration = Duration::from_secs(10);
/// Timeout of the requests about one Node.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts, longer than [`PATIENCE`].
const RETRY: Duration = Duration::from_secs(20);
/// Minimum time between two log lines about failures.
const COMPLAIN: Duration = Duration::from_secs(30);
/// Reason of the condition.
const REASON: &str = "AgentSilent";

/// Last attempt to set the condition of a Node.
#[derive(Debug)]
struct MarkAttempt {
    /// Renewal time of the agent's last report.
    renewed: i64,
    /// Time of the next attempt; `None`: none is necessary.
    next: Option<Instant>,
}

/// Name of a Node, and whether its condition needs no further attempt.
pub(super) type MarkOutcome = (Arc<str>, Result<bool, kube::Error>);

/// A Node as read before its condition is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ConditionedNode {
    #[serde(deserialize_with = "used_metadata")]
    metadata: ObjectMeta,
    status: Value,
}

netpold_api::resource!(ConditionedNode, part of Node);

/// Sets the conditions of Nodes with silent agents.
pub(super) struct SilentAgents {
    client: Client,
    leading: ElectionView,
    /// First and last call of [`SilentAgents::mark`] without a lapse between two of them.
    led: Option<[Instant; 2]>,
    attempts: BTreeMap<Arc<str>, MarkAttempt>,
    tasks: JoinSet<MarkOutcome>,
    /// Time of the last log line about a failure.
    complained: Option<Instant>,
}

impl SilentAgents {
    pub(super) fn new(client: Client, leading: ElectionView) -> Self {
        Self {
            client,
            leading,
            led: None,
            attempts: BTreeMap::new(),
            tasks: JoinSet::new(),
            complained: None,
        }
    }

    /// Begins with the next of the given Nodes, which are all with a silent agent. To be called at an interval, only
    /// while this replica leads.
    pub(super) fn mark(&mut self, silent: SilentNodes, now: Instant) {
        self.attempts.retain(|name, attempt| silent.get(name) == Some(&attempt.renewed));
        if !self.has_led(now) {
            return;
        }
        let room = AT_ONCE.saturating_sub(self.tasks.len());
        for (name, renewed) in due_nodes(silent, &self.attempts, room, now) {
            let attempt = MarkAttempt { renewed, next: Some(now + RETRY) };
            self.attempts.insert(Arc::clone(&name), attempt);
            let (client, leading) = (self.client.clone(), self.leading.clone());
            self.tasks.spawn(async move {
                let marked = set_unknown(&client, &leading, &name, renewed);
                let result = match tokio::time::timeout(PATIENCE, marked).await {
                    Ok(result) => result,
                    Err(late) => Err(kube::Error::Service(late.into())),
                };
                (name, result)
            });
        }
    }

    /// Returns whether this replica has led for [`LED`].
    fn has_led(&mut self, now: Instant) -> bool {
        let kept = self.led.filter(|[_, last]| now.saturating_duration_since(*last) < LAPSE);
        let since = kept.map_or(now, |[since, _]| since);
        self.led = Some([since, now]);
        now.saturating_duration_since(since) >= LED
    }

    /// Waits for the end of an attempt; `None`: none is in flight.
    pub(super) async fn next(&mut self) -> Option<MarkOutcome> {
        loop {
            // An aborted attempt has no outcome.
            if let Ok(outcome) = self.tasks.join_next().await? {
                return Some(outcome);
            }
        }
    }

    /// Handles the outcome of an attempt. A failed one is repeated after [`RETRY`].
    pub(super) fn handle_outcome(&mut self, (name, result): MarkOutcome) {
        match result {
            Ok(false) => {}
            Ok(true) => {
                if let Some(attempt) = self.attempts.get_mut(&name) {
                    attempt.next = None;
                }
            }
            // The Node has changed since it was read.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => {
                if self.complained.is_none_or(|at| at.elapsed() > COMPLAIN) {
                    self.complained = Some(Instant::now());
                    warn!(%error, "cannot set condition {NODE_CONDITION} of Node {name}");
                }
            }
        }
    }
}

/// Returns the next Nodes to try: those without an attempt first.
fn due_nodes(
    silent: SilentNodes,
    attempts: &BTreeMap<Arc<str>, MarkAttempt>,
    room: usize,
    now: Instant,
) -> Vec<(Arc<str>, i64)> {
    let next = |name: &str| attempts.get(name).map(|attempt| attempt.next);
    let is_due = |name: &str| next(name).is_none_or(|next| next.is_some_and(|next| next <= now));
    let mut due: Vec<_> = silent.into_iter().filter(|(name, _)| is_due(name)).collect();
    due.sort_by_key(|(name, _)| next(name));
    due.truncate(room);
    due
}

/// Sets the condition of a Node to Unknown if the agent's last report is still the one renewed at `renewed`. Returns
/// whether no further attempt is necessary.
async fn set_unknown(
    client: &Client,
    leading: &ElectionView,
    name: &str,
    renewed: i64,
) -> Result<bool, kube::Error> {
    let report = Api::<NodePolicyStatus>::all(client.clone()).get_opt(name).await?;
    let status = report.and_then(|report| report.status);
    let stored = status.map(|status| status.renew_time.map_or(0, |time| time.0.as_second()));
    if stored != Some(renewed) {
        return Ok(false);
    }
    let nodes = Api::<ConditionedNode>::all(client.clone());
    let Some(node) = nodes.get_opt(name).await? else { return Ok(true) };
    let Some(patch) = patch(&node, renewed, Timestamp::now()) else { return Ok(true) };
    if !leading.leads() {
        return Ok(false);
    }
    nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
    info!(node = name, "agent is silent: condition {NODE_CONDITION} set to Unknown");
    Ok(true)
}

/// Returns the patch of the condition; `None`: it has to stay, or does not exist. `lastHeartbeatTime` remains that of
/// the agent.
fn patch(node: &ConditionedNode, renewed: i64, now: Timestamp) -> Option<Value> {
    let conditions = node.status["conditions"].as_array()?;
    let condition = conditions.iter().find(|condition| condition["type"] == NODE_CONDITION)?;
    if condition["status"] == "Unknown" {
        return None;
    }
    // An agent that may write its Node but not its report. Both times are by the clock of its node.
    let heartbeat = condition["lastHeartbeatTime"].as_str().and_then(|it| it.parse().ok());
    let is_alive = |at: Timestamp| at.as_second() - renewed > SILENT.as_secs().cast_signed();
    if heartbeat.is_some_and(is_alive) {
        return None;
    }
    let since = Timestamp::from_second(renewed).unwrap_or_default();
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Some(json!({
        "metadata": { "uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version },
        "status": { "conditions": [{
            "type": NODE_CONDITION,
            "status": "Unknown",
            "reason": REASON,
            "message": format!(
                "no renewed report from the agent since {since}; the last enforced state stays in force"
            ),
            "lastTransitionTime": now.to_string(),
        }] },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RENEWED: i64 = 1_764_000_000;

    fn node(status: &str, heartbeat: i64) -> ConditionedNode {
        let heartbeat = Timestamp::from_second(heartbeat).unwrap().to_string();
        let ready = json!({ "type": "Ready", "status": "True" });
        let ours =
            json!({ "type": NODE_CONDITION, "status": status, "lastHeartbeatTime": heartbeat });
        serde_json::from_value(json!({
            "metadata": { "name": "n1", "uid": "u", "resourceVersion": "7" },
            "status": { "conditions": [ready, ours] },
        }))
        .unwrap()
    }

    #[test]
    fn the_patch_is_of_one_condition_of_the_node_as_read() {
        let now = Timestamp::from_second(RENEWED + 200).unwrap();
        let patch = |node: &ConditionedNode| patch(node, RENEWED, now);
        let found = patch(&node("True", RENEWED - 900)).unwrap();
        assert_eq!(found["metadata"], json!({ "uid": "u", "resourceVersion": "7" }));
        let conditions = found["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0]["status"], "Unknown");
        let message = conditions[0]["message"].as_str().unwrap();
        let since = "no renewed report from the agent since 2025-11-24T16:00:00Z";
        assert!(message.starts_with(since), "{message}");
        assert!(patch(&node("False", RENEWED - 900)).is_some());
        assert_eq!(patch(&node("Unknown", RENEWED - 900)), None, "it is there");
        assert_eq!(patch(&node("True", RENEWED + 190)), None, "the agent lives");
        let without = json!({ "metadata": { "name": "n1" }, "status": { "conditions": [] } });
        assert_eq!(patch(&serde_json::from_value(without).unwrap()), None, "never there");
        let bare = json!({ "metadata": { "name": "n1" } });
        assert_eq!(patch(&serde_json::from_value(bare).unwrap()), None);
    }

    /// All nodes of a large cluster fail at once, and some of the writes fail.
    #[test]
    fn many_silent_agents_take_turns() {
        let start = Instant::now();
        let silent: SilentNodes = (0..5000).map(|n| (format!("n{n:04}").into(), n)).collect();
        let mut attempts = BTreeMap::new();
        let (mut done, mut now) = (0, start);
        while done < silent.len() {
            let due = due_nodes(silent.clone(), &attempts, AT_ONCE, now);
            assert!(due.len() <= AT_ONCE);
            for (name, renewed) in due {
                let fails = renewed % 100 == 0 && !attempts.contains_key(&name);
                done += usize::from(!fails);
                let next = fails.then_some(now + RETRY);
                attempts.insert(name, MarkAttempt { renewed, next });
            }
            now += Duration::from_secs(2);
        }
        let took = (now - start).as_secs();
        assert!((1000..1100).contains(&took), "{took} s");
        assert!(due_nodes(silent, &attempts, AT_ONCE, now + RETRY).is_empty());
    }
}
