//! A NetworkPolicy as an API server sends it.
//!
//! A server that is newer than netpold may send fields that netpold does not know, or known ones of
//! another shape. What it says there must not be read over: a peer with one more condition grants
//! less than the peer without it.

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use serde_json::{Value, json};

use super::{Converted, Problem, Unknown, fields, network_policy};
use crate::source::document::{self, Entry, Node};

/// Convert a policy. A rule with something unknown in it grants nothing; a policy whose rules cannot
/// be decoded grants nothing at all, and isolates what it selects.
///
/// # Errors
/// The policy has no name.
pub fn network_policy_of_json(value: &Value) -> Result<Converted, Problem> {
    let unknown = fields::unknown(&node(value));
    // New metadata is of no concern: it grants nothing and restricts nothing.
    let unknown: Vec<Unknown> =
        unknown.into_iter().filter(|u| u.problem.path.starts_with("spec.")).collect();
    match serde_json::from_value(value.clone()) {
        Ok(policy) => network_policy(&policy, &unknown),
        Err(error) => {
            let mut converted = network_policy(&without_rules(value), &unknown)?;
            let problem =
                Problem::new("spec", format!("cannot be decoded, grants nothing: {error}"));
            if let super::Change::Policy(policy) = &mut converted.change {
                policy.problems.push(problem.to_string());
            }
            converted.problems.push(problem);
            Ok(converted)
        }
    }
}

/// What is left of a policy that cannot be decoded: what it selects, if that can be; both
/// directions, unless it says which.
fn without_rules(value: &Value) -> NetworkPolicy {
    let mut bare = value.clone();
    if let Some(spec) = bare.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("ingress");
        spec.remove("egress");
        let types = spec.entry("policyTypes").or_insert_with(|| json!([]));
        if types.as_array().is_none_or(Vec::is_empty) {
            *types = json!(["Ingress", "Egress"]);
        }
    }
    serde_json::from_value(bare).unwrap_or_else(|_| NetworkPolicy {
        metadata: serde_json::from_value(value["metadata"].clone()).unwrap_or_default(),
        spec: Some(NetworkPolicySpec {
            policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
            ..NetworkPolicySpec::default()
        }),
    })
}

/// JSON as the document that the fields are looked up in; it has no lines.
fn node(value: &Value) -> Node {
    let value = match value {
        Value::Null => document::Value::Null,
        Value::Bool(value) => document::Value::Bool(*value),
        Value::Number(number) => number.as_i64().map_or_else(
            || document::Value::Float(number.as_f64().unwrap_or_default()),
            document::Value::Int,
        ),
        Value::String(text) => document::Value::Text(text.clone()),
        Value::Array(items) => document::Value::List(items.iter().map(node).collect()),
        Value::Object(map) => document::Value::Map(
            map.iter()
                .map(|(key, value)| Entry { key: key.clone(), line: 0, node: node(value) })
                .collect(),
        ),
    };
    Node { line: 0, value }
}

#[cfg(test)]
mod tests {
    use netpold_core::model::{Change, Policy};

    use super::*;

    fn convert(spec: Value) -> (Policy, Vec<String>) {
        let metadata = json!({ "name": "p", "namespace": "x", "labels": {}, "novel": 1 });
        let policy = json!({ "metadata": metadata, "spec": spec, "status": {} });
        let converted = network_policy_of_json(&policy).unwrap();
        let Change::Policy(policy) = converted.change else { panic!("no policy") };
        (policy, converted.problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_is_known_is_converted() {
        let (policy, problems) = convert(json!({
            "podSelector": {}, "ingress": [{ "ports": [{ "port": 80 }] }]
        }));
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(policy.ingress.map(|rules| rules.len()), Some(1));
        assert_eq!(policy.egress, None);
    }

    #[test]
    fn a_newer_field_in_a_peer_grants_nothing() {
        let (policy, problems) = convert(json!({
            "podSelector": {}, "ingress": [{ "from": [{ "podSelector": {}, "within": "zone" }] }]
        }));
        assert!(problems[0].starts_with("spec.ingress[0].from[0].within: no such field"));
        let rules = policy.ingress.unwrap();
        let peers = rules.iter().flat_map(|rule| rule.peers.as_ref().unwrap()).count();
        assert_eq!(peers, 0, "{rules:?}");
    }

    #[test]
    fn rules_of_another_shape_grant_nothing_and_the_rest_stays() {
        let (policy, problems) = convert(json!({
            "podSelector": { "matchLabels": { "a": "b" } }, "ingress": [{ "ports": "many" }]
        }));
        assert!(problems[0].contains("cannot be decoded"), "{problems:?}");
        assert_eq!(policy.pod_selector.requirements.len(), 1);
        assert_eq!((policy.ingress, policy.egress), (Some(vec![]), Some(vec![])));
        let (policy, _) = convert(json!({ "podSelector": "all", "policyTypes": ["Egress"] }));
        assert_eq!(policy.pod_selector.requirements, []);
        assert_eq!((policy.ingress, policy.egress), (Some(vec![]), Some(vec![])));
    }
}
