//! The statuses that the API server has, and those on their way to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Api, Client, Resource};
use netpold_core::model::Key;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::follow::key;
use super::statuses::Counters;
use crate::api::{NetworkPolicyStatus, PolicyReport};
use crate::source::cluster::failure::{code_of, is_outage, is_terminating};

/// Writes that wait for an answer.
const IN_FLIGHT: usize = 16;
/// Of these, in one namespace: a server may take long for each of them.
const IN_NAMESPACE: usize = 4;
/// A write may take so long.
const PATIENCE: Duration = Duration::from_secs(10);
/// A policy whose status could not be written is tried again after this.
const RETRY: Duration = Duration::from_secs(2);
/// Failures are forgotten when there are of so many policies.
const REMEMBERED: usize = 10_000;
/// Failed writes are logged this often.
const COMPLAIN: Duration = Duration::from_secs(30);

/// A status as the API server has it.
#[derive(Debug)]
struct Written {
    version: String,
    owner: String,
    report: Option<PolicyReport>,
}

/// The outcome of a write.
pub(super) struct Outcome {
    key: Key,
    result: Result<NetworkPolicyStatus, kube::Error>,
}

/// See the module.
pub(super) struct Writes {
    client: Client,
    counters: Arc<Counters>,
    written: BTreeMap<Key, Written>,
    in_flight: BTreeSet<Key>,
    /// Failures in a row.
    failed: BTreeMap<Key, u32>,
    tasks: JoinSet<Outcome>,
    /// When a failed write was logged last.
    complained: Option<Instant>,
}

impl Writes {
    /// Nothing is known to be written.
    pub(super) fn new(client: Client, counters: Arc<Counters>) -> Self {
        Self {
            client,
            counters,
            written: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            failed: BTreeMap::new(),
            tasks: JoinSet::new(),
            complained: None,
        }
    }

    /// Whether no other write may begin.
    pub(super) fn are_full(&self) -> bool {
        self.in_flight.len() >= IN_FLIGHT
    }

    /// Whether no other write of that namespace may begin.
    pub(super) fn are_full_of(&self, namespace: &str) -> bool {
        let of = self.in_flight.iter().filter(|key| key.namespace == namespace);
        of.count() >= IN_NAMESPACE
    }

    /// Whether a policy's status is being written.
    pub(super) fn are_of(&self, key: &Key) -> bool {
        self.in_flight.contains(key)
    }

    /// What the API server has of a policy.
    pub(super) fn written(&self, key: &Key) -> Option<&PolicyReport> {
        self.written.get(key)?.report.as_ref()
    }

    /// Remembers a status; whether it is news. What was written is known before a watch says it.
    pub(super) fn remember(&mut self, object: NetworkPolicyStatus) -> bool {
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

    /// A status was deleted.
    pub(super) fn forget(&mut self, key: &Key) {
        self.written.remove(key);
        self.failed.remove(key);
    }

    /// Begins to write the status of the policy with that uid, unless the API server has it; whether it does not.
    pub(super) fn begin(&mut self, key: Key, uid: String, report: PolicyReport) -> bool {
        let known = self.written.get(&key);
        let is_owned = known.is_some_and(|known| known.owner == uid);
        if is_owned && known.and_then(|known| known.report.as_ref()) == Some(&report) {
            return false;
        }
        let client = self.client.clone();
        let version = known.map(|known| known.version.clone());
        self.in_flight.insert(key.clone());
        self.tasks.spawn(async move {
            let written = write(&client, &key, &uid, version, is_owned, &report);
            let result = match tokio::time::timeout(PATIENCE, written).await {
                Ok(result) => result,
                Err(late) => Err(kube::Error::Service(late.into())),
            };
            Outcome { key, result }
        });
        true
    }

    /// Waits for the end of a write; `None`: there is none.
    pub(super) async fn next(&mut self) -> Option<Outcome> {
        loop {
            // One that was aborted has no outcome.
            if let Ok(outcome) = self.tasks.join_next().await? {
                return Some(outcome);
            }
        }
    }

    /// Takes in the outcome of a write; of which policy, written or not and to be tried again after a pause that doubles
    /// with each failure in a row. `None`: not before something changes.
    pub(super) fn take(
        &mut self,
        Outcome { key, result }: Outcome,
    ) -> Result<Key, (Key, Option<Duration>)> {
        self.in_flight.remove(&key);
        match result {
            Ok(object) => {
                self.counters.writes.inc();
                self.failed.remove(&key);
                self.remember(object);
                Ok(key)
            }
            Err(error) => {
                if is_terminating(&error) {
                    debug!("NetworkPolicy {key} gets no status: its namespace is being deleted");
                    return Err((key, None));
                }
                self.counters.failures.inc();
                // Somebody else wrote it, or it is gone: a watch will say so.
                let expected =
                    matches!(&error, kube::Error::Api(status) if [404, 409].contains(&status.code));
                if !expected && self.complained.is_none_or(|at| at.elapsed() > COMPLAIN) {
                    self.complained = Some(Instant::now());
                    warn!(%error, "the status of NetworkPolicy {key} cannot be written");
                }
                if is_outage(code_of(&error)) {
                    return Err((key, Some(RETRY)));
                }
                if self.failed.len() >= REMEMBERED {
                    self.failed.clear();
                }
                let failures = self.failed.entry(key.clone()).or_default();
                let pause = RETRY.saturating_mul(1 << (*failures).min(5));
                *failures += 1;
                Err((key, Some(pause)))
            }
        }
    }

    /// Gives up what is being written.
    pub(super) fn abort(&mut self) {
        self.tasks.abort_all();
        self.in_flight.clear();
        self.failed.clear();
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
