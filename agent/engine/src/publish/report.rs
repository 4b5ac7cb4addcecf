//! The [`NodePolicyStatus`] of the own node.
//!
//! A report is a patch of the differences to the last one: of fields, and of single policies. While an update is
//! pending, fields about the enforced state keep their values: statements about a policy's generation stay true. The
//! cost of a namespace's changes limits how often they alone are reported ([`ReportBudget`]).

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::Patch;
use netpold_api::crd::{GROUP, NodePolicyStatus, NodeReport, PolicyOnNode, VERSION};
use netpold_core::model::Key;
use netpold_core::printable::cut;
use netpold_core::turns::in_turns;
use netpold_kube::cluster::random_part;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::budget::ReportBudget;
use super::enforced_state::ObservedState;
use super::published::{MESSAGE_MAX, PASSING, now};
use super::write::{ObjectWriter, WriteError};
use super::write_retry::WriteRetry;
use crate::engine::enforcement::PolicyEnforcement;

/// Least time between two reports.
const PACE: Duration = Duration::from_secs(5);
/// Range of the random delay of a change's report: all nodes see a change at once, and changes seldom come alone.
const SPREAD: Duration = Duration::from_secs(1);
/// Age at which a report is renewed, plus a random part of the second value.
const RENEWAL: (Duration, Duration) = (Duration::from_secs(40), Duration::from_secs(20));
/// Factor of the pause while the kind is not served or the report is refused: in the end one attempt in 90 s.
const REFUSAL_FACTOR: u32 = 3;
/// Most problems in a report.
const PROBLEMS: usize = 16;
/// Most bytes of all policies' messages; further messages are cut to [`SHORT`].
const MESSAGES: usize = 128 << 10;
/// Most bytes of a message beyond [`MESSAGES`].
const SHORT: usize = 100;
/// Most bytes of all policies: an object in etcd has at most 1.5 MiB.
const POLICIES: usize = 768 << 10;
/// Bytes of a policy beside its texts.
const FRAME: usize = 160;

/// Fields about the enforced state; they describe the last enforced policy set.
const OF_FORCE: [&str; 5] =
    ["pods", "podsEnforced", "policies", "policiesOmitted", "enforcedRevision"];
/// Fields reported at once if they change. Any pod of the cluster may raise the revision on all nodes, and problems may
/// contain counts; for the other fields, the namespace that caused a change is known.
const URGENT: [&str; 2] = ["agentVersion", "inSync"];
/// Most operations of a patch; beyond this it carries the whole list of policies.
const OPERATIONS: usize = 1000;

/// Builds the report of an observed state.
fn report(seen: &ObservedState) -> NodeReport {
    let enforcement = &seen.state.enforcement;
    let (policies, left) = bounded(enforcement.policies.iter().map(|(key, it)| policy(key, it)));
    let behind = seen.reason_not_in_force().map(str::to_owned).into_iter();
    let problems = behind.chain(seen.state.problems.iter().cloned()).take(PROBLEMS);
    NodeReport {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        renew_time: None,
        desired_revision: revision(enforcement.revision.desired),
        enforced_revision: revision(enforcement.revision.enforced),
        in_sync: seen.is_current(),
        pods: count(enforcement.pods.len()),
        pods_enforced: count(enforcement.pods.values().filter(|pod| pod.lacks.is_none()).count()),
        policies,
        policies_omitted: count(enforcement.omitted + left),
        problems: problems.map(|problem| cut(problem, MESSAGE_MAX)).collect(),
    }
}

/// Saturates at the API's `i32::MAX`.
fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn revision(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Reason why an audited policy is not in force.
const ON_TRIAL: &str = "audit mode (annotation netpold.io/enforcement: audit): denies nothing; netpold status on the \
                        nodes lists what it would deny";

fn policy(key: &Key, it: &PolicyEnforcement) -> PolicyOnNode {
    let on_trial = it.on_trial.then(|| ON_TRIAL.to_owned());
    let late = it.is_late.then(|| "being compiled; its former state is in force".to_owned());
    let unjudged = (it.not_judged > 0)
        .then(|| format!("the packets of {} of {} pods are not judged", it.not_judged, it.pods));
    let against: Vec<String> =
        on_trial.into_iter().chain(it.closed.iter().cloned()).chain(late).chain(unjudged).collect();
    let enforced = against.is_empty();
    let message = if enforced { it.problems.join("; ") } else { against.join("; ") };
    PolicyOnNode {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        uid: it.version.uid.clone(),
        observed_generation: it.version.generation,
        pods: count(it.pods),
        enforced,
        message: cut(message, MESSAGE_MAX),
    }
}

/// Returns as many policies as an object can hold, and the number of the rest. Namespaces have equal shares.
fn bounded(all: impl Iterator<Item = PolicyOnNode>) -> (Vec<PolicyOnNode>, usize) {
    let (mut taken, mut left) = (Vec::new(), 0);
    let (mut messages, mut size) = (0, 0);
    let all = all.enumerate();
    for (place, mut policy) in in_turns(all, |(_, policy)| policy.namespace.clone()) {
        if messages + policy.message.len() > MESSAGES {
            policy.message = cut(policy.message, SHORT);
        }
        let names = policy.namespace.len() + policy.name.len() + policy.uid.len();
        let bytes = FRAME + names + policy.message.len();
        if size + bytes > POLICIES {
            left += 1;
            continue;
        }
        size += bytes;
        messages += policy.message.len();
        taken.push((place, policy));
    }
    taken.sort_by_key(|(place, _)| *place);
    (taken.into_iter().map(|(_, policy)| policy).collect(), left)
}

/// Returns the fields to write, compared with the last written ones.
fn changed(said: Option<&Map<String, Value>>, seen: &ObservedState) -> Map<String, Value> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(report(seen)) else {
        return Map::new();
    };
    if !seen.is_current() {
        fields.retain(|name, _| !OF_FORCE.contains(&name.as_str()));
        if !seen.is_behind() {
            // The difference is expected to pass.
            fields.retain(|name, _| !["inSync", "problems"].contains(&name.as_str()));
        }
    }
    fields.remove("renewTime");
    fields.retain(|name, value| said.is_none_or(|said| said.get(name) != Some(value)));
    fields
}

/// Returns namespace and name of a policy in a report.
fn key(policy: &Value) -> [&str; 2] {
    ["namespace", "name"].map(|field| policy[field].as_str().unwrap_or_default())
}

/// Returns the operations of a JSON Patch (RFC 6902) that turn one list of policies into another, and the namespaces of
/// the differences. Both lists are sorted by key.
fn operations(before: &[Value], after: &[Value]) -> (Vec<Value>, BTreeSet<String>) {
    let (mut operations, mut namespaces) = (Vec::new(), BTreeSet::new());
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    let mut place = 0;
    loop {
        let order = match (before.peek(), after.peek()) {
            (None, None) => return (operations, namespaces),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => key(old).cmp(&key(new)),
        };
        let path = format!("/status/policies/{place}");
        let old = before.next_if(|_| order.is_le());
        let new = after.next_if(|_| order.is_ge());
        place += usize::from(new.is_some());
        operations.push(match (old, new) {
            (Some(old), Some(new)) if old == new => continue,
            (Some(_), Some(new)) => json!({ "op": "replace", "path": path, "value": new }),
            (_, Some(new)) => json!({ "op": "add", "path": path, "value": new }),
            (_, None) => json!({ "op": "remove", "path": path }),
        });
        namespaces.extend(old.or(new).map(|policy| key(policy)[0].to_owned()));
    }
}

/// Number of pods per namespace on this node, and number of enforced ones.
type PodCounts = BTreeMap<String, [usize; 2]>;

fn pod_counts(seen: &ObservedState) -> PodCounts {
    let mut counts = PodCounts::new();
    for (key, pod) in &seen.state.enforcement.pods {
        let [pods, enforced] = counts.entry(key.namespace.clone()).or_default();
        *pods += 1;
        *enforced += usize::from(pod.lacks.is_none());
    }
    counts
}

fn policies(fields: &Map<String, Value>) -> Option<&[Value]> {
    fields.get("policies")?.as_array().map(Vec::as_slice)
}

/// The last written report.
#[derive(Default)]
struct LastReport {
    fields: Map<String, Value>,
    pods: PodCounts,
    /// `resourceVersion` of the object; `None` if unknown.
    version: Option<String>,
}

/// A report to write.
struct ReportDraft {
    /// Fields that differ.
    fields: Map<String, Value>,
    /// JSON Patch of `policies`, if the list in the object is known and the difference is small.
    operations: Option<Vec<Value>>,
    pods: PodCounts,
    /// Namespaces with changes that cause this report.
    because_of: Vec<String>,
}

impl ReportDraft {
    /// Returns the due report: the observed state differs from the written one, or a renewal is due.
    fn new(
        said: Option<&LastReport>,
        seen: &ObservedState,
        (budget, renews): (&ReportBudget, bool),
        now: std::time::Instant,
    ) -> Option<Self> {
        let fields = changed(said.map(|said| &said.fields), seen);
        let mut pods = pod_counts(seen);
        let (mut by_operations, mut namespaces) = (None, BTreeSet::new());
        if let Some(said) = said {
            if let Some(after) = policies(&fields) {
                // A report without policies, as of an agent that is not in sync yet, leaves the predecessor's list.
                let before = policies(&said.fields);
                let (operations, of) = operations(before.unwrap_or_default(), after);
                namespaces = of;
                let is_few = operations.len() <= OPERATIONS.min(after.len());
                let is_known = before.is_some() && said.version.is_some();
                by_operations = Some(operations).filter(|_| is_few && is_known);
            }
            if seen.is_current() {
                let all = said.pods.keys().chain(pods.keys());
                let differ =
                    |namespace: &&String| said.pods.get(*namespace) != pods.get(*namespace);
                namespaces.extend(all.filter(differ).cloned());
            } else {
                pods.clone_from(&said.pods);
            }
        }
        let because_of = budget.may_write(&namespaces, now);
        let because_of: Vec<String> = because_of.into_iter().map(str::to_owned).collect();
        let urgent = said.is_none() || fields.keys().any(|name| URGENT.contains(&name.as_str()));
        (urgent || renews || !because_of.is_empty()).then_some(Self {
            fields,
            operations: by_operations,
            pods,
            because_of,
        })
    }

    /// Returns the operations of the whole report; `None`: it is written as a merge patch.
    fn patch(&self, said: Option<&LastReport>) -> Option<Vec<Value>> {
        let operations = self.operations.as_ref()?;
        // After a write by another client, the places would refer to other policies: the API server refuses another
        // version as a conflict (409). It would refuse a failed `test` as a malformed request (422).
        let version = said?.version.as_ref()?;
        let is = json!({ "op": "add", "path": "/metadata/resourceVersion", "value": version });
        let fields = self.fields.iter().filter(|(name, _)| *name != "policies");
        let fields = fields.map(|(name, value)| {
            json!({ "op": "add", "path": format!("/status/{name}"), "value": value })
        });
        Some([is].into_iter().chain(fields).chain(operations.iter().cloned()).collect())
    }
}

/// Keeps the node's report up to date.
pub(super) struct Reporter {
    writer: Arc<ObjectWriter>,
    node: String,
    seen: watch::Receiver<Arc<ObservedState>>,
    /// Uid of the Node.
    uid: watch::Receiver<Option<String>>,
    /// The last written report; `None` if the object's content is unknown.
    said: Option<LastReport>,
    budget: ReportBudget,
    /// Earliest time of the next report.
    next: Instant,
    /// Latest time of the next report.
    renewal: Instant,
    failing: WriteRetry,
}

impl Reporter {
    pub(super) fn new(
        writer: Arc<ObjectWriter>,
        node: String,
        seen: watch::Receiver<Arc<ObservedState>>,
        uid: watch::Receiver<Option<String>>,
    ) -> Self {
        let now = Instant::now();
        let failing = WriteRetry::new("write nodepolicystatuses");
        let budget = ReportBudget::new(now.into_std());
        Self { writer, node, seen, uid, said: None, budget, next: now, renewal: now, failing }
    }

    /// Runs until the observer ends.
    pub(super) async fn run(mut self) {
        loop {
            sleep_until(self.next).await;
            let seen = Arc::clone(&self.seen.borrow_and_update());
            // A starting agent keeps its predecessor's report for a moment.
            let known = self.said.is_some() || seen.is_current() || seen.is_behind();
            let now = Instant::now();
            let when = (&self.budget, self.renewal <= now);
            let draft = ReportDraft::new(self.said.as_ref(), &seen, when, now.into_std());
            if let Some(draft) = draft.filter(|_| known) {
                let pause = self.write(draft).await;
                self.next = Instant::now() + pause;
                continue;
            }
            // A state that persists causes no event, so the wait is limited.
            let again = Instant::now() + PASSING;
            let again = if known { again.min(self.renewal) } else { again };
            tokio::select! {
                () = sleep_until(again) => {}
                changed = self.seen.changed() => if changed.is_err() { return },
            }
            self.next = Instant::now() + random_part(SPREAD);
        }
    }

    /// Writes a report; returns the pause before the next one.
    async fn write(&mut self, mut draft: ReportDraft) -> Duration {
        draft.fields.insert("renewTime".into(), json!(now()));
        let mut outcome = match draft.patch(self.said.as_ref()) {
            Some(operations) => {
                let writer = &self.writer;
                writer.patch_by_operations::<NodePolicyStatus>(&self.node, &operations).await
            }
            None => {
                let version = self.said.as_ref().and_then(|said| said.version.as_deref());
                self.patch(&draft.fields, version).await
            }
        };
        if outcome.as_ref().is_err_and(WriteError::is_absent) {
            // Either no report exists, or it was deleted with another Node of this name, or the kind is not served.
            if self.uid.borrow().is_none() {
                return SPREAD;
            }
            outcome = match self.create().await {
                Ok(_) => self.patch(&draft.fields, None).await,
                Err(error) => Err(error),
            };
            if self.said.take().is_some() {
                // The new object has none of the earlier fields: the next report is a full one.
                return PACE;
            }
        }
        match outcome {
            Ok(version) => {
                let ReportDraft { fields, operations, pods, because_of } = draft;
                let operations = operations.map(|operations| operations.len());
                debug!(fields = fields.len(), ?operations, "report written");
                self.failing.worked();
                self.renewal = Instant::now() + RENEWAL.0 + random_part(RENEWAL.1);
                let said = self.said.get_or_insert_default();
                said.fields.extend(fields);
                (said.pods, said.version) = (pods, version);
                let bytes = serde_json::to_vec(&said.fields).map_or(0, |bytes| bytes.len());
                self.budget.charge(&because_of, bytes, Instant::now().into_std());
                PACE
            }
            // Another client has written the object: the next report is a full one.
            Err(error) if error.is_of_object() && self.said.take().is_some() => {
                debug!(?error, "report changed since it was written");
                PACE
            }
            Err(error) => {
                if !error.is_refusal() {
                    // The server may have stored the report, or may still do so.
                    self.said = None;
                }
                self.failing.failed(&error, self.writer.connection()).await;
                let pause = self.failing.pause();
                if error.is_of_object() { pause * REFUSAL_FACTOR } else { pause }.max(PACE)
            }
        }
    }

    /// Writes fields, to the object in this version if one is given.
    async fn patch(
        &self,
        fields: &Map<String, Value>,
        version: Option<&str>,
    ) -> Result<Option<String>, WriteError> {
        let metadata = version.map_or(json!({}), |version| json!({ "resourceVersion": version }));
        let patch = Patch::Merge(json!({ "metadata": metadata, "status": fields }));
        self.writer.patch::<NodePolicyStatus>((None, &self.node), Some("status"), &patch).await
    }

    /// Creates the object with the Node as its owner, so that it is deleted with the Node.
    async fn create(&self) -> Result<Option<String>, WriteError> {
        let owner = self.uid.borrow().clone().map(|uid| OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: self.node.clone(),
            uid,
            ..OwnerReference::default()
        });
        let metadata = ObjectMeta {
            name: Some(self.node.clone()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        };
        let object = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "NodePolicyStatus",
            "metadata": metadata,
        });
        self.writer.create::<NodePolicyStatus>(&object).await
    }
}

#[cfg(test)]
mod tests;
