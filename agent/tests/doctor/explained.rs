//! Notes of `netpold explain` about objects other than policies.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{BINARY, CLUSTER, policy};

/// Returns the answer as text, with standard error, and as JSON.
fn explain(objects: &str, arguments: &[&str]) -> (String, Value) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("all.yaml"), objects).unwrap();
    let run = |more: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("explain").arg("--manifests").arg(directory.path()).args(arguments).args(more);
        command.env_clear().output().unwrap()
    };
    let text = run(&[]);
    let text = [text.stdout, text.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (text, serde_json::from_slice(&run(&["-o", "json"]).stdout).unwrap_or_default())
}

#[test]
fn rules_without_effect_are_named() {
    let ask = ["--from", "x/web", "--to", "203.0.113.9", "--port", "443"];
    let spec = |types: &str| {
        format!(
            "podSelector: {{matchLabels: {{app: web}}}}{types}, egress: [{{to: [{{podSelector: {{}}}}]}}]"
        )
    };
    let void = "the egress rules of x/lax have no effect: its policyTypes lacks Egress (all.yaml:";
    let (text, json) =
        explain(&format!("{CLUSTER}{}", policy("lax", &spec(", policyTypes: [Ingress]"))), &ask);
    assert!(text.starts_with("allow:") && text.contains(void), "{text}");
    assert!(json["egress"]["remarks"][0].as_str().unwrap().starts_with(void), "{json:#}");
    let (text, json) = explain(&format!("{CLUSTER}{}", policy("lax", &spec(""))), &ask);
    assert!(text.starts_with("deny:") && !text.contains("no effect"), "{text}");
    assert_eq!(json["egress"].get("remarks"), None);
    let (text, _) =
        explain(&format!("{CLUSTER}{}", policy("lax", "podSelector: {}, egress: []")), &ask);
    assert!(
        text.contains("the empty egress of x/lax denies nothing: its policyTypes lacks Egress"),
        "{text}"
    );
    let other = policy(
        "lax",
        "podSelector: {matchLabels: {app: other}}, policyTypes: [Ingress], egress: [{}]",
    );
    assert!(!explain(&format!("{CLUSTER}{other}"), &ask).0.contains("lax"));
}

#[test]
fn policies_of_other_apis_are_named() {
    let foreign = "
{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: a, namespace: x}}
---
{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: b, namespace: other}}
---
{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: old}}
---
";
    let ask = ["--from", "y/client", "--to", "x/web", "--port", "8080"];
    let (text, json) = explain(&format!("{CLUSTER}{foreign}"), &ask);
    let line = "not enforced by netpold, and not part of this answer: CiliumNetworkPolicy x/a, AdminNetworkPolicy old";
    assert!(text.starts_with("allow:") && text.lines().any(|it| it == line), "{text}");
    assert_eq!(
        json["not_enforced"],
        serde_json::json!(["CiliumNetworkPolicy x/a", "AdminNetworkPolicy old"])
    );
    let (text, json) = explain(CLUSTER, &ask);
    assert!(!text.contains("not enforced") && json.get("not_enforced").is_none(), "{text}");
}

#[test]
fn external_names_are_no_headless_services() {
    let service = |spec: &str| {
        format!(
            "{CLUSTER}{{apiVersion: v1, kind: Service, metadata: {{name: s, namespace: x}}, spec: {{{spec}}}}}\n"
        )
    };
    let ask = ["--from", "x/web", "--to", "svc/x/s", "--port", "80"];
    let (text, _) = explain(&service("type: ExternalName, externalName: db.example.com"), &ask);
    assert!(
        text.contains("Service x/s is an ExternalName") && text.contains("db.example.com"),
        "{text}"
    );
    assert!(!text.contains("headless"), "{text}");
    let (text, _) = explain(&service("clusterIP: None, ports: [{port: 80}]"), &ask);
    assert!(text.contains("headless"), "{text}");
}

#[test]
fn addresses_of_tunnels_are_nodes() {
    let node = "
apiVersion: v1
kind: Node
metadata:
  name: n2
  annotations: {projectcalico.org/IPv4IPIPTunnelAddr: 10.0.9.1, flannel.alpha.coreos.com/public-ip: 192.0.2.7}
spec: {podCIDR: 10.0.2.0/24, podCIDRs: [10.0.2.0/24, 'fd00:2::/64']}
status: {addresses: [{type: InternalIP, address: 192.168.0.2}]}
---
";
    let deny = policy("deny", "podSelector: {}, ingress: [{from: [{podSelector: {}}]}]");
    let objects = format!("{CLUSTER}{node}{deny}");
    for (address, what) in [
        ("10.0.9.1", Some("tunl0")),
        ("192.0.2.7", Some("Flannel's tunnel")),
        ("10.0.2.0", Some("the first of its podCIDR 10.0.2.0/24")),
        ("10.0.2.1", Some("the gateway or bridge")),
        ("10.0.2.2", None),
        ("10.0.0.3", None),
        ("192.168.0.2", None),
    ] {
        let (text, _) = explain(&objects, &["--from", address, "--to", "x/web", "--port", "80"]);
        assert!(text.starts_with("deny:"), "{text}");
        let found = text.contains(&format!("{address} is an address of node n2 ("));
        assert_eq!(found, what.is_some(), "{address}: {text}");
        assert!(what.is_none_or(|what| text.contains(what)), "{address}: {text}");
    }
    let (text, _) =
        explain(&objects, &["--from", "10.0.9.1", "--to", "203.0.113.1", "--port", "80"]);
    assert!(
        text.contains("is a pod's address; 10.0.9.1 is an address of node n2 (Calico's"),
        "{text}"
    );
}

/// Picks the intended rule: the rule with the Service's port, or with its address.
#[test]
fn the_nearest_rule_is_the_one_that_was_meant() {
    let ask = ["--from", "y/client", "--to", "svc/x/web", "--port", "80"];
    let egress = |rule: &str| {
        let rules = format!(
            "{{ports: [{{port: 53}}, {{port: 53, protocol: UDP}}]}}, {{ports: [{{port: 22}}]}}, {rule}"
        );
        policy("out", &format!("podSelector: {{}}, policyTypes: [Egress], egress: [{rules}]"))
            .replace("namespace: x", "namespace: y")
    };
    let (text, _) = explain(&format!("{CLUSTER}{}", egress("{ports: [{port: 80}]}")), &ask);
    assert!(text.contains("nearest: egress rule 3 of y/out"), "{text}");
    assert!(
        text.contains(
            "port 8080 is not in it; 80 is the Service's port, which is translated first"
        ),
        "{text}"
    );
    let (text, _) =
        explain(&format!("{CLUSTER}{}", egress("{to: [{ipBlock: {cidr: 10.96.0.1/32}}]}")), &ask);
    assert!(text.contains("nearest: egress rule 3 of y/out"), "{text}");
    assert!(
        text.contains("10.96.0.1 is the Service's address, which is translated first"),
        "{text}"
    );
}
