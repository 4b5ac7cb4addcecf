//! Admission policies on NetworkPolicies: objects that they refuse and objects that they pass.

use serde_json::{Value, json};

use crate::manifests::expressions::Expressions;
use crate::manifests::rendered::{can_render, find, option};

/// Admission policy of the option `admission`, with the limits.
struct Policy {
    expressions: Expressions,
    params: Value,
}

impl Policy {
    fn named(name: &str) -> Self {
        let objects = option("admission");
        let params = find(&objects, "ConfigMap", "network-policy-limits").clone();
        let policy = find(&objects, "ValidatingAdmissionPolicy", name);
        Self { expressions: Expressions::of(policy), params }
    }

    /// Returns the policy's messages about a NetworkPolicy with this spec, created or, with an old spec, updated; empty
    /// if the policy passes it.
    fn messages(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let object = |spec: &Value| json!({ "metadata": { "name": "x" }, "spec": spec });
        self.judge(&object(new), &old.map_or(Value::Null, object))
    }

    /// Returns the policy's messages about an object, with null as the old object of a creation; empty if the policy
    /// passes it.
    fn judge(&self, object: &Value, old: &Value) -> Vec<String> {
        let given = [("object", object), ("oldObject", old), ("params", &self.params)];
        self.expressions.refusals(&given)
    }

    #[track_caller]
    fn passes(&self, spec: &Value) {
        assert_eq!(self.messages(spec, None), [""; 0], "{spec}");
    }

    /// Asserts exactly one message, which contains `with`.
    #[track_caller]
    fn refuses(&self, spec: &Value, with: &str) {
        let messages = self.messages(spec, None);
        assert!(messages.len() == 1 && messages[0].contains(with), "{messages:?} of {spec}");
    }
}

/// Function that returns a spec with the given number of items.
type OfSize<'a> = Box<dyn Fn(usize) -> Value + 'a>;

fn many(value: &Value, count: usize) -> Value {
    Value::Array(vec![value.clone(); count])
}

/// Returns policies without a mistake.
fn good() -> Vec<Value> {
    let app = json!({ "podSelector": { "matchLabels": { "app": "x" } } });
    let block = json!({ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"] } });
    vec![
        json!({ "podSelector": {} }),
        json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] }),
        json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{}] }),
        json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "from": [app, block] }] }),
        json!({
            "podSelector": {
                "matchLabels": { "app": "x" },
                "matchExpressions": [
                    { "key": "app", "operator": "In", "values": ["x", "y"] },
                    { "key": "app", "operator": "NotIn", "values": ["z"] },
                    { "key": "app", "operator": "Exists" },
                    { "key": "other", "operator": "DoesNotExist" },
                ],
            },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "ports": [{ "port": 80 }] }, { "from": [{ "namespaceSelector": {} }] }],
            "egress": [{ "to": [block], "ports": [{ "port": 1, "endPort": 65535 }] }],
        }),
    ]
}

#[test]
fn policies_that_mean_something_pass() {
    if !can_render("policies_that_mean_something_pass") {
        return;
    }
    for name in ["netpold-limits", "netpold-mistakes", "netpold-hints"] {
        let policy = Policy::named(name);
        good().iter().for_each(|spec| policy.passes(spec));
    }
}

#[test]
fn limits_are_held() {
    if !can_render("limits_are_held") {
        return;
    }
    let policy = Policy::named("netpold-limits");
    let limit =
        |name: &str| -> usize { policy.params["data"][name].as_str().unwrap().parse().unwrap() };
    let pod = json!({ "podSelector": {} });
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        let of = |rule: Value| json!({ "podSelector": {}, rules: [rule] });
        let excepts = |n| {
            of(
                json!({ peers: [{ "ipBlock": { "cidr": "::/0", "except": many(&json!("::1/128"), n) } }] }),
            )
        };
        let cases: [(&str, OfSize<'_>); 4] = [
            ("maxRules", Box::new(|n| json!({ "podSelector": {}, rules: many(&json!({}), n) }))),
            ("maxPeersPerRule", Box::new(|n| of(json!({ peers: many(&pod, n) })))),
            (
                "maxPortsPerRule",
                Box::new(|n| of(json!({ "ports": many(&json!({ "port": 1 }), n) }))),
            ),
            ("maxExceptPerBlock", Box::new(excepts)),
        ];
        for (name, spec) in cases {
            policy.passes(&spec(limit(name)));
            policy.refuses(&spec(limit(name) + 1), name);
        }
    }
    let beyond = json!({ "podSelector": {}, "ingress": many(&json!({}), 99) });
    assert!(policy.messages(&beyond, Some(&beyond)).is_empty(), "an unchanged spec stays");
    assert_eq!(policy.messages(&beyond, Some(&json!({ "podSelector": {} }))).len(), 1);
}

/// Checks that the shipped limits are accepted, and others only in their range.
#[test]
fn limits_that_are_none_are_refused() {
    if !can_render("limits_that_are_none_are_refused") {
        return;
    }
    let policy = Policy::named("netpold-limits-values");
    let messages = |limits: &Value| policy.judge(limits, &Value::Null);
    assert_eq!(messages(&policy.params), [""; 0], "the shipped ones");
    for (name, value, good) in [
        ("maxRules", json!("1"), true),
        ("maxRules", json!("1000"), true),
        ("maxExceptPerBlock", json!("0"), true),
        ("maxRules", json!("0"), false),
        ("maxRules", json!("1001"), false),
        ("maxPeersPerRule", json!("many"), false),
        ("maxPortsPerRule", json!(" 5"), false),
        ("maxExceptPerBlock", json!("-1"), false),
        ("maxFriends", json!("3"), false),
    ] {
        let mut limits = policy.params.clone();
        limits["data"][name] = value;
        assert_eq!(messages(&limits).is_empty(), good, "{limits}");
    }
    let mut fewer = policy.params.clone();
    fewer["data"].as_object_mut().unwrap().remove("maxPortsPerRule");
    assert!(messages(&fewer)[0].contains("one is missing"));
    assert!(!messages(&json!({ "metadata": { "name": "x" } })).is_empty(), "no data at all");
}

#[test]
fn mistakes_are_refused() {
    if !can_render("mistakes_are_refused") {
        return;
    }
    let policy = Policy::named("netpold-mistakes");
    let ingress = json!({ "podSelector": {}, "policyTypes": ["Egress"], "ingress": [{}] });
    policy.refuses(&ingress, "ingress rules have no effect");
    let egress = json!({ "podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}] });
    policy.refuses(&egress, "egress rules have no effect");
    for (operator, values) in
        [("In", json!(["y"])), ("NotIn", json!(["x"])), ("DoesNotExist", json!([]))]
    {
        let term = json!({ "key": "app", "operator": operator, "values": values });
        let selector = json!({ "matchLabels": { "app": "x" }, "matchExpressions": [term] });
        policy.refuses(&json!({ "podSelector": selector }), "selects no pod");
    }
}

#[test]
fn what_is_likely_meant_otherwise_is_said() {
    if !can_render("what_is_likely_meant_otherwise_is_said") {
        return;
    }
    let policy = Policy::named("netpold-hints");
    let exception = json!({ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"] } });
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        let all = json!({ "podSelector": {}, rules: [{ "ports": [{ "port": 80 }] }, {}] });
        policy.refuses(&all, "allows everything");
        for everyone in ["0.0.0.0/0", "::/0"] {
            let everyone = json!({ "ipBlock": { "cidr": everyone } });
            let beside = json!({ "podSelector": {}, rules: [{ peers: [exception, everyone] }] });
            policy.refuses(&beside, "exceptions");
        }
    }
}
