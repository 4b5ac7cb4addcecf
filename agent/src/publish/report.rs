//! The [`NodePolicyStatus`] of the own node.
//!
//! A report is a merge patch of the fields that differ from the last one. Fields that say what is in force keep their
//! values while an update is not: what was written of a policy's generation stays true.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::Patch;
use netpold_core::model::Key;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::failing::{Failing, random_part};
use super::seen::Seen;
use super::write::{WriteError, Writer};
use super::{MESSAGE_MAX, PASSING, now};
use crate::api::{GROUP, NodePolicyStatus, NodeReport, PolicyOnNode, VERSION};
use crate::engine::PolicyEnforcement;
use crate::printable::cut;

/// Least time between two reports.
const PACE: Duration = Duration::from_secs(5);
/// A change is reported after a random part of this: it is all nodes' at the same moment, and seldom comes alone.
const SPREAD: Duration = Duration::from_secs(1);
/// A report is renewed after this, and a random part of the other.
const RENEWAL: (Duration, Duration) = (Duration::from_secs(40), Duration::from_secs(20));
/// Where the kind is not served, or the report is refused, it is tried again that many times later than after an outage,
/// in the end every 90 s.
const REFUSED: u32 = 3;
/// Problems in a report.
const PROBLEMS: usize = 16;
/// Bytes of all messages of policies; beyond this each has [`SHORT`].
const MESSAGES: usize = 128 << 10;
/// Bytes of a message where there are many.
const SHORT: usize = 100;
/// Bytes of all policies: an object has at most 1.5 MiB in etcd.
const POLICIES: usize = 768 << 10;
/// Bytes that a policy takes beside its texts.
const FRAME: usize = 160;

/// Fields that say what is in force: they are of the last policy set that was.
const OF_FORCE: [&str; 5] =
    ["pods", "podsEnforced", "policies", "policiesOmitted", "enforcedRevision"];
/// Fields whose change alone is reported with the next renewal. Every pod in the cluster that comes or goes may count
/// the revision up, on all nodes, and problems may have counts in them.
const NOT_URGENT: [&str; 4] = ["renewTime", "desiredRevision", "enforcedRevision", "problems"];

/// What is in force by what was seen.
fn report(seen: &Seen) -> NodeReport {
    let enforcement = &seen.look.enforcement;
    let (policies, left) = bounded(enforcement.policies.iter().map(|(key, it)| policy(key, it)));
    let behind = seen.behind().map(str::to_owned).into_iter();
    let problems = behind.chain(seen.look.problems.iter().cloned()).take(PROBLEMS);
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

/// A number as the API has it; those that are too great are as great as it has them.
fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn revision(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Why a policy on trial is not in force.
const ON_TRIAL: &str = "on trial (annotation netpold.io/enforcement: audit): it denies nothing; the nodes' netpold \
                        status tells what it would deny";

fn policy(key: &Key, it: &PolicyEnforcement) -> PolicyOnNode {
    let on_trial = it.on_trial.then(|| ON_TRIAL.to_owned());
    let late = it.is_late.then(|| "it is being compiled; its former state is in force".to_owned());
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

/// As many policies as an object holds, and how many more there are.
fn bounded(all: impl Iterator<Item = PolicyOnNode>) -> (Vec<PolicyOnNode>, usize) {
    let (mut taken, mut left) = (Vec::new(), 0);
    let (mut messages, mut size) = (0, 0);
    for mut policy in all {
        if messages + policy.message.len() > MESSAGES {
            policy.message = cut(policy.message, SHORT);
        }
        let names = policy.namespace.len() + policy.name.len() + policy.uid.len();
        size += FRAME + names + policy.message.len();
        if size > POLICIES {
            left += 1;
            continue;
        }
        messages += policy.message.len();
        taken.push(policy);
    }
    (taken, left)
}

/// The fields that are to be written over those that were.
fn changed(said: Option<&Map<String, Value>>, seen: &Seen) -> Map<String, Value> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(report(seen)) else {
        return Map::new();
    };
    if !seen.is_current() {
        fields.retain(|name, _| !OF_FORCE.contains(&name.as_str()));
        if !seen.is_behind() {
            // It passes.
            fields.retain(|name, _| !["inSync", "problems"].contains(&name.as_str()));
        }
    }
    fields.remove("renewTime");
    fields.retain(|name, value| said.is_none_or(|said| said.get(name) != Some(value)));
    fields
}

/// Reports.
pub(super) struct Reporter {
    writer: Arc<Writer>,
    node: String,
    seen: watch::Receiver<Arc<Seen>>,
    /// The Node's.
    uid: watch::Receiver<Option<String>>,
    /// The fields that were written last; `None`: what the object has is not known.
    said: Option<Map<String, Value>>,
    /// No report before this.
    next: Instant,
    /// A report then at the latest.
    renewal: Instant,
    failing: Failing,
}

impl Reporter {
    pub(super) fn new(
        writer: Arc<Writer>,
        node: String,
        seen: watch::Receiver<Arc<Seen>>,
        uid: watch::Receiver<Option<String>>,
    ) -> Self {
        let now = Instant::now();
        let failing = Failing::new("write nodepolicystatuses");
        Self { writer, node, seen, uid, said: None, next: now, renewal: now, failing }
    }

    /// Runs until the observer ends.
    pub(super) async fn run(mut self) {
        loop {
            sleep_until(self.next).await;
            let seen = Arc::clone(&self.seen.borrow_and_update());
            // An agent that starts leaves its predecessor's report for a moment.
            let known = self.said.is_some() || seen.is_current() || seen.is_behind();
            let fields = changed(self.said.as_ref(), &seen);
            let urgent = fields.keys().any(|name| !NOT_URGENT.contains(&name.as_str()));
            if known && (urgent || self.renewal <= Instant::now()) {
                let pause = self.write(fields).await;
                self.next = Instant::now() + pause;
                continue;
            }
            // What lasts is no change by itself.
            let again = Instant::now() + PASSING;
            let again = if known { again.min(self.renewal) } else { again };
            tokio::select! {
                () = sleep_until(again) => {}
                changed = self.seen.changed() => if changed.is_err() { return },
            }
            self.next = Instant::now() + random_part(SPREAD);
        }
    }

    /// Writes a report; how long to write none.
    async fn write(&mut self, mut fields: Map<String, Value>) -> Duration {
        fields.insert("renewTime".into(), json!(now()));
        let mut outcome = self.patch(&fields).await;
        if outcome.as_ref().is_err_and(WriteError::is_absent) {
            // There is no report yet, it went with another Node of the name, or the kind is not served.
            if self.uid.borrow().is_none() {
                return SPREAD;
            }
            outcome = match self.create().await {
                Ok(()) => self.patch(&fields).await,
                Err(error) => Err(error),
            };
            if self.said.take().is_some() {
                // The new one has nothing of what was written before: the next report is a whole one.
                return PACE;
            }
        }
        match outcome {
            Ok(()) => {
                debug!(fields = fields.len(), "report written");
                self.failing.worked();
                self.renewal = Instant::now() + RENEWAL.0 + random_part(RENEWAL.1);
                self.said.get_or_insert_default().extend(fields);
                PACE
            }
            Err(error) => {
                self.failing.failed(&error, self.writer.connection()).await;
                let pause = self.failing.pause();
                if error.is_of_object() { pause * REFUSED } else { pause }.max(PACE)
            }
        }
    }

    async fn patch(&self, fields: &Map<String, Value>) -> Result<(), WriteError> {
        let patch = Patch::Merge(json!({ "status": fields }));
        self.writer.patch::<NodePolicyStatus>((None, &self.node), Some("status"), &patch).await
    }

    /// Creates the object, for the Node to own: it goes with it.
    async fn create(&self) -> Result<(), WriteError> {
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
mod tests {
    use super::*;
    use crate::engine::Enforcement;
    use crate::publish::Look;
    use crate::status::Revision;

    fn on_node(number: usize, message: usize) -> PolicyOnNode {
        PolicyOnNode {
            namespace: "n".repeat(63),
            name: format!("{number:0253}"),
            uid: "u".repeat(36),
            message: "m".repeat(message),
            ..PolicyOnNode::default()
        }
    }

    #[test]
    fn a_report_fits_into_an_object() {
        let (few, left) = bounded((0..100).map(|number| on_node(number, MESSAGE_MAX)));
        assert_eq!((few.len(), left), (100, 0));
        assert!(few.iter().all(|policy| policy.message.len() == MESSAGE_MAX));
        let (many, left) = bounded((0..2000).map(|number| on_node(number, MESSAGE_MAX)));
        assert_eq!(many.len() + left, 2000);
        let size = serde_json::to_string(&many).unwrap().len();
        assert!(size < 1 << 20 && many.len() > 1000, "{} policies: {size} bytes", many.len());
    }

    #[test]
    fn only_what_differs_is_written() {
        let revision = Revision { desired: 2, enforced: 2 };
        let enforcement = Enforcement { revision, ..Enforcement::default() };
        let look = Look { enforcement, problems: Vec::new(), in_sync: true };
        let mut seen = Seen { look, begun: true, behind_since: None };
        let all = changed(None, &seen);
        assert!(all.contains_key("policies") && !all.contains_key("renewTime"));
        assert_eq!(changed(Some(&all), &seen), Map::new());
        seen.look.enforcement.revision.desired = 3;
        seen.look.enforcement.behind = Some("an update is being written".into());
        let update = changed(Some(&all), &seen);
        assert_eq!(update.keys().collect::<Vec<_>>(), ["desiredRevision"], "the rest passes");
    }

    #[test]
    fn a_policy_says_why_it_is_not_enforced() {
        let key = Key { namespace: "shop".into(), name: "web".into() };
        let mut it = PolicyEnforcement {
            version: netpold_core::model::PolicyVersion { uid: "u".into(), generation: 4 },
            pods: 3,
            not_judged: 0,
            on_trial: false,
            is_late: false,
            closed: None,
            problems: vec!["spec.ingress[0]: grants nothing".into()],
        };
        let said = policy(&key, &it);
        assert!(said.enforced && said.message.starts_with("spec.ingress[0]"), "{said:?}");
        it.not_judged = 1;
        let said = policy(&key, &it);
        assert_eq!(
            (said.enforced, said.message.as_str(), said.observed_generation),
            (false, "the packets of 1 of 3 pods are not judged", 4)
        );
        (it.not_judged, it.on_trial) = (0, true);
        let said = policy(&key, &it);
        assert!(!said.enforced && said.message == ON_TRIAL, "{said:?}");
    }
}
