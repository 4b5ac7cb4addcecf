//! The kinds of `netpold.io/v1alpha1`, as `deploy/base/crds.yaml` defines them.
//!
//! An agent writes the [`NodePolicyStatus`] of its node: the policies in force there. The controller combines these
//! reports into a [`NetworkPolicyStatus`] for each NetworkPolicy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// API group of netpold's kinds, and prefix of its labels, conditions and taints.
pub const GROUP: &str = "netpold.io";
/// Version of these kinds.
pub const VERSION: &str = "v1alpha1";
/// Condition of a Node: policy is in force there. The node's agent writes it; the controller, once the agent is silent.
pub const NODE_CONDITION: &str = "netpold.io/NetworkPolicyReady";
/// `apiVersion` of these kinds.
pub(crate) const API_VERSION: &str = "netpold.io/v1alpha1";

/// Policies in force on a node. The object has the node's name; the node's agent writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePolicyStatus {
    /// Metadata with the node's name and the Node as owner.
    #[serde(deserialize_with = "used_metadata")]
    pub metadata: ObjectMeta,
    /// Report of the agent.
    #[serde(default, deserialize_with = "if_readable", skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeReport>,
}

/// Report of an agent about its node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeReport {
    /// Version of the agent.
    pub agent_version: String,
    /// Time of this report, renewed every 40 to 60 seconds, so that a missing agent differs from a slow one.
    pub renew_time: Option<Time>,
    /// Number of the desired policy set, counted from the agent's start.
    pub desired_revision: i64,
    /// Number of the policy set that the kernel enforces.
    pub enforced_revision: i64,
    /// Whether the agent knows every object and the kernel enforces the resulting policy.
    pub in_sync: bool,
    /// Number of the node's pods that policies can select.
    pub pods: i32,
    /// Number of these pods with enforcement in both directions.
    pub pods_enforced: i32,
    /// Policies that select a pod of the node, sorted by name.
    pub policies: Vec<PolicyOnNode>,
    /// Number of policies beyond the limit of `policies`.
    pub policies_omitted: i32,
    /// The first few problems of the node.
    pub problems: Vec<String>,
}

/// State of a policy on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyOnNode {
    /// `metadata.namespace` of the NetworkPolicy; empty for a ClusterNetworkPolicy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// `metadata.name` of the policy.
    pub name: String,
    /// `metadata.uid` of the policy.
    pub uid: String,
    /// `metadata.generation` of the policy in this state.
    pub observed_generation: i64,
    /// Number of the node's pods that the policy selects.
    pub pods: i32,
    /// Whether the policy, as far as it is honoured, is in force for all these pods.
    pub enforced: bool,
    /// Reason why the policy is not in force, or its part that grants nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Whether a NetworkPolicy is in force. The object has the policy's namespace and name; the controller writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicyStatus {
    /// Metadata with the policy's name and the policy as owner.
    #[serde(deserialize_with = "used_metadata")]
    pub metadata: ObjectMeta,
    /// Report of the controller.
    #[serde(default, deserialize_with = "if_readable", skip_serializing_if = "Option::is_none")]
    pub status: Option<PolicyReport>,
}

/// `metadata.generation` of each `NetworkPolicyStatus`. The API server raises a generation with a change outside of
/// metadata and status, and this kind has nothing else. Tools such as kstatus compare it with `observedGeneration`.
pub const OWN_GENERATION: i64 = 1;

/// Combined report of the nodes about a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyReport {
    /// `metadata.generation` of the reported NetworkPolicy.
    pub policy_generation: i64,
    /// `metadata.generation` of the `NetworkPolicyStatus` itself: [`OWN_GENERATION`].
    pub observed_generation: i64,
    /// Progress of the nodes.
    pub nodes: NodeCounts,
    /// `Accepted`: the whole policy is honoured. `Enforcing`: it is in force on every node with a pod that it selects.
    /// `Ready`, `Reconciling` and `Stalled`: the same for tools that read any kind of object.
    pub conditions: Vec<Condition>,
    /// The first few nodes without the policy in force, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_enforced: Vec<NodeFailure>,
}

/// Progress of a policy, in numbers of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCounts {
    /// Nodes with a pod that the policy selects.
    pub desired: i32,
    /// Number of these nodes with the policy's generation in force.
    pub enforced: i32,
    /// Number of these nodes that cannot enforce the policy without a change: the agent is gone, or the policy is not
    /// honoured.
    pub failed: i32,
}

/// A node on which a policy is not in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeFailure {
    /// Name of the node.
    pub node: String,
    /// Reason in one word, as in a condition.
    pub reason: String,
    /// Reason in a sentence.
    pub message: String,
}

/// Decodes only the fields of `metadata` that netpold uses. Authors of an object can write times into the other fields
/// that no decoder accepts, and one such object would break the watch of all objects of its kind.
///
/// # Errors
/// One of these fields has another form.
pub fn used_metadata<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Used {
        namespace: Option<String>,
        name: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        owner_references: Option<Vec<OwnerReference>>,
        /// Not decoded: follows from the grace period, which the author chooses.
        deletion_timestamp: Option<IgnoredAny>,
    }
    let used = Used::deserialize(from)?;
    Ok(ObjectMeta {
        namespace: used.namespace,
        name: used.name,
        uid: used.uid,
        resource_version: used.resource_version,
        owner_references: used.owner_references,
        deletion_timestamp: used.deletion_timestamp.map(|_| Time(Timestamp::UNIX_EPOCH)),
        ..ObjectMeta::default()
    })
}

/// Decodes a status. A status that cannot be decoded counts as missing and is rewritten.
fn if_readable<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let value = Option::<Value>::deserialize(from)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}

/// Implements [`k8s_openapi::Resource`] for a type with a field `metadata`, as a kind of its own or as a part of a known
/// kind.
#[macro_export]
macro_rules! resource {
    ($type:ty, part of $of:ty) => {
        $crate::resource!(
            $type,
            <$of as k8s_openapi::Resource>::Scope,
            <$of as k8s_openapi::Resource>::KIND,
            <$of as k8s_openapi::Resource>::API_VERSION,
            <$of as k8s_openapi::Resource>::GROUP,
            <$of as k8s_openapi::Resource>::VERSION,
            <$of as k8s_openapi::Resource>::URL_PATH_SEGMENT
        );
    };
    (
        $type:ty,
        $scope:ty,
        $kind:expr,
        $api_version:expr,
        $group:expr,
        $version:expr,
        $plural:expr
    ) => {
        impl k8s_openapi::Resource for $type {
            const API_VERSION: &'static str = $api_version;
            const GROUP: &'static str = $group;
            const KIND: &'static str = $kind;
            const VERSION: &'static str = $version;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl k8s_openapi::Metadata for $type {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource!(
    NodePolicyStatus,
    k8s_openapi::ClusterResourceScope,
    "NodePolicyStatus",
    API_VERSION,
    GROUP,
    VERSION,
    "nodepolicystatuses"
);
resource!(
    NetworkPolicyStatus,
    k8s_openapi::NamespaceResourceScope,
    "NetworkPolicyStatus",
    API_VERSION,
    GROUP,
    VERSION,
    "networkpolicystatuses"
);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_version_is_of_the_group() {
        assert_eq!(API_VERSION, format!("{GROUP}/{VERSION}"));
    }

    #[test]
    fn the_example_for_flux_waits_for_the_status_of_a_policy() {
        let example = include_str!("../../../deploy/gitops/flux.yaml");
        let kind = <NetworkPolicyStatus as k8s_openapi::Resource>::KIND;
        let check = format!("healthChecks:\n  - apiVersion: {API_VERSION}\n    kind: {kind}\n");
        assert!(example.contains(&check), "{check}");
    }

    /// Authors of these objects in one namespace cannot break the watch of the others.
    #[test]
    fn an_object_that_cannot_be_decoded_has_no_status() {
        let late = "9999-12-31T23:59:59-14:00";
        let condition =
            json!({ "type": "Enforcing", "status": "True", "lastTransitionTime": late });
        let object = json!({
            "metadata": {
                "namespace": "a",
                "name": "p",
                "resourceVersion": "7",
                "managedFields": [{ "time": late }],
                "creationTimestamp": late,
            },
            "status": { "conditions": [condition] },
        });
        let read: NetworkPolicyStatus = serde_json::from_value(object).unwrap();
        assert_eq!(read.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(read.status, None);
    }
}
