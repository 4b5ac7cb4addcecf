//! The kinds of `netpold.io/v1alpha1`, as `deploy/base/crds.yaml` defines them.
//!
//! An agent writes the [`NodePolicyStatus`] of its node, which says which policies are in force there. The controller
//! gathers those into a [`NetworkPolicyStatus`] for each NetworkPolicy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// API group of netpold's kinds, and prefix of its labels, conditions and taints.
pub const GROUP: &str = "netpold.io";
/// Version of these kinds.
pub const VERSION: &str = "v1alpha1";

/// Which policies are in force on a node; named as the node, written by its agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePolicyStatus {
    /// Of the node's name; owned by the Node.
    #[serde(deserialize_with = "used_metadata")]
    pub metadata: ObjectMeta,
    /// What the agent says.
    #[serde(default, deserialize_with = "if_readable", skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeReport>,
}

/// What an agent says of its node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeReport {
    /// Version of the agent.
    pub agent_version: String,
    /// When the agent wrote this; renewed every minute, so an agent that is gone can be told from a slow one.
    pub renew_time: Option<Time>,
    /// Number of the policy set that is desired, counted from the agent's start.
    pub desired_revision: i64,
    /// Number of the policy set that the kernel enforces.
    pub enforced_revision: i64,
    /// The agent knows every object, and the kernel enforces what follows from them.
    pub in_sync: bool,
    /// Pods of the node that policy can select.
    pub pods: i32,
    /// Those of them that are judged in both directions.
    pub pods_enforced: i32,
    /// The policies that select a pod of the node, in the order of their names.
    pub policies: Vec<PolicyOnNode>,
    /// How many more there are.
    pub policies_omitted: i32,
    /// What is wrong on the node, the first few.
    pub problems: Vec<String>,
}

/// A policy on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyOnNode {
    /// `metadata.namespace` of the NetworkPolicy.
    pub namespace: String,
    /// `metadata.name` of the NetworkPolicy.
    pub name: String,
    /// `metadata.uid` of the NetworkPolicy.
    pub uid: String,
    /// `metadata.generation` of the NetworkPolicy that this is about.
    pub observed_generation: i64,
    /// Pods of the node that it selects.
    pub pods: i32,
    /// It is in force for all of them, as far as it is honoured.
    pub enforced: bool,
    /// Why it is not in force, or which part of it grants nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Whether a NetworkPolicy is in force; of the policy's namespace and name, owned by it, written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicyStatus {
    /// Of the policy's name.
    #[serde(deserialize_with = "used_metadata")]
    pub metadata: ObjectMeta,
    /// What the controller has gathered.
    #[serde(default, deserialize_with = "if_readable", skip_serializing_if = "Option::is_none")]
    pub status: Option<PolicyReport>,
}

/// What the nodes say of a policy, together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyReport {
    /// `metadata.generation` of the NetworkPolicy that this is about.
    pub observed_generation: i64,
    /// How far the nodes are.
    pub nodes: NodeCounts,
    /// `Accepted`: all of the policy is honoured. `Enforcing`: it is in force on every node with a pod that it selects.
    pub conditions: Vec<Condition>,
    /// Nodes on which it is not in force, the first few by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_enforced: Vec<NodeFailure>,
}

/// How far the nodes are with a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCounts {
    /// Nodes with a pod that the policy selects.
    pub desired: i32,
    /// Those of them where the policy's generation is in force.
    pub enforced: i32,
    /// Those of them where it will not be without a change: the agent is gone, or the policy is not honoured.
    pub failed: i32,
}

/// A node on which a policy is not in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeFailure {
    /// Name of the node.
    pub node: String,
    /// In one word, as of a condition.
    pub reason: String,
    /// In a sentence.
    pub message: String,
}

/// What netpold uses of `metadata`. The rest is not decoded: whoever may write an object can write times into it that no
/// decoder takes, and one such object would keep all others of its kind from being followed.
pub(crate) fn used_metadata<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Used {
        namespace: Option<String>,
        name: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        owner_references: Option<Vec<OwnerReference>>,
        /// The author chooses the grace period that it follows from.
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

/// A status that cannot be decoded counts as none: it is written anew.
fn if_readable<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let value = Option::<Value>::deserialize(from)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}

/// Makes a type with a field `metadata` an object of a kind of its own, or a part of one that is known.
macro_rules! resource {
    ($type:ty, part of $of:ty) => {
        $crate::api::resource!(
            $type,
            <$of as kube::Resource>::Scope,
            <$of as kube::Resource>::kind(&()),
            <$of as kube::Resource>::group(&()),
            <$of as kube::Resource>::version(&()),
            <$of as kube::Resource>::plural(&())
        );
    };
    ($type:ty, $scope:ty, $kind:expr, $group:expr, $version:expr, $plural:expr) => {
        impl kube::Resource for $type {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use resource;

resource!(
    NodePolicyStatus,
    k8s_openapi::ClusterResourceScope,
    "NodePolicyStatus",
    GROUP,
    VERSION,
    "nodepolicystatuses"
);
resource!(
    NetworkPolicyStatus,
    k8s_openapi::NamespaceResourceScope,
    "NetworkPolicyStatus",
    GROUP,
    VERSION,
    "networkpolicystatuses"
);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whoever may write these objects in one namespace keeps nobody else's from being followed.
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
