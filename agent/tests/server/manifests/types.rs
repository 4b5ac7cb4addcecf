//! Every object compared with the types that Kubernetes publishes (k8s-openapi, generated from its `OpenAPI`).

use k8s_openapi::api::{
    admissionregistration::{v1 as admission, v1alpha1 as mutating},
    apps::v1 as apps,
    coordination::v1 as coordination,
    core::v1 as core,
    flowcontrol::v1 as flowcontrol,
    policy::v1 as policy,
    rbac::v1 as rbac,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::manifests::rendered::{can_render, everything};

/// Kinds of the Prometheus operator, covered by `monitoring.rs`, and a kind covered by `callers.rs`.
const OTHERS: [&str; 3] = ["ClusterNetworkPolicy", "PodMonitor", "PrometheusRule"];

#[test]
fn every_field_is_one_that_kubernetes_has() {
    if !can_render("every_field_is_one_that_kubernetes_has") {
        return;
    }
    for (name, objects) in everything() {
        for object in objects {
            let lost = unknown_fields(&object);
            assert!(lost.is_empty(), "{name}: {} has no {lost:?}", object["kind"]);
        }
    }
}

/// Returns the paths in an object that its type lacks.
fn unknown_fields(object: &Value) -> Vec<String> {
    let object = &in_known_version(object);
    let kind = object["kind"].as_str().unwrap();
    let read = match (object["apiVersion"].as_str().unwrap(), kind) {
        ("v1", "Namespace") => read::<core::Namespace>,
        ("v1", "ServiceAccount") => read::<core::ServiceAccount>,
        ("v1", "ConfigMap") => read::<core::ConfigMap>,
        ("v1", "ResourceQuota") => read::<core::ResourceQuota>,
        ("v1", "LimitRange") => read::<core::LimitRange>,
        ("v1", "Secret") => read::<core::Secret>,
        ("v1", "Service") => read::<core::Service>,
        ("apps/v1", "DaemonSet") => read::<apps::DaemonSet>,
        ("apps/v1", "Deployment") => read::<apps::Deployment>,
        ("policy/v1", "PodDisruptionBudget") => read::<policy::PodDisruptionBudget>,
        ("coordination.k8s.io/v1", "Lease") => read::<coordination::Lease>,
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => {
            read::<apiextensions::CustomResourceDefinition>
        }
        ("rbac.authorization.k8s.io/v1", "Role") => read::<rbac::Role>,
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => read::<rbac::RoleBinding>,
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => read::<rbac::ClusterRole>,
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => read::<rbac::ClusterRoleBinding>,
        ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema") => read::<flowcontrol::FlowSchema>,
        ("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration") => {
            read::<flowcontrol::PriorityLevelConfiguration>
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => {
            read::<admission::ValidatingAdmissionPolicy>
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            read::<admission::ValidatingAdmissionPolicyBinding>
        }
        ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration") => {
            read::<admission::MutatingWebhookConfiguration>
        }
        ("admissionregistration.k8s.io/v1alpha1", "MutatingAdmissionPolicy") => {
            read::<mutating::MutatingAdmissionPolicy>
        }
        ("admissionregistration.k8s.io/v1alpha1", "MutatingAdmissionPolicyBinding") => {
            read::<mutating::MutatingAdmissionPolicyBinding>
        }
        (version, kind) => {
            assert!(OTHERS.contains(&kind), "no type for {version} {kind}");
            return Vec::new();
        }
    };
    let mut lost = Vec::new();
    compare(object, &read(object), kind, &mut lost);
    lost
}

/// Converts mutating policies to v1alpha1, as in Kubernetes 1.33; v1beta1 (1.34) and v1 (1.36) have the same fields.
fn in_known_version(object: &Value) -> Value {
    let mut object = object.clone();
    let newer = ["admissionregistration.k8s.io/v1", "admissionregistration.k8s.io/v1beta1"];
    let is_mutating = object["kind"].as_str().unwrap().starts_with("MutatingAdmissionPolicy");
    if is_mutating && newer.iter().any(|version| object["apiVersion"] == *version) {
        object["apiVersion"] = "admissionregistration.k8s.io/v1alpha1".into();
    }
    object
}

/// Returns an object after a round trip through its type.
fn read<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let read: Result<T, _> = serde_json::from_value(object.clone());
    assert!(read.is_ok(), "{}: {:?}", object["kind"], read.err());
    serde_json::to_value(read.unwrap()).unwrap()
}

/// Collects paths of `written` that are missing or different in `known`.
fn compare(written: &Value, known: &Value, path: &str, lost: &mut Vec<String>) {
    match (written, known) {
        (Value::Object(fields), Value::Object(known)) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                match known.get(name) {
                    Some(known) => compare(value, known, &path, lost),
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(items), Value::Array(known)) if items.len() == known.len() => {
            for (index, (item, known)) in items.iter().zip(known).enumerate() {
                compare(item, known, &format!("{path}[{index}]"), lost);
            }
        }
        (written, known) if written == known => {}
        // The types store numbers of the schema as floating point.
        (Value::Number(written), Value::Number(known)) if written.as_f64() == known.as_f64() => {}
        _ => lost.push(path.to_owned()),
    }
}

/// Checks that the comparison detects an unknown field.
#[test]
fn a_misspelt_field_is_noticed() {
    let object = serde_json::json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "x" },
        "spec": { "limits": [{ "type": "Container", "defaultRequests": { "cpu": "1" } }] },
    });
    assert_eq!(unknown_fields(&object), ["LimitRange.spec.limits[0].defaultRequests"]);
}
