//! Statuses on the API server, and writes in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Api, Client, Resource};
use netpold_api::crd::{NetworkPolicyStatus, PolicyReport};
use netpold_core::model::Key;
use netpold_kube::cluster::failure::{code_of, is_outage, is_terminating};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::cluster_conditions;
use crate::counters::ControllerCounters;
use crate::follow::key;

/// Maximum number of writes in flight.
const IN_FLIGHT: usize = 16;
/// Maximum number of writes in flight per namespace: slow writes of one namespace leave room for others.
const IN_NAMESPACE: usize = 4;
/// Timeout of a write.
const PATIENCE: Duration = Duration::from_secs(10);
/// Delay before a failed write is tried again.
const RETRY: Duration = Duration::from_secs(2);
/// Number of policies in `failed` at which all failures are forgotten.
const REMEMBERED: usize = 10_000;
/// Minimum time between two log lines about failed writes.
const COMPLAIN: Duration = Duration::from_secs(30);

/// Status on the API server.
#[derive(Debug)]
struct WrittenStatus {
    /// `resourceVersion` of the `NetworkPolicyStatus`; empty for a ClusterNetworkPolicy.
    version: String,
    /// UID of the policy.
    owner: String,
    report: Option<PolicyReport>,
}

impl From<NetworkPolicyStatus> for WrittenStatus {
    fn from(object: NetworkPolicyStatus) -> Self {
        let owner = object.metadata.owner_references.into_iter().flatten().next();
        Self {
            version: object.metadata.resource_version.unwrap_or_default(),
            owner: owner.map(|owner| owner.uid).unwrap_or_default(),
            report: object.status,
        }
    }
}

/// Result of a write.
pub(super) struct WriteOutcome {
    key: Key,
    result: Result<WrittenStatus, kube::Error>,
}

/// Statuses on the API server, and writes in flight.
pub(super) struct Writes {
    client: Client,
    counters: Arc<ControllerCounters>,
    written: BTreeMap<Key, WrittenStatus>,
    in_flight: BTreeSet<Key>,
    /// Number of consecutive failures per policy.
    failed: BTreeMap<Key, u32>,
    tasks: JoinSet<WriteOutcome>,
    /// Time of the last log line about a failed write.
    complained: Option<Instant>,
}

impl Writes {
    /// Starts without any status or write.
    pub(super) fn new(client: Client, counters: Arc<ControllerCounters>) -> Self {
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

    /// Whether the maximum number of writes is in flight.
    pub(super) fn are_full(&self) -> bool {
        self.in_flight.len() >= IN_FLIGHT
    }

    /// Whether the maximum number of writes in this namespace is in flight.
    pub(super) fn are_full_for(&self, namespace: &str) -> bool {
        let of = self.in_flight.iter().filter(|key| key.namespace == namespace);
        of.count() >= IN_NAMESPACE
    }

    /// Whether the policy's status is being written.
    pub(super) fn is_in_flight(&self, key: &Key) -> bool {
        self.in_flight.contains(key)
    }

    /// Returns the report on the API server about a policy.
    pub(super) fn written(&self, key: &Key) -> Option<&PolicyReport> {
        self.written.get(key)?.report.as_ref()
    }

    /// Stores a status. Returns whether it is newer than the stored one: the response to a write precedes its watch
    /// event.
    pub(super) fn store_status(&mut self, object: NetworkPolicyStatus) -> bool {
        self.store(key(&object), object.into())
    }

    fn store(&mut self, key: Key, new: WrittenStatus) -> bool {
        let number = |version: &str| version.parse::<u64>().unwrap_or(u64::MAX);
        let is_known = self.written.get(&key).is_some_and(|known| {
            !new.version.is_empty() && number(&known.version) >= number(&new.version)
        });
        if !is_known {
            self.written.insert(key, new);
        }
        !is_known
    }

    /// Removes a deleted status.
    pub(super) fn forget(&mut self, key: &Key) {
        self.written.remove(key);
        self.failed.remove(key);
    }

    /// Begins to write the status of the policy with this UID, unless the API server has the same one. Returns whether
    /// a write has begun.
    pub(super) fn begin_write(&mut self, key: Key, uid: String, report: PolicyReport) -> bool {
        let known = self.written.get(&key);
        let is_owned = known.is_some_and(|known| known.owner == uid);
        if is_owned && known.and_then(|known| known.report.as_ref()) == Some(&report) {
            return false;
        }
        let client = self.client.clone();
        let version = known.map(|known| known.version.clone());
        self.in_flight.insert(key.clone());
        self.tasks.spawn(async move {
            let written = async {
                if key.namespace.is_empty() {
                    cluster_conditions::write(&client, &key.name, &report).await?;
                    return Ok(WrittenStatus {
                        version: String::new(),
                        owner: uid,
                        report: Some(report),
                    });
                }
                write(&client, &key, &uid, version, is_owned, &report)
                    .await
                    .map(WrittenStatus::from)
            };
            let result = match tokio::time::timeout(PATIENCE, written).await {
                Ok(result) => result,
                Err(late) => Err(kube::Error::Service(late.into())),
            };
            WriteOutcome { key, result }
        });
        true
    }

    /// Waits for the end of a write; `None`: no write is in flight.
    pub(super) async fn next(&mut self) -> Option<WriteOutcome> {
        loop {
            // An aborted write has no outcome.
            if let Ok(outcome) = self.tasks.join_next().await? {
                return Some(outcome);
            }
        }
    }

    /// Handles the outcome of a write. Returns the policy's key, on failure with the delay before the next attempt:
    /// [`RETRY`] in an outage, else doubled with each consecutive failure up to 32 times. `None`: no attempt before the
    /// next change.
    pub(super) fn handle_outcome(
        &mut self,
        WriteOutcome { key, result }: WriteOutcome,
    ) -> Result<Key, (Key, Option<Duration>)> {
        self.in_flight.remove(&key);
        match result {
            Ok(written) => {
                self.counters.writes.inc();
                self.failed.remove(&key);
                self.store(key.clone(), written);
                Ok(key)
            }
            Err(error) => {
                if is_terminating(&error) {
                    debug!(
                        "no status written for NetworkPolicy {key}: its namespace is being deleted"
                    );
                    return Err((key, None));
                }
                self.counters.failures.inc();
                // 409: another client wrote the status; 404: the status is gone. The watch delivers the current state
                // in both cases.
                let expected =
                    matches!(&error, kube::Error::Api(status) if [404, 409].contains(&status.code));
                if !expected && self.complained.is_none_or(|at| at.elapsed() > COMPLAIN) {
                    self.complained = Some(Instant::now());
                    let policy = match key.namespace.as_str() {
                        "" => format!("ClusterNetworkPolicy {}", key.name),
                        _ => format!("NetworkPolicy {key}"),
                    };
                    warn!(%error, "cannot write the status of {policy}");
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

    /// Aborts all writes.
    pub(super) fn abort(&mut self) {
        self.tasks.abort_all();
        self.in_flight.clear();
        self.failed.clear();
    }
}

/// Creates the object if it is missing, and writes its status. Fails if its resource version has changed.
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
        // The policy was deleted and created again before the garbage collector removed its status.
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

/// Serializes a report with `null` for absent fields: a merge patch would otherwise keep their former values.
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
