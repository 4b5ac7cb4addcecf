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
            .replace("namespace: x", "namespace: 'y'")
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

#[test]
fn loopback_addresses_stay_in_a_pod() {
    let deny = policy("p", "podSelector: {}, policyTypes: [Ingress, Egress]");
    let objects = format!("{CLUSTER}{deny}");
    for address in ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"] {
        let (text, json) = explain(&objects, &["--from", "x/web", "--to", address, "--port", "80"]);
        assert!(
            text.starts_with("allow:")
                && text.contains("loopback address: these packets stay in pod x/web"),
            "{text}"
        );
        assert_eq!(json["verdict"], "allow");
        let (text, json) = explain(&objects, &["--from", address, "--to", "x/web", "--port", "80"]);
        assert!(
            text.starts_with("cannot tell:")
                && text.contains("loopback address: its packets never leave"),
            "{text}"
        );
        assert_eq!(json.get("verdict"), None);
    }
    let (text, _) = explain(&objects, &["--from", "x/web", "--to", "128.0.0.1", "--port", "80"]);
    assert!(text.starts_with("deny:") && !text.contains("loopback"), "{text}");
}

#[test]
fn slips_are_named() {
    let rule = |rule: &str| {
        policy("p", &format!("podSelector: {{matchLabels: {{app: web}}}}, ingress: [{rule}]"))
    };
    let block = rule("{from: [{ipBlock: {cidr: 10.9.2.3/16}}, {ipBlock: {cidr: 10.8.0.0/16}}]}");
    let (text, json) = explain(
        &format!("{CLUSTER}{block}"),
        &["--from", "10.9.7.7", "--to", "x/web", "--port", "80"],
    );
    assert!(text.contains("10.9.2.3/16 in x/p is read as 10.9.0.0/16"), "{text}");
    assert_eq!(json["ingress"]["remarks"].as_array().unwrap().len(), 1, "{json:#}");
    let service = "{apiVersion: v1, kind: Service, metadata: {name: front, namespace: x}, spec: {clusterIP: 10.96.0.7, selector: \
                   {app: web}, ports: [{port: 80, targetPort: http}]}}\n---\n";
    let objects = format!("{CLUSTER}{service}{}", rule("{ports: [{port: 8080}]}"));
    let ask =
        |port: &str| explain(&objects, &["--from", "y/client", "--to", "x/web", "--port", port]).0;
    let hint = "80 is the port of Service x/front, which leads to port 8080 of its pods; --to svc/x/front asks for that";
    assert!(ask("80").starts_with("deny:") && ask("80").contains(hint), "{}", ask("80"));
    assert!(!ask("81").contains("x/front") && !ask("8080").contains("x/front"));
}
