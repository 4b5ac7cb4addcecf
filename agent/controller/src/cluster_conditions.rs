//! Conditions in the status of a ClusterNetworkPolicy.

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use netpold_api::crd::{PolicyReport, used_metadata};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::evaluate::{ACCEPTED, ENFORCING};

/// Field manager of the conditions.
const MANAGER: &str = "netpold-controller";

/// A ClusterNetworkPolicy without its spec.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ClusterPolicyWithStatus {
    #[serde(deserialize_with = "used_metadata")]
    metadata: ObjectMeta,
    /// Not decoded: others write conditions too.
    #[serde(default)]
    status: Value,
}

netpold_api::resource!(
    ClusterPolicyWithStatus,
    ClusterResourceScope,
    "ClusterNetworkPolicy",
    "policy.networking.k8s.io/v1alpha2",
    "policy.networking.k8s.io",
    "v1alpha2",
    "clusternetworkpolicies"
);

/// Applies the conditions `Accepted` and `Enforcing` to a policy, unless it has them. Conditions of other managers stay.
///
/// # Errors
/// The API server refuses, or the kind has no status.
pub(super) async fn write(
    client: &Client,
    name: &str,
    report: &PolicyReport,
) -> Result<(), kube::Error> {
    let api = Api::<ClusterPolicyWithStatus>::all(client.clone());
    let before = api.get(name).await?.status;
    let before = before["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let read = |condition: &Value| serde_json::from_value::<Condition>(condition.clone()).ok();
    let before: Vec<Condition> = before.iter().filter_map(read).collect();
    let conditions = conditions(&before, report);
    if conditions.iter().all(|condition| before.contains(condition)) {
        return Ok(());
    }
    let patch = Patch::Apply(json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": { "name": name },
        "status": { "conditions": conditions },
    }));
    api.patch_status(name, &PatchParams::apply(MANAGER).force(), &patch).await?;
    Ok(())
}

/// Returns the conditions of a report. One with an unchanged status keeps its transition time.
fn conditions(before: &[Condition], report: &PolicyReport) -> Vec<Condition> {
    let wanted = report.conditions.iter().filter(|it| [ACCEPTED, ENFORCING].contains(&&*it.type_));
    let wanted = wanted.map(|condition| {
        let same = |it: &&Condition| it.type_ == condition.type_ && it.status == condition.status;
        let former = before.iter().find(same).unwrap_or(condition);
        Condition {
            observed_generation: Some(report.policy_generation),
            last_transition_time: former.last_transition_time.clone(),
            ..condition.clone()
        }
    });
    wanted.collect()
}
