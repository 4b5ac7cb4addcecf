//! Guard rails for policies: their warnings, refusals and defaults.

use serde_json::{Value, json};

use crate::manifests::expressions::Expressions;
use crate::manifests::rendered::{can_render, find, option};

fn policy(name: &str) -> Expressions {
    Expressions::of(find(&option("guard-rails"), "ValidatingAdmissionPolicy", name))
}

/// Returns the messages about an update of an object, by a user of these groups.
fn messages(policy: &Expressions, object: &Value, old: &Value, groups: &[&str]) -> Vec<String> {
    let request = json!({ "userInfo": { "username": "u", "groups": groups } });
    policy.refusals(&[("request", &request), ("object", object), ("oldObject", old)])
}

/// Asserts that each message about a new object contains the words at the same position.
#[track_caller]
fn says(policy: &Expressions, object: &Value, words: &[&str]) {
    let messages = messages(policy, object, &Value::Null, &["system:authenticated"]);
    assert_eq!(messages.len(), words.len(), "{messages:?} of {object}");
    for (message, words) in messages.iter().zip(words) {
        assert!(message.contains(words), "{message:?} has not {words:?}");
    }
}

fn cluster_policy(tier: &str, subject: Value, ingress: Value, egress: Value) -> Value {
    json!({
        "metadata": { "name": "p" },
        "spec": {
            "tier": tier, "priority": 100, "subject": subject, "ingress": ingress, "egress": egress,
        },
    })
}

fn named(operator: &str, names: &[&str]) -> Value {
    let term = json!({
        "key": "kubernetes.io/metadata.name", "operator": operator, "values": names,
    });
    json!({ "matchExpressions": [term] })
}

#[test]
fn denials_that_reach_kube_system_are_warned_of() {
    if !can_render("denials_that_reach_kube_system_are_warned_of") {
        return;
    }
    let policy = policy("netpold-admin-denials");
    let deny = json!([{ "action": "Deny", "from": [{ "namespaces": {} }] }]);
    let pass = json!([{ "action": "Pass", "from": [{ "namespaces": {} }] }]);
    let words = "about the pods of kube-system";
    let label = |key: &str, value: &str| json!({ "matchLabels": { key: value } });
    let other = json!({ "matchExpressions": [{ "key": "tenant", "operator": "DoesNotExist" }] });
    let tenant = json!({ "matchExpressions": [{ "key": "tenant", "operator": "Exists" }] });
    for (selector, covers) in [
        (json!({}), true),
        (label("kubernetes.io/metadata.name", "kube-system"), true),
        (label("kubernetes.io/metadata.name", "shop"), false),
        (label("tenant", "red"), false),
        (named("In", &["shop", "kube-system"]), true),
        (named("In", &["shop"]), false),
        (named("NotIn", &["shop"]), true),
        (named("NotIn", &["kube-system"]), false),
        (other, true),
        (tenant, false),
    ] {
        let pods = json!({ "namespaceSelector": selector, "podSelector": {} });
        for subject in [json!({ "namespaces": selector }), json!({ "pods": pods })] {
            let expected: &[&str] = if covers { &[words] } else { &[] };
            let of = |tier: &str, rules: &Value| {
                cluster_policy(tier, subject.clone(), rules.clone(), json!([]))
            };
            says(&policy, &of("Admin", &deny), expected);
            says(&policy, &of("Admin", &pass), &[]);
            says(&policy, &of("Baseline", &deny), &[]);
        }
    }
    let everyone = json!({ "pods": { "podSelector": {} } });
    says(&policy, &cluster_policy("Admin", everyone, deny, json!([])), &[words]);
}

#[test]
fn denials_of_dns_are_warned_of() {
    if !can_render("denials_of_dns_are_warned_of") {
        return;
    }
    let policy = policy("netpold-admin-denials");
    let subject = json!({ "namespaces": { "matchLabels": { "tenant": "red" } } });
    let egress = |rules: Value| cluster_policy("Admin", subject.clone(), json!([]), rules);
    let rule = |action: &str, to: &Value, protocols: Option<Value>| {
        let mut rule = json!({ "action": action, "to": [to] });
        if let Some(protocols) = protocols {
            rule["protocols"] = protocols;
        }
        rule
    };
    let all = json!({ "namespaces": {} });
    let port =
        |protocol: &str, port: Value| Some(json!([{ protocol: { "destinationPort": port } }]));
    for (protocols, dns) in [
        (None, true),
        (port("udp", json!({ "number": 53 })), true),
        (port("tcp", json!({ "number": 53 })), true),
        (port("udp", json!({ "range": { "start": 1, "end": 99 } })), true),
        (Some(json!([{ "destinationNamedPort": "dns" }])), true),
        (port("udp", json!({ "number": 5353 })), false),
        (port("tcp", json!({ "range": { "start": 54, "end": 99 } })), false),
        (port("sctp", json!({ "number": 53 })), false),
        (Some(json!([{ "destinationNamedPort": "http" }])), false),
    ] {
        let expected: &[&str] = if dns { &["denies DNS"] } else { &[] };
        says(&policy, &egress(json!([rule("Deny", &all, protocols.clone())])), expected);
        for action in ["Accept", "Pass"] {
            let first = rule(action, &all, port("udp", json!({ "number": 53 })));
            says(&policy, &egress(json!([first, rule("Deny", &all, protocols.clone())])), &[]);
        }
    }
    let pods =
        json!({ "pods": { "namespaceSelector": named("NotIn", &["x"]), "podSelector": {} } });
    for (to, dns) in [
        (json!({ "networks": ["::/0"] }), true),
        (json!({ "networks": ["169.254.169.254/32"] }), false),
        (json!({ "nodes": {} }), false),
        (json!({ "namespaces": named("In", &["shop"]) }), false),
        (json!({ "pods": { "podSelector": {} } }), true),
        (pods, true),
    ] {
        let expected: &[&str] = if dns { &["denies DNS"] } else { &[] };
        says(&policy, &egress(json!([rule("Deny", &to, None)])), expected);
    }
}

#[test]
fn low_priorities_belong_to_a_group() {
    if !can_render("low_priorities_belong_to_a_group") {
        return;
    }
    let policy = policy("netpold-priorities");
    let of = |priority: u32| json!({ "spec": { "tier": "Admin", "priority": priority } });
    let none = Value::Null;
    for (new, old, refusals) in [
        (of(100), none.clone(), 0),
        (of(99), none.clone(), 1),
        (of(0), of(100), 1),
        (of(100), of(99), 1),
        (of(1), of(1), 2),
        (none.clone(), of(99), 1),
        (none.clone(), of(1000), 0),
    ] {
        let others = messages(&policy, &new, &old, &["system:authenticated"]);
        assert_eq!(others.len(), refusals, "{new} over {old}: {others:?}");
        assert!(others.iter().all(|message| message.contains("netpold:policy-admins")));
        let group = ["system:authenticated", "netpold:policy-admins"];
        assert_eq!(messages(&policy, &new, &old, &group), [""; 0]);
    }
}

#[test]
fn ports_without_that_of_an_ambient_mesh_are_warned_of() {
    if !can_render("ports_without_that_of_an_ambient_mesh_are_warned_of") {
        return;
    }
    let policy = policy("netpold-ambient");
    let from = json!([{ "podSelector": {} }]);
    let of = |ingress: Value| json!({ "spec": { "podSelector": {}, "ingress": ingress } });
    let web = json!({ "from": from, "ports": [{ "port": 80 }] });
    for (ingress, warned) in [
        (json!([]), false),
        (json!([{}]), false),
        (json!([{ "from": from }]), false),
        (json!([web]), true),
        (json!([{ "ports": [{ "port": "web" }] }]), true),
        (json!([{ "ports": [{ "port": 80 }, { "port": 15008 }] }]), false),
        (json!([{ "ports": [{ "port": 15008, "protocol": "UDP" }] }]), true),
        (json!([{ "ports": [{ "protocol": "TCP" }] }]), false),
        (json!([{ "ports": [{ "port": 15000, "endPort": 15010 }] }]), false),
        (json!([{ "ports": [{ "port": 1, "endPort": 15007 }] }]), true),
        (json!([web, { "ports": [{ "port": 15008 }] }]), false),
        (json!([web, { "from": from, "ports": [{ "port": 15008 }] }]), true),
    ] {
        let expected: &[&str] = if warned { &["add port 15008"] } else { &[] };
        says(&policy, &of(ingress), expected);
    }
    says(&policy, &json!({ "spec": { "podSelector": {} } }), &[]);
}

#[test]
fn a_policy_in_force_is_weakened_by_a_group_alone() {
    if !can_render("a_policy_in_force_is_weakened_by_a_group_alone") {
        return;
    }
    let policy = policy("netpold-enforcement");
    let of = |value: Option<&str>| match value {
        Some(value) => {
            json!({ "metadata": { "annotations": { "netpold.io/enforcement": value } } })
        }
        None => json!({ "metadata": { "annotations": { "other": "x" } } }),
    };
    let (bare, none) = (json!({ "metadata": {} }), Value::Null);
    let (enforce, audit) = (of(Some("enforce")), of(Some("audit")));
    for new in [&bare, &of(None), &enforce, &audit] {
        says(&policy, new, &[]);
    }
    says(&policy, &of(Some("off")), &["is enforce or audit, not \"off\""]);
    for (new, old, refused) in [
        (&audit, &enforce, true),
        (&audit, &bare, true),
        (&audit, &of(None), true),
        (&audit, &audit, false),
        (&enforce, &audit, false),
        (&bare, &audit, false),
        (&audit, &none, false),
    ] {
        let others = messages(&policy, new, old, &[]);
        assert_eq!(others.len(), usize::from(refused), "{new} over {old}: {others:?}");
        assert_eq!(messages(&policy, new, old, &["netpold:policy-admins"]), [""; 0]);
    }
}

#[test]
fn a_namespace_says_how_its_policies_are_enforced() {
    if !can_render("a_namespace_says_how_its_policies_are_enforced") {
        return;
    }
    let objects = option("enforcement-default");
    let policy = Expressions::of(find(&objects, "MutatingAdmissionPolicy", ""));
    let namespace = json!({ "metadata": { "labels": { "netpold.io/enforcement": "audit" } } });
    let made = |metadata: Value| {
        let object = json!({ "metadata": metadata, "spec": { "podSelector": {} } });
        policy.mutated_in(&object, &namespace)["metadata"]["annotations"].clone()
    };
    assert_eq!(made(json!({ "name": "p" })), json!({ "netpold.io/enforcement": "audit" }));
    assert_eq!(
        made(json!({ "annotations": { "a": "b" } })),
        json!({ "a": "b", "netpold.io/enforcement": "audit" })
    );
    let own = json!({ "netpold.io/enforcement": "enforce" });
    assert_eq!(made(json!({ "annotations": own })), own, "its own word counts");
}

#[test]
fn pods_that_administer_the_nodes_devices_are_warned_of() {
    if !can_render("pods_that_administer_the_nodes_devices_are_warned_of") {
        return;
    }
    let policy = policy("netpold-net-admin");
    let words = "has NET_ADMIN outside of a user namespace";
    let adds = |capability: &str| json!({ "capabilities": { "add": [capability] } });
    for (context, warns) in [
        (json!({}), false),
        (adds("NET_RAW"), false),
        (json!({ "capabilities": { "drop": ["NET_ADMIN"] } }), false),
        (json!({ "privileged": false }), false),
        (adds("NET_ADMIN"), true),
        (adds("ALL"), true),
        (json!({ "privileged": true }), true),
    ] {
        let expected: &[&str] = if warns { &[words] } else { &[] };
        let plain = json!({ "name": "a" });
        let with = json!({ "name": "b", "securityContext": context });
        for list in ["containers", "initContainers", "ephemeralContainers"] {
            let mut spec = json!({ "containers": [plain] });
            spec[list] = json!([plain, with]);
            says(&policy, &json!({ "spec": spec }), expected);
            says(&policy, &json!({ "spec": { "template": { "spec": spec } } }), expected);
            for (field, value, exempt) in [
                ("hostUsers", false, true),
                ("hostUsers", true, false),
                ("hostNetwork", true, true),
            ] {
                let mut spec = spec.clone();
                spec[field] = json!(value);
                says(&policy, &json!({ "spec": spec }), if exempt { &[] } else { expected });
            }
        }
    }
}

/// The kubelet of the pod's node connects to the host of a probe or hook.
#[test]
fn probes_and_hooks_that_name_a_host_are_warned_of() {
    if !can_render("probes_and_hooks_that_name_a_host_are_warned_of") {
        return;
    }
    let policy = policy("netpold-probe-hosts");
    let words = "a probe or lifecycle hook names a host";
    let plain = json!({ "name": "a", "livenessProbe": { "exec": { "command": ["true"] } } });
    for (handler, warns) in [
        (json!({ "httpGet": { "port": 80, "path": "/" } }), false),
        (json!({ "httpGet": { "port": 80, "host": "" } }), false),
        (json!({ "httpGet": { "port": 80, "host": "10.0.0.7" } }), true),
        (json!({ "httpGet": { "port": 80, "host": "127.0.0.1" } }), true),
        (json!({ "tcpSocket": { "port": 80 } }), false),
        (json!({ "tcpSocket": { "port": 80, "host": "db.shop" } }), true),
        (json!({ "grpc": { "port": 80, "service": "host" } }), false),
        (json!({ "exec": { "command": ["host"] } }), false),
        (json!({ "sleep": { "seconds": 1 } }), false),
    ] {
        let expected: &[&str] = if warns { &[words] } else { &[] };
        for container in [
            json!({ "name": "b", "livenessProbe": handler }),
            json!({ "name": "b", "readinessProbe": handler }),
            json!({ "name": "b", "startupProbe": handler }),
            json!({ "name": "b", "lifecycle": { "postStart": handler } }),
            json!({ "name": "b", "lifecycle": { "preStop": handler } }),
        ] {
            for list in ["containers", "initContainers"] {
                let mut spec = json!({ "containers": [plain] });
                spec[list] = json!([plain, container]);
                says(&policy, &json!({ "spec": spec }), expected);
                says(&policy, &json!({ "spec": { "template": { "spec": spec } } }), expected);
                spec["hostNetwork"] = json!(true);
                says(&policy, &json!({ "spec": spec }), &[]);
            }
        }
    }
}
